"""Fixtures of the audits' tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.audits.tiny import save_model


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small only lose by threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama folder; tests must not change it."""
    return save_model(tmp_path_factory.mktemp("llama") / "tiny")
