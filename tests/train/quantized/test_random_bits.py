"""Words are uniform, have their places, and are the same however a tensor is cut."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from privctl.train.quantized import FORMATS, NumberFormat, rounding
from privctl.train.quantized.random_bits import ExampleBits, KeystreamBuffer, RandomBits, Role, RoundingSite, mix
from privctl.train.quantized.rounding import RoundingMemory, rounded_examples
from tests.few import few

HERE = RoundingSite(3, 0, Role.INPUT)
CPU = torch.device("cpu")


def filled(words: RandomBits, keys: list[int], place: RoundingSite, each: int) -> Tensor:
    total = len(keys) * each
    return ExampleBits(words, keys, place, each, KeystreamBuffer(total)).next(0, total).view(len(keys), each).clone()


def hashed(words: RandomBits, keys: list[int], place: RoundingSite, each: int) -> Tensor:
    return words.hash_words(keys, place, each, CPU)


SOURCES = pytest.mark.parametrize("source", [filled, hashed])


def test_words_are_the_keystream_of_aes_in_counter_mode() -> None:
    key = hashlib.sha256(b"privctl rounding 1\0" + (7).to_bytes(8, "big") + b"seed").digest()[:16]
    nonce = (0xABCDEF << 32 | 3 << 18 | 2 << 16 | 5).to_bytes(12, "big")
    plain = Cipher(algorithms.AES(key), modes.CTR(nonce + (2).to_bytes(4, "big"))).encryptor().update(bytes(400))
    found = filled(RandomBits(b"seed", 7), [0xABCDEF], RoundingSite(3, 5, Role.WEIGHT), 100)
    assert found[0].numpy().tobytes() == plain


def test_the_mixing_is_that_of_murmurhash3() -> None:
    """Of nothing, with seeds 0, 1 and 0xffffffff: test vectors of its 32-bit variant, which then is its finalizer."""
    seeds = torch.tensor([0, 1, -1], dtype=torch.int32)
    assert [x & 0xFFFFFFFF for x in mix(seeds, 0).tolist()] == [0, 0x514E28B7, 0x81F16F39]


@SOURCES
def test_every_part_of_a_place_has_words_of_its_own(source: Any) -> None:
    places = [HERE, RoundingSite(4, 0, Role.INPUT), RoundingSite(3, 1, Role.INPUT), RoundingSite(3, 0, Role.GRADIENT)]
    found = [source(RandomBits(b"seed", 7), [11], place, 64) for place in places]
    found += [source(RandomBits(b"seed", 7), [12], HERE, 64), source(RandomBits(b"seed", 8), [11], HERE, 64)]
    found += [source(RandomBits(b"other", 7), [11], HERE, 64)]
    assert len({each.numpy().tobytes() for each in found}) == len(found)
    assert torch.equal(source(RandomBits(b"seed", 7), [11], HERE, 64), found[0])


@SOURCES
def test_an_examples_words_depend_on_no_other(source: Any) -> None:
    words = RandomBits(b"seed", 7)
    together = source(words, [5, 1 << 63, 9], HERE, 100)
    for row, key in enumerate([5, 1 << 63, 9]):
        assert torch.equal(source(words, [key], HERE, 100)[0], together[row])
        assert torch.equal(source(words, [key], HERE, 70)[0], together[row, :70])  # nor on padding behind


@SOURCES
def test_words_are_uniform(source: Any) -> None:
    """Counts of the bits, and of pairs of neighbours' bytes, against their binomial and multinomial laws."""
    found = source(RandomBits(b"seed", 7), list(range(64)), HERE, 1 << 14).numpy().view(np.uint32)
    assert worst_bit(found) < 5
    for low in (0, 8, 15):
        left, right = (found[:, :-1] >> low & 15).ravel(), (found[:, 1:] >> low & 15).ravel()
        counts = np.bincount(left * 16 + right, minlength=256)
        expected = left.size / 256
        assert abs(((counts - expected) ** 2 / expected).sum() - 255) < 6 * (2 * 255) ** 0.5
    assert worst_bit(found & ~np.uint32(1 << 9)) > 100  # planted fault: a bit that is never set
    rows = (found[:32].astype(np.int64) - found[32:].astype(np.int64)) / 2.0**32
    assert abs(rows.mean()) < 5 * (1 / 6 / rows.size) ** 0.5


def worst_bit(found: np.ndarray) -> float:
    """The largest z of how often each of 23 bits is set."""
    shares = [float((found >> bit & 1).mean()) for bit in range(23)]
    return max(abs(share - 0.5) for share in shares) * 2 * found.size**0.5


@pytest.mark.parametrize(
    "shape", few([(3, 5, 40), (4, 1, 700), (2, 30, 9), (1, 1, 2000), (7, 1, 1)], 0, 2, 4, whole=True)
)
def test_blocks_change_nothing(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    values, words, keys = torch.randn(shape), RandomBits(b"seed", 7), list(range(shape[0]))
    for form in FORMATS.values():
        whole = rounded_examples(form.inputs, values, words, keys, HERE, RoundingMemory())
        drawn = filled(words, keys, HERE, shape[1] * shape[2]).view(-1, shape[2])
        assert torch.equal(whole.view(-1, shape[2]), rounding.round_rows(form.inputs, values.view(-1, shape[2]), drawn))
        for block in (1, 64, 333):
            with monkeypatch.context() as patch:
                patch.setattr(rounding, "BLOCK", block)
                assert torch.equal(rounded_examples(form.inputs, values, words, keys, HERE, RoundingMemory()), whole)


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
def test_other_devices_round_a_tensor_at_once_with_hashed_words(form: NumberFormat) -> None:
    """Their way, on this one: by z over many examples, unbiased; and an example by itself the same."""
    values, words, keys = torch.randn(1, 4, 50).expand(3000, -1, -1), RandomBits(b"seed", 7), list(range(3000))
    found = rounding._at_once(form.inputs, values, words, keys, HERE)
    assert torch.equal(rounding._at_once(form.inputs, values[:1], words, [77], HERE)[0], found[77])
    if not form.inputs.stochastic:
        expected = rounded_examples(form.inputs, values.contiguous(), words, keys, HERE, RoundingMemory())
        assert torch.equal(found, expected)
        return
    drawn = found.double()
    errors = drawn.std(0) / len(keys) ** 0.5 + 1 / len(keys)
    assert float(((drawn.mean(0) - values[0]) / errors).abs().max()) < 5
    assert float(((drawn.mean(0) - 0.9 * values[0]) / errors).abs().max()) > 10


def test_nothing_to_round() -> None:
    for shape in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        form = next(iter(FORMATS.values()))
        found = rounded_examples(
            form.inputs, torch.zeros(shape), RandomBits(b"", 0), [1, 2][: shape[0]], HERE, RoundingMemory()
        )
        assert found.shape == shape


@pytest.mark.parametrize("step", [-1, 1 << 64])
def test_steps_out_of_range(step: int) -> None:
    with pytest.raises(ValueError, match="step"):
        RandomBits(b"", step)


def test_places_out_of_range() -> None:
    for layer, call in ((1 << 14, 0), (0, 1 << 16), (-1, 0)):
        with pytest.raises(ValueError, match="words have layers"):
            RoundingSite(layer, call, Role.INPUT)
    with pytest.raises(ValueError, match="an example's key"):
        RandomBits(b"", 0).stream(1 << 64, HERE)
