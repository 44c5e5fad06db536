"""Reports of every kind, made once for the files that change entries in them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests import remembered
from tests.seeded import SEEDED
from tests.verify.kinds import Kind, Kinds, later, quick, trained


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory, write_model: Callable[..., Path]) -> Kinds:
    """They must be left as they are; ``tests/conftest.py`` keeps the files that ask for them in one worker."""
    folder = tmp_path_factory.mktemp("kinds")
    with _as_usual():
        kinds = {**quick(folder, write_model), **trained(folder)}

    def usual(name: str, make: Callable[[], Kind]) -> Kind:
        with SEEDED.named(f"kind of report: {name}"), _as_usual():
            return make()

    return Kinds(kinds, {name: functools.partial(usual, name, make) for name, make in later(folder).items()})


@contextmanager
def _as_usual() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with remembered.bounds(remembered.FEW_DRAWS):
            yield
    finally:
        torch.set_num_threads(threads)
