"""Noise by machine code: the numbers that numpy gives, bit for bit, or none of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")

import privctl
from privctl.domain.errors import InputError
from privctl.domain.report import PrivacyReport
from privctl.noise import weight_noise
from privctl.noise.weight_noise import WeightNoiser
from privctl.randomness import BLOCK, NoiseSource, deviates
from privctl.randomness.compiled import fine, lanes, program, release, selection
from privctl.randomness.formats import narrow, widen
from privctl.storage.header import TensorInfo
from privctl.storage.stream import Piece
from privctl.train.steps import gradient_noise
from privctl.train.steps.gradient_noise import KeyedNoise

KINDS = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}


@pytest.fixture
def untested() -> Iterator[None]:
    """No code counts as tested, and none tested now does afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_tested", {})
        yield


def compiled(seed: int, *kinds: str) -> NoiseSource:
    source = NoiseSource(seed)
    assert source.compile(kinds) == ""
    assert source.compilers == ("llvmlite",)
    return source


def stored(values: np.ndarray, kind: str) -> np.ndarray:
    if kind == "BF16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    with np.errstate(over="ignore"):
        return values.astype(KINDS[kind])


def by_numpy(numbers: np.ndarray, kind: str, stddev: float, seed: int) -> np.ndarray:
    wide = widen(numbers, kind, np.empty(len(numbers), np.float32))
    NoiseSource(seed).release(7, 8, wide, stddev)
    out = np.empty_like(numbers)
    narrow(wide, kind, out)
    return out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("size", "stddev"), [(BLOCK, 0.0123), (release.LEAST, 3e-5), (70_001, 40.0), (4130, 2.0**-44)])
def test_code_releases_what_numpy_releases(kind: str, size: int, stddev: float) -> None:
    """Numbers from subnormal ones to thousands of grid steps, of odd lengths and of less than whole groups."""
    values = np.random.default_rng(size).normal(size=size) * np.geomspace(1e-44, 3e3, size)
    numbers = stored(values, kind)
    expected = by_numpy(numbers, kind, stddev, 3)
    largest = float(np.abs(widen(numbers, kind, np.empty(size, np.float32))).max())
    source = compiled(3, kind)
    assert source.takes_stored(kind, numbers, stddev)
    assert source.release_stored(7, 8, numbers, kind, stddev) == largest
    assert numbers.tobytes() == expected.tobytes()
    assert np.mean(numbers != stored(values, kind)) > 0.1 or stddev < 1e-9


def test_float32_numbers_go_by_code_wherever_noise_is_drawn() -> None:
    values = np.random.default_rng(1).normal(size=5001).astype(np.float32)
    other, source = values.copy(), compiled(2, "F32")
    calls = []
    source._code = {"F32": Counting(source._code["F32"], calls)}  # type: ignore[dict-item]
    source.release(1, 2, values, 0.5)
    NoiseSource(2).release(1, 2, other, 0.5)
    assert values.tobytes() == other.tobytes()
    assert calls == [5001 // 32]
    strided = np.repeat(other, 2)[::2]
    source.release(1, 3, strided, 0.5)  # lies where the kernel would write elsewhere
    source.release(1, 4, values[:100], 0.5)
    assert len(calls) == 1


class Counting:
    """Counts the groups of each call."""

    def __init__(self, code: release.Kernel, calls: list[int]) -> None:
        self._code, self._calls = code, calls

    def release(self, *arguments: int) -> int:
        self._calls.append(arguments[-1])
        return self._code.release(*arguments)


def test_deviates_keep_their_bound_whatever_bits_follow() -> None:
    code, (first, second) = program.MachineCode("F32"), words_at_edges()
    drawn, edge = np.empty((2, len(first)), np.float32), np.empty(len(first), np.bool_)
    arrays = (first, second, drawn[0], drawn[1], edge)
    code.deviates(*(array.ctypes.data for array in arrays), -2.0, len(first) // lanes.LANES)
    share = (np.where(first >= 0, first, ~first) + 0.5) / 2.0**31
    assert np.array_equal(edge, (share < program.LOW) | (1 - share < program.HIGH))
    for bits in (0, 1 << 63, (1 << 64) - 1):
        exact = deviates.float64_deviates(first, second, np.full(2 * len(first), bits, np.uint64), lambda n: [1] * n)
        allowed = release.CLOSE * (np.hypot(*exact) + 1)
        assert (np.abs(drawn - exact) / allowed)[:, ~edge].max() < 0.5


def test_deviates_in_double_precision_keep_the_bound_that_comes_with_them() -> None:
    """The bound is nearly reached where the bits that follow are all 0 or 1, and by nothing else."""
    code, (first, second) = program.MachineCode("F32"), words_at_edges()
    drawn, stddev = np.empty((3, len(first))), 3.0
    arrays = (first, second, drawn[0], drawn[1], drawn[2])
    code.fine(*(array.ctypes.data for array in arrays), -2 * stddev**2, len(first) // lanes.LANES)
    share = (np.where(first >= 0, first, ~first) + 0.5) / 2.0**31
    finite = np.minimum(share, 1 - share) >= 2.0**-23
    assert np.array_equal(np.isfinite(drawn[2]), finite)
    error = {}
    for bits in (0, 1 << 63, (1 << 64) - 1):
        exact = deviates.float64_deviates(first, second, np.full(2 * len(first), bits, np.uint64), lambda n: [1] * n)
        error[bits] = (np.abs(drawn[:2] - stddev * exact) / drawn[2])[:, finite].max()
    assert error[1 << 63] < 2.0**-8
    assert 0.8 < max(error.values()) < 1


def words_at_edges() -> tuple[np.ndarray, np.ndarray]:
    """First words of which many make U small or nearly 1, and second ones."""
    generator = np.random.default_rng(4)
    near_0, near_1 = (np.exp2(generator.uniform(*ends, 1 << 15)).astype(np.int64) for ends in ((5, 31), (5, 30)))
    first = np.concatenate([near_0 - 1, -near_0, (1 << 31) - 1 - near_1, near_1 - (1 << 31)]).clip(
        -(1 << 31), (1 << 31) - 1
    )
    return first.astype(np.int32), generator.integers(-(1 << 31), 1 << 31, len(first)).astype(np.int32)


def test_double_precision_leaves_hardly_a_pair_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    left = []
    monkeypatch.setattr(release.gridded, "refined", lambda values, chosen, *_: left.append(len(chosen)) or [values])
    values = np.zeros(BLOCK, np.float32)
    for block in range(4):
        compiled(3, "F32").release_stored(7, block, values, "F32", 0.0123)
    assert sum(left) < 8, "float32 alone leaves some 260"


@pytest.mark.usefixtures("untested")
@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("_SINE", (-1.9515295891e-4, 8.3321608736e-3, -1.6667e-1), "deviates are too far"),
        ("_LN2", (0.6934, -2.12194440e-4), "deviates are too far"),
        ("HIGH", 0.0, "deviates are too far"),
        ("LOW", 0.0, "deviates are too far"),
        ("fine._SINE", (*fine._SINE[:-1], -0.1666667), "deviates are too far"),
        ("fine._COSINE", fine._COSINE[3:], "deviates are too far"),
        ("fine._ARTANH", fine._ARTANH[3:], "deviates are too far"),
        ("fine.EDGE", 0.0, "deviates are too far"),
        ("fine.OF_ANGLE", 0.1 * 2.0**-30, "deviates are too far"),
        ("fine.OF_RADIUS", 0.2 * 2.0**-30, "deviates are too far"),
        ("_narrow", lambda value, kind: truncated(value), "numbers differ"),
    ],
)
def test_planted_faults_are_found_and_the_code_is_not_used(
    name: str, value: object, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{program.__name__}.{name}", value)
    source = NoiseSource(1)
    assert found in source.compile(["BF16"])
    assert source.compilers == ()
    assert not source.takes_stored("BF16", np.zeros(4096, np.uint16), 1.0)


def truncated(value: lanes.Lanes) -> lanes.Lanes:
    """Stored as BF16 without rounding."""
    return lanes.Lanes(value.builder, value.builder.trunc(value.bits().logical_shift(16).value, lanes.SHORT))


@pytest.mark.usefixtures("untested")
def test_sums_too_near_an_edge_for_float32_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that leaves nothing to float64 gives some numbers that numpy does not."""
    monkeypatch.setattr(release, "_near", lambda stddev: (stddev, 0.0))
    assert "numbers differ" in NoiseSource(1).compile(["F32"])


@pytest.mark.usefixtures("untested")
def test_sums_too_near_an_edge_for_double_precision_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(release, "_FINE_NEAR", 1.0)
    assert "numbers differ" in NoiseSource(1).compile(["F32"])


@pytest.mark.usefixtures("untested")
def test_a_machine_that_llvm_cannot_compile_for_goes_on_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(kind: str) -> None:
        raise RuntimeError("no such processor\nand more")

    monkeypatch.setattr(program, "MachineCode", refuse)
    source = NoiseSource(1)
    assert source.compile(["F32"]) == (
        "noise on F32 numbers is drawn without llvmlite, as its machine code fails: no such processor"
    )
    assert source.compile(["F32"]) == "", "the failure is reported once"
    values = np.zeros(5000, np.float32)
    source.release(1, 1, values, 1.0)
    assert values.any()


@pytest.mark.usefixtures("untested")
def test_without_llvmlite_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "privctl.randomness.compiled.program")
    monkeypatch.delattr(privctl.randomness.compiled, "program")
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    source = NoiseSource(1)
    assert source.compile(["F32", "F64"]) == ""
    assert source.compilers == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [(9, np.nan, "holds NaN"), (5000, np.inf, "holds infinity"), (2500, -np.inf, "holds infinity")],
)
def test_what_is_not_finite_is_refused(kind: str, place: int, value: float, complaint: str) -> None:
    values = np.random.default_rng(5).normal(size=5001)
    values[place] = value
    with pytest.raises(InputError, match=complaint):
        noised(stored(values, kind), kind, 0.1)


def test_overflow_is_refused() -> None:
    with pytest.raises(InputError, match="overflows F16"):
        noised(stored(np.full(5000, 65504.0), "F16"), "F16", 100.0)


def noised(numbers: np.ndarray, kind: str, stddev: float) -> bytes:
    tensor = TensorInfo("w", kind, numbers.shape, 0, numbers.nbytes)
    buffer = memoryview(bytearray(numbers.tobytes()))
    WeightNoiser(compiled(1, kind), [stddev], {"w": 0})(Piece(0, tensor, 0, numbers.nbytes), [buffer])
    return bytes(buffer)


def test_what_is_not_finite_leaves_no_other_number_bare() -> None:
    """In a loop of training nothing refuses them; every finite number must have its noise all the same."""
    values = np.zeros(6000, np.float32)
    values[[3, 4000]] = np.nan, np.inf
    expected = by_numpy(values, "F32", 1.0, 6)
    compiled(6, "F32").release(7, 8, values, 1.0)
    assert values.tobytes() == expected.tobytes()


def test_training_draws_the_same_noise_once_it_has_drawn_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradient_noise, "WORTH_COMPILING", 12_000)
    sources = NoiseSource(4), NoiseSource(4)
    drawn = [torch.randn(8001), torch.zeros(20, 21)]
    other = [each.clone() for each in drawn]
    noise, plain = KeyedNoise(sources[0]), KeyedNoise(sources[1])
    plain._uncompiled = 0  # never
    for step in range(3):
        noise.release(drawn, 0.3, step)
        plain.release(other, 0.3, step)
        assert all(torch.equal(one, two) for one, two in zip(drawn, other, strict=True))
        assert bool(sources[0].compilers) == (step > 0)
    assert sources[1].compilers == ()


@pytest.mark.usefixtures("untested")
@pytest.mark.parametrize("kind", ["F32", "BF16"])
def test_a_checkpoint_is_the_same_file_with_code_and_the_report_says_what_made_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = torch.randn(3, 7001, generator=torch.Generator().manual_seed(1))
    stored_as = torch.float32 if kind == "F32" else torch.bfloat16
    save_file({"w": weights.to(stored_as), "b": torch.ones(3, dtype=stored_as)}, tmp_path / "m.safetensors")

    def noise(name: str) -> tuple[bytes, PrivacyReport, list[str]]:
        messages: list[str] = []
        path = tmp_path / f"{name}.safetensors"
        (report,) = privctl.noise(
            tmp_path / "m.safetensors", noise_stddev=0.3, seed=1, output=path, notify=messages.append
        )
        return path.read_bytes(), report, messages

    plain, report, _ = noise("small")
    assert "llvmlite" not in report.versions, "a small checkpoint is done before its code would be"
    monkeypatch.setattr(weight_noise, "WORTH_COMPILING", 1)
    quick, report, messages = noise("large")
    assert "llvmlite" in report.versions
    assert plain[-weights.numel() * stored_as.itemsize :] == quick[-weights.numel() * stored_as.itemsize :]
    assert not [line for line in messages if "llvmlite" in line]
    monkeypatch.setattr(selection, "_tested", {})
    monkeypatch.setattr(selection, "fault_of", lambda code, kind: "a fault")
    _, report, messages = noise("failing")
    assert "llvmlite" not in report.versions
    assert f"noise on {kind} numbers is drawn without llvmlite, as its machine code fails: a fault" in messages
