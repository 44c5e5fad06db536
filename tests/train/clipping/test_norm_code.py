"""Gradients of LayerNorm and RMSNorm by machine code: those of torch in double precision, or none of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.nn import functional

pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")

from privctl.machine_code.building import shuffled
from privctl.machine_code.compiling import CompiledModule
from privctl.machine_code.threads import SharedCode
from privctl.train.clipping import norm_code, norm_program, normalisation
from privctl.train.clipping.norm_code import norm_sums, suits_code
from tests.train.clipping.support import agree, squared


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


@pytest.fixture
def untested() -> Iterator[None]:
    """No code counts as tested, and none tested now does afterwards."""
    norm_code._tested_code.cache_clear()
    yield
    norm_code._tested_code.cache_clear()


def assert_close(found: tuple[Tensor, Tensor], x: Tensor, g: Tensor, epsilon: float, *, centred: bool) -> None:
    normalize = functional.layer_norm if centred else functional.rms_norm
    products = normalize(x.double(), x.shape[-1:], eps=epsilon) * g.double()
    for each, right in zip(found, (products, g.double()), strict=True):
        assert ((each - right.sum(1)).abs() <= 2e-6 * right.abs().sum(1)).all()


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("lanes", [8, 16])
def test_sums_are_those_of_double_precision(lanes: int, centred: bool) -> None:
    code = SharedCode.of(CompiledModule(norm_program.assembly(lanes)), "sums")
    x, g = 3 + torch.randn(3, 70, 48), torch.randn(3, 70, 48)
    x[0] *= 1e-3  # where epsilon matters
    assert_close(norm_code._sums(code, x, g, 1e-5, centred), x, g, 1e-5, centred=centred)


def test_tensors_may_be_parts_of_others_and_threads_change_nothing() -> None:
    whole = torch.randn(4, 64, 2, 128)
    x, g = whole[1:, :, 0], torch.randn(3, 128, 64).mT
    alone = norm_sums(x, g, epsilon=1e-5, centred=True)
    assert_close(alone, x, g, 1e-5, centred=True)
    torch.set_num_threads(2)
    assert all(torch.equal(*pair) for pair in zip(norm_sums(x, g, epsilon=1e-5, centred=True), alone, strict=True))


@pytest.mark.parametrize("layer", [nn.LayerNorm(128), hf.models.llama.modeling_llama.LlamaRMSNorm(128)])
def test_layers_are_right_and_use_it(layer: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(
        normalisation, "norm_sums", lambda *given, **how: used.append(given[0].shape[1:]) or norm_sums(*given, **how)
    )
    agree(layer, squared, {"x": torch.randn(3, 80, 128)})
    assert set(used) == {(80, 128)}


def test_what_does_not_suit_takes_torchs_operations() -> None:
    fine = torch.randn(2, 64, 128)
    assert suits_code(fine, fine)
    for other in (fine.double(), fine.bfloat16(), fine[:, :, :100], fine[:, :8]):
        assert not suits_code(other, other)


@pytest.mark.usefixtures("untested")
def test_code_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the lanes of a sum are left out."""
    total = norm_program.sum_of_lanes
    monkeypatch.setattr(
        norm_program,
        "sum_of_lanes",
        lambda builder, value: total(builder, shuffled(builder, value, value, range(4))),
    )
    assert norm_code._tested_code() is None


@pytest.mark.usefixtures("untested")
def test_without_llvmlite_torch_computes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    for name in ("privctl.machine_code.compiling", "privctl.train.clipping.norm_program"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("privctl.train.clipping.norm_program")
    assert norm_code._tested_code() is None
    agree(nn.LayerNorm(128), squared, {"x": torch.randn(3, 80, 128)})
