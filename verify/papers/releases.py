"""Releases other than training: integer-valued noise, randomized response, selection, and other notions of privacy.

Canonne, Kamath and Steinke 2020; Ghosh, Roughgarden and Sundararajan 2012; Kairouz, Bonawitz and Ramage 2016; Bun and
Steinke 2016; Dong, Durfee and Rogers 2020; Cesar and Rogers 2021; Kairouz, Oh and Viswanath 2015.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING

from privctl.domain.report import Omission
from privctl.domain.verdict import Outcome
from verify.papers.claim import Judgement, Paper, PublishedClaim
from verify.papers.judging import approx, judge_event, judge_gaussian, judge_number
from verify.prove.enclosures import composition, gaussian, integers
from verify.prove.enclosures.enclosure import Interval, Rational, ball, decimal, enclose
from verify.prove.enclosures.functions import log
from verify.prove.enclosures.maxima import DistinguishingEvent
from verify.prove.prover import Prover

if TYPE_CHECKING:
    from flint import arb

_DELTA = Fraction(1, 10**5)
_RHO = Fraction(1, 10)
#: The number of choices, and the range of the losses of each.
_CHOICES, _RANGE = 50, Fraction(1, 10)
_PAIRS = composition.RepeatedRelease(epsilon=Fraction(1, 10), delta=Fraction(1, 10**8), count=100)


def zcdp_epsilon(rho: Rational, delta: Rational) -> Interval:
    """An epsilon at ``delta`` for rho-zCDP, from Renyi divergences rho a of integer orders a.

    Conversion of Canonne, Kamath and Steinke 2020, proposition 12.
    """

    def bound(order: int) -> Interval:
        return enclose(
            lambda: (
                ball(rho) * order
                + (1 - ball(Fraction(1, order))).log()
                - (ball(Fraction(delta)) * order).log() / (order - 1)
            )
        )

    return min((bound(order) for order in range(2, 200)), key=lambda enclosure: enclosure.high)


def majority(count: int, loss: Rational, least: int) -> DistinguishingEvent:
    """The event that ``least`` or more of ``count`` bits are true, where each is true with odds e^``loss``."""
    ways = [math.comb(count, k) for k in range(least, count + 1)]

    def chance(sign: int) -> Interval:
        def sums() -> arb:
            odds = (sign * ball(loss)).exp()
            return sum((w * odds ** (least + i) for i, w in enumerate(ways)), ball(0)) / (1 + odds) ** count

        return enclose(sums)

    return DistinguishingEvent(
        p=chance(1), q=chance(-1), text=f"S: {least} or more of {count} choices are the one, not the other"
    )


def _counts_of_people(prover: Prover) -> Judgement:
    words = "discrete Gaussian of standard deviation 4 on a count that moves by 2"
    epsilon = Fraction("1.989")
    return judge_event(
        prover,
        "discrete-gaussian",
        words,
        integers.discrete_gaussian(4, 2, epsilon),
        _DELTA,
        epsilon,
        is_optimal=True,
    )


def _as_continuous(prover: Prover) -> Judgement:
    words = "discrete Gaussian of standard deviation 1/2 on a count that moves by 1"
    delta = gaussian.delta(1, Fraction(4)).high
    return judge_event(
        prover, "discrete-as-continuous", words, integers.discrete_gaussian(Fraction(1, 2), 1, 1), delta, 1
    )


def _geometric(epsilon: Fraction, delta: Fraction, name: str) -> Callable[[Prover], Judgement]:
    words = "discrete Laplace noise of decay 0.3 on a count that moves by 2"
    event = integers.discrete_laplace(Fraction(3, 10), 2, epsilon)
    return lambda prover: judge_event(prover, name, words, event, delta, epsilon, is_optimal=True)


def _many_ways(prover: Prover) -> Judgement:
    return judge_number(
        prover,
        "k-ary",
        "the ratio of the chances of an answer, 3 to 1 at most",
        log(3),
        Fraction("1.0987"),
        Fraction(0),
    )


def _two_ways(prover: Prover) -> Judgement:
    truth = DistinguishingEvent(
        p=_exactly(Fraction(1, 2)), q=_exactly(Fraction(1, 6)), text="S: the answer is the first of four"
    )
    words = "the true one of four answers with probability 1/2, each other with 1/6"
    return judge_event(prover, "k-ary-as-two", words, truth, Fraction(0), Fraction(0))


def _exactly(value: Fraction) -> Interval:
    return Interval(low=value, high=value)


def _concentrated(prover: Prover) -> Judgement:
    words = "Renyi divergences of whole orders"
    return judge_number(prover, "zcdp", words, zcdp_epsilon(_RHO, _DELTA), Fraction("1.917"), _DELTA)


def _missing_root(prover: Prover) -> Judgement:
    root = enclose(lambda: ball(_RHO) + (2 * ball(_RHO) * (1 / ball(_DELTA)).log()).sqrt())
    words = f"a Gaussian of squared shift {decimal(2 * _RHO)}, which is {decimal(_RHO)}-zCDP"
    return judge_gaussian(prover, "zcdp-root", words, root.high, _DELTA, 2 * _RHO)


def _choices(prover: Prover) -> Judgement:
    words = f"{_CHOICES} choices of range {decimal(_RANGE)}, each range^2 / 8 in zCDP"
    enclosure = zcdp_epsilon(_CHOICES * _RANGE**2 / 8, _DELTA)
    return judge_number(prover, "choices", words, enclosure, Fraction("1.48"), _DELTA)


def _choices_by_root(prover: Prover) -> Judgement:
    words = f"{_CHOICES} choices between two, of range {decimal(_RANGE)}"
    event = majority(_CHOICES, _RANGE / 2, 40)
    return judge_event(prover, "choices-root", words, event, _DELTA, Fraction("0.71"))


def _pairs(epsilon: Fraction, delta: Fraction, name: str) -> Callable[[Prover], Judgement]:
    def judge(prover: Prover) -> Judgement:
        enclosure = composition.worst_case(_PAIRS, epsilon)
        words = f"{_PAIRS.count} releases, each the worst that is (0.1, 1e-8)-DP"
        judged = judge_number(prover, name, f"delta of {words}", enclosure.delta, delta, None)
        if judged.outcome is not Outcome.REFUTED:
            return judged
        witness = (
            f"S: at most {enclosure.most_flips} of {_PAIRS.count} answers are flipped; P(S) = {approx(enclosure.p)}, "
            f"P'(S) = {approx(enclosure.q)}"
        )
        least = composition.worst_case_epsilon(_PAIRS, delta + 2 * _PAIRS.count * _PAIRS.delta, digits=6)
        holds = f"epsilon {decimal(least.high, 6)} at delta {decimal(delta + 2 * _PAIRS.count * _PAIRS.delta)}"
        return Judgement(outcome=judged.outcome, reason=judged.reason, holds=holds, witness=witness)

    return judge


PAPER = Paper(
    title="Counts, answers, choices, and other terms of privacy",
    claims=(
        PublishedClaim(
            key="dgauss-count",
            statement="Discrete Gaussian noise of parameter 4 on a count that changes by 2 is (1.989, 1e-5)-DP.",
            expected=Outcome.PROVED,
            judge=_counts_of_people,
        ),
        PublishedClaim(
            key="dgauss-as-continuous",
            statement="At every epsilon, it costs at most as much as continuous Gaussian noise.",
            expected=Outcome.REFUTED,
            judge=_as_continuous,
        ),
        PublishedClaim(
            key="dlaplace-count",
            statement="Discrete Laplace noise of decay 0.3 on a count that changes by 2 is (0.509, 0.05)-DP.",
            expected=Outcome.PROVED,
            judge=_geometric(Fraction("0.509"), Fraction(1, 20), "discrete-laplace"),
        ),
        PublishedClaim(
            key="dlaplace-decay",
            statement="It is (0.3, 0)-DP: its decay is its epsilon.",
            expected=Outcome.REFUTED,
            judge=_geometric(Fraction(3, 10), Fraction(0), "discrete-laplace-decay"),
        ),
        PublishedClaim(
            key="kary-four",
            statement="Giving the true one of four answers with probability 1/2, others equally, is (1.0987, 0)-DP.",
            expected=Outcome.PROVED,
            judge=_many_ways,
        ),
        PublishedClaim(
            key="kary-as-two",
            statement="It reveals nothing, like the true one of two answers with probability 1/2.",
            expected=Outcome.REFUTED,
            judge=_two_ways,
        ),
        PublishedClaim(
            key="zcdp-epsilon",
            statement="0.1-zCDP is (1.917, 1e-5)-DP.",
            expected=Outcome.PROVED,
            judge=_concentrated,
        ),
        PublishedClaim(
            key="zcdp-root",
            statement="rho-zCDP is (rho + sqrt(2 rho ln(1/delta)), delta)-DP (rho 0.1, delta 1e-5).",
            expected=Outcome.REFUTED,
            judge=_missing_root,
        ),
        PublishedClaim(
            key="choices-composed",
            statement="50 choices by the exponential mechanism, each of range 0.1, are (1.48, 1e-5)-DP.",
            expected=Outcome.PROVED,
            judge=_choices,
        ),
        PublishedClaim(
            key="choices-root",
            statement="They are (0.71, 1e-5)-DP, sqrt(50) times the range.",
            expected=Outcome.REFUTED,
            judge=_choices_by_root,
        ),
        PublishedClaim(
            key="pairs-composed",
            statement="A hundred releases, each (0.1, 1e-8)-DP, are (4.33, 1e-5)-DP.",
            expected=Outcome.PROVED,
            judge=_pairs(Fraction("4.33"), _DELTA, "pairs"),
        ),
        PublishedClaim(
            key="pairs-root",
            statement="They are (1, 1e-6)-DP, sqrt(100) times epsilon and a hundred times delta.",
            expected=Outcome.REFUTED,
            judge=_pairs(Fraction(1), Fraction(1, 10**6), "pairs-root"),
        ),
    ),
    unchecked=(
        Omission(
            what="Releases: that the sensitivity is what they say",
            reason="it depends on what is counted or chosen, which a ledger does not hold",
        ),
    ),
)
