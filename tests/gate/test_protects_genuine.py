"""Genuine reports of trainings by patients: what a gate that computes again takes their word for, and what not."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from privctl.cli import run
from privctl.domain.gate import Finding
from tests.gate.made import FAIL, PASS, judged, of, only
from tests.models.tasks.small import architecture, words

Report = dict[str, Any]
_WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of a private training by patients, one by records, and noise after a clipped training by patients."""
    folder = tmp_path_factory.mktemp("patients")
    start = architecture(folder / "start", "gpt2", n_layer=1)
    words().tokenizer.save_pretrained(start)
    drawn, data = random.Random(5), folder / "visits.jsonl"
    lines = [{"text": " ".join(drawn.choices(_WORDS, k=6)), "patient": f"p{i // 4}"} for i in range(160)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    common = [start, "--data", data, "--batch-size", "10", "--epochs", "1", "--device", "cpu", "-q"]
    _done("retrain", "dp-sgd", *common, "--epsilon", "3", "--unit", "patient", "-o", folder / "patients")
    _done("retrain", "dp-sgd", *common, "--epsilon", "3", "-o", folder / "records")
    _done("retrain", "clipped", *common, "--unit", "patient", "-o", folder / "clipped")
    _done("noise", folder / "clipped", "--epsilon", "1", "-q", "-o", folder / "noised")
    return {name: folder / f"{name}.report.json" for name in ("patients", "records", "clipped", "noised")}


def _done(*arguments: object) -> None:
    assert run([str(argument) for argument in arguments]) == 0, arguments


def recomputed(path: Path, rule: str = "protects", **policy: str) -> list[Finding]:
    return of(judged(path, protects="patient", recompute="true", **policy), rule)


def test_genuine_reports(reports: dict[str, Path]) -> None:
    judgement = judged(reports["patients"], protects="patient", recompute="true", max_epsilon="3")
    assert judgement.outcome is PASS
    assert only(judgement, "recomputed").outcome is PASS
    (found,) = recomputed(reports["records"], max_epsilon="3")
    assert (found.outcome, "each record by itself" in found.message) == (FAIL, True)


def test_noise_after_a_clipped_training_by_patients(reports: dict[str, Path]) -> None:
    stated = json.loads(reports["noised"].read_text())
    names = {assumption["name"] for assumption in stated["guarantees"][0]["assumptions"]}
    (found,) = recomputed(reports["noised"], at_delta="1e-3", accepted_assumptions=",".join(sorted(names)))
    assert (found.outcome, "'patient' together" in found.message) == (PASS, True), found.message


def _names_a_unit(report: Report) -> None:
    report["parameters"]["unit"] = "patient"


def _says_so(report: Report) -> None:
    for guarantee in report["guarantees"]:
        for assumption in guarantee["assumptions"]:
            if assumption["name"] == "unit of privacy":
                assumption["statement"] = "all records with one value of 'patient' are one example"


@pytest.mark.parametrize(
    ("forge", "passes"), [(_names_a_unit, True), (_says_so, False)], ids=["the parameter alone", "the assumption alone"]
)
def test_a_forged_unit_is_refuted(
    reports: dict[str, Path], forge: Callable[[Report], None], passes: bool, tmp_path: Path
) -> None:
    """The rule reads the parameter; that the assumption says something else is found in a policy of this rule alone."""
    report = json.loads(reports["records"].read_text())
    forge(report)
    forged = tmp_path / "records.report.json"
    forged.write_text(json.dumps(report))
    (found,) = recomputed(forged)
    assert (found.outcome is PASS) is passes
    (refuted,) = recomputed(forged, "recomputed")
    assert (refuted.outcome, "'unit of privacy'" in refuted.message) == (FAIL, True)


def test_a_unit_forged_before_noise_breaks_the_chain(reports: dict[str, Path], tmp_path: Path) -> None:
    noised, clipped = tmp_path / "noised.report.json", tmp_path / "clipped.report.json"
    report = json.loads(reports["clipped"].read_text())
    report["parameters"]["unit"] = "ward"
    clipped.write_text(json.dumps(report))
    noised.write_text(reports["noised"].read_text())
    assert FAIL in [each.outcome for each in recomputed(noised, "chain")]
