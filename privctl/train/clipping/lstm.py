"""One direction of one layer of an LSTM with its backward pass through time, for the gradients of the gates.

The products with the inputs of all steps are one product, and so are the derivatives of all gates: the loops over the
steps hold only what depends on the step before (Hochreiter and Schmidhuber 1997; torch's documentation of ``LSTM``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

#: The gates in the order of torch's weights: input, forget, candidate, output.
_GATES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LstmDirection:
    """The ``weights`` of a direction, detached, and which steps are ``present`` (n, T, 1); None if all are."""

    weights: Mapping[str, Tensor]
    present: Tensor | None
    backwards: bool

    def order(self, steps: int) -> range:
        """The steps as they are run."""
        return range(steps - 1, -1, -1) if self.backwards else range(steps)

    def before(self, first: Tensor, values: Tensor) -> Tensor:
        """The values (n, T, k) before each step, from those after it and those (n, k) before the first."""
        joined = (values[:, 1:], first[:, None]) if self.backwards else (first[:, None], values[:, :-1])
        return torch.cat(joined, 1)


class LstmSteps(NamedTuple):
    """What a direction gives: outputs (n, T, p), the last states, and what enters each step and each projection.

    ``before`` (n, T, p) are the hidden states before each step, ``unprojected`` (n, T, h) those after it.
    """

    outputs: Tensor
    hidden: Tensor
    cell: Tensor
    before: Tensor
    unprojected: Tensor


class _Run(torch.autograd.Function):
    """The backward pass gives ``from_inputs`` and ``projected`` the gradients of what they would be added to."""

    @staticmethod
    def forward(
        ctx: Any,
        direction: LstmDirection,
        inputs: Tensor,
        from_inputs: Tensor,
        projected: Tensor,
        known: Tensor | None,
        hidden: Tensor,
        cell: Tensor,
    ) -> tuple[Tensor, ...]:
        """See ``run_lstm``."""
        weights, width, shape = direction.weights, cell.shape[-1], inputs.shape[:2]
        first = hidden, cell
        offset = weights["bias_ih"] + weights["bias_hh"] if "bias_ih" in weights else None
        gates = functional.linear(inputs, weights["weight_ih"], offset)
        if known is not None:
            before = direction.before(hidden, known)
            cells = _cells(direction, gates, before, cell)
            ctx.direction = direction
            ctx.save_for_backward(gates, cells.tanh(), direction.before(cell, cells))
            ctx.mark_non_differentiable(before)
            last = direction.order(shape[1])[-1]
            return known.clone(), known[:, last].clone(), cells[:, last].clone(), before, before[:0]
        cells, activated = gates.new_empty(*shape, width), gates.new_empty(*shape, width)
        outputs = gates.new_empty(*shape, hidden.shape[-1])
        unprojected = torch.empty_like(cells) if "weight_hr" in weights else outputs
        recurrent = weights["weight_hh"].mT
        present = None if direction.present is None else direction.present.unbind(1)
        parts = (gates, gates[..., : 2 * width], *gates.chunk(_GATES, 2), cells, activated, unprojected, outputs)
        by_step = list(zip(*(each.unbind(1) for each in parts), strict=True))  # as making a view takes as long as a sum
        for step in direction.order(shape[1]):
            gate, both, entering, forget, candidate, leaving, new_cell, new_activated, new, output = by_step[step]
            gate.addmm_(hidden, recurrent)
            both.sigmoid_()
            torch.addcmul(forget * cell, entering, candidate.tanh_(), out=new_cell)
            torch.mul(leaving.sigmoid_(), torch.tanh(new_cell, out=new_activated), out=new)
            if "weight_hr" in weights:
                torch.mm(new, weights["weight_hr"].mT, out=output)
            if present is not None:
                output.copy_(torch.where(present[step], output, hidden))
                new_cell.copy_(torch.where(present[step], new_cell, cell))
            hidden, cell = output, new_cell
        ctx.direction = direction
        ctx.save_for_backward(gates, activated, direction.before(first[1], cells))
        before = direction.before(first[0], outputs)
        unprojected = unprojected if "weight_hr" in weights else unprojected.new_empty(0)
        ctx.mark_non_differentiable(before, unprojected)
        return outputs, hidden.clone(), cell.clone(), before, unprojected

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Run backwards through time."""
        of_outputs, of_hidden, of_cell = gradients[:3]
        direction: LstmDirection = ctx.direction
        weights = direction.weights
        gates, activated, cells_before = ctx.saved_tensors
        forgets = gates.chunk(_GATES, 2)[1].unbind(1)
        through = _through_output(gates, activated).unbind(1)
        of_gates = _slopes(gates, activated, cells_before)  # becomes the gradients, step by step
        slopes = of_gates.view(*of_gates.shape[:2], _GATES, -1)
        of_cells, of_leaving = slopes[:, :, :-1].unbind(1), slopes[:, :, -1].unbind(1)
        of_projected = torch.empty_like(of_outputs) if "weight_hr" in weights else None
        present = None if direction.present is None else direction.present.unbind(1)
        arriving, own = of_outputs.unbind(1), of_gates.unbind(1)
        of_hidden = of_hidden + arriving[direction.order(len(own))[-1]]
        order = list(reversed(direction.order(len(own))))
        for step, earlier in zip(order, [*order[1:], None], strict=True):
            kept = None
            if present is not None:
                kept = [torch.where(present[step], 0, of) for of in (of_hidden, of_cell)]
                of_hidden, of_cell = (torch.where(present[step], of, 0) for of in (of_hidden, of_cell))
            if of_projected is not None:
                of_projected[:, step] = of_hidden
                of_hidden = of_hidden @ weights["weight_hr"]
            of_cell = torch.addcmul(of_cell, of_hidden, through[step])
            of_cells[step].mul_(of_cell[:, None])
            of_leaving[step].mul_(of_hidden)
            of_cell = of_cell * forgets[step]
            if earlier is not None:
                of_hidden = torch.addmm(arriving[earlier], own[step], weights["weight_hh"])
            if kept is not None:
                of_hidden, of_cell = of_hidden + kept[0], of_cell + kept[1]
        of_inputs = of_gates @ weights["weight_ih"] if ctx.needs_input_grad[1] else None
        return None, of_inputs, of_gates, of_projected, None, None, None


def _cells(direction: LstmDirection, gates: Tensor, before: Tensor, cell: Tensor) -> Tensor:
    """The cells after each step, (n, T, h), where the states before it are known; ``gates`` become activated.

    They enter with what the inputs contribute to them.
    """
    width = cell.shape[-1]
    gates.flatten(0, 1).addmm_(before.flatten(0, 1), direction.weights["weight_hh"].mT)
    gates[..., : 2 * width].sigmoid_()
    entering, forget, candidate, output = gates.chunk(_GATES, 2)
    candidate.tanh_()
    output.sigmoid_()
    cells = entering * candidate
    for_step, forgets = cells.unbind(1), forget.unbind(1)
    for step in direction.order(gates.shape[1]):
        cell = for_step[step].addcmul_(forgets[step], cell)
    return cells


def _through_output(gates: Tensor, activated: Tensor) -> Tensor:
    """The derivatives (n, T, h) of the hidden states by the cells."""
    output = gates.chunk(_GATES, 2)[3]
    return torch.addcmul(output, output * activated, activated, value=-1)


def _slopes(gates: Tensor, activated: Tensor, cells_before: Tensor) -> Tensor:
    """The derivatives (n, T, 4 h) by the gates before their activation: three of the cells, the last of the outputs."""
    entering, _, candidate, _ = gates.chunk(_GATES, 2)
    slopes = torch.addcmul(gates, gates, gates, value=-1)  # of sigmoids
    of_entering, of_forget, of_candidate, of_output = slopes.chunk(_GATES, 2)
    of_entering.mul_(candidate)
    of_forget.mul_(cells_before)
    torch.addcmul(entering, entering * candidate, candidate, value=-1, out=of_candidate)
    of_output.mul_(activated)
    return slopes


_RUN: Callable[..., tuple[Tensor, ...]] = _Run.apply


def run_lstm(
    direction: LstmDirection,
    inputs: Tensor,
    from_inputs: Tensor,
    projected: Tensor,
    states: tuple[Tensor, ...],
    known: Tensor | None = None,
) -> LstmSteps:
    """Run over ``inputs`` (n, T, d) from initial ``states``, the hidden one (n, p) and that of the cell (n, h).

    ``from_inputs`` (n, T, 4 h) and ``projected`` (n, T, p) are zeros. The backward pass gives them the gradients of the
    gates before their activation, and of the outputs of the projection, if there is one. If the outputs are ``known``,
    no step is left out and none is projected, the gates of all steps are computed at once.
    """
    return LstmSteps(*_RUN(direction, inputs, from_inputs, projected, known, *states))
