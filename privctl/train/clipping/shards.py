"""Parameters of which each process holds a shard, as torch's ``fully_shard`` (FSDP2) leaves them.

Outside a pass such a parameter is a ``DTensor`` in rows: this process's are in its local tensor. While a block's
forward or backward pass runs, its modules hold the whole parameters, gathered from all processes; that is where taps
are, so the rules of clipping see nothing of shards. A clipped sum is formed whole, one parameter at a time, and what
leaves the process is added up and handed out in shards.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle


def is_shard(tensor: Tensor) -> bool:
    """Whether processes share the entries of ``tensor``."""
    return hasattr(tensor, "device_mesh")


def own_part(tensor: Tensor) -> Tensor:
    """The part of ``tensor`` that this process holds, in the same memory: all of it where it is not shared."""
    if not is_shard(tensor):
        return tensor
    shared: Any = tensor.detach()
    part: Tensor = shared.to_local()
    return part


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor; where processes share it, each of them must ask for it."""
    if not is_shard(tensor):
        return tensor
    shared: Any = tensor.detach()
    gathered: Tensor = shared.full_tensor()
    return gathered


def part_of(tensor: Tensor, place: Tensor, rank: int | None = None) -> Tensor:
    """The rows of ``tensor`` that process ``rank``, or this one, holds of ``place``; all where that is not shared.

    Shares are as even as ``torch.chunk`` makes them. A single number is not shared.
    """
    if not is_shard(place) or not tensor.dim():
        return tensor
    shared: Any = place
    parts = tensor.chunk(shared.device_mesh.size())
    rank = shared.device_mesh.get_local_rank() if rank is None else rank
    return parts[rank] if rank < len(parts) else tensor[:0]


def first_row(place: Tensor) -> int:
    """The first of the rows that this process holds of ``place``, as ``part_of`` shares them out."""
    if not is_shard(place):
        return 0
    shared: Any = place
    size, rank = int(shared.device_mesh.size()), int(shared.device_mesh.get_local_rank())
    return min(rank * -(-len(place) // size), len(place))


def blank_like(parameter: Tensor, *, zeros: bool) -> Tensor:
    """A tensor of the whole parameter's shape, of zeros or of whatever the memory held."""
    if not is_shard(parameter):
        return torch.zeros_like(parameter) if zeros else torch.empty_like(parameter)
    make = torch.zeros if zeros else torch.empty
    return make(parameter.shape, dtype=parameter.dtype, device=own_part(parameter).device)


def add_sum(parameter: nn.Parameter, whole: Tensor) -> None:
    """Add this process's part of the sum of all processes' ``whole`` to the ``grad`` of a shared parameter.

    Every process must call this, for the same parameters in the same order.
    """
    from torch.distributed.tensor import DTensor, Partial

    shared: Any = parameter
    summed = DTensor.from_local(whole, shared.device_mesh, [Partial()], run_check=False)
    shard = summed.redistribute(placements=shared.placements)
    if parameter.grad is None:
        parameter.grad = shard
    else:
        own_part(parameter.grad).add_(own_part(shard))


class Leaves:
    """The tensors that autograd knows the trained parameters of ``model`` by, of the latest forward pass."""

    def __init__(self, model: nn.Module, trainable: Mapping[str, nn.Parameter]) -> None:
        self.shared = any(map(is_shard, trainable.values()))
        self._trainable = trainable
        self._gathered: dict[str, Tensor] = {}
        self._handles: list[RemovableHandle] = []
        if self.shared:
            # A block's own hook, which gathers its parameters, was registered earlier, and runs earlier.
            self._handles = [
                module.register_forward_pre_hook(partial(self._note, path))
                for path, module in model.named_modules()
                if hasattr(module, "unshard")
            ]

    @property
    def found(self) -> Mapping[str, Tensor]:
        """The leaves by name; parameters of a block that no pass has reached have none."""
        return self._gathered if self.shared else self._trainable

    def _note(self, path: str, module: nn.Module, _arguments: Any) -> None:
        for name, parameter in module.named_parameters(prefix=path):
            if name in self._trainable and not is_shard(parameter):
                self._gathered[name] = parameter

    def any_of(self, answer: bool) -> bool:
        """Whether any process that shares the parameters answers yes, each of which must ask; else the own answer."""
        if not self.shared:
            return answer
        shared: Any = next(filter(is_shard, self._trainable.values()))
        vote = torch.tensor(int(answer), device=own_part(shared).device)
        dist.all_reduce(vote, dist.ReduceOp.MAX, group=shared.device_mesh.get_group())
        return bool(vote)

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
