"""What a forward pass leaves behind in a network, and how everything that draws is switched off meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class BufferSnapshot:
    """A network's buffers and the versions of its parameters, as they were."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._buffers = {
            (path, name): (tensor, tensor.detach().clone())
            for path, module in network.named_modules()
            for name, tensor in module._buffers.items()
            if tensor is not None
        }
        self._versions = {name: (p.data_ptr(), p._version) for name, p in network.named_parameters()}

    def buffer(self, *, saved: bool = False) -> str | None:
        """The name of a buffer that changed or came; with ``saved`` among those that are saved with the weights."""
        for path, module in self._network.named_modules():
            for name, tensor in module._buffers.items():
                if tensor is None or (saved and name in module._non_persistent_buffers_set):
                    continue
                before = self._buffers.get((path, name))
                if before is None or not _same(before[1], tensor):
                    return f"{path}.{name}".lstrip(".")
        return None

    def parameter(self) -> str | None:
        """The name of a parameter that was written to."""
        for name, parameter in self._network.named_parameters():
            if self._versions.get(name) != (parameter.data_ptr(), parameter._version):
                return name
        return None

    def restore(self) -> None:
        """Put the buffers back."""
        modules = dict(self._network.named_modules())
        with torch.no_grad():
            for (path, name), (tensor, value) in self._buffers.items():
                tensor.copy_(value)
                modules[path]._buffers[name] = tensor


def _same(before: Tensor, now: Tensor) -> bool:
    return before.shape == now.shape and before.dtype == now.dtype and torch.equal(before, now.to(before.device))


@contextmanager
def seeded(device: torch.device, seed: int = 0) -> Iterator[None]:
    """Inside, random numbers start from ``seed``; afterwards they go on as if nothing had been drawn."""
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices, device_type="cuda" if device.type == "cpu" else device.type):
        torch.manual_seed(seed)
        yield


@contextmanager
def without_dropout(network: nn.Module) -> Iterator[None]:
    """Inside, no layer drops anything. Its draws are a batch's, so no two batches have the same for one record.

    They do not depend on what the records hold, and are drawn from a secret seed (see ``secret_draws``): which ones
    were made may be taken as known in both of two neighbouring runs.
    """
    kept: list[tuple[Any, str, Any]] = []
    if any(module.training for module in network.modules()):
        holders = {id(holder): holder for holder in _holders(network)}
        for holder in holders.values():
            for name, value in vars(holder).items():
                if "drop" in name and isinstance(value, float) and value:
                    kept.append((holder, name, value))
            if isinstance(holder, nn.modules.dropout._DropoutNd) and holder.p:
                kept.append((holder, "p", holder.p))
    try:
        for holder, name, _ in kept:
            setattr(holder, name, 0.0)
        yield
    finally:
        for holder, name, value in kept:
            setattr(holder, name, value)


def _holders(network: nn.Module) -> Iterator[Any]:
    for module in network.modules():
        yield module
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "__dict__"):
            yield config


def secret_draws(network: nn.Module) -> None:
    """Draw what the network drops from a seed of the operating system, where it is in training mode.

    PyTorch's own generator starts from a number that everybody knows. Then the draws could not be taken as independent
    of the batch: the same record would be dropped from otherwise where another record shifts its place.
    """
    if any(module.training for module in network.modules()):
        torch.seed()


@contextmanager
def stirred(network: nn.Module) -> Iterator[None]:
    """Inside, tensors of one repeated number (gates and adapters that start at zero, scales at one) differ from it.

    A dependence behind a gate that is still closed would not be seen. Deviates are public; afterwards the tensors hold
    what they held, bit for bit.
    """
    source = torch.Generator().manual_seed(0)
    kept = []
    with torch.no_grad():
        for parameter in network.parameters():
            if parameter.is_floating_point() and parameter.numel() and _constant(parameter):
                kept.append((parameter, parameter.detach().clone()))
                deviates = torch.randn(parameter.shape, generator=source).to(parameter)
                parameter.add_(deviates, alpha=0.05)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in kept:
                parameter.copy_(value)


def _constant(parameter: Tensor) -> bool:
    low, high = parameter.detach().aminmax()
    return bool(low == high) and (parameter.numel() > 1 or float(low) in (0.0, 1.0))
