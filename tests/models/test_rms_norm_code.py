"""RMSNorm by machine code: that of double precision, rounded as often as torch does, or none of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")

from privctl.machine_code.compiling import CompiledModule
from privctl.machine_code.threads import SharedCode
from privctl.models import inference, rms_norm_code, rms_norm_program
from privctl.models.inference import fast_inference
from privctl.models.rms_norm_code import rms_norm, suits_code

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16}


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


@pytest.fixture
def untested() -> Iterator[None]:
    """No code counts as tested, and none tested now does afterwards."""
    rms_norm_code._tested_code.cache_clear()
    yield
    rms_norm_code._tested_code.cache_clear()


def definition(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """Rounded to the format of x before and after the product with the weight."""
    wide = x.double()
    normalized = (wide * (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt()).to(x.dtype)
    return (normalized.double() * weight.double()).to(x.dtype)


@pytest.mark.parametrize("lanes", [8, 16])
@pytest.mark.parametrize("kind", DTYPES)
def test_rows_are_those_of_double_precision(kind: str, lanes: int) -> None:
    code = SharedCode.of(CompiledModule(rms_norm_program.assembly(kind, lanes)), "norm")
    x = (torch.randn(40, 48) * torch.logspace(-4, 4, 40)[:, None]).to(DTYPES[kind])
    weight = torch.randn(48).to(DTYPES[kind])
    found = rms_norm_code._normalized(code, x, weight, 1e-6)
    expected = definition(x, weight, 1e-6)
    torch.testing.assert_close(found, expected, rtol=(4 if kind == "F32" else 1) * torch.finfo(x.dtype).eps, atol=0)
    assert kind == "F32" or (found == expected).double().mean() > 0.98  # rounded at the same two places


@pytest.mark.parametrize("dtype", DTYPES.values())
def test_nan_and_infinity_stay_in_their_rows(dtype: torch.dtype) -> None:
    x, weight = torch.randn(64, 512).to(dtype), torch.ones(512).to(dtype)
    alone = rms_norm(x, weight, 1e-6)
    changed = x.clone()
    changed[3, 5], changed[7, 9] = torch.nan, -torch.inf
    found = rms_norm(changed, weight, 1e-6)
    assert found[3].isnan().all()
    assert found[7, 9].isnan()
    others = [row for row in range(64) if row not in (3, 7)]
    assert torch.equal(found[others], alone[others])


def test_a_model_uses_it_in_any_layout_and_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(inference, "rms_norm", lambda *given: used.append(given[0].shape) or rms_norm(*given))
    layer = LlamaRMSNorm(128)
    layer.weight.data.uniform_(0.5, 1.5)
    x = torch.randn(320, 8, 128).transpose(0, 1)
    with torch.inference_mode(), fast_inference(nn.Sequential(layer)):
        alone = layer(x)
        torch.set_num_threads(2)
        assert torch.equal(layer(x), alone)
    assert used == [x.shape] * 2
    torch.testing.assert_close(alone, definition(x, layer.weight, 1e-6), rtol=1e-6, atol=0)


def test_what_does_not_suit_takes_torchs_operations() -> None:
    fine, weight = torch.randn(300, 128), torch.ones(128)
    assert suits_code(fine, weight)
    assert not suits_code(fine.double(), weight.double())
    assert not suits_code(fine.bfloat16(), weight)
    assert not suits_code(fine[:10], weight)
    assert not suits_code(fine[:, :100], weight[:100])
    assert not suits_code(fine.requires_grad_(), weight)
    with torch.inference_mode():
        assert suits_code(fine, weight)


@pytest.mark.usefixtures("untested")
def test_code_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are cut to bfloat16 and not rounded, which is off by up to a unit of the last place, twice."""
    monkeypatch.setattr(
        rms_norm_program,
        "_rounded",
        lambda builder, values: builder.and_(
            builder.bitcast(values, rms_norm_program._words(values.type.count)),
            rms_norm_program._splat(0xFFFC0000, values.type.count),
        ),
    )
    assert rms_norm_code._tested_code(torch.bfloat16) is None
    assert rms_norm_code._tested_code(torch.float32) is not None


@pytest.mark.usefixtures("untested")
def test_without_llvmlite_torch_computes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    for name in ("privctl.machine_code.compiling", "privctl.models.rms_norm_program"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("privctl.models.rms_norm_program")
    assert not suits_code(torch.randn(300, 128), torch.ones(128))
