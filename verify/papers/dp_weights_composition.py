"""DP-Weights: its composition formula for 1000 releases of one model, each (1, 1e-8)-DP."""

from __future__ import annotations

from fractions import Fraction

from privctl.domain.verdict import Outcome
from verify.papers.claim import Judgement, PublishedClaim
from verify.papers.judging import agrees, approx, judge_gaussian
from verify.prove.enclosures import composition, gaussian
from verify.prove.enclosures.enclosure import decimal
from verify.prove.library.numbers import NumericComparison, decide
from verify.prove.prover import Prover

RELEASES = composition.RepeatedRelease(epsilon=Fraction(1), delta=Fraction(1, 10**8), count=1000)
PRINTED_EPSILON, PRINTED_DELTA = "191.94103648752323", "1.001e-5"


def _formula(prover: Prover) -> Judgement:
    value = composition.as_printed(RELEASES)
    same = agrees(PRINTED_EPSILON, value) and Fraction(PRINTED_DELTA) == RELEASES.total_delta
    return Judgement(
        outcome=Outcome.PROVED if same else Outcome.REFUTED,
        reason="the arithmetic is right; whether it bounds anything is the next row",
        holds=f"epsilon sqrt(2 k ln(1/delta)) = {value}, k delta + delta = {decimal(RELEASES.total_delta)}",
        witness="sqrt(2000 ln 1e8) = sqrt(36841.36)",
    )


def _any_releases(prover: Prover) -> Judgement:
    printed, delta = Fraction(PRINTED_EPSILON), RELEASES.total_delta
    event = composition.worst_case(RELEASES, printed)
    outcome, shows = decide(
        prover,
        NumericComparison(
            name="composition-printed",
            statement=f"1000 releases, each (1, 1e-8)-DP, have delta at most {delta} at epsilon {printed}.",
            boxes={"delta": event.delta},
            term="delta",
            bound=delta,
        ),
    )
    best = composition.worst_case_epsilon(RELEASES, delta, digits=12)
    if outcome is Outcome.INCONCLUSIVE:
        return Judgement(outcome=outcome, reason=shows)
    return Judgement(
        outcome=outcome,
        reason="the formula leaves out k epsilon (e^epsilon - 1) = 1718.28",
        holds=f"epsilon {approx(best, 12)} at best (Kairouz, Oh, Viswanath), "
        f"{approx(composition.advanced(RELEASES), 12)} by the theorem it cites, "
        f"{approx(composition.advanced_mean(RELEASES), 12)} with the exact mean, {decimal(RELEASES.basic)} by adding",
        witness=f"1000 bits told true with odds e; S = at most {event.most_flips} are flipped: P(S) = "
        f"{approx(event.p)}, P'(S) {approx(event.q)}, so delta is {approx(event.delta)}",
    )


def _gaussian_releases(prover: Prover) -> Judgement:
    one = gaussian.minimal_multiplier(RELEASES.epsilon, RELEASES.delta)
    # The least noise that may have been used, since more noise only helps.
    squared = RELEASES.count / one.low**2
    words = f"1000 Gaussians of multiplier {approx(one, 10)}, each just (1, 1e-8)-DP, are one of shift sqrt(1000) mu"
    return judge_gaussian(
        prover, "composition-gaussian", words, Fraction(PRINTED_EPSILON), RELEASES.total_delta, squared
    )


CLAIMS = (
    PublishedClaim(
        key="dpw-1000-formula",
        statement=f"Its composition formula gives ({PRINTED_EPSILON}, {PRINTED_DELTA}) for 1000 releases.",
        expected=Outcome.PROVED,
        judge=_formula,
    ),
    PublishedClaim(
        key="dpw-1000-releases",
        statement=f"1000 releases, each (1, 1e-8)-DP, are ({PRINTED_EPSILON}, {PRINTED_DELTA})-DP together.",
        expected=Outcome.REFUTED,
        judge=_any_releases,
    ),
    PublishedClaim(
        key="dpw-1000-gaussians",
        statement=f"1000 Gaussian releases, each just (1, 1e-8)-DP, are ({PRINTED_EPSILON}, {PRINTED_DELTA})-DP.",
        expected=Outcome.PROVED,
        judge=_gaussian_releases,
    ),
)
