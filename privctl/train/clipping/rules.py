"""Which rule computes the per-example gradients of which layer, and which layers are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm
from transformers.pytorch_utils import Conv1D

from privctl.domain.errors import InputError
from privctl.train.clipping.convolution import convolution
from privctl.train.clipping.embedding import embedding, embedding_bag, scaled_embedding
from privctl.train.clipping.experts import experts, is_experts
from privctl.train.clipping.generic import attention, generic
from privctl.train.clipping.linear import linear, linear_transposed
from privctl.train.clipping.normalisation import (
    batch_norm,
    channel_layer_norm,
    group_norm,
    has_data_format,
    instance_norm,
    is_scaled_rms_norm,
    layer_norm,
    rms_norm,
    scaled_rms_norm,
)
from privctl.train.clipping.recurrent import recurrent
from privctl.train.clipping.terms import GradientTerm
from privctl.train.clipping.use import ModuleCall

Rule = Callable[[nn.Module, ModuleCall], dict[str, GradientTerm]]

#: A rule applies only to classes with the ``forward`` it was written for: a subclass may compute something else, and
#: then gets the generic rule.
RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: linear,
    Conv1D: linear_transposed,
    nn.Embedding: embedding,
    nn.EmbeddingBag: embedding_bag,
    nn.LayerNorm: layer_norm,
    nn.RMSNorm: rms_norm,
    nn.GroupNorm: group_norm,
    nn.BatchNorm2d: batch_norm,
    nn.InstanceNorm2d: instance_norm,
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.RNN: recurrent,
    nn.LSTM: recurrent,
    nn.GRU: recurrent,
}

#: Rules of layers that treat all positions alike, so that an example may have several rows.
BY_POSITION: frozenset[Rule] = frozenset(
    (linear, linear_transposed, embedding, scaled_embedding, layer_norm, rms_norm, scaled_rms_norm)
)

#: Rules that locate the examples in inputs and outputs themselves, as no single dimension may hold them.
OWN_LAYOUT: frozenset[Rule] = frozenset((embedding_bag, recurrent, attention, experts))

#: Rules that run a module again, which may draw random numbers.
RERUN: frozenset[Rule] = frozenset((generic, recurrent, attention, experts))

#: Modules that use their children's parameters without calling the children, and so own everything below them.
WHOLE: tuple[type[nn.Module], ...] = (nn.MultiheadAttention,)


def rule_for(module: nn.Module) -> Rule:
    """The rule for a module that owns trained parameters."""
    if isinstance(module, nn.MultiheadAttention) and type(module).forward is nn.MultiheadAttention.forward:
        return generic if module.batch_first else attention
    for layer, rule in RULES.items():
        if type(module).forward is layer.forward:
            return rule
    if isinstance(module, nn.Embedding) and type(module).__name__.endswith("ScaledWordEmbedding"):
        return scaled_embedding
    if is_experts(module):
        return experts
    if has_data_format(module):
        return channel_layer_norm
    return scaled_rms_norm if is_scaled_rms_norm(module) else generic


def check_parameters(trainable: Mapping[str, nn.Parameter]) -> None:
    """Raise InputError where there is nothing to train, or a parameter in which clipped gradients would be rounded."""
    if not trainable:
        raise InputError("the model has no parameter that requires a gradient; there is nothing to train")
    for name, parameter in trainable.items():
        if is_lazy(parameter):
            raise InputError(
                f"parameter {name!r} has no shape yet; run the model once on made-up inputs, and give the optimizer "
                "its parameters after that"
            )
        if parameter.dtype not in (torch.float32, torch.float64):
            raise InputError(
                f"parameter {name!r} is {parameter.dtype}, in which a clipped gradient would be rounded past the "
                "clip norm; load it as float32 and use autocast"
            )


def check(name: str, module: nn.Module, *, trained: bool) -> None:
    """Raise InputError for a module that mixes examples, or whose gradients cannot be separated by example."""
    fault = _fault(module, trained=trained)
    if fault:
        raise InputError(f"module {name!r} ({type(module).__name__}) {fault}")


def _fault(module: nn.Module, *, trained: bool) -> str | None:
    if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module.training or module.running_mean is None):
        return (
            "normalizes each example by the others of its batch; put it in evaluation mode, with running statistics "
            "that are public, or use a model with group or layer normalization"
        )
    if isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats and module.training:
        return "keeps statistics of the examples unclipped; construct it with track_running_stats=False"
    if _iterates_spectral_norm(module):
        return (
            "changes its buffers in every forward pass, so that weights differ from pass to pass; put it in evaluation "
            "mode, or use weight_norm"
        )
    if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None and not trained:
        return "shortens the rows it looks up, without noise; construct it with max_norm=None, or train it"
    if isinstance(module, nn.EmbeddingBag) and module.scale_grad_by_freq and trained:
        return "divides gradients by counts over the batch; construct it with scale_grad_by_freq=False"
    return None


def require_own_frequency(name: str, module: nn.Module, rule: Rule, *, whole: bool) -> None:
    """Raise InputError for ``scale_grad_by_freq`` unless ``rule`` counts ids within each example."""
    if rule in (embedding, scaled_embedding):
        return
    for inner in module.modules() if whole else [module]:
        if isinstance(inner, nn.Embedding) and inner.scale_grad_by_freq and inner.weight.requires_grad:
            raise InputError(
                f"module {name!r} ({type(module).__name__}) is run again on its batch, where the gradients of an "
                "embedding are divided by counts over the batch; construct that with scale_grad_by_freq=False"
            )


def _iterates_spectral_norm(module: nn.Module) -> bool:
    """Whether the module has spectral normalization, of torch's older or newer kind, in training mode."""
    older = any(isinstance(hook, SpectralNorm) for hook in module._forward_pre_hooks.values())
    return module.training and (older or isinstance(module, _SpectralNorm))
