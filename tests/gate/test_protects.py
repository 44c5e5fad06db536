"""Whom a policy wants protected: all records with one value of a field, by a guarantee that counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from privctl.domain.errors import CommandError
from privctl.domain.gate import GateJudgement, GateOutcome
from privctl.domain.guarantee import PrivacyUnit, Status
from privctl.domain.mechanism import Calibration, ClippedTraining, WeightNoise
from privctl.gate.checks import RULES
from privctl.gate.policy import read_policy
from privctl.reports.signing import make_keys
from tests.gate.made import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    PROVED,
    auc,
    audit,
    digest,
    judged,
    making,
    of,
    only,
    weights,
)

PATIENTS = {"method": "dp-sgd", "unit": "patient"}
RECORDS = {"method": "dp-sgd", "unit": None}
CLIPPED = ClippedTraining(epochs=1, learning_rate=0.1, clip_norm=1.0, dataset_size=10, batch_size=5)
NOISE = WeightNoise(training=CLIPPED, noise_stddev=1.0, dimension=3, calibration=Calibration.GAUSSIAN)


def unread(folder: Path) -> Path:
    """Noise after a training whose report names no field, but a number."""
    clipped = making(folder / "a.json", name="a", parameters={"unit": 3}, mechanism=CLIPPED)
    return making(
        folder / "b.json", PROVED, name="b", step="noise", inputs=[weights("a")], parents=[clipped], mechanism=NOISE
    )


def test_a_gate_says_whose_word_it_is_whom_a_training_protected(tmp_path: Path) -> None:
    """A unit that was edited in all reports passes a gate, which has no data: only a signature shows who vouches."""
    place, (_, public) = making(tmp_path / "m.json", PROVED, parameters=PATIENTS), make_keys(tmp_path / "ci")
    said = "whose records were trained on, by 'patient', is the word of reports that nobody had to sign"
    assert any(said in note for note in judged(place, protects="patient").notes)
    for flags in ({"protects": "patient", "require_signer": str(public)}, {"max_epsilon": "8"}):
        assert not any(said in note for note in judged(place, **flags).notes)


def protects(*reports: Path, field: str = "patient", **flags: str) -> Any:
    return only(judged(*reports, protects=field, **flags), "protects")


@pytest.mark.parametrize(
    ("parameters", "field", "outcome", "says"),
    [
        (PATIENTS, "patient", PASS, "all records with one value of 'patient' together, at epsilon 2 and delta 1e-06"),
        ({**PATIENTS, "max_records_per_user": 3}, "patient", PASS, "together"),
        ({**PATIENTS, "max_records_per_user": 3, "shared_records": "greedy"}, "patient", PASS, "together"),
        ({**PATIENTS, "records_per_draw": 2}, "patient", PASS, "together"),
        ({**PATIENTS, "unit": "fold(patient)"}, "patient", PASS, "together"),
        (PATIENTS, "fold(patient)", FAIL, "protects all records with one value of 'patient'"),
        ({**PATIENTS, "unit": "ward"}, "patient", FAIL, "protects all records with one value of 'ward'"),
        (RECORDS, "patient", FAIL, "dp-sgd protects each record by itself"),
        ({}, "patient", FAIL, "dp-sgd protects each record by itself"),
        ({**PATIENTS, "unit": 3}, "patient", FAIL, "is for an unknown number of examples"),
    ],
)
def test_the_unit_of_a_training(
    tmp_path: Path, parameters: Mapping[str, Any], field: str, outcome: GateOutcome, says: str
) -> None:
    report = making(tmp_path / "m.json", PROVED, parameters=parameters)
    found = protects(report, field=field)
    assert (found.outcome, says in found.message) == (outcome, True), found.message
    assert ("--unit" in found.fix) == (outcome is FAIL)


def test_an_epsilon_of_records_does_not_pass_for_one_of_patients(tmp_path: Path) -> None:
    report = making(tmp_path / "m.json", PROVED, parameters=RECORDS)
    assert judged(report, max_epsilon="8").outcome is PASS
    assert judged(report, max_epsilon="8", protects="record").outcome is PASS
    assert not of(judged(report, max_epsilon="8", protects="record"), "protects")
    assert judged(report, max_epsilon="8", protects="patient").outcome is FAIL


def test_the_guarantee_within_the_limit_is_the_one_that_must_protect(tmp_path: Path) -> None:
    """One of records that is small enough, and one of patients that is not, are no pass together."""
    weak = making(tmp_path / "a.json", replace(PROVED, epsilon=20.0), name="a", parameters=PATIENTS)
    mechanism = replace(NOISE, training=None)
    noised = making(
        tmp_path / "b.json", PROVED, name="b", step="noise", inputs=[weights("a")], parents=[weak], mechanism=mechanism
    )
    found = protects(noised, max_epsilon="8")
    assert (found.outcome, "not those in the training's report" in found.message) == (INCONCLUSIVE, True)
    assert protects(noised, max_epsilon="21").outcome is PASS


def test_a_guarantee_that_does_not_count_protects_nobody(tmp_path: Path) -> None:
    refuted = making(tmp_path / "m.json", replace(PROVED, status=Status.REFUTED), parameters=PATIENTS)
    assert protects(refuted).message.startswith("no guarantee counts, so none protects")
    assert "is refuted" in protects(refuted).message
    secret = making(tmp_path / "s.json", replace(PROVED, unit=PrivacyUnit.SECRET), parameters=PATIENTS)
    assert "protects one secret" in protects(secret, units="secret").message
    assert "the reports state none" in protects(making(tmp_path / "n.json", parameters=PATIENTS)).message


def test_a_loop_of_ones_own_says_what_a_user_is(tmp_path: Path) -> None:
    own = {"program": "own-loop", "examples": 10, "records": 40, "similar_names": 0}
    report = making(tmp_path / "m.json", PROVED, step="external-training", parameters={**own, "unit": "patient"})
    assert protects(report).outcome is PASS
    report = making(tmp_path / "r.json", PROVED, step="external-training", parameters={"program": "opacus"})
    found = protects(report)
    assert (found.outcome, "make_private(users=..., unit='patient')" in found.fix) == (FAIL, True)


@pytest.mark.parametrize(
    ("unit", "size", "known", "outcome"),
    [
        ("patient", 10, True, PASS),
        (None, 10, True, FAIL),
        ("patient", 40, True, INCONCLUSIVE),
        ("patient", 10, False, INCONCLUSIVE),
    ],
)
def test_noise_after_a_clipped_training(
    tmp_path: Path, unit: str | None, size: int, known: bool, outcome: GateOutcome
) -> None:
    """The facts that noise goes by must be of the training whose report names the unit: 10 patients, not 40 records."""
    stated = {"method": "clipped", "unit": unit}
    clipped = making(tmp_path / "a.json", name="a", parameters=stated, mechanism=CLIPPED)
    mechanism = replace(NOISE, training=replace(CLIPPED, dataset_size=size))
    parents = [clipped] if known else []
    noised = making(
        tmp_path / "b.json", PROVED, name="b", step="noise", inputs=[weights("a")], parents=parents, mechanism=mechanism
    )
    assert protects(noised, max_epsilon="8").outcome is outcome


@pytest.mark.parametrize(
    ("guaranteed", "unit", "outcome", "says"),
    [
        (True, "patient", PASS, "records in the data of several trainings are protected less"),
        (True, None, INCONCLUSIVE, "protects each record by itself"),
        (True, "ward", INCONCLUSIVE, "protects all records with one value of 'ward'"),
        (False, "patient", INCONCLUSIVE, "guarantees nothing"),
    ],
)
def test_trainings_before(tmp_path: Path, guaranteed: bool, unit: str | None, outcome: GateOutcome, says: str) -> None:
    stated = [PROVED] if guaranteed else []
    first = making(tmp_path / "a.json", *stated, name="a", inputs=[], parameters={**PATIENTS, "unit": unit})
    start = weights("a", "start-model")
    last = making(tmp_path / "b.json", PROVED, name="b", inputs=[start], parents=[first], parameters=PATIENTS)
    found = protects(last, max_epsilon="8")
    assert (found.outcome, says in found.message) == (outcome, True), found.message


def test_a_last_training_by_records_fails_whatever_came_before(tmp_path: Path) -> None:
    first = making(tmp_path / "a.json", PROVED, name="a", inputs=[], parameters=PATIENTS)
    start = weights("a", "start-model")
    last = making(tmp_path / "b.json", PROVED, name="b", inputs=[start], parents=[first], parameters=RECORDS)
    assert protects(last).outcome is FAIL


def test_what_no_report_says(tmp_path: Path) -> None:
    looked = audit(tmp_path / "a.json", auc(0.5, 0.45, 0.55))
    assert protects(looked).outcome is INCONCLUSIVE
    replayed = making(tmp_path / "r.json", step="replay", inputs=[replace(weights("u", "updates"), digest=digest("u"))])
    assert "published updates" in protects(replayed).message
    found = protects(unread(tmp_path))
    assert (found.outcome, "its unit of privacy is not known" in found.message) == (INCONCLUSIVE, True)


@pytest.mark.parametrize(
    ("groups", "outcome"),
    [([None], INCONCLUSIVE), (["ward"], INCONCLUSIVE), (["patient"], PASS), ([None, "patient"], PASS)],
)
def test_limits_on_attacks_are_about_those_whom_the_policy_protects(
    tmp_path: Path, groups: list[str | None], outcome: GateOutcome
) -> None:
    """A patient's records together show more than one of them."""
    report = making(tmp_path / "m.json", PROVED, parameters=PATIENTS)

    def gate(field: str) -> GateJudgement:
        audits = [
            audit(
                tmp_path / f"{i}.json",
                auc(0.5, 0.45, 0.55),
                inputs=(weights("m"), replace(weights("d", "members"), digest="blake3:" + "d" * 64)),
                parameters={"attack": ["loss"], "group_by": by},
            )
            for i, by in enumerate(groups)
        ]
        return judged(report, *audits, max_auc="0.6", min_power="auc=0.7", protects=field)

    judgement = gate("patient")
    assert outcome in [finding.outcome for finding in of(judgement, "max_auc")]
    findings = [finding for finding in of(judgement, "max_auc") if "the policy protects all records" in finding.message]
    assert bool(findings) is (outcome is INCONCLUSIVE)
    assert all("--group-by patient" in finding.fix for finding in findings)
    assert only(judgement, "min_power").outcome is outcome
    assert not [finding for finding in of(gate("record"), "max_auc") if "the policy protects" in finding.message]


@pytest.mark.parametrize("value", ["", " ", "a\nb"])
def test_a_field_has_a_name(value: str) -> None:
    with pytest.raises(CommandError, match="expected the name of a field"):
        read_policy(None, {"protects": value}, {}, RULES)


def test_records_alone_are_no_demand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError, match="no policy was found"):
        read_policy(None, {"protects": "record"}, {}, RULES)
    assert read_policy(None, {"protects": "patient"}, {}, RULES).field == "patient"
    assert read_policy(None, {"max_disclosed": "0"}, {}, RULES).max_disclosed == 0
