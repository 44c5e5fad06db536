"""The backward passes of a batch: one that keeps what the sum needs, or two through the same graph."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from privctl.domain.errors import InputError
from privctl.train.clipping import check
from privctl.train.clipping.embedding import bounded
from privctl.train.clipping.promotion import NotSeparatedError
from privctl.train.clipping.sinks import KeepingSink, Measurer, MeasuringSink, RowRequest
from privctl.train.clipping.terms import Squares
from privctl.train.clipping.use import random_states

#: Relative tolerance between the losses of a batch with and without copies of parameters for each example.
_LOSSES_AGREE, _LOSSES_AGREE_REDUCED = 1e-3, 5e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """A forward pass with ``losses`` (n,), and what its first backward pass ``measured``.

    ``uses`` counts the uses of each parameter in the forward pass. The parameters ``watched`` required a gradient.
    ``expected`` is autograd's result, for passes that are compared with it.
    """

    losses: Tensor
    uses: Mapping[str, int]
    measured: Measurer
    expected: check.Reference | None
    watched: frozenset[str]


class NotFiniteError(InputError):
    """The loss or the gradient of some ``rows`` of a batch is not finite."""

    def __init__(self, rows: tuple[int, ...]) -> None:
        super().__init__(
            f"row {rows[0]} of the batch has a loss or gradient that is not finite; "
            "lower the learning rate, or check the model and that row"
        )
        self.rows = rows


def measurer(
    passes: int,
    uses: Mapping[str, int],
    trainable: Mapping[str, nn.Parameter],
    losses: Tensor,
    expected: check.Reference | None,
    wanted: RowRequest | None,
) -> Measurer:
    """The sink for the terms of the first of ``passes`` backward passes; see ``MeasuringSink``."""
    if passes == 1:
        return KeepingSink()
    return MeasuringSink(
        uses,
        trainable,
        losses.device,
        weights=None if expected is None else expected.weights,
        checked=() if expected is None else check.compared_rows(len(losses)),
        wanted=wanted,
    )


def first_backward(passes: int, losses: Tensor, sources: Sequence[Tensor]) -> tuple[Tensor | None, ...]:
    """Run the first backward pass; if a second follows, the graph is retained.

    Raises InputError if the pass draws random numbers, which the second would draw anew.
    """
    if passes == 1:
        return torch.autograd.grad(losses.sum(), sources, allow_unused=True)
    before = _random_bytes(losses.device)
    gradients = torch.autograd.grad(losses.sum(), sources, allow_unused=True, retain_graph=True)
    if before != _random_bytes(losses.device):
        raise InputError(
            "the model draws random numbers in its backward pass, so that a second one would add another gradient than "
            "the first measured; give --clipping-passes 1"
        )
    return gradients


def _random_bytes(device: torch.device) -> list[bytes]:
    """The random states as bytes, to detect draws; they are in host memory, so reading them waits for no device."""
    return [state.numpy().tobytes() for state in random_states(device)]


def require_repeatable(
    passed: Pass, repeat: Callable[[MeasuringSink], None], trainable: Mapping[str, nn.Parameter], *, reduced: bool
) -> None:
    """Raise InputError unless repeating the backward pass of ``passed`` with ``repeat`` measures the same norms.

    ``reduced`` means that part of the forward pass was in half precision.
    """
    second = MeasuringSink(passed.uses, trainable, passed.losses.device)
    repeat(second)
    with torch.no_grad():
        first = norms_of(passed.measured.squares(), passed.losses)
        check.compare_passes(first, norms_of(second.squares(), passed.losses), reduced=reduced)


def norms_of(squares: Mapping[str, Squares], losses: Tensor) -> Tensor:
    """The norms (n,) float64 of the examples' gradients over all parameters."""
    nothing = torch.zeros(len(losses), dtype=torch.float64, device=losses.device)
    return torch.stack([nothing, *(square.square for square in squares.values())]).sum(0).sqrt()


def finite_norms(squares: Mapping[str, Squares], losses: Tensor, *, check_finite: bool = True) -> Tensor:
    """The same; with ``check_finite``, raises NotFiniteError for rows whose loss or norm is not finite."""
    norms = norms_of(squares, losses)
    if check_finite:
        sound = torch.isfinite(norms) & torch.isfinite(losses.detach())
        if not sound.all():
            raise NotFiniteError(tuple((~sound).nonzero().flatten().tolist()))
    return norms


@contextmanager
def gradients_only_for(trainable: Mapping[str, nn.Parameter], names: Collection[str]) -> Iterator[None]:
    """Inside, only the parameters ``names`` of the ``trainable`` ones require a gradient."""
    try:
        for name, parameter in trainable.items():
            parameter.requires_grad_(name in names)
        yield
    finally:
        for parameter in trainable.values():
            parameter.requires_grad_(True)


@contextmanager
def gradients_set_aside(trainable: Mapping[str, nn.Parameter]) -> Iterator[None]:
    """Inside, no parameter has a gradient; afterwards each has the one it had, whatever was computed inside.

    A loss may need a backward pass of its own, as for adversarial inputs. What that accumulates in parameters is not
    clipped.
    """
    before = [parameter.grad for parameter in trainable.values()]
    for parameter in trainable.values():
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in zip(trainable.values(), before, strict=True):
            parameter.grad = gradient


def saved_with(model: nn.Module) -> dict[str, Tensor]:
    """The weights and buffers that ``model`` is saved with, by name, as far as torch counts writes to them.

    Look-ups with a ``max_norm`` count as writes, but see ``bound_rows``.
    """
    projected = {id(module.weight) for module in bounded(model)}
    tensors = {name: each for name, each in model.state_dict(keep_vars=True).items() if isinstance(each, Tensor)}
    return {name: each for name, each in tensors.items() if id(each) not in projected and not each.is_inference()}


@contextmanager
def writing_nothing(saved: Mapping[str, Tensor]) -> Iterator[None]:
    """Raise InputError where a forward pass inside writes to a tensor of those ``saved`` with the model, by name."""
    before = {name: tensor._version for name, tensor in saved.items()}
    yield
    changed = next((name for name, tensor in saved.items() if tensor._version != before[name]), None)
    if changed is not None:
        raise InputError(
            f"the forward pass wrote to {changed!r}, which is released with the model, and so reveals examples without "
            "noise; change weights and saved buffers by steps of the optimizer only"
        )


def require_losses(losses: Tensor, rows: int | None, run: int) -> None:
    """Raise InputError unless there is one differentiable loss per ``run`` rows, of the ``rows`` that the model saw."""
    if not isinstance(losses, Tensor):
        raise InputError(
            f"the function of losses returned a {type(losses).__name__}, where one loss for each example is needed, in "
            "a tensor of shape (n,)"
        )
    if losses.dim() != 1:
        raise InputError(
            f"the losses have shape {tuple(losses.shape)}, where one loss for each example is needed, of shape (n,); "
            "do not reduce them over the batch (reduction='none')"
        )
    if not losses.requires_grad:
        raise InputError("the losses have no gradient; compute them from the model's output, outside torch.no_grad()")
    if rows is None:
        raise InputError(
            "the model was not run inside the function that returns the losses, where each example's gradient is "
            "taken; run it there, not before"
        )
    if rows != len(losses) * run:
        extent = "a row" if run == 1 else f"for {run} rows"
        raise InputError(
            f"the model saw {rows} rows and {len(losses)} losses came back; return one loss {extent}, and give the "
            "model inputs whose first dimension is the batch"
        )


def require_equal_losses(
    model: nn.Module, copied: Sequence[str], losses: Tensor, losses_of: Callable[[], Tensor], *, reduced: bool
) -> None:
    """Raise NotSeparatedError unless ``losses`` (n,), with copies of the modules ``copied``'s parameters, are right.

    ``losses_of`` computes them without copies. ``reduced`` means that part of the forward pass was in half precision.
    """
    with torch.no_grad():
        expected = losses_of()
        tolerance = _LOSSES_AGREE_REDUCED if reduced else _LOSSES_AGREE
        if expected.shape != losses.shape or float((losses - expected).norm()) > tolerance * float(expected.norm()):
            fault = "gives other losses with a copy of its parameters for each example"
            raise NotSeparatedError(model, dict.fromkeys(copied, fault))
