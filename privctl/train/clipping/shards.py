"""Parameters of which each process holds a shard, as torch's ``fully_shard`` (FSDP2) leaves them.

Outside a pass such a parameter is a ``DTensor`` in rows: this process's are in its local tensor. While a block's
forward or backward pass runs, its modules hold the whole parameters, gathered from all processes; that is where taps
are, so the rules of clipping see nothing of shards. A clipped sum is formed whole, one parameter at a time, and what
leaves the process is added up and handed out in shards.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from privctl.domain.errors import InputError
from privctl.parallel import joint_vote
from privctl.train.clipping.terms import GradientTerm

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
    joint_vote()
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
    from torch.distributed.tensor import DTensor

    shared: Any = parameter
    mesh, rows = shared.device_mesh, -(-len(whole) // shared.device_mesh.size())
    if missing := rows * mesh.size() - len(whole):
        whole = torch.cat([whole, whole.new_zeros(missing, *whole.shape[1:])])
    summed = whole.new_empty(rows, *whole.shape[1:])
    SumInShares()(summed, whole.contiguous(), mesh.get_group(), dist.ReduceOp.SUM)
    mine = summed[: len(own_part(parameter))]
    if parameter.grad is None:
        parameter.grad = DTensor.from_local(
            mine, mesh, shared.placements, run_check=False, shape=shared.shape, stride=shared.stride()
        )
    else:
        own_part(parameter.grad).add_(mine)


class _Exchange:
    """How a block's parameters and their gradients are exchanged: as torch does, after a ``joint_vote``."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Space for what is exchanged."""
        return torch.empty(*size, dtype=dtype, device=device)


class GatheredShares(_Exchange):
    """Every process's shares, in each of them; in place of what ``fully_shard`` gathers with."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """Fill ``output_tensor``."""
        joint_vote()
        return _newest("all_gather_single", "all_gather_into_tensor")(
            output_tensor, input_tensor, group=group, async_op=async_op
        )


class SumInShares(_Exchange):
    """A share in each process of the sum over all; in place of what ``fully_shard`` sums with."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        """Fill ``output_tensor``."""
        joint_vote()
        return _newest("reduce_scatter_single", "reduce_scatter_tensor")(
            output_tensor, input_tensor, op=op, group=group, async_op=async_op
        )


def _newest(*names: str) -> Any:
    """The function of torch.distributed by the first of ``names`` that this torch has."""
    return next(getattr(dist, name) for name in names if hasattr(dist, name))


def begin_anew(network: nn.Module) -> None:
    """Leave a shared network whose pass ended in an error, in whatever process, as it was before it, without gradients.

    Every process must call this. Raises InputError where this torch cannot.
    """
    if not hasattr(network, "unshard"):
        return
    if not hasattr(network, "reset_iter_state"):
        raise InputError(
            f"memory ran out, and torch {torch.__version__} cannot repeat a pass of shared parameters; halve "
            "--micro-examples and --micro-tokens, and continue with --resume if the run had begun, or take torch 2.13"
        )
    shared: Any = network
    shared.reset_iter_state()
    for module in network.modules():
        if hasattr(module, "unshard"):
            block: Any = module
            block.unshard()  # whose gradients a pass may have begun to add up
            for parameter in module.parameters():
                parameter.grad = None
            block.reshard()
    for parameter in network.parameters():
        parameter.grad = None


class Leaves:
    """The tensors that autograd knows the trained parameters of ``model`` by, of the latest forward pass.

    Inside ``summing()`` a backward pass hands in weighted sums by ``hold``, and those of a block are added to the
    parameters' ``grad`` once the gradient has left the block: all processes do this in the same order.
    """

    def __init__(self, model: nn.Module, trainable: Mapping[str, nn.Parameter]) -> None:
        self.shared = any(map(is_shard, trainable.values()))
        self._trainable = trainable
        self._gathered: dict[str, Tensor] = {}
        self._handles: list[RemovableHandle] = []
        self._blocks: dict[str, list[str]] = {}
        self._held: dict[str, Tensor] = {}
        self._summing = False
        if self.shared:
            # A block's own hook, which gathers its parameters, was registered earlier, and runs earlier.
            self._handles = [
                module.register_forward_pre_hook(partial(self._note, path), with_kwargs=True)
                for path, module in model.named_modules()
                if hasattr(module, "unshard")
            ]
            blocks = [path for path, module in model.named_modules() if path and hasattr(module, "unshard")]
            self._blocks = {path: [name for name in trainable if name.startswith(f"{path}.")] for path in blocks}

    @property
    def found(self) -> Mapping[str, Tensor]:
        """The leaves by name; parameters of a block that no pass has reached have none."""
        return self._gathered if self.shared else self._trainable

    def _note(self, path: str, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        for name, parameter in module.named_parameters(prefix=path):
            if name in self._trainable and not is_shard(parameter):
                self._gathered[name] = parameter
        # Of a block's first input the gradient is whole when the block's backward pass has ended.
        entering = [t for t in (*arguments, *keywords.values()) if isinstance(t, Tensor) and t.requires_grad][:1]
        for tensor in entering if path in self._blocks else ():
            tensor.register_hook(lambda _: self._release(path))  # type: ignore[no-untyped-call]

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Inside, ``hold`` takes sums; at the end all are added. Every process that shares the parameters enters it."""
        self._summing = True
        try:
            yield
            if self.shared:
                self._release_rest()
        finally:
            self._summing = False
            self._held.clear()

    def hold(self, name: str, terms: Sequence[GradientTerm], factors: Tensor) -> None:
        """Take the sum of ``terms`` weighted by ``factors`` (n,), of a shared parameter."""
        fresh = name not in self._held
        total = self._held.setdefault(name, blank_like(self._trainable[name], zeros=not terms))
        for i, term in enumerate(terms):
            total = self._held[name] = term.add_weighted(total, factors, fresh=fresh and i == 0)

    def _release(self, path: str) -> None:
        """Sum what this and all other processes hold of a block."""
        if self._summing:
            with torch.no_grad():
                for name in self._blocks[path]:
                    self._add(name)

    def _release_rest(self) -> None:
        """Sum what any process still holds: of parameters outside blocks, and of blocks that no gradient left."""
        shared: Any = next(filter(is_shard, self._trainable.values()))
        holds = torch.tensor([name in self._held for name in self._trainable], dtype=torch.uint8)
        vote = holds.to(own_part(shared).device)
        joint_vote()
        dist.all_reduce(vote, dist.ReduceOp.MAX, group=shared.device_mesh.get_group())
        with torch.no_grad():
            for name, held in zip(self._trainable, vote.tolist(), strict=True):
                if held:
                    self._add(name)

    def _add(self, name: str) -> None:
        parameter = self._trainable[name]
        held = self._held.pop(name, None)
        add_sum(parameter, blank_like(parameter, zeros=True) if held is None else held)

    def any_of(self, answer: bool) -> bool:
        """Whether any process that shares the parameters answers yes, each of which must ask; else the own answer."""
        return joint_vote(answer) if self.shared else answer

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
