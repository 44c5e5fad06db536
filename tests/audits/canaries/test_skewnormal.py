from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import pytest

from audits.canaries.skewnormal import SkewNormal, extrapolate, fit
from tests.few import few


def sample(law: SkewNormal, count: int, seed: int) -> np.ndarray:
    source = np.random.default_rng(seed)
    delta = law.shape / math.sqrt(1 + law.shape**2)
    z = delta * np.abs(source.normal(size=count)) + math.sqrt(1 - delta**2) * source.normal(size=count)
    return law.location + law.scale * z


def test_the_far_tail() -> None:
    law = SkewNormal(shape=4, location=10, scale=2)
    known = [6.01197, 9.45507, 20.22145, 58.85245, 121.30329, 207.96152]
    assert law.bits(np.array([9.5, 9, 8, 6, 4, 2])) == pytest.approx(known, abs=1e-5)


@pytest.mark.parametrize("shape", few([-40, -2, 0, 0.5, 30], 0, 2, 3))
def test_against_quadrature(shape: float) -> None:
    law = SkewNormal(shape=shape, location=0, scale=1)
    for x in (-9, -1.2, 0.01, 2):
        with mpmath.workdps(18):
            begin = x - 12  # the density falls by more than exp(-72) before
            edges = [begin, *[x - 2.0**-k for k in range(-3, 12)], x]
            area = mpmath.quad(lambda t: 2 * mpmath.npdf(t) * mpmath.ncdf(shape * t), sorted(edges))
            expected = float(mpmath.log(area))
        assert law.log_cdf(np.array([x]))[0] == pytest.approx(expected, rel=1e-8, abs=1e-12)


@pytest.mark.parametrize("shape", [-3, 1.5, 6])
def test_a_law_is_found_again(shape: float) -> None:
    law = SkewNormal(shape=shape, location=20, scale=3)
    found = fit(sample(law, 20_000, 1))
    assert found.shape == pytest.approx(shape, rel=0.12)
    assert (found.location, found.scale) == pytest.approx((20, 3), rel=0.03)


def test_what_is_extrapolated_lies_between_the_limit_by_rank_and_the_cap() -> None:
    references = sample(SkewNormal(shape=2, location=30, scale=2), 1000, 2)
    found = extrapolate(np.array([27.0, 5.0, 80.0]), references, cap=19.9, alpha=0.1)
    assert found.bits[1] == 19.9
    assert found.lower == pytest.approx(8.7642, abs=1e-4)
    assert found.bits[2] == found.lower
    assert found.lower < found.bits[0] < 19.9
    assert found.p_value > 0.05


@pytest.mark.parametrize(
    "quantile",
    [lambda share: np.log(share / (1 - share)), lambda share: share, lambda share: -1 / share**0.3],
    ids=["logistic", "uniform", "Frechet, negative"],
)
def test_the_lower_limit_holds_for_laws_that_are_not_skew_normal(quantile: Callable[[Any], Any]) -> None:
    """Canaries with an exposure of 16 bits, below 500 references; by the fit, some have 30 bits, and others 5."""
    share, fitted = 2.0**-16, []
    for seed in range(20):
        references = quantile(share + (1 - share) * np.random.default_rng(seed).random(500))
        found = extrapolate(np.array([quantile(share)]), references, cap=40, alpha=0.1)
        assert np.max(found.lower) <= 16
        fitted.append(float(found.bits[0]))
    assert not 15.5 < np.median(fitted) < 16.5


def test_a_poor_fit_shows() -> None:
    source = np.random.default_rng(4)
    two = np.concatenate([source.normal(0, 1, 500), source.normal(12, 1, 500)])
    assert extrapolate(np.array([-5.0]), two, cap=20, alpha=0.1).p_value < 1e-3


def test_equal_losses_have_no_law() -> None:
    with pytest.raises(ValueError, match="all equal"):
        fit(np.ones(300))
