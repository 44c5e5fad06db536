"""The peak memory of a training, and gradient checkpointing, which reduces it.

transformers' own switch for checkpointing has an effect only in training mode, which also turns on dropout. So the
layers that it would checkpoint are checkpointed here in their current mode: they keep their inputs and recompute the
rest in the backward pass.
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

#: Arguments that turn off a layer's cache of keys and values, which recomputation would fill twice.
_CACHES = {"use_cache": False, "past_key_values": None, "past_key_value": None, "layer_past": None}


def peak_memory(device: torch.device) -> int:
    """The peak memory in bytes so far: on ``device`` if it is a GPU, otherwise of this process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def release_unused(device: torch.device) -> None:
    """Return cached memory to ``device``, so that the next attempt is not hindered by fragmentation."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def checkpointed(network: nn.Module) -> nn.Module:
    """Turn on checkpointing in the network's layers and return it. Raises InputError if it has no such layers.

    Dropout repeats its draws. Results are the same up to rounding; each layer is computed twice per step.
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
    # The random state is copied only if something may draw from it.
    return checkpoint(forward, *places, use_reentrant=False, preserve_rng_state=layer.training, **known)
