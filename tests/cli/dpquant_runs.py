"""Short runs of ``privctl retrain dpquant`` and what they leave."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.report import PrivacyReport
from privctl.reports.files import read_report

WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")


def records(path: Path) -> Path:
    """Sixty short texts, written to ``path``."""
    drawn = random.Random(0)
    lines = [{"text": " ".join(drawn.choices(WORDS, k=drawn.randint(2, 9)))} for _ in range(60)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def call(model: Path, data: Path, output: Path, *more: str) -> list[str]:
    usual = [
        "--batch-size",
        "12",
        "--epochs",
        "2",
        "--device",
        "cpu",
        "-q",
        "--format",
        "luq-fp4",
        "--micro-tokens",
        "160",
    ]
    return ["retrain", "dpquant", str(model), "--data", str(data), "-o", str(output), *usual, *more]


def report_of(output: Path) -> PrivacyReport:
    return read_report(output.with_name(output.name + ".report.json"))


def alike(event: SampledGaussian) -> Callable[[float], Ledger]:
    """The same event with another noise multiplier."""
    return lambda noise: Ledger(events=(replace(event, noise_multiplier=noise),))
