"""Choices among candidates against sums over their probabilities, dp_accounting and the verifier."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from flint import arb
from scipy.integrate import quad

from privctl.accounting import renyi
from privctl.accounting.ledger import delta_bound, epsilon_bound, epsilon_floor, pure_epsilon
from privctl.domain.events import EpsilonDeltaDp, Event, ExponentialChoice, LaplaceNoise, Ledger
from tests.few import few
from verify.events import row_of as verified_row_of
from verify.recompute.ledger import epsilon_of
from verify.recompute.ledger import pure_epsilon as verified_pure_epsilon

EVENT = ExponentialChoice(epsilon=0.5, steps=20)


def ledger_of(event: Event) -> Ledger:
    return Ledger(events=(event,))


def test_choices_compose_to_more_than_two_candidates_and_less_than_pure_dp() -> None:
    """Between two candidates of opposite scores and any mechanism of this epsilon; half the epsilon is refuted."""
    found, least = epsilon_bound(ledger_of(EVENT), 1e-6), epsilon_floor(ledger_of(EVENT), 1e-6)
    assert least <= found < 0.75 * epsilon_bound(ledger_of(EpsilonDeltaDp(epsilon=0.5, steps=20)), 1e-6)
    assert epsilon_of(ledger_of(EVENT), 1e-6, (found,)).at_most(found)
    two = epsilon_bound(ledger_of(EpsilonDeltaDp(epsilon=0.25, steps=20)), 1e-6)
    assert two < found
    half = epsilon_bound(ledger_of(replace(EVENT, epsilon=0.25)), 1e-6)
    assert epsilon_of(ledger_of(EVENT), 1e-6, (half,)).at_most(half) is False


@pytest.mark.parametrize("epsilon", few([1.0, 6.0], 0))
def test_one_choice_is_the_worst_of_two_outcomes(epsilon: float) -> None:
    """Delta is the largest, over t, of outcomes with losses t and t - epsilon; here over many t."""
    event = ExponentialChoice(epsilon=epsilon)
    t = np.linspace(0, epsilon, 20_001)
    chance = -np.expm1(t - epsilon) / -math.expm1(-epsilon)
    for x in (0.0, 0.3 * epsilon, 0.9 * epsilon):
        delta = float((chance * np.maximum(-np.expm1(x - t), 0)).max())
        assert delta_bound(ledger_of(event), x, near=max(delta, 1e-9)) == pytest.approx(delta, rel=2e-3)
    once = verified_row_of(event).once(event)
    assert once is not None
    assert float(once(arb(math.exp(0.3 * epsilon)))) == pytest.approx(
        (1 - math.exp(-0.35 * epsilon)) ** 2 / -math.expm1(-epsilon)
    )
    assert pure_epsilon(ledger_of(replace(event, steps=3))) == pytest.approx(3 * epsilon)
    assert verified_pure_epsilon(ledger_of(replace(event, steps=3))).upper == pytest.approx(3 * epsilon)


def test_divergences_are_those_of_the_dominating_pair() -> None:
    """Those of the pair, by integration; none is below the largest over t, 0.1233 at order 1 (Dong et al. 2020)."""
    event = ExponentialChoice(epsilon=1.0)
    orders = [1.0, 1.5, 2.0, 10.0, 1000.0, math.inf]
    found = renyi.renyi(event, orders)
    t = np.linspace(1e-9, 1 - 1e-9, 20_001)
    chance = -np.expm1(t - 1) / -math.expm1(-1)
    assert found[0] > 0.123301561
    for alpha, value in zip(orders[1:5], found[1:5], strict=True):
        moment, _ = quad(
            lambda x, alpha=alpha: math.exp((alpha - 1) * (x - 1) + (x - 1) / 2) / 2 / -math.expm1(-1), -1, 1
        )
        assert value == pytest.approx(math.log(moment) / (alpha - 1) + 1, rel=1e-9)
        of_two = np.logaddexp(np.log(chance) + (alpha - 1) * t, np.log1p(-chance) + (alpha - 1) * (t - 1))
        assert value >= float(of_two.max()) / (alpha - 1)
    assert found[5] == pytest.approx(1.0, rel=1e-8)
    assert (np.diff(found) > 0).all()


def test_sampled_losses() -> None:
    draw = verified_row_of(EVENT).draw(replace(EVENT, epsilon=2.0))
    assert draw is not None
    rng = np.random.default_rng(5)
    present, absent = (draw(rng, 200_000, there) for there in (True, False))
    for x in (0.0, 0.8):
        delta = float((present > x).mean() - math.exp(x) * (absent > x).mean())
        assert delta == pytest.approx((1 - math.exp((x - 2) / 2)) ** 2 / -math.expm1(-2), abs=0.01)
        assert abs(delta - (1 - math.exp((x - 4) / 2)) ** 2 / -math.expm1(-4)) > 0.1


def _of_exponential(scores: tuple[float, ...], epsilon: float) -> np.ndarray:
    weights = np.exp(epsilon * np.array(scores) / 2)
    return np.asarray(weights / weights.sum())


def _of_permute_and_flip(scores: tuple[float, ...], epsilon: float) -> np.ndarray:
    """Candidates in every order; the first whose coin falls right, scores counted from the best one."""
    accepted = np.exp(epsilon * (np.array(scores) - max(scores)) / 2)
    found = np.zeros(len(scores))
    orders = list(itertools.permutations(range(len(scores))))
    for order in orders:
        left = 1.0
        for candidate in order:
            found[candidate] += left * accepted[candidate]
            left *= 1 - accepted[candidate]
    return found / len(orders)


@pytest.mark.parametrize("kind", ["exponential", "permute-and-flip"])
@pytest.mark.parametrize("epsilon", [0.4, 1.5])
def test_no_scores_exceed_the_bound(kind: str, epsilon: float) -> None:
    """Scores of four candidates, each moved by one at most; what bounds the one choice is too small for the other."""
    law = _of_exponential if kind == "exponential" else _of_permute_and_flip
    event: Event = ExponentialChoice(epsilon=epsilon) if kind == "exponential" else LaplaceNoise(scale=1 / epsilon)
    exceeded = False
    points = [0.0, 0.3 * epsilon, 0.8 * epsilon]
    bounds = [delta_bound(ledger_of(event), x, near=1e-2) for x in points]
    smaller = [delta_bound(ledger_of(ExponentialChoice(epsilon=epsilon)), x, near=1e-2) for x in points]
    for gaps in itertools.product((0.0, 0.5, 1.0, 2.0), repeat=3):
        scores = (0.0, *(-gap for gap in gaps))
        for moves in itertools.product((-1.0, 1.0), repeat=4):
            p, q = law(scores, epsilon), law(tuple(s + m for s, m in zip(scores, moves, strict=True)), epsilon)
            for x, bound, less in zip(points, bounds, smaller, strict=True):
                delta = float(np.maximum(p - math.exp(x) * q, 0).sum())
                assert delta <= bound * (1 + 1e-9)
                exceeded |= delta > less * (1 + 1e-6)
    assert exceeded is (kind == "permute-and-flip")
