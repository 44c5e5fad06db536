"""Batches drawn with replacement against dp_accounting, mixtures written out, and the verifier."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dp_pld
from scipy.stats import binom, norm

from privctl.accounting.ledger import COARSE, delta_bound, epsilon_bound, epsilon_floor
from privctl.cli import run
from privctl.domain.events import Batches, Event, Ledger, RedrawnGaussian, SampledGaussian
from privctl.domain.guarantee import Adjacency
from tests.few import few
from verify.events import row_of as verified_row_of
from verify.losses.cells import CellReach
from verify.recompute.ledger import epsilon_of

EVENT = RedrawnGaussian(noise_multiplier=4, examples=500, draws=10, steps=50)
REPLACED = replace(EVENT, steps=5, neighbours=Adjacency.REPLACE_ONE)
#: Epsilon of EVENT at 1e-6 by dp_accounting 0.6.0's mixture of shifts 2 j with binomial weights.
KNOWN = 0.3507525941


def ledger_of(event: Event) -> Ledger:
    return Ledger(events=(event,))


@pytest.mark.slow
def test_the_known_value_is_dp_accountings() -> None:
    sizes = list(range(EVENT.draws + 1))
    chances = [binom.pmf(j, EVENT.draws, 1 / EVENT.examples) for j in sizes]
    law = dp_pld.from_mixture_gaussian_mechanism(
        4.0, [2.0 * j for j in sizes], chances, value_discretization_interval=1e-4
    )
    assert law.self_compose(50).get_epsilon_for_delta(1e-6) == pytest.approx(KNOWN, rel=1e-6)


def test_a_record_added_or_removed() -> None:
    found = epsilon_bound(ledger_of(EVENT), 1e-6)
    assert epsilon_floor(ledger_of(EVENT), 1e-6) <= found == pytest.approx(KNOWN, rel=2e-3)
    assert epsilon_of(ledger_of(EVENT), 1e-6, (found * 1.001,)).at_most(found * 1.001)
    # Planted: half the noise, and a record that moves the sum by one clip norm a draw, as if its place stayed empty.
    half = replace(EVENT, noise_multiplier=2)
    assert epsilon_of(ledger_of(half), 1e-6, (found,)).at_most(found) is False
    assert epsilon_bound(ledger_of(replace(EVENT, noise_multiplier=8)), 1e-6, precision=COARSE) < 0.8 * KNOWN


def test_a_record_replaced() -> None:
    """No less than for a record removed, whose data are a case of it; and not far above."""
    found = epsilon_bound(ledger_of(REPLACED), 1e-6, precision=COARSE)
    removed = epsilon_bound(ledger_of(replace(EVENT, steps=5)), 1e-6, precision=COARSE)
    assert removed < found < 1.3 * removed
    assert epsilon_of(ledger_of(REPLACED), 1e-6, (found * 1.01,)).at_most(found * 1.01)
    assert epsilon_bound(ledger_of(replace(REPLACED, neighbours=Adjacency.ZERO_OUT)), 1e-6, precision=COARSE) == found
    # Without replacement a record comes once at most, which tells less.
    fixed = SampledGaussian(noise_multiplier=4, sample_rate=0.02, steps=5, batches=Batches.FIXED_SIZE)
    assert epsilon_bound(ledger_of(fixed), 1e-6, precision=COARSE) < found


def test_a_record_replaced_by_one_like_the_others_shows_what_removing_it_does() -> None:
    removed = epsilon_floor(ledger_of(replace(EVENT, steps=5)), 1e-6) * (1 - 1e-3)
    assert epsilon_of(ledger_of(REPLACED), 1e-6, (removed,)).at_most(removed) is False


@pytest.mark.slow
def test_half_the_noise_is_refuted_where_a_record_is_replaced() -> None:
    found = epsilon_bound(ledger_of(REPLACED), 1e-6)
    assert epsilon_of(ledger_of(replace(REPLACED, noise_multiplier=2)), 1e-6, (found,)).at_most(found) is False


_GRID = np.linspace(-30, 30, 12_001)


def _attained(event: RedrawnGaussian, own: float, other: float | None, others: list[float], epsilon: float) -> float:
    """Delta of one step in the worse order for these contributions, over all batches: sums on a grid.

    ``other`` stands in the record's place among the neighbour's; None: it is missing there.
    """
    densities = []
    for data in ([own, *others], others if other is None else [other, *others]):
        sums = np.array([sum(batch) for batch in product(data, repeat=event.draws)])
        values, counts = np.unique(sums, return_counts=True)
        densities.append(
            sum(c / len(sums) * norm.pdf(_GRID, v, event.noise_multiplier) for v, c in zip(values, counts, strict=True))
        )
    p, q = (density * (_GRID[1] - _GRID[0]) for density in densities)
    return float(max(np.maximum(p - math.exp(epsilon) * q, 0).sum(), np.maximum(q - math.exp(epsilon) * p, 0).sum()))


@pytest.mark.parametrize("noise", [0.7, 2.0])
def test_no_data_exceed_the_bound_of_a_step(noise: float) -> None:
    """All batches of small data sets; those with opposite others attain the bound for a record removed."""
    event = RedrawnGaussian(noise_multiplier=noise, examples=4, draws=3)
    for epsilon in (0.0, 0.3, 1.0):
        removed = delta_bound(ledger_of(event), epsilon, near=1e-2)
        worst = _attained(event, 1, None, [-1, -1, -1], epsilon)
        assert worst <= removed * (1 + 1e-5)  # the sum on a grid is that far off
        assert worst == pytest.approx(removed, rel=1e-2)
        mixed = replace(event, neighbours=Adjacency.REPLACE_ONE)
        replaced = delta_bound(ledger_of(mixed), epsilon, near=1e-2)
        for other, others in product((-1.0, 0.0), ([-1, -1, -1], [1, -1, 0], [0, 0, 0], [1, 1, -1])):
            found = _attained(event, 1, other, others, epsilon)
            assert found <= replaced * (1 + 1e-5)


ZEROED = RedrawnGaussian(noise_multiplier=2, examples=4, draws=3, neighbours=Adjacency.ZERO_OUT)


@pytest.mark.parametrize("epsilon", few([0.5, 1.0], 0))
def test_what_zeroing_shows_is_what_opposite_others_show(epsilon: float) -> None:
    """The verifier's cells from below against the same sums."""
    opposite, silent = (_attained(ZEROED, 1, 0, [other] * 3, epsilon) for other in (-1.0, 0.0))
    assert _delta_from_below(ZEROED, epsilon) == pytest.approx(opposite, rel=2e-3)
    assert opposite > 1.3 * silent


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 1.0])
def test_what_zeroing_shows_is_within_the_bound(epsilon: float) -> None:
    assert _delta_from_below(ZEROED, epsilon) <= delta_bound(ledger_of(ZEROED), epsilon, near=1e-2)


def _delta_from_below(event: RedrawnGaussian, epsilon: float) -> float:
    cells = verified_row_of(event).cells(event, True)(1e-4, CellReach(-40))
    orders = (cells.p, cells.q), (cells.q, cells.p)
    return float(max(np.maximum(p - math.exp(epsilon) * q, 0).sum() for p, q in orders))


def test_places_filled_one_by_one() -> None:
    """Losses of simulated batches have the delta of the bound, and not that with half the noise."""
    event = RedrawnGaussian(noise_multiplier=2, examples=20, draws=5)
    draw = verified_row_of(event).draw(event)
    assert draw is not None
    rng = np.random.default_rng(4)
    present, absent = (draw(rng, 200_000, there) for there in (True, False))
    delta = float((present > 0.5).mean() - math.exp(0.5) * (absent > 0.5).mean())
    assert delta == pytest.approx(delta_bound(ledger_of(event), 0.5, near=1e-2), abs=0.006)
    assert delta < delta_bound(ledger_of(replace(event, noise_multiplier=1)), 0.5, near=1e-2) - 0.02


def test_a_plan_needs_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["account", "--mechanism", "with-replacement", "--epsilon", "3", "--delta", "1e-6"]) == 2
    assert "needs --dataset-size, --batch-size and --epochs" in capsys.readouterr().err
