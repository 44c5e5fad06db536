"""What a training's data is called, held against the files that were recorded."""

from __future__ import annotations

import pytest

from privctl.domain.report import Artifact, PrivacyReport
from verify.consistency.bookkeeping import disagreements
from verify.methods.expected import StatedTraining


def complaint(name: str, files: list[str]) -> str:
    inputs = tuple(Artifact(role="data", path=file, digest=f"blake3:{i:064d}", bytes=1) for i, file in enumerate(files))
    report = PrivacyReport(step="retrain", created="2026-01-01T00:00:00Z", versions={}, inputs=inputs)
    parameters = StatedTraining(
        method="dp-sgd", task="causal-lm", examples=2, batch_size=1.0, initial_weights="given", collected_from_data=(),
        data=name,
    )  # fmt: skip
    return "; ".join(disagreements(report, parameters, None))


SHARDS = ["train-00000-of-00002.jsonl", "train-00001-of-00002.jsonl"]


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("train", [f"ds/{file}" for file in SHARDS]),  # --data ds/train, a split
        ("validation", ["ds/validation.parquet"]),
        ("", [f"ds/{file}" for file in SHARDS]),  # --data . inside ds
        ("ds", SHARDS),  # the report lies in ds too
        ("ds", [f"data/{file}" for file in SHARDS]),
        ("ds", [f"../{file}" for file in SHARDS]),
        ("ds + a.jsonl", [*SHARDS, "../a.jsonl"]),
        ("x [1] + y.jsonl", ["x [1] + y.jsonl"]),
    ],
)
def test_data_that_was_read_is_called_so(name: str, files: list[str]) -> None:
    assert complaint(name, files) == ""


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("b.jsonl", ["a.jsonl"]),
        ("a.jsonl", ["a.jsonl", "b.jsonl"]),
        ("test", [f"ds/{file}" for file in SHARDS]),
        ("other", [f"ds/{file}" for file in SHARDS]),
        ("a.jsonl + b.jsonl", ["a.jsonl"]),
        ("*.csv", SHARDS),
    ],
)
def test_data_that_was_not_read_is_noticed(name: str, files: list[str]) -> None:
    assert "the data is called" in complaint(name, files)
