"""Divergences of mixtures of Gaussians against 50-digit integrals."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import mpmath
import numpy as np
import pytest

from privctl.accounting.mixtures import kl, log_moments, replace_kl
from privctl.accounting.poisson_binomial import poisson_binomial
from tests.accounting.integrals import gaussian_integral
from tests.few import few

# (probabilities, sigma, KL(MoG || N), replace KL, E[K^2] / (2 sigma^2)), mpmath, 12 digits.
TABLE = [
    ([0.01], 1, 8.38122076508e-05, 0.00022841130623, 0.005),
    ([0.1] * 3, 1, 0.0623886341498, 0.15328601168, 0.18),
    ([0.005] * 8, 0.5, 0.0150818087223, 0.0248252935698, 0.0828),
    ([0.02, 0.05, 0.1, 0.2], 0.8, 0.158499178449, 0.331068229719, 0.354687),
    ([0.001] * 50, 1, 0.00206370743118, 0.00540759600482, 0.026225),
    ([0.001] * 75, 0.3, 0.2330207931, 0.286787688266, 0.4475),
    ([0.3] * 10, 5, 0.181674018239, 0.665810516342, 0.222),
    ([0.005 * (i % 7 + 1) for i in range(60)], 2, 0.188989642879, 0.55315584987, 0.313769),
    ([1], 1, 0.5, 2, 0.5),
    ([1, 1], 2, 0.5, 2, 0.5),
    ([0.01] * 100, 4, 0.0321855320367, 0.118042378801, 0.0621875),
    ([1e-3], 1, 8.56846240975e-07, 2.34300610657e-06, 0.0005),
    ([1e-4], 0.7, 3.34134725726e-08, 7.54551992171e-08, 0.000102),
]
ONE_STEP = [
    ([1], 1, 0.5, 2),
    ([0.3], 0.7, 0.1303661430, 0.2839724354),
    ([0.3] * 3, 1, 0.4771693192, 1.0896535690),
    ([0.01], 0.5, 0.0013493688, 0.0024105964),
]
Law = list[mpmath.mpf]


def exact_law(probabilities: Sequence[float]) -> Law:
    law = [mpmath.mpf(1)]
    for p in map(mpmath.mpf, probabilities):
        law = [(1 - p) * a + p * b for a, b in zip([*law, 0], [0, *law], strict=True)]
    return law


def exact_divergences(probabilities: Sequence[float], sigma: float) -> tuple[mpmath.mpf, mpmath.mpf]:
    law, s = exact_law(probabilities), mpmath.mpf(sigma)

    def density(x: mpmath.mpf) -> mpmath.mpf:
        return mpmath.fsum(w * mpmath.npdf(x, k, s) for k, w in enumerate(law))

    def forward(x: mpmath.mpf) -> mpmath.mpf:
        return density(x) * mpmath.log(density(x) / mpmath.npdf(x, 0, s))

    def replace(x: mpmath.mpf) -> mpmath.mpf:
        return density(x) * mpmath.log(density(x) / density(-x))

    top = len(law) - 1
    return gaussian_integral(forward, top, sigma), gaussian_integral(replace, top, sigma)


@pytest.mark.parametrize(("probabilities", "sigma", "forward", "replace", "square"), TABLE)
def test_reference_table(
    probabilities: list[float], sigma: float, forward: float, replace: float, square: float
) -> None:
    law = poisson_binomial(probabilities)
    assert kl(law, sigma) == pytest.approx(forward, rel=7e-12)
    assert replace_kl(law, sigma) == pytest.approx(replace, rel=7e-12)
    assert float(law.weights @ law.shifts**2) / 2 / sigma**2 == pytest.approx(square, rel=5e-4)
    assert kl(law, sigma) <= square * (1 + 1e-3)  # what there is without amplification by sampling


@pytest.mark.parametrize(("probabilities", "sigma", "forward", "replace"), ONE_STEP)
def test_divergences_of_one_step_have_their_known_values(
    probabilities: list[float], sigma: float, forward: float, replace: float
) -> None:
    law = poisson_binomial(probabilities)
    assert kl(law, sigma) == pytest.approx(forward, abs=6e-11)
    assert replace_kl(law, sigma) == pytest.approx(replace, abs=6e-11)


@pytest.mark.parametrize(
    ("probabilities", "sigma"), few([([0.1, 0.02], 0.6), ([1e-12], 0.5), ([0.2, 0.3], 50.0), ([0.9], 0.25)], 0, 2)
)
def test_never_below_and_hardly_above_50_digits(probabilities: list[float], sigma: float) -> None:
    with mpmath.workdps(50):
        forward, replace = exact_divergences(probabilities, sigma)
        law = poisson_binomial(probabilities)
        for found, exact in ((kl, forward), (replace_kl, replace)):
            assert 0 <= mpmath.mpf(found(law, sigma)) / exact - 1 < 1e-12
    # The margin is not what makes it pass: slightly less noise gives a larger value.
    assert kl(law, sigma * (1 - 1e-9)) > kl(law, sigma)


def test_law_has_relative_accuracy_in_its_tails() -> None:
    probabilities = [0.001 * (i % 5 + 1) for i in range(60)] + [0.3]
    with mpmath.workdps(50):
        exact = exact_law(probabilities)
        law = poisson_binomial(probabilities)
        for k, weight in zip(law.shifts, law.weights, strict=True):
            assert float(weight / exact[int(k)] - 1) == pytest.approx(0, abs=1e-13)
        cut = exact[len(law.weights) :]
        assert sum(cut) <= law.tail_mass < 1e-16
        first = len(law.weights)
        assert sum(w * k * k for k, w in enumerate(cut, first)) <= law.tail_square
        growth = mpmath.log(mpmath.fsum(w * mpmath.exp(k * k / mpmath.mpf(100)) for k, w in enumerate(cut, first)))
        assert growth <= law.log_tail_norm(0.01)


def test_cutting_the_tail_is_made_good() -> None:
    # At sigma 30 the square of K counts: without the mass cut off the mean would be 1e-18 short, with it never.
    probabilities = [0.001] * 40
    law = poisson_binomial(probabilities)
    assert len(law.weights) < 41
    with mpmath.workdps(50):
        exact = exact_law(probabilities)
        mean_square = mpmath.fsum(w * k * k for k, w in enumerate(exact))
        kept = mpmath.fsum(w * k * k for k, w in enumerate(exact[: len(law.weights)]))
        assert kept < mean_square <= kept + law.tail_square


def test_many_records_stay_quick_and_right() -> None:
    law = poisson_binomial([1e-3] * 100_000)
    assert len(law.weights) < 300
    assert float(law.weights @ law.shifts) == pytest.approx(100, rel=1e-12)
    assert kl(law, 1e3) == pytest.approx(100**2 / 2e6, rel=1e-3)
    values = np.random.default_rng(0).uniform(0, 2e-5, 100_000)
    assert float((law := poisson_binomial(values.tolist())).weights @ law.shifts) == pytest.approx(
        values.sum(), rel=1e-11
    )


def test_sure_and_impossible_records() -> None:
    law = poisson_binomial([1, 0, 0.5, 1, 0])
    assert law.shifts.tolist() == [2, 3]
    assert law.weights.tolist() == [0.5, 0.5]
    nothing = poisson_binomial([0.0, 0.0])
    assert kl(nothing, 1e-3) == replace_kl(nothing, 1) == 0


@pytest.mark.parametrize("divergence", [kl, replace_kl])
@pytest.mark.parametrize("probabilities", [[0.01], [0.3] * 4, [0.001] * 75, [1e-9], [0.5] * 30])
def test_less_noise_never_leaks_less(divergence: Callable[..., float], probabilities: list[float]) -> None:
    law = poisson_binomial(probabilities)
    sigmas = [1e-200, 1e-3, 0.0099, 0.0101, 0.02, 0.1, 0.25, 0.5, 0.501, 1, 2, 10, 1e3]
    values = [divergence(law, sigma) for sigma in sigmas]
    assert all(not math.isnan(v) and v >= 0 for v in values)
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in pairwise(values))


@pytest.mark.parametrize("probabilities", [[0.01], [0.3] * 4, [0.001] * 50])
def test_towards_large_noise_only_the_mean_counts(probabilities: list[float]) -> None:
    law = poisson_binomial(probabilities)
    assert kl(law, 1e3) == pytest.approx(sum(probabilities) ** 2 / 2e6, rel=1e-5)


@pytest.mark.parametrize("sigma", [0.0, -1.0, math.nan, math.inf])
def test_sigma_out_of_range(sigma: float) -> None:
    with pytest.raises(ValueError, match="sigma"):
        kl(poisson_binomial([0.1]), sigma)


@pytest.mark.parametrize("probabilities", [[], [1.1], [0.1, -0.1], [math.nan]])
def test_probabilities_out_of_range(probabilities: list[float]) -> None:
    with pytest.raises(ValueError, match="probabilities"):
        poisson_binomial(probabilities)


@pytest.mark.parametrize("order", few([1.1, 2.5, 7.0, 33.3], 0, 2))
@pytest.mark.parametrize(("probabilities", "sigma"), [([0.1, 0.02], 0.8), ([0.3] * 4, 3.0), ([1e-6], 1.0)])
def test_log_moments_agree_with_quadrature(probabilities: list[float], sigma: float, order: float) -> None:
    law = poisson_binomial(probabilities)
    with mpmath.workdps(40):
        exact, s = exact_law(probabilities), mpmath.mpf(sigma)

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            ratio = mpmath.fsum(w * mpmath.exp((k * x - mpmath.mpf(k * k) / 2) / s**2) for k, w in enumerate(exact))
            return mpmath.npdf(x, 0, s) * ratio ** mpmath.mpf(order)

        expected = float(mpmath.log(gaussian_integral(integrand, order * (len(exact) - 1), sigma)))
    assert log_moments(law.weights, law.shifts, sigma, [order])[0] == pytest.approx(expected, rel=1e-12)


def test_moments_of_a_single_gaussian_are_closed() -> None:
    orders = [1.001, 2.0, 1024.0]
    found = log_moments(np.ones(1), np.array([1.0]), 0.7, orders)
    assert found.tolist() == pytest.approx([a * (a - 1) / 2 / 0.49 for a in orders], rel=1e-12)


def test_unaffordable_moments_are_bounded_from_above() -> None:
    law = poisson_binomial([0.01] * 10_000)
    found = float(log_moments(law.weights, law.shifts, 1.0, [1024.0])[0])
    logs = np.log(law.weights)
    assert found >= float((1024 * logs + 1024 * 1023 / 2 * law.shifts**2).max()) * (1 - 1e-12)


def test_moments_need_orders_above_one() -> None:
    with pytest.raises(ValueError, match="orders"):
        log_moments(np.array([0.5, 0.5]), np.array([0.0, 1.0]), 1.0, [1.0])
