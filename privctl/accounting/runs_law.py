"""The distribution of the secret, random number of runs of which the best is released (Papernot and Steinke 2022).

Truncated negative binomial with a shape (1 is geometric, 0 logarithmic), or, for shape None, Poisson, where the number
may be 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from types import MappingProxyType

from privctl.accounting.brackets import threshold_bracket

#: Name of a distribution -> its shape.
LAWS = MappingProxyType({"geometric": 1.0, "logarithmic": 0.0, "poisson": None})
#: Logarithm of a bound on the probability of more than ``most_runs`` runs, far below the rounding of any delta.
LOG_BEYOND = -100.0
#: Decimal digits of the probabilities, and bits of the uniform number used for a draw.
_DIGITS, BITS = 120, 320
#: The largest mean number of runs that is supported.
MOST_MEAN = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberOfRuns:
    """The distribution of the number of runs: its ``mean`` and ``shape``."""

    mean: float
    shape: float | None

    @property
    def most(self) -> int:
        """The largest number of runs that is ever drawn."""
        return most_runs(self.mean, self.shape)


def name_of(shape: float | None) -> str:
    """The name of the distribution with this ``shape``."""
    named = next((name for name, known in LAWS.items() if known == shape), None)
    return named or f"truncated negative binomial, shape {shape:g}"


def shape_of(name: str) -> float | None:
    """The shape of the distribution ``name``, None for Poisson; raises ValueError for an unknown name."""
    if name not in LAWS:
        raise ValueError(f"runs_law is {name}; it must be one of {', '.join(LAWS)}")
    return LAWS[name]


def gamma_of(mean: float, shape: float) -> float:
    """The parameter gamma in (0, 1) of the truncated negative binomial distribution with this ``mean`` above 1."""

    def is_above(log_gamma: float) -> bool:
        rest = -math.expm1(log_gamma)
        if shape == 0:
            return math.log(rest) - log_gamma - math.log(-log_gamma) <= math.log(mean)
        return math.log(shape * rest) - log_gamma - math.log(-math.expm1(shape * log_gamma)) <= math.log(mean)

    # Rounded down, which only increases the divergence.
    return math.exp(threshold_bracket(is_above, -700.0, -1e-12, within=1e-14)[0]) * (1 - 1e-12)


def draw(mean: float, shape: float | None, bits: int) -> int:
    """Draw a number of runs, at most ``most_runs``, from ``bits``, a secret uniform integer of ``BITS`` bits."""
    most = most_runs(mean, shape)
    with localcontext() as context:
        context.prec = _DIGITS
        remaining = Decimal(bits) / Decimal(2) ** BITS
        for count, probability in _probabilities(mean, shape):
            remaining -= probability
            if remaining < 0 or count >= most:
                return count
    raise AssertionError("the probabilities have no end")


def most_runs(mean: float, shape: float | None) -> int:
    """A number of runs that is exceeded with probability at most exp(``LOG_BEYOND``); for shapes up to 1.

    For a truncated negative binomial, each count is at most 1 - gamma times as likely as the one before, so more than n
    runs have probability at most (1 - gamma)^n.
    """
    if shape is not None:
        if shape > 1:
            raise ValueError(f"shape is {shape:g}; it must be at most 1")
        return 1 if mean == 1 else math.ceil(LOG_BEYOND / math.log1p(-gamma_of(mean, shape)))
    with localcontext() as context:
        context.prec = _DIGITS
        remaining, small = Decimal(1), Decimal(LOG_BEYOND).exp()
        for count, probability in _probabilities(mean, shape):
            remaining -= probability
            if remaining <= small:
                return count
    raise AssertionError("the probabilities have no end")


def _probabilities(mean: float, shape: float | None) -> Iterator[tuple[int, Decimal]]:
    """Each possible number of runs with its probability; raises ValueError for a mean out of range."""
    if not 1 <= mean <= MOST_MEAN:
        raise ValueError(f"expected_runs is {mean:g}; it must be at least 1 and at most {MOST_MEAN:g}")
    average = Decimal(mean)
    if shape is None:
        probability, count = (-average).exp(), 0
        while True:
            yield count, probability
            count += 1
            probability *= average / count
    if mean == 1:
        yield 1, Decimal(1)
        return
    gamma, eta = _exact_gamma(average, Decimal(shape)), Decimal(shape)
    rest = 1 - gamma
    probability = rest / -gamma.ln() if shape == 0 else eta * rest / ((-eta * gamma.ln()).exp() - 1)
    count = 1
    while True:
        yield count, probability
        probability *= rest * (count + eta) / (count + 1)
        count += 1


@lru_cache(maxsize=8)
def _exact_gamma(mean: Decimal, shape: Decimal) -> Decimal:
    """Gamma to all digits, with a mean of at most ``mean``: a lower mean costs no more than was accounted for."""
    if shape == 1:
        return 1 / mean
    low, high = Decimal(0), Decimal(800)
    for _ in range(3 * _DIGITS):  # bisection in -log gamma, with which the mean increases
        middle = (low + high) / 2
        rest = 1 - (-middle).exp()
        scaled_mean = rest / middle if shape == 0 else shape * rest / (1 - (-shape * middle).exp())
        low, high = (low, middle) if scaled_mean * middle.exp() > mean else (middle, high)
    return (-low).exp()
