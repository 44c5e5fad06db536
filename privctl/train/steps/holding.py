"""How the processes of a training hold what is trained: all of it in each, or a shard in each.

Where each holds all, the first process alone adds noise to the sum over all and hands it out. Where each holds a shard,
the sum of a shard lies in one process, which adds the noise of its own entries under a key of its own: every entry gets
noise once, at the full standard deviation, before anything is rounded or leaves the process.
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
    """The parameters that are trained, and what is done with their gradients in all processes."""

    @property
    def trained(self) -> list[nn.Parameter]:
        """The network's parameters that require a gradient."""
        ...

    @property
    def optimized(self) -> list[nn.Parameter]:
        """What this process's optimizer moves."""
        ...

    @property
    def share(self) -> float:
        """What a loss is multiplied by, so that torch's backward pass leaves a term of the sum over processes."""
        ...

    def forget(self) -> None:
        """Drop all gradients."""
        ...

    def combine(self, release: Release | None) -> None:
        """Leave in ``optimized`` the gradients summed over all processes, and released where that is asked for."""
        ...

    def require_finite(self, step: int) -> None:
        """Raise DivergedError, in all processes, for weights that are not finite after ``step``."""
        ...

    def as_saved(self, index: int, part: Tensor) -> Tensor:
        """What is saved of a tensor whose ``part`` lies here, as that of ``trained[index]`` does."""
        ...

    def own_part(self, index: int, saved: Tensor) -> Tensor:
        """Take this process's part of what ``as_saved`` gave in any number of processes."""
        ...

    def state(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """Weights, buffers and the optimizer's moments by name; shared ones as such."""
        ...

    def restore(self, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
        """Restore what ``state`` gave in any number of processes. Raises InputError where it does not fit."""
        ...


def holding(network: nn.Module, workers: Workers) -> Holding:
    """How ``network`` is held. Raises InputError where nothing of it is trained."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    if not parameters:
        raise InputError("the model has no parameter that requires a gradient; there is nothing to train")
    shared = any(map(is_shard, parameters))
    made: Holding = (Shards if shared else Copies)(network=network, workers=workers, trained=parameters)
    return made


@dataclass(slots=True, kw_only=True)
class Copies:
    """Every process holds all; see ``Holding``."""

    network: nn.Module
    workers: Workers
    trained: list[nn.Parameter]

    @property
    def optimized(self) -> list[nn.Parameter]:
        """See ``Holding``."""
        return self.trained

    @property
    def share(self) -> float:
        """See ``Holding``."""
        return 1.0

    def forget(self) -> None:
        """See ``Holding``; the first gradient is then written, not added to zeros, which saves a pass."""
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
        # Plain tensors in the shards' own memory: what moves them moves the network.
        self._own = [nn.Parameter(own_part(parameter)) for parameter in self.trained]

    @property
    def optimized(self) -> list[nn.Parameter]:
        """See ``Holding``."""
        return self._own

    @property
    def share(self) -> float:
        """See ``Holding``; torch hands out the mean over the processes."""
        return float(self.workers.size)

    def forget(self) -> None:
        """See ``Holding``."""
        for parameter in (*self.trained, *self._own):
            parameter.grad = None

    def combine(self, release: Release | None) -> None:
        """See ``Holding``; the engine, or torch, has summed the gradients already, and handed out shards."""
        for own, parameter in zip(self._own, self.trained, strict=True):
            own.grad = torch.zeros_like(own) if parameter.grad is None else own_part(parameter.grad)
        if release is not None:
            release([_gradient(own) for own in self._own])

    def require_finite(self, step: int) -> None:
        """See ``Holding``."""
        parameters = dict(self.network.named_parameters())
        bad = self.workers.any_of(*(not bool(torch.isfinite(own_part(p)).all()) for p in parameters.values()))
        for name, found in zip(parameters, bad, strict=True):
            if found:
                raise DivergedError(
                    f"parameter {name!r} holds NaN or infinity after step {step}; the training diverged: lower "
                    "--learning-rate, or raise --batch-size"
                )

    def as_saved(self, index: int, part: Tensor) -> Tensor:
        """See ``Holding``."""
        return _shared_like(self.trained[index], part)

    def own_part(self, index: int, saved: Tensor) -> Tensor:
        """See ``Holding``; a copy, so that nothing of the others' parts is held."""
        return part_of(saved, self.trained[index]).clone()

    def state(self, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
        """See ``Holding``."""
        return _weights(self.network) | moments(optimizer, self.as_saved)

    def restore(self, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
        """See ``Holding``; one tensor at a time is read whole."""
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
    """The parameter's gradient; zeros if no example contributed."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _weights(network: nn.Module) -> dict[str, Tensor]:
    return {_MODEL + name: tensor for name, tensor in named_tensors(network).items()}


def _shared_like(parameter: nn.Parameter, part: Tensor) -> Tensor:
    """A tensor like ``parameter`` of which this process holds ``part``; a single number stays as it is."""
    from torch.distributed.tensor import DTensor

    if not part.dim():
        return part
    shared: Any = parameter
    return DTensor.from_local(
        part, shared.device_mesh, shared.placements, run_check=False, shape=shared.shape, stride=shared.stride()
    )
