"""The Gaussian mechanism: why one event and one shift suffice, and delta compared with a bound.

Cited, not proved here: a threshold on the likelihood ratio is the most powerful test (Neyman and Pearson 1933),
k Gaussians compose to one (Dong, Roth and Su 2019), and post-processing.
"""

from __future__ import annotations

from fractions import Fraction

from verify.prove.enclosures.gaussian import GaussianEvent
from verify.prove.library.numbers import NumericComparison
from verify.prove.theorem import Theorem


def half_line() -> Theorem:
    """The outputs whose privacy loss exceeds epsilon are those beyond one threshold.

    P = N(D, s^2), P' = N(0, s^2), output D + x: the loss is (2 x D + D^2) / (2 s^2).
    """
    return Theorem(
        name="gaussian-half-line",
        statement="The loss exceeds epsilon exactly where x exceeds (s^2 epsilon - D^2/2) / D: one threshold.",
        assumptions=("(> D 0.0)", "(> s 0.0)"),
        claim=_half("e"),
    )


def half_line_misplaced() -> Theorem:
    """The half-line theorem with D^2 instead of D^2 / 2. False."""
    return Theorem(
        name="gaussian-half-line-misplaced",
        statement="The loss exceeds epsilon exactly where x exceeds (s^2 epsilon - D^2) / D.",
        assumptions=("(> D 0.0)", "(> s 0.0)"),
        claim=_half("e", "(* D D)"),
    )


def _half(epsilon: str, half_square: str = "(/ (* D D) 2.0)") -> str:
    loss = f"(> (+ (* 2.0 (* x D)) (* D D)) (* 2.0 (* (* s s) {epsilon})))"
    beyond = f"(> (* x D) (- (* (* s s) {epsilon}) {half_square}))"
    return f"(and (=> {loss} {beyond}) (=> {beyond} {loss}))"


def growing_with_the_shift(factor: int = 2) -> Theorem:
    """Delta increases with the shift m: its derivative is the normal density at a = m/2 - e/m.

    This follows from two identities: b^2 - a^2 = 2 e with b = -m/2 - e/m, so that e^e phi(b) = phi(a), and the two
    chain-rule factors differ by 1. A ``factor`` other than 2 makes the first identity false.
    """
    return Theorem(
        name="gaussian-growing" if factor == 2 else f"gaussian-growing-{factor}",
        statement=f"b^2 - a^2 = {factor} epsilon and da/dm - db/dm = 1, so delta grows with the shift.",
        assumptions=(
            "(> m 0.0)",
            "(= (* a m) (- (/ (* m m) 2.0) e))",
            "(= (* b m) (- (- (/ (* m m) 2.0)) e))",
            "(= (* c (* m m)) e)",
        ),
        claim=f"(and (= (- (* b b) (* a a)) (* {factor}.0 e)) (= (- (+ (/ 1.0 2.0) c) (+ (- (/ 1.0 2.0)) c)) 1.0))",
    )


def delta_bound(name: str, event: GaussianEvent, delta: Fraction, words: str) -> NumericComparison:
    """Compares delta = p - growth q with the bound ``delta``, given enclosures of p, q and growth.

    If q is too small to be written down, the enclosure of its product with growth is used instead.
    """
    tiny = event.q.low <= 0
    factors = {"weighted": event.weighted} if tiny else {"q": event.q, "growth": event.growth}
    return NumericComparison(
        name=name,
        statement=f"{words}: Phi(mu/2 - e/mu) - exp(e) Phi(-mu/2 - e/mu) is at most {delta}.",
        boxes={"p": event.p, **factors},
        term="(- p weighted)" if tiny else "(- p (* growth q))",
        bound=delta,
    )
