"""ChaCha20 in Triton: in its interpreter on the processor, and compiled for a card that is not here."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from privctl.randomness.device import Place, selftest, tensor_engine
from privctl.randomness.device.engine import FOLLOWING, LANES, MOST_TENSORS, TILE, ElementRange
from privctl.randomness.device.joined import tiles_of
from privctl.randomness.device.selftest import openssl_words
from privctl.randomness.device.tensor_engine import TensorEngine, key_words

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="there is no Triton"),
]

CPU = torch.device("cpu")
KEY = bytes(range(32))
PLACE = Place(step=157, tensor=0)


def loaded(name: str) -> ModuleType:
    """The module of kernels by itself: whether they are interpreted is settled when it is loaded."""
    path = Path(tensor_engine.__file__).with_name("triton_engine.py")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def interpreted(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return loaded("interpreted_kernels")


def test_the_keystream_is_openssls_and_that_of_tensor_operations(interpreted: ModuleType) -> None:
    engine, key = interpreted.TritonEngine(), key_words(KEY, CPU)
    selftest._require_keystream(engine, CPU)  # the vectors of RFC 8439 among others
    for lane in range(FOLLOWING + 1):
        found = engine.words(key, PLACE, 0, LANES + 7, lane)
        assert torch.equal(found, openssl_words(KEY, PLACE, LANES + 7, lane))
    across = (1 << 32) - 50
    assert torch.equal(engine.words(key, PLACE, across, 100), TensorEngine().words(key, PLACE, across, 100))


def test_deviates_are_exact_where_few_bits_are_drawn_and_where_all_are(
    interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, key = interpreted.TritonEngine(), key_words(KEY, CPU)
    monkeypatch.setattr(selftest, "_TILES", 2)
    first = engine.deviates(key, PLACE, 2)
    selftest._require_fine(first.tolist(), CPU)
    assert float((first - TensorEngine().deviates(key, PLACE, 2)).abs().max()) < 1e-14
    # As if no number of bits were enough: every pair has those of both lanes that follow.
    pairs = list(selftest._chosen_pairs())
    monkeypatch.setattr(selftest, "_chosen_pairs", lambda: pairs)
    for module in (interpreted, selftest):
        monkeypatch.setattr(module, "ENOUGH", 200)
    selftest._require_fine(engine.deviates(key, PLACE, 2).tolist(), CPU)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_is_released_is_what_tensor_operations_release(interpreted: ModuleType, dtype: torch.dtype) -> None:
    key, offset = key_words(KEY, CPU), TILE - 300
    values = torch.randn(900, generator=torch.Generator().manual_seed(1)).to(dtype)
    values[:5] = torch.tensor([float("nan"), float("inf"), -float("inf"), 3e38, -0.0])
    released = []
    for engine in (interpreted.TritonEngine(), TensorEngine()):
        released.append(values.clone())
        engine.release(released[-1], key, Place(step=3, tensor=2), offset, 0.3)
    # The interpreter cuts numbers off where a card rounds them to 16 bits.
    torch.testing.assert_close(*released, rtol=2**-7 if dtype is torch.bfloat16 else 0, atol=0, equal_nan=True)
    assert not torch.equal(released[0][5:], values[5:])


def test_a_stretch_gets_the_noise_of_its_place(interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "_OFFSET", TILE + 333)
    monkeypatch.setattr(selftest, "_LENGTH", 500)
    monkeypatch.setattr(selftest, "_RUN", 500)
    for kind in (torch.float32, torch.float64):
        selftest._require_placed(interpreted.TritonEngine(), CPU, kind)


def test_stretches_in_one_buffer_get_the_bits_that_they_get_alone(
    interpreted: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = ((7, 0, 5), (2, TILE - 3, 10), (MOST_TENSORS - 1, 300, TILE), (7, 5 * TILE, 1))
    joined = [ElementRange(tensor=tensor, offset=offset, count=count) for tensor, offset, count in places]
    monkeypatch.setattr(selftest, "_JOINED", joined)
    for kind in (torch.float32, torch.float64):
        selftest._require_joined(interpreted.TritonEngine(), CPU, kind)
    key, tiles = key_words(KEY, CPU), tiles_of(joined, CPU)
    ours, reference = torch.zeros(2, sum(stretch.count for stretch in joined)).unbind()
    interpreted.TritonEngine().release_joined(ours, key, 3, tiles, 0.3)
    TensorEngine().release_joined(reference, key, 3, tiles, 0.3)
    assert torch.equal(ours, reference)
    assert bool((ours != 0).any())


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from privctl.randomness.device import triton_engine as kernels

numbers = dict.fromkeys(("step", "tensor", "first", "count", "offset"), "i32")
bits = dict.fromkeys(("ratio", "grid", "inverse"), "i64")


def compiled(kernel, signature, **constants):
    signature = {**signature, **dict.fromkeys(constants, "constexpr")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    print(triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"], "=== end")


sizes = {"LANES": kernels.LANES, "ENOUGH": kernels.ENOUGH}
for held, raw in (("*fp32", False), ("*bf16", False), ("*fp64", False), ("*fp64", True)):
    compiled(kernels._release, {"out": held, "key": "*i32", **numbers, **bits}, **sizes, RAW=raw)
    if not raw:
        joined = {"out": held, "key": "*i32", "tiles": "*i64", "step": "i32", **bits}
        compiled(kernels._release_joined, joined, **sizes, RAW=False)
words = {"out": "*i32", "key": "*i32", "step": "i32", "tensor": "i32", "first": "i64", "count": "i32"}
compiled(kernels._words, words, LANES=kernels.LANES)
"""


def test_it_compiles_for_a_card_in_double_precision() -> None:
    """Nothing is computed in single precision, and pi / 2^63 has all its bits. In a process that interprets nothing."""
    process = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, check=True)
    *codes, words, _ = process.stdout.split("=== end")
    assert words.count("st.global") == 16
    assert len(codes) == 7
    for code in codes:
        single = set(re.findall(r"[\w.]*\.f32\b[\w.]*", code))
        assert all(name.startswith("cvt.") for name in single), single
        assert "0d3C1921FB54442D18" in code
        assert "sqrt.rn.f64" in code
        assert code.count("st.global") == 8  # each deviate is stored once, in the sum
