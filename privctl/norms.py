"""Batch normalisation mixes the examples of a batch; here a network's is found, or replaced by group normalisation.

With batch normalisation an example's loss depends on the rest of its batch, so no clipping bounds what one example
does. Group normalisation (Wu and He 2018) looks at one example only.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from privctl.domain.errors import InputFault

#: The key in config.json that says which normalisation the weights were trained with, and its only value.
NORM_KEY = "privctl_norm"
GROUP = "group"

#: What batch normalisation keeps beside its weight and bias; group normalisation has none of it.
RUNNING = ("running_mean", "running_var", "num_batches_tracked")

_MOST_GROUPS = 32


def batch_norms(network: nn.Module) -> tuple[str, ...]:
    """The names of the network's batch normalisation layers, of any dimension."""
    kind = nn.modules.batchnorm._BatchNorm
    return tuple(name for name, module in network.named_modules() if isinstance(module, kind))


def groups(channels: int) -> int:
    """How many groups ``channels`` are cut into: the most that divide them, up to 32 and to four channels a group.

    Where an image has shrunk to one pixel, a group of one channel would be wiped out and one of two keep only a sign.
    """
    most = max(1, min(_MOST_GROUPS, channels // 4))
    return next(count for count in range(most, 0, -1) if channels % count == 0)


def group_norm(network: nn.Module) -> tuple[str, ...]:
    """Replace every BatchNorm2d in place by a GroupNorm with the same weight, bias and epsilon; returns their names.

    Statistics that were learned are dropped, so a trained network computes something else afterwards. Raises InputFault
    for batch normalisation of another kind.
    """
    found = batch_norms(network)
    for name in found:
        old = network.get_submodule(name)
        if type(old) is not nn.BatchNorm2d:
            raise InputFault(
                f"layer {name!r} is a {type(old).__name__}, which has no stand-in here; use a model "
                "without batch normalisation"
            )
        network.set_submodule(name, _grouped(old), strict=True)
    return found


def honour(network: nn.Module, config: Any) -> bool:
    """Give the network the normalisation that its configuration names; returns whether it names one.

    Raises InputFault for a name that is not known.
    """
    norm = getattr(config, NORM_KEY, None)
    if norm is None:
        return False
    if norm != GROUP:
        raise InputFault(f"config.json has {NORM_KEY} {norm!r}, which this version does not know; expected {GROUP!r}")
    group_norm(network)
    return True


def _grouped(old: nn.BatchNorm2d) -> nn.GroupNorm:
    new = nn.GroupNorm(groups(old.num_features), old.num_features, eps=old.eps, affine=old.affine)
    if old.affine:
        new.weight, new.bias = old.weight, old.bias
    return new.train(old.training)
