"""The standard error of the AUC of a fitted score: larger than over relabellings where members are of two kinds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from audits.membership.attack import RATES, Settings
from audits.membership.fused import result_of
from audits.statistics.fitted import STUDENT, interval, widened
from audits.statistics.fused import FusedScore


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


def test_limits() -> None:
    assert interval(0.6, 0.1, 0.95) == pytest.approx((0.404004, 0.795996), abs=1e-6)
    assert interval(0.6, 0.3, 0.95) == pytest.approx((0.012011, 1.0), abs=1e-6)
    assert interval(0.6, 0.0, 0.95) == (0, 1)
    # Student's quantile with 9 degrees of freedom is 2.262157, and ten squares sum to nine variances.
    assert interval(0.6, 0.1, 0.95, 10)[1] == pytest.approx(0.6 + 0.2262157 * math.sqrt(10 / 9), abs=1e-7)
    assert interval(0.6, 0.0, 0.95, 10) == (0, 1)


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
    assert area.interval == STUDENT
    assert area.details["stderr"] > 1.2 * fused.deviation
    assert area.estimate is not None
    assert area.details["relabellings"] == 199
    assert (area.lower, area.upper) == interval(area.estimate, area.details["stderr"], 0.95, 199)


def test_few_relabellings_keep_the_level() -> None:
    """The AUC of a fused score without a difference misses limits by 49 relabellings as often as by its true deviation.

    ``many`` are its AUCs over 16,000 relabellings, in blocks of 49 of which each gives a deviation.
    """
    drawn_at_random, level = np.random.default_rng(8), 0.002
    scores = {str(i): drawn_at_random.normal(size=120) for i in range(4)}
    digests = [drawn_at_random.bytes(16) for _ in range(120)]
    fused = FusedScore(scores=scores, digests=digests, members=60, rates=RATES, seed=1)
    start = np.tile(np.arange(120) < 60, (16_000, 1))
    many = fused.areas(drawn_at_random.permuted(start, axis=1))
    many -= many.mean()
    deviations = many[: len(many) // 49 * 49].reshape(-1, 49).std(axis=1)
    far = np.sort(np.abs(many))

    def missed(relabellings: int | None) -> float:
        reach = [interval(0.5, 1e-3, 1 - level, relabellings)[1] - 0.5] * deviations / 1e-3
        return float(np.mean(1 - np.searchsorted(far, reach, side="right") / len(far)))

    by_true = float(np.mean(far > (interval(0.5, 1e-3, 1 - level)[1] - 0.5) * 1e3 * many.std()))
    assert missed(None) > 1.4 * by_true, "which is why the limits are Student's"
    assert missed(49) == pytest.approx(by_true, rel=0.25)


@pytest.mark.slow
def test_the_standard_error_is_how_much_the_area_varies() -> None:
    """Over 80 data sets, whose standard deviation is known to 8 %; that over relabellings is a third too small."""
    values, deviations, errors = [], [], []
    for seed in range(80):
        member, fused = drawn(seed, 30, 300)
        fitted = fused.fitted(member[None])
        values.append(fused.areas(member[None])[0])
        deviations.append(fused.deviation)
        errors.append(widened(fitted[0], member, fused.deviation))
    varies = np.std(values, ddof=1)
    assert np.mean(deviations) < 0.8 * varies
    assert np.mean(errors) > 0.85 * varies
