"""Products in FP8 against the simulation, which is their reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from privctl.train.quantized import FORMATS, hardware
from privctl.train.quantized.floating import Float8, Float8Kind
from privctl.train.quantized.rounding import round_rows
from privctl.train.settings.choices import FormatName
from tests.train.quantized.support import quantized

CAPABLE = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)


def _multiplies_here() -> bool:
    """Whether this torch has FP8 products for processors, slow as they are."""
    one = torch.ones(16, 16).to(torch.float8_e4m3fn)
    try:
        hardware.multiply(one, one, torch.ones(16, 1), torch.ones(1, 1), torch.bfloat16)
    except (RuntimeError, NotImplementedError):
        return False
    return True


HERE = pytest.mark.skipif(not _multiplies_here(), reason="torch multiplies no FP8 on this processor")
NO_DEVICE = pytest.mark.skipif(not CAPABLE, reason="no device that multiplies FP8")
DEVICES = [pytest.param("cpu", marks=HERE), pytest.param("cuda", marks=NO_DEVICE)]


def on_grid(kind: Float8Kind, *shape: int, whole: bool = False) -> Tensor:
    values = torch.randn(shape) * torch.exp2(torch.randn(shape[0], 1) * 4)
    return round_rows(Float8(kind=kind), values.view(1, -1) if whole else values).view(shape)


@pytest.mark.parametrize("kind", Float8Kind)
def test_taking_codes_rounds_nothing(kind: Float8Kind) -> None:
    values = on_grid(kind, 300, 64)
    codes, scales = hardware.codes(values, kind)
    assert codes.dtype == kind.dtype
    assert torch.equal(codes.float() * scales, values)
    off, scales = hardware.codes(values * 1.01, kind)
    assert not torch.equal(off.float() * scales, values * 1.01)  # planted: what is on no grid


@pytest.mark.parametrize("device", DEVICES)
def test_products_are_those_of_the_simulation(device: str) -> None:
    inputs = on_grid(Float8Kind.E4M3, 32, 64).to(device, torch.bfloat16).requires_grad_()
    weight = on_grid(Float8Kind.E4M3, 48, 64, whole=True).to(device).requires_grad_()
    gradient = on_grid(Float8Kind.E5M2, 32, 48).to(device, torch.bfloat16)
    bias = torch.randn(48, device=device)
    found = hardware.linear(inputs.view(4, 8, 64), weight, bias).view(32, 48)
    expected = functional.linear(inputs.float(), weight, bias)
    compare(found, expected)
    pairs = zip(
        torch.autograd.grad(found, [inputs, weight], gradient),
        torch.autograd.grad(expected, [inputs, weight], gradient.float()),
        strict=True,
    )
    for one, other in pairs:
        assert one.shape == other.shape
        compare(one, other)


def compare(found: Tensor, expected: Tensor) -> None:
    """Sums in float32 of the same products, given back as bfloat16, each row as precisely as its largest."""
    found, expected = found.detach().float(), expected.detach().float()
    sizes = expected.abs().amax(1, keepdim=True)
    assert float(((found - expected) / sizes).abs().max()) < 2.0**-7


@HERE
def test_what_is_not_finite_stays_seen() -> None:
    inputs = on_grid(Float8Kind.E4M3, 32, 64).bfloat16()
    inputs[3] = torch.nan
    found = hardware.linear(inputs, on_grid(Float8Kind.E4M3, 48, 64, whole=True), None)
    assert found[3].isnan().all()
    assert found[[2, 4]].isfinite().all()


def test_processors_and_other_formats_are_simulated() -> None:
    inputs, weight = torch.zeros(32, 64, dtype=torch.bfloat16), torch.zeros(48, 64)
    assert not any(hardware.is_supported(form, inputs, weight) for form in FORMATS.values())


@NO_DEVICE
def test_layers_multiply_in_fp8_where_they_can() -> None:
    model = nn.Sequential(nn.Linear(64, 48)).cuda()
    x = torch.randn(4, 8, 64, device="cuda")
    assert hardware.is_supported(FORMATS[FormatName.FP8], x.bfloat16(), model[0].weight)
    assert not hardware.is_supported(FORMATS[FormatName.INT4], x.bfloat16(), model[0].weight)
    layers = quantized(model, FormatName.FP8)
    outputs = []
    for serves in (True, False):
        with pytest.MonkeyPatch.context() as patch, layers.active([1, 2, 3, 4]):
            if not serves:
                patch.setattr(hardware, "is_supported", lambda *_: False)
            with torch.autocast("cuda", torch.bfloat16):
                outputs.append(model(x).flatten(0, 1))
    compare(*outputs)
