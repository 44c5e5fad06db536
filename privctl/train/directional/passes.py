"""What every method needs for a pass: the tensors to differentiate, and reproducible dropout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError

#: Runs the network on a batch and returns losses (n,), where the loss of example i depends on row i alone.
Losses = Callable[[], Tensor]

#: Entries that are converted to float64, multiplied and added at a time.
_CHUNK = 1 << 20


class Randomness:
    """The initial random state, so that several passes draw the same numbers and leave the state of one pass."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host = torch.get_rng_state()
        self._own = None if device.type == "cpu" else torch.get_device_module(device).get_rng_state(device)

    def rewind(self) -> None:
        """Restore the initial random state; call this before each pass."""
        torch.set_rng_state(self._host)
        if self._own is not None:
            torch.get_device_module(self._device).set_rng_state(self._own, self._device)


@contextmanager
def differentiating(network: nn.Module, chosen: Collection[nn.Parameter], *, alone: bool) -> Iterator[None]:
    """Inside, ``chosen`` parameters require a gradient (if ``alone``, no others do), and autograd is enabled."""
    ids = {id(parameter) for parameter in chosen}
    required = [(parameter, parameter.requires_grad) for parameter in network.parameters()]
    norms = [module for module in network.modules() if isinstance(module, nn.GroupNorm)]
    hooks = [module.register_forward_pre_hook(_make_contiguous) for module in norms]
    try:
        for parameter, was_required in required:
            if parameter.is_floating_point():
                parameter.requires_grad_(id(parameter) in ids or (was_required and not alone))
        with torch.enable_grad():
            yield
    finally:
        for hook in hooks:
            hook.remove()
        for parameter, was_required in required:
            parameter.requires_grad_(was_required)


def _make_contiguous(_module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A pre-hook for group norm, whose backward pass crashes on a CPU for channels-last inputs without a gradient."""
    return tuple(tensor if tensor.requires_grad else tensor.contiguous() for tensor in inputs)


def check_losses(losses: Tensor) -> Tensor:
    """Return ``losses``; raises InputError unless they are one-dimensional."""
    if losses.dim() != 1:
        raise InputError(
            f"the losses have shape {tuple(losses.shape)}, where one an example is needed; do not reduce them over "
            "the batch"
        )
    return losses


def inner_product(gradients: Mapping[str, Tensor | None], direction: Mapping[str, Tensor]) -> Tensor:
    """<gradient, direction> over all tensors of a group, () float64; a gradient of None counts as zero."""
    device = next(iter(direction.values())).device
    total = torch.zeros((), dtype=torch.float64, device=device)
    for name, along in direction.items():
        gradient = gradients[name]
        if gradient is None:
            continue
        # Products of opposite sign nearly cancel, so float32 sums of millions would be inaccurate.
        flat = gradient.reshape(-1), along.reshape(-1)
        pairs = zip(*(torch.split(tensor, _CHUNK) for tensor in flat), strict=True)
        for values, entries in pairs:
            total = total + torch.dot(values.double(), entries.double())
    return total
