"""The queries for derivatives: fired groups of parameters and their directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from privctl.domain.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


class MethodUnavailableError(InputError):
    """The network cannot be differentiated by this method; the message names another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FiredGroup:
    """A group that fired: its index, and its ``parameters`` by their names in ``network.named_parameters()``."""

    index: int
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectionalQuery:
    """One directional derivative: along ``direction`` (float32, by name) in ``parameters`` of the network."""

    parameters: Mapping[str, nn.Parameter]
    direction: Mapping[str, Tensor]


def queries_for(
    network: nn.Module, fired: Sequence[FiredGroup], directions: Sequence[Mapping[str, Tensor]]
) -> list[DirectionalQuery]:
    """The queries for fired groups and their directions.

    Raises InputError for a name that is not a differentiable parameter of the network, and ValueError for directions
    whose number, names or shapes do not match the groups.
    """
    if len(fired) != len(directions):
        raise ValueError(f"{len(fired)} groups and {len(directions)} directions; give one direction a group")
    named_parameters = dict(network.named_parameters())
    queries = []
    for group, chosen in zip(fired, directions, strict=True):
        parameters = {name: _parameter(network, named_parameters, group, name) for name in group.parameters}
        if chosen.keys() != parameters.keys():
            raise ValueError(f"group {group.index} is {sorted(parameters)} and its direction {sorted(chosen)}")
        for name, parameter in parameters.items():
            if chosen[name].shape != parameter.shape:
                raise ValueError(
                    f"{name!r} is {tuple(parameter.shape)} and its direction {tuple(chosen[name].shape)}; give it one "
                    "of its own shape"
                )
        queries.append(DirectionalQuery(parameters=parameters, direction=chosen))
    return queries


def parameters_of(queries: Sequence[DirectionalQuery]) -> dict[str, nn.Parameter]:
    """The parameters of all groups, each once."""
    return {name: parameter for query in queries for name, parameter in query.parameters.items()}


def _parameter(
    network: nn.Module, parameters: Mapping[str, nn.Parameter], group: FiredGroup, name: str
) -> nn.Parameter:
    parameter = parameters.get(name)
    if parameter is None:
        alias = dict(network.named_parameters(remove_duplicate=False)).get(name)
        first_name = next((n for n, p in parameters.items() if p is alias), None)
        if first_name is None:
            raise InputError(
                f"group {group.index} names the parameter {name!r}, which the model does not have; give names of its "
                "named_parameters()"
            )
        raise InputError(f"group {group.index} names {name!r}, which is tied to {first_name!r}; give that name")
    if not parameter.is_floating_point():
        raise InputError(
            f"group {group.index} names {name!r}, which is {parameter.dtype} and has no derivative; remove it, or "
            "load the model as float32"
        )
    return parameter


def device_of(queries: Sequence[DirectionalQuery]) -> torch.device:
    """The device of the parameters."""
    return next(iter(queries[0].parameters.values())).device
