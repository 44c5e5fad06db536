"""The theorems: each is proved, and a sibling just beyond its boundary is refuted by numbers that check."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest

from privctl.domain.verdict import Outcome
from tests.verify.prove import lemmas
from verify.prove.enclosures import gaussian as numbers
from verify.prove.enclosures.information import divergence
from verify.prove.library import gaussian, information, quantizer, training, weights
from verify.prove.library.numbers import NumericComparison, decide
from verify.prove.library.programs import WeightProgram, dual_bound, no_better, solve
from verify.prove.prover import Prover
from verify.prove.theorem import SolverFinding, Theorem

#: What is true, and what is just not.
SIBLINGS = [
    (lemmas.half_line(), lemmas.half_line_misplaced()),
    (lemmas.growing_with_the_shift(), lemmas.growing_with_the_shift(1)),
    (lemmas.convex_visit(), lemmas.convex_visit(1)),
    (lemmas.convex_trajectory(), lemmas.convex_trajectory(1)),
    (weights.motion_without_n(), weights.published_shift_bounds_motion()),
    (weights.coordinates_bound_norm(1), weights.coordinates_bound_norm(2)),
    (weights.corrected_exponent(), weights.printed_exponent()),
    (weights.corrected_exponent(), weights.printed_bound()),
    (information.fire_meets_budget(), information.fire_meets_budget(Fraction(1001, 1000))),
    (information.fire_is_largest(), information.fire_is_largest(above=False)),
    (information.fire_is_probability(), information.fire_always_probability()),
    (information.response_on_batch(), information.response_on_batch(1)),
    (information.divergence_grows(), lemmas.divergence_grows_everywhere()),
    (quantizer.unbiased(), quantizer.nearest_unbiased()),
    (quantizer.variance_at_most(16), quantizer.variance_at_most(17)),
    (quantizer.clipped_aggregate(2), quantizer.clipped_aggregate(1)),
    (training.uses_apart(), training.uses_that_meet()),
    (training.equal_uses_are_worst(), training.equal_uses_are_worst(inner=False)),
    (training.sum_and_count(), training.sum_and_count(centred=False)),
    (training.directions_clipped(), training.directions_clipped(together=False)),
    (training.public_gradient(), training.public_gradient(fixed=False)),
]


@pytest.fixture(scope="module")
def prover() -> Iterator[Prover]:
    with Prover() as prover:
        yield prover


@pytest.mark.parametrize(("theorem", "sibling"), SIBLINGS, ids=lambda each: each.name)
def test_a_theorem_is_proved_and_its_sibling_refuted(prover: Prover, theorem: Theorem, sibling: Theorem) -> None:
    proved, refuted = prover.prove(theorem), prover.prove(sibling)
    assert proved.finding is SolverFinding.PROVED, proved.reason
    assert refuted.finding is SolverFinding.REFUTED, refuted.reason
    assert refuted.checked, "the counterexample was put in again"
    assert refuted.witness


#: epsilon, delta, squared shift, verdict, delta: the table of proofs, by an implementation that is not ours.
GAUSSIANS = [
    ("1", "1e-6", 1 / Fraction("4.225") ** 2, Outcome.PROVED, 9.98436381160e-7),
    ("1", "1e-6", 1 / Fraction("4.224") ** 2, Outcome.REFUTED, 1.00331355902e-6),
    ("50", "1e-5", Fraction(1000, 25), Outcome.PROVED, 5.85610378206e-7),
    ("8", "1e-5", Fraction(1000, 25), Outcome.REFUTED, 0.956880730956),
    ("1", "0.1269367375066439459", Fraction(1), Outcome.PROVED, 0.1269367375066439458),
    ("1", "0.1269367375066439457", Fraction(1), Outcome.REFUTED, 0.1269367375066439458),
]


@pytest.mark.parametrize(("epsilon", "delta", "squared", "outcome", "value"), GAUSSIANS)
def test_gaussian_noise(
    prover: Prover, epsilon: str, delta: str, squared: Fraction, outcome: Outcome, value: float
) -> None:
    event = numbers.event(Fraction(epsilon), squared)
    assert float(event.delta.low) == pytest.approx(value, rel=1e-11)
    assert decide(prover, gaussian.delta_bound("noise", event, Fraction(delta), "it"))[0] is outcome


def test_certified_least_noise_is_the_boundary(prover: Prover) -> None:
    least = numbers.minimal_multiplier(Fraction(1), Fraction(1, 10**6))
    assert float(least.high) == pytest.approx(4.2246788893, abs=1e-9)
    for sigma, outcome in ((least.high, Outcome.PROVED), (least.low, Outcome.REFUTED)):
        bound = gaussian.delta_bound("least", numbers.event(Fraction(1), 1 / sigma**2), Fraction(1, 10**6), "it")
        assert decide(prover, bound)[0] is outcome


def test_too_close_to_tell(prover: Prover) -> None:
    box = divergence(Fraction(1, 10), Fraction(1, 1000))
    middle = (box.low + box.high) / 2
    comparison = NumericComparison(name="close", statement="it", boxes={"d": box}, term="d", bound=middle)
    outcome, reason = decide(prover, comparison)
    assert outcome is Outcome.INCONCLUSIVE
    assert "too close" in reason


@pytest.mark.parametrize(
    ("nats", "outcome"), [("0.3657", "REFUTED"), ("0.3665930048", "REFUTED"), ("0.36660", "PROVED")]
)
def test_fano_boundary(prover: Prover, nats: str, outcome: str) -> None:
    """kl(0.1, 0.001) = 0.366593004807."""
    box = divergence(Fraction(1, 10), Fraction(1, 1000))
    comparison = NumericComparison(name="fano", statement="it", boxes={"d": box}, term="d", bound=Fraction(nats))
    assert decide(prover, comparison)[0] == outcome


def program(examples: int, secrets: int) -> WeightProgram:
    """Overlapping secrets from a small multiplicative generator, with budgets of 0.3 to 1.5."""
    state, sets = 12345, []
    for _ in range(secrets):
        members = set()
        while len(members) < 12:
            state = state * 48271 % 2147483647
            members.add(state % examples)
        sets.append(tuple(sorted(members)))
    return WeightProgram(
        examples=examples, sets=tuple(sets), budgets=tuple(Fraction(3 + 3 * (j % 5), 10) for j in range(secrets))
    )


def test_linear_program_certificate(prover: Prover) -> None:
    """190 examples and 30 secrets: no weights beat the prices' bound, and some beat any lower one."""
    linear_program = program(190, 30)
    found = solve(linear_program)
    assert found.value <= found.bound
    assert float(found.bound - found.value) < 1e-8 * float(found.bound)
    proved = prover.prove(no_better(linear_program, found.bound))
    assert proved.finding is SolverFinding.PROVED
    refuted = prover.prove(no_better(linear_program, found.value - Fraction(1, 1000), "lower"))
    assert refuted.finding is SolverFinding.REFUTED
    assert refuted.checked


def test_prices_below_zero_prove_nothing() -> None:
    linear_program = program(30, 2)
    with pytest.raises(ValueError, match="below 0"):
        dual_bound(linear_program, (Fraction(-1), Fraction(1)))
