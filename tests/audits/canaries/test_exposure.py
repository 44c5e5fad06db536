from __future__ import annotations

import math
from itertools import combinations_with_replacement

import numpy as np
import pytest
from scipy.stats import chi2

from audits.canaries import verdict
from audits.canaries.exposure import deviations_below_mean, exposures, fisher, least_bits, ranks


def bits(losses: list[float], references: np.ndarray) -> np.ndarray:
    return exposures(ranks(np.array(losses), references), len(references) + 1)


def strictly_less(losses: np.ndarray, references: np.ndarray) -> np.ndarray:
    """The fault: a tie does not count against memorization."""
    return 1 + np.searchsorted(np.sort(references), losses, side="left")


def test_known_values() -> None:
    found = bits([0, 0.1, 20, 3.5], np.arange(1, 17))
    assert found == pytest.approx([4.0875, 4.0875, 0, 2.0875], abs=5e-5)


def test_equal_losses_expose_nothing() -> None:
    same = np.full(1002, 3.25)
    assert bits([3.25], same).tolist() == [0]
    assert exposures(strictly_less(np.array([3.25]), same), 1003)[0] == pytest.approx(9.97, abs=0.01)
    assert deviations_below_mean(np.array([3.25]), same).tolist() == [0]
    assert deviations_below_mean(np.full(3, 0.1), np.full(7, 0.1)).tolist() == [0, 0, 0]


def test_the_law_without_memorization() -> None:
    every = exposures(np.arange(1, 10_002), 10_001)  # each rank is as likely as any other
    assert every.mean() == pytest.approx(1.4419, abs=5e-5)
    assert every.mean() < 1 / math.log(2)
    for t in (0.5, 1, 3, 7.3):
        assert (every >= t).mean() <= 2.0**-t


def rejections(canaries: int, references: int, seeds: int, shared: int | None) -> float:
    """How often Fisher's test at 5 % finds a leak where there is none, told that so many references are shared."""
    source = np.random.default_rng(canaries)
    found = 0
    for _ in range(seeds):
        refs, own = source.normal(size=references), source.normal(size=canaries)
        found += fisher([(exposures(ranks(own, refs), references + 1), shared)]) <= 0.05
    return found / seeds


@pytest.mark.parametrize(("canaries", "references"), [(5, 1000), (100, 100), (200, 2000)])
def test_the_leak_test_keeps_its_level(canaries: int, references: int) -> None:
    assert rejections(canaries, references, 1500, references) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 1500)


def test_shared_references_are_accounted_for() -> None:
    assert rejections(300, 60, 800, None) > 0.08, "without the correction the test claims too much"
    assert rejections(300, 60, 800, 60) <= 0.06


def test_the_leak_test_finds_one_that_leaked_a_little() -> None:
    source = np.random.default_rng(3)
    refs, own = source.normal(size=500), source.normal(-1, size=40)
    assert fisher([(exposures(ranks(own, refs), 501), 500)]) < 1e-3
    tied = np.full(40, 1.0)
    assert fisher([(exposures(ranks(tied, np.ones(500)), 501), 500)]) == 1
    assert fisher([(exposures(strictly_less(tied, np.ones(500)), 501), 500)]) < 1e-12, "ties must speak against"


def exact_rejections(canaries: int, among: int, level: float, less: float = 0.0) -> float:
    """P(Fisher's p-value <= ``level``) for independent ranks from 1 to ``among``, each counted as so much ``less``."""
    found = 0.0
    for some in combinations_with_replacement(range(1, among + 1), canaries):
        orders = math.factorial(canaries) / math.prod(math.factorial(some.count(rank)) for rank in set(some))
        if fisher([(exposures(np.array(some) - less, among), None)]) <= level:
            found += orders / among**canaries
    return found


@pytest.mark.parametrize(("canaries", "among"), [(1, 20), (2, 10), (3, 10), (6, 5), (8, 3), (20, 2)])
def test_few_ranks_among_few_values_keep_every_level(canaries: int, among: int) -> None:
    """Discrete ranks make the test err less often than stated, by exact counting of all of them."""
    levels = (0.2, 0.1, 0.05, 0.03, 0.0125, 0.001)
    assert all(exact_rejections(canaries, among, level) <= level * (1 + 1e-9) for level in levels)


def test_half_a_rank_less_would_reject_too_often() -> None:
    assert exact_rejections(1, 20, 0.03, less=0.5) == pytest.approx(0.05)
    assert exact_rejections(1, 20, 0.03) == 0


def test_one_exposure_gives_its_own_p_value() -> None:
    for rank in (1, 7, 100):
        assert fisher([(exposures(np.array([rank]), 100), 99)]) == pytest.approx(rank / 100)


def test_a_limit_by_rank_errs_as_often_as_stated() -> None:
    """None of 300 cases at 1 - 0.05^(1/300) = 0.009936, as in the rule of three; and 2000 sets of 200 references."""
    assert least_bits(300, 0.05) == pytest.approx(-math.log2(0.009936), abs=1e-4)
    least = np.random.default_rng(5).random((2000, 200)).min(axis=1)  # the share of secrets below the lowest reference
    errs = {limit: (least > 2.0 ** -(limit - 0.05)).mean() for limit in (least_bits(200, 0.1), math.log2(201))}
    assert errs[least_bits(200, 0.1)] <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / 2000)
    assert errs[math.log2(201)] > 0.3  # exposure at its ceiling is no such limit


def test_so_few_canaries_detect_one_bit_above_chance() -> None:
    """Exposures are exponential: 2 / mean * sum is chi squared, of twice as many degrees of freedom as canaries."""
    ratio = 1 + math.log(2)  # one bit more than 1 / ln 2

    def power(canaries: int) -> float:
        return float(chi2.sf(chi2.isf(0.002, 2 * canaries) / ratio, 2 * canaries))

    assert power(verdict._EFFECTIVE) >= 0.8 > power(verdict._EFFECTIVE - 1)
    assert power(30) < 0.6
