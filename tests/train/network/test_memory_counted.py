"""Memory of large models: what two shallow ones give is what the deep one takes, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import transformers as hf
from torch import nn

from privctl.train.clipping.normalisation import is_scaled_rms_norm
from tests.bench.memory import costs, linear_shapes
from tests.bench.memory_counted import SIZES, FourBitLinear, Llama, needs, shallow

SMALL = Llama(64, 160, 6, 4, 2, 300, tied=True)


def _equal(bits: int | None, *, recomputed: bool, examples: int = 4) -> None:
    (found,) = needs(SMALL, bits, examples=[examples], positions=32, recomputed=recomputed)
    (counted,) = shallow(SMALL, bits, SMALL.layers, [examples], 32, recomputed)
    assert found == counted


@pytest.mark.slow
def test_a_deep_model_is_found_from_shallow_ones() -> None:
    _equal(None, recomputed=True)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [None, 32, 16, 4])
@pytest.mark.parametrize("examples", [1, 16])
@pytest.mark.parametrize("recomputed", [False, True])
def test_a_deep_model_of_each_way_is_found_from_shallow_ones(bits: int | None, examples: int, recomputed: bool) -> None:
    _equal(bits, recomputed=recomputed, examples=examples)


@pytest.mark.slow
def test_a_copy_of_what_every_layer_computes_is_seen() -> None:
    """Each of the layers keeps one activation more of 4 x 32 x 64 bfloat16 or float32 numbers."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    plain: Callable[..., Any] = LlamaMLP.forward
    kept = []

    def keeping(self: Any, values: Any) -> Any:
        result = plain(self, values)
        kept.append(result.clone())
        return result

    (before,) = needs(SMALL, 32, examples=[4], positions=32, recomputed=False)
    with mock.patch.object(LlamaMLP, "forward", keeping):
        (after,) = needs(SMALL, 32, examples=[4], positions=32, recomputed=False)
    size = kept[0].numel() * kept[0].element_size()
    assert after.micro - before.micro == SMALL.layers * size


def test_the_norm_that_numbers_would_tell_is_the_one_of_that_name() -> None:
    config = hf.LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    norms = [m for m in hf.LlamaForCausalLM(config).modules() if type(m).__name__ == "LlamaRMSNorm"]
    assert norms
    assert all(map(is_scaled_rms_norm, norms))
    assert not is_scaled_rms_norm(nn.LayerNorm(16))


def test_four_bits_hold_a_half_of_a_byte_and_scales() -> None:
    """QLoRA (Dettmers et al. 2023, section 3): 0.127 bits a number for doubly quantized scales of blocks of 64."""
    layer = FourBitLinear(nn.Linear(4096, 4096, bias=False, device="meta"))
    held = sum(tensor.nbytes for tensor in (*layer.parameters(), *layer.buffers()))
    assert 8 * held / 4096**2 == pytest.approx(4.127, abs=1e-3)


def test_operations_are_six_for_each_number_and_token() -> None:
    """Kaplan et al. 2020, section 2.1: 6 N a token without attention; 7B has 6.74e9 numbers (Touvron et al. 2023)."""
    block, head = linear_shapes(SIZES["7B"])
    numbers = SIZES["7B"].layers * sum(d * p for d, p in block) + head[0] * head[1]
    assert numbers + 4096 * 32_000 == pytest.approx(6.738e9, rel=1e-3)
    assert costs(1)["7B"]["operations_a_token"]["non-private"] == pytest.approx(6 * numbers, rel=1e-3)


@pytest.mark.slow
def test_fake_tensors_are_gone_afterwards() -> None:
    """Whoever counts leaves torch as it was."""
    next(iter(shallow(SMALL, None, 3, [1], 8, recomputed=False)))
    assert torch.zeros(2).tolist() == [0.0, 0.0]
    assert not torch.zeros(2).is_cuda
