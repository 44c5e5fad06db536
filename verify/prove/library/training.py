"""Private training beyond independent steps: correlated noise, adaptive clipping, directions, public gradients.

The claims are about how far a sum moves. Contributions are in clip norms, so none has a norm above 1.
"""

from __future__ import annotations

from verify.prove.theorem import Theorem

#: Two coefficients of a banded matrix whose columns have norm at most 1, and the norms of two contributions.
_BANDS = (
    "(<= (+ (* c0 c0) (* c1 c1)) 1.0)",
    "(<= 0.0 g)",
    "(<= g 1.0)",
    "(<= 0.0 h)",
    "(<= h 1.0)",
)


def uses_apart() -> Theorem:
    """Two uses of a record two steps apart, with two bands, have no row in common."""
    return _rows(
        "banded-uses-apart",
        "Two uses, two steps apart, move the rows of two bands by a squared length of at most 2.",
        ("(* c0 g)", "(* c1 g)", "(* c0 h)", "(* c1 h)"),
    )


def uses_that_meet() -> Theorem:
    """The same claim for uses one step apart, which share a row. False."""
    return _rows(
        "banded-uses-that-meet",
        "Two uses, one step apart, move the rows of two bands by a squared length of at most 2.",
        ("(* c0 g)", "(+ (* c1 g) (* c0 h))", "(* c1 h)"),
    )


def _rows(name: str, statement: str, rows: tuple[str, ...]) -> Theorem:
    squares = " ".join(f"(* {row} {row})" for row in rows)
    return Theorem(name=name, statement=statement, assumptions=_BANDS, claim=f"(<= (+ {squares}) 2.0)")


def equal_uses_are_worst(*, inner: bool = True) -> Theorem:
    """For two columns of squared norms a and b and inner product m, equal contributions move the rows the most.

    ``u``, ``v`` and ``w`` are the squared norms and the inner product of the contributions. Unless ``inner``, m may be
    negative, and the claim is false.
    """
    return Theorem(
        name="columns-equal-uses" if inner else "columns-equal-uses-any-sign",
        statement=f"Where a >= 0, b >= 0{' and m >= 0' * inner}, u a + 2 w m + v b is at most a + 2 m + b.",
        assumptions=(
            "(>= a 0.0)",
            "(>= b 0.0)",
            "(<= (* m m) (* a b))",
            *(("(>= m 0.0)",) if inner else ()),
            "(<= 0.0 u)",
            "(<= u 1.0)",
            "(<= 0.0 v)",
            "(<= v 1.0)",
            "(<= (- 1.0) w)",
            "(<= w 1.0)",
        ),
        claim="(<= (+ (* u a) (* 2.0 (* w m)) (* v b)) (+ a (* 2.0 m) b))",
    )


def sum_and_count(*, centred: bool = True) -> Theorem:
    """Andrew et al. 2021, theorem 1: the joint sensitivity of a sum and a count of unclipped gradients.

    ``p`` is 1 / z_D^2, ``r`` 1 / (2 s)^2 and ``i`` 1 / z^2. A ``centred`` bit is 1/2 or -1/2; otherwise it is 0 or 1
    and the claim is false.
    """
    square = "(/ 1.0 4.0)" if centred else "1.0"
    return Theorem(
        name="adaptive-centred" if centred else "adaptive-from-zero",
        statement=f"With 1/z^2 = 1/z_D^2 + 1/(2 s)^2 and a bit of square {'1/4' if centred else '1'}, both releases "
        "together move by at most 1/z standard deviations.",
        assumptions=(
            "(> p 0.0)",
            "(> r 0.0)",
            "(= i (+ p r))",
            "(<= 0.0 g)",
            "(<= g 1.0)",
            f"(= (* bit bit) {square})",
        ),
        claim="(<= (+ (* (* g g) p) (* 4.0 (* (* bit bit) r))) i)",
    )


def directions_clipped(*, together: bool = True) -> Theorem:
    """Derivatives along three directions, clipped ``together`` as a vector, move a sum by at most 1; else by more."""
    whole = "(<= (* (* f f) (+ (* a a) (* b b) (* c c))) 1.0)"
    clipped = (whole,) if together else tuple(f"(<= (* (* f {variable}) (* f {variable})) 1.0)" for variable in "abc")
    return Theorem(
        name="directions-together" if together else "directions-one-by-one",
        statement=f"Three derivatives, clipped {'as a vector' if together else 'one by one'}, have a norm up to 1.",
        assumptions=("(>= f 0.0)", *clipped, "(= x (* f a))", "(= y (* f b))", "(= z (* f c))"),
        claim="(<= (+ (* x x) (* y y) (* z z)) 1.0)",
    )


def public_gradient(*, fixed: bool = True) -> Theorem:
    """A public gradient that is the same for both neighbours does not change the difference of private sums.

    Unless it is ``fixed``, this is false: a public batch without the records that are also private may differ.
    """
    return Theorem(
        name="public-fixed" if fixed else "public-chosen",
        statement=f"Adding W times a public gradient {'that is the same for' if fixed else 'which may differ between'} "
        "neighbours leaves sums as far apart as they were.",
        assumptions=("(<= (* (- x y) (- x y)) 1.0)", "(> W 0.0)", *(("(= p q)",) if fixed else ())),
        claim="(<= (* (- (+ x (* W p)) (+ y (* W q))) (- (+ x (* W p)) (+ y (* W q)))) 1.0)",
    )


def records_of_user(*, mean: bool = True) -> Theorem:
    """The ``mean`` of two separately clipped records of a user has norm at most 1; their sum need not."""
    weight = "0.5" if mean else "1.0"
    x, y = f"(* {weight} (+ a c))", f"(* {weight} (+ b d))"
    return Theorem(
        name="user-mean" if mean else "user-sum",
        statement=f"The {'mean' if mean else 'sum'} of two vectors of lengths up to 1 is no longer than 1.",
        assumptions=("(<= (+ (* a a) (* b b)) 1.0)", "(<= (+ (* c c) (* d d)) 1.0)"),
        claim=f"(<= (+ (* {x} {x}) (* {y} {y})) 1.0)",
    )
