"""Which method is cheapest, judged by the network's structure alone, so that every process chooses the same."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from privctl.train.settings.choices import DerivativeMethod

#: A finite difference must cost less than this fraction of an exact method, as its sign may be wrong near zero.
_SAVING = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkShare:
    """Fractions of a network's multiplications: from the first fired tensor on (``above``), and in fired ones alone."""

    above: float
    alone: float


def work(network: nn.Module, *groups: Collection[str]) -> list[WorkShare]:
    """The work shares of each of ``groups`` of parameter names, in one walk through the network.

    Assumes that modules run in the order of registration and multiply by each weight of two or more dimensions once per
    position; an embedding does not multiply, but an output layer tied to it does.
    """
    named = dict(network.named_parameters(remove_duplicate=False))
    below: dict[int, float] = {}  # what is multiplied before the first use of each parameter
    own: dict[int, float] = {}
    total = 0.0
    for module in network.modules():
        parameters = list(module.parameters(recurse=False))
        for parameter in parameters:
            below.setdefault(id(parameter), total)
        if isinstance(module, nn.Embedding):
            continue
        for parameter in parameters:
            size = float(parameter.numel()) if parameter.dim() > 1 else 0.0
            total += size
            own[id(parameter)] = own.get(id(parameter), 0.0) + size
    if not total:
        return [WorkShare(above=1.0, alone=1.0) for _ in groups]
    shares = []
    for names in groups:
        asked = {id(named[name]) for name in names}
        above = total - min((below[key] for key in asked), default=total)
        shares.append(WorkShare(above=above / total, alone=sum(own.get(key, 0.0) for key in asked) / total))
    return shares


def passes(method: DerivativeMethod, groups: Sequence[WorkShare], together: WorkShare, *, per_example: bool) -> float:
    """The approximate cost of the derivatives in several groups, in forward passes; a training step takes 3.2.

    ``together`` is the work of all groups at once, as one backward pass serves them all. The coefficients were fitted
    to times on one core (``python -m tests.bench ferret``), with errors of at most a third and mostly below a fifth;
    those of products follow from what is multiplied.
    """
    match method:
        case DerivativeMethod.PARTIAL if not per_example:
            return 1 + 1.3 * together.above + 0.8 * together.alone
        case DerivativeMethod.PARTIAL:
            return 1 + 1.3 * together.above + sum(1.5 * group.above + 2.3 * group.alone for group in groups)
        case DerivativeMethod.PRODUCTS:
            return 1 + 1.3 * together.above + 1.3 * sum(group.alone for group in groups)
        case DerivativeMethod.FORWARD:
            return sum(1 + 2.6 * group.above for group in groups)
        case DerivativeMethod.DIFFERENCE:
            return 2.1 * len(groups)
    raise ValueError(f"nothing is known of the cost of {method}")


def rank_methods(network: nn.Module, groups: Sequence[Collection[str]], *, per_example: bool) -> list[DerivativeMethod]:
    """The methods for these groups of parameter names, best first.

    Cheaper methods come first, but an exact method precedes a finite difference that saves less than a fifth; weights
    with fewer bits than float32 exclude differences. Forward mode is considered only per example, as a backward pass is
    always cheaper for a sum. Products with per-example gradients are considered only per example and for several
    groups: for one group, forward mode needs less memory at about the same cost.
    """
    *works, together = work(network, *groups, [name for group in groups for name in group])
    methods = [
        DerivativeMethod.PARTIAL,
        DerivativeMethod.DIFFERENCE,
        *([DerivativeMethod.FORWARD] if per_example else []),
        *([DerivativeMethod.PRODUCTS] if per_example and len(groups) > 1 else []),
    ]
    named = dict(network.named_parameters(remove_duplicate=False))
    if any(torch.finfo(named[name].dtype).bits < 32 for group in groups for name in group):
        methods.remove(DerivativeMethod.DIFFERENCE)

    def price(method: DerivativeMethod) -> float:
        cost_in_passes = passes(method, works, together, per_example=per_example)
        return cost_in_passes if method is not DerivativeMethod.DIFFERENCE else cost_in_passes / _SAVING

    return sorted(methods, key=price)
