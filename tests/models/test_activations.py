"""Activations written out in Python, run by torch's kernel: the same formula, exactly the known classes, a while."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import activations
from transformers.models.bloom.modeling_bloom import BloomGelu

from privctl.models import activations as fused
from privctl.models.activations import fused_activations
from tests.few import few

#: Each class as models make it.
WRITTEN_OUT: list[Callable[[], nn.Module]] = [
    activations.NewGELUActivation,
    activations.QuickGELUActivation,
    BloomGelu,
    activations.FastGELUActivation,
    activations.AccurateGELUActivation,
    lambda: activations.GELUTanh(use_gelu_tanh_python=True),
    lambda: activations.GELUActivation(use_gelu_python=True),
]


class OwnGELU(activations.NewGELUActivation):
    """A subclass, whose formula may be another."""


def is_fused(module: nn.Module) -> bool:
    return "forward" in vars(module)


def ends(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    values = module(x)
    (gradient,) = torch.autograd.grad(values.sum(), x)
    return values.detach(), gradient


@pytest.mark.parametrize("make", few(WRITTEN_OUT, 0, 1, 2))
@pytest.mark.parametrize("training", [True, False])
def test_values_and_gradients_are_those_of_the_modules_own_formula(
    make: Callable[[], nn.Module], training: bool
) -> None:
    network = nn.Sequential(nn.Linear(3, 5), make()).train(training)
    x = 3 * torch.randn(4, 7, generator=torch.Generator().manual_seed(0))
    own, exact = ends(network[1], x), ends(network[1], x.double())
    with fused_activations(network):
        assert is_fused(network[1])
        found = ends(network[1], x)
    assert not is_fused(network[1])
    for mine, its, right in zip(found, own, exact, strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=4e-6)
        torch.testing.assert_close(mine.double(), right, rtol=0, atol=2e-6)
        assert mine.dtype == its.dtype


def test_gelu_is_that_of_the_normal_distribution() -> None:
    """x Phi(x) is what the tanh approximates to 5e-4, and erf states exactly."""
    x = torch.tensor([-2.0, -0.5, 0.0, 1.0, 3.0])
    expected = torch.tensor([v * 0.5 * math.erfc(-v / math.sqrt(2)) for v in x.tolist()])
    for make, off in ((WRITTEN_OUT[-1], 1e-6), (WRITTEN_OUT[0], 5e-4)):
        network = nn.Sequential(make())
        with fused_activations(network):
            torch.testing.assert_close(network(x), expected, rtol=0, atol=off)


@pytest.mark.parametrize(
    "wrong",
    [functional.gelu, lambda x: x * torch.sigmoid(1.7 * x), lambda x: functional.gelu(x.detach(), approximate="tanh")],
    ids=["by erf", "another formula", "no gradient"],
)
def test_a_kernel_of_another_formula_is_not_taken(
    wrong: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = ("transformers.activations", "NewGELUActivation")
    monkeypatch.setitem(fused.KERNELS, row, lambda x: wrong(x) + 0 * x)
    network = nn.Sequential(activations.NewGELUActivation())
    with fused_activations(network):
        assert not is_fused(network[0])


def test_a_module_whose_own_constant_was_changed_is_left_as_it_is() -> None:
    changed = activations.AccurateGELUActivation()
    changed.precomputed_constant += 1e-4
    with fused_activations(changed):
        assert not is_fused(changed)


def test_modules_that_are_alike_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[torch.dtype] = []

    def computes_the_same(_own: object, _kernel: object, kind: torch.dtype, _device: object) -> bool:
        compared.append(kind)
        return True

    monkeypatch.setattr(fused, "_AGREE", {})
    monkeypatch.setattr(fused, "_computes_the_same", computes_the_same)
    changed = activations.AccurateGELUActivation()
    changed.precomputed_constant += 1e-4
    once = len(dict.fromkeys([torch.float64, torch.float32, torch.bfloat16]))
    for module, times in (
        (activations.AccurateGELUActivation(), 1),
        (activations.AccurateGELUActivation(), 1),
        (changed, 2),
        (activations.GELUTanh(use_gelu_tanh_python=True), 3),
        (activations.GELUTanh(use_gelu_tanh_python=True), 3),
        (activations.AccurateGELUActivation().half(), 3),
        (nn.Sequential(nn.Linear(1, 1).half(), activations.AccurateGELUActivation()), 3),
    ):
        fused.fusible_activations(module)
        extra = 4 if isinstance(module, nn.Sequential) else 0  # a format of its own is compared with the three
        assert len(compared) == times * once + extra


def test_what_is_not_exactly_of_a_known_class_is_left_as_it_is() -> None:
    named_alike = type("NewGELUActivation", (nn.Identity,), {"__module__": "transformers.activations"})()
    set_by_others = activations.NewGELUActivation()
    set_by_others.forward = own = functional.relu
    kernels = [activations.GELUActivation(), activations.GELUTanh(), nn.GELU(), nn.SiLU()]
    network = nn.Sequential(OwnGELU(), named_alike, *kernels)
    with fused_activations(nn.Sequential(network, set_by_others)):
        assert not any(is_fused(module) for module in network)
        assert set_by_others.forward is own
    assert set_by_others.forward is own


def test_all_are_as_before_after_an_error_and_what_is_saved_never_changes() -> None:
    network = nn.Sequential(nn.Linear(2, 2), activations.NewGELUActivation(), activations.NewGELUActivation())
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(RuntimeError, match="planted"), fused_activations(network):
        assert is_fused(network[1])
        assert is_fused(network[2])
        assert network.state_dict().keys() == before.keys()
        raise RuntimeError("planted")
    assert not is_fused(network[1])
    assert not is_fused(network[2])
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_inside_another_one_the_outer_one_ends_it() -> None:
    network = nn.Sequential(activations.NewGELUActivation())
    with fused_activations(network):
        with fused_activations(network):
            assert is_fused(network[0])
        assert is_fused(network[0])
    assert not is_fused(network[0])


def test_two_at_once_leave_it_as_it_was() -> None:
    """As two threads that begin together: both put the kernel in, and the second finds it taken out."""
    network = nn.Sequential(activations.NewGELUActivation())
    with fused_activations(network):
        del network[0].forward
    assert not is_fused(network[0])


def test_nothing_is_asked_of_autograd_in_inference() -> None:
    network = nn.Sequential(nn.Linear(2, 2), activations.QuickGELUActivation()).requires_grad_(False)
    with torch.inference_mode(), fused_activations(network):
        assert is_fused(network[1])
        assert network(torch.ones(1, 2)).shape == (1, 2)
