"""Networks whose parameters stay in the checkpoint's files until each process reads the rows that it needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from privctl.models.guard.weights import TORCH_TYPES, names_in_network, tensor_of
from privctl.storage.header import TensorInfo
from privctl.storage.reader import Checkpoint, SafetensorsFile

#: The attribute of a parameter without memory that holds its ``Stored``.
_STORED = "privctl_stored"


@dataclass(frozen=True, slots=True)
class Stored:
    """The tensor in an open file with the numbers of a parameter."""

    file: SafetensorsFile
    info: TensorInfo

    @property
    def dtype(self) -> torch.dtype:
        """The number format in the file."""
        return TORCH_TYPES[self.info.dtype]

    def rows(self, first: int, count: int) -> Tensor:
        """``count`` rows from row ``first`` on, in the file's format; no other byte of the tensor is read."""
        width = self.info.size // self.info.shape[0]
        shape = (count, *self.info.shape[1:])
        if not count:
            return torch.empty(shape, dtype=self.dtype)
        raw = self.file.read(self.info, first * width, count * width)
        return torch.frombuffer(raw, dtype=self.dtype).reshape(shape)


def stored_of(parameter: Tensor) -> Stored | None:
    """Where the numbers of a ``parameter`` without memory are; None for other parameters."""
    stored: Stored | None = getattr(parameter, _STORED, None)
    return stored


def leave_stored(network: nn.Module, checkpoint: Checkpoint) -> str | None:
    """Record for each parameter of ``network``, all on the meta device, which tensor of the ``checkpoint`` it is.

    Buffers of the checkpoint are read. Returns None on success. Otherwise nothing is recorded, and the name of the
    first tensor without an exact counterpart is returned: one with another name or shape, one that transformers merges
    with others (experts), one that is fresh or unused, or a tied one that is stored twice.
    """
    state = {**dict(network.named_parameters(remove_duplicate=False)), **_kept_buffers(network)}
    prefix: str = getattr(network, "base_model_prefix", "")
    by_parameter: dict[int, Stored] = {}
    for file, info in checkpoint.tensors():
        name = next((candidate for candidate in names_in_network(info.name, prefix) if candidate in state), None)
        if name is None or tuple(state[name].shape) != info.shape or id(state[name]) in by_parameter:
            return info.name
        kind = TORCH_TYPES.get(info.dtype)
        if kind is None or kind.is_floating_point != state[name].is_floating_point() or kind.itemsize < 2:
            return info.name
        if not info.size:
            return info.name
        by_parameter[id(state[name])] = Stored(file, info)
    for name, tensor in state.items():
        if id(tensor) not in by_parameter or (tensor.is_meta and not tensor.dim()):
            return name
    for tensor in state.values():
        stored = by_parameter[id(tensor)]
        if tensor.is_meta:
            setattr(tensor, _STORED, stored)
        else:
            tensor.copy_(tensor_of(stored.file, stored.info))
    return None


def _kept_buffers(network: nn.Module) -> dict[str, Tensor]:
    saved = network.state_dict(keep_vars=True)
    return {name: buffer for name, buffer in network.named_buffers() if name in saved}


def as_if_filled(network: nn.Module) -> None:
    """Back each stored parameter of ``network`` by a single number on the CPU, which all its entries share.

    Libraries that extend a network look at the device of its parameters.
    """
    _replace(network, lambda p: torch.zeros((), dtype=p.dtype).expand(p.shape))


def as_empty(network: nn.Module) -> None:
    """Put the stored parameters of ``network`` back on the meta device."""
    _replace(network, lambda p: torch.empty_like(p, device="meta"))


def _replace(network: nn.Module, made: Callable[[nn.Parameter], Tensor]) -> None:
    new: dict[int, nn.Parameter] = {}
    for module in network.modules():
        for name, parameter in list(_stored(module)):
            if id(parameter) not in new:
                replaced = nn.Parameter(made(parameter), requires_grad=parameter.requires_grad)
                setattr(replaced, _STORED, stored_of(parameter))
                new[id(parameter)] = replaced
            module._parameters[name] = new[id(parameter)]


def _stored(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in module._parameters.items():
        if parameter is not None and stored_of(parameter) is not None:
            yield name, parameter


def is_stored(network: nn.Module) -> bool:
    """Whether ``network`` has parameters whose numbers are still in a file."""
    return any(stored_of(parameter) is not None for parameter in network.parameters())


def stored_as(network: Any, dtype: torch.dtype) -> frozenset[str]:
    """The names of the parameters of ``network`` that a file stores in the format ``dtype``."""
    places = ((name, stored_of(parameter)) for name, parameter in network.named_parameters())
    return frozenset(name for name, stored in places if stored is not None and stored.dtype == dtype)
