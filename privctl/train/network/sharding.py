"""Sharding a network's parameters block by block, and reassembling the whole network.

``fully_shard`` (FSDP2) gives each process one shard of every parameter's rows. A block's parameters are gathered when
its forward or backward pass begins and freed when it ends, so a process holds its shards and one whole block.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError, PrivctlError
from privctl.models.loading import TrainingModel
from privctl.models.stored import Stored, stored_of
from privctl.parallel import Workers
from privctl.storage.reader import SafetensorsFile
from privctl.train.clipping.shards import AllGather, ReduceScatter, first_row, is_shard, own_part, part_of, whole
from privctl.train.network.tensors import mapped


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """The blocks whose parameters are gathered together: those that the model says must not be split, or its layers.

    Layers are the members of the module list with the most parameters. A block that shares a parameter with the rest (a
    tied embedding) is left to the rest, as are blocks inside other blocks.
    """
    named = {name for module in network.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    chosen = [module for module in network.modules() if type(module).__name__ in named] or _layers(network)
    inside = {id(child) for block in chosen for child in block.modules() if child is not block}
    uses = _uses(network)
    return [
        block
        for block in chosen
        if id(block) not in inside and block is not network and _uses(block).items() <= uses.items()
    ]


def _layers(network: nn.Module) -> list[nn.Module]:
    lists = [module for module in network.modules() if isinstance(module, nn.ModuleList) and len(module)]
    return list(max(lists, key=_numbers, default=[]))


def _numbers(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _uses(module: nn.Module) -> dict[int, int]:
    """How many times each parameter, by id, occurs among the modules."""
    counts: dict[int, int] = {}
    for _, parameter in module.named_parameters(remove_duplicate=False):
        counts[id(parameter)] = counts.get(id(parameter), 0) + 1
    return counts


def shard(network: nn.Module, workers: Workers, device: torch.device) -> None:
    """Give each process its shard of the main process's ``network`` on ``device``, moving one block at a time.

    Every process must call this; parameters of the other processes may be on the meta device. If a parameter's values
    are still in a file, each process reads its rows. Raises InputError for a network that cannot be sharded and, in all
    processes, for values that are not finite or a file that was changed since it was opened.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    for name, parameter in network.named_parameters():
        if not parameter.dim():
            raise InputError(f"parameter {name!r} is a single number, which --fsdp cannot share; remove --fsdp")
    mesh = init_device_mesh(device.type, (workers.size,))
    broken: dict[str, bool] = {}
    files = {p.file.path: p.file for p in map(stored_of, network.parameters()) if p is not None}
    for module in (*blocks_of(network), network):
        # The main process's values are sent even if others have them, so that all shards are of one network.
        numbers: dict[str, Tensor | Stored] = {
            name: stored_of(p) or p.detach() for name, p in module.named_parameters() if not is_shard(p)
        }
        # For the outermost module too: torch would keep it gathered after an evaluation, and miss the next update.
        fully_shard(module, mesh=mesh, reshard_after_forward=True)
        if numbers:
            module.set_custom_all_gather(AllGather())  # type: ignore[operator]
            module.set_custom_reduce_scatter(ReduceScatter())  # type: ignore[operator]
        broken |= _fill(module, numbers, workers, device)
    _require_sound(broken, files.values(), workers)
    with torch.no_grad():
        for _, buffer in network.named_buffers():
            full = buffer.cpu()
            workers.scatter_from_main(lambda rank, full=full: full, full)  # type: ignore[misc]
            buffer.copy_(full)


def _fill(
    module: nn.Module, numbers: dict[str, Tensor | Stored], workers: Workers, device: torch.device
) -> dict[str, bool]:
    """Read this process's rows of the module's parameters, or send the main process's ``numbers``, one at a time.

    Returns, by tensor name, whether rows that were read are not finite.
    """
    module._apply(lambda t: torch.empty_like(t, device=device) if t.is_meta else t.to(device))  # type: ignore[no-untyped-call]
    places, broken = dict(module.named_parameters()), {}
    for name in list(numbers):
        full, place = numbers.pop(name), places[name]
        if not is_shard(place):
            raise InputError(f"parameter {name!r} cannot be shared; remove --fsdp")
        part = own_part(place)
        if isinstance(full, Stored):
            rows = full.rows(first_row(place), len(part))
            broken[full.info.name] = not bool(torch.isfinite(rows).all())
            part.copy_(rows)
        else:
            workers.scatter_from_main(partial(part_of, full, place), part)
    return broken


def _require_sound(broken: Mapping[str, bool], files: Iterable[SafetensorsFile], workers: Workers) -> None:
    """Raise InputError in all processes if values in one are not finite, or if a file was changed."""
    for name, is_broken in zip(broken, workers.any_of(*broken.values()) if broken else (), strict=True):
        if is_broken:
            raise InputError(f"{name!r} holds NaN or infinity, which cannot be trained; give other weights")
    for file in files:
        try:
            fault = b""
            file.require_unchanged()
        except PrivctlError as error:
            fault = str(error).encode()
        messages = workers.gather_messages(fault)
        if any(messages):
            raise InputError(next(filter(None, messages)).decode())


@dataclass(frozen=True, slots=True)
class Hollow:
    """A network and its model without memory for parameters, into which shards are gathered."""

    network: nn.Module
    model: TrainingModel

    def filled(self, shared: nn.Module, workers: Workers, folder: Path) -> tuple[nn.Module, TrainingModel]:
        """The whole network on the CPU and its model, in the main process; the others must call this too.

        Parameters are gathered from ``shared`` one at a time, each into a memory-mapped file in ``folder``.
        """
        places = _owners_by_name(self.network)
        for name, tensor in shared.named_parameters():
            gathered = whole(tensor)
            if workers.is_main:
                parameter = nn.Parameter(mapped(gathered.detach(), folder), requires_grad=tensor.requires_grad)
                for module, local in places[name]:
                    module._parameters[local] = parameter
        buffers = dict(shared.named_buffers())
        for name, buffer in self.network.named_buffers():
            buffer.copy_(buffers[name])
        return self.network, self.model


def hollow(network: nn.Module, model: TrainingModel) -> Hollow:
    """A copy of ``network`` and ``model`` without memory for parameters; to be made before sharding."""
    memo: dict[int, Any] = {
        id(p): nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
        for p in network.parameters()
    }
    copied, base = copy.deepcopy((network, model.network), memo)
    return Hollow(copied, replace(model, network=base))


def _owners_by_name(network: nn.Module) -> dict[str, list[tuple[nn.Module, str]]]:
    """The modules that own each parameter, by the name that ``named_parameters`` gives it."""
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    places: dict[str, list[tuple[nn.Module, str]]] = {name: [] for name in names.values()}
    for module in network.modules():
        for local, parameter in module._parameters.items():
            if parameter is not None:
                places[names[id(parameter)]].append((module, local))
    return places
