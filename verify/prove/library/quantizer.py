"""Stochastic rounding and clipping, as DPQuant uses them."""

from __future__ import annotations

from verify.prove.theorem import Theorem

#: x lies between two levels and is rounded up with probability p, its relative position between them.
_ROUNDING = ("(< low high)", "(<= low x)", "(<= x high)", "(= (* p (- high low)) (- x low))")


def unbiased() -> Theorem:
    """Stochastic rounding is unbiased."""
    return Theorem(
        name="rounding-unbiased",
        statement="Rounding up with probability (x - low) / (high - low) has mean x.",
        assumptions=_ROUNDING,
        claim="(= (+ (* p high) (* (- 1.0 p) low)) x)",
    )


def nearest_unbiased() -> Theorem:
    """That rounding to the nearest level is unbiased. False."""
    return Theorem(
        name="rounding-nearest-unbiased",
        statement="Rounding to the nearest level has mean x.",
        assumptions=(
            *_ROUNDING,
            "(=> (< (- x low) (- high x)) (= y low))",
            "(=> (>= (- x low) (- high x)) (= y high))",
        ),
        claim="(= y x)",
    )


def variance_at_most(share: int) -> Theorem:
    """In the top bin, [M/2, M], the variance (high - x)(x - low) is at most M^2 / ``share``; true up to 16."""
    return Theorem(
        name=f"rounding-variance-{share}",
        statement=f"A value between half the largest magnitude M and M is rounded with variance at most M^2 / {share}.",
        assumptions=(*_ROUNDING, "(> M 0.0)", "(= high M)", "(= (* 2.0 low) M)"),
        claim=f"(<= (* {share}.0 (+ (* p (* (- high x) (- high x))) (* (- 1.0 p) (* (- x low) (- x low))))) (* M M))",
    )


def clipped_aggregate(factor: int) -> Theorem:
    """A sum that is clipped to C as a whole changes by at most ``factor`` C between data sets; true from 2 on.

    In one dimension, a and b are the clipped values for two data sets, arbitrary in [-C, C].
    """
    return Theorem(
        name=f"clipped-aggregate-{factor}",
        statement=f"Two values clipped to C as wholes differ by at most {factor} C.",
        assumptions=("(> C 0.0)", "(and (<= (- C) a) (<= a C))", "(and (<= (- C) b) (<= b C))"),
        claim=f"(and (<= (- a b) (* {factor}.0 C)) (<= (- b a) (* {factor}.0 C)))",
    )
