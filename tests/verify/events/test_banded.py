"""Correlated noise as verify sees it: columns in ball arithmetic, simulated losses, and how weights move by it."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from audits.claims import with_half_noise
from privctl.accounting.banded import banded_coefficients
from privctl.domain.events import BandedGaussian, Ledger
from privctl.domain.mechanism import Optimizer
from verify.events.banded_gaussian import column_norm, toy_training, turns
from verify.recompute import ledger
from verify.simulate.bounds import black_box
from verify.simulate.losses import ledger_losses, sample
from verify.weights.law import law_of
from verify.weights.moves import coefficients, least_noise, noise_coefficients, signal
from verify.weights.settings import TrainingFacts

DELTA, LEVEL = 1e-3, 1e-3
STEPS = 10
EVENT = BandedGaussian(noise_multiplier=1.5, coefficients=banded_coefficients(3, STEPS), sample_rate=0.2, steps=STEPS)


def test_columns_are_measured_with_every_digit() -> None:
    low, high = column_norm((0.6, 0.8))
    exact = math.sqrt(Fraction(0.6) ** 2 + Fraction(0.8) ** 2)
    assert low <= exact <= high
    assert high - low < 1e-15
    assert column_norm((1.0,)) == (1.0, 1.0)
    assert column_norm(tuple(1.1 * value for value in EVENT.coefficients))[0] == pytest.approx(1.1, rel=1e-14)


def test_a_part_has_as_many_turns_as_steps_leave_it() -> None:
    assert [turns(replace(EVENT, steps=steps)) for steps in (1, 2, 3, 4, 9, 10)] == [1, 1, 1, 2, 3, 4]


def test_a_run_with_its_noise_passes_and_one_with_half_of_it_does_not() -> None:
    """Losses of whole rows of C X + Z, in which nothing is said of turns: black-box bounds on delta."""
    known = ledger.epsilon_of(Ledger(events=(EVENT,)), DELTA)
    right = sample(toy_training(EVENT, STEPS), 1, 0.0)
    wrong = sample(toy_training(EVENT, STEPS, noise=0.5), 1, 0.0)
    assert black_box(right, known.upper, LEVEL).lower <= DELTA
    assert black_box(wrong, known.upper, LEVEL).lower > DELTA


def test_an_audit_has_half_of_its_noise_to_tell_from_it() -> None:
    (halved,) = with_half_noise(Ledger(events=(EVENT,))).events
    assert halved == replace(EVENT, noise_multiplier=0.75)


def test_losses_of_the_turns_are_those_of_the_rows() -> None:
    by_turns = ledger_losses(Ledger(events=(EVENT,)))
    assert by_turns is not None
    steps = 9  # the last turn is whole
    rows = sample(toy_training(replace(EVENT, steps=steps), steps), 2, 0.0).present
    known = sample(ledger_losses(Ledger(events=(replace(EVENT, steps=steps),))) or by_turns, 3, 0.0).present
    for share in (0.1, 0.5, 0.9, 0.99):
        assert np.quantile(rows, share) == pytest.approx(np.quantile(known, share), abs=0.04)


def facts(correlation: tuple[float, ...], optimizer: Optimizer = Optimizer.SGD) -> TrainingFacts:
    return TrainingFacts(
        method="dp-sgd", updates=STEPS, planned=STEPS, learning_rate=0.1, schedule="linear", warmup=2,
        optimizer=optimizer, batch_size=10.0, examples=50, noise_multiplier=1.5, clip_norm=1.0, momentum=0.5,
        beta1=0.9, beta2=0.999, weight_decay=0.1, correlation=correlation,
    )  # fmt: skip


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.MOMENTUM])
def test_weights_move_by_correlated_noise_as_the_inverse_matrix_says(optimizer: Optimizer) -> None:
    chosen = facts(EVENT.coefficients, optimizer)
    matrix = sum(value * np.eye(STEPS, k=-age) for age, value in enumerate(EVENT.coefficients))
    expected = np.linalg.inv(matrix).T @ coefficients(chosen)
    assert noise_coefficients(chosen) == pytest.approx(expected, rel=1e-9)
    stddev = math.hypot(chosen.noise_stddev, chosen.grids[0] / math.sqrt(12))
    assert law_of(chosen, 1e-6).scale == pytest.approx(np.linalg.norm(expected) * stddev, rel=0.01)
    alone = facts((1.0,), optimizer)
    assert law_of(alone, 1e-6).scale > 1.15 * law_of(chosen, 1e-6).scale  # what would be expected without


def test_gradients_may_move_correlated_noise_by_more() -> None:
    assert signal(facts(EVENT.coefficients), 1e-7) > sum(EVENT.coefficients) * signal(facts((1.0,)), 1e-7) * 0.99


def test_the_least_noise_holds_wherever_steps_were_lost_and_is_near() -> None:
    chosen = facts(EVENT.coefficients)
    found = []
    for lost in range(1 << STEPS):  # whose noise no later row holds
        matrix = sum(value * np.eye(STEPS, k=-age) for age, value in enumerate(EVENT.coefficients))
        for step in range(STEPS):
            if lost >> step & 1:
                matrix[step + 1 :, step] = 0
        found.append(np.linalg.norm(np.linalg.solve(matrix.T, coefficients(chosen))) * chosen.noise_stddev)
    assert 0.75 * min(found) < least_noise(chosen) <= min(found)
