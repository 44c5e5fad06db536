"""An audit that scored little of what the model was trained on passes no limit, however clean it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from audits import ATTACKS, THOROUGH
from audits.extraction.windows import USUAL_TOKENS
from audits.scores.table import Skip
from privctl.domain.gate import Finding, GateOutcome
from privctl.domain.report import Artifact, Omission, ParentReport
from privctl.gate.checks import audited_records
from privctl.storage.digest import file_digest
from tests.gate.made import DATA, INCONCLUSIVE, PASS, PROVED, auc, audit, judged, making, of, only, weights

MORE = replace(DATA, path="more.jsonl", digest="blake3:" + "e" * 64)


def found(
    folder: Path,
    trained: dict[str, Any] | None = None,
    audited: dict[str, Any] | None = None,
    *,
    upper: float = 0.55,
    omissions: tuple[Omission, ...] = (),
    rule: str = "max_auc",
    data: tuple[Artifact, ...] = (DATA,),
    taken: tuple[Artifact, ...] = (DATA,),
) -> Finding:
    """What a gate with a limit of 0.6 says of an audit with the parameters ``audited`` of a model so ``trained``."""
    parameters = {"method": "dp-sgd", **(trained or {})}
    report = making(folder / "m.json", PROVED, inputs=data, parameters=parameters)
    role = "members" if rule == "max_auc" else "train"
    looked = audit(
        folder / "a.json",
        auc(0.5, 0.4, upper, samples={"members": 80, "nonmembers": 80})
        if rule == "max_auc"
        else auc(0.02, 0.0, 0.05, "extraction", quantity="rate on training text"),
        inputs=[weights("m"), *(replace(each, role=role) for each in taken)],
        parameters=audited or {},
        omissions=omissions,
    )
    return next(
        (finding for finding in of(judged(report, looked, **{rule: "0.6"}), rule) if finding.outcome is not PASS),
        of(judged(report, looked, **{rule: "0.6"}), rule)[0],
    )


@pytest.mark.parametrize(
    ("trained", "audited", "outcome", "says"),
    [
        ({}, {}, PASS, ""),
        ({}, {"asked": {"text_column": "title"}}, INCONCLUSIVE, "'title' of the records, and the training read the"),
        ({}, {"asked": {"text_column": "text", "label_column": "label"}}, PASS, ""),
        ({"task": "seq2seq-lm"}, {"asked": {"text_column": "text"}}, INCONCLUSIVE, "'text' of the records"),
        ({"text_column": "body"}, {"asked": {"text_column": "body"}}, PASS, ""),
        ({"text_column": "body"}, {"asked": {"text_column": "title"}}, INCONCLUSIVE, "'title' of the records, and"),
        ({"label_column": "sort"}, {"asked": {"label_column": "day"}}, INCONCLUSIVE, "--label-column"),
        ({}, {"asked": {"attacks": ["loss", "slope"]}}, PASS, ""),
        ({}, {"asked": {"attacks": ["fused"]}}, PASS, ""),
        ({}, {"asked": {"attacks": ["slope"]}}, INCONCLUSIVE, "it ran only slope, without loss"),
        # Where nothing was cut, a limit hides nothing. Of 80 members 40 that were cut may all be told, and 1 as well.
        ({"max_length": 64}, {"max_length": 8}, PASS, ""),
        (
            {"max_length": 64},
            {"max_length": 8, "cut": {"members": 40}},
            INCONCLUSIVE,
            "0.775 over all members: 50 % of them",
        ),
        ({"max_length": 64}, {"max_length": 8, "cut": {"members": 1}}, PASS, ""),
        ({"max_length": 8}, {"max_length": 8, "cut": {"members": 40}}, PASS, ""),
        ({"max_length": 64, "long": "split"}, {"max_length": 64, "cut": {"members": 40}}, INCONCLUSIVE, "in pieces"),
        # What a training does not say, only the auditor's choice is held against the audit.
        ({}, {"max_length": 8, "cut": {"members": 40}, "asked": {"max_length": 8}}, INCONCLUSIVE, "--max-length"),
        ({}, {"max_length": 2048, "cut": {"members": 40}}, PASS, ""),
        ({"resize": [32, 32]}, {"resize": [32, 32]}, PASS, ""),
        ({"resize": [32, 32]}, {"resize": [2, 2]}, INCONCLUSIVE, "resized to 2 x 2, and the training read them"),
        ({}, {"resize": [2, 2]}, INCONCLUSIVE, "as they are (--resize)"),
        ({"base_bits": 4}, {"base_bits": 4}, PASS, ""),
        ({"base_bits": 4}, {}, INCONCLUSIVE, "the adapter's base in full, and the training held it in 4 bits"),
        ({}, {"base_bits": 4}, INCONCLUSIVE, "the adapter's base in 4 bits, and the training held it in full"),
    ],
)
def test_what_an_audit_scored_is_what_the_training_read(
    tmp_path: Path, trained: dict[str, Any], audited: dict[str, Any], outcome: GateOutcome, says: str
) -> None:
    finding = found(tmp_path, trained, audited)
    assert (finding.outcome, says in finding.message) == (outcome, True), finding.message


@pytest.mark.parametrize(
    ("omission", "upper", "outcome"),
    [
        (Omission(what="4 members", reason=Skip.DUPLICATE.reason), 0.59, PASS),  # one copy of each was scored
        (Omission(what="20 nonmembers", reason=Skip.IN_BOTH.reason), 0.59, PASS),
        (Omission(what="1 member", reason=Skip.IN_BOTH.reason), 0.55, PASS),
        # Of 100 members 20 have no score, which may all be told: 0.8 * 0.55 + 0.2.
        (Omission(what="20 members", reason=Skip.IN_BOTH.reason), 0.55, INCONCLUSIVE),
        (Omission(what="20 members", reason=Skip.REPEATED.reason), 0.55, INCONCLUSIVE),
        (Omission(what="20 members", reason=Skip.NOT_FINITE.reason), 0.55, INCONCLUSIVE),
    ],
)
def test_members_that_were_not_scored_may_all_be_told(
    tmp_path: Path, omission: Omission, upper: float, outcome: GateOutcome
) -> None:
    finding = found(tmp_path, upper=upper, omissions=(omission,))
    assert finding.outcome is outcome, finding.message
    assert ("0.64 over all members: 20 % of them" in finding.message) is (outcome is INCONCLUSIVE)


@pytest.mark.parametrize(("taken", "outcome"), [((DATA,), INCONCLUSIVE), ((DATA, MORE), PASS)])
@pytest.mark.parametrize("rule", ["max_auc", "max_extracted"])
def test_all_files_of_a_training_are_audited(
    tmp_path: Path, rule: str, taken: tuple[Artifact, ...], outcome: GateOutcome
) -> None:
    finding = found(tmp_path, rule=rule, data=(DATA, MORE), taken=taken)
    assert finding.outcome is outcome
    assert ("also trained on more.jsonl" in finding.message) is (outcome is INCONCLUSIVE)


def test_two_audits_may_share_the_files_of_a_training(tmp_path: Path) -> None:
    report = making(tmp_path / "m.json", PROVED, inputs=(DATA, MORE))
    looked = [
        audit(tmp_path / f"{i}.json", auc(0.5, 0.4, 0.55), inputs=[weights("m"), replace(each, role="members")])
        for i, each in enumerate((DATA, MORE))
    ]
    assert only(judged(report, *looked, max_auc="0.6"), "max_auc").outcome is PASS


@pytest.mark.parametrize(("step", "only_audit_says"), [("retrain", False), ("external-training", True)])
def test_a_gate_says_on_whose_word_records_were_trained_on(tmp_path: Path, step: str, only_audit_says: bool) -> None:
    """A report of another program's loop names no data."""
    report = making(tmp_path / "m.json", PROVED, step=step)
    looked = audit(tmp_path / "a.json", auc(0.5, 0.4, 0.55), inputs=[weights("m"), replace(DATA, role="members")])
    finding = only(judged(report, looked, max_auc="0.6"), "max_auc")
    assert (finding.outcome, "only the audit says" in finding.message) == (PASS, only_audit_says)


@pytest.mark.parametrize(
    ("prefix", "suffix", "texts", "outcome"),
    [
        (50, 50, "the first tokens of each record", PASS),
        (2, 2, "the first tokens of each record", PASS),
        (0, 30, "source, and the first tokens of the target", PASS),
        (1, 30, "the first tokens of each record", INCONCLUSIVE),
        (100, 100, "the first tokens of each record", INCONCLUSIVE),
    ],
)
def test_text_must_have_had_a_chance_to_come_out(
    tmp_path: Path, prefix: int, suffix: int, texts: str, outcome: GateOutcome
) -> None:
    settings = {"prefix_tokens": prefix, "suffix_tokens": suffix, "texts": texts}
    assert found(tmp_path, audited={"extraction": settings}, rule="max_extracted").outcome is outcome


@pytest.mark.parametrize("name", ["prefix_tokens", "suffix_tokens"])
def test_how_much_text_was_given_and_had_to_come_out_is_said(tmp_path: Path, name: str) -> None:
    settings = {"prefix_tokens": 50, "suffix_tokens": 50}
    for stated in (
        {**settings, name: None},
        {**settings, name: "50"},
        {n: v for n, v in settings.items() if n != name},
    ):
        finding = found(tmp_path, audited={"extraction": stated}, rule="max_extracted")
        assert finding.outcome is INCONCLUSIVE
        assert "it does not say how many tokens of a text it gave" in finding.message


@pytest.mark.parametrize(("drawn", "says"), [(150, False), (86, True)])
def test_a_gate_says_how_many_texts_were_looked_for(tmp_path: Path, drawn: int, says: bool) -> None:
    settings = {"prefix_tokens": 10, "suffix_tokens": 10, "training_records": 150, "drawn": drawn}
    finding = found(tmp_path, audited={"extraction": settings}, rule="max_extracted")
    assert (finding.outcome, "86 texts of 150 training records" in finding.message) == (PASS, says)


def test_the_gate_knows_the_words_and_numbers_of_audits() -> None:
    """The gate needs no numpy, so it has its own copies."""
    assert set(audited_records._UNSCORED) == {
        verdict.reason for verdict in (Skip.IN_BOTH, Skip.REPEATED, Skip.NOT_FINITE)
    }
    assert audited_records._MOST_SUFFIX == USUAL_TOKENS
    assert set(audited_records._REQUIRED) <= {*ATTACKS, *THOROUGH, "fused"}


@pytest.mark.parametrize(("name", "right"), [("begun", True), ("sibling", False)])
def test_a_reference_model_is_the_start_of_the_training_if_the_audit_says_so(
    tmp_path: Path, name: str, right: bool
) -> None:
    """A model that was trained on the same records gives what this one gives, so that nothing would count."""
    start = replace(weights("begun"), role="start-model.safetensors")
    report = making(tmp_path / "m.json", PROVED, inputs=(DATA, start), parameters={"method": "dp-sgd"})
    looked = audit(
        tmp_path / "a.json",
        auc(0.02, 0.0, 0.03, "extraction", quantity="rate on training text"),
        inputs=(weights("m"), replace(weights(name), role="reference model")),
        parameters={"extraction": {"reference": "what the training began with"}},
        parents=(ParentReport(path=report.name, digest=file_digest(report)),),
    )
    judgement = judged(report, looked, recompute="true", max_extracted="0.5")
    findings = [
        finding for finding in of(judgement, "recomputed") if "began with the reference model" in finding.message
    ]
    assert (findings == []) is right
    assert all(finding.outcome is GateOutcome.FAIL for finding in findings)
