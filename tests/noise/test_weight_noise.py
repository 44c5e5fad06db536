"""Noise on weights: right distribution, right rounding, nothing left bare, nothing noised that must not be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from scipy import stats

from privctl.domain.errors import InputError
from privctl.noise.weight_noise import FLOAT_VIEWS, WeightNoiser
from privctl.randomness import BLOCK, NoiseSource
from privctl.randomness.deviates import float64_deviates
from privctl.randomness.formats import narrow, widen
from privctl.randomness.gridded import increments, spacing
from privctl.randomness.keystream import BlockKeystream
from privctl.storage.header import DTYPE_BITS, TensorInfo
from privctl.storage.stream import CHUNK, pieces
from tests.few import few

FLOATS = ("F64", "F32", "F16", "BF16")
LEVEL = 1e-9


def to_bf16(values: np.ndarray) -> np.ndarray:
    """torch's rounding to bfloat16, as its bits."""
    return torch.from_numpy(values.astype(np.float32)).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    return torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).to(torch.float32).numpy()


def stored(values: np.ndarray, dtype: str) -> np.ndarray:
    """``values`` in the format ``dtype``."""
    return to_bf16(values) if dtype == "BF16" else values.astype(FLOAT_VIEWS[dtype])


def numbers(array: np.ndarray, dtype: str) -> np.ndarray:
    """What an array in the format ``dtype`` means."""
    with np.errstate(invalid="ignore"):  # signalling NaN
        return (from_bf16(array) if dtype == "BF16" else array).astype(np.float64)


def noised(
    tensors: Mapping[str, tuple[str, np.ndarray]], stddevs: Sequence[float], streams: Mapping[str, int], seed: int = 1
) -> list[dict[str, np.ndarray]]:
    """Each candidate's tensors, made as a rewrite makes them."""
    infos, position = [], 0
    for name, (dtype, array) in tensors.items():
        infos.append(TensorInfo(name, dtype, array.shape, position, position + array.nbytes))
        position += array.nbytes
    out = [{name: bytearray(array.nbytes) for name, (_, array) in tensors.items()} for _ in stddevs]
    noiser = WeightNoiser(NoiseSource(seed), stddevs, streams)
    for piece in pieces(infos):
        name, here = piece.tensor.name, slice(piece.start, piece.start + piece.size)
        buffers = [memoryview(bytearray(piece.size)) for _ in stddevs]
        buffers[0][:] = tensors[name][1].tobytes()[here]
        noiser(piece, buffers)
        for candidate, buffer in zip(out, buffers, strict=True):
            candidate[name][here] = buffer
    return [
        {name: np.frombuffer(c[name], array.dtype).reshape(array.shape) for name, (_, array) in tensors.items()}
        for c in out
    ]


def privatized(dtype: str, array: np.ndarray, stddev: float, seed: int = 1) -> np.ndarray:
    return noised({"w": (dtype, array)}, [stddev], {"w": 0}, seed)[0]["w"]


def released(dtype: str, values: np.ndarray, stddev: float, seed: int = 1) -> np.ndarray:
    """The grid's points that ``values`` become, in the precision used for ``dtype``, before any rounding to it."""
    source, wide = NoiseSource(seed), np.float64 if dtype == "F64" else np.float32
    per_block = min(BLOCK, CHUNK * 8 // DTYPE_BITS[dtype])
    out = values.astype(wide)
    for block, start in enumerate(range(0, len(out), per_block)):
        source.release(0, block, out[start : start + per_block], stddev)
    return out


@pytest.mark.parametrize("dtype", few(FLOATS, 1, 3))
def test_noise_has_the_standard_deviation_asked_for(dtype: str) -> None:
    weights = np.random.default_rng(0).normal(size=1_500_000) * 0.02
    before = stored(weights, dtype)
    difference = numbers(privatized(dtype, before, 0.5), dtype) - numbers(before, dtype)
    n = len(difference)
    assert 2 * stats.norm.sf(abs(difference.mean() / 0.5) * math.sqrt(n)) > LEVEL
    # Rounding to a half format adds its own small variance, at most an ulp of 4.
    rounding = {"F64": 0.0, "F32": 0.0, "F16": 2e-3, "BF16": 1.6e-2}[dtype]
    spread = 5 / math.sqrt(2 * n) + rounding**2
    assert difference.std() / 0.5 == pytest.approx(1, abs=spread)
    more = numbers(privatized(dtype, before, 0.51), dtype) - numbers(before, dtype)
    assert more.std() / 0.5 != pytest.approx(1, abs=spread), "a 2 % error would show"


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_written_is_a_point_of_the_grid_rounded_as_torch_rounds(dtype: str) -> None:
    before = stored(np.random.default_rng(1).normal(size=300_001), dtype)
    points = released(dtype, numbers(before, dtype), 0.3)
    assert np.array_equal(points, np.rint(points / spacing(0.3)) * spacing(0.3))
    expected = to_bf16(points) if dtype == "BF16" else torch.from_numpy(points).numpy().astype(FLOAT_VIEWS[dtype])
    assert np.array_equal(privatized(dtype, before, 0.3), expected)
    assert not np.array_equal(privatized(dtype, before, 0.3, seed=2), expected)


def test_narrowing_agrees_with_torch_on_every_neighbourhood() -> None:
    """All bfloat16 values, and float32 values at, just below and just above the ties between them."""
    high = np.arange(1 << 16, dtype=np.uint32) << 16
    for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        values = (high | low).view(np.float32)
        values = values[np.isfinite(values)]
        out = np.empty(len(values), np.uint16)
        narrow(values, "BF16", out)
        assert np.array_equal(out, to_bf16(values)), hex(low)


def test_narrowing_agrees_with_torch_on_random_bits() -> None:
    values = np.random.default_rng(5).integers(0, 1 << 32, 2_000_000, np.uint32).view(np.float32)
    values = values[np.isfinite(values)]
    for dtype, bits in (("BF16", np.uint16), ("F16", np.float16)):
        out = np.empty(len(values), bits)
        with np.errstate(over="ignore"):
            narrow(values, dtype, out)
        expected = to_bf16(values) if dtype == "BF16" else torch.from_numpy(values).to(torch.float16).numpy()
        assert np.array_equal(out, expected)


def test_widening_agrees_with_torch_on_every_value() -> None:
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    for dtype, expected in (("BF16", from_bf16(bits)), ("F16", bits.view(np.float16).astype(np.float32))):
        array = bits if dtype == "BF16" else bits.view(np.float16)
        assert np.array_equal(widen(array, dtype, np.empty(1 << 16, np.float32)), expected, equal_nan=True)


# What passes unchanged, what is shared.


def test_tensors_without_a_stream_pass_unchanged_into_every_candidate() -> None:
    tokens = np.random.default_rng(6).integers(-(2**62), 2**62, 300_000)
    tensors = {"ids": ("I64", tokens), "skip": ("F32", np.ones(5, np.float32)), "w": ("F32", np.ones(5, np.float32))}
    for candidate in noised(tensors, [0.1, 0.2], {"w": 0}):
        assert np.array_equal(candidate["ids"], tokens)
        assert np.array_equal(candidate["skip"], np.ones(5))
        assert not np.any(candidate["w"] == 1)


def test_tied_tensors_get_the_same_noise_and_others_do_not() -> None:
    weights = np.random.default_rng(7).normal(size=CHUNK).astype(np.float32)
    tensors = dict.fromkeys(("wte", "lm_head", "other"), ("F32", weights))
    for candidate in noised(tensors, [0.1, 0.3], {"wte": 0, "lm_head": 0, "other": 1}):
        assert np.array_equal(candidate["wte"], candidate["lm_head"])
        assert np.mean(candidate["wte"] == candidate["other"]) < 0.02


@pytest.mark.parametrize("dtype", FLOATS)
def test_no_noise_is_repeated_within_or_between_tensors(dtype: str) -> None:
    """Chunks, halves of chunks and tensors are compared place by place; equal noise would agree everywhere."""
    zeros = np.zeros(2 * CHUNK * 8 // DTYPE_BITS[dtype] + 4096, FLOAT_VIEWS[dtype])
    candidate = noised({"a": (dtype, zeros), "b": (dtype, zeros)}, [1.0], {"a": 0, "b": 1})[0]
    everything = np.concatenate([numbers(candidate["a"], dtype), numbers(candidate["b"], dtype)])
    windows = everything[: len(everything) // 4096 * 4096].reshape(-1, 4096)
    correlations = windows @ windows.T / 4096
    assert np.abs(correlations[~np.eye(len(windows), dtype=bool)]).max() < 8 / 64
    assert np.diag(correlations) == pytest.approx(1, abs=0.2)
    windows[5] = windows[-1]
    assert (windows @ windows.T / 4096)[5, -1] > 0.5, "the comparison must notice repeated noise"


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [0, 1, 3, 1001])
def test_every_element_is_noised_at_every_size(dtype: str, size: int) -> None:
    before = stored(np.zeros(size), dtype)
    after = numbers(privatized(dtype, before, 1.0), dtype)
    assert after.shape == (size,)
    # A point in a hundred is where it was: the middle of the grid.
    assert np.mean(after != 0) > 0.95 or size == 0
    assert len(np.unique(after)) > 0.1 * size or size == 0


@pytest.mark.parametrize("dtype", FLOATS)
def test_the_last_elements_of_a_piece_are_noised(dtype: str) -> None:
    per_chunk = CHUNK * 8 // DTYPE_BITS[dtype]
    for size in (per_chunk - 1, per_chunk, per_chunk + 1):
        assert np.all(
            numbers(privatized(dtype, stored(np.zeros(size), dtype), 1.0), dtype)[[0, size // 2, -2, -1]] != 0
        )


# Candidates.


def nested_faults(candidates: Sequence[np.ndarray], stddevs: Sequence[float]) -> set[str]:
    """What is wrong with noise levels said to be nested: marginal variances, increments, their independence."""
    n = len(candidates[0])
    noise = [c.astype(np.float64) for c in candidates]

    def wrong(x: np.ndarray, variance: float) -> bool:
        return bool(2 * stats.norm.sf(abs((x @ x) / variance - n) / math.sqrt(2 * n)) < LEVEL)

    found = {f"marginal {s}" for x, s in zip(noise, stddevs, strict=True) if wrong(x, s * s)}
    for i in range(1, len(noise)):
        step = noise[i] - noise[i - 1]
        variance = stddevs[i] ** 2 - stddevs[i - 1] ** 2
        if wrong(step, variance):
            found.add(f"increment {i}")
        for j in range(i):
            score = step @ noise[j] / (math.sqrt(n * variance) * stddevs[j])
            if 2 * stats.norm.sf(abs(score)) < LEVEL:
                found.add(f"increment {i} depends on candidate {j}")
    return found


STDDEVS = (0.5, 0.7, 2.0)
COUNT = 1_000_000


@pytest.mark.parametrize("dtype", ["F32", "F64"])
def test_candidates_are_nested(dtype: str) -> None:
    zeros = np.zeros(COUNT, FLOAT_VIEWS[dtype])
    candidates = [c["w"] for c in noised({"w": (dtype, zeros)}, STDDEVS, {"w": 0})]
    assert nested_faults(candidates, STDDEVS) == set()


@pytest.mark.parametrize("dtype", FLOATS)
def test_candidates_are_formed_before_rounding(dtype: str) -> None:
    """The sum in float64, of the very deviates, is what each candidate is the nearest point to."""
    before = stored(np.random.default_rng(8).normal(size=10_000), dtype)
    out = noised({"w": (dtype, before)}, STDDEVS, {"w": 0}, seed=5)
    running = numbers(before, dtype)
    for i, (candidate, increment) in enumerate(zip(out, increments(STDDEVS), strict=True)):
        place = BlockKeystream(NoiseSource(5).keystream, i, 0)
        words = place.leading(10_000, memoryview(bytes(4 * BLOCK)), bytearray(4 * BLOCK + 16))
        middle = np.full(10_000, 1 << 63, np.uint64)
        running = running + increment * float64_deviates(words[:5000], words[5000:], middle, place.deep).reshape(-1)
        step = spacing(STDDEVS[i])
        near = np.abs(np.abs(running / step - np.rint(running / step)) - 0.5) < 1e-5
        assert near.mean() < 0.01
        expected = stored(np.rint(running / step) * step + 0.0, dtype)
        assert np.array_equal(candidate["w"][~near], expected[~near])


def test_planted_errors_in_candidates_are_noticed() -> None:
    generator = np.random.default_rng(9)
    fresh = [generator.normal(size=COUNT) for _ in STDDEVS]
    increments = [math.sqrt(s * s - b * b) for s, b in zip(STDDEVS, (0.0, *STDDEVS[:-1]), strict=True)]
    assert nested_faults(np.cumsum([f * s for f, s in zip(fresh, increments, strict=True)], axis=0), STDDEVS) == set()
    summed = np.cumsum([f * s for f, s in zip(fresh, STDDEVS, strict=True)], axis=0)
    assert {"marginal 0.7", "increment 1"} <= nested_faults(summed, STDDEVS)
    separate = [f * s for f, s in zip(fresh, STDDEVS, strict=True)]
    assert "increment 1 depends on candidate 0" in nested_faults(separate, STDDEVS)
    scaled = [fresh[0] * s for s in STDDEVS]
    assert "increment 2 depends on candidate 0" in nested_faults(scaled, STDDEVS)


def test_each_candidate_differs_only_by_its_noise() -> None:
    zeros = np.zeros(1000, np.float32)
    tensors = dict.fromkeys(("a", "b"), ("F32", zeros))
    candidates = noised(tensors, [0.5, 1.0], {"a": 0, "b": 1})
    drawn = [c[name] for c in candidates for name in ("a", "b")]
    steps = [*drawn[:2], drawn[2] - drawn[0], drawn[3] - drawn[1]]
    assert np.abs(np.corrcoef(steps)[~np.eye(4, dtype=bool)]).max() < 0.25, "four independent sets of noise"


def test_standard_deviations_must_increase() -> None:
    for stddevs in ([1.0, 0.5], [1.0, 1.0]):
        with pytest.raises(ValueError, match="increase"):
            WeightNoiser(NoiseSource(1), stddevs, {})


# What cannot be made safe.


@pytest.mark.parametrize("place", [0, 777, 300_000])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", FLOATS)
def test_weights_that_are_not_finite_are_refused(dtype: str, bad: float, place: int) -> None:
    weights = np.ones(300_001)
    weights[place] = bad
    for stddevs in ([0.1], [0.1, 0.2]):
        what = "NaN" if math.isnan(bad) else "infinity"
        with pytest.raises(InputError, match=rf"^tensor 'h\.0\.w' holds {what}, to which"):
            noised({"h.0.w": (dtype, stored(weights, dtype))}, stddevs, {"h.0.w": 0})


@pytest.mark.parametrize("dtype", ["F16", "BF16"])
def test_every_pattern_that_is_not_finite_is_refused(dtype: str) -> None:
    bits = np.arange(1 << 16, dtype=np.uint32).astype(np.uint16)
    array = bits if dtype == "BF16" else bits.view(np.float16)
    patterns = array[~np.isfinite(numbers(array, dtype))]
    assert len(patterns) in (2 * 128, 2 * 1024)
    for pattern in patterns:
        what = "NaN" if np.isnan(numbers(np.array([pattern], array.dtype), dtype)[0]) else "infinity"
        with pytest.raises(InputError, match=f"holds {what},"):
            privatized(dtype, np.array([pattern], array.dtype), 0.1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("dtype", "largest", "stddev"),
    [
        ("F16", 65504.0, 100.0),
        ("BF16", 3.3895e38, 1e36),
        ("BF16", 3.38e38, 1e37),
        ("F32", 3.4e38, 1e37),
        ("F64", 1.79e308, 1e307),
    ],
)
def test_overflow_is_refused_without_a_warning_of_numpy(dtype: str, largest: float, stddev: float) -> None:
    weights = stored(np.full(100, largest), dtype)
    with pytest.raises(InputError, match=rf"^tensor 'w' overflows {dtype} to infinity once noise is added"):
        privatized(dtype, weights, stddev)
