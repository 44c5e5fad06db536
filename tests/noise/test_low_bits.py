"""The attack of Mironov (2012) on Gaussian noise: what x + z can be, in float32, shows much of x.

An attacker knows two candidates for the weights, which differ by little, and sees one release. A coordinate whose value
no deviate of float32 can make of one candidate tells that it was the other. The grid leaves nothing to tell.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from privctl.accounting.gaussian import noise_multiplier_for
from privctl.cli import run
from privctl.randomness import BLOCK, NoiseSource
from privctl.randomness.gridded import spacing

COINS, COUNT = 6, BLOCK
#: Epsilon 0.1 at delta 1e-6 for two candidates at distance 1: told apart with an advantage of 2 % at most.
STDDEV = noise_multiplier_for(0.1, 1e-6)

Release = Callable[[np.ndarray, int], np.ndarray]


def candidates() -> tuple[np.ndarray, np.ndarray]:
    """Two sets of weights a distance of 1 apart, a few times smaller than the noise, as finished weights are."""
    source = np.random.default_rng(0)
    weights = (source.normal(size=COUNT) * STDDEV / 4).astype(np.float32)
    moved = (weights + source.normal(size=COUNT) / math.sqrt(COUNT)).astype(np.float32)
    return weights, moved


def as_sums(weights: np.ndarray, coin: int) -> np.ndarray:
    """What was done before: a float32 deviate, its 31 bits of radius and of angle, added in float32."""
    words = NoiseSource(coin).words(0, 0, COUNT).view(np.int32)[:COUNT]
    floats = words.astype(np.float32)
    u = np.abs(floats[: COUNT // 2] * np.float32(2.0**-31) + np.float32(2.0**-32))
    radius = np.sqrt(np.float32(-2 * STDDEV * STDDEV) * np.log(u))
    angle = floats[COUNT // 2 :] * np.float32(math.pi * 2.0**-31)
    noise = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
    assert noise.dtype == np.float32
    released: np.ndarray = weights + noise
    return released


def on_the_grid(weights: np.ndarray, coin: int) -> np.ndarray:
    released = weights.copy()
    NoiseSource(coin).release(0, 0, released, STDDEV)
    return released


def impossible(released: np.ndarray, weights: np.ndarray) -> int:
    """How many coordinates no float32 deviate makes of ``weights``: none near the difference gives the sum."""
    needed = released.astype(np.float64) - weights
    near = needed.astype(np.float32)
    chosen = np.zeros(len(needed), np.bool_)
    for deviate in (np.nextafter(near, np.float32(-np.inf)), near, np.nextafter(near, np.float32(np.inf))):
        chosen |= (weights + deviate).astype(np.float32) == released
    return int((~chosen).sum())


def counted(release: Release) -> list[tuple[int, int]]:
    """For each coin, how many coordinates speak against the candidate that was noised, and against the other."""
    both = candidates()
    found = []
    for coin in range(COINS):
        released = release(both[coin % 2], coin)
        found.append((impossible(released, both[coin % 2]), impossible(released, both[1 - coin % 2])))
    return found


def test_the_low_bits_of_float_sums_tell_every_coin() -> None:
    """So would the old noise do today: no coordinate speaks against the truth, thousands against the other."""
    for right, wrong in counted(as_sums):
        assert right == 0
        assert wrong > 1000


def test_the_grid_tells_none() -> None:
    for right, wrong in counted(on_the_grid):
        assert abs(right - wrong) < 5 * math.sqrt(right + wrong + 1)
    released = on_the_grid(candidates()[0], 0)
    assert np.array_equal(released, np.rint(released / spacing(STDDEV)) * spacing(STDDEV)), (
        "either could be any of these"
    )


@pytest.mark.parametrize("coin", range(2))
def test_a_whole_run_of_noise_writes_no_low_bits(coin: int, tmp_path: Path, write_model: Callable[..., Path]) -> None:
    """The attack on what the command writes."""
    both = candidates()
    model = write_model(tmp_path / "m.safetensors", {"w": both[coin]})
    facts = "--epochs 10 --learning-rate 5e-5 --clip-norm 1 --dataset-size 1000 --batch-size 5"
    assert run(["noise", str(model), "-q", "--calibration", "gaussian", "--regime", "convex", *facts.split()]) == 0
    released = load_file(tmp_path / "m.private.safetensors")["w"]
    counts = [impossible(released, weights) for weights in both]
    assert abs(counts[0] - counts[1]) < 5 * math.sqrt(sum(counts) + 1)
