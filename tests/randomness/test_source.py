"""The noise source: is it normal, independent and reproducible, and would these checks notice if it were not?"""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy import stats

from privctl.randomness import BLOCK, NoiseSource
from privctl.randomness.gridded import spacing
from privctl.randomness.keystream import BlockKeystream
from tests.few import few

#: A check fails below this probability; with fixed seeds the outcome never changes, without one it is never met.
LEVEL = 1e-9
BLOCKS = 8

Draw = Callable[[int, int], np.ndarray]


def drawing(source: NoiseSource, dtype: type = np.float32, stddev: float = 1.0) -> Draw:
    """What zeros become, in standard deviations, each spread evenly over its cell of the grid."""

    def draw(stream: int, block: int) -> np.ndarray:
        out = np.zeros(BLOCK, dtype)
        source.release(stream, block, out, stddev)
        spread = np.random.default_rng([stream, block]).random(BLOCK) - 0.5
        deviates: np.ndarray = (out.astype(np.float64) + spacing(stddev) * spread) / stddev
        return deviates

    return draw


def uncorrelated(a: np.ndarray, b: np.ndarray) -> float:
    """Probability of a correlation this far from zero, of values or of squares, under independence."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    values = a @ b / math.sqrt(len(a))
    squares = (a * a - 1) @ (b * b - 1) / (2 * math.sqrt(len(a)))
    return 2 * min(stats.norm.sf(abs(values)), stats.norm.sf(abs(squares)))


def faults(draw: Draw, asked: str | None = None) -> set[str]:
    """What is wrong with standard normal deviates drawn block by block from several streams; or one check of that."""
    grid = np.array([[draw(stream, block) for block in range(BLOCKS)] for stream in range(2)])
    x = grid.reshape(-1).astype(np.float64)
    n = len(x)

    def tail(values: np.ndarray, sigmas: float, sides: int = 1) -> float:
        return float(stats.binomtest(int((values > sigmas).sum()), n, sides * stats.norm.sf(sigmas)).pvalue)

    probability: dict[str, Callable[[], float]] = {
        "mean": lambda: 2 * stats.norm.sf(abs(x.mean()) * math.sqrt(n)),
        "variance": lambda: 2 * stats.norm.sf(abs((x * x).sum() - n) / math.sqrt(2 * n)),
        "sign": lambda: stats.binomtest(int((x > 0).sum()), n).pvalue,
        "shape": lambda: stats.kstest(x[: 1 << 20], "norm", method="asymp").pvalue,
        "pairs": lambda: uncorrelated(grid[..., : BLOCK // 2].reshape(-1), grid[..., BLOCK // 2 :].reshape(-1)),
        "neighbours": lambda: uncorrelated(x[1:], x[:-1]),
        "streams": lambda: uncorrelated(grid[0].reshape(-1), grid[1].reshape(-1)),
        "blocks": lambda: uncorrelated(grid[:, 1:].reshape(-1), grid[:, :-1].reshape(-1)),
        "tail above 3.0": lambda: tail(x, 3.0),
        "tail below 3.0": lambda: tail(-x, 3.0),
        "tail above 4.0": lambda: tail(x, 4.0),
        "tail below 4.0": lambda: tail(-x, 4.0),
        "tail beyond 4.5": lambda: tail(np.abs(x), 4.5, sides=2),
    }
    return {name for name, p in probability.items() if asked in (None, name) and not p() >= LEVEL}


@pytest.mark.parametrize("dtype", [np.float32, pytest.param(np.float64, marks=pytest.mark.slow)])
def test_seeded_noise_is_normal(dtype: type) -> None:
    assert faults(drawing(NoiseSource(seed=1), dtype)) == set()


def test_noise_under_an_operating_system_key_is_normal() -> None:
    assert faults(drawing(NoiseSource())) == set()


@pytest.mark.parametrize("stddev", [1e-40, 1e-30, 3e-20, 1e-6, 0.37, 40.0, 1e12, 3e25])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_standard_deviation_is_the_one_asked_for(dtype: type, stddev: float) -> None:
    drawn = drawing(NoiseSource(seed=2), dtype, stddev)(3, 4)
    # The format's own smallest step is a twentieth of the smallest of these deviations.
    assert drawn.std() == pytest.approx(1, abs=5 / math.sqrt(2 * BLOCK) + (1e-3 if stddev == 1e-40 else 0))
    assert abs(drawn.mean()) < 5 / math.sqrt(BLOCK)


# Planted faults: the same check must notice each.


def box_muller(u: np.ndarray, angle: np.ndarray, root: Callable[[np.ndarray], np.ndarray] = np.sqrt) -> np.ndarray:
    radius = root(-2 * np.log(u))
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])


def uniforms(stream: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng([stream, block])
    u, v = generator.random((2, BLOCK // 2))
    return 1 - u, 2 * math.pi * v


def right(stream: int, block: int) -> np.ndarray:
    return box_muller(*uniforms(stream, block))


def half_the_noise(stream: int, block: int) -> np.ndarray:
    return right(stream, block) * np.where(np.arange(BLOCK) % 2, 1, 0.5)


def half_a_percent_small(stream: int, block: int) -> np.ndarray:
    return right(stream, block) * 0.995


def some_not_noised(stream: int, block: int) -> np.ndarray:
    return np.where(np.arange(BLOCK) % 100, right(stream, block), 0)


def one_stream_for_all(_: int, block: int) -> np.ndarray:
    return right(0, block)


def one_block_for_all(stream: int, _: int) -> np.ndarray:
    return right(stream, 0)


def sign_flipped_stream(stream: int, block: int) -> np.ndarray:
    return right(0, block) * (-1) ** stream


def no_root(stream: int, block: int) -> np.ndarray:
    return box_muller(*uniforms(stream, block), root=lambda squared: squared)


def shifted_uniform(stream: int, block: int) -> np.ndarray:
    u, angle = uniforms(stream, block)
    return box_muller(u * (1 - 2**-11) + 2**-11, angle)


def twelve_bit_radius(stream: int, block: int) -> np.ndarray:
    u, angle = uniforms(stream, block)
    return box_muller((np.floor(u * 4096) + 0.5) / 4096, angle)


def half_a_turn(stream: int, block: int) -> np.ndarray:
    u, angle = uniforms(stream, block)
    return box_muller(u, angle / 2)


def angle_from_the_radius(stream: int, block: int) -> np.ndarray:
    u, _ = uniforms(stream, block)
    return box_muller(u, 2 * math.pi * u)


def cosine_twice(stream: int, block: int) -> np.ndarray:
    first = right(stream, block)[: BLOCK // 2]
    return np.concatenate([first, first])


def same_radius_other_sign(stream: int, block: int) -> np.ndarray:
    """Values uncorrelated, squares not: only a check of squares sees it."""
    first = right(stream, block)[: BLOCK // 2]
    signs = np.random.default_rng([stream, block, 1]).choice([-1.0, 1.0], BLOCK // 2)
    return np.concatenate([first, first * signs])


def sum_of_twelve_uniforms(stream: int, block: int) -> np.ndarray:
    return np.random.default_rng([stream, block]).random((12, BLOCK), np.float32).sum(axis=0) - 6


def laplace(stream: int, block: int) -> np.ndarray:
    return np.random.default_rng([stream, block]).laplace(scale=math.sqrt(0.5), size=BLOCK)


def test_the_check_accepts_an_independent_reference() -> None:
    assert faults(right) == set()


@pytest.mark.parametrize(
    ("planted", "noticed"),
    [
        pytest.param(half_the_noise, "variance", marks=pytest.mark.slow),
        (half_a_percent_small, "variance"),
        pytest.param(some_not_noised, "variance", marks=pytest.mark.slow),
        (one_stream_for_all, "streams"),
        pytest.param(sign_flipped_stream, "streams", marks=pytest.mark.slow),
        (one_block_for_all, "blocks"),
        pytest.param(no_root, "variance", marks=pytest.mark.slow),
        (shifted_uniform, "tail above 4.0"),
        (twelve_bit_radius, "tail beyond 4.5"),
        (half_a_turn, "mean"),
        (angle_from_the_radius, "pairs"),
        pytest.param(cosine_twice, "pairs", marks=pytest.mark.slow),
        pytest.param(same_radius_other_sign, "pairs", marks=pytest.mark.slow),
        (sum_of_twelve_uniforms, "tail above 3.0"),
        (laplace, "shape"),
    ],
)
def test_a_planted_fault_is_noticed(planted: Draw, noticed: str) -> None:
    assert faults(planted, noticed) == {noticed}


# Streams, runs, threads.


def test_runs_are_independent() -> None:
    first, second = NoiseSource(), NoiseSource()
    a, b = drawing(first)(0, 0), drawing(second)(0, 0)
    assert uncorrelated(a, b) > LEVEL
    assert uncorrelated(a, drawing(NoiseSource(seed=1))(0, 0)) > LEVEL
    assert uncorrelated(a, drawing(first)(0, 0)) < LEVEL, "the check must notice the same noise"


def test_the_same_seed_gives_the_same_noise_and_no_seed_another_each_time() -> None:
    assert np.array_equal(drawing(NoiseSource(seed=7))(5, 6), drawing(NoiseSource(seed=7))(5, 6))
    assert not np.array_equal(drawing(NoiseSource(seed=7))(5, 6), drawing(NoiseSource(seed=8))(5, 6))
    assert not np.array_equal(drawing(NoiseSource())(5, 6), drawing(NoiseSource())(5, 6))


def test_a_source_says_whether_it_was_seeded() -> None:
    assert NoiseSource(seed=0).seeded
    assert "seed" in NoiseSource(seed=0).description
    assert not NoiseSource().seeded
    assert "operating system" in NoiseSource().description


@pytest.mark.parametrize("dtype", few([np.float32, np.float64], 0))
def test_threads_draw_what_one_thread_draws(dtype: type) -> None:
    source = NoiseSource(seed=3)
    places = [(stream, block) for stream in range(3) for block in range(4)]
    alone = [drawing(source, dtype)(*place) for place in places]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda place: drawing(source, dtype)(*place), places))
    assert all(np.array_equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 7, 1001, BLOCK - 1, BLOCK])
def test_every_size_is_filled(dtype: type, size: int) -> None:
    out = np.full(size + 1, 1e6, dtype)
    NoiseSource(seed=4).release(0, 0, out[:size], 1.0)
    assert out[size] == 1e6
    noise = out[:size] - 1e6
    assert np.all(np.abs(noise) < 10)
    assert np.mean(noise == 0) < 0.05 or size < 8


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(ValueError, match="block"):
        NoiseSource(seed=5).release(0, 0, np.empty(BLOCK + 1, np.float32), 1.0)
    with pytest.raises(ValueError, match="float16"):
        NoiseSource(seed=5).release(0, 0, np.empty(4, np.float16), 1.0)


# The keystream.


def test_keystream_is_aes_256_counter_mode() -> None:
    source = NoiseSource(seed=9)
    for lane, stream, block in ((0, 0, 0), (0, 1, 2), (1, 2**40 - 1, 3), (2, 5, 2**48 - 1)):
        nonce = lane.to_bytes(1, "big") + stream.to_bytes(5, "big") + block.to_bytes(6, "big")
        counter = modes.CTR(nonce + (2).to_bytes(4, "big"))
        expected = Cipher(algorithms.AES(source._key), counter).encryptor().update(bytes(100_000))
        assert source.keystream.drawn(stream, block, 100_000, lane) == expected


def test_each_kind_of_bits_has_a_lane_of_its_own() -> None:
    source = NoiseSource(seed=9)
    place = BlockKeystream(source.keystream, 11, 12)
    zeros = memoryview(bytes(4 * BLOCK))
    drawn = [
        place.leading(1000, zeros, bytearray(4 * BLOCK + 16)).tobytes(),
        place.following(np.arange(250)).reshape(2, -1).T.tobytes(),
        np.array(place.deep(500), np.uint64).tobytes(),
        source.words(11, 12, 500).tobytes(),
    ]
    assert drawn == [source.keystream.drawn(11, 12, 4000, lane) for lane in range(4)]


def test_bits_that_follow_are_a_pairs_own_whoever_else_asks() -> None:
    source = NoiseSource(seed=9)
    place = BlockKeystream(source.keystream, 11, 12)
    every = place.following(np.arange(1 << 17)).reshape(2, -1)
    chosen = np.array([0, 5, 70_000, (1 << 17) - 1])
    assert np.array_equal(place.following(chosen).reshape(2, -1), every[:, chosen])
    assert len(place.following(chosen[:0])) == 0


def test_gcm_known_answer() -> None:
    """Test case 14 of the GCM specification (McGrew and Viega): all-zero key, nonce and plaintext."""
    source = NoiseSource(key=bytes(32))
    assert source.keystream.drawn(0, 0, 16, lane=0).hex() == "cea7403d4d606b6e074ec5d3baf39d18"


def test_counter_mode_known_answer() -> None:
    """NIST SP 800-38A, F.5.5: what the comparison with counter mode above rests on."""
    key = bytes.fromhex("603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4")
    counter = modes.CTR(bytes.fromhex("f0f1f2f3f4f5f6f7f8f9fafbfcfdfeff"))
    plain = bytes.fromhex("6bc1bee22e409f96e93d7e117393172aae2d8a571e03ac9c9eb76fac45af8e51")
    encrypted = Cipher(algorithms.AES(key), counter).encryptor().update(plain)
    assert encrypted.hex() == "601ec313775789a5b7a7f504bbf3d228f443e3ca4d62b59aca84e990cacaf5c5"


def test_no_two_places_share_keystream() -> None:
    source = NoiseSource(seed=10)
    near = [0, 1, 2, 255, 256, 2**32 - 1, 2**32, 2**39]
    starts = {source.keystream.drawn(s, b, 16, lane) for s in near for b in [*near, 2**47] for lane in range(4)}
    assert len(starts) == len(near) * (len(near) + 1) * 4
