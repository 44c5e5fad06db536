"""Modules that run faster forward passes: the same result up to rounding, for a while, and only where tested."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

from privctl.models.inference import fast_inference


def is_faster(module: nn.Module) -> bool:
    return "forward" in vars(module)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def _norms(count: int) -> list[nn.Module]:
    kind: Any = LlamaRMSNorm  # whose constructor has no types
    return [kind(4) for _ in range(count)]


def norm(kind: Callable[..., nn.Module], dtype: torch.dtype, epsilon: float = 1e-6) -> Any:
    made = kind(24, eps=epsilon)
    made.weight.data = 0.5 + torch.rand(24, generator=torch.Generator().manual_seed(1))
    return made.to(dtype)


@pytest.mark.parametrize("kind", [LlamaRMSNorm, T5LayerNorm])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1e-3, 1.0, 100.0])
def test_a_norm_is_its_definition_up_to_rounding(kind: Any, dtype: torch.dtype, size: float) -> None:
    module = norm(kind, dtype)
    x = (size * normal(3, 5, 24)).to(dtype)
    before = x.clone()
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * module.weight.double()
    with torch.inference_mode(), fast_inference(nn.Sequential(module)):
        assert is_faster(module)
        found = module(x)
    assert not is_faster(module)
    assert found.dtype == dtype
    assert torch.equal(x, before)
    torch.testing.assert_close(found.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=0)


class _OwnRMSNorm(nn.Module):
    """As models define it."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.variance_epsilon = eps

    def forward(self, hidden_states: Tensor) -> Tensor:
        variance = hidden_states.square().mean(-1, keepdim=True)
        return self.weight * (hidden_states * torch.rsqrt(variance + self.variance_epsilon))


class _CentredRMSNorm(_OwnRMSNorm):
    """A layer norm by another name."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states - hidden_states.mean(-1, keepdim=True))


class _AnotherEpsilonRMSNorm(_OwnRMSNorm):
    """Which adds its epsilon to the root."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        root = hidden_states.square().mean(-1, keepdim=True).sqrt()
        return self.weight * (hidden_states / (root + self.variance_epsilon))


class _ShiftedRMSNorm(_OwnRMSNorm):
    """With a parameter more."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__(width, eps)
        self.bias = nn.Parameter(torch.zeros(width))


def test_a_models_own_class_of_the_same_formula_is_known_by_what_it_computes() -> None:
    module = _OwnRMSNorm(24, 1e-3)
    with fast_inference(nn.Sequential(module)):
        assert is_faster(module)


@pytest.mark.parametrize("kind", [GemmaRMSNorm, _CentredRMSNorm, _AnotherEpsilonRMSNorm, _ShiftedRMSNorm])
def test_a_norm_of_another_formula_is_left_as_it_is(kind: Any) -> None:
    # Even one whose weight is 1 and whose inputs have a mean of 0, where formulas agree by chance.
    module = kind(24, eps=1e-3)
    with fast_inference(nn.Sequential(module)):
        assert not is_faster(module)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 16, 24), (2, 3, 19, 26)], ids=["all pixels", "a rest"])
def test_a_convolution_of_patches_is_that_of_its_definition(bias: bool, shape: tuple[int, ...]) -> None:
    module = nn.Conv2d(3, 5, (4, 6), (4, 6), bias=bias)
    x = normal(*shape)
    exact_bias = None if module.bias is None else module.bias.double()
    exact = functional.conv2d(x.double(), module.weight.double(), exact_bias, stride=(4, 6))
    with torch.inference_mode(), fast_inference(nn.Sequential(module)):
        assert is_faster(module)
        found = module(x)
        alone = module(x[0])
    assert not is_faster(module)
    torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(alone.double(), exact[0], rtol=1e-5, atol=1e-5)


def test_an_image_smaller_than_a_patch_is_refused_as_by_torch() -> None:
    module = nn.Conv2d(3, 5, 8, 8)
    with fast_inference(nn.Sequential(module)), pytest.raises(RuntimeError, match="Kernel size"):
        module(normal(2, 3, 8, 7))


class _OwnConvolution(nn.Conv2d):
    """A subclass, which may compute something else."""


@pytest.mark.parametrize(
    "module",
    [
        nn.Conv2d(4, 4, 3, 2), nn.Conv2d(4, 4, 2, 2, padding=1), nn.Conv2d(4, 4, 2, 2, dilation=2),
        nn.Conv2d(4, 4, 2, 2, groups=2), nn.Conv2d(4, 4, 2, 2, padding="valid", padding_mode="circular", dilation=3),
        nn.Conv1d(4, 4, 2, 2), _OwnConvolution(4, 4, 2, 2),
    ],
    ids=["overlapping", "padded", "dilated", "grouped", "circular", "of one dimension", "of another class"],
)  # fmt: skip
def test_other_convolutions_are_left_as_they_are(module: nn.Module) -> None:
    with fast_inference(nn.Sequential(module)):
        assert not is_faster(module)


def test_all_are_as_before_after_an_error_and_what_is_saved_never_changes() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 2, 2), *_norms(2))
    set_by_others = network[2]
    set_by_others.forward = own = functional.relu
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(RuntimeError, match="planted"), fast_inference(network):
        assert is_faster(network[0])
        assert is_faster(network[1])
        assert set_by_others.forward is own
        assert network.state_dict().keys() == before.keys()
        raise RuntimeError("planted")
    assert not is_faster(network[0])
    assert not is_faster(network[1])
    assert set_by_others.forward is own
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_hooks_still_see_what_passes() -> None:
    (module,) = _norms(1)
    seen: list[Tensor] = []
    module.register_forward_hook(lambda _, inputs, output: seen.append(output))
    with torch.inference_mode(), fast_inference(module):
        module(torch.ones(2, 4))
    assert len(seen) == 1


def test_elsewhere_than_on_a_cpu_nothing_changes() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 2, 2), *_norms(1)).to("meta")
    with fast_inference(network):
        assert not any(is_faster(module) for module in network)


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 here")
def test_a_layer_in_half_precision_adds_its_bias_in_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = nn.Linear(48, 24).bfloat16(), normal(3, 5, 48).bfloat16()
    exact = x.double() @ layer.weight.double().mT + layer.bias.double()
    with torch.inference_mode(), fast_inference(nn.Sequential(layer)):
        assert is_faster(layer)
        found, none = layer(x), layer(x[:0])
        monkeypatch.setattr(functional, "linear", None)
        assert torch.equal(layer(x), found)
    assert not is_faster(layer)
    assert none.shape == (0, 5, 24)
    torch.testing.assert_close(found.double(), exact, rtol=2**-8, atol=2**-8)


@pytest.mark.parametrize("layer", [nn.Linear(8, 8), nn.Linear(8, 8, bias=False).bfloat16()])
def test_other_layers_multiply_as_they_did(layer: nn.Module) -> None:
    with fast_inference(nn.Sequential(layer)):
        assert not is_faster(layer)


@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 here")
def test_a_layer_in_half_precision_keeps_its_gradients() -> None:
    layer, x = nn.Linear(48, 24).bfloat16(), normal(5, 48).bfloat16()
    with fast_inference(nn.Sequential(layer)):
        layer(x).sum().backward()
    assert layer.weight.grad is not None
