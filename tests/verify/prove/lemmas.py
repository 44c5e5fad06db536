"""Lemmas that the bounds of ``verify.prove`` rest on and no published claim asks for, and false neighbours of them.

Cited, not proved here: a threshold on the likelihood ratio is the most powerful test (Neyman and Pearson 1933),
k Gaussians compose to one (Dong, Roth and Su 2019), and post-processing.
"""

from __future__ import annotations

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


def convex_visit(own: int = 2) -> Theorem:
    """A step that visits the replaced example, under convex losses, increases the distance by at most 2 eta C / B.

    The other examples' updates do not expand distances if the losses' smoothness is at most 2 / eta (Hardt, Recht and
    Singer 2016, lemma 3.7, cited). ``own`` is the largest difference of the two examples' gradients, in units of C;
    less than 2 makes the claim false.
    """
    return Theorem(
        name="weights-convex-visit" if own == 2 else f"weights-convex-visit-{own}",
        statement=f"A visit of the replaced example adds at most {own} eta C / B to the distance of the weights.",
        assumptions=(
            "(>= d 0.0)",
            "(> eta 0.0)",
            "(> C 0.0)",
            "(>= B 1.0)",
            "(<= others d)",
            "(<= single (+ d (* 2.0 (* eta C))))",
            "(= (* B next) (+ (* (- B 1.0) others) single))",
        ),
        claim=f"(<= (* B next) (+ (* B d) (* {own}.0 (* eta C))))",
    )


def convex_trajectory(per_visit: int = 2) -> Theorem:
    """The induction step: from at most 2 k eta C / B after k visits to at most 2 (k+1) eta C / B after k + 1."""
    return Theorem(
        name="weights-convex-trajectory" if per_visit == 2 else f"weights-convex-trajectory-{per_visit}",
        statement=f"From k visits to k + 1, the bound {per_visit} k eta C / B carries over.",
        assumptions=(
            "(>= k 0.0)",
            "(> step 0.0)",
            f"(<= d (* {per_visit}.0 (* k step)))",
            "(<= next (+ d (* 2.0 step)))",
        ),
        claim=f"(<= next (* {per_visit}.0 (* (+ k 1.0) step)))",
    )


def divergence_grows_everywhere() -> Theorem:
    """The same claim without r < p. False."""
    return Theorem(
        name="fano-grows-everywhere",
        statement="For all p and r between 0 and 1, p (1 - r) exceeds r (1 - p).",
        assumptions=("(> r 0.0)", "(< r 1.0)", "(> p 0.0)", "(< p 1.0)"),
        claim="(> (* p (- 1.0 r)) (* r (- 1.0 p)))",
    )
