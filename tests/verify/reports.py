"""Genuine reports of every kind, made by the real commands on tiny models."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np

from privctl.cli import run
from tests.models.tasks.small import architecture, words

FACTS = ["--epochs", "2", "--learning-rate", "0.1", "--clip-norm", "1", "--dataset-size", "100", "--batch-size", "5"]
_WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")
_PLANS = {
    "plan": ["--noise-multiplier", "1", "--sample-rate", "0.01", "--steps", "300", "--prior", "0.01"],
    "plan of passes": ["--noise-multiplier", "9", "--sample-rate", "0.01", "--steps", "1000", "--batches", "shuffled"],
    "plan of fixed batches": [
        "--noise-multiplier", "2", "--sample-rate", "0.01", "--steps", "200", "--batches", "fixed-size",
    ],
    "plan of laplace": ["--mechanism", "laplace", "--scale", "3", "--sample-rate", "0.1", "--steps", "50"],
    "plan of signs": ["--mechanism", "ferret", "--epsilon", "0.5", "--groups", "2", "--sample-rate", "0.005",
                      "--steps", "1000"],
    "plan of a secret": ["--mechanism", "secret", "--posterior", "0.1", "--prior", "0.001", "--record", "0.01x5",
                         "--steps", "500"],
}  # fmt: skip
_FERRET = {
    "ferret published": ["--epsilon", "0.5", "--epochs", "10"],
    "ferret gaussian": ["--release", "gaussian", "--groups", "4", "--epsilon", "3", "--epochs", "6"],
    "ferret responses": ["--release", "randomized-response", "--groups", "eighth", "--epsilon", "3", "--epochs", "6"],
}


def noise(folder: Path, write_model: Callable[..., Path], *more: str) -> Path:
    """A noised file of four tensors, one of them of integers; returns its report."""
    rng = np.random.default_rng(3)
    weights = {name: rng.standard_normal((80, 30)).astype(np.float32) for name in ("first", "second", "third")}
    model = write_model(folder / "m.safetensors", {**weights, "ids": np.arange(5)})
    assert run(["noise", str(model), "-q", "--smoothness", "1", "--strong-convexity", "0.1", *FACTS, *more]) == 0
    return folder / "m.private.report.json"


def plan(folder: Path, kind: str) -> Path:
    """A plan of ``privctl account``."""
    path = folder / f"{kind.replace(' ', '-')}.report.json"
    assert run(["account", "--delta", "1e-5", *_PLANS[kind], "--json", "-q", "-o", str(path)]) == 0
    return path


def trained(folder: Path, kind: str) -> Path:
    """A report of a tiny training."""
    start, data = folder / "start", folder / "train.jsonl"
    if not start.is_dir():
        words().tokenizer.save_pretrained(architecture(start, "gpt2"))
        drawn = random.Random(0)
        lines = [json.dumps({"text": " ".join(drawn.choices(_WORDS, k=drawn.randint(2, 9)))}) for _ in range(60)]
        data.write_text("\n".join(lines) + "\n")
    output = folder / kind.replace(" ", "-")
    method, more = kind.split()[0], _FERRET.get(kind, ["--epochs", "2"])
    more = [*more, "--epsilon", "3"] if kind == "dp-sgd" else more
    call = ["retrain", method, str(start), "--data", str(data), "-o", str(output), "--batch-size", "12", *more]
    assert run([*call, "--device", "cpu", "-q"]) == 0
    return output.with_name(output.name + ".report.json")


PLANS = tuple(_PLANS)
TRAININGS = ("dp-sgd", *_FERRET)
