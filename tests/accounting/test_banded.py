"""Banded noise: its coefficients against a search over whole matrices, its privacy against that of plain steps."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.linalg import toeplitz
from scipy.optimize import minimize

from privctl.accounting.banded import banded_coefficients, most_bands, prefix_error
from privctl.accounting.ledger import epsilon_bound, epsilon_floor
from privctl.accounting.renyi import ledger_epsilon
from privctl.domain.errors import CommandError
from privctl.domain.events import BandedGaussian, Ledger, SampledGaussian

DELTA = 1e-5


def whole_error(coefficients: np.ndarray, steps: int) -> float:
    """The error by matrices alone: the norm of A C^-1 over sqrt(steps), times that of a column of C."""
    column = np.append(coefficients, np.zeros(steps - len(coefficients)))
    matrix = toeplitz(column, np.append(column[0], np.zeros(steps - 1)))
    inverse = np.tril(np.ones((steps, steps))) @ np.linalg.inv(matrix)
    return float(np.linalg.norm(inverse) / math.sqrt(steps) * np.linalg.norm(coefficients))


@pytest.mark.parametrize(("steps", "bands"), [(8, 3), (12, 2)])
def test_no_other_coefficients_do_better(steps: int, bands: int) -> None:
    found = banded_coefficients(bands, steps)
    assert prefix_error(found, steps) == pytest.approx(whole_error(np.array(found), steps), rel=1e-12)
    best = minimize(
        lambda free: whole_error(np.append(1.0, free), steps), np.full(bands - 1, 0.3), method="Nelder-Mead",
        options={"xatol": 1e-7, "fatol": 1e-10},
    ).fun  # fmt: skip
    assert prefix_error(found, steps) == pytest.approx(best, rel=1e-6)


def test_as_many_bands_as_steps_lie_between_published_bounds() -> None:
    """Below the series of (1 - x)^(-1/2) (Fichtenberger et al. 2023), above what no factorization is below.

    For the prefix sum's least Frobenius error Henzinger, Upadhyay and Upadhyay 2023 give the bound from below
    (1 / steps) sum_k 1 / (2 sin((2k - 1) pi / (4 steps + 2))), its nuclear norm over steps.
    """
    steps = 64
    series = np.cumprod(np.append(1.0, (2 * np.arange(1, steps) - 1) / (2 * np.arange(1, steps))))
    least = np.linalg.norm(np.tril(np.ones((steps, steps))), "nuc") / steps
    singular = 1 / (2 * np.sin((2 * np.arange(1, steps + 1) - 1) * math.pi / (4 * steps + 2)))
    assert least == pytest.approx(singular.sum() / steps, rel=1e-9)
    found = prefix_error(banded_coefficients(steps, steps), steps)
    assert least < found < whole_error(series, steps) < prefix_error((1.0,), steps)
    assert found < 1.08 * least  # a matrix that is not Toeplitz may do better


@pytest.mark.parametrize(("bands", "steps"), [(1, 10), (2, 64), (16, 1000), (64, 5000)])
def test_columns_are_no_longer_than_one_even_in_exact_arithmetic(bands: int, steps: int) -> None:
    found = banded_coefficients(bands, steps)
    assert len(found) == bands
    assert 1 - 1e-14 < sum(Fraction(value) ** 2 for value in found) <= 1
    assert prefix_error((1.0,), steps) == pytest.approx(math.sqrt((steps + 1) / 2))


def test_more_bands_leave_less_noise() -> None:
    errors = [prefix_error(banded_coefficients(bands, 1000), 1000) for bands in (1, 2, 4, 16, 64)]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 5


def banded(bands: int, steps: int = 103, rate: float = 0.02, noise: float = 1.0) -> Ledger:
    event = BandedGaussian(
        noise_multiplier=noise, coefficients=banded_coefficients(bands, steps), sample_rate=rate, steps=steps
    )
    return Ledger(events=(event,))


def turns(rate: float, steps: int, noise: float = 1.0) -> Ledger:
    return Ledger(events=(SampledGaussian(noise_multiplier=noise, sample_rate=rate, steps=steps),))


def test_its_privacy_is_that_of_the_turns_of_one_part() -> None:
    assert epsilon_bound(banded(4), DELTA) == epsilon_bound(turns(0.08, 26), DELTA)
    assert epsilon_floor(banded(4), DELTA) == epsilon_floor(turns(0.08, 26), DELTA)
    assert ledger_epsilon(banded(4), DELTA)[0] == pytest.approx(ledger_epsilon(turns(0.08, 26), DELTA)[0], rel=1e-12)
    # A part that is taken whole in its turns.
    assert epsilon_bound(banded(50, 100), DELTA) == pytest.approx(epsilon_bound(turns(1.0, 2), DELTA), rel=1e-9)


def test_one_band_is_dp_sgd() -> None:
    assert banded_coefficients(1, 103) == (1.0,)
    assert epsilon_bound(banded(1), DELTA) == epsilon_bound(turns(0.02, 103), DELTA)


def test_longer_columns_cost_what_they_are_longer_by() -> None:
    (event,) = banded(4).events
    assert isinstance(event, BandedGaussian)
    longer = BandedGaussian(
        noise_multiplier=1.0, coefficients=tuple(1.1 * value for value in event.coefficients), sample_rate=0.02,
        steps=103,
    )  # fmt: skip
    expected = epsilon_bound(turns(0.08, 26, noise=1 / 1.1), DELTA)
    assert epsilon_bound(Ledger(events=(longer,)), DELTA) == pytest.approx(expected, rel=1e-9)
    assert expected > 1.1 * epsilon_bound(banded(4), DELTA)


def test_it_composes_with_other_events() -> None:
    joint = Ledger(events=(*banded(4).events, *turns(0.02, 10).events))
    assert epsilon_bound(joint, DELTA) > epsilon_bound(banded(4), DELTA)


@pytest.mark.parametrize("coefficients", [(), (0.0, 1.0), (-1.0,), (1.0, math.nan), (1.0, 1e9), (1.0,) * 2000])
def test_what_is_no_matrix(coefficients: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="coefficients"):
        BandedGaussian(noise_multiplier=1, coefficients=coefficients, steps=5)


def test_the_plan_takes_the_bands_with_the_least_error() -> None:
    import privctl

    report = privctl.account(mechanism="banded", epsilon=4, sample_rate=0.05, steps=60, delta=DELTA)
    (event,) = report.mechanism.events  # type: ignore[union-attr]
    assert isinstance(event, BandedGaussian)
    (remark,) = (warning for warning in report.warnings if warning.startswith("error by bands: "))
    errors = {
        int(bands): float(error)
        for error, bands in (word.split(" with ") for word in remark.removeprefix("error by bands: ").split(", "))
    }
    assert list(errors) == [1, 2, 4, 8, 16]
    assert errors[event.bands] == min(errors.values()) < errors[1]
    error = event.noise_multiplier * prefix_error(event.coefficients, 60)
    assert error == pytest.approx(errors[event.bands], rel=1e-3)
    assert epsilon_bound(Ledger(events=(event,)), DELTA) <= 4


def test_bands_that_do_not_fit_are_refused() -> None:
    import privctl

    assert most_bands(0.1, 1000) == 10
    assert most_bands(0.1, 7) == 7
    with pytest.raises(CommandError, match="--bands is 11; at a sampling rate of 0.1 .* at most 10"):
        privctl.account(mechanism="banded", bands=11, noise_multiplier=1, sample_rate=0.1, steps=1000, delta=DELTA)
    with pytest.raises(CommandError, match="--bands is missing"):
        privctl.account(mechanism="banded", noise_multiplier=1, sample_rate=0.1, steps=1000, delta=DELTA)
