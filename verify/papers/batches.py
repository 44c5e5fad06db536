"""Batches and neighbours: shuffling, balls and bins, replacement, groups, and truncated batches.

Balle, Barthe and Gaboardi 2018, theorem 9; Choquette-Choo, Ganesh, Steinke and Thakurta 2023, lemma 4.5;
Chua et al. 2024, "How Private are DP-SGD Implementations?"; Chua et al. 2025, "Balls-and-Bins Sampling for DP-SGD".
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from privctl.domain.report import Omission
from privctl.domain.verdict import Outcome
from verify.papers.claim import Judgement, Paper, PublishedClaim
from verify.papers.judging import gaussian_claim, judge_drawn, judge_event, judge_gaussian, theorem_claim
from verify.papers.sampling import judge_floor, judge_sampled
from verify.prove.enclosures import gaussian, maxima
from verify.prove.enclosures.drawn import DrawnEvent, binomial_weights, drawn_event
from verify.prove.enclosures.enclosure import Rational
from verify.prove.library import training
from verify.prove.prover import Prover

_DELTA, _SMALL_DELTA = Fraction(1, 10**5), Fraction(1, 10**6)
#: The number of batches in a pass, and the noise multiplier.
_PASS, _NOISE = 10_000, Fraction(1, 2)
#: Thresholds on the largest of the sums.
_CUT, _CUT_OF_TWO = Fraction(17, 4), Fraction(1, 2)
#: The fraction of the records in a batch, and the epsilon of a batch of fixed size.
_RATE, _FIXED = Fraction(1, 10), Fraction("6.58")


def _shuffled(prover: Prover) -> Judgement:
    """All other records contribute -1. Relative to a batch of these, the record of 1 adds 2, and the zeroed one 1."""
    others = (Fraction(0), _PASS - 1)
    event = maxima.any_above(_CUT, _NOISE, [(2, 1), others], [(1, 1), others])
    words = f"one pass of {_PASS} shuffled batches, a record of 1 among others of -1, or zeroed"
    return judge_event(prover, "shuffled-as-poisson", words, event, _SMALL_DELTA, Fraction("1.96"))


def _poisson(prover: Prover) -> Judgement:
    words = f"{_PASS} Poisson batches of rate 1 / {_PASS}"
    return judge_sampled(
        prover, "poisson-pass", words, (_NOISE, Fraction(1, _PASS), _PASS), _SMALL_DELTA, Fraction("3.9")
    )


def _bins(prover: Prover) -> Judgement:
    """In two Poisson batches of rate 1/2, a record is in none with probability 1/4, so delta is at most 3/4."""
    event = maxima.any_above(_CUT_OF_TWO, Fraction(1, 4), [(1, 1), (0, 1)], [(0, 2)])
    words = "a pass of two steps of noise 1/4, which use the record for certain"
    return judge_event(prover, "bins-as-poisson", words, event, Fraction(3, 4), 0)


def single_gaussian_epsilon() -> Fraction:
    """An upper bound on the epsilon of one Gaussian with noise multiplier 1 at delta 1e-5."""
    return gaussian.epsilon(_DELTA, 1, digits=12).high


def _replaced(prover: Prover) -> Judgement:
    words = "one sum of noise 1 in which a record of 1 becomes one of -1"
    return judge_gaussian(prover, "replaced-as-removed", words, single_gaussian_epsilon(), _DELTA, Fraction(4))


def _group(prover: Prover) -> Judgement:
    words = "two records of 1 in one sum of noise 1"
    return judge_gaussian(prover, "group-times", words, 2 * single_gaussian_epsilon(), _DELTA, Fraction(4))


def _cut(prover: Prover) -> Judgement:
    """A batch of one of two records: the record displaces the other half of the time, and moves the sum by 2."""
    words = "a batch of at most 1 of two records, of 1 and -1: half of the time one takes the other's place"
    return judge_floor(
        prover, "cut-for-nothing", words, (Fraction(1, 2), Fraction(1, 2), 1), _DELTA, single_gaussian_epsilon()
    )


def fixed_batch(epsilon: Rational) -> DrawnEvent:
    """A batch of a tenth of the records, where a record of 1 among others of -1 is replaced by one of them."""
    return drawn_event(binomial_weights(1, _RATE), 2, 1, epsilon)


def redrawn_batch(epsilon: Rational) -> DrawnEvent:
    """A hundred draws from a thousand records, with or without a record of 1 among others of -1."""
    return drawn_event(binomial_weights(100, _RATE / 100), 2, 1, epsilon)


def _fixed(epsilon: Fraction, name: str) -> Callable[[Prover], Judgement]:
    words = "a batch of a tenth of the records, in which a record of 1 takes the place of one of -1"
    return lambda prover: judge_drawn(prover, name, words, fixed_batch(epsilon), _DELTA, epsilon)


def _redrawn(epsilon: Fraction, name: str) -> Callable[[Prover], Judgement]:
    words = "a hundred draws among a thousand records, a record of 1 among others of -1"
    return lambda prover: judge_drawn(prover, name, words, redrawn_batch(epsilon), _DELTA, epsilon)


PAPER = Paper(
    title="Batches and neighbours",
    claims=(
        PublishedClaim(
            key="batch-shuffled",
            statement="A shuffled pass costs as much as a Poisson one: 10,000 steps at noise 0.5 are (1.96, 1e-6)-DP.",
            expected=Outcome.REFUTED,
            judge=_shuffled,
        ),
        PublishedClaim(
            key="batch-poisson",
            statement="With Poisson batches, they are (3.9, 1e-6)-DP.",
            expected=Outcome.PROVED,
            judge=_poisson,
        ),
        PublishedClaim(
            key="batch-bins",
            statement="Balls-and-bins batches cost at most as much as Poisson batches, at every delta.",
            expected=Outcome.REFUTED,
            judge=_bins,
        ),
        PublishedClaim(
            key="batch-passes",
            statement="Ten passes at noise 1 that use each record once, in any order, are (17.86, 1e-5)-DP.",
            expected=Outcome.PROVED,
            judge=gaussian_claim(
                "passes-any-order", "told where the record is, ten Gaussians", Fraction("17.86"), _DELTA, Fraction(10)
            ),
        ),
        PublishedClaim(
            key="batch-replaced",
            statement="Replacing a record costs as much as removing it.",
            expected=Outcome.REFUTED,
            judge=_replaced,
        ),
        PublishedClaim(
            key="unit-times",
            statement="A user with two records costs twice the epsilon of one record, at the same delta.",
            expected=Outcome.REFUTED,
            judge=_group,
        ),
        PublishedClaim(
            key="unit-shift",
            statement="A user with two records costs as much as one record at half the noise, (10, 1e-5) at noise 1.",
            expected=Outcome.PROVED,
            judge=gaussian_claim("group-shift", "a shift of 2", 10, _DELTA, Fraction(4)),
        ),
        PublishedClaim(
            key="batch-cut",
            statement="Truncating batches to a largest size costs nothing.",
            expected=Outcome.REFUTED,
            judge=_cut,
        ),
        PublishedClaim(
            key="batch-fixed",
            statement="A batch of a fixed tenth of the records, at noise 1, is (6.58, 1e-5)-DP if one is replaced.",
            expected=Outcome.PROVED,
            judge=_fixed(_FIXED, "batch-fixed"),
        ),
        PublishedClaim(
            key="batch-fixed-poisson",
            statement="It costs as much as a Poisson batch of rate 0.1 with a record removed, epsilon 1.69.",
            expected=Outcome.REFUTED,
            judge=_fixed(Fraction("1.69"), "batch-fixed-poisson"),
        ),
        PublishedClaim(
            key="batch-redrawn",
            statement="A hundred draws with replacement among a thousand records are (18.49, 1e-5)-DP at noise 1.",
            expected=Outcome.PROVED,
            judge=_redrawn(Fraction("18.49"), "batch-redrawn"),
        ),
        PublishedClaim(
            key="batch-redrawn-fixed",
            statement="They cost as much as a batch of fixed size, epsilon 6.58.",
            expected=Outcome.REFUTED,
            judge=_redrawn(_FIXED, "batch-redrawn-fixed"),
        ),
        PublishedClaim(
            key="unit-mean",
            statement="The mean of a user's clipped gradients moves a sum no further than one record.",
            expected=Outcome.PROVED,
            judge=theorem_claim(training.records_of_user(), because="a mean of short vectors is short"),
        ),
        PublishedClaim(
            key="unit-sum",
            statement="Their sum also moves it no further.",
            expected=Outcome.REFUTED,
            judge=theorem_claim(
                training.records_of_user(mean=False),
                because="two records may point the same way",
                correct=training.records_of_user(),
            ),
        ),
    ),
    unchecked=(
        Omission(
            what="Balls-and-bins, cut batches, groups on batches, and several of fixed size: their own epsilons",
            reason="they need the discretised law of a step, which verify recomputes from both sides for each report",
        ),
    ),
)
