"""Low-rank adapters (Hu et al. 2021, LoRA), through peft where it is installed; merged into the weights at the end."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from privctl.domain.errors import CommandError
from privctl.train.request import ModelRequest

if TYPE_CHECKING:
    from torch import nn


def adapted(network: nn.Module, request: ModelRequest) -> nn.Module:
    """The network with adapters on all its linear layers, all else frozen; itself where no rank is given."""
    if request.lora_rank is None:
        return network
    if request.lora_rank < 1:
        raise CommandError(f"--lora-rank is {request.lora_rank}; it must be at least 1")
    try:
        peft: Any = importlib.import_module("peft")
    except ImportError:
        raise CommandError("--lora-rank needs peft, which is not installed; pip install 'privctl[peft]'") from None
    settings = peft.LoraConfig(r=request.lora_rank, lora_alpha=2 * request.lora_rank, target_modules="all-linear")
    wrapped: nn.Module = peft.get_peft_model(network, settings)
    return wrapped


def merged(network: nn.Module, request: ModelRequest) -> nn.Module:
    """The plain network with the adapters' product added to its weights."""
    if request.lora_rank is None:
        return network
    joined: Any = network
    plain: nn.Module = joined.merge_and_unload()
    return plain
