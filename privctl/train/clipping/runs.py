"""Examples of several rows each: what a use of a parameter contributes to the gradient of a run of rows together.

A run is as many rows as all others of its batch, one after another. Its gradient is the sum of its rows', so that what
they have in common, and what cancels between them, counts in its norm. Positions of several rows are positions of one
(linear layers, embeddings), and gradients that are formed add up. Of other terms the rows' gradients are formed, a few
runs at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from privctl.train.clipping.embedding import Lookup
from privctl.train.clipping.linear import Outer
from privctl.train.clipping.terms import (
    Dense,
    GradientTerm,
    Squares,
    by_positions,
    chunk_bytes,
    chunks,
    squared_lengths,
)


@dataclass(slots=True)
class Runs:
    """Runs of ``size`` rows; remembers the factors of the last runs by row, for all parameters of a use."""

    size: int
    _factors: Tensor | None = field(default=None, init=False)
    _by_row: Tensor | None = field(default=None, init=False)

    def of(self, term: GradientTerm) -> GradientTerm:
        """The term of the runs, from that of their rows (n, ...), n being a multiple of the size."""
        match term:
            case Outer():
                return Outer(self._joined(term.inputs), self._joined(term.gradients), term.transposed)
            case Lookup():
                ids = term.ids.reshape(-1, self.size * term.ids.shape[1])
                return Lookup(ids, self._joined(term.gradients), term.vocabulary)
            case Dense():
                return Dense(self.summed(term.gradients))
        return Summed(term, self)

    def summed(self, rows: Tensor) -> Tensor:
        """(n, ...) to (runs, ...)."""
        return rows.reshape(-1, self.size, *rows.shape[1:]).sum(1)

    def rows(self, runs: slice) -> slice:
        """The rows of some runs."""
        return slice(runs.start * self.size, runs.stop * self.size)

    def by_row(self, factors: Tensor) -> Tensor:
        """(runs,) to (n,): the same tensor again for the same factors."""
        if self._by_row is None or self._factors is not factors:
            self._factors, self._by_row = factors, factors.repeat_interleave(self.size)
        return self._by_row

    def _joined(self, values: Tensor) -> Tensor:
        """(n, T, d) to (runs, size T, d)."""
        return by_positions(values).reshape(-1, self.size * values.shape[1], values.shape[-1])


@dataclass(frozen=True, slots=True)
class Summed:
    """Gradients of runs, of a term of which only their rows' are known."""

    term: GradientTerm
    runs: Runs

    def example_gradients(self, rows: slice) -> Tensor:
        """Form the gradients of some runs."""
        return self.runs.summed(self.term.example_gradients(self.runs.rows(rows)))

    def squares(self) -> Squares:
        """Measure all gradients, formed a few runs at a time."""
        slack = self.slack()
        one = self.example_gradients(slice(0, 1))
        parts = [
            squared_lengths(self.example_gradients(rows).flatten(1))
            for rows in chunks(len(slack), 4 * one.numel() * (self.runs.size + 1), chunk_bytes(one))
        ]
        return Squares(torch.cat(parts), slack)

    def slack(self) -> Tensor:
        """Bound what was added, as if nothing cancelled."""
        return self.runs.summed(self.term.slack().sqrt()).square()

    def add_weighted(self, total: Tensor, factors: Tensor, *, fresh: bool = False) -> Tensor:
        """Add the weighted sum to ``total``."""
        return self.term.add_weighted(total, self.runs.by_row(factors), fresh=fresh)
