"""Judges claims on Poisson batches: refuted by an event, proved by Renyi divergences of integer orders."""

from __future__ import annotations

from fractions import Fraction

from privctl.domain.verdict import Outcome
from verify.papers.claim import Judgement
from verify.prove.enclosures.enclosure import decimal
from verify.prove.enclosures.functions import exp
from verify.prove.enclosures.sampled import LowerEvent, gaussian_ceiling, gaussian_floor
from verify.prove.library.numbers import NumericComparison, decide
from verify.prove.prover import Prover
from verify.prove.terms import real

#: The noise multiplier, sampling rate and number of steps.
Sampling = tuple[Fraction, Fraction, int]


def judge_floor(
    prover: Prover, name: str, words: str, noise: Sampling, delta: Fraction, epsilon: Fraction
) -> Judgement:
    """REFUTED by an event, or INCONCLUSIVE, since an unsuccessful search shows nothing."""
    floor = gaussian_floor(*noise, delta)
    if floor is None or floor.epsilon <= epsilon:
        return Judgement(outcome=Outcome.INCONCLUSIVE, reason=f"{words}: {search_result(floor)}")
    outcome, shows = decide(
        prover,
        NumericComparison(
            name=name,
            statement=f"{words}: P(S) - e^epsilon P'(S) is at most delta, for epsilon {epsilon} and the event S found.",
            boxes={"growth": exp(epsilon)},
            term=f"(- {real(floor.p)} (* growth {real(floor.q)}))",
            bound=delta,
        ),
    )
    if outcome is not Outcome.REFUTED:
        return Judgement(outcome=Outcome.INCONCLUSIVE, reason=shows)
    return Judgement(
        outcome=outcome,
        reason=f"{words}: an event exceeds it",
        holds=f"epsilon > {decimal(floor.epsilon, 6)} at delta {decimal(delta)}",
        witness=floor_text(floor),
    )


def judge_sampled(
    prover: Prover, name: str, words: str, noise: Sampling, delta: Fraction, epsilon: Fraction
) -> Judgement:
    """PROVED by the upper bound, REFUTED by the lower bound, INCONCLUSIVE between the two."""
    ceiling = gaussian_ceiling(*noise, delta)
    outcome, _ = decide(
        prover,
        NumericComparison(
            name=f"{name}-renyi",
            statement=f"{words}: the epsilon of its Renyi divergences is at most {epsilon}.",
            boxes={"epsilon": ceiling},
            term="epsilon",
            bound=epsilon,
        ),
    )
    holds = f"epsilon <= {decimal(ceiling.high, 6)} at delta {decimal(delta)}"
    if outcome is Outcome.PROVED:
        return Judgement(
            outcome=outcome,
            reason=f"{words}: by Renyi divergences of whole orders, one record more or less",
            holds=holds,
        )
    floor = judge_floor(prover, name, words, noise, delta, epsilon)
    if floor.outcome is Outcome.REFUTED:
        return floor
    return Judgement(
        outcome=Outcome.INCONCLUSIVE,
        reason=f"{floor.reason}, Renyi divergences show {decimal(ceiling.high, 6)}; the claim lies between",
        holds=holds,
    )


def search_result(floor: LowerEvent | None) -> str:
    """A clause on the result of a search for an event that does not refute the claim."""
    if floor is None:
        return "no telling event was found"
    return f"the most telling event that was found shows epsilon > {decimal(floor.epsilon, 6)} only"


def floor_text(floor: LowerEvent) -> str:
    """The event in a form that can be simulated or recomputed."""
    return (
        f"S: the sum over steps of floor((loss - {floor.least:.6g}) / {floor.width:.6g}) is {floor.score} or more; "
        f"P(S) >= {decimal(floor.p, 8)}, P'(S) <= {decimal(floor.q, 8)}"
    )
