"""State that a forward pass leaves in a network, and control of random layers during the contribution test."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from privctl.train.clipping.shards import own_part

#: Names of rates of LayerDrop (Fan, Grave and Joulin 2019).
_LAYERDROP = re.compile("layer_?drop")
#: The operations that draw for dropout, as many random bits as their first argument has entries.
_DROPOUTS = frozenset((torch.ops.aten.native_dropout, torch.ops.aten.bernoulli, torch.ops.aten.bernoulli_))


class BufferSnapshot:
    """A snapshot of a network's buffers and of the version counters of its parameters."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._buffers = {
            (path, name): (tensor, tensor.detach().clone())
            for path, module in network.named_modules()
            for name, tensor in module._buffers.items()
            if tensor is not None
        }
        self._versions = {name: _version(p) for name, p in network.named_parameters()}

    def changed_buffer(self, *, saved: bool = False) -> str | None:
        """The name of a changed or new buffer, or None; ``saved`` considers only buffers saved with the weights."""
        for path, module in self._network.named_modules():
            for name, tensor in module._buffers.items():
                if tensor is None or (saved and name in module._non_persistent_buffers_set):
                    continue
                saved_buffer = self._buffers.get((path, name))
                if saved_buffer is None or not _is_same(saved_buffer[1], tensor):
                    return f"{path}.{name}".lstrip(".")
        return None

    def changed_parameter(self) -> str | None:
        """The name of a parameter that was written to, or None."""
        for name, parameter in self._network.named_parameters():
            if self._versions.get(name) != _version(parameter):
                return name
        return None

    def restore(self) -> None:
        """Restore the buffers."""
        modules = dict(self._network.named_modules())
        with torch.no_grad():
            for (path, name), (tensor, value) in self._buffers.items():
                tensor.copy_(value)
                modules[path]._buffers[name] = tensor


def _version(parameter: nn.Parameter) -> tuple[int, int]:
    part = own_part(parameter)
    return part.data_ptr(), part._version


def _is_same(before: Tensor, now: Tensor) -> bool:
    return before.shape == now.shape and before.dtype == now.dtype and torch.equal(before, now.to(before.device))


@contextmanager
def fixed_seed(device: torch.device, seed: int = 0) -> Iterator[None]:
    """Inside, random numbers are seeded with ``seed``; afterwards the random state is restored."""
    devices = [] if device.type == "cpu" else [device]
    with torch.random.fork_rng(devices, device_type="cuda" if device.type == "cpu" else device.type):
        # On a CPU only its generator is seeded: torch.manual_seed also keeps a stack trace for each unused device.
        (torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed)(seed)
        yield


@contextmanager
def without_dropout(network: nn.Module, *, of_layers: float = 0.0) -> Iterator[None]:
    """Inside, dropout is off, as its draws are made per batch and so differ for a record between batches.

    These draws are independent for each record, do not depend on the records and come from a secret seed (see
    ``seed_dropout_secretly``), so two neighbouring runs may be assumed to make the same draws for every record they
    share. That does not hold for LayerDrop, whose one draw skips a layer for all records of a pass: its rate is
    ``of_layers``.
    """
    rates: list[tuple[Any, str, Any]] = []
    if any(module.training for module in network.modules()):
        holders = {id(holder): holder for holder in _holders(network)}
        for holder in holders.values():
            for name, value in vars(holder).items():
                if "drop" in name and isinstance(value, float) and value:
                    rates.append((holder, name, value))
            if isinstance(holder, nn.modules.dropout._DropoutNd) and holder.p:
                rates.append((holder, "p", holder.p))
    try:
        for holder, name, _ in rates:
            setattr(holder, name, of_layers if _LAYERDROP.search(name) else 0.0)
        yield
    finally:
        for holder, name, value in rates:
            setattr(holder, name, value)


class DropoutDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the random bits of each use of dropout inside, in ``counts``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: list[int] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Call ``func``, and count what it draws."""
        if func.overloadpacket in _DROPOUTS:
            self.counts.append(args[0].numel())
        return func(*args, **(kwargs or {}))


def _holders(network: nn.Module) -> Iterator[Any]:
    for module in network.modules():
        yield module
        config = getattr(module, "config", None)
        if config is not None and hasattr(config, "__dict__"):
            yield config


def seed_dropout_secretly(network: nn.Module) -> None:
    """Seed dropout from the operating system, if the network is in training mode.

    PyTorch's default seed is public. With known draws, a record's dropout mask would visibly change if another record
    shifted its position in the batch.
    """
    if any(module.training for module in network.modules()):
        torch.manual_seed(secret_seed())


def secret_seed() -> int:
    """A seed from the operating system."""
    return int.from_bytes(os.urandom(8), "big") >> 1


@contextmanager
def perturbed_constants(network: nn.Module) -> Iterator[None]:
    """Inside, constant tensors (gates and adapters that start at zero, scales at one) are perturbed.

    Otherwise a dependence behind a gate that is still closed would not be detected. The deviates are public; afterwards
    the tensors are restored bit for bit.
    """
    source = torch.Generator().manual_seed(0)
    originals = []
    with torch.no_grad():
        for parameter in map(own_part, network.parameters()):
            if parameter.is_floating_point() and parameter.numel() and _is_constant(parameter):
                originals.append((parameter, parameter.detach().clone()))
                deviates = torch.randn(parameter.shape, generator=source).to(parameter)
                parameter.add_(deviates, alpha=0.05)
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in originals:
                parameter.copy_(value)


def _is_constant(parameter: Tensor) -> bool:
    low, high = parameter.detach().aminmax()
    return bool(low == high) and (parameter.numel() > 1 or float(low) in (0.0, 1.0))
