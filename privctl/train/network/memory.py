"""How much memory a training has held, and layers that hold less (gradient checkpointing).

transformers' own switch for checkpointing acts in training mode only, which also turns on dropout and whatever else a
model does there. So the layers that it would checkpoint are checkpointed here, in the mode that they are in: they keep
their inputs and compute the rest again in the backward pass.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.cache_utils import Cache
from transformers.modeling_layers import GradientCheckpointingLayer

from privctl.domain.errors import InputError

#: What a layer is told about a cache of keys and values, which computing it again would fill twice.
_CACHES = {"use_cache": False, "past_key_values": None, "past_key_value": None, "layer_past": None}


def peak_memory(device: torch.device) -> int:
    """The most bytes held so far: on ``device`` where it is a GPU, else by this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def release_unused(device: torch.device) -> None:
    """Give memory that nothing holds back to ``device``, so that the next attempt finds it in one piece."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def checkpointed(network: nn.Module) -> nn.Module:
    """The network, whose layers no longer keep what is inside them. Raises InputError where it has no such layers.

    Dropout repeats its draws. Results are the same up to rounding; a layer is computed twice in a step.
    """
    layers = [module for module in network.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise InputError(
            f"a {type(network).__name__} has no layers that transformers can checkpoint; remove --checkpointing, and "
            "lower --micro-examples or --micro-tokens to save memory"
        )
    for layer in layers:
        layer.forward = partial(_forward, layer, layer.forward)
    return network


def _forward(layer: nn.Module, forward: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*arguments, **keywords)
    places = [None if isinstance(argument, Cache) else argument for argument in arguments]
    known = {name: _CACHES.get(name, value) for name, value in keywords.items()}
    # Of the random state a copy is needed only where something may draw from it.
    return checkpoint(forward, *places, use_reentrant=False, preserve_rng_state=layer.training, **known)
