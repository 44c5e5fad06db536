"""Batch normalisation mixes the examples of a batch; here a network's is found, or held at its running statistics.

With batch normalisation an example's loss depends on the rest of its batch, so no clipping bounds what one example
does. In evaluation mode it normalises by statistics that were computed before, and looks at one example only. That is
what everybody computes who loads the network, so what is measured here is what is released.
"""

from __future__ import annotations

from torch import nn

from privctl.domain.errors import InputError

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
