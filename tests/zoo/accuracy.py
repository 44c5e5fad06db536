"""What a report states of a classifier, beside what ``transformers.pipeline`` makes of the same records."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers import pipeline

import privctl
from privctl.domain.errors import PrivctlError
from tests.zoo.shrink import Unbuildable, build, write_data


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A released classifier on held-out records: the share it gets right, and its mean loss in nats."""

    accuracy: float
    loss: float


def judged(task: str, model_type: str, folder: Path) -> tuple[Judged, Judged] | None:
    """By the report, and by the pipeline, after three plain steps of a tiny model of ``model_type``.

    None where the model cannot be built or privctl refuses it.
    """
    folder.mkdir()
    held_out, output = write_data(task, folder / "others", seed=1), folder / "out"
    try:
        build(task, model_type, folder / "model")
        report = _trained(task, folder / "model", write_data(task, folder / "data"), held_out, output)
    except (PrivctlError, Unbuildable):
        return None
    stated = {item.quantity: item.estimate for item in report.evidence}
    tell: Any = pipeline(task, model=str(output), device="cpu", top_k=None)  # type: ignore[call-overload]
    right, lost = 0, 0.0
    records = _read(held_out)
    for record, label in records:
        answer = tell(record)
        shares = {
            _bare(each["label"]): each["score"] for each in (answer[0] if isinstance(answer[0], list) else answer)
        }
        right += max(shares, key=shares.__getitem__) == label
        lost -= math.log(shares[label])
    by_report = Judged(accuracy=stated["held-out accuracy"], loss=stated["held-out loss, nats"])
    return by_report, Judged(accuracy=right / len(records), loss=lost / len(records))


def _trained(task: str, model: Path, data: Path, held_out: Path, output: Path) -> Any:
    def steps(norm: str | None) -> Any:
        return privctl.retrain(
            "plain", model, data=data, held_out=held_out, output=output, task=task, steps=3, batch_size=6,
            learning_rate=0.01, norm=norm, device="cpu",
        )  # fmt: skip

    try:
        return steps(None)
    except PrivctlError as error:
        if "--norm frozen" not in str(error):
            raise
        return steps("frozen")


def _read(path: Path) -> Sequence[tuple[Any, str]]:
    """The records, as a pipeline takes them, with the numbers of their classes."""
    if path.suffix == ".npz":
        archive = np.load(path)
        return [(Image.fromarray(a), str(n)) for a, n in zip(archive["images"], archive["labels"], strict=True)]
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [(row["text"], _bare(row["label"])) for row in rows]


def _bare(label: str) -> str:
    """A class's number: some models name their classes ``LABEL_0``, others ``0``."""
    return label.removeprefix("LABEL_")
