"""What tests of commands share: one thread, and a small model to train."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.models.tasks.small import architecture, words


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """A GPT-2 without weights, with a tokenizer."""
    folder = architecture(tmp_path / "start", "gpt2")
    words().tokenizer.save_pretrained(folder)
    return folder
