"""Forward mode: losses and their derivatives along a direction in one pass, without storing activations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from privctl.train.directional.attention import blockwise_attention
from privctl.train.directional.passes import Losses, Randomness, check_losses
from privctl.train.directional.queries import DirectionalQuery, MethodUnavailableError, device_of

#: Parts of torch's error messages for operations that do not support forward mode.
_UNSUPPORTED = ("forward AD", "forward-mode", "forward mode", "jvp", "view size")
#: Untyped, as torch's annotations of this module are incomplete.
_AD: Any = forward_ad


class _Closed(nn.Module):
    """A module that computes the losses, so that ``functional_call`` can replace the network's parameters."""

    def __init__(self, network: nn.Module, losses_of: Losses) -> None:
        super().__init__()
        self.network, self._losses_of = network, losses_of

    def forward(self) -> Tensor:
        return self._losses_of()


def forward_by_example(network: nn.Module, losses_of: Losses, queries: Sequence[DirectionalQuery]) -> Tensor:
    """Derivatives (n, fired) float64, from one pass with dual numbers per group.

    Fused attention has no forward mode, so ``blockwise_attention`` replaces it.
    """
    _refuse_fused(network)
    randomness = Randomness(device_of(queries))
    columns = []
    for query in queries:
        randomness.rewind()
        columns.append(_slopes(network, losses_of, query))
    return torch.stack(columns, 1)


def _slopes(network: nn.Module, losses_of: Losses, query: DirectionalQuery) -> Tensor:
    closed = _Closed(network, losses_of)
    with torch.no_grad(), _AD.dual_level(), blockwise_attention():
        duals = {
            f"network.{name}": _AD.make_dual(p.detach(), query.direction[name].to(p.dtype))
            for name, p in query.parameters.items()
        }
        try:
            losses = check_losses(functional_call(closed, duals, ()))
        except (NotImplementedError, RuntimeError) as error:
            message = str(error)
            if not any(words in message for words in _UNSUPPORTED):
                raise
            raise MethodUnavailableError(
                "the model has an operation without forward-mode derivative "
                f"({message.splitlines()[0][:160]}); take the method partial or difference"
            ) from None
        value, slopes = _AD.unpack_dual(losses)
    return torch.zeros_like(value, dtype=torch.float64) if slopes is None else slopes.double()


def _refuse_fused(network: nn.Module) -> None:
    """Refuse recurrent layers, whose fused kernels keep flattened weights that dual numbers do not reach."""
    for name, module in network.named_modules():
        if isinstance(module, nn.RNNBase):
            raise MethodUnavailableError(
                f"module {name!r} ({type(module).__name__}) runs in a fused kernel without forward-mode derivative; "
                "take the method partial or difference"
            )
