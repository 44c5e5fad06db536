"""A report of every kind, made once for the files that change entries in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests import remembered
from tests.verify.kinds import Kinds, quick, trained


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory, write_model: Callable[..., Path]) -> Kinds:
    """They must be left as they are; ``tests/conftest.py`` keeps the files that ask for them in one worker."""
    threads = torch.get_num_threads()
    folder = tmp_path_factory.mktemp("kinds")
    with remembered.bounds(remembered.FEW_DRAWS):
        made = {**quick(folder, write_model), **trained(folder)}
    torch.set_num_threads(threads)
    return made
