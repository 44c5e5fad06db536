"""What tests of commands share: one thread, and a small model to train."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForImageClassification

from tests.models.tasks.small import architecture, config, words


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def start(tmp_path: Path) -> Path:
    """A GPT-2 of one layer, without weights, with a tokenizer."""
    folder = architecture(tmp_path / "start", "gpt2", n_layer=1)
    words().tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def start_of_two_layers(tmp_path: Path) -> Path:
    """As ``start``, for tests that tell layers from each other."""
    folder = architecture(tmp_path / "start", "gpt2")
    words().tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def images(tmp_path: Path) -> Path:
    drawn, path = np.random.default_rng(0), tmp_path / "images.npz"
    np.savez(path, images=drawn.integers(256, size=(40, 8, 8, 3), dtype=np.uint8), labels=np.arange(40) % 2)
    return path


@pytest.fixture
def resnet(tmp_path: Path) -> Path:
    """With running statistics of its own."""
    torch.manual_seed(0)
    network: Any = AutoModelForImageClassification.from_config(config("resnet"))
    for _ in range(20):
        network.train()(torch.randn(16, 3, 8, 8) + 0.5)
    network.save_pretrained(tmp_path / "resnet")
    return tmp_path / "resnet"
