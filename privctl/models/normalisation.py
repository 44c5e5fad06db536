"""Batch normalisation in a training that must not mix examples: frozen, or converted to a scale and shift a channel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from privctl.domain.errors import CommandError, InputError

#: What ``--norm`` may say: batch normalisation keeps its running statistics, and trains scales and shifts.
FROZEN = "frozen"


def batch_norms(network: nn.Module) -> tuple[str, ...]:
    """The names of the network's batch normalisation layers, of any dimension."""
    kind = nn.modules.batchnorm._BatchNorm
    return tuple(name for name, module in network.named_modules() if isinstance(module, kind))


def freeze(network: nn.Module, names: tuple[str, ...]) -> None:
    """Put the batch normalisation layers ``names`` into evaluation mode; ``network.train()`` would undo it.

    Raises InputError for one that keeps no running statistics, which normalises by its batch in any mode.
    """
    for name in names:
        module = network.get_submodule(name)
        if module.running_mean is None:
            raise InputError(
                f"layer {name!r} is a {type(module).__name__} without running statistics, which --norm frozen cannot "
                "keep; use a model with group or layer normalisation"
            )
        module.eval()


#: What ``--convert`` may say: running statistics are moved into scales and shifts before the training.
BATCH_NORM = "batch-norm"


def convert_batch_norms(network: nn.Module, names: tuple[str, ...]) -> None:
    """Move the statistics of the frozen layers ``names`` into their scales and shifts; in place, on the CPU.

    The layers then keep the statistics that torch gives a new one, mean 0 and variance 1: in evaluation mode each is
    one scale and one shift a channel, and gives what it gave before, up to rounding. No config.json can name another
    layer in place of batch normalisation, so this is the conversion that plain transformers loads. Raises InputError
    for a layer without scales and shifts.
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
            module.weight.copy_(scale * (1 + module.eps) ** 0.5)  # which the layer divides out of variance 1
            module.reset_running_stats()
    require_initial(network, names)


def require_initial(network: nn.Module, names: tuple[str, ...]) -> None:
    """Raise InputError unless the layers ``names`` hold the statistics of new ones: nothing was collected in them."""
    for name in names:
        module: Any = network.get_submodule(name)
        if module.running_mean.any() or not (module.running_var == 1).all():
            raise InputError(
                f"layer {name!r} collected statistics although it was frozen; nothing was written: report this"
            )


def checked_batch_norms(path: Path, network: Any, norm: str | None, convert: str | None) -> tuple[str, ...]:
    """The network's layers of batch normalisation, which ``norm`` or ``convert`` must allow for.

    Raises InputError for such layers without these options, CommandError for these options without such layers.
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
