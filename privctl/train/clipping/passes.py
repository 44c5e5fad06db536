"""The backward passes of a batch: one that keeps what it needs for the sum, or two through the same graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.train.clipping import check
from privctl.train.clipping.sinks import Kept, Measured, Measurer, Wanted
from privctl.train.clipping.terms import Squares
from privctl.train.clipping.use import random_states


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A forward pass with ``losses`` (n,), and what its first backward pass ``measured``.

    In both the parameters ``watched`` required a gradient, and had so many ``uses``. ``expected`` is autograd's result,
    for the first batch.
    """

    losses: Tensor
    uses: Mapping[str, int]
    measured: Measurer
    expected: check.Reference | None
    watched: frozenset[str]


def measurer(
    passes: int,
    uses: Mapping[str, int],
    trainable: Mapping[str, nn.Parameter],
    losses: Tensor,
    expected: check.Reference | None,
    wanted: Wanted | None,
) -> Measurer:
    """What the terms of the first of ``passes`` go to; see ``Measured``."""
    if passes == 1:
        return Kept()
    return Measured(
        uses,
        trainable,
        losses.device,
        weights=None if expected is None else expected.weights,
        checked=() if expected is None else check.compared_rows(len(losses)),
        wanted=wanted,
    )


def first_backward(passes: int, losses: Tensor, sources: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """The first backward pass; before a second it leaves the graph, and must not draw what that would draw anew.

    Raises InputError where it does.
    """
    if passes == 1:
        return torch.autograd.grad(losses.sum(), sources, allow_unused=True)
    before = _drawn(losses.device)
    gradients = torch.autograd.grad(losses.sum(), sources, allow_unused=True, retain_graph=True)
    if before != _drawn(losses.device):
        raise InputError(
            "the model draws random numbers in its backward pass, so that a second one would add another gradient than "
            "the first measured; give --clipping-passes 1"
        )
    return gradients


def _drawn(device: torch.device) -> list[bytes]:
    """What changes where random numbers are drawn; it lies in the processor's memory, so nothing is waited for."""
    return [state.numpy().tobytes() for state in random_states(device)]


def require_repeatable(
    passed: Pass, again: Callable[[Measured], None], trainable: Mapping[str, nn.Parameter], *, reduced: bool
) -> None:
    """Raise InputError unless the backward pass of ``passed``, made ``again``, measures the same norms.

    ``reduced`` says that some of the forward pass was in half precision.
    """
    second = Measured(passed.uses, trainable, passed.losses.device)
    again(second)
    with torch.no_grad():
        first = norms_of(passed.measured.squares(), passed.losses)
        check.compare_passes(first, norms_of(second.squares(), passed.losses), reduced=reduced)


def norms_of(squares: Mapping[str, Squares], losses: Tensor) -> Tensor:
    """The norms (n,) float64 of the gradients of all parameters together."""
    nothing = torch.zeros(len(losses), dtype=torch.float64, device=losses.device)
    return torch.stack([nothing, *(each.square for each in squares.values())]).sum(0).sqrt()


def require_losses(losses: Tensor, rows: int | None, run: int) -> None:
    """Raise InputError unless there is a differentiable loss for every ``run`` of the ``rows`` that the model saw."""
    if losses.dim() != 1 or not losses.requires_grad:
        raise InputError(
            f"the losses have shape {tuple(losses.shape)} and {'a' if losses.requires_grad else 'no'} gradient, where "
            "one differentiable loss an example is needed; do not reduce them over the batch"
        )
    if rows is not None and rows != len(losses) * run:
        each = "a row" if run == 1 else f"for {run} rows"
        raise InputError(f"the model saw {rows} rows and {len(losses)} losses came back; return one loss {each}")
