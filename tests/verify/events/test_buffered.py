"""Noise by buffers as verify sees it: simulated losses, half of the noise, and how weights move by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from audits.claims import with_half_noise
from privctl.accounting.buffered_search import buffered_matrix
from privctl.domain.events import BufferedGaussian, Ledger
from privctl.domain.mechanism import Optimizer
from tests.accounting.test_buffered import dense
from tests.verify.events.test_banded import facts
from verify.events.buffered_gaussian import column, toy_training
from verify.recompute import ledger
from verify.simulate.bounds import black_box
from verify.simulate.losses import ledger_losses, sample
from verify.weights.moves import coefficients, noise_coefficients

DELTA, LEVEL = 1e-3, 1e-3
STEPS, LENGTH = 10, 4
MATRIX = buffered_matrix(2, LENGTH, STEPS)
EVENT = BufferedGaussian(
    noise_multiplier=1.5, first=MATRIX.first, weights=MATRIX.weights, decays=MATRIX.decays, sample_rate=1 / LENGTH,
    steps=STEPS,
)  # fmt: skip


def test_a_run_with_its_noise_passes_and_one_with_half_of_it_does_not() -> None:
    known = ledger.epsilon_of(Ledger(events=(EVENT,)), DELTA)
    right = sample(toy_training(EVENT, STEPS), 1, 0.0)
    wrong = sample(toy_training(EVENT, STEPS, noise=0.5), 1, 0.0)
    assert black_box(right, known.upper, LEVEL).lower <= DELTA
    assert black_box(wrong, known.upper, LEVEL).lower > DELTA


def test_losses_of_the_whole_are_those_of_the_steps() -> None:
    whole = ledger_losses(Ledger(events=(EVENT,)))
    assert whole is not None
    steps = sample(toy_training(EVENT, STEPS), 2, 0.0).present
    known = sample(whole, 3, 0.0).present
    for share in (0.1, 0.5, 0.9, 0.99):
        assert np.quantile(steps, share) == pytest.approx(np.quantile(known, share), abs=0.04)


def test_an_audit_has_half_of_its_noise_to_tell_from_it() -> None:
    (halved,) = with_half_noise(Ledger(events=(EVENT,))).events
    assert halved == replace(EVENT, noise_multiplier=0.75)


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.MOMENTUM])
def test_weights_move_by_its_noise_as_the_inverse_matrix_says(optimizer: Optimizer) -> None:
    chosen = facts(tuple(column(MATRIX.first, MATRIX.weights, MATRIX.decays, STEPS)), optimizer)
    expected = np.linalg.inv(dense(MATRIX, STEPS)).T @ coefficients(chosen)
    assert noise_coefficients(chosen) == pytest.approx(expected, rel=1e-9)
