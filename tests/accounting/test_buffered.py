"""Noise by buffers: the matrix against dense ones and the best banded one, its privacy against that of one Gaussian."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from scipy.linalg import toeplitz

from privctl.accounting import gaussian
from privctl.accounting.banded import banded_coefficients
from privctl.accounting.banded import prefix_error as banded_error
from privctl.accounting.buffered import BufferedMatrix, prefix_error, sensitivity
from privctl.accounting.buffered_search import buffered_matrix
from privctl.accounting.ledger import epsilon_bound, epsilon_floor
from privctl.domain.errors import CommandError
from privctl.domain.events import BufferedGaussian, Ledger, SampledGaussian
from verify.events.buffered_gaussian import moved_by_one

DELTA = 1e-5
MATRIX = BufferedMatrix(first=0.7, weights=(0.2, 0.1), decays=(0.9, 0.4))


def dense(matrix: BufferedMatrix, steps: int) -> np.ndarray:
    column = [matrix.first] + [
        sum(w * d ** (age - 1) for w, d in zip(matrix.weights, matrix.decays, strict=True)) for age in range(1, steps)
    ]
    return toeplitz(column, np.append(column[0], np.zeros(steps - 1)))


def event_of(matrix: BufferedMatrix, length: int, steps: int, noise: float = 1.0) -> BufferedGaussian:
    return BufferedGaussian(
        noise_multiplier=noise, first=matrix.first, weights=matrix.weights, decays=matrix.decays,
        sample_rate=1 / length, steps=steps,
    )  # fmt: skip


@pytest.mark.parametrize(("length", "steps"), [(5, 23), (1, 7), (9, 9), (30, 12)])
def test_error_and_sensitivity_are_those_of_the_whole_matrix(length: int, steps: int) -> None:
    whole = dense(MATRIX, steps)
    inverse = np.tril(np.ones((steps, steps))) @ np.linalg.inv(whole)
    assert prefix_error(MATRIX, steps) == pytest.approx(np.linalg.norm(inverse) / math.sqrt(steps), rel=1e-12)
    moved = [np.linalg.norm(whole[:, place::length].sum(1)) for place in range(min(length, steps))]
    assert sensitivity(MATRIX, length, steps) == pytest.approx(max(moved), rel=1e-12)
    low, high = moved_by_one(MATRIX.first, MATRIX.weights, MATRIX.decays, length, steps)
    assert low <= high <= sensitivity(MATRIX, length, steps) <= low * (1 + 1e-12)
    assert high - low < 1e-14


def test_contributions_of_any_direction_move_the_rows_by_no_more() -> None:
    random, steps, length = np.random.default_rng(1), 23, 5
    whole, most = dense(MATRIX, steps), sensitivity(MATRIX, length, steps)
    found = []
    for _ in range(500):
        place = random.integers(length)
        contributions = np.zeros((steps, 3))
        drawn = random.normal(size=(len(range(place, steps, length)), 3))
        contributions[place::length] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
        found.append(np.linalg.norm(whole @ contributions))
    assert max(found) < most
    equal = np.zeros((steps, 1))
    equal[::length] = 1
    assert np.linalg.norm(whole @ equal) == pytest.approx(most, rel=1e-12)
    assert np.linalg.norm(whole[:, 1 : 1 + 5 * length : length].sum(1)) < most


def test_the_sensitivity_holds_with_every_digit() -> None:
    """Against a sum in 40 digits: the accountant's bound lies above it, those of ``verify`` around it."""
    matrix, length, steps = buffered_matrix(2, 50, 600), 50, 600
    with mpmath.workdps(40):
        held, total = [mpmath.mpf(0)] * 2, mpmath.mpf(0)
        for step in range(steps):
            part = 1 if step % length == 0 else 0
            row = matrix.first * part + mpmath.fsum(w * h for w, h in zip(matrix.weights, held, strict=True))
            held = [mpmath.mpf(d) * h + part for d, h in zip(matrix.decays, held, strict=True)]
            total += row * row
        exact = mpmath.sqrt(total)
        low, high = moved_by_one(matrix.first, matrix.weights, matrix.decays, length, steps)
        assert low <= exact <= high
        assert exact <= sensitivity(matrix, length, steps) <= 1
        assert float(exact) > 1 - 1e-9


def test_three_buffers_are_as_good_as_a_whole_toeplitz_matrix() -> None:
    """One pass of 256 steps: within 1 % of 256 bands, and above what any matrix has at least."""
    steps = 256
    errors = [prefix_error(buffered_matrix(count, steps, steps), steps) for count in (1, 2, 3)]
    best = banded_error(banded_coefficients(steps, steps), steps)
    singular = 1 / (2 * np.sin((2 * np.arange(1, steps + 1) - 1) * math.pi / (4 * steps + 2)))
    assert singular.sum() / steps < best <= errors[2] < 1.01 * best
    assert errors[2] < errors[1] < errors[0] < banded_error((1.0,), steps) / 3


@pytest.mark.slow
def test_no_neighbour_of_the_chosen_matrix_is_better_by_a_thousandth() -> None:
    length, steps = 20, 60
    chosen = buffered_matrix(2, length, steps)
    least = prefix_error(chosen, steps) * sensitivity(chosen, length, steps)
    random = np.random.default_rng(2)
    for _ in range(200):
        factors = np.exp(random.normal(size=4) * 0.05)
        near = BufferedMatrix(
            first=chosen.first,
            weights=tuple(np.array(chosen.weights) * factors[:2]),
            decays=tuple(1 - (1 - np.array(chosen.decays)) * factors[2:]),
        )
        assert prefix_error(near, steps) * sensitivity(near, length, steps) > least * (1 - 1e-3)


def test_its_privacy_is_that_of_one_gaussian_whose_noise_is_the_noise_multiplier() -> None:
    event = event_of(buffered_matrix(2, 10, 55), 10, 55)
    ledger = Ledger(events=(event,))
    assert epsilon_bound(ledger, DELTA) == pytest.approx(gaussian.epsilon_at(DELTA, 1.0), rel=1e-9)
    assert epsilon_floor(ledger, DELTA) <= epsilon_bound(ledger, DELTA)
    assert epsilon_floor(ledger, DELTA) == pytest.approx(epsilon_bound(ledger, DELTA), rel=1e-9)
    longer = Ledger(events=(event_of(buffered_matrix(2, 10, 55), 10, 110),))  # twice as many passes as it was made for
    assert epsilon_bound(longer, DELTA) > 1.3 * epsilon_bound(ledger, DELTA)
    twice = event_of(BufferedMatrix(first=2.0, weights=(0.0,), decays=(0.5,)), 10, 10)
    assert epsilon_bound(Ledger(events=(twice,)), DELTA) == pytest.approx(gaussian.epsilon_at(DELTA, 2.0), rel=1e-9)


def test_it_composes_with_other_events() -> None:
    event = event_of(buffered_matrix(2, 10, 55), 10, 55)
    joint = Ledger(events=(event, SampledGaussian(noise_multiplier=2.0)))
    assert epsilon_bound(joint, DELTA) == pytest.approx(gaussian.epsilon_at(DELTA, math.hypot(1, 0.5)), rel=1e-9)
    sampled = Ledger(events=(event, SampledGaussian(noise_multiplier=1.0, sample_rate=0.01, steps=10)))
    assert epsilon_bound(sampled, DELTA) > epsilon_bound(Ledger(events=(event,)), DELTA)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"weights": (0.2,)}, "the same length"),
        ({"weights": (), "decays": ()}, "the same length"),
        ({"decays": (0.9, 1.0)}, "below 1"),
        ({"decays": (0.9, -0.1)}, "decays"),
        ({"weights": (0.5, 0.3)}, "no column of the matrix may rise"),
        ({"weights": (0.5, math.nan)}, "weights"),
        ({"sample_rate": 0.3}, "1 over a whole number"),
    ],
)
def test_what_is_no_matrix(change: dict[str, object], what: str) -> None:
    facts = {"noise_multiplier": 1, "first": 0.7, "weights": (0.2, 0.1), "decays": (0.9, 0.4), "sample_rate": 0.2}
    with pytest.raises(ValueError, match=what):
        BufferedGaussian(**(facts | change), steps=5)  # type: ignore[arg-type]


def test_the_plan_takes_the_buffers_that_are_worth_having() -> None:
    import privctl

    report = privctl.account(mechanism="blt", epsilon=4, sample_rate=0.02, steps=100, delta=DELTA)
    (event,) = report.mechanism.events  # type: ignore[union-attr]
    assert isinstance(event, BufferedGaussian)
    (remark,) = (warning for warning in report.warnings if warning.startswith("error by buffers: "))
    errors = [float(word.split(" with ")[0]) for word in remark.removeprefix("error by buffers: ").split(", ")]
    assert event.buffers == len(errors) - 1
    assert errors[-1] > errors[-2] / 1.005
    matrix = BufferedMatrix(first=event.first, weights=event.weights, decays=event.decays)
    assert errors[-2] == pytest.approx(event.noise_multiplier * prefix_error(matrix, 100), rel=1e-3)
    assert epsilon_bound(Ledger(events=(event,)), DELTA) <= 4
    # DP-SGD's noise of the same epsilon, and the error stated for it.
    (words,) = (warning for warning in report.warnings if "(DP-SGD)" in warning)
    alone = float(words.split("noise multiplier ")[1].split(" ")[0])
    steps = Ledger(events=(SampledGaussian(noise_multiplier=alone, sample_rate=0.02, steps=100),))
    assert epsilon_bound(steps, DELTA) == pytest.approx(4, rel=1e-2)
    assert f"an error of {alone * math.sqrt(101 / 2):.4g}," in words


def test_passes_of_no_whole_number_of_steps_are_refused() -> None:
    import privctl

    with pytest.raises(CommandError, match="--sample-rate is 0.3; .* 1 over a whole number"):
        privctl.account(mechanism="blt", noise_multiplier=1, sample_rate=0.3, steps=10, delta=DELTA)
    with pytest.raises(CommandError, match="--steps is 1000001; .* at most 1,000,000 steps"):
        privctl.account(mechanism="blt", noise_multiplier=1, sample_rate=0.01, steps=1000001, delta=DELTA)
    with pytest.raises(CommandError, match="takes part 10001 times"):
        privctl.account(mechanism="blt", noise_multiplier=1, sample_rate=0.5, steps=20001, delta=DELTA)
    with pytest.raises(ValueError, match="buffers is 9"):
        buffered_matrix(9, 10, 10)
