"""What is released of a sum: signs, bounded ones with noise, clipped sums with noise, signs turned round at random."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, cast

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chi2
from torch import Tensor

from privctl.randomness import NoiseSource
from privctl.train.directional.clipped import clipped
from privctl.train.methods.ferret.publish import (
    DitheredSigns,
    NoisySums,
    Publisher,
    Responses,
    Signs,
    flips_of,
    signs,
)
from privctl.train.methods.ferret.settings import Publish

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALPHA = 1e-4
RUNS = 600


def noisy(publish: Publish, noise: float = 2.0) -> NoisySums:
    return NoisySums(noise_multiplier=noise, clip_norm=0.5, batch_size=8.0, shown=publish, source=NoiseSource(3))


def test_the_sign_of_zero_is_one_and_minus_zero_is_zero() -> None:
    assert signs(torch.tensor([0.0, -0.0, 1e-300, -1e-300], dtype=torch.float64)).tolist() == [1, 1, 1, -1]
    assert Signs().publish(0, torch.tensor([0.0, -2.0])).tolist() == [1, -1]


def test_vectors_are_clipped_as_vectors_and_what_is_no_number_is_zero() -> None:
    vectors = torch.tensor([[3.0, 4.0], [0.3, 0.4], [math.nan, 1.0], [math.inf, 0.0], [0.0, 0.0]], dtype=torch.float64)
    total, norms = clipped(vectors, 1.0)
    assert total.tolist() == pytest.approx([0.9, 1.2])
    assert norms[:2].tolist() == pytest.approx([5, 0.5])
    assert norms.isnan().tolist() == [False, False, True, True, False]
    # No example moves the sum by more than the norm, however large.
    assert float(clipped(torch.tensor([[1e200, -1e200]], dtype=torch.float64), 1.0)[0].norm()) <= 1 + 1e-12


def noise_is(publisher: Publisher, stated: float) -> float:
    """P-value of the published values' variance around their mean being ``stated`` squared, two-sided."""
    sums = torch.tensor([1.0, -3.0, 0.25], dtype=torch.float64)
    found = torch.stack([publisher.publish(step, sums) for step in range(RUNS)])
    square = float(((found - sums / 8) ** 2).sum()) / stated**2
    below = float(chi2.cdf(square, 3 * RUNS))
    return 2 * min(below, 1 - below)


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfNoise(NoisySums):
    """Half the standard deviation that was asked for."""

    def publish(self, step: int, sums: Tensor) -> Tensor:
        return (NoisySums.publish(self, step, sums) + sums / self.batch_size) / 2


def test_the_noise_has_the_stated_size_and_half_of_it_is_found() -> None:
    stated = 2.0 * 0.5 / 8
    assert noise_is(noisy(Publish.VALUE), stated) > ALPHA
    half = HalfNoise(noise_multiplier=2.0, clip_norm=0.5, batch_size=8.0, shown=Publish.VALUE, source=NoiseSource(3))
    assert noise_is(half, stated) < ALPHA
    assert noise_is(noisy(Publish.VALUE), stated / 2) < ALPHA


def flips(publisher: Publisher, value: float) -> int:
    return sum(int(publisher.publish(step, torch.tensor([value])).item() < 0) for step in range(RUNS))


def test_noisy_signs_turn_as_often_as_the_noise_says() -> None:
    for publisher, shift in (
        (noisy(Publish.SIGN), 0.7),
        (DitheredSigns(noise_multiplier=2.0, bound=0.5, batch_size=8.0, source=NoiseSource(4)), 0.5),
    ):
        # 0.7 of noise 1 for the sum; a mean of 10 is bounded to 0.5 of noise 1.
        chance = 0.5 * math.erfc(shift / math.sqrt(2))
        value = 0.7 if isinstance(publisher, NoisySums) else 80.0
        turned = flips(publisher, value)
        assert binomtest(turned, RUNS, chance).pvalue > ALPHA
        assert binomtest(turned, RUNS, chance / 2).pvalue < ALPHA


def test_responses_keep_a_sign_with_the_stated_odds() -> None:
    publisher = Responses(bit_epsilon=1.0, source=NoiseSource(5))
    turned = flips(publisher, 3.0)
    assert binomtest(turned, RUNS, 1 / (1 + math.e)).pvalue > ALPHA
    assert binomtest(turned, RUNS, 1 / (1 + math.exp(1.5))).pvalue < ALPHA
    # Bits of one step are turned independently.
    both = torch.stack([publisher.publish(step, torch.ones(2, dtype=torch.float64)) for step in range(RUNS)])
    assert abs(float(np.corrcoef(both.T.numpy())[0, 1])) < 4 / math.sqrt(RUNS)
    assert flips(Responses(bit_epsilon=40.0, source=NoiseSource(6)), 1.0) == 0


def rounded_to_nearest(bit_epsilon: float) -> int:
    return int(mpmath.nint(mpmath.mpf(2) ** 64 / (1 + mpmath.exp(mpmath.mpf(bit_epsilon)))))


def by_floats(bit_epsilon: float) -> int:
    """Flips when the probability of keeping is computed in double precision."""
    return 2**64 - min(int(2.0**64 / (1 + np.exp(-bit_epsilon))), 2**64 - 2**12)


def odds_are_at_most_the_claim(flips: Callable[[float], int], bit_epsilon: float) -> bool:
    """Whether kept / flipped, an exact fraction, is at most e^``bit_epsilon``, by its Taylor series from below."""
    turned = flips(bit_epsilon)
    power, term, total = Fraction(bit_epsilon), Fraction(1), Fraction(0)
    for k in range(1, 220):
        total, term = total + term, term * power / k
    return Fraction(2**64 - turned, turned) <= total


ODDS = [1e-9, 0.1, 1.0, 10.0, 30.0, 35.6, 40.0, 44.0]


@pytest.mark.parametrize("bit_epsilon", ODDS)
def test_the_true_odds_never_exceed_the_claim_and_one_flip_fewer_would(bit_epsilon: float) -> None:
    with mpmath.workdps(60):
        assert odds_are_at_most_the_claim(flips_of, bit_epsilon)
        assert not odds_are_at_most_the_claim(lambda e: flips_of(e) - 1, bit_epsilon)
        nearest = rounded_to_nearest(bit_epsilon)
        assert odds_are_at_most_the_claim(lambda e: nearest, bit_epsilon) == (nearest == flips_of(bit_epsilon))


def test_rounding_to_nearest_is_noticed() -> None:
    with mpmath.workdps(60):
        assert not odds_are_at_most_the_claim(rounded_to_nearest, 35.6)
        assert not odds_are_at_most_the_claim(by_floats, 30.0)


@dataclass(frozen=True, slots=True)
class Given:
    """A source of these words."""

    values: tuple[int, ...]

    def words(self, step: int, block: int, count: int) -> NDArray[np.uint64]:
        return np.array(self.values[:count], dtype=np.uint64)


@pytest.mark.parametrize("bit_epsilon", [0.1, 35.6, 44.0])
def test_exactly_the_counted_words_flip(bit_epsilon: float) -> None:
    threshold = flips_of(bit_epsilon)
    source = cast("NoiseSource", Given((0, threshold - 1, threshold, 2**64 - 1)))
    words = Responses(bit_epsilon=bit_epsilon, source=source).publish(0, torch.ones(4, dtype=torch.float64))
    assert words.tolist() == [-1, -1, 1, 1]


def test_odds_beyond_the_random_bits_are_refused() -> None:
    with pytest.raises(ValueError, match="bit_epsilon is 45; .* log-odds up to 44"):
        Responses(bit_epsilon=45.0, source=NoiseSource())


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_noise_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        noisy(Publish.SIGN, value)
    with pytest.raises(ValueError, match="bit_epsilon"):
        Responses(bit_epsilon=value, source=NoiseSource())
