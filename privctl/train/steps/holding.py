"""How the processes of a training hold the trained parameters: a full copy each, or a shard each.

With copies, the main process alone adds noise to the sum over all processes and broadcasts it. With shards, the sum of
a shard is in one process, which adds the noise of its entries under its own key: every entry gets noise once, with the
full standard deviation, before anything is rounded or leaves the process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from privctl.domain.errors import DivergedError, InputError
from privctl.parallel import Workers
from privctl.train.clipping.shards import is_shard, own_part, part_of
from privctl.train.network.tensors import load_tensors, named_tensors, require_finite
from privctl.train.steps.optimizers import moments, restore_moments

#: Makes sums of gradients safe to release, in place.
Release = Callable[[Sequence[Tensor]], None]


class Holding(Protocol):
    """The trained parameters, and the operations on their gradients over all processes."""

    @property
    def trained(self) -> list[nn.Parameter]:
        """The network's parameters that require a gradient."""
        ...

    @property
    def optimized(self) -> list[nn.Parameter]:
        """The parameters that this process's optimizer updates."""
        ...

    @property
    def loss_scale(self) -> float:
        """The factor of a loss with which torch's backward pass yields a sum over processes, not a mean."""
        ...

    def clear_gradients(self) -> None:
        """Drop all gradients."""
        ...

    def combine(self, release: Release | None) -> None:
        """Leave in ``optimized`` the gradients summed over all processes, after ``release`` if that is given."""
        ...

    def require_finite(self, step: int) -> None:
        """Raise DivergedError in all processes if weights are not finite after ``step``."""
        ...

    def as_saved(self, index: int, part: Tensor) -> Tensor:
        """The form in which to save a tensor, sharded like ``trained[index]``, whose ``part`` is in this process."""
        ...

    def own_part(self, index: int, saved: Tensor) -> Tensor:
        """The part for this process of what ``as_saved`` returned, in whatever number of processes."""
        ...

    def state(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """Weights, buffers and the optimizer's moments by name; sharded ones stay sharded."""
        ...

    def restore(self, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` returned, in whatever number of processes. Raises InputError if it does not fit."""
        ...


def holding(network: nn.Module, workers: Workers) -> Holding:
    """How ``network`` is held. Raises InputError if none of its parameters is trained."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    if not parameters:
        raise InputError("the model has no parameter that requires a gradient; there is nothing to train")
    shared = any(map(is_shard, parameters))
    held: Holding = (Shards if shared else Copies)(network=network, workers=workers, trained=parameters)
    return held


@dataclass(slots=True, kw_only=True)
class Copies:
    """Every process holds a full copy; see ``Holding``."""

    network: nn.Module
    workers: Workers
    trained: list[nn.Parameter]

    @property
    def optimized(self) -> list[nn.Parameter]:
        """See ``Holding``."""
        return self.trained

    @property
    def loss_scale(self) -> float:
        """See ``Holding``."""
        return 1.0

    def clear_gradients(self) -> None:
        """See ``Holding``; with None the first gradient is written, not added to zeros, which saves a pass."""
        for parameter in self.trained:
            parameter.grad = None

    def combine(self, release: Release | None) -> None:
        """See ``Holding``."""
        gradients = [_gradient(p) for p in self.trained]
        if release is None:
            self.workers.all_reduce(gradients)
            return
        self.workers.reduce_to_main(gradients)
        if self.workers.is_main:
            release(gradients)
        for gradient in gradients:
            self.workers.broadcast(gradient)

    def require_finite(self, step: int) -> None:
        """See ``Holding``."""
        require_finite(self.network, step)

    def as_saved(self, index: int, part: Tensor) -> Tensor:
        """See ``Holding``."""
        return part

    def own_part(self, index: int, saved: Tensor) -> Tensor:
        """See ``Holding``."""
        return saved

    def state(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """See ``Holding``."""
        return _weights(self.network) | moments(optimizer, self.as_saved)

    def restore(self, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
        """See ``Holding``."""
        weights = {name.removeprefix(_MODEL): tensors[name] for name in tensors if name.startswith(_MODEL)}
        load_tensors(self.network, weights)
        restore_moments(optimizer, tensors, self.own_part)


@dataclass(slots=True, kw_only=True)
class Shards:
    """Every process holds a shard of each parameter, and of its gradient and its moments; see ``Holding``."""

    network: nn.Module
    workers: Workers
    trained: list[nn.Parameter]
    _own: list[nn.Parameter] = field(init=False)

    def __post_init__(self) -> None:
        # Plain tensors that share the shards' memory, so that updating them updates the network.
        self._own = [nn.Parameter(own_part(parameter)) for parameter in self.trained]

    @property
    def optimized(self) -> list[nn.Parameter]:
        """See ``Holding``."""
        return self._own

    @property
    def loss_scale(self) -> float:
        """See ``Holding``; torch averages gradients over the processes."""
        return float(self.workers.size)

    def clear_gradients(self) -> None:
        """See ``Holding``."""
        for parameter in (*self.trained, *self._own):
            parameter.grad = None

    def combine(self, release: Release | None) -> None:
        """See ``Holding``; the clipping engine, or torch, has already reduce-scattered the gradients."""
        for part, parameter in zip(self._own, self.trained, strict=True):
            part.grad = torch.zeros_like(part) if parameter.grad is None else own_part(parameter.grad)
        if release is not None:
            release([_gradient(item) for item in self._own])

    def require_finite(self, step: int) -> None:
        """See ``Holding``."""
        parameters = dict(self.network.named_parameters())
        bad = self.workers.any_of(*(not bool(torch.isfinite(own_part(p)).all()) for p in parameters.values()))
        for name, is_bad in zip(parameters, bad, strict=True):
            if is_bad:
                raise DivergedError(
                    f"parameter {name!r} holds NaN or infinity after step {step}; the training diverged: lower "
                    "--learning-rate, or raise --batch-size"
                )

    def as_saved(self, index: int, part: Tensor) -> Tensor:
        """See ``Holding``."""
        return _shared_like(self.trained[index], part)

    def own_part(self, index: int, saved: Tensor) -> Tensor:
        """See ``Holding``; a copy, so that the whole tensor can be freed."""
        return part_of(saved, self.trained[index]).clone()

    def state(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """See ``Holding``."""
        return _weights(self.network) | moments(optimizer, self.as_saved)

    def restore(self, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
        """See ``Holding``; reads one whole tensor at a time."""
        places = named_tensors(self.network)
        saved = {name.removeprefix(_MODEL) for name in tensors if name.startswith(_MODEL)}
        if saved != places.keys() or any(tensors[_MODEL + n].shape != p.shape for n, p in places.items()):
            raise InputError("the saved state is of another model; resume with the model that the run began with")
        with torch.no_grad():
            for name, place in places.items():
                own_part(place).copy_(part_of(tensors[_MODEL + name], place))
        restore_moments(optimizer, tensors, self.own_part)


_MODEL = "model."


def _gradient(parameter: nn.Parameter) -> Tensor:
    """The parameter's gradient; zeros if no example used it."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _weights(network: nn.Module) -> dict[str, Tensor]:
    return {_MODEL + name: tensor for name, tensor in named_tensors(network).items()}


def _shared_like(parameter: nn.Parameter, part: Tensor) -> Tensor:
    """A tensor sharded like ``parameter``, of which this process holds ``part``; a scalar is returned as it is."""
    from torch.distributed.tensor import DTensor

    if not part.dim():
        return part
    shared: Any = parameter
    return DTensor.from_local(
        part, shared.device_mesh, shared.placements, run_check=False, shape=shared.shape, stride=shared.stride()
    )
