"""Central differences: two forward passes at perturbed weights, at the memory of inference."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from privctl.train.clipping.products import full_precision
from privctl.train.directional.passes import Losses, Randomness, check_losses
from privctl.train.directional.queries import DirectionalQuery, MethodUnavailableError, device_of, parameters_of

#: Each entry of a single tensor moves by this share of the tensor's root mean square.
STEP = 1e-2
#: Tensors of smaller root mean square than this / sqrt(inputs of an output) move as if they had it: zeros must move
#: too, and a weight of 1/sqrt(inputs) passes a signal on at the size it came.
_FLOOR = 0.5
#: Like ``STEP``, but so small that curvature is below rounding, while weights still change.
_HARDLY = 1e-6


def difference_by_example(
    network: nn.Module, losses_of: Losses, queries: Sequence[DirectionalQuery], step: float = STEP
) -> Tensor:
    """Derivatives (n, fired) float64: (loss(w + h u) - loss(w - h u)) / (2 h), with the same dropout in both.

    The weights are perturbed where they are and afterwards written back from a copy, bit for bit. ``step`` is relative
    to the weights, as ``reach`` says. Products are in full float32, without TF32. Raises MethodUnavailableError for
    weights of fewer bits than float32, and where ``losses_of`` uses autocast.
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
        columns = [_slopes(losses_of, question, step, randomness) for question in queries]
    return torch.stack(columns, 1)


def _slopes(losses_of: Losses, question: DirectionalQuery, step: float, randomness: Randomness) -> Tensor:
    for name, parameter in question.parameters.items():
        if torch.finfo(parameter.dtype).bits < 32:
            raise MethodUnavailableError(
                f"parameter {name!r} is {parameter.dtype}, in which a difference of losses is mostly rounding; load it "
                "as float32, or take the method partial"
            )
    distance = reach(question.parameters, step)
    ahead, behind = _both(losses_of, question, distance, randomness)
    return (ahead.double() - behind.double()) / (2 * distance)


def _both(
    losses_of: Losses, question: DirectionalQuery, distance: float, randomness: Randomness
) -> tuple[Tensor, Tensor]:
    """loss(w + h u) and loss(w - h u), (n,) each; the weights are left as they were."""
    with torch.no_grad():
        originals = {name: p.detach().clone() for name, p in question.parameters.items()}
        try:
            ahead = _losses_at(losses_of, question, originals, distance, randomness)
            behind = _losses_at(losses_of, question, originals, -distance, randomness)
        finally:
            _restore(question, originals)
    return ahead, behind


def _restore(question: DirectionalQuery, originals: Mapping[str, Tensor]) -> None:
    """Write back the originals; adding the distance again would round."""
    for name, parameter in question.parameters.items():
        parameter.copy_(originals[name])


def _losses_at(
    losses_of: Losses,
    question: DirectionalQuery,
    originals: Mapping[str, Tensor],
    distance: float,
    randomness: Randomness,
) -> Tensor:
    for name, parameter in question.parameters.items():
        torch.add(originals[name], question.direction[name].to(parameter.dtype), alpha=distance, out=parameter.detach())
    randomness.rewind()
    return check_losses(losses_of())


def reach(parameters: Mapping[str, nn.Parameter], step: float = STEP) -> float:
    """The distance h along a unit direction that perturbs the network equally for any choice of tensors.

    A tensor whose entries all move by a share of their root mean square disturbs what it computes by that share, and
    the disturbances of several tensors add as squares: entries move by step / sqrt(sum over tensors of 1 / rms^2), and
    h is that times sqrt(d). For one tensor h = step |w|.
    """
    inverse = math.fsum(1 / _size(parameter) ** 2 for parameter in parameters.values())
    count = sum(parameter.numel() for parameter in parameters.values())
    return step * math.sqrt(count / inverse)


def _size(parameter: nn.Parameter) -> float:
    """The root mean square of the entries, or a floor for tensors near zero."""
    inputs = parameter[0].numel() if parameter.dim() > 1 and len(parameter) else 1
    norm = float(torch.linalg.vector_norm(parameter.detach(), dtype=torch.float64))
    return max(norm / math.sqrt(max(1, parameter.numel())), _FLOOR / math.sqrt(max(1, inputs)))


def rounding(losses_of: Losses, queries: Sequence[DirectionalQuery], step: float = STEP) -> Tensor:
    """Standard deviations (fired,) float64 by which rounding moves a batch's differences, measured in three passes.

    At weights so near each other, second differences of losses are their rounding alone, of standard deviation sqrt(6)
    times one loss's; that is at least 1/sqrt(12) of a unit in the last place. A sum over the batch of differences of
    two losses each has sqrt(2 n) times it, divided by twice the distance.
    """
    together = DirectionalQuery(
        parameters=parameters_of(queries),
        direction={n: u for question in queries for n, u in question.direction.items()},
    )
    distance = reach(together.parameters, _HARDLY)
    randomness = Randomness(device_of(queries))
    with torch.no_grad(), full_precision(device_of(queries)):
        ahead, behind = _both(losses_of, together, distance, randomness)
        randomness.rewind()
        middle = check_losses(losses_of())
    second = (ahead.double() - middle.double()) + (behind.double() - middle.double())
    cut = torch.finfo(middle.dtype).eps * middle.double() / math.sqrt(12)
    noise = math.sqrt(2) * torch.hypot(second / math.sqrt(6), cut)
    distances = [reach(question.parameters, step) for question in queries]
    twice = 2 * torch.tensor(distances, dtype=noise.dtype, device=noise.device)
    moved: Tensor = torch.linalg.vector_norm(noise) / twice
    return moved
