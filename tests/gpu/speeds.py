"""How fast a GPU scores records, tries prefixes and multiplies in FP8."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from audits.extraction.screen import screen
from audits.scores.forward import score_rows
from privctl.models.language import LanguageModel
from privctl.train.quantized import FORMATS, QuantizedLayers, hardware
from privctl.train.quantized.floating import Float8, Float8Kind
from privctl.train.settings.choices import FormatName
from tests.bench.audit_ways import random_rows
from tests.gpu.networks import SIZES, TOY, llama, seconds

Result = dict[str, Any]

WIDTHS = {False: (1024, 2048, 4096, 8192), True: (32, 64)}
#: Examples and positions of what goes through a layer.
_ROWS = {False: (16, 512), True: (2, 16)}


def audits(device: torch.device, toy: bool) -> Iterator[Result]:
    """Tokens a second that are scored for membership, and that are tried for extraction."""
    network = llama(TOY if toy else SIZES["1B"], device).requires_grad_(False)
    if device.type == "cuda":
        network = network.to(torch.bfloat16)
    model = LanguageModel(path=Path("made"), folder=Path("made"), network=network, tokenizer=None, device=device)
    rows = random_rows(model, 64 if toy else 2048, 16, 32 if toy else 256)
    windows = list(np.random.default_rng(0).integers(0, model.vocabulary, (64 if toy else 2048, 100)))
    yield {
        "way": "membership, scored",
        "tokens_per_s": sum(len(row) - 1 for row in rows) / seconds(lambda: score_rows(model, rows), device, 1),
    }
    yield {
        "way": "extraction, tried",
        "tokens_per_s": 50 * len(windows) / seconds(lambda: screen(model, windows, 50), device, 1),
    }


def fp8(device: torch.device, toy: bool) -> Iterator[Result]:
    """By width: a product in FP8 against bfloat16, and a layer of DPQuant, forward and backward, against an exact one.

    ``layer_simulated`` multiplies the same rounded factors in bfloat16. All of them are times over the exact one's, so
    that below 1 is a gain; None where the device multiplies no FP8.
    """
    for width in WIDTHS[toy]:
        yield {"width": width, **_product(width, device, toy), **_layer(width, device, toy)}


def _product(width: int, device: torch.device, toy: bool) -> Result:
    count = _ROWS[toy][0] * _ROWS[toy][1]
    left = torch.randn(count, width, device=device, dtype=torch.bfloat16)
    right = torch.randn(width, width, device=device, dtype=torch.bfloat16)
    exact = seconds(lambda: left @ right.t(), device, 10)
    found: Result = {"bf16_product_s": exact, "fp8_product_ratio": None}
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9):
        kind = Float8(kind=Float8Kind.E4M3)
        (low, scale), (flat, one) = _codes(left, kind), _codes(right.reshape(1, -1), kind)
        weight = flat.view(right.shape)
        taken = seconds(lambda: hardware.multiply(low, weight, scale, one, torch.bfloat16), device, 10)
        found["fp8_product_ratio"] = taken / exact
    return found


def _codes(values: Tensor, kind: Float8) -> tuple[Tensor, Tensor]:
    (scale,) = kind.scales(values)
    return (values / scale).to(kind.kind.dtype), scale.float()


def _layer(width: int, device: torch.device, toy: bool) -> Result:
    rows, positions = _ROWS[toy]
    network = nn.Sequential(nn.Linear(width, width, bias=False, device=device)).requires_grad_(False)
    inputs = torch.randn(rows, positions, width, device=device, requires_grad=True)

    def both() -> None:
        with torch.autocast(device.type, torch.bfloat16):
            outputs = network(inputs)
        torch.autograd.grad(outputs.float().sum(), inputs)

    exact = seconds(both, device, 5)
    found: Result = {"layer_s": exact}
    for name in (FormatName.FP8, FormatName.FP8_STOCHASTIC):
        taken = _rounded(network, both, name, device, rows)
        with mock.patch.object(hardware, "is_supported", return_value=False):
            simulated = _rounded(network, both, name, device, rows)
        found |= {f"{name}_ratio": taken / exact, f"{name}_simulated_ratio": simulated / exact}
    return found


def _rounded(network: nn.Module, both: Callable[[], None], name: FormatName, device: torch.device, rows: int) -> float:
    """A step's pass: the weight is rounded once, and then inputs and gradients."""
    layers = QuantizedLayers(network=network, format=FORMATS[name], seed=b"bench")
    layers.choose(frozenset(layers.names))
    steps = iter(range(1 << 30))

    def step() -> None:
        layers.begin(next(steps))
        with layers.active(range(rows)):
            both()

    return seconds(step, device, 5)
