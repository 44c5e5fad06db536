"""Genuine reports of tiny models, made once by the commands that users call."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
import torch

from privctl.cli import run
from tests.models.tasks.small import architecture, words

_WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")


_MADE: list[Path] = []


def genuine(factory: pytest.TempPathFactory) -> Path:
    """A folder that must not be changed: two models with their reports, and an audit of each.

    ``release/model`` was trained privately, ``release/clipped`` learnt by heart what it saw, and ``release/noised`` is
    that with noise. The coins come from a generator, so that no test hangs on them.
    """
    if not _MADE:
        folder = factory.mktemp("genuine")
        _make(folder)
        _MADE.append(folder)
    return _MADE[0]


def _make(folder: Path) -> None:
    release = folder / "release"
    release.mkdir()
    train, held_out = _data(folder / "train.jsonl", 0), _data(folder / "held-out.jsonl", 1)
    start = architecture(folder / "start", "gpt2", n_layer=1)
    words().tokenizer.save_pretrained(start)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "urandom", random.Random(0).randbytes)
            common = ["--data", train, "--batch-size", "40", "--micro-tokens", "640", "--device", "cpu", "-q"]
            _done("retrain", "dp-sgd", start, *common, "--epochs", "1", "--epsilon", "3", "-o", release / "model")
        _done("retrain", "clipped", start, *common, "--epochs", "8", "--learning-rate", "0.02",
              "--clip-norm", "10", "-o", release / "clipped")  # fmt: skip
        _done("noise", release / "clipped", "--epsilon", "1", "--calibration", "published", "-q",
              "-o", release / "noised")  # fmt: skip
        looked = ["--members", train, "--nonmembers", held_out, "--attack", "loss", "--no-cache", "--device", "cpu"]
        _done("audit", release / "model", *looked, "--train", train, "--held-out", held_out, "--prefix-tokens", "2",
              "--suffix-tokens", "2", "-q", "-o", release / "model.audit.report.json")  # fmt: skip
        _done("audit", release / "clipped", *looked, "-q", "-o", release / "clipped.audit.report.json")
    finally:
        torch.set_num_threads(threads)


def _done(*arguments: object) -> None:
    assert run([str(argument) for argument in arguments]) == 0, arguments


def _data(path: Path, seed: int, count: int = 400) -> str:
    drawn = random.Random(seed)
    lines = [{"text": " ".join(drawn.choices(_WORDS, k=drawn.randint(5, 12)))} for _ in range(count)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)
