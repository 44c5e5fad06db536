"""FERRET's fire probability, randomized response on a sampled batch, and Fano's inequality for secrets."""

from __future__ import annotations

from fractions import Fraction

from verify.prove.enclosures.functions import log
from verify.prove.terms import lies_in, real
from verify.prove.theorem import Theorem

#: G groups, T steps, sampling rate s, and a budget of e nats; l is ln 2.
_BUDGET = ("(>= G 1.0)", "(>= T 1.0)", "(> s 0.0)", "(<= s 1.0)", "(> e 0.0)")
_SPENT = "(* (* (* G T) s) l)"


def _ferret(name: str, statement: str, claim: str, *more: str) -> Theorem:
    return Theorem(
        name=name,
        statement=statement,
        assumptions=(*_BUDGET, lies_in("l", log(2)), f"(= (* p {_SPENT}) e)", *more),
        claim=claim,
    )


def fire_meets_budget(share: Fraction = Fraction(1)) -> Theorem:
    """Firing with probability up to ``share`` p* uses at most e nats, G T s p ln 2 <= e. False for a share above 1."""
    return _ferret(
        "ferret-meets-budget" if share == 1 else f"ferret-meets-budget-{float(share)}",
        f"With any fire probability up to {share} p*, p* = e / (G T s ln 2), the bits fired carry at most e nats.",
        f"(<= (* r {_SPENT}) e)",
        "(>= r 0.0)",
        f"(<= r (* {real(share)} p))",
    )


def fire_is_largest(*, above: bool = True) -> Theorem:
    """Any fire probability above p* exceeds the budget. Unless ``above``, p* itself is included, which is false."""
    return _ferret(
        "ferret-largest" if above else "ferret-largest-itself",
        f"With any fire probability {'above p*' if above else 'from p* on'}, the bound G T s p ln 2 exceeds e nats.",
        f"(> (* r {_SPENT}) e)",
        f"({'>' if above else '>='} r p)",
    )


def fire_is_probability() -> Theorem:
    """p* <= 1 if and only if e <= G T s ln 2."""
    small, affordable = "(<= p 1.0)", f"(<= e {_SPENT})"
    return _ferret(
        "ferret-probability",
        "p* is at most 1 exactly where the budget is at most G T s ln 2.",
        f"(and (=> {small} {affordable}) (=> {affordable} {small}))",
    )


def fire_always_probability() -> Theorem:
    """That p* is always a probability. False."""
    return _ferret("ferret-always-probability", "p* = e / (G T s ln 2) is at most 1 for every budget.", "(<= p 1.0)")


def response_on_batch(numerator: int = 2) -> Theorem:
    """Randomized response on a Poisson batch: all four likelihood ratios are at most 1 + s (e^e0 - 1).

    R is e^e0. b and c are the probabilities of "yes" with and without the record in the batch, which are within a
    factor of R of each other by the response's own privacy. ``numerator`` / 2 scales the gain; below 2 the claim is
    false.
    """
    within = tuple(
        f"(<= {left} (* R {right}))"
        for x, y in (("b", "c"), ("(- 1.0 b)", "(- 1.0 c)"))
        for left, right in ((x, y), (y, x))
    )
    growth = f"(+ 1.0 (* (/ {numerator}.0 2.0) (* s (- R 1.0))))"
    mixed = "(+ (* s b) (* (- 1.0 s) c))"
    ratios = (
        f"(<= {left} (* {growth} {right}))"
        for x, y in ((mixed, "c"), (f"(- 1.0 {mixed})", "(- 1.0 c)"))
        for left, right in ((x, y), (y, x))
    )
    return Theorem(
        name="response-on-batch" if numerator == 2 else f"response-on-batch-{numerator}",
        statement=f"A bit of odds R about a batch of rate s tells at most 1 + {numerator}/2 s (R - 1), all four ways.",
        assumptions=(
            "(>= R 1.0)",
            "(> s 0.0)",
            "(<= s 1.0)",
            *(f"(and (> {x} 0.0) (< {x} 1.0))" for x in ("b", "c")),
            *within,
        ),
        claim=f"(and {' '.join(ratios)})",
    )


def divergence_grows() -> Theorem:
    """kl(p, r) increases in p for p above r: the odds ratio in its derivative exceeds 1."""
    return Theorem(
        name="fano-grows",
        statement="For 0 < r < p < 1, p (1 - r) exceeds r (1 - p), so kl(p, r) grows with p.",
        assumptions=("(> r 0.0)", "(< r p)", "(< p 1.0)"),
        claim="(> (* p (- 1.0 r)) (* r (- 1.0 p)))",
    )
