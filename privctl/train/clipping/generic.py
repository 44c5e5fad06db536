"""Any other module that owns parameters, and any that is taken as a whole with its parts: run again, see ``rerun``."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from privctl.train.clipping.rerun import Gradients, RepeatableUse, Way
from privctl.train.clipping.terms import CHUNK_BYTES, Dense, GradientTerm, Squares, add_or_take, chunks, squared_lengths
from privctl.train.clipping.use import Inseparable, ModuleCall

#: The inputs of attention that have positions first where ``batch_first`` is false; its masks have none.
_TURNED = ("query", "key", "value")


@dataclass(slots=True)
class ChunkedUse:
    """A use whose gradients are never all in memory: formed by chunks, once to measure and once to add.

    Each time they are formed for all parameters at once, whichever parameter is asked for.
    """

    again: RepeatableUse
    way: Way
    _squares: dict[str, Tensor] = field(default_factory=dict)
    _sums: Gradients = field(default_factory=dict)
    _factors: Tensor | None = None

    def squares(self, name: str) -> Tensor:
        """The squared norms (n,) float64 of one parameter's gradients."""
        if not self._squares:
            parts: dict[str, list[Tensor]] = {}
            for rows in self._chunks():
                for each, gradients in self.again.of_rows(rows, self.way).items():
                    parts.setdefault(each, []).append(squared_lengths(gradients.flatten(1)))
            self._squares = {each: torch.cat(squares) for each, squares in parts.items()}
        return self._squares[name]

    def weighted(self, name: str, factors: Tensor) -> Tensor:
        """The sum over examples of factor (n,) times gradient of one parameter; each is handed out once."""
        if self._factors is not factors or name not in self._sums:
            self._sums, self._factors = {}, factors
            for rows in self._chunks():
                self._add(self.again.of_rows(rows, self.way), factors[rows])
        return self._sums.pop(name)

    def _add(self, chunk: Mapping[str, Tensor], factors: Tensor) -> None:
        for name, gradients in chunk.items():
            shape = gradients.shape[1:]
            fresh = name not in self._sums
            total = self._sums.setdefault(name, gradients.new_empty(shape))
            self._sums[name] = Dense(gradients).add_weighted(total, factors, fresh=fresh)

    def _chunks(self) -> list[slice]:
        return list(chunks(self.again.count, self.again.bytes_each()))


@dataclass(frozen=True, slots=True)
class ChunkedGradient:
    """The gradients of one parameter of a ``ChunkedUse``."""

    whole: ChunkedUse
    name: str

    def example_gradients(self, rows: slice) -> Tensor:
        """Form the gradients of some examples."""
        return self.whole.again.of_rows(rows, self.whole.way)[self.name]

    def squares(self) -> Squares:
        """Measure all gradients."""
        square = self.whole.squares(self.name)
        return Squares(square, torch.zeros_like(square))

    def slack(self) -> Tensor:
        """Nothing: the very gradients that are measured are formed again and added."""
        device = self.whole.again.use.setting.device
        return torch.zeros(self.whole.again.count, dtype=torch.float64, device=device)

    def add_weighted(self, total: Tensor, factors: Tensor, *, fresh: bool = False) -> Tensor:
        """Add the weighted sum to ``total``."""
        return add_or_take(total, self.whole.weighted(self.name, factors), fresh=fresh)


def _is_altered(module: nn.Module) -> bool:
    """Whether part of it computes something else for now, of which may not hold what was found of itself."""
    return any("forward" in part.__dict__ for part in module.modules())


def generic(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """The terms of a module about which nothing is known."""
    again = RepeatableUse(module, use)
    way = _way(again)
    if way is None:
        return {}
    values = again.values()
    if again.count * sum(v.numel() * v.element_size() for v in values.values()) > CHUNK_BYTES:
        whole = ChunkedUse(again, way)
        return {name: ChunkedGradient(whole, name) for name in values}
    chunk_gradients = [again.of_rows(rows, way) for rows in chunks(again.count, again.bytes_each())]
    return {name: Dense(torch.cat([chunk[name] for chunk in chunk_gradients])) for name in values}


def _way(again: RepeatableUse) -> Way | None:
    """How to take the examples apart, as found for the first such use; None where its output has no such gradient.

    What holds of a batch of one may not hold of others.
    """
    module, use = again.module, again.use
    key = again.signature(), again.count > 1, module.training, use.names, _is_altered(module)
    known: list[Way | None] = use.ways.setdefault(key, [])
    for way in known:
        if way is None or again.fits(way):
            return way
    known.append(again.choose() if again.is_used() else None)
    return known[-1]


def attention(module: nn.Module, use: ModuleCall) -> dict[str, GradientTerm]:
    """Torch's MultiheadAttention with batch_first=False, run again with its examples first.

    Raises Inseparable where they are not in the second dimension.
    """
    assert isinstance(module, nn.MultiheadAttention)
    named: dict[str, Any] = dict(zip(_TURNED, use.arguments, strict=False)) | dict(use.keywords)
    if any(named[name].dim() != 3 or named[name].shape[1] != use.count for name in _TURNED):
        raise Inseparable(f"has no second dimension of {use.count}, the examples of its batch; give it one")
    turned = {name: value.transpose(0, 1) if name in _TURNED else value for name, value in named.items()}
    # Parameters and parts are those of ``module``; only where it looks for examples differs.
    examples_first = copy.copy(module)
    examples_first.batch_first = True
    more = use.arguments[len(_TURNED) :]
    outputs, *weights = use.gradients
    arguments = (*(turned.pop(name) for name in _TURNED), *more)
    gradients: tuple[Tensor | None, ...] = (None if outputs is None else outputs.transpose(0, 1), *weights)
    return generic(examples_first, replace(use, arguments=arguments, keywords=turned, gradients=gradients))
