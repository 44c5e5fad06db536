"""Batches and neighbours: shuffling, balls and bins, replacement, groups, and batches that are cut.

Chua et al. 2024, "How Private are DP-SGD Implementations?"; Chua et al. 2025, "Balls-and-Bins Sampling for DP-SGD".
"""

from __future__ import annotations

from fractions import Fraction

from privctl.domain.report import Omission
from privctl.domain.verdict import Outcome
from verify.papers.claim import Judgement, Paper, PublishedClaim
from verify.papers.judging import gaussian_claim, judge_event, judge_gaussian
from verify.papers.sampling import judge_floor, judge_sampled
from verify.prove.enclosures import gaussian, maxima
from verify.prove.prover import Prover

_DELTA, _SMALL_DELTA = Fraction(1, 10**5), Fraction(1, 10**6)
#: One pass in batches, and its noise.
_PASS, _NOISE = 10_000, Fraction(1, 2)
#: Where the largest of the sums is cut.
_CUT, _CUT_OF_TWO = Fraction(17, 4), Fraction(1, 2)


def _shuffled(prover: Prover) -> Judgement:
    """All others contribute -1. A batch of them is 0; with the record, which contributes 1, it is 2, zeroed 1."""
    others = (Fraction(0), _PASS - 1)
    event = maxima.some_above(_CUT, _NOISE, [(2, 1), others], [(1, 1), others])
    words = f"one pass of {_PASS} shuffled batches, a record of 1 among others of -1, or zeroed"
    return judge_event(prover, "shuffled-as-poisson", words, event, _SMALL_DELTA, Fraction("1.96"))


def _poisson(prover: Prover) -> Judgement:
    words = f"{_PASS} Poisson batches of rate 1 / {_PASS}"
    return judge_sampled(
        prover, "poisson-pass", words, (_NOISE, Fraction(1, _PASS), _PASS), _SMALL_DELTA, Fraction("3.9")
    )


def _bins(prover: Prover) -> Judgement:
    """With two Poisson batches of rate 1/2 a record is in none with probability 1/4, so no delta exceeds 3/4."""
    event = maxima.some_above(_CUT_OF_TWO, Fraction(1, 4), [(1, 1), (0, 1)], [(0, 2)])
    words = "a pass of two steps of noise 1/4, which use the record for certain"
    return judge_event(prover, "bins-as-poisson", words, event, Fraction(3, 4), 0)


def single_use() -> Fraction:
    """The epsilon of one Gaussian of noise 1 at 1e-5, from above."""
    return gaussian.epsilon(_DELTA, 1, digits=12).high


def _replaced(prover: Prover) -> Judgement:
    words = "one sum of noise 1 in which a record of 1 becomes one of -1"
    return judge_gaussian(prover, "replaced-as-removed", words, single_use(), _DELTA, Fraction(4))


def _group(prover: Prover) -> Judgement:
    words = "two records of 1 in one sum of noise 1"
    return judge_gaussian(prover, "group-times", words, 2 * single_use(), _DELTA, Fraction(4))


def _cut(prover: Prover) -> Judgement:
    """Batches of one among two records: the record takes the other's place half of the time, and moves the sum by 2."""
    words = "a batch of at most 1 of two records, of 1 and -1: half of the time one takes the other's place"
    return judge_floor(prover, "cut-for-nothing", words, (Fraction(1, 2), Fraction(1, 2), 1), _DELTA, single_use())


PAPER = Paper(
    title="Batches and neighbours",
    claims=(
        PublishedClaim(
            key="batch-shuffled",
            statement="Shuffled batches cost what Poisson ones do: 10,000 of a pass at noise 0.5 are (1.96, 1e-6)-DP.",
            expected=Outcome.REFUTED,
            judge=_shuffled,
        ),
        PublishedClaim(
            key="batch-poisson",
            statement="With Poisson batches they are (3.9, 1e-6)-DP.",
            expected=Outcome.PROVED,
            judge=_poisson,
        ),
        PublishedClaim(
            key="batch-bins",
            statement="Balls-and-bins batches cost at most what Poisson batches do, at every delta.",
            expected=Outcome.REFUTED,
            judge=_bins,
        ),
        PublishedClaim(
            key="batch-passes",
            statement="Ten passes of noise 1 that use a record once each, in any order, are (17.86, 1e-5)-DP.",
            expected=Outcome.PROVED,
            judge=gaussian_claim(
                "passes-any-order", "told where the record is, ten Gaussians", Fraction("17.86"), _DELTA, Fraction(10)
            ),
        ),
        PublishedClaim(
            key="batch-replaced",
            statement="A record replaced costs what a record removed does.",
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
            statement="A user with two records costs what one does at half of the noise, (10, 1e-5) at noise 1.",
            expected=Outcome.PROVED,
            judge=gaussian_claim("group-shift", "a shift of 2", 10, _DELTA, Fraction(4)),
        ),
        PublishedClaim(
            key="batch-cut",
            statement="Keeping at most so many of a batch costs nothing.",
            expected=Outcome.REFUTED,
            judge=_cut,
        ),
    ),
    unchecked=(
        Omission(
            what="Balls-and-bins, cut batches and groups on batches: their own epsilons",
            reason="they need the discretised law of a step, which verify recomputes from both sides for each report",
        ),
    ),
)
