"""Powers of a transform after very many steps: few coefficients are left, and only these are computed."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from privctl.accounting import three_point
from privctl.accounting.pld import spectrum
from privctl.accounting.pld.spectrum import StepSpectrum, power

MANY = 10**6
#: The spread of the sums is 500 steps, so this window holds all but 1e-200 of them.
SIZE = 1 << 16


def tossed(share: float = 0.5) -> StepSpectrum:
    return StepSpectrum(np.array([1 - share, share]), 0, MANY)


def off(composed: Any) -> float:
    """The largest error of the masses of ``MANY`` tosses, in margins."""
    first = MANY // 2 - SIZE // 2
    sums = first + (composed.offset + np.arange(SIZE) - first) % SIZE
    exact = binom.pmf(sums, MANY, 0.5)
    # scipy's own error is relative.
    return float(np.max((np.abs(composed.masses - exact) - 1e-9 * exact) / composed.margin))


@pytest.mark.parametrize("long", [False, True])
def test_a_million_tosses_are_binomial(long: bool) -> None:
    assert off(power([tossed()], SIZE, long=long)) <= 1


def test_coefficients_that_count_are_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectrum, "_VANISHED", -4.0)
    composed = power([tossed()], SIZE)
    assert composed.margin > 0.01, "what is left out is in the margin"
    monkeypatch.setattr(spectrum, "math", Without("exp"))
    assert off(power([tossed()], SIZE)) > 1


class Without:
    """The module ``math``, with 0 for what the function ``name`` returns for small numbers."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        whole = getattr(math, name)
        return (lambda x: 0.0 if x < -1 else whole(x)) if name == self._name else whole


@pytest.mark.parametrize("parts", [1, 2])
def test_few_coefficients_are_computed(parts: int, counted: dict[str, int]) -> None:
    power([tossed() for _ in range(parts)], SIZE)
    assert counted["log"] == pytest.approx(2 * parts * counted["cos"])
    assert 10 < counted["cos"] < SIZE / 2 / 20


@pytest.mark.parametrize("slack", [1e-3, 1e-30])
def test_a_million_responses_at_random(slack: float, counted: dict[str, int]) -> None:
    """The loss is loss (2 K - steps) with binomial K; the bound is met at the epsilon that is returned."""
    loss = 1e-3
    epsilon = three_point.epsilon_at(slack, loss, 1.0, MANY)
    counted.clear()
    bound = three_point.log_delta(epsilon, loss, 1.0, MANY)
    assert 10 < counted["arctan2"] < 2000, "of the 16385 coefficients of a window of 24000"
    yes = np.arange(MANY // 2, MANY // 2 + 30_000)
    losses = loss * (2 * yes - MANY)
    above = losses > epsilon
    masses = np.exp(binom.logpmf(yes[above], MANY, 1 / (1 + math.exp(-loss))))
    exact = math.log(float(np.sum(masses * -np.expm1(epsilon - losses[above]))))
    assert exact - 1e-8 <= bound <= exact + 1e-6
    assert bound <= math.log(slack)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How many numbers were passed to slow functions of numpy, by the functions' names."""
    found: dict[str, int] = {}

    def counting(name: str) -> Any:
        whole = getattr(np, name)

        def count(values: Any, *more: Any, **options: Any) -> Any:
            found[name] = found.get(name, 0) + np.size(values)
            return whole(values, *more, **options)

        return count

    for name in ("cos", "log", "arctan2"):
        monkeypatch.setattr(np, name, counting(name))
    return found
