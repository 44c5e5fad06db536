"""Mechanisms on Poisson batches: certified lower and upper bounds on epsilon.

The lower bound comes from an event, so no accountant has to be trusted: outputs are sorted into bins with integer
scores, and S is the event that the scores of all steps sum to at least a threshold. The distribution of that sum is a
power of a polynomial, computed in ball arithmetic. Coarser bins loosen the bound but keep it valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from itertools import pairwise
from typing import TYPE_CHECKING

from verify.prove.enclosures.enclosure import Interval, Rational, ball, enclose, rounded_outward
from verify.prove.enclosures.functions import normal_cdf

if TYPE_CHECKING:
    from flint import arb

#: The least and the largest length of the polynomials, which decides how finely losses are scored.
_LENGTH, _LONGEST = 3_000, 6_000
_PRECISION = 160
#: The largest rate that is used; the loss beyond which 1 - q is negligible against q e^loss; the least noise that is
#: used; and the largest sum of losses that the scores cover.
_NEARLY_ALL, _LARGE = 1 - 1e-12, 50.0
_LEAST_SCALE, _LEAST_MULTIPLIER = Fraction(1, 50), Fraction(1, 20)
_MOST_LOSS = 250.0
#: Smaller tails are replaced by this.
_LEAST_TAIL = 1e-90
_ORDERS = (*range(2, 65), *range(66, 129, 2), *range(132, 257, 4), 320, 384, 512, 768, 1024)
_ORDERS_OF_RUNS = range(2, 65)


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerEvent:
    """An event S which shows that ``epsilon`` is exceeded at ``delta``.

    S: the scores floor((loss - ``least``) / ``width``) of all steps sum to at least ``score``. ``p`` is at most P(S),
    ``q`` at least P'(S), and ln((p - delta) / q) at least ``epsilon``.
    """

    epsilon: Fraction
    delta: Fraction
    least: float
    width: float
    score: int
    p: Fraction
    q: Fraction


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scale:
    """The scores: 0 for losses from ``least`` on, plus 1 for each further ``width``; sums are below ``length``."""

    least: float
    width: float
    length: int


def gaussian_floor(multiplier: Rational, sample_rate: Rational, steps: int, delta: Rational) -> LowerEvent | None:
    """A lower bound on the sampled Gaussian's epsilon at ``delta`` for adding or removing a record; None if trivial.

    P = ((1-q) N(0,1) + q N(mu,1))^T and P' = N(0,1)^T, mu = 1 / ``multiplier``.
    Multipliers below 1/20 are replaced by 1/20, which is valid because an attacker can always add noise.
    Example: multiplier 1.358992, rate 0.01, 1000 steps and delta 1e-5 exceed epsilon 1.01.
    """
    multiplier = max(Fraction(multiplier), _LEAST_MULTIPLIER)
    mu, rate = 1 / float(multiplier), min(float(sample_rate), _NEARLY_ALL)
    least, most = math.log1p(-rate), _sampled_loss(mu * (mu / 2 + 10), rate)
    spread = mu * rate * math.sqrt(steps) * math.exp(min(mu * mu / 2, 50.0))
    # Most of the sum comes from steps in which the record is not drawn, so many steps need many scores.
    length = min(max(_LENGTH, int(-200 * steps * least)), _LONGEST)
    width = max((min(6 * spread + 2, steps * most, _MOST_LOSS) - steps * least) / length, (most - least) / length)
    cuts = [
        Fraction(_full_loss(least + width * j, rate) / mu + mu / 2) for j in range(1, int((most - least) / width) + 1)
    ]

    def law(shift: Rational) -> list[arb]:
        return _masses([normal_cdf(ball(cut) - ball(shift)) for cut in cuts])

    return _floor(
        law, 1 / Fraction(multiplier), sample_rate, steps, delta, _Scale(least=least, width=width, length=length)
    )


def laplace_floor(scale: Rational, sample_rate: Rational, steps: int, delta: Rational) -> LowerEvent | None:
    """A lower bound like ``gaussian_floor`` for Laplace noise of ``scale`` / sensitivity, replaced by 1/50 if smaller.

    That is valid because Laplace noise is the sum of smaller Laplace noise and independent noise: the ratio of their
    characteristic functions is a characteristic function.
    """
    scale = max(Fraction(scale), _LEAST_SCALE)
    rate, b = min(float(sample_rate), _NEARLY_ALL), float(scale)
    least, most = _sampled_loss(-1 / b, rate), _sampled_loss(1 / b, rate)
    width = max((most - least) / 400, steps * (most - least) / _LENGTH)
    count = int((most - least) / width)
    cuts = [Fraction((1 + b * _full_loss(least + width * j, rate)) / 2) for j in range(1, count + 1)]
    cuts = [min(max(cut, Fraction(0)), Fraction(1)) for cut in cuts]

    def law(shift: Rational) -> list[arb]:
        return _masses([_laplace_cdf((ball(cut) - ball(shift)) / ball(scale), cut >= shift) for cut in cuts])

    return _floor(law, 1, sample_rate, steps, delta, _Scale(least=least, width=width, length=_LENGTH))


def gaussian_ceiling(multiplier: Rational, sample_rate: Rational, steps: int, delta: Rational) -> Interval:
    """An epsilon that holds at ``delta``, from Renyi divergences of integer orders, which have a closed form.

    Mironov, Talwar and Zhang 2019, section 3.3 and theorem 5 (both directions); conversion of Canonne, Kamath and
    Steinke 2020, proposition 12. The upper end is the bound.
    """
    best: Interval | None = None
    for order in _ORDERS:
        epsilon = enclose(lambda a=order: _renyi(a, multiplier, sample_rate, steps, delta), bits=40)  # type: ignore[misc]
        if best is None or epsilon.high < best.high:
            best = epsilon
        elif epsilon.high > 2 * best.high:
            break
    assert best is not None
    return best


def best_of_geometric(
    multiplier: Rational, sample_rate: Rational, steps: int, mean_runs: Rational, delta: Rational
) -> Interval:
    """An epsilon that holds for the best of a geometrically distributed number of runs, ``mean_runs`` on average.

    Papernot and Steinke 2022, theorem 2 with eta = 1 and gamma = 1 / ``mean_runs``: the divergence of order a is at
    most D_a + ln(mean) / (a - 1) + 2 min over b of ((1 - 1/b) D_b + ln(mean) / b). The upper end is the bound.
    """

    def other(order: int) -> arb:
        return _divergence(order, multiplier, sample_rate, steps) * (order - 1) / order + ball(mean_runs).log() / order

    chosen = enclose(lambda: _least(other(order) for order in _ORDERS_OF_RUNS), bits=40)

    def bound(order: int) -> arb:
        divergence = _divergence(order, multiplier, sample_rate, steps) + ball(mean_runs).log() / (order - 1)
        return divergence + 2 * ball(chosen.high) + _conversion(order, delta)

    return enclose(lambda: _least(bound(order) for order in _ORDERS_OF_RUNS), bits=40)


def _least(values: Iterable[arb]) -> arb:
    return reduce(lambda a, b: a.min(b), values)


def _renyi(order: int, multiplier: Rational, rate: Rational, steps: int, delta: Rational) -> arb:
    return _divergence(order, multiplier, rate, steps) + _conversion(order, delta)


def _conversion(order: int, delta: Rational) -> arb:
    return (1 - ball(Fraction(1, order))).log() - (ball(delta) * order).log() / (order - 1)


def _divergence(order: int, multiplier: Rational, rate: Rational, steps: int) -> arb:
    from flint import arb, fmpz

    q, precision = ball(rate), ball(1 / Fraction(multiplier) ** 2)
    total = arb(0)
    for k in range(order + 1):
        total += arb(fmpz(math.comb(order, k))) * (1 - q) ** (order - k) * q**k * (precision * k * (k - 1) / 2).exp()
    return steps * total.log() / (order - 1)


def _sampled_loss(loss: float, rate: float) -> float:
    """The loss log(1 - q + q e^loss). Any bins are valid, so floats suffice here."""
    if loss > _LARGE:
        return loss + math.log(rate)
    return math.log1p(rate * math.expm1(loss))


def _full_loss(loss: float, rate: float) -> float:
    """The inverse of ``_sampled_loss``."""
    if loss > _LARGE:
        return loss - math.log(rate)
    return math.log(max((math.expm1(loss) + rate) / rate, 1e-300))


def _laplace_cdf(x: arb, above: bool) -> arb:
    return 1 - (-x).exp() / 2 if above else x.exp() / 2


def _masses(cdf: list[arb]) -> list[arb]:
    from flint import arb

    ends = [arb(0), *cdf, arb(1)]
    return [after - before for before, after in pairwise(ends)]


def _floor(
    law: Callable[[Rational], list[arb]],
    shift: Rational,
    rate: Rational,
    steps: int,
    delta: Rational,
    scale: _Scale,
) -> LowerEvent | None:
    from flint import ctx

    with ctx.workprec(_PRECISION):
        plain, moved, q = law(0), law(shift), ball(rate)
        mixed = [(1 - q) * a + q * b for a, b in zip(plain, moved, strict=True)]
        below_p, below_q = _power(mixed, steps, scale.length), _power(plain, steps, scale.length)
        best: tuple[float, int, Fraction, Fraction] | None = None
        total_p, total_q = ball(0), ball(0)
        for score, (a, b) in enumerate(zip(below_p, below_q, strict=False)):
            p, q_tail = float((1 - total_p).lower()), max(float((1 - total_q).upper()), _LEAST_TAIL)
            if p > delta:
                gain = math.log((p - float(delta)) / q_tail)
                if best is None or gain > best[0]:
                    best = (gain, score, rounded_outward(1 - total_p).low, rounded_outward(1 - total_q).high)
            total_p, total_q = total_p + a, total_q + b
    if best is None or best[2] <= delta or best[3] <= 0 or best[2] - delta <= best[3]:
        return None
    _, score, p_, q_ = best
    return LowerEvent(
        epsilon=enclose(lambda: (ball(p_ - delta) / ball(q_)).log()).low,
        delta=Fraction(delta),
        least=scale.least,
        width=scale.width,
        score=score,
        p=p_,
        q=q_,
    )


def _power(masses: list[arb], steps: int, length: int) -> list[arb]:
    """The first coefficients of (sum_j masses[j] z^j)^steps, the distribution of the sum of scores."""
    from flint import arb_poly

    base, result = arb_poly(masses).truncate(length), arb_poly([1])
    while steps:
        if steps & 1:
            result = (result * base).truncate(length)
        steps >>= 1
        if steps:
            base = (base * base).truncate(length)
    return list(result.coeffs())
