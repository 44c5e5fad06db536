"""The fused score and the joint test of an audit, learned and tested again from what the audit kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from audits.membership import fused
from audits.membership.attack import RATES, Settings, curve_evidence
from audits.membership.joint_test import with_joint_test
from audits.membership.midpoint import _rate_differences
from audits.scores.scores_file import FOLD, SCORE, SEED, TESTED, staged_scores
from audits.statistics import max_t as max_t_module
from audits.statistics.cross_fit import folds
from audits.statistics.fused import FusedScore
from audits.statistics.max_t import max_t, rank_statistics
from audits.statistics.relabel import data_seed
from privctl.domain.evidence import Evidence, JointTest
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.files import file_artifact, now, versions
from privctl.storage.digest import NamedFiles
from verify.audits.evidence import check_evidence
from verify.audits.ranks import relabelled
from verify.audits.ranks.relabelled import Relabelled, midpoint_reaches

Arrays = dict[str, Any]
SIDE, ALPHA = 60, 0.05


class Audit:
    """Three attacks' scores, of which one was tested by others, fused and tested together as an audit does."""

    def __init__(self, *, fewer: bool = False) -> None:
        source = np.random.default_rng(11)
        self.member = np.arange(2 * SIDE) < SIDE
        digests = [source.bytes(16) for _ in self.member]
        common = source.normal(size=2 * SIDE)
        self.scores = {
            name: common + 0.5 * source.normal(size=2 * SIDE) + leak * self.member
            for name, leak in (("loss", 0.4), ("zlib", 0.0), ("quantile", 0.3))
        }
        self.scores["zlib"] = np.round(self.scores["zlib"], 1)
        tested = {**self.scores, "quantile": self.scores["quantile"] + 0.2 * source.normal(size=2 * SIDE)}
        settings, seed = Settings(confidence=1 - ALPHA / 12), data_seed(digests)
        joined = FusedScore(scores=tested, digests=digests, members=SIDE, rates=RATES, seed=seed)
        result = fused.result_of(joined, self.member, settings)
        statistics = {name: rank_statistics(values, RATES) for name, values in tested.items()} | {
            fused.NAME: joined.statistics
        }
        if fewer:  # an attack of which no ranks are kept
            statistics["midpoint"] = partial(_rate_differences, source.normal(size=2 * SIDE), 0)
        self.found = max_t(statistics, self.member, seed, ALPHA)
        evidence = {
            name: curve_evidence(name, values, self.member, settings) for name, values in self.scores.items()
        } | {fused.NAME: result.evidence}
        if fewer:
            evidence["midpoint"] = (Evidence(method="midpoint", quantity="accuracy", estimate=0.5),)
        self.evidence = with_joint_test(evidence, statistics, self.member, seed, ALPHA)
        self.arrays: Arrays = {
            "member": self.member,
            **{f"{SCORE}{name}": values for name, values in self.scores.items()},
            f"{SCORE}{fused.NAME}": result.scores,
            f"{TESTED}quantile": tested["quantile"],
            FOLD: folds(digests).astype(np.uint8),
            SEED: np.array([seed], dtype=np.uint64).view(np.int64),
        }

    def judged(
        self, folder: Path, arrays: Arrays | None = None, evidence: tuple[Evidence, ...] | None = None
    ) -> list[Verdict]:
        report_path, kept = folder / "r.report.json", folder / "r.scores.safetensors"
        with staged_scores(kept, self.arrays if arrays is None else arrays, {}) as pending:
            pending.commit()
        report = PrivacyReport(
            step="audit", created=now(), versions=versions(("numpy",)), parameters={"confidence": 1 - ALPHA},
            outputs=(file_artifact("scores", kept, report_path),), evidence=evidence or self.evidence,
        )  # fmt: skip
        return check_evidence(report_path, report, NamedFiles()).verdicts


@pytest.fixture(scope="module")
def audit() -> Audit:
    return Audit()


def test_what_an_audit_learned_is_learned_again(tmp_path: Path, audit: Audit) -> None:
    (verdict,) = audit.judged(tmp_path)
    assert verdict.outcome is Outcome.CONSISTENT
    assert "no p-value of the joint test is smaller than relabelling them gives" in verdict.reason


def with_test(
    evidence: tuple[Evidence, ...], name: str, change: Callable[[JointTest], JointTest]
) -> tuple[Evidence, ...]:
    return tuple(
        replace(item, test=change(item.test)) if item.method == name and item.test is not None else item
        for item in evidence
    )


def lowered(test: JointTest) -> JointTest:
    return replace(test, p_value=(round(test.p_value * (test.relabellings + 1)) - 5) / (test.relabellings + 1))


def better(audit: Audit, arrays: Arrays) -> Arrays:
    """A fused score that knows the members, as one would be that was fitted to the records it judges."""
    return {**arrays, f"{SCORE}{fused.NAME}": arrays[f"{SCORE}{fused.NAME}"] + 0.3 * audit.member}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (better, "its ranks are not what the other scores give"),
        (lambda _, arrays: {**arrays, FOLD: np.roll(arrays[FOLD], 1)}, "its ranks are not what the other scores give"),
        (lambda _, arrays: {**arrays, f"{TESTED}quantile": arrays[f"{SCORE}zlib"]}, "fused: its ranks are not"),
        (lambda _, arrays: {**arrays, SEED: arrays[SEED] + 1}, "its deviation is"),
        (lambda _, arrays: {**arrays, SEED: arrays[SEED] + 1}, "the critical value is"),
        (lambda _, arrays: {**arrays, FOLD: arrays[FOLD][1:]}, None),
    ],
)
def test_other_ranks_folds_and_seeds_are_noticed(
    tmp_path: Path, audit: Audit, change: Callable[[Audit, Arrays], Arrays], says: str | None
) -> None:
    arrays = change(audit, audit.arrays)
    evidence = audit.evidence
    if change is better:  # a forger states what the forged ranks give
        scores, area = arrays[f"{SCORE}{fused.NAME}"], next(i for i in evidence if i.method == fused.NAME)
        curve = curve_evidence(fused.NAME, scores, audit.member, Settings(confidence=area.confidence))
        value, before = curve[0].estimate or 0, area.estimate or 0
        lower, upper = value - before + (area.lower or 0), min(1.0, value - before + (area.upper or 0))
        curve = (replace(area, estimate=value, lower=lower, upper=upper), *curve[1:])
        evidence = (*(i for i in evidence if i.method != fused.NAME), *curve)
    found = audit.judged(tmp_path, arrays, evidence)
    if says is None:
        assert not found
        return
    assert {verdict.outcome for verdict in found} == {Outcome.REFUTED}
    assert any(says in verdict.reason for verdict in found)
    assert (len(found) == 1) is (change is better)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lowered, "but relabelling the ranks gives 0."),
        (lambda test: replace(test, relabellings=1999), "where such records have 999"),
        (lambda test: replace(test, critical=(test.critical or 0) - 0.01), "the critical value is"),
    ],
)
def test_another_joint_test_is_noticed(
    tmp_path: Path, audit: Audit, change: Callable[[JointTest], JointTest], says: str
) -> None:
    (verdict,) = audit.judged(tmp_path, evidence=with_test(audit.evidence, "zlib", change))
    assert verdict.outcome is Outcome.REFUTED
    assert says in verdict.reason


def test_an_attack_without_ranks_can_only_raise_p_values(tmp_path: Path, audit: Audit) -> None:
    without = audit.found.p_values["zlib"]
    audit = Audit(fewer=True)
    (verdict,) = audit.judged(tmp_path)
    assert verdict.outcome is Outcome.CONSISTENT
    assert audit.found.p_values["zlib"] > without  # what the attack costs
    least = with_test(audit.evidence, "zlib", lambda test: replace(test, p_value=round(1000 * without - 5) / 1000))
    (verdict,) = audit.judged(tmp_path, evidence=least)
    assert "gives at least 0." in verdict.reason


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda test: replace(test, p_value=min(1.0, test.p_value + 0.2)), "gives at most 0."),
        (lambda test: replace(test, critical=(test.critical or 0) + 0.5), "gives about 1."),
        (lambda test: replace(test, critical=None, detectable=None), "the critical value is inf"),
    ],
)
def test_midpoint_cannot_raise_them_by_any_amount(
    tmp_path: Path, change: Callable[[JointTest], JointTest], says: str
) -> None:
    audit = Audit(fewer=True)
    found = audit.judged(tmp_path, evidence=with_test(audit.evidence, "loss", change))
    assert {verdict.outcome for verdict in found} == {Outcome.REFUTED}
    assert any(says in verdict.reason for verdict in found)


@pytest.mark.parametrize(("members", "others"), [(40, 40), (31, 90), (200, 200)])
def test_midpoint_reaches_a_value_no_more_often_than_is_allowed(members: int, others: int) -> None:
    source, count = np.random.default_rng(5), members + others
    member = np.arange(count) < members
    labels = source.permuted(np.tile(member, (20_000, 1)), axis=1)
    for scores in (source.normal(size=count), np.round(source.normal(size=count)), source.pareto(1.0, size=count)):
        found = _rate_differences(scores, 3, labels)[:, 0]
        for value in (0.5, 1.5, 2.0, 2.5, 3.0):
            assert (found >= value).mean() <= midpoint_reaches(value, member, len(labels), {"midpoint"})
    # It is of use: 2.5 is reached in few relabellings.
    assert midpoint_reaches(2.5, member, 999, {"midpoint"}) < 0.06
    assert midpoint_reaches(2.5, member, 999, {"midpoint", "another"}) == 1
    assert midpoint_reaches(2.5, member, 999, ()) == 1


def test_audits_that_kept_neither_folds_nor_seed_say_so(tmp_path: Path, audit: Audit) -> None:
    arrays = {name: values for name, values in audit.arrays.items() if name not in (FOLD, SEED)}
    (verdict,) = audit.judged(tmp_path, arrays)
    assert verdict.outcome is Outcome.CONSISTENT
    assert "joint test" not in verdict.reason
    report_path, kept = tmp_path / "r.report.json", tmp_path / "r.scores.safetensors"
    report = PrivacyReport(
        step="audit", created=now(), versions=versions(("numpy",)), evidence=audit.evidence,
        outputs=(file_artifact("scores", kept, report_path),), parameters={"confidence": 1 - ALPHA},
    )  # fmt: skip
    assert [o.what for o in check_evidence(report_path, report, NamedFiles()).omissions] == ["fused score"]


def test_equal_scores_are_equal_again() -> None:
    """Singular values round otherwise than normal equations do, also where records have the same scores."""
    source = np.random.default_rng(3)
    member = source.permutation(240) < 120
    scores = {name: source.integers(0, 3, 240).astype(np.float64) for name in ("loss", "zlib")}
    digests = [source.bytes(16) for _ in member]
    whole = FusedScore(scores=scores, digests=digests, members=120, rates=RATES, seed=5)
    values = whole.fitted(member[None])[0]
    assert len(np.unique(values)) <= 90
    again = Relabelled(scores=scores, member=member, fold=whole.fold.astype(np.uint8), seed=5, fused=values)
    assert again.fused_fault() == ""
    assert again.own == pytest.approx(whole.law.details)


@pytest.mark.parametrize(("members", "others", "allowed"), [(5, 7, 1), (40, 300, 3), (100_000, 100_000, 1000)])
def test_hits_are_as_unlikely_as_the_audit_has_it(members: int, others: int, allowed: int) -> None:
    """By another formula, and of many records in one pass over them."""
    found = relabelled._normal_of_hits(members, others, allowed)
    expected = max_t_module._normal_of_hits(members, others, allowed)
    usual = (expected > -3) & (expected < 30)  # further out, a float has the chance to a few digits, or not at all
    assert usual.sum() > members**0.5
    np.testing.assert_allclose(found[usual], expected[usual], rtol=0, atol=1e-6)
