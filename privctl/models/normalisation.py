"""Batch normalisation in private training, which must not mix examples: frozen, or converted to scales and shifts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from privctl.domain.errors import CommandError, InputError

#: The value of ``--norm``: batch normalisation keeps its running statistics, and trains scales and shifts.
FROZEN = "frozen"


def batch_norms(network: nn.Module) -> tuple[str, ...]:
    """The names of the network's batch normalisation layers (1d, 2d and 3d)."""
    kind = nn.modules.batchnorm._BatchNorm
    return tuple(name for name, module in network.named_modules() if isinstance(module, kind))


def freeze(network: nn.Module, names: tuple[str, ...]) -> None:
    """Put the batch normalisation layers ``names`` into evaluation mode, which ``network.train()`` would undo.

    Raises InputError for a layer without running statistics, which normalises by its batch in any mode.
    """
    for name in names:
        module = network.get_submodule(name)
        if module.running_mean is None:
            raise InputError(
                f"layer {name!r} is a {type(module).__name__} without running statistics, which --norm frozen cannot "
                "keep; use a model with group or layer normalisation"
            )
        module.eval()


#: The value of ``--convert``: running statistics are moved into scales and shifts before training.
BATCH_NORM = "batch-norm"


def convert_batch_norms(network: nn.Module, names: tuple[str, ...]) -> None:
    """Move the statistics of the frozen layers ``names`` into their scales and shifts; in place, on the CPU.

    The layers then have the initial statistics, mean 0 and variance 1. In evaluation mode each is a scale and a shift
    per channel, with the same output as before up to rounding. A config.json cannot replace batch normalisation by
    another layer, so plain transformers can load only this kind of conversion. Raises InputError for a layer without
    scales and shifts.
    """
    for name in names:
        module: Any = network.get_submodule(name)
        if module.weight is None:
            raise InputError(
                f"layer {name!r} is a {type(module).__name__} without scales and shifts, which cannot take up its "
                "statistics; use --norm frozen"
            )
        with torch.no_grad():
            mean, variance = module.running_mean.double(), module.running_var.double()
            scale = module.weight.double() / torch.sqrt(variance + module.eps)
            module.bias.copy_(module.bias.double() - mean * scale)
            module.weight.copy_(scale * (1 + module.eps) ** 0.5)  # the layer divides by sqrt(1 + eps)
            module.reset_running_stats()
    require_initial(network, names)


def require_initial(network: nn.Module, names: tuple[str, ...]) -> None:
    """Raise InputError unless the layers ``names`` have initial statistics, so that none were collected from data."""
    for name in names:
        module: Any = network.get_submodule(name)
        if module.running_mean.any() or not (module.running_var == 1).all():
            raise InputError(
                f"layer {name!r} collected statistics although it was frozen; nothing was written: report this"
            )


def checked_batch_norms(path: Path, network: Any, norm: str | None, convert: str | None) -> tuple[str, ...]:
    """The network's batch normalisation layers, which require ``norm`` or ``convert``.

    Raises InputError for such layers without either option, CommandError for an option without such layers.
    """
    layers = batch_norms(network)
    if layers and norm is None and convert is None:
        raise InputError(
            f"{path} has batch normalisation ({layers[0]} and {len(layers) - 1} more), which mixes the examples of a "
            "batch, so that none can be protected by itself; --norm frozen keeps its running statistics as they are "
            "and trains the rest, --convert batch-norm moves them into scales and shifts first, or use a model with "
            "group or layer normalisation"
        )
    given = f"--norm {norm}" if convert is None else f"--convert {convert}"
    if (norm or convert) and not layers:
        raise CommandError(f"{given} applies to batch normalisation only, and {path} has none; remove it")
    return layers
