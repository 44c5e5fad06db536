"""Positions that no text reached are where they were: a shorter limit than that of the training is refuted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privctl.cli import run
from privctl.domain.errors import ExitCode
from tests.models.tasks.small import architecture, words
from verify.run import Verification, read, verify


@pytest.fixture(scope="module", params=["plain", "clipped"])
def report_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a training without noise on texts of up to 36 tokens, of which at most 38 were to be read."""
    folder = tmp_path_factory.mktemp(request.param)
    words().tokenizer.save_pretrained(architecture(folder / "start", "gpt2"))
    data = folder / "train.jsonl"
    data.write_text("".join(json.dumps({"text": " ".join(["the old cat"] * (i % 12 + 1))}) + "\n" for i in range(36)))
    asked = ["--epochs", "2", "--batch-size", "6", "--weight-decay", "0.1", "--max-length", "38", "--device", "cpu"]
    start, output = str(folder / "start"), str(folder / "model")
    assert run(["retrain", request.param, start, "--data", str(data), *asked, "-q", "-o", output]) == 0
    return folder / "model.report.json"


def edited(report_path: Path, max_length: int) -> Verification:
    data = json.loads(report_path.read_text())
    data["parameters"]["max_length"] = max_length
    place = report_path.with_name("mutant.report.json")
    place.write_text(json.dumps(data))
    return verify(place, read(place))


@pytest.mark.parametrize("max_length", [21, 30, 38])
def test_a_limit_that_texts_may_have_had_passes(report_path: Path, max_length: int) -> None:
    assert edited(report_path, max_length).exit_code is ExitCode.OK


@pytest.mark.parametrize("max_length", [4, 8, 16])
def test_a_limit_that_a_position_exceeds_is_refuted(report_path: Path, max_length: int) -> None:
    found = edited(report_path, max_length)
    assert found.exit_code is ExitCode.REFUTED
    (reason,) = [verdict.reason for verdict in found.verdicts if verdict.subject == "weights"]
    assert reason.startswith(f"the training is said to have read {max_length} tokens of a text at most, but row ")
    assert "'transformer.wpe.weight', which only a later position uses" in reason
