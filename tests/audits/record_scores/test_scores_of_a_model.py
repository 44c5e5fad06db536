"""Scores that are said to be of a model: tied to its digest, told to be somebody's word, and gated as such."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

import privctl
from privctl.cli import run
from privctl.domain.errors import CommandError, ExitCode, InputError
from privctl.domain.gate import GateOutcome
from privctl.domain.guarantee import AssumptionState
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.audit_log import read_log
from privctl.reports.files import read_report, write_report
from privctl.storage.digest import file_digest
from tests.audits.record_scores.test_audit_of_scores import drawn, table
from tests.few import few
from verify.audits.consistency import faults

WORD = "scores of the model"
POLICY: dict[str, Any] = {"required_steps": ["audit"], "max_auc": 0.7, "min_power": {"auc": 0.6}}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A model with the report of how it was made."""
    path = tmp_path / "own.safetensors"
    save_file({"weight": np.ones((3, 2), np.float32)}, path)
    privctl.from_opacus([(1.0, 0.1, 10)], path, examples=600)
    return path


def audited(weights: Path, shift: float = 0.0) -> PrivacyReport:
    scores = table(weights.with_name("s.csv"), *drawn(800, shift))
    return privctl.audit_scores(scores, model=weights, force=True)


def rules(judgement: Any, outcome: GateOutcome) -> dict[str, str]:
    return {finding.rule: finding.message for finding in judgement.of(outcome)}


def test_the_report_names_the_model_by_its_digest_and_is_found_beside_it(weights: Path) -> None:
    report = audited(weights)
    report_path = weights.with_name("own.audit.report.json")
    assert read_report(report_path) == report
    own_report = read_report(weights.with_name("own.report.json"))
    assert [a.digest for a in report.inputs if a.role == "model"] == [a.digest for a in own_report.outputs]
    assert [parent.path for parent in report.parents] == ["own.report.json"]
    assert any(
        "nothing but the caller's word ties the scores to the model (assumption 'scores of the model')" in line
        for line in report.warnings
    )
    assert list(faults(report)) == []
    found = privctl.verify(report_path)
    assert found.exit_code is ExitCode.OK
    assert "whether the scores are of this model" in [omission.what for omission in found.omissions]


def test_the_page_of_the_model_has_it_and_whose_word_it_is(weights: Path) -> None:
    audited(weights)
    assert run(["inspect", str(weights), "-q"]) == 0
    page = weights.with_name("page.html")
    assert run(["report", str(weights), "-q", "-o", str(page)]) == 0
    assert "ties the scores to the model (assumption" in page.read_text()


def test_a_gate_counts_silence_only_where_its_policy_accepts_the_word(weights: Path) -> None:
    audited(weights)
    refused = privctl.gate(weights, **POLICY)
    assert refused.outcome is GateOutcome.INCONCLUSIVE
    messages = rules(refused, GateOutcome.INCONCLUSIVE)
    assert messages.keys() == {"required_steps", "max_auc", "min_power"}
    assert "rests on scores of the model, which the policy does not accept unchecked" in messages["required_steps"]
    assert {f.fix.rpartition(": ")[2] for f in refused.of(GateOutcome.INCONCLUSIVE)} == {f'"{WORD}"'}
    accepted = privctl.gate(weights, **POLICY, accepted_assumptions=[WORD])
    assert accepted.outcome is GateOutcome.PASS
    assert "is asserted, and the policy accepts it" in rules(accepted, GateOutcome.PASS)["required_steps"]


def test_what_it_finds_counts_whoever_answers_for_it(weights: Path) -> None:
    assert audited(weights, shift=2.0).verdicts[0].outcome is Outcome.REFUTED
    found = rules(privctl.gate(weights, **POLICY), GateOutcome.FAIL)
    assert found.keys() == {"max_auc", "forbid_outcomes"}


def test_weights_that_changed_since_are_refused(weights: Path) -> None:
    audited(weights)
    save_file({"weight": np.full((3, 2), 2, np.float32)}, weights)
    judged = privctl.gate(weights, **POLICY, accepted_assumptions=[WORD])
    assert judged.outcome is GateOutcome.FAIL
    assert "states that its step wrote these" in " ".join(f.message for f in judged.of(GateOutcome.FAIL))
    assert "required_steps" in rules(judged, GateOutcome.INCONCLUSIVE)
    assert privctl.verify(weights.with_name("own.audit.report.json")).exit_code is ExitCode.REFUTED


def test_without_a_model_it_is_an_audit_of_none(weights: Path) -> None:
    privctl.audit_scores(table(weights.with_name("s.csv"), *drawn(800, 0.0)))
    judged = privctl.gate(weights, **POLICY, accepted_assumptions=[WORD])
    assert "required_steps" in rules(judged, GateOutcome.INCONCLUSIVE)


def _stated(report: PrivacyReport, **changes: Any) -> PrivacyReport:
    (condition,) = report.parameters["score_conditions"]
    return replace(report, parameters={**report.parameters, "score_conditions": [{**condition, **changes}]})


FORGED: dict[str, tuple[Callable[[PrivacyReport], PrivacyReport], str]] = {
    "left out": (
        lambda r: replace(r, parameters={k: v for k, v in r.parameters.items() if k != "score_conditions"}),
        "does not state the assumption 'scores of the model'",
    ),
    "checked": (lambda r: _stated(r, state=AssumptionState.CHECKED.value), "only the caller knows"),
    "other words": (lambda r: _stated(r, statement="privctl scored the records"), "which is not that assumption"),
    "no model": (
        lambda r: replace(r, inputs=tuple(a for a in r.inputs if a.role != "model")),
        "names no model with such scores",
    ),
    "no scores": (
        lambda r: replace(r, inputs=tuple(a for a in r.inputs if a.role != "scores")),
        "names no model with such scores",
    ),
}


@pytest.mark.forged("what an audit says of its scores is changed")
@pytest.mark.parametrize("name", few(FORGED, 0, 1))
def test_a_report_that_hides_whose_scores_they_are_does_not_pass(name: str, weights: Path) -> None:
    forge, says = FORGED[name]
    report_path = weights.with_name("own.audit.report.json")
    forged = forge(audited(weights))
    write_report(report_path, forged)
    assert any(says in line for line in faults(forged)), list(faults(forged))
    assert privctl.verify(report_path).exit_code is not ExitCode.OK
    judged = privctl.gate(weights, **POLICY, accepted_assumptions=[WORD])
    assert judged.outcome is not GateOutcome.PASS


@pytest.mark.forged("what an audit says of the model is changed")
def test_a_required_audit_names_the_model(weights: Path) -> None:
    """By its parent alone it would be of this model, and need nobody's word."""
    report_path, report = weights.with_name("own.audit.report.json"), audited(weights)
    asked = {"required_steps": ["audit"], "accepted_assumptions": [WORD]}
    assert privctl.gate(weights, **asked).outcome is GateOutcome.PASS
    write_report(report_path, replace(report, inputs=tuple(a for a in report.inputs if a.role != "model")))
    messages = rules(privctl.gate(weights, **asked), GateOutcome.INCONCLUSIVE)
    assert "names no model that it measured" in messages["required_steps"]


@pytest.mark.forged("what an audit says of the model is changed")
def test_tensors_of_the_model_are_those_of_its_own_report(weights: Path) -> None:
    report_path, report = weights.with_name("own.audit.report.json"), audited(weights)
    tensors = [
        replace(a, tensors=tuple(replace(t, digest=file_digest(report_path)) for t in a.tensors)) for a in report.inputs
    ]
    write_report(report_path, replace(report, inputs=tuple(tensors)))
    found = privctl.verify(report_path)
    assert found.exit_code is ExitCode.REFUTED
    assert any("its list of tensors is not that of its parent report: weight" in v.reason for v in found.verdicts)


def test_options_and_files_that_do_not_fit_are_refused(weights: Path) -> None:
    scores = table(weights.with_name("s.csv"), *drawn(50, 0.0))
    with pytest.raises(CommandError, match="--model is for scores of records"):
        privctl.audit_scores(scores, models=True, model=weights)
    with pytest.raises(InputError, match="absent"):
        privctl.audit_scores(scores, model=weights.with_name("absent.safetensors"))
    with pytest.raises(InputError, match="s.csv"):
        privctl.audit_scores(scores, model=scores)
    with pytest.raises(CommandError, match="--log enters audits of a model"):
        privctl.audit_scores(scores, log=weights.with_name("l.jsonl"))
    before = sorted(path.name for path in weights.parent.iterdir())
    assert before == ["own.report.json", "own.safetensors", "s.csv"]
    assert run(["audit", "scores", str(scores), "--model", str(weights), "-q"]) == 0
    assert run(["audit", "scores", str(scores), "--model", str(weights), "-q"]) == 2


LOGGED: dict[str, Any] = {**POLICY, "accepted_assumptions": [WORD]}


def test_the_log_holds_it_and_a_gate_asks_for_each(weights: Path, capfd: pytest.CaptureFixture[str]) -> None:
    scores = table(weights.with_name("s.csv"), *drawn(800, 0.0))
    first = weights.with_name("first.report.json")
    asked = ["audit", "scores", str(scores), "--model", str(weights)]
    assert run([*asked, "-o", str(first)]) == 0
    log = weights.with_name("own.audits.jsonl")
    assert f"entered into {log}, whose head is now line 3, blake3:" in capfd.readouterr().err
    (audit,) = read_log(log).audits
    report = read_report(first)
    assert report.log is not None
    assert (report.log.path, report.log.entry, report.parameters["asked"]["logged"]) == (log.name, 2, True)
    assert audit.report == file_digest(first)
    assert audit.begun.details["settings"]["scores"] == [file_digest(scores)]
    assert privctl.gate(weights, first, **LOGGED, require_audit_log=[log]).outcome is GateOutcome.PASS
    worse = table(weights.with_name("t.csv"), *drawn(800, 2.0))
    second = weights.with_name("second.report.json")
    privctl.audit_scores(worse, model=weights, output=second)
    second.unlink()
    hidden = privctl.gate(weights, first, **LOGGED, require_audit_log=[log])
    assert "according to the log it found more: AUC" in rules(hidden, GateOutcome.FAIL)["audits_shown"]


def test_scores_that_cannot_be_read_are_no_audit(weights: Path) -> None:
    bad = weights.with_name("s.csv")
    bad.write_text("id,member,score\na,1,high\n")
    with pytest.raises(InputError, match="high"):
        privctl.audit_scores(bad, model=weights)
    assert not weights.with_name("own.audits.jsonl").exists()


@pytest.mark.forged("the log of an audit is left out")
def test_an_audit_that_was_logged_elsewhere_is_noticed(weights: Path) -> None:
    audited(weights)
    log = weights.with_name("own.audits.jsonl")
    log.rename(weights.with_name("before.jsonl"))
    privctl.audit_scores(weights.with_name("s.csv"), model=weights, output=weights.with_name("x.report.json"))
    judged = privctl.gate(weights, **LOGGED, require_audit_log=[log])
    assert "is not in the log" in rules(judged, GateOutcome.FAIL)["require_audit_log"]
