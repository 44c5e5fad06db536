"""Gradients of GroupNorm by machine code: those of torch in double precision, or none of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

pytest.importorskip("llvmlite", reason="machine code is made by llvmlite")

from privctl.machine_code.building import shuffled
from privctl.machine_code.compiling import CompiledModule
from privctl.machine_code.threads import SharedCode
from privctl.train.clipping import group_norm_code, group_norm_program, normalisation
from privctl.train.clipping.group_norm_code import group_norm_sums, suits_groups
from tests.train.clipping.support import agree, squared


@pytest.fixture(autouse=True)
def _seeded(one_thread: None) -> None:
    torch.manual_seed(0)


@pytest.fixture
def untested() -> Iterator[None]:
    """No code counts as tested, and none tested now does afterwards."""
    group_norm_code._tested_code.cache_clear()
    yield
    group_norm_code._tested_code.cache_clear()


def assert_close(found: tuple[Tensor, Tensor], x: Tensor, g: Tensor, groups: int, epsilon: float) -> None:
    products = functional.group_norm(x.double(), groups, eps=epsilon) * g.double()
    for each, right in zip(found, (products, g.double()), strict=True):
        assert ((each - right.flatten(2).sum(2)).abs() <= 2e-6 * right.abs().flatten(2).sum(2)).all()


@pytest.mark.parametrize("groups", [1, 3, 12])
@pytest.mark.parametrize("lanes", [8, 16])
def test_sums_are_those_of_double_precision(lanes: int, groups: int) -> None:
    code = SharedCode.of(CompiledModule(group_norm_program.assembly(lanes)), "sums")
    x, g = 3 + torch.randn(3, 12, 1056), torch.randn(3, 12, 1056)
    x[0] *= 1e-3  # where epsilon matters
    assert_close(group_norm_code._sums(code, x, g, groups, 1e-5), x, g, groups, 1e-5)


def test_long_sums_and_means_far_from_zero_lose_few_digits() -> None:
    x, g = 100 + torch.randn(1, 2, 1 << 18), torch.ones(1, 2, 1 << 18)
    weights, biases = group_norm_sums(x, g, 2, 1e-5)
    products = functional.group_norm(x.double(), 2, eps=1e-5)
    assert ((weights - products.sum(2)).abs() <= 2e-6 * products.abs().sum(2)).all()
    assert biases.tolist() == [[float(1 << 18)] * 2]


def test_layouts_and_threads_change_nothing() -> None:
    x, g = torch.randn(5, 8, 32, 32), torch.randn(5, 8, 32, 32)
    alone = group_norm_sums(x, g, 4, 1e-5)
    assert_close(alone, x, g, 4, 1e-5)
    torch.set_num_threads(2)
    last = group_norm_sums(
        x.contiguous(memory_format=torch.channels_last), g.movedim(3, 2).contiguous().movedim(2, 3), 4, 1e-5
    )
    assert all(torch.equal(*pair) for pair in zip(last, alone, strict=True))


@pytest.mark.parametrize("layer", [nn.GroupNorm(4, 8), nn.InstanceNorm2d(8, affine=True)])
def test_layers_are_right_and_use_it(layer: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    monkeypatch.setattr(
        normalisation, "group_norm_sums", lambda *given: used.append(given[2]) or group_norm_sums(*given)
    )
    agree(layer, squared, {"x": torch.randn(3, 8, 32, 48)})
    assert set(used) == {layer.num_groups if isinstance(layer, nn.GroupNorm) else 8}


def test_what_does_not_suit_takes_torchs_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    fine = torch.randn(2, 8, 32, 32)
    assert suits_groups(fine, fine)
    for other in (fine.double(), fine.bfloat16(), fine[..., :31, :31], fine[..., :4, :4]):
        assert not suits_groups(other, other)
    monkeypatch.setattr(normalisation, "group_norm_sums", None)
    agree(nn.InstanceNorm2d(8, affine=True, track_running_stats=True).eval(), squared, {"x": fine})


@pytest.mark.usefixtures("untested")
def test_code_that_is_wrong_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the lanes of a sum are left out."""
    total = group_norm_program.sum_of_lanes
    monkeypatch.setattr(
        group_norm_program,
        "sum_of_lanes",
        lambda builder, value: total(builder, shuffled(builder, value, value, range(4))),
    )
    assert group_norm_code._tested_code() is None


@pytest.mark.usefixtures("untested")
def test_without_llvmlite_torch_computes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    for name in ("privctl.machine_code.compiling", "privctl.train.clipping.group_norm_program"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("privctl.train.clipping.group_norm_program")
    assert group_norm_code._tested_code() is None
    agree(nn.GroupNorm(4, 8), squared, {"x": torch.randn(3, 8, 32, 32)})
