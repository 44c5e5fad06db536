"""Functions that judge claims, shared by several papers."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from privctl.domain.verdict import Outcome
from verify.papers.claim import Judgement
from verify.prove.enclosures import gaussian
from verify.prove.enclosures.drawn import DrawnEvent
from verify.prove.enclosures.enclosure import Interval, Rational, ball, decimal, enclose
from verify.prove.enclosures.functions import exp
from verify.prove.enclosures.maxima import DistinguishingEvent
from verify.prove.library.gaussian import delta_bound
from verify.prove.library.numbers import NumericComparison, decide
from verify.prove.prover import Prover
from verify.prove.theorem import Proof, SolverFinding, Theorem

#: The largest squared shift for which epsilon is computed; beyond it, epsilon is about mu^2 / 2 and useless.
_LARGEST_SHIFT = 10**8


def gaussian_claim(
    name: str, words: str, epsilon: Rational, delta: Fraction, squared_shift: Fraction
) -> Callable[[Prover], Judgement]:
    """A judge of the claim that Gaussian noise with this shift is (``epsilon``, ``delta``)-DP."""
    return lambda prover: judge_gaussian(prover, name, words, epsilon, delta, squared_shift)


def judge_gaussian(
    prover: Prover, name: str, words: str, epsilon: Rational, delta: Fraction, squared_shift: Fraction
) -> Judgement:
    """The verdict on (``epsilon``, ``delta``)-DP of the Gaussian mechanism, by its optimal event."""
    if squared_shift == 0:
        return Judgement(
            outcome=Outcome.PROVED, reason=f"{words}: nothing moves, so nothing is told", holds="epsilon 0"
        )
    event = gaussian.event(epsilon, squared_shift)
    outcome, shows = decide(prover, delta_bound(name, event, delta, words))
    if squared_shift <= _LARGEST_SHIFT:
        true = gaussian.epsilon(delta, squared_shift, digits=12)
        holds = f"epsilon {decimal(true.high)} at delta {decimal(delta)}"
    else:
        holds = f"a privacy loss of {decimal(gaussian.mean_loss(squared_shift), 6)} on average"
    if outcome is Outcome.REFUTED:
        return Judgement(
            outcome=outcome,
            reason=f"{words}: delta is {event.delta}, above {decimal(delta)}",
            holds=holds,
            witness=event_text(event),
        )
    if outcome is Outcome.INCONCLUSIVE:
        return Judgement(outcome=outcome, reason=f"{words}: {shows}", holds=holds)
    return Judgement(
        outcome=outcome, reason=f"{words}: delta is {bound_text(event.delta)}, at most {decimal(delta)}", holds=holds
    )


def judge_event(
    prover: Prover,
    name: str,
    words: str,
    event: DistinguishingEvent,
    delta: Fraction,
    epsilon: Rational,
    *,
    is_optimal: bool = False,
) -> Judgement:
    """REFUTED if ``event`` is more likely than (``epsilon``, ``delta``)-DP allows, otherwise INCONCLUSIVE.

    If the event is known to be the optimal one, ``is_optimal``, the claim is PROVED instead of INCONCLUSIVE.
    """
    outcome, shows = decide(
        prover,
        NumericComparison(
            name=name,
            statement=f"{words}: P(S) - e^epsilon P'(S) is at most {delta}, for epsilon {epsilon} and the event S.",
            boxes={"p": event.p, "q": event.q, "growth": exp(epsilon)},
            term="(- p (* growth q))",
            bound=delta,
        ),
    )
    if outcome is Outcome.PROVED and is_optimal:
        return Judgement(
            outcome=outcome,
            reason=f"{words}: the most telling event does not exceed it",
            holds=f"epsilon <= {decimal(epsilon)} at delta {decimal(delta)}",
            witness=f"{event.text}; P(S) = {approx(event.p)}, P'(S) = {approx(event.q)}",
        )
    if outcome is not Outcome.REFUTED:
        return Judgement(outcome=Outcome.INCONCLUSIVE, reason=f"{words}: the event tried shows nothing; {shows}")
    least = enclose(lambda: ((ball(event.p.low) - ball(delta)) / ball(event.q.high)).log())
    return Judgement(
        outcome=outcome,
        reason=f"{words}: an event exceeds epsilon {decimal(epsilon, 6)} at delta {decimal(delta)}",
        holds=f"epsilon > {decimal(least.low, 6)} at delta {decimal(delta)}",
        witness=f"{event.text}; P(S) = {approx(event.p)}, P'(S) = {approx(event.q)}",
    )


def judge_drawn(
    prover: Prover, name: str, words: str, event: DrawnEvent, delta: Fraction, epsilon: Rational
) -> Judgement:
    """The verdict on (``epsilon``, ``delta``)-DP of one noisy sum in which a record may be drawn several times."""
    above_cut = DistinguishingEvent(p=event.p, q=event.q, text=f"S: the sum is above {decimal(event.cut, 7)}")
    refuted = judge_event(prover, name, words, above_cut, delta, epsilon)
    if refuted.outcome is Outcome.REFUTED:
        return refuted
    outcome, shows = decide(
        prover,
        NumericComparison(
            name=f"{name}-ratio",
            statement=f"{words}: the likelihood ratio at the cut is at most e^{epsilon}.",
            boxes={"ratio": event.ratio, "growth": exp(epsilon)},
            term="(- ratio growth)",
            bound=Fraction(0),
        ),
    )
    if outcome is Outcome.PROVED:
        outcome, shows = decide(
            prover,
            NumericComparison(
                name=f"{name}-delta",
                statement=f"{words}: delta at the log of that ratio is at most {delta}.",
                boxes={"p": event.p, "q": event.q, "ratio": event.ratio},
                term="(- p (* ratio q))",
                bound=delta,
            ),
        )
    if outcome is not Outcome.PROVED:
        return Judgement(outcome=Outcome.INCONCLUSIVE, reason=f"{words}: {shows}")
    return Judgement(
        outcome=outcome,
        reason=f"{words}: no event tells more than a sum above a cut",
        holds=f"epsilon <= {decimal(epsilon)} at delta {decimal(delta)}",
        witness=f"{above_cut.text}; P(S) = {approx(event.p)}, P'(S) = {approx(event.q)}",
    )


def judge_number(
    prover: Prover, name: str, words: str, found: Interval, bound: Fraction, delta: Fraction | None
) -> Judgement:
    """Whether the number ``found``, an epsilon at ``delta`` unless that is None, is at most ``bound``."""
    outcome, shows = decide(
        prover,
        NumericComparison(
            name=name, statement=f"{words}: at most {bound}.", boxes={"found": found}, term="found", bound=bound
        ),
    )
    holds = (
        f"{decimal(found.high, 6)}"
        if delta is None
        else f"epsilon <= {decimal(found.high, 6)} at delta {decimal(delta)}"
    )
    reason = shows if outcome is Outcome.INCONCLUSIVE else f"it is {approx(found)}"
    return Judgement(outcome=outcome, reason=f"{words}: {reason}", holds=holds)


def event_text(event: gaussian.GaussianEvent) -> str:
    """The event in a form that can be checked with a table of the normal distribution."""
    return (
        f"S = {{(y - w)/sigma > {approx(event.threshold, 7)}}}: P(S) = {approx(event.p)}, P'(S) = {approx(event.q)}"
        f", and P(S) - e^epsilon P'(S) = {approx(event.delta)}"
    )


def theorem_claim(
    theorem: Theorem, *, holds: str = "", because: str = "", correct: Theorem | None = None
) -> Callable[[Prover], Judgement]:
    """A judge of a claim that is one theorem; ``holds`` is stated only if ``correct``, the corrected one, is proved."""

    def judge(prover: Prover) -> Judgement:
        proof = prover.prove(theorem)
        right = prover.prove(correct) if correct is not None else None
        if right is not None and right.finding is not SolverFinding.PROVED:
            return Judgement(outcome=Outcome.INCONCLUSIVE, reason=f"{right.theorem.name}: {right.reason}")
        return judgement_of(proof, because=because, holds=holds)

    return judge


def judgement_of(proof: Proof, *, because: str = "", holds: str = "") -> Judgement:
    """The judgement that follows from a proof."""
    return Judgement(
        outcome=proof.outcome,
        reason=because or proof.reason
        if proof.finding in (SolverFinding.PROVED, SolverFinding.REFUTED)
        else proof.reason,
        holds=holds,
        witness=proof.witness,
    )


def agrees(printed: str, computed: Interval) -> bool:
    """Whether a printed decimal is the number, up to its last digit or the fourteenth, the precision of a double."""
    value = Fraction(printed)
    mantissa, _, exponent = printed.lower().partition("e")
    unit = Fraction(10) ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    slack = max(unit, abs(value) / 10**14)
    return value - slack <= computed.low and computed.high <= value + slack


def bound_text(number: Interval) -> str:
    """A number, or an upper bound on it if its sign is unknown."""
    return f"below {decimal(number.high, 2)}" if number.low <= 0 < number.high else str(number)


def approx(number: Interval, digits: int = 9) -> str:
    """The midpoint of an enclosure as text; near 0 an upper bound, and near 1 the distance from 1."""
    middle = (number.low + number.high) / 2
    if number.low <= 0 <= number.high:
        return "0" if number.low < 0 or number.high == 0 else f"below {decimal(number.high, 2)}"
    if 0 < 1 - middle < Fraction(1, 10**digits):
        return f"1 - {decimal(1 - middle, 3)}"
    return decimal(middle, digits)
