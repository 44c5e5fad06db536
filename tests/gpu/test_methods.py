"""Every method computes on a GPU what it computes on a processor, and its reports pass there."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

from audits.extraction.screen import screen
from audits.scores.forward import score_rows
from privctl.cli import run
from privctl.models.language import load_model
from privctl.randomness.gridded import spacing
from privctl.train.clipping import Clipping, PerExample, linear
from privctl.train.clipping.products import full_precision
from privctl.train.directional import Derivatives, direction
from privctl.train.directional.attention import blockwise_attention
from privctl.train.directional.directions import unpacked
from privctl.train.network.memory import checkpointed
from privctl.train.settings.choices import ClippingStyle, DerivativeMethod
from privctl.train.steps.gradient_noise import CipherNoise
from tests.audits.tiny import save_model
from tests.launches import Launches
from tests.models.tasks.small import architecture, words
from tests.train.clipping.support import Losses, causal, classified, distance, tokens
from tests.train.clipping.support import run as clipped
from tests.train.clipping.test_families import GROUPED, gpt2, resnet
from tests.train.directional.support import FAMILIES, case, grouped_norms

WORDS = ("cat", "dog", "mat", "sat", "on", "the", "very", "old", "a", "and")
IMAGES = {
    "pixel_values": torch.rand(4, 3, 16, 16, generator=torch.Generator().manual_seed(1)),
    "labels": torch.tensor([0, 1, 2, 1]),
}
MODELS: dict[str, tuple[Callable[[], nn.Module], Losses, dict[str, Tensor]]] = {
    "gpt2": (gpt2, causal, tokens(4, 9, 40)),
    "wide": (lambda: gpt2(n_embd=160, n_positions=128), causal, tokens(4, 128, 40)),
    "llama": (lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED)), causal, tokens(4, 9, 40)),
    "resnet": (lambda: grouped_norms(resnet()), classified, IMAGES),
}
METHODS = {
    "plain": ["plain"],
    "clipped": ["clipped"],
    "dp-sgd": ["dp-sgd", "--noise-multiplier", "1"],
    "dpquant": ["dpquant", "--format", "luq-fp4", "--noise-multiplier", "1"],
    **{
        f"ferret {name}": ["ferret", "--release", "gaussian", "--groups", "4", "--noise-multiplier", "1",
            "--derivatives", name] for name in ("backward", "partial", "forward", "difference")
    },
}  # fmt: skip
WAYS: dict[str, list[str]] = {
    "default": [],
    "float32": ["--float32"],
    "bf16": ["--bf16"],
    "checkpointed": ["--checkpointing"],
}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def on(device: torch.device, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: values.to(device) for name, values in batch.items()}


@pytest.mark.parametrize("style", ClippingStyle)
@pytest.mark.parametrize("name", MODELS)
def test_clipped_gradients(name: str, style: ClippingStyle, device: torch.device) -> None:
    make, losses, batch = MODELS[name]
    model = make().eval()
    expected, norms = clipped(model, losses, batch, 0.5, style=style)
    with full_precision(device):
        found, there = clipped(model.to(device), losses, on(device, batch), 0.5, style=style)
    assert distance({n: g.cpu() for n, g in found.items()}, expected) < 1e-4
    torch.testing.assert_close(there.norms.cpu(), norms.norms, rtol=1e-4, atol=0)

    def lower(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            return losses(model, batch)

    reduced, _ = clipped(model, lower, on(device, batch), 0.5, style=style)
    assert distance({n: g.cpu() for n, g in reduced.items()}, expected) < 0.2  # a mix-up is off by 1
    if name != "resnet":
        with full_precision(device):
            again, _ = clipped(checkpointed(model), losses, on(device, batch), 0.5, style=style)
        assert distance({n: g.cpu() for n, g in again.items()}, expected) < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("method", [m for m in DerivativeMethod if m is not DerivativeMethod.AUTO])
def test_directional_derivatives(family: str, method: DerivativeMethod, device: torch.device) -> None:
    network = case(family)
    directions = network.directions()
    expected = Derivatives(network.model, method).per_example(network.losses_of, network.fired, directions)
    model, batch = network.model.to(device), on(device, network.batch)
    there = [{name: along.to(device) for name, along in direction.items()} for direction in directions]
    with full_precision(device):
        found = Derivatives(model, method).per_example(lambda: network.losses(model, batch), network.fired, there)
    loose = 5e-2 if method is DerivativeMethod.DIFFERENCE else 1e-3
    torch.testing.assert_close(found.cpu(), expected, rtol=loose, atol=loose * float(expected.abs().max()))


@pytest.mark.parametrize("name", ["gpt2", "wide", "llama"])
def test_no_micro_batch_is_waited_for_but_by_transformers(
    name: str, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linear, "on_gpu", lambda _: True)  # on a processor there are looks, which cost nothing there
    make, losses, batch = MODELS[name]
    model, there = make().eval().to(device), on(device, batch)
    with torch.no_grad(), Launches() as alone:
        losses(model, there)
    with PerExample(model, Clipping(norm=0.5)) as engine:
        engine.accumulate(lambda: losses(model, there), check_finite=False)  # the first also compares with autograd
        with Launches() as counted:
            engine.accumulate(lambda: losses(model, there), check_finite=False)
    assert counted.syncs == alone.syncs


def test_norms_in_bfloat16_bound_what_is_added(device: torch.device) -> None:
    """A sum of ones, which would stop at 256 if it were added in bfloat16."""
    layer = nn.Linear(520, 520, bias=False).to(device)
    ones = torch.ones(1, 96, 520, device=device)

    def losses() -> Tensor:
        with torch.autocast(device.type, torch.bfloat16):
            total: Tensor = layer(ones).float().sum((1, 2))
            return total

    with PerExample(layer, Clipping(norm=1.0)) as engine:
        engine.accumulate(losses)
    assert layer.weight.grad is not None
    assert 0.999 < float(layer.weight.grad.double().norm()) <= 1


def test_directions_are_unpacked_to_the_same_bits(device: torch.device) -> None:
    shapes = {"a": torch.Size([5, 7]), "b": torch.Size([300, 41])}
    there, here = direction(b"s", 3, 2, shapes, device), direction(b"s", 3, 2, shapes)
    assert all(torch.equal(there[name].cpu(), along) for name, along in here.items())
    bits = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(unpacked(bits.to(device), 0.37).cpu(), unpacked(bits, 0.37))


def test_noise_has_its_moments_and_lies_on_its_grid(device: torch.device) -> None:
    values = torch.zeros(1 << 20, device=device)
    CipherNoise(device, seed=1).release([values], 0.37, 0)
    assert torch.equal(values / spacing(0.37), (values / spacing(0.37)).round())
    drawn = values.double().cpu() / 0.37
    error = 1 / drawn.numel() ** 0.5
    assert abs(float(drawn.mean())) < 5 * error
    assert abs(float(drawn.var()) - 1) < 5 * error * 2**0.5
    assert abs(float((drawn**4).mean()) - 3) < 5 * error * 96**0.5
    other = torch.zeros(1 << 20, device=device)
    CipherNoise(device, seed=2).release([other], 0.37, 0)
    assert abs(float((values * other).double().mean()) / 0.37**2) < 5 * error


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_noise_is_that_of_tensor_operations_on_a_processor(device: torch.device, dtype: torch.dtype) -> None:
    """One sum in 10^11 may lie so near a midpoint that two libraries' sines round it apart."""
    sizes = ((1_000_003,), (70, 33), (5,))
    for step in range(3):
        there = [torch.ones(size, device=device, dtype=dtype) for size in sizes]
        here = [torch.ones(size, dtype=dtype) for size in sizes]
        CipherNoise(device, seed=3).release(there, 0.37, step)
        CipherNoise(torch.device("cpu"), seed=3).release(here, 0.37, step)
        assert all(torch.equal(a.cpu(), b) for a, b in zip(there, here, strict=True))


def test_nobody_waits_for_noise(device: torch.device) -> None:
    noise = CipherNoise(device)
    values = [torch.zeros(size, device=device) for size in (1 << 20, 5000, 3, 70_000)]  # all but the first are joined
    noise.release(values, 1.0, 0)
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("error")
    try:
        noise.release(values, 1.0, 1)
    finally:
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
    assert "ChaCha20" in noise.description


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_forward_derivatives_of_long_attention(device: torch.device, dtype: torch.dtype) -> None:
    """In blocks, as on a processor, where a block is far smaller than a card's."""
    drawn = torch.Generator().manual_seed(2)
    tensors = [torch.randn(2, heads, 700, 16, generator=drawn).to(dtype) for heads in (4, 2, 2)] * 2
    mask = torch.ones(700, 700, dtype=torch.bool).tril(-3)  # the first rows see nothing
    for keywords in ({"is_causal": True}, {"attn_mask": mask}):
        there = slopes([tensor.to(device) for tensor in tensors], keywords, device)
        here = slopes(tensors, keywords, torch.device("cpu"))
        for found, expected in zip(there, here, strict=True):
            loose = 1e-5 if dtype is torch.float32 else 2**-7
            torch.testing.assert_close(found.cpu(), expected, rtol=loose, atol=loose * float(expected.abs().max()))


def slopes(tensors: list[Tensor], keywords: dict[str, Any], device: torch.device) -> tuple[Tensor, Tensor]:
    there = {name: value.to(device) if isinstance(value, Tensor) else value for name, value in keywords.items()}
    level: Any = forward_ad
    with torch.no_grad(), full_precision(device), level.dual_level(), blockwise_attention():
        duals = [level.make_dual(value, along) for value, along in zip(tensors[:3], tensors[3:], strict=True)]
        attended = functional.scaled_dot_product_attention(*duals, enable_gqa=True, **there)
        found: tuple[Tensor, Tensor] = level.unpack_dual(attended)
        return found


def test_scores_and_extraction(device: torch.device, tmp_path: Path) -> None:
    folder = save_model(tmp_path)
    here, there = load_model(folder, device="cpu"), load_model(folder, device=str(device))
    windows = list(np.random.default_rng(0).integers(3, 60, (40, 12)))
    np.testing.assert_allclose(score_rows(there, windows)[0], score_rows(here, windows)[0], rtol=2e-3, atol=2e-3)
    for found, expected in zip(screen(there, windows, 3), screen(here, windows, 3), strict=True):
        np.testing.assert_allclose(found[:, 0], expected[:, 0], rtol=2e-3, atol=2e-3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("place")
    words().tokenizer.save_pretrained(architecture(folder / "start", "gpt2"))
    drawn = random.Random(0)
    lines = [json.dumps({"text": " ".join(drawn.choices(WORDS, k=drawn.randint(2, 9)))}) for _ in range(40)]
    (folder / "train.jsonl").write_text("\n".join(lines[:30]) + "\n")
    (folder / "held-out.jsonl").write_text("\n".join(lines[30:]) + "\n")
    return folder


@pytest.mark.parametrize("variant", WAYS)
@pytest.mark.parametrize("method", METHODS)
def test_whole_runs_and_their_reports(
    method: str, variant: str, folder: Path, tmp_path: Path, device: torch.device
) -> None:
    if method == "ferret difference" and variant == "bf16":
        pytest.skip("differences need float32")
    name, *settings = METHODS[method]
    call = ["retrain", name, str(folder / "start"), "--data", str(folder / "train.jsonl"), "-o", str(tmp_path / "out")]
    call += [
        "--batch-size",
        "6",
        "--steps" if name in ("dp-sgd", "dpquant") else "--epochs",
        "3",
        "--device",
        str(device),
        "-q",
    ]
    assert run([*call, "--held-out", str(folder / "held-out.jsonl"), *settings, *WAYS[variant]]) == 0
    assert run(["verify", str(tmp_path / "out.report.json")]) in (0, 3)


def test_the_report_says_the_precision_that_ran(folder: Path, tmp_path: Path, device: torch.device) -> None:
    call = ["retrain", "dp-sgd", str(folder / "start"), "--data", str(folder / "train.jsonl"), "--steps", "2", "-q"]
    call += ["--batch-size", "6", "--noise-multiplier", "1", "--device", str(device)]
    has_it = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    for number, (asked, expected) in enumerate((([], has_it), (["--float32"], False), (["--bf16"], True))):
        assert run([*call, *asked, "-o", str(tmp_path / f"out{number}")]) == 0
        report = json.loads((tmp_path / f"out{number}.report.json").read_text())
        assert report["parameters"]["bf16"] is expected


def test_a_stream_replays_on_a_processor_to_the_same_bits(folder: Path, tmp_path: Path, device: torch.device) -> None:
    call = ["retrain", "ferret", str(folder / "start"), "--data", str(folder / "train.jsonl"), "--epochs", "3", "-q"]
    call += ["--batch-size", "6", "--release", "gaussian", "--groups", "4", "--noise-multiplier", "1"]
    assert run([*call, "--device", str(device), "-o", str(tmp_path / "out")]) == 0
    stream = str(tmp_path / "out.updates.safetensors")
    call = ["retrain", "ferret", str(folder / "start"), "--replay", stream, "--device", "cpu", "-q"]
    assert run([*call, "-o", str(tmp_path / "again")]) == 0
    first, again = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("out", "again"))
    assert tensors_of(first) == tensors_of(again)


def tensors_of(file: bytes) -> bytes:
    """All but the header, which names the report."""
    return file[8 + int.from_bytes(file[:8], "little") :]
