"""Bounds by one threshold that was chosen beforehand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from audits.claims import EpsilonClaim
from audits.model_scores.threshold import _noticed, audit_at_threshold, run_scores
from audits.statistics.fixed_threshold import ThresholdCounts, count
from privctl.cli import run
from privctl.domain.errors import CommandError
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.files import read_report
from verify.audits.consistency import faults
from verify.audits.ranks.threshold import fault


@pytest.mark.parametrize(
    ("errors", "outer", "hits", "inner", "delta", "alpha", "epsilon"),
    [  # the two binomial limits of docs/canaries.md#scores-of-many-models
        (0, 500, 500, 500, 0.0, 0.01, 4.542),
        (5, 100, 90, 100, 0.0, 0.05, 1.988),
        (10, 1000, 300, 1000, 1e-5, 0.05, 2.697),
        (0, 1000, 1000, 1000, 1e-5, 0.05, 5.601),
    ],
)
def test_bounds_of_known_counts(
    errors: int, outer: int, hits: int, inner: int, delta: float, alpha: float, epsilon: float
) -> None:
    counts = ThresholdCounts(threshold=0, hits=hits, inner=inner, errors=errors, outer=outer)
    assert counts.epsilon(delta, alpha) == pytest.approx(epsilon, abs=5e-4)
    turned = ThresholdCounts(threshold=0, hits=outer - errors, inner=outer, errors=inner - hits, outer=inner)
    assert turned.epsilon(delta, alpha) == pytest.approx(counts.epsilon(delta, alpha))
    assert turned.mu(alpha) == pytest.approx(counts.mu(alpha))


def test_a_bound_seldom_exceeds_the_truth() -> None:
    """Two normal distributions one apart have mu 1; 95 % of bounds lie below. 22 of 200 are 1 in 1000."""
    source = np.random.default_rng(0)
    found = [count(source.normal(1, 1, 200), source.normal(0, 1, 200), 1.0).mu(0.05) for _ in range(200)]
    assert sum(mu > 1 for mu in found) < 22
    assert np.mean(found) > 0.5
    nothing = [count(*source.normal(size=(2, 200)), 0.0).epsilon(0.0, 0.05) for _ in range(200)]
    assert sum(epsilon > 0 for epsilon in nothing) < 22


def test_equal_to_the_threshold_is_not_above_it() -> None:
    counts = count(np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.0, 2.0]), 2.0)
    assert (counts.hits, counts.errors) == (1, 0)


@pytest.fixture
def scores(tmp_path: Path) -> Path:
    source = np.random.default_rng(1)
    path = tmp_path / "s.json"
    arms = {"with": source.normal(2, 1, 300).tolist(), "without": source.normal(0, 1, 300).tolist()}
    path.write_text(json.dumps(arms))
    return path


def test_a_report_can_be_verified(scores: Path) -> None:
    report = run_scores(scores, scores.with_name("r.json"), claim=None, delta=None, threshold=1.0)
    assert not list(faults(report))
    epsilon, mu = report.evidence
    assert 1 < epsilon.lower < epsilon.details["ceiling"]  # type: ignore[operator]
    assert 1 < mu.lower < 2  # type: ignore[operator]
    for item in report.evidence:
        assert fault(item) == ""
        assert "its counts give" in fault(replace(item, lower=item.lower + 1e-3))  # type: ignore[operator]
        assert "its counts give" in fault(replace(item, details={**item.details, "true_positives": 299.0}))
        assert "cannot be" in fault(replace(item, details={**item.details, "true_positives": 301.0}))
    with pytest.raises(CommandError, match="expected a finite number"):
        audit_at_threshold(scores, float("nan"))


def test_a_claim_is_held_against_the_counts(scores: Path) -> None:
    def judged(epsilon: float, threshold: float = 1.0) -> PrivacyReport:
        claim = EpsilonClaim(epsilon=epsilon, delta=1e-5)
        report = run_scores(scores, scores.with_name("r.json"), claim=claim, delta=None, threshold=threshold)
        assert not list(faults(report))
        return report

    certified = judged(1.0).evidence[0].lower or 0
    assert judged(1.0).evidence[0].details["delta"] == 1e-5
    outcomes = {epsilon: judged(epsilon).verdicts[0].outcome for epsilon in (certified - 0.01, certified + 0.01, 9.0)}
    assert list(outcomes.values()) == [Outcome.REFUTED, Outcome.CONSISTENT, Outcome.INCONCLUSIVE]
    assert "could not have been refuted" in judged(9.0).verdicts[0].reason
    assert "notice, 80 times in 100, only randomized response from epsilon" in judged(0.05, 9.0).verdicts[0].reason
    for epsilon, outcome, says in (
        (1.0, Outcome.CONSISTENT, "but its counts refute that"),
        (9.0, Outcome.REFUTED, "but its counts do not refute that"),
    ):
        report = judged(epsilon)
        (wrong,) = faults(replace(report, verdicts=(replace(report.verdicts[0], outcome=outcome),)))
        assert wrong.endswith(says)


def test_what_is_noticed_is_refuted_four_times_in_five() -> None:
    """Of 400 trainings by randomized response at that epsilon; by the normal law 300 are 2.5 deviations too few."""
    claim, source = EpsilonClaim(epsilon=1.0, delta=0.0), np.random.default_rng(2)
    least = _noticed(count(np.zeros(200), np.zeros(200), 0.5), claim)
    assert 1 < least < 2
    rate = 1 / (1 + np.exp(-least))
    arms = source.random((400, 2, 200)) < np.array([rate, 1 - rate])[:, None]
    refuted = sum(count(*arm, 0.5).epsilon(0.0, 0.05) > claim.epsilon for arm in arms)
    assert refuted > 300


def test_the_command(scores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", "scores", str(scores), "--models", "--threshold", "1", "-q"]) == 0
    assert "chosen before these scores were seen" in " ".join(capsys.readouterr().out.split())
    assert read_report(scores.with_name("s.audit.report.json")).evidence[0].method == "fixed threshold"
    assert run(["audit", "scores", str(scores), "--threshold", "1", "-f", "-q"]) == 2
    assert "--threshold needs scores of many models" in capsys.readouterr().err
