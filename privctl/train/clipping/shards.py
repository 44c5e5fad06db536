"""Parameters of which each process holds a shard, as torch's ``fully_shard`` (FSDP2) makes them.

Outside a pass such a parameter is a ``DTensor`` sharded by rows, with this process's rows in its local tensor. During a
block's forward or backward pass its modules hold the whole parameters, gathered from all processes; taps record there,
so the clipping rules need not know of shards. A clipped sum is formed whole, one parameter at a time, then
reduce-scattered over the processes.
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
    """Whether ``tensor`` is sharded over processes."""
    return hasattr(tensor, "device_mesh")


def own_part(tensor: Tensor) -> Tensor:
    """The shard of ``tensor`` in this process, in the same memory; all of it if it is not sharded."""
    if not is_shard(tensor):
        return tensor
    shared: Any = tensor.detach()
    part: Tensor = shared.to_local()
    return part


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor; if it is sharded, every process must call this."""
    if not is_shard(tensor):
        return tensor
    shared: Any = tensor.detach()
    joint_vote()
    gathered: Tensor = shared.full_tensor()
    return gathered


def part_of(tensor: Tensor, place: Tensor, rank: int | None = None) -> Tensor:
    """The rows of ``tensor`` in process ``rank``, or this one, if sharded like ``place``; all if that is not sharded.

    Rows are split as by ``torch.chunk``. A scalar is not sharded.
    """
    if not is_shard(place) or not tensor.dim():
        return tensor
    shared: Any = place
    parts = tensor.chunk(shared.device_mesh.size())
    rank = shared.device_mesh.get_local_rank() if rank is None else rank
    return parts[rank] if rank < len(parts) else tensor[:0]


def first_row(place: Tensor) -> int:
    """The index of the first row that this process holds of ``place``, split as in ``part_of``."""
    if not is_shard(place):
        return 0
    shared: Any = place
    size, rank = int(shared.device_mesh.size()), int(shared.device_mesh.get_local_rank())
    return min(rank * -(-len(place) // size), len(place))


def blank_like(parameter: Tensor, *, zeros: bool) -> Tensor:
    """A tensor with the whole parameter's shape, filled with zeros or uninitialized."""
    if not is_shard(parameter):
        return torch.zeros_like(parameter) if zeros else torch.empty_like(parameter)
    make = torch.zeros if zeros else torch.empty
    return make(parameter.shape, dtype=parameter.dtype, device=own_part(parameter).device)


def add_sum(parameter: nn.Parameter, whole: Tensor) -> None:
    """Sum ``whole`` over all processes and add this process's shard of the sum to the ``grad`` of the parameter.

    Every process must call this, for the same parameters in the same order.
    """
    from torch.distributed.tensor import DTensor

    shared: Any = parameter
    mesh, rows = shared.device_mesh, -(-len(whole) // shared.device_mesh.size())
    if missing := rows * mesh.size() - len(whole):
        whole = torch.cat([whole, whole.new_zeros(missing, *whole.shape[1:])])
    summed = whole.new_empty(rows, *whole.shape[1:])
    ReduceScatter()(summed, whole.contiguous(), mesh.get_group(), dist.ReduceOp.SUM)
    mine = summed[: len(own_part(parameter))]
    if parameter.grad is None:
        parameter.grad = DTensor.from_local(
            mine, mesh, shared.placements, run_check=False, shape=shared.shape, stride=shared.stride()
        )
    else:
        own_part(parameter.grad).add_(mine)


class _Exchange:
    """How a block's parameters and gradients are exchanged: as torch does, after a ``joint_vote``."""

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Allocate the buffer of an exchange."""
        return torch.empty(*size, dtype=dtype, device=device)


class AllGather(_Exchange):
    """All-gather of the shards of all processes, which replaces that of ``fully_shard``."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, async_op: bool = False) -> Any:
        """Fill ``output_tensor`` with the shards of all processes."""
        joint_vote()
        return _newest("all_gather_single", "all_gather_into_tensor")(
            output_tensor, input_tensor, group=group, async_op=async_op
        )


class ReduceScatter(_Exchange):
    """Reduce-scatter of the sum over all processes, which replaces that of ``fully_shard``."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False) -> Any:
        """Fill ``output_tensor`` with this process's shard of the sum."""
        joint_vote()
        return _newest("reduce_scatter_single", "reduce_scatter_tensor")(
            output_tensor, input_tensor, op=op, group=group, async_op=async_op
        )


def _newest(*names: str) -> Any:
    """The first of the functions ``names`` of torch.distributed that this version of torch has."""
    return next(getattr(dist, name) for name in names if hasattr(dist, name))


def reset_after_error(network: nn.Module) -> None:
    """Reset a sharded network after a pass failed in any process: to its state before the pass, without gradients.

    Every process must call this. Raises InputError if this version of torch cannot do it.
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
            block.unshard()  # whose whole gradients the failed pass may have begun to accumulate
            for parameter in module.parameters():
                parameter.grad = None
            block.reshard()
    for parameter in network.parameters():
        parameter.grad = None


class Leaves:
    """The autograd leaves of the trained parameters of ``model`` in the latest forward pass.

    Inside ``summing()`` a backward pass hands in weighted sums through ``hold``. The sums of a block are added to the
    parameters' ``grad`` when the backward pass leaves the block, in the same order in all processes.
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
            # A block's own hook, which gathers its parameters, was registered before these and so runs first.
            self._handles = [
                module.register_forward_pre_hook(partial(self._note, path), with_kwargs=True)
                for path, module in model.named_modules()
                if hasattr(module, "unshard")
            ]
            blocks = [path for path, module in model.named_modules() if path and hasattr(module, "unshard")]
            self._blocks = {path: [name for name in trainable if name.startswith(f"{path}.")] for path in blocks}

    @property
    def by_name(self) -> Mapping[str, Tensor]:
        """The leaves by name; parameters of a block that no pass has reached are missing."""
        return self._gathered if self.shared else self._trainable

    def _note(self, path: str, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        for name, parameter in module.named_parameters(prefix=path):
            if name in self._trainable and not is_shard(parameter):
                self._gathered[name] = parameter
        # The gradient of a block's first input is complete when the block's backward pass has ended.
        entering = [t for t in (*arguments, *keywords.values()) if isinstance(t, Tensor) and t.requires_grad][:1]
        for tensor in entering if path in self._blocks else ():
            tensor.register_hook(lambda _: self._release(path))  # type: ignore[no-untyped-call]

    @contextmanager
    def summing(self) -> Iterator[None]:
        """Inside, ``hold`` takes sums; at the end all are added. Every process must enter this."""
        self._summing = True
        try:
            yield
            if self.shared:
                self._release_rest()
        finally:
            self._summing = False
            self._held.clear()

    def hold(self, name: str, terms: Sequence[GradientTerm], factors: Tensor) -> None:
        """Take the sum of ``terms`` weighted by ``factors`` (n,) for a sharded parameter."""
        fresh = name not in self._held
        total = self._held.setdefault(name, blank_like(self._trainable[name], zeros=not terms))
        for i, term in enumerate(terms):
            total = self._held[name] = term.add_weighted(total, factors, fresh=fresh and i == 0)

    def _release(self, path: str) -> None:
        """Add the sums of a block over all processes."""
        if self._summing:
            with torch.no_grad():
                for name in self._blocks[path]:
                    self._add(name)

    def _release_rest(self) -> None:
        """Add what any process still holds: of parameters outside blocks, and of blocks whose input has no gradient."""
        shared: Any = next(filter(is_shard, self._trainable.values()))
        holds = torch.tensor([name in self._held for name in self._trainable], dtype=torch.uint8)
        vote = holds.to(own_part(shared).device)
        joint_vote()
        dist.all_reduce(vote, dist.ReduceOp.MAX, group=shared.device_mesh.get_group())
        with torch.no_grad():
            for name, is_held in zip(self._trainable, vote.tolist(), strict=True):
                if is_held:
                    self._add(name)

    def _add(self, name: str) -> None:
        parameter = self._trainable[name]
        earlier = self._held.pop(name, None)
        add_sum(parameter, blank_like(parameter, zeros=True) if earlier is None else earlier)

    def any_of(self, answer: bool) -> bool:
        """Whether ``answer`` is true in any process that shares the parameters, each of which must call this."""
        return joint_vote(answer) if self.shared else answer

    def remove(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
