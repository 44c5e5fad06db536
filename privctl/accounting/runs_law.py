"""The law of a secret, random number of runs of which the best is released (Papernot and Steinke 2022).

Truncated negative binomial with a shape (1 is the geometric, 0 the logarithmic law), or Poisson, where the shape is
None and no run at all may happen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from types import MappingProxyType

from privctl.accounting.brackets import threshold_bracket

#: Name of a law -> its shape.
LAWS = MappingProxyType({"geometric": 1.0, "logarithmic": 0.0, "poisson": None})
#: More than ``most_runs`` have a probability of at most e to this, which is far below the rounding of any delta.
LOG_BEYOND = -100.0
#: Digits that chances are drawn with, and bits of the uniform number that a draw takes.
_DIGITS, BITS = 120, 320
#: No law of so many runs on average is drawn from.
MOST_MEAN = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberOfRuns:
    """A random number of runs: its ``mean``, and the ``shape`` of its law."""

    mean: float
    shape: float | None

    @property
    def most(self) -> int:
        """More runs than these there are never."""
        return most_runs(self.mean, self.shape)


def name_of(shape: float | None) -> str:
    """The law of this ``shape`` in words."""
    named = next((name for name, known in LAWS.items() if known == shape), None)
    return named or f"truncated negative binomial, shape {shape:g}"


def shape_of(name: str) -> float | None:
    """The shape of the law called ``name``, None for Poisson; raises ValueError for another name."""
    if name not in LAWS:
        raise ValueError(f"runs_law is {name}; it must be one of {', '.join(LAWS)}")
    return LAWS[name]


def gamma_of(mean: float, shape: float) -> float:
    """The parameter gamma in (0, 1) of the truncated negative binomial law with this ``mean`` above 1."""

    def is_above(log_gamma: float) -> bool:
        rest = -math.expm1(log_gamma)
        if shape == 0:
            return math.log(rest) - log_gamma - math.log(-log_gamma) <= math.log(mean)
        return math.log(shape * rest) - log_gamma - math.log(-math.expm1(shape * log_gamma)) <= math.log(mean)

    # Rounded down, which only adds to the divergence.
    return math.exp(threshold_bracket(is_above, -700.0, -1e-12, within=1e-14)[0]) * (1 - 1e-12)


def draw(mean: float, shape: float | None, bits: int) -> int:
    """A number of runs, from ``bits``: a secret, uniform whole number of ``BITS`` bits; at most ``most_runs``."""
    most = most_runs(mean, shape)
    with localcontext() as context:
        context.prec = _DIGITS
        left = Decimal(bits) / Decimal(2) ** BITS
        for count, chance in _chances(mean, shape):
            left -= chance
            if left < 0 or count >= most:
                return count
    raise AssertionError("the chances of a law have no end")


def most_runs(mean: float, shape: float | None) -> int:
    """A number of runs that is exceeded with a probability of at most exp(``LOG_BEYOND``); for shapes up to 1.

    Of a truncated law each further run is then at most 1 - gamma times as likely as the one before, so more than n runs
    have a probability of at most (1 - gamma)^n.
    """
    if shape is not None:
        if shape > 1:
            raise ValueError(f"shape is {shape:g}; it must be at most 1")
        return 1 if mean == 1 else math.ceil(LOG_BEYOND / math.log1p(-gamma_of(mean, shape)))
    with localcontext() as context:
        context.prec = _DIGITS
        left, small = Decimal(1), Decimal(LOG_BEYOND).exp()
        for count, chance in _chances(mean, shape):
            left -= chance
            if left <= small:
                return count
    raise AssertionError("the chances of a law have no end")


def _chances(mean: float, shape: float | None) -> Iterator[tuple[int, Decimal]]:
    """Each possible number of runs with its probability; raises ValueError for a mean out of range."""
    if not 1 <= mean <= MOST_MEAN:
        raise ValueError(f"expected_runs is {mean:g}; it must be at least 1 and at most {MOST_MEAN:g}")
    average = Decimal(mean)
    if shape is None:
        chance, count = (-average).exp(), 0
        while True:
            yield count, chance
            count += 1
            chance *= average / count
    if mean == 1:
        yield 1, Decimal(1)
        return
    gamma, of_shape = _exact_gamma(average, Decimal(shape)), Decimal(shape)
    gone = 1 - gamma
    chance = gone / -gamma.ln() if shape == 0 else of_shape * gone / ((-of_shape * gamma.ln()).exp() - 1)
    count = 1
    while True:
        yield count, chance
        chance *= gone * (count + of_shape) / (count + 1)
        count += 1


@lru_cache(maxsize=8)
def _exact_gamma(mean: Decimal, shape: Decimal) -> Decimal:
    """Gamma to all digits, with the mean at most ``mean``: a lower mean costs no more than was accounted for."""
    if shape == 1:
        return 1 / mean
    low, high = Decimal(0), Decimal(800)
    for _ in range(3 * _DIGITS):  # of -log gamma, with which the mean rises
        middle = (low + high) / 2
        rest = 1 - (-middle).exp()
        told = rest / middle if shape == 0 else shape * rest / (1 - (-shape * middle).exp())
        low, high = (low, middle) if told * middle.exp() > mean else (middle, high)
    return (-low).exp()
