"""What tests of ``retrain dp-sgd --public`` share: a model, private and public records, and the call."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.short_runs import dp_sgd, prepared

RECORDS, PUBLIC, STEPS = 30, 11, 8
OPTIONS = ["--batch-size", "6", "--steps", str(STEPS), "--device", "cpu", "--epsilon", "6"]


def prepared_publicly(folder: Path) -> Path:
    """``folder`` as ``prepared``, with ``public.jsonl``."""
    prepared(folder, RECORDS)
    write(folder / "public.jsonl", [f"the dog sat {'on ' * (i % 3)}the mat {i}" for i in range(PUBLIC)])
    return folder


def write(path: Path, texts: list[str]) -> None:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))


def mixed(folder: Path, output: Path, *more: str, public: str = "public.jsonl") -> list[str]:
    return [*dp_sgd(folder, output, *OPTIONS), "--public", str(folder / public), *more, "-q"]
