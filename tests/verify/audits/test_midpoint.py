"""Figures of the attack ``midpoint``: none can be edited alone, and its decisions are counted again from the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from audits.membership.attack import RATES, Settings, curve_evidence
from audits.membership.joint_test import with_joint_test
from audits.membership.midpoint import ATTACK, CALLED, _rate_differences, called
from audits.scores.scores_file import FOLD, SCORE, SEED, staged_scores
from audits.statistics.max_t import rank_statistics
from privctl.domain.evidence import Bound, Evidence
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.files import file_artifact, now, versions
from privctl.storage.digest import NamedFiles
from verify.audits import midpoint
from verify.audits.consistency import _interval
from verify.audits.evidence import check_evidence
from verify.audits.ranks.midpoint import CALLED as KEPT

MEMBERS, OTHERS, ALPHA, SEED_OF_HALVES = 61, 44, 0.05, 3
Arrays = dict[str, Any]


class Audit:
    """An audit by ``loss`` and ``midpoint`` of a model that tells members by ``leak`` nats."""

    def __init__(self, members: int = MEMBERS, leak: float = 1.5) -> None:
        source = np.random.default_rng(7)
        self.member = np.arange(members + OTHERS) < members
        scores = np.round(source.normal(size=len(self.member)) - 4 + leak * self.member, 2)
        table = SimpleNamespace(
            split=lambda values: (values[self.member], values[~self.member]),
            samples={"members": members, "nonmembers": OTHERS},
        )
        settings = Settings(confidence=1 - ALPHA / 6, seed=SEED_OF_HALVES)
        result = ATTACK.run(SimpleNamespace(table=table, mean_lp=scores), settings)  # type: ignore[arg-type]
        statistics = {"loss": rank_statistics(scores, RATES)}
        evidence = {"loss": curve_evidence("loss", scores, self.member, settings), "midpoint": result.evidence}
        if members >= 2:
            statistics["midpoint"] = partial(_rate_differences, scores, SEED_OF_HALVES)
            self.evidence = with_joint_test(evidence, statistics, self.member, 5, ALPHA)
        else:
            self.evidence = tuple(item for items in evidence.values() for item in items)
        self.arrays: Arrays = {
            "member": self.member,
            f"{SCORE}loss": scores,
            FOLD: np.zeros(len(self.member), np.uint8),
            SEED: np.array([5], np.int64),
            **called({"midpoint": result}),
        }

    def report(self, evidence: tuple[Evidence, ...] | None = None) -> PrivacyReport:
        return PrivacyReport(
            step="audit", created=now(), versions=versions(("numpy",)), evidence=evidence or self.evidence,
            parameters={"confidence": 1 - ALPHA, "attack": ["loss", "midpoint"], "seed": SEED_OF_HALVES},
        )  # fmt: skip

    def refuted(self, folder: Path, evidence: tuple[Evidence, ...] | None = None, **arrays: Any) -> list[str]:
        """What the ranks refute; ``arrays`` replace those kept, and None leaves one out."""
        kept, path = folder / "r.scores.safetensors", folder / "r.report.json"
        given = {name: array for name, array in {**self.arrays, **arrays}.items() if array is not None}
        with staged_scores(kept, given, {}) as pending:
            pending.commit()
        report = replace(self.report(evidence), outputs=(file_artifact("scores", kept, path),))
        found = check_evidence(path, report, NamedFiles())
        assert not any("midpoint" in each.reason for each in found.omissions)
        return [each.reason for each in found.verdicts if each.outcome is Outcome.REFUTED]

    def changed(self, **details: float) -> tuple[Evidence, ...]:
        """With other ``details`` of ``midpoint``, and with what follows from them."""
        found = []
        for item in self.evidence:
            if item.method == "midpoint":
                item = replace(item, details={**item.details, **details})
                right, total = midpoint.counts(item) or (0, 0)
                item = replace(item, estimate=right / total) if total else item
            found.append(item)
        return tuple(found)


@pytest.fixture(scope="module")
def audit() -> Audit:
    return Audit()


def faults(report: PrivacyReport) -> list[str]:
    of_intervals = (_interval(item) for item in report.evidence if item.method == "midpoint")
    return [*midpoint.faults(report, AuditParameters(attack=("loss", "midpoint"))), *filter(None, of_intervals)]


def test_what_an_audit_finds_passes(audit: Audit, tmp_path: Path) -> None:
    assert KEPT == CALLED
    for found in (audit, Audit(leak=0.0), Audit(leak=40.0), Audit(members=2)):
        assert faults(found.report()) == []
        assert found.refuted(tmp_path) == []
        assert found.refuted(tmp_path, **{CALLED: None}) == []
    assert faults(Audit(members=1).report()) == []


def edits(item: Evidence) -> Iterator[tuple[str, Evidence]]:
    for name in ("estimate", "lower", "upper"):
        value = getattr(item, name)
        for other in {0.0, 0.5, None if value is None else value * 0.98, None} - {value}:
            yield f"{name} {other}", replace(item, **{name: other})
    for name, number in item.details.items():
        if name != "chance":  # which another check knows
            for other in (number + 1, number - 1, number * 2 + 1):
                yield f"{name} {other}", replace(item, details={**item.details, name: other})
            rest = {each: kept for each, kept in item.details.items() if each != name}
            yield f"without {name}", replace(item, details=rest)
    for side, count in item.samples.items():
        for counted in (0, count - 1, count + 1, count * 2):
            yield f"{side} {counted}", replace(item, samples={**item.samples, side: counted})
    yield "another name", replace(item, quantity="precision" if item.quantity != "precision" else "recall")
    yield "another bound", replace(item, bound=Bound.LOWER)
    yield "another interval", replace(item, interval="another")


def test_no_entry_of_a_figure_can_be_edited_alone(audit: Audit) -> None:
    for i, item in enumerate(audit.evidence):
        if item.method != "midpoint":
            continue
        others = (*audit.evidence[:i], *audit.evidence[i + 1 :])
        assert faults(audit.report(others)), item.quantity
        missed = [name for name, other in edits(item) if not faults(audit.report((*others, other)))]
        assert missed == [], item.quantity


def test_a_figure_is_not_said_to_be_unmeasured(audit: Audit) -> None:
    hidden = tuple(
        item if item.method != "midpoint" else replace(
            item, estimate=None, lower=None, upper=None, bound=Bound.NONE, details={}, reason="too few", interval=""
        )
        for item in audit.evidence if item.quantity != "F1"
    )  # fmt: skip
    assert any("there were records enough" in fault for fault in faults(audit.report(hidden)))


@pytest.mark.parametrize(("kept", "says"), [(True, "but the ranks kept give"), (False, "no threshold calls")])
def test_decisions_are_counted_again(audit: Audit, tmp_path: Path, kept: bool, says: str) -> None:
    arrays = {} if kept else {CALLED: None}
    details = audit.evidence[-1].details
    for other in (
        {"true_positives": 0.0, "false_positives": details["false_positives"]},
        {"true_positives": details["true_positives"], "false_positives": details["true_positives"]},
    ):
        assert any(says in fault for fault in audit.refuted(tmp_path, audit.changed(**other), **arrays))
    if kept:
        assert audit.refuted(tmp_path, audit.changed(seed=4.0))
    # As if no record had been called, which some threshold gives.
    none = audit.refuted(tmp_path, audit.changed(true_positives=0.0, false_positives=0.0), **arrays)
    assert bool(none) is kept


def test_a_p_value_is_that_of_the_decisions(audit: Audit, tmp_path: Path) -> None:
    for p_value in (0.9, 0.04):
        edited = tuple(
            replace(item, test=replace(item.test, p_value=p_value))
            if item.method == "midpoint" and item.test is not None
            else item
            for item in audit.evidence
        )
        assert any(f"its p-value is {p_value}" in fault for fault in audit.refuted(tmp_path, edited))


def test_a_number_that_cuts_equal_scores_is_none_of_a_threshold(audit: Audit, tmp_path: Path) -> None:
    array = np.array([len(audit.member) + 1], np.int64)
    assert any("of the records members" in fault for fault in audit.refuted(tmp_path, **{CALLED: array}))
