"""The rule for all other modules, and for those differentiated as a whole: the module is run again, see ``rerun``."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from privctl.train.clipping.rerun import Gradients, RepeatableUse, SeparationPlan
from privctl.train.clipping.terms import CHUNK_BYTES, Dense, GradientTerm, Squares, add_or_take, chunks, squared_lengths
from privctl.train.clipping.use import Inseparable, ModuleCall

#: The inputs of attention whose first dimension is positions if ``batch_first`` is false; masks are not affected.
_POSITIONS_FIRST = ("query", "key", "value")


@dataclass(slots=True)
class ChunkedUse:
    """A use whose gradients are formed in chunks, once to measure and once to add, and never all in memory.

    Each time they are formed for all parameters at once, whichever parameter is asked for.
    """

    rerun: RepeatableUse
    way: SeparationPlan
    _squares: dict[str, Tensor] = field(default_factory=dict)
    _sums: Gradients = field(default_factory=dict)
    _factors: Tensor | None = None

    def squares(self, name: str) -> Tensor:
        """The squared norms (n,) float64 of one parameter's gradients."""
        if not self._squares:
            parts: dict[str, list[Tensor]] = {}
            for rows in self._chunks():
                for parameter, gradients in self.rerun.of_rows(rows, self.way).items():
                    parts.setdefault(parameter, []).append(squared_lengths(gradients.flatten(1)))
            self._squares = {each: torch.cat(squares) for each, squares in parts.items()}
        return self._squares[name]

    def weighted(self, name: str, factors: Tensor) -> Tensor:
        """The sum over examples of factor (n,) times gradient of one parameter; each can be taken only once."""
        if self._factors is not factors or name not in self._sums:
            self._sums, self._factors = {}, factors
            for rows in self._chunks():
                self._add(self.rerun.of_rows(rows, self.way), factors[rows])
        return self._sums.pop(name)

    def _add(self, chunk: Mapping[str, Tensor], factors: Tensor) -> None:
        for name, gradients in chunk.items():
            shape = gradients.shape[1:]
            fresh = name not in self._sums
            total = self._sums.setdefault(name, gradients.new_empty(shape))
            self._sums[name] = Dense(gradients).add_weighted(total, factors, fresh=fresh)

    def _chunks(self) -> list[slice]:
        return list(chunks(self.rerun.count, self.rerun.bytes_each()))


@dataclass(frozen=True, slots=True)
class ChunkedGradient:
    """The gradients of one parameter of a ``ChunkedUse``."""

    whole: ChunkedUse
    name: str

    def example_gradients(self, rows: slice) -> Tensor:
        """The gradients of the examples in ``rows``."""
        return self.whole.rerun.of_rows(rows, self.whole.way)[self.name]

    def squares(self) -> Squares:
        """The squared norms of all gradients."""
        square = self.whole.squares(self.name)
        return Squares(square, torch.zeros_like(square))

    def slack(self) -> Tensor:
        """Zeros (n,): the gradients that are added are formed in the same way as those that were measured."""
        device = self.whole.rerun.use.setting.device
        return torch.zeros(self.whole.rerun.count, dtype=torch.float64, device=device)

    def add_weighted(self, total: Tensor, factors: Tensor, *, fresh: bool = False) -> Tensor:
        """Add the weighted sum to ``total``."""
        return add_or_take(total, self.whole.weighted(self.name, factors), fresh=fresh)


def _altered_parts(module: nn.Module) -> frozenset[str]:
    """The parts whose ``forward`` is replaced for now: what was found while it was that of others may not hold.

    Some activations of transformers replace their own for good.
    """
    return frozenset(name for name, part in module.named_modules() if "forward" in part.__dict__)


def generic(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """The terms of a module about which nothing is known."""
    rerun = RepeatableUse(module, use)
    way = _separation_way(rerun)
    if way is None:
        return {}
    rerun = rerun.by(way)
    values = rerun.values()
    if rerun.count * sum(v.numel() * v.element_size() for v in values.values()) > CHUNK_BYTES:
        whole = ChunkedUse(rerun, way)
        return {name: ChunkedGradient(whole, name) for name in values}
    chunk_gradients = [rerun.of_rows(rows, way) for rows in chunks(rerun.count, rerun.bytes_each())]
    return {name: Dense(torch.cat([chunk[name] for chunk in chunk_gradients])) for name in values}


def _separation_way(rerun: RepeatableUse) -> SeparationPlan | None:
    """How to separate the examples, as found for the first such use; None if no parameter affects the output.

    Batches of one example are remembered separately, as what works for them may not work for others.
    """
    module, use = rerun.module, rerun.use
    key = rerun.signature(), rerun.count > 1, module.training, use.names, _altered_parts(module)
    known: list[SeparationPlan | None] = use.ways.setdefault(key, [])
    for way in known:
        if way is None or rerun.fits(way):
            return way
    known.append(rerun.choose() if rerun.is_used() else None)
    return known[-1]


def attention(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """Torch's MultiheadAttention with batch_first=False, run again with batch_first=True on transposed inputs.

    Raises Inseparable if the second dimension of an input is not the examples.
    """
    assert isinstance(module, nn.MultiheadAttention)
    named: dict[str, Any] = dict(zip(_POSITIONS_FIRST, use.arguments, strict=False)) | dict(use.keywords)
    if any(named[name].dim() != 3 or named[name].shape[1] != use.count for name in _POSITIONS_FIRST):
        raise Inseparable(f"has no second dimension of {use.count}, the examples of its batch; give it one")
    turned = {name: value.transpose(0, 1) if name in _POSITIONS_FIRST else value for name, value in named.items()}
    # Shares the parameters and submodules of ``module``; only the order of dimensions differs.
    examples_first = copy.copy(module)
    examples_first.batch_first = True
    more = use.arguments[len(_POSITIONS_FIRST) :]
    outputs, *weights = use.gradients
    arguments = (*(turned.pop(name) for name in _POSITIONS_FIRST), *more)
    gradients: tuple[Tensor | None, ...] = (None if outputs is None else outputs.transpose(0, 1), *weights)
    return generic(examples_first, replace(use, arguments=arguments, keywords=turned, gradients=gradients))
