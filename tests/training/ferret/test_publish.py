"""What is released of a sum: signs, bounded ones with noise, clipped sums with noise, signs turned round at random."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy.stats import binomtest, chi2
from torch import Tensor

from privctl.randomness import NoiseSource
from privctl.training.ferret.publish import (
    DitheredSigns,
    NoisySums,
    Publish,
    Publisher,
    Responses,
    Signs,
    clipped,
    signs,
)

ALPHA = 1e-4
RUNS = 3000


def noisy(shown: Publish, noise: float = 2.0) -> NoisySums:
    return NoisySums(noise_multiplier=noise, clip_norm=0.5, batch_size=8.0, shown=shown, source=NoiseSource(3))


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
        assert binomtest(flips(publisher, value), RUNS, chance).pvalue > ALPHA
        assert binomtest(flips(publisher, value), RUNS, chance / 2).pvalue < ALPHA


def test_responses_keep_a_sign_with_the_stated_odds() -> None:
    publisher = Responses(bit_epsilon=1.0, source=NoiseSource(5))
    assert binomtest(flips(publisher, 3.0), RUNS, 1 / (1 + math.e)).pvalue > ALPHA
    assert binomtest(flips(publisher, 3.0), RUNS, 1 / (1 + math.exp(1.5))).pvalue < ALPHA
    # Bits of one step are turned independently.
    both = torch.stack([publisher.publish(step, torch.ones(2, dtype=torch.float64)) for step in range(RUNS)])
    assert abs(float(np.corrcoef(both.T.numpy())[0, 1])) < 4 / math.sqrt(RUNS)
    assert flips(Responses(bit_epsilon=60.0, source=NoiseSource(6)), 1.0) == 0


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_noise_that_is_none_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        noisy(Publish.SIGN, value)
    with pytest.raises(ValueError, match="bit_epsilon"):
        Responses(bit_epsilon=value, source=NoiseSource())
