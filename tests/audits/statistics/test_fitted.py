"""The limits of the AUC of a fitted score: skewed without a difference, wider where members are of two kinds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm, pearson3, t

from audits.membership.attack import RATES, Settings
from audits.membership.fused import result_of
from audits.statistics.cross_fit import cross_fitted, folds
from audits.statistics.fitted import WIDENED, NullLaw, interval, widened
from audits.statistics.fused import FusedScore
from audits.statistics.relabel import areas


def test_members_of_two_kinds() -> None:
    """3 of 5 members above all 50 others, 2 below: DeLong's is sqrt(0.3 / 5), without a difference sqrt(56 / 3000)."""
    member = np.arange(55) < 5
    scores = np.concatenate([[60.0, 61, 62, -1, -2], np.arange(50)])
    assert widened(scores, member, 0.2) == pytest.approx(0.2 * math.sqrt(0.06 / (56 / 3000)))
    assert 0.2 * math.sqrt(0.06 / (56 / 3000)) == pytest.approx(0.358569, abs=1e-6)


def test_members_of_one_kind() -> None:
    """DeLong's 0.093808 (the example of ``auc``) is smaller than 0.191485 without a difference."""
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.55, 0.65, 0.5, 0.4, 0.3, 0.2])
    assert widened(scores, np.arange(10) < 5, 0.25) == 0.25
    assert widened(np.ones(10), np.arange(10) < 5, 0.25) == 0.25
    assert widened(scores, np.arange(10) < 1, 0.25) == 0.25


def law(**changed: float) -> NullLaw:
    found = NullLaw(chance=0.5, center=0.5, deviation=0.1, skewness=0.0, relabellings=10_000_000)
    return replace(found, **changed)  # type: ignore[arg-type]


def test_limits() -> None:
    """Without skewness they are normal, and Student's over few relabellings; 9 degrees of freedom give 2.262157."""
    assert interval(0.6, 0.1, 0.95, law()) == pytest.approx((0.404004, 0.795996), abs=1e-4)
    assert interval(0.6, 0.3, 0.95, law()) == pytest.approx((0.012011, 1.0), abs=3e-4)
    assert interval(0.6, 0.0, 0.95, law()) == interval(0.6, 0.1, 0.95, law(deviation=0.0)) == (0, 1)
    assert interval(0.6, 0.0, 0.95, law(chance=0.0)) == (-1, 1)
    few = law(relabellings=10, skewness=-math.sqrt(6 / 10)).reaches(0.025)
    assert few[0] == pytest.approx(2.262157 * math.sqrt(10 / 9), abs=1e-4)
    assert few[1] == pytest.approx(few[0] / norm.isf(0.025) * pearson3.isf(0.025, 2 * math.sqrt(0.6)), abs=1e-4)


@pytest.mark.parametrize("tail", [0.025, 0.001, 1e-6])
def test_limits_of_a_skewed_law(tail: float) -> None:
    """Skewed to the left by 0.4, and 0.3 deviations below chance: the upper limit lies farther off than normal."""
    below, above = law(center=0.47, skewness=-0.4, relabellings=600).reaches(tail)
    uncertain = t.isf(tail, 599) * math.sqrt(600 / 599)
    assert below == pytest.approx(uncertain)
    assert above == pytest.approx(uncertain / norm.isf(tail) * pearson3.isf(tail, 0.5) + 0.3)
    assert law(chance=0.0, center=0.03, skewness=0.4, relabellings=600).reaches(tail)[::-1] == pytest.approx(
        (below, above)
    )


def test_moments_over_relabellings() -> None:
    found = NullLaw.of(np.array([0.4, 0.5, np.nan, 0.7]), 0.5, scale=2.0)
    assert (found.center, found.relabellings) == (pytest.approx(0.5 + 2 / 30), 3)
    values = 2 * np.array([0.4, 0.5, 0.7])
    assert found.deviation == pytest.approx(values.std())
    assert found.skewness == pytest.approx(((values - values.mean()) ** 3).mean() / values.std() ** 3)


def drawn(seed: int, members: int, others: int) -> tuple[np.ndarray, FusedScore]:
    """29 scores, as of groups: members are far above others, or for 30 % of them far below, in 14 scores."""
    source = np.random.default_rng([seed, members, others])
    count = members + others
    member = np.arange(count) < members
    shift = np.where(member, np.where(source.random(count) < 0.7, 6.0, -6.0), 0.0)
    common = source.normal(size=count)
    scores = {str(i): 0.9 * common + 0.43 * source.normal(size=count) + shift * (i < 14) for i in range(29)}
    digests = [source.bytes(16) for _ in member]
    return member, FusedScore(scores=scores, digests=digests, members=members, rates=RATES, seed=seed)


def test_an_audit_widens_the_interval_of_the_fused_score() -> None:
    member, fused = drawn(1, 30, 300)
    area = result_of(fused, member, Settings(confidence=0.95)).evidence[0]
    assert area.interval == WIDENED
    assert area.details["stderr"] > 1.2 * fused.law.deviation
    assert area.estimate is not None
    assert area.details["relabellings"] == 1999
    assert (area.lower, area.upper) == interval(area.estimate, area.details["stderr"], 0.95, fused.law)


def missed(distances: np.ndarray, found: NullLaw, tail: float) -> tuple[float, float]:
    """How often the lower and the upper limit are wrong where the true value is that of chance."""
    below, above = (reach * found.deviation for reach in found.reaches(tail))
    return float(np.mean(distances > below)), float(np.mean(distances < -above))


def test_limits_of_the_fused_score_hold_their_level() -> None:
    """Over 16,000 relabellings, 16 of which may lie beyond each limit at 0.1 %; normal limits were wrong in 90."""
    source, tail = np.random.default_rng(8), 0.001
    scores = {str(i): source.normal(size=120) for i in range(4)}
    digests = [source.bytes(16) for _ in range(120)]
    fused = FusedScore(scores=scores, digests=digests, members=60, rates=RATES, seed=1)
    start = np.tile(np.arange(120) < 60, (16_000, 1))
    distances = fused.areas(source.permuted(start, axis=1)) - 0.5
    assert np.mean(distances < -norm.isf(tail) * distances.std()) > 4 * tail, "normal limits do not hold it"
    assert max(missed(distances, fused.law, tail)) <= 1.2 * tail
    assert max(missed(distances, fused.law, 0.025)) <= 1.3 * 0.025


def test_the_law_among_many_records_is_that_of_some_of_them() -> None:
    """The fused score of 4,000 records, relabelled 1,000 times, which tells its deviation to 2 %."""
    source = np.random.default_rng(9)
    common = source.normal(size=4000)
    scores = {str(i): np.round(common + source.normal(size=4000)) for i in range(5)}
    digests = [source.bytes(16) for _ in range(4000)]
    fused = FusedScore(scores=scores, digests=digests, members=1500, rates=RATES, seed=2)
    start = np.tile(np.arange(4000) < 1500, (1000, 1))
    whole = NullLaw.of(fused.areas(source.permuted(start, axis=1)), 0.5)
    assert fused.law.deviation == pytest.approx(whole.deviation, rel=0.06)
    assert (fused.law.center - whole.center) / whole.deviation == pytest.approx(0, abs=0.1)
    assert fused.law.skewness == pytest.approx(whole.skewness, abs=0.25)
    assert max(missed(np.full(1, 4 * whole.deviation), fused.law, 0.001)) == 1


@pytest.mark.parametrize("count", [99, 999])
def test_limits_by_few_relabellings_hold_their_level(count: int) -> None:
    """Of a fitted score and of what another score has beyond it, on average over blocks of so many relabellings.

    Records of four kinds, as far as the score can see: nearly all that is learned is wrong. By the deviation alone,
    the upper limit of the score and the lower limit of the difference err 10 and 6 times as often as they should.
    """
    source, tail = np.random.default_rng(4), 0.001
    features = np.eye(4)[source.integers(0, 4, 200)]
    fold = folds([source.bytes(16) for _ in range(200)])
    labels = source.permuted(np.tile(np.arange(200) < 100, (20_000, 1)), axis=1)
    fitted = areas(cross_fitted(features, fold, labels, 0.1), labels) - 0.5
    beyond = areas(source.normal(size=200), labels) - 0.5 - fitted
    for distances, side in ((fitted, 1), (beyond, 0)):
        normal = norm.isf(tail) * distances.std()
        assert np.mean(-distances > normal if side else distances > normal) > 4 * tail
        blocks = distances[: len(distances) // count * count].reshape(-1, count)
        wrong = np.mean([missed(distances, NullLaw.of(block, 0.0), tail) for block in blocks], axis=0)
        assert wrong[side] <= 1.2 * tail


@pytest.mark.slow
def test_the_standard_error_is_how_much_the_area_varies() -> None:
    """Over 80 data sets, whose standard deviation is known to 8 %; that over relabellings is a third too small."""
    values, deviations, errors = [], [], []
    for seed in range(80):
        member, fused = drawn(seed, 30, 300)
        fitted = fused.fitted(member[None])
        values.append(fused.areas(member[None])[0])
        deviations.append(fused.law.deviation)
        errors.append(widened(fitted[0], member, fused.law.deviation))
    varies = np.std(values, ddof=1)
    assert np.mean(deviations) < 0.8 * varies
    assert np.mean(errors) > 0.85 * varies
