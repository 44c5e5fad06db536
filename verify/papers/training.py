"""Extensions of private training steps: adaptive clipping, zeroth-order steps, public gradients, and selection.

Andrew et al. 2021; Tang et al. 2024; Amid et al. 2022; Papernot and Steinke 2022.
"""

from __future__ import annotations

from fractions import Fraction

from privctl.domain.report import Omission
from privctl.domain.verdict import Outcome
from verify.papers.batches import single_gaussian_epsilon
from verify.papers.claim import Judgement, Paper, PublishedClaim
from verify.papers.judging import judge_event, theorem_claim
from verify.prove.enclosures import maxima
from verify.prove.enclosures.enclosure import decimal
from verify.prove.enclosures.sampled import best_of_geometric
from verify.prove.library import training
from verify.prove.library.numbers import NumericComparison, decide
from verify.prove.prover import Prover

_DELTA = Fraction(1, 10**5)
_RUNS = 10
#: The threshold on the best of the scores.
_CUT = Fraction(-2, 5)


def _best_of_runs(prover: Prover) -> Judgement:
    epsilon = best_of_geometric(1, Fraction(1, 100), 1000, _RUNS, _DELTA)
    words = f"the best of {_RUNS} runs on average, their number of geometric law"
    outcome, shows = decide(
        prover,
        NumericComparison(
            name="search-price",
            statement=f"{words}: the epsilon of theorem 2 (Papernot and Steinke 2022) is at most 4.11.",
            boxes={"epsilon": epsilon},
            term="epsilon",
            bound=Fraction("4.11"),
        ),
    )
    proved = outcome is Outcome.PROVED
    return Judgement(
        outcome=Outcome.PROVED if proved else Outcome.INCONCLUSIVE,
        reason=f"{words}: by Renyi divergences of whole orders" if proved else f"{words}: {shows}",
        holds=f"epsilon <= {decimal(epsilon.high, 6)} at delta {decimal(_DELTA)}",
    )


def _best_for_nothing(prover: Prover) -> Judgement:
    event = maxima.all_below(_CUT, 1, [(0, _RUNS)], [(1, _RUNS)])
    words = f"{_RUNS} Gaussians of noise 1, of which the largest is released"
    return judge_event(prover, "search-for-nothing", words, event, _DELTA, single_gaussian_epsilon())


PAPER = Paper(
    title="Steps with more in them",
    claims=(
        PublishedClaim(
            key="adaptive-both",
            statement="A sum and a count of unclipped gradients cost one Gaussian, 1/z^2 = 1/z_D^2 + 1/(2 s)^2.",
            expected=Outcome.PROVED,
            judge=theorem_claim(training.sum_and_count(), because="a bit of 1/2 or -1/2 moves the count by 1/2"),
        ),
        PublishedClaim(
            key="adaptive-from-zero",
            statement="They also do if the bits counted are 0 or 1.",
            expected=Outcome.REFUTED,
            judge=theorem_claim(
                training.sum_and_count(centred=False),
                because="such a bit moves the count by 1",
                correct=training.sum_and_count(),
            ),
        ),
        PublishedClaim(
            key="zo-vector",
            statement="Derivatives along several directions, clipped as one vector, cost as much as one derivative.",
            expected=Outcome.PROVED,
            judge=theorem_claim(training.directions_clipped(), because="the vector is no longer than the clip norm"),
        ),
        PublishedClaim(
            key="zo-each",
            statement="They also do if each is clipped separately.",
            expected=Outcome.REFUTED,
            judge=theorem_claim(
                training.directions_clipped(together=False),
                because="K of them are up to sqrt(K) clip norms long",
                correct=training.directions_clipped(),
            ),
        ),
        PublishedClaim(
            key="public-added",
            statement="A public gradient, added to the private sum, costs nothing.",
            expected=Outcome.PROVED,
            judge=theorem_claim(training.public_gradient(), because="it is the same for both neighbours"),
        ),
        PublishedClaim(
            key="public-left-out",
            statement="It costs nothing if public records that are also in the private data are left out.",
            expected=Outcome.REFUTED,
            judge=theorem_claim(
                training.public_gradient(fixed=False),
                because="then it differs between neighbours, unclipped",
                correct=training.public_gradient(),
            ),
        ),
        PublishedClaim(
            key="search-price",
            statement="The best of 10 runs on average (geometric; noise 1, rate 0.01, 1000 steps) is (4.11, 1e-5)-DP.",
            expected=Outcome.PROVED,
            judge=_best_of_runs,
        ),
        PublishedClaim(
            key="search-for-nothing",
            statement="The best of ten runs costs as much as one run (one Gaussian of noise 1, delta 1e-5).",
            expected=Outcome.REFUTED,
            judge=_best_for_nothing,
        ),
    ),
    unchecked=(
        Omission(
            what="Zeroth-order steps, adaptive clipping and public gradients: what they do for accuracy",
            reason="it is measured, not proved; see docs/utility.md",
        ),
    ),
)
