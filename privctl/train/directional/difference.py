"""Central differences: two forward passes at perturbed weights, with the memory of inference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from privctl.train.clipping.products import full_precision
from privctl.train.directional.passes import Losses, Randomness, check_losses
from privctl.train.directional.queries import DirectionalQuery, MethodUnavailableError, device_of, parameters_of

#: Each entry of a single tensor moves by this fraction of the tensor's root mean square.
STEP = 1e-2
#: Tensors whose root mean square is below this / sqrt(fan-in) move as if it were that, so that zeros move too; weights
#: of 1/sqrt(fan-in) preserve the size of a signal.
_FLOOR = 0.5
#: A step so small that the effect of curvature is below rounding, while weights still change.
_TINY_STEP = 1e-6


def difference_by_example(
    network: nn.Module, losses_of: Losses, queries: Sequence[DirectionalQuery], step: float = STEP
) -> Tensor:
    """Derivatives (n, fired) float64: (loss(w + h u) - loss(w - h u)) / (2 h), with the same dropout in both.

    The weights are perturbed in place and afterwards restored from a copy, bit for bit. ``step`` is relative to the
    weights, see ``distance_along``. Products are in full float32, without TF32. Raises MethodUnavailableError for
    weights with fewer bits than float32, and if ``losses_of`` uses autocast.
    """
    device = device_of(queries)
    randomness = Randomness(device)

    def refuse_autocast(module: nn.Module, arguments: Any) -> None:
        if torch.is_autocast_enabled(device.type):
            raise MethodUnavailableError(
                f"the model runs under autocast to {torch.get_autocast_dtype(device.type)}, in which a difference of "
                "losses is mostly rounding; run it in float32, or take the method partial"
            )

    with network.register_forward_pre_hook(refuse_autocast), full_precision(device):
        columns = [_slopes(losses_of, query, step, randomness) for query in queries]
    return torch.stack(columns, 1)


def _slopes(losses_of: Losses, query: DirectionalQuery, step: float, randomness: Randomness) -> Tensor:
    for name, parameter in query.parameters.items():
        if torch.finfo(parameter.dtype).bits < 32:
            raise MethodUnavailableError(
                f"parameter {name!r} is {parameter.dtype}, in which a difference of losses is mostly rounding; load it "
                "as float32, or take the method partial"
            )
    distance = distance_along(query.parameters, step)
    ahead, behind = _losses_on_both_sides(losses_of, query, distance, randomness)
    return (ahead.double() - behind.double()) / (2 * distance)


def _losses_on_both_sides(
    losses_of: Losses, query: DirectionalQuery, distance: float, randomness: Randomness
) -> tuple[Tensor, Tensor]:
    """loss(w + h u) and loss(w - h u), (n,) each; the weights are restored."""
    with torch.no_grad():
        originals = {name: p.detach().clone() for name, p in query.parameters.items()}
        try:
            ahead = _losses_at(losses_of, query, originals, distance, randomness)
            behind = _losses_at(losses_of, query, originals, -distance, randomness)
        finally:
            _restore(query, originals)
    return ahead, behind


def _restore(query: DirectionalQuery, originals: Mapping[str, Tensor]) -> None:
    """Restore the weights from the copy, as adding the distance back would round."""
    for name, parameter in query.parameters.items():
        parameter.copy_(originals[name])


def _losses_at(
    losses_of: Losses,
    query: DirectionalQuery,
    originals: Mapping[str, Tensor],
    distance: float,
    randomness: Randomness,
) -> Tensor:
    for name, parameter in query.parameters.items():
        torch.add(originals[name], query.direction[name].to(parameter.dtype), alpha=distance, out=parameter.detach())
    randomness.rewind()
    return check_losses(losses_of())


def distance_along(parameters: Mapping[str, nn.Parameter], step: float = STEP) -> float:
    """The distance h along a unit direction that perturbs the network equally for any choice of tensors.

    If all entries of a tensor move by a fraction of their root mean square, its output is perturbed by that fraction,
    and the squares of the perturbations of several tensors add: entries move by step / sqrt(sum over tensors of
    1 / rms^2), and h is that times sqrt(d). For one tensor h = step |w|.
    """
    inverse = math.fsum(1 / _size(parameter) ** 2 for parameter in parameters.values())
    count = sum(parameter.numel() for parameter in parameters.values())
    return step * math.sqrt(count / inverse)


def _size(parameter: nn.Parameter) -> float:
    """The root mean square of the entries, but at least the floor for tensors near zero."""
    inputs = parameter[0].numel() if parameter.dim() > 1 and len(parameter) else 1
    norm = float(torch.linalg.vector_norm(parameter.detach(), dtype=torch.float64))
    return max(norm / math.sqrt(max(1, parameter.numel())), _FLOOR / math.sqrt(max(1, inputs)))


def rounding(losses_of: Losses, queries: Sequence[DirectionalQuery], step: float = STEP) -> Tensor:
    """Standard deviations (fired,) float64 of the rounding error of a batch's differences, measured in three passes.

    At weights this close, second differences of losses are only rounding, with a standard deviation of sqrt(6) times
    that of one loss, which is at least 1/sqrt(12) of a unit in the last place. The sum over n examples of differences
    of two losses has sqrt(2 n) times the standard deviation of one loss, divided by twice the distance.
    """
    together = DirectionalQuery(
        parameters=parameters_of(queries),
        direction={n: u for query in queries for n, u in query.direction.items()},
    )
    distance = distance_along(together.parameters, _TINY_STEP)
    randomness = Randomness(device_of(queries))
    with torch.no_grad(), full_precision(device_of(queries)):
        ahead, behind = _losses_on_both_sides(losses_of, together, distance, randomness)
        randomness.rewind()
        middle = check_losses(losses_of())
    second = (ahead.double() - middle.double()) + (behind.double() - middle.double())
    cut = torch.finfo(middle.dtype).eps * middle.double() / math.sqrt(12)
    noise = math.sqrt(2) * torch.hypot(second / math.sqrt(6), cut)
    distances = [distance_along(query.parameters, step) for query in queries]
    twice = 2 * torch.tensor(distances, dtype=noise.dtype, device=noise.device)
    moved: Tensor = torch.linalg.vector_norm(noise) / twice
    return moved
