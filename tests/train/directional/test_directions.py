"""Public directions: always the same bits, of unit length, and unrelated to each other."""

from __future__ import annotations

import hashlib
import math

import pytest
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from torch import Tensor

from privctl.train.directional import direction, directions

SHAPES = {"b.weight": torch.Size([5, 7]), "a.bias": torch.Size([13])}
LARGE = {"w": torch.Size([256, 256])}


def digest(found: dict[str, Tensor]) -> str:
    raw = b"".join(name.encode() + found[name].numpy().astype("<f4").tobytes() for name in sorted(found))
    return hashlib.sha256(raw).hexdigest()


@pytest.mark.parametrize(
    ("seed", "step", "group", "shapes", "expected"),
    [
        (b"", 0, 0, SHAPES, "cc220d355bb4fd67986508428c2aa51bab158e2d16ea2c803a57ae6287cb966e"),
        (b"public", 999, 75, SHAPES, "f904dd4933699fd09d76cd0d4a0a3b8fcc89cda10edc7f098b573a4668a7ae29"),
        (b"public", 2**56 - 1, 2**32 - 1, LARGE, "638b00761951836da34283dadca4f4ddc705f795f135a31a4cd409a7cbbc2859"),
    ],
)
def test_directions_never_change(
    seed: bytes, step: int, group: int, shapes: dict[str, torch.Size], expected: str
) -> None:
    """A stream of bits that was published is worth nothing if these ever change."""
    assert digest(direction(seed, step, group, shapes)) == expected


def by_definition(seed: bytes, step: int, group: int, shapes: dict[str, torch.Size]) -> dict[str, Tensor]:
    """One counter block after the other through AES, one bit after the other out of it."""
    key = hashlib.sha256(b"privctl direction 1\0" + seed).digest()
    size = 1 / math.sqrt(sum(shape.numel() for shape in shapes.values()))
    used = 0
    found = {}
    for name in sorted(shapes):
        signs = []
        for i in range(shapes[name].numel()):
            block, place = divmod(used + i // 8, 16)
            counter = step.to_bytes(7, "big") + group.to_bytes(4, "big") + block.to_bytes(5, "big")
            byte = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(counter)[place]
            signs.append(size if byte >> (i % 8) & 1 else -size)
        used += -(-shapes[name].numel() // 8)
        found[name] = torch.tensor(signs, dtype=torch.float32).view(shapes[name])
    return found


@pytest.mark.parametrize("chunk", [1, 100, 1 << 20])
def test_a_gpu_makes_the_same_numbers_of_the_bits(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directions, "_CHUNK_ON_GPU", chunk)
    size = 1 / math.sqrt(12_345)
    every_byte = torch.arange(256, dtype=torch.uint8)
    expected = [size if byte >> place & 1 else -size for byte in range(256) for place in range(8)]
    assert torch.equal(directions.unpacked(every_byte, size), torch.tensor(expected, dtype=torch.float32))


def test_a_gpu_gets_a_32nd_of_the_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = list[torch.Tensor]()

    def here(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
        assert device.type == "cuda"
        copied.append(tensor)
        return tensor

    monkeypatch.setattr(directions, "moved", here)
    shapes = {**SHAPES, **LARGE}
    there, expected = direction(b"s", 12, 5, shapes, "cuda"), direction(b"s", 12, 5, shapes)
    assert list(there) == list(expected)
    assert all(torch.equal(there[name], tensor) for name, tensor in expected.items())
    assert sum(t.nbytes for t in copied) == sum(-(-t.numel() // 8) for t in expected.values())


def test_it_is_what_its_description_says() -> None:
    shapes = {**SHAPES, "c": torch.Size([300])}
    found, expected = direction(b"s", 12, 5, shapes), by_definition(b"s", 12, 5, shapes)
    assert list(found) == list(shapes)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor)


@pytest.mark.parametrize("shapes", [SHAPES, LARGE, {"x": torch.Size([1])}, {"x": torch.Size([]), "y": torch.Size([0])}])
def test_unit_length(shapes: dict[str, torch.Size]) -> None:
    found = direction(b"s", 1, 1, shapes)
    assert {name: tensor.shape for name, tensor in found.items()} == shapes
    assert all(tensor.dtype == torch.float32 for tensor in found.values())
    norm = math.sqrt(sum(float(tensor.double().square().sum()) for tensor in found.values()))
    assert norm == pytest.approx(1, abs=1e-7)


def test_the_order_in_which_tensors_are_named_changes_nothing() -> None:
    found = direction(b"s", 0, 0, SHAPES)
    other = direction(b"s", 0, 0, dict(reversed(SHAPES.items())))
    assert all(torch.equal(found[name], other[name]) for name in SHAPES)


def deviation(found: dict[str, Tensor]) -> float:
    """The mean of the entries in standard deviations of a mean of independent signs."""
    signs = found["w"].sign().double()
    return float(signs.sum()) / math.sqrt(signs.numel())


def dependence(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """Their inner product in standard deviations of that of independent directions."""
    return float((one["w"].double() * other["w"].double()).sum()) * math.sqrt(one["w"].numel())


def unrelated(directions: list[dict[str, Tensor]]) -> bool:
    """Whether no two depend on each other and none is off centre: by chance in 1 of 10 000 cases not so."""
    pairs = [dependence(a, b) for i, a in enumerate(directions) for b in directions[:i]]
    return max(map(abs, [*pairs, *map(deviation, directions)])) < 6


def test_directions_of_other_seeds_steps_and_groups_are_unrelated() -> None:
    places = [(b"s", 0, 0), (b"t", 0, 0), (b"s", 1, 0), (b"s", 0, 1), (b"s", 1 << 32, 0), (b"s", 0, 1 << 16)]
    directions = [direction(*place, LARGE) for place in places]
    assert unrelated(directions)
    assert not unrelated([*directions, direction(b"s", 0, 1, LARGE)])  # two groups with one direction
    assert not unrelated([{"w": entries["w"].abs()} for entries in directions])


def test_within_a_direction_entries_are_unrelated() -> None:
    entries = direction(b"s", 0, 0, LARGE)["w"].flatten()
    shifted = [{"w": entries.roll(shift)} for shift in (0, 1, 7, 8, 64, 128, 4096, 1 << 14)]
    assert unrelated(shifted)
    assert not unrelated([*shifted, {"w": entries.roll(len(entries))}])


@pytest.mark.parametrize(("step", "group"), [(-1, 0), (1 << 56, 0), (0, -1), (0, 1 << 32)])
def test_out_of_range(step: int, group: int) -> None:
    with pytest.raises(ValueError, match="steps below"):
        direction(b"s", step, group, SHAPES)


def test_nothing_to_point_in() -> None:
    with pytest.raises(ValueError, match="no entries"):
        direction(b"s", 0, 0, {"x": torch.Size([0])})
