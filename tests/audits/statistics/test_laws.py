"""``audits.statistics.laws``, and roots that replace scipy's, beside ``scipy.stats`` and ``scipy.optimize``."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri
from scipy.stats import binom, hypergeom, kstest, rankdata

from audits.canaries.skewnormal import SkewNormal, _kolmogorov_smirnov
from audits.statistics import power
from audits.statistics.laws import binomial_quantile, hypergeometric, mean_ranks


@pytest.mark.parametrize("shape", [(0,), (1,), (50,), (7, 40), (3, 0)])
def test_ranks_are_those_of_scipy(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(3)
    for values in (random.integers(0, 9, shape), random.normal(size=shape), np.full(shape, -np.inf)):
        assert np.array_equal(mean_ranks(values), rankdata(values, axis=-1))


def test_ranks_among_what_is_not_a_number() -> None:
    values = np.array([[1.0, np.nan, 0.0], [np.inf, -np.inf, np.inf]])
    assert np.array_equal(mean_ranks(values), rankdata(values, axis=-1), equal_nan=True)
    assert mean_ranks(values)[1].tolist() == [2.5, 1.0, 2.5]


@pytest.mark.parametrize(
    ("total", "marked", "drawn"),
    [(4, 2, 2), (10, 10, 3), (10, 0, 3), (9, 8, 7), (400, 60, 200), (200_000, 900, 100_000)],
)
def test_the_hypergeometric_law_is_that_of_scipy(total: int, marked: int, drawn: int) -> None:
    low, law = hypergeometric(total, marked, drawn)
    numbers = np.arange(low, low + len(law))
    assert low == max(0, marked + drawn - total)
    assert numbers[-1] == min(marked, drawn)
    expected = hypergeom.pmf(numbers, total, marked, drawn)
    assert law == pytest.approx(expected, rel=1e-8, abs=1e-290)


def test_the_hypergeometric_law_of_four() -> None:
    assert hypergeometric(4, 2, 2)[1] == pytest.approx([1 / 6, 4 / 6, 1 / 6], rel=1e-15)


@pytest.mark.parametrize("share", [1e-6, 0.1, 0.5, 0.9, 0.999])
def test_binomial_quantiles_are_those_of_scipy(share: float) -> None:
    for trials, rate in ((0, 0.5), (1, 0.5), (20, 0.03), (500, 0.7), (10_000, 1 - 1e-5)):
        assert binomial_quantile(share, trials, rate) == int(binom.ppf(share, trials, rate))
        assert binomial_quantile(1 - share, trials, rate) == int(binom.isf(share, trials, rate))


@pytest.mark.parametrize("shift", [0.0, 0.3])
def test_kolmogorov_s_test_is_that_of_scipy(shift: float) -> None:
    law = SkewNormal(shape=1.5, location=2.0, scale=0.7)
    values = np.random.default_rng(4).normal(2.4 + shift, 0.5, 300)
    expected = kstest(np.exp(law.log_cdf(values)), "uniform", method="asymp").pvalue
    assert _kolmogorov_smirnov(law, values) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(("members", "nonmembers"), [(40, 60), (500, 500)])
def test_the_detectable_area_is_scipy_s_root(members: int, nonmembers: int) -> None:
    reach = 2.5 * ((members + nonmembers + 1) / (12 * members * nonmembers)) ** 0.5

    def beyond(area: float) -> float:
        return area - 0.5 - reach - float(ndtri(0.8)) * power._hanley_mcneil(area, members, nonmembers)

    assert power.detectable_area_beyond(2.5, members, nonmembers) == pytest.approx(brentq(beyond, 0.5, 1.0), abs=1e-11)


@pytest.mark.parametrize("share", [0.01, 0.2, 0.499])
def test_the_share_of_right_guesses_is_scipy_s_root(share: float) -> None:
    for mu in (0.1, 1.0, 6.0):
        cut = brentq(lambda at, mu=mu: ndtr(mu - at) + ndtr(-at) - 2 * share, -40.0, 40.0 + mu)
        assert power._success_rate(mu, share) == pytest.approx(float(ndtr(mu - cut)) / (2 * share), rel=1e-9)
