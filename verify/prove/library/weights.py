"""DP-Weights: how far trained weights can move, and the errors of the published proof."""

from __future__ import annotations

from fractions import Fraction

from verify.prove.terms import real
from verify.prove.theorem import Theorem

_TRAINING = ("(>= E 1.0)", "(>= N 1.0)", "(>= B 1.0)", "(<= B N)", "(> C 0.0)", "(> eta 0.0)")


def published_shift_bounds_motion() -> Theorem:
    """That DW = E eta C / (N B) bounds the move by E visits of an example with gradient norm C. False."""
    return Theorem(
        name="weights-published-shift",
        statement="E visits of an example with a gradient of norm C move the weights by at most E eta C / (N B).",
        assumptions=(*_TRAINING, "(>= N 2.0)", "(= (* motion B) (* E (* eta C)))"),
        claim="(<= (* motion (* N B)) (* E (* eta C)))",
    )


def motion_without_n() -> Theorem:
    """That E eta C / B bounds the move, which is the published bound without the unjustified factor 1 / N."""
    return Theorem(
        name="weights-shift-without-n",
        statement="E visits of an example with a gradient of norm C move the weights by at most E eta C / B.",
        assumptions=(*_TRAINING, "(= (* motion B) (* E (* eta C)))"),
        claim="(<= (* motion B) (* E (* eta C)))",
    )


def coordinates_bound_norm(dimension: int) -> Theorem:
    """That a vector whose coordinates are at most D has norm at most D. True only in one dimension."""
    names = [f"w{i}" for i in range(dimension)]
    squares = [f"(* {name} {name})" for name in names]
    return Theorem(
        name=f"weights-coordinates-{dimension}",
        statement=f"A vector of {dimension} coordinates, none larger than D, has Euclidean length at most D.",
        assumptions=("(> D 0.0)", *(f"(and (<= (- D) {name}) (<= {name} D))" for name in names)),
        claim=f"(<= (+ 0.0 {' '.join(squares)}) (* D D))",
    )


_NOISE = ("(> s 0.0)", "(= y (+ W x))")
_TRUE_LOSS = "(- (* (- y V) (- y V)) (* (- y W) (- y W)))"


def printed_exponent() -> Theorem:
    """Step 5 uses W + x in the numerator and W' + x in the denominator, so that the ratio is 1. False.

    V denotes W'. 2 s^2 times the loss at y = W + x is (y - V)^2 - (y - W)^2.
    """
    return Theorem(
        name="weights-step-5-printed",
        statement="2 s^2 times the privacy loss at the output W + x is (x)^2 - (x)^2, as step 5 has it.",
        assumptions=_NOISE,
        claim=f"(= {_TRUE_LOSS} (- (* x x) (* x x)))",
    )


def corrected_exponent() -> Theorem:
    """The loss at y = W + x is (2 x (W - W') + (W - W')^2) / (2 s^2), which is unbounded."""
    return Theorem(
        name="weights-step-5-corrected",
        statement="2 s^2 times the privacy loss at the output W + x is 2 x (W - W') + (W - W')^2.",
        assumptions=_NOISE,
        claim=f"(= {_TRUE_LOSS} (+ (* 2.0 (* x (- W V))) (* (- W V) (- W V))))",
    )


def printed_bound() -> Theorem:
    """That the loss never exceeds (W - W')^2 / (2 s^2). False, as for any other bound."""
    return Theorem(
        name="weights-step-5-bound",
        statement="The privacy loss at the output W + x is at most (W - W')^2 / (2 s^2).",
        assumptions=_NOISE,
        claim=f"(<= {_TRUE_LOSS} (* (- W V) (- W V)))",
    )


def taylor_exp(argument: str, terms: int = 10) -> str:
    """The first ``terms`` terms of the exponential series at ``argument``, as in the published script."""
    total, factor = "1.0", real(1)
    power = ""
    for n in range(1, terms):
        power = argument if n == 1 else f"(* {power} {argument})"
        factor = real(Fraction(1, _factorial(n)))
        total = f"(+ {total} (* {factor} {power}))"
    return total


def published_implication(label: str, epsilon: Fraction, delta: Fraction, shift: Fraction, stddev: Fraction) -> Theorem:
    """The implication whose satisfiability the published script checks.

    If |W - W'| <= ``shift``, the densities satisfy f(y - W) <= e^epsilon f(y - W') + delta at a free y, with ten terms
    of the series instead of both exponentials. As a theorem it is false; "sat" from the script means only that it is
    not false everywhere. V denotes W'; u and v are the exponents.
    """
    return Theorem(
        name=f"weights-published-script-{label}",
        statement="|W - W'| <= DW implies f(y - W) <= e^epsilon f(y - W') + delta for all y, by series of ten terms.",
        assumptions=(),
        claim=(
            f"(=> (and {_apart(shift)} (= (* {real(-2 * stddev**2)} u) (* (- y W) (- y W))) "
            f"(= (* {real(-2 * stddev**2)} v) (* (- y V) (- y V)))) "
            f"(<= {taylor_exp('u')} (+ (* {taylor_exp(real(epsilon))} {taylor_exp('v')}) {real(delta)})))"
        ),
    )


def _apart(shift: Fraction) -> str:
    return f"(and (<= (- W V) {real(shift)}) (<= (- V W) {real(shift)}))"


def _factorial(n: int) -> int:
    return 1 if n < 2 else n * _factorial(n - 1)
