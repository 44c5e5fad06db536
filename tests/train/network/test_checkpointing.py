"""``--checkpointing``: fewer bytes are kept for the backward pass, and every engine's result stays the same."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.train.clipping import Clipping, PerExample
from privctl.train.directional import Derivatives
from privctl.train.network.memory import checkpointed
from privctl.train.settings.choices import ClippingStyle, DerivativeMethod
from tests.train.clipping.support import Losses, causal, classified, distance, run, tokens
from tests.train.clipping.test_families import GROUPED, WIDE, gpt2
from tests.train.directional.support import Case, case

DEEP = {"num_hidden_layers": 4}
MODELS: dict[str, tuple[Callable[[], nn.Module], Losses]] = {
    "gpt2": (lambda: gpt2(n_layer=4), causal),
    "llama": (lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**{**GROUPED, **DEEP})), causal),
    # It keeps keys and values by default, which a layer that is computed again must not add to.
    "cached": (lambda: hf.GPT2ForSequenceClassification(gpt2(n_layer=4, pad_token_id=0).config), classified),
    "bert": (lambda: hf.BertForSequenceClassification(hf.BertConfig(**{**WIDE, **DEEP})), classified),
    "opt": (
        lambda: hf.OPTForCausalLM(
            hf.OPTConfig(**{**GROUPED, **DEEP}, ffn_dim=24, word_embed_proj_dim=16, layerdrop=0.9)
        ),
        causal,
    ),
}


@pytest.fixture(autouse=True)
def _alone(one_thread: None) -> None:
    torch.manual_seed(0)


def keeping(kept: dict[int, Tensor]) -> AbstractContextManager[Any]:
    """Inside, what autograd keeps for a backward pass is collected."""

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.detach()
        return tensor

    return torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)


def kept_bytes(model: nn.Module, losses: Losses, batch: dict[str, Tensor]) -> int:
    """Bytes of activations that a forward pass of the engine leaves for its backward pass."""
    kept: dict[int, Tensor] = {}
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def watched() -> Tensor:
        kept.clear()
        with keeping(kept):
            return losses(model, batch)

    with PerExample(model, Clipping(norm=0.5)) as engine:
        engine.accumulate(watched)
    model.zero_grad()
    return sum(t.untyped_storage().nbytes() for place, t in kept.items() if place not in weights)


def model_case(name: str) -> tuple[nn.Module, Losses, dict[str, Tensor]]:
    make, losses = MODELS[name]
    model = make().eval()
    batch = tokens(4, 12, 40)
    if losses is classified:
        batch["labels"] = torch.tensor([0, 1, 1, 0])
    return model, losses, batch


@pytest.mark.parametrize(
    "name", [name if name == "gpt2" else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_less_is_kept_and_gradients_stay(name: str) -> None:
    model, losses, batch = model_case(name)
    config = model.config.to_dict()
    plain = {style: run(model, losses, batch, 0.5, style=style)[0] for style in ClippingStyle}
    before = kept_bytes(model, losses, batch)
    checkpointed(model)
    assert kept_bytes(model, losses, batch) < 0.65 * before
    for style, gradients in plain.items():
        assert distance(run(model, losses, batch, 0.5, style=style)[0], gradients) < 1e-6
    assert not any(module.training for module in model.modules())
    assert model.config.to_dict() == config


def test_dropout_repeats_its_draws() -> None:
    model = gpt2(embd_pdrop=0.3, resid_pdrop=0.3, attn_pdrop=0.3).train()
    batch = tokens(4, 9, 40)

    def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        torch.manual_seed(5)
        return causal(model, batch)

    plain, _ = run(model, losses, batch, 0.5)
    again, _ = run(checkpointed(model), losses, batch, 0.5)
    assert distance(again, plain) < 1e-6


@pytest.mark.parametrize("method", [m for m in DerivativeMethod if m is not DerivativeMethod.AUTO])
def test_directional_derivatives_stay(method: DerivativeMethod) -> None:
    network = case("gpt2")
    plain = per_example(network, method)
    checkpointed(network.model)
    torch.testing.assert_close(per_example(network, method), plain, rtol=1e-5, atol=1e-7)


def per_example(network: Case, method: DerivativeMethod) -> Tensor:
    derivatives = Derivatives(network.model, method)
    return derivatives.per_example(network.losses_of, network.fired, network.directions())


def test_a_network_without_layers_to_checkpoint_is_refused() -> None:
    with pytest.raises(InputError, match="remove --checkpointing"):
        checkpointed(nn.Sequential(nn.Linear(2, 2)))
