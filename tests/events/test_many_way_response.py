"""K-ary randomized response against sums of its answers, dp_accounting, sampling and the verifier."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as dp_pld

from privctl.accounting import renyi
from privctl.accounting.events import row_of
from privctl.accounting.ledger import epsilon_bound, epsilon_floor, pure_epsilon
from privctl.cli import run
from privctl.domain.events import Batches, LaplaceNoise, Ledger, ManyWayResponse, SampledGaussian
from privctl.domain.guarantee import Adjacency
from verify.events import row_of as verified_row_of
from verify.recompute.ledger import epsilon_of
from verify.recompute.ledger import pure_epsilon as verified_pure_epsilon

EVENT = ManyWayResponse(epsilon=0.3, answers=5, steps=20)


def ledger_of(event: ManyWayResponse) -> Ledger:
    return Ledger(events=(event,))


def noise_parameter(event: ManyWayResponse) -> float:
    """The chance of a random answer, by which others know it."""
    return event.answers / (math.expm1(event.epsilon) + event.answers)


@pytest.mark.parametrize("answers", [2, 5, 1000])
def test_against_dp_accounting(answers: int) -> None:
    event = replace(EVENT, answers=answers)
    law = dp_pld.from_randomized_response(noise_parameter(event), answers, value_discretization_interval=1e-3)
    theirs = law.self_compose(20).get_epsilon_for_delta(1e-6)
    found = epsilon_bound(ledger_of(event), 1e-6)
    assert epsilon_floor(ledger_of(event), 1e-6) <= found <= theirs * (1 + 1e-5)
    assert found == pytest.approx(theirs, rel=5e-3)
    assert epsilon_of(ledger_of(event), 1e-6, (found,)).at_most(found)
    half = epsilon_bound(ledger_of(replace(event, epsilon=0.6)), 1e-6)
    assert half > 1.5 * theirs


def test_one_step_is_two_answers() -> None:
    """Delta is the true answer's chance less e^epsilon times that of the other; nothing else is more likely."""
    event = replace(EVENT, steps=1)
    true = math.exp(0.3) / (math.exp(0.3) + 4)
    delta = true - math.exp(0.1) * true * math.exp(-0.3)
    assert epsilon_bound(ledger_of(event), delta) == pytest.approx(0.1, rel=1e-8)
    assert epsilon_of(ledger_of(event), delta).upper == pytest.approx(0.1, rel=1e-10)


def test_renyi_divergences_against_all_answers() -> None:
    with mpmath.workdps(40):
        other = 1 / (mpmath.exp(mpmath.mpf("0.3")) + 4)
        p = [1 - 4 * other, *[other] * 4]
        q = [p[1], p[0], *p[2:]]
        exact = [
            float(mpmath.log(mpmath.fsum(a**order * b ** (1 - order) for a, b in zip(p, q, strict=True))) / (order - 1))
            for order in (mpmath.mpf(1.25), mpmath.mpf(8), mpmath.mpf(200))
        ]
    assert row_of(EVENT).divergences(EVENT, np.array([1.25, 8.0, 200.0])) == pytest.approx(exact, rel=1e-11)


def test_drawn_answers_have_the_law_that_is_composed() -> None:
    draw = verified_row_of(EVENT).draw(EVENT)
    assert draw is not None
    true = math.exp(0.3) / (math.exp(0.3) + 4)
    for present, losses in ((True, (0.3, -0.3)), (False, (-0.3, 0.3))):
        found = draw(np.random.default_rng(5), 100_000, present)
        assert (found == losses[0]).mean() == pytest.approx(true, abs=0.006)
        assert (found == losses[1]).mean() == pytest.approx(true * math.exp(-0.3), abs=0.006)


def test_it_composes_with_replacement_alone() -> None:
    fixed = SampledGaussian(noise_multiplier=2, sample_rate=0.1, batches=Batches.FIXED_SIZE)
    assert epsilon_bound(Ledger(events=(EVENT, fixed)), 1e-6) > epsilon_bound(ledger_of(EVENT), 1e-6)
    with pytest.raises(ValueError, match="compose only with events that do"):
        epsilon_bound(Ledger(events=(EVENT, LaplaceNoise(scale=3))), 1e-6)


def test_no_batches(capsys: pytest.CaptureFixture[str]) -> None:
    call = ["account", "--mechanism", "k-ary-response", "--epsilon", "1", "--answers", "4", "--delta", "1e-6"]
    assert run([*call, "--sample-rate", "0.1"]) == 2
    assert "k-ary-response is not known on batches" in capsys.readouterr().err


@pytest.mark.parametrize(("answers", "epsilon"), [(2, 0.3), (5, 0.3), (10, 2.0)])
def test_against_an_answer_at_random(answers: int, epsilon: float) -> None:
    """A record zeroed answers at random; dp_accounting's value for a record replaced by a special one."""
    event = ManyWayResponse(epsilon=epsilon, answers=answers, steps=20, neighbours=Adjacency.ZERO_OUT)
    relation = dp_pld.NeighborRel.REPLACE_SPECIAL
    law = dp_pld.from_randomized_response(
        noise_parameter(event), answers, neighboring_relation=relation, value_discretization_interval=1e-3
    )
    theirs = law.self_compose(20).get_epsilon_for_delta(1e-6)
    found = epsilon_bound(ledger_of(event), 1e-6)
    assert found == pytest.approx(theirs, rel=6e-3)
    assert epsilon_of(ledger_of(event), 1e-6, (found * 1.001,)).at_most(found * 1.001)
    another = replace(event, neighbours=Adjacency.REPLACE_ONE)
    assert found < epsilon_bound(ledger_of(another), 1e-6)
    # Planted: one order of the neighbours alone.
    true = math.exp(epsilon) / (math.expm1(epsilon) + answers)
    losses = 20 * math.log(answers * true), -20 * math.log(answers * true * math.exp(-epsilon))
    assert pure_epsilon(ledger_of(event)) == pytest.approx(max(losses))
    assert verified_pure_epsilon(ledger_of(event)).at_most(min(losses) * 0.99) is not True


def test_divergences_from_an_answer_at_random() -> None:
    """In the worse order, as dp_accounting's accountant has it for a special record (0.3 of 10 buckets)."""
    event = ManyWayResponse(
        epsilon=math.log1p(10 * 0.7 / 0.3), answers=10, neighbours=Adjacency.ZERO_OUT
    )  # fmt: skip
    found = renyi.renyi(event, [1.5, 2.5, 5, 50, 100, math.inf])
    known = [1.5030552584, 1.7801182479, 1.9091969257, 1.9814516799, 1.9846954517, 1.9878743482]
    assert found == pytest.approx(known, rel=1e-8)
