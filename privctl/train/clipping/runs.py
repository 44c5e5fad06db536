"""Examples of several rows each, such as users: the terms of runs of consecutive rows, from the terms of rows.

All runs of a batch have the same number of rows. A run's gradient is the sum of its rows' gradients, and its norm is
that of the sum. For linear layers and embeddings the rows' positions are concatenated, and gradients that are formed
are added. For other terms the rows' gradients are formed, a few runs at a time.
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
    """Runs of ``size`` rows; caches the last factors by row, which all parameters of a use share."""

    size: int
    _factors: Tensor | None = field(default=None, init=False)
    _by_row: Tensor | None = field(default=None, init=False)

    def of(self, term: GradientTerm) -> GradientTerm:
        """The term of the runs, from that of their rows (n, ...), where n is a multiple of ``size``."""
        match term:
            case Outer():
                return Outer(self._concatenated(term.inputs), self._concatenated(term.gradients), term.transposed)
            case Lookup():
                ids = term.ids.reshape(-1, self.size * term.ids.shape[1])
                return Lookup(ids, self._concatenated(term.gradients), term.vocabulary)
            case Dense():
                return Dense(self.summed(term.gradients))
        return Summed(term, self)

    def summed(self, rows: Tensor) -> Tensor:
        """Sum (n, ...) over the rows of each run: (runs, ...)."""
        return rows.reshape(-1, self.size, *rows.shape[1:]).sum(1)

    def rows(self, runs: slice) -> slice:
        """The rows of some runs."""
        return slice(runs.start * self.size, runs.stop * self.size)

    def by_row(self, factors: Tensor) -> Tensor:
        """Repeat factors (runs,) for each row (n,); the same tensor is returned for the same factors."""
        if self._by_row is None or self._factors is not factors:
            self._factors, self._by_row = factors, factors.repeat_interleave(self.size)
        return self._by_row

    def _concatenated(self, values: Tensor) -> Tensor:
        """Concatenate the positions of a run's rows: (n, T, d) to (runs, size T, d)."""
        return by_positions(values).reshape(-1, self.size * values.shape[1], values.shape[-1])


@dataclass(frozen=True, slots=True)
class Summed:
    """Gradients of runs for a term that gives only the gradients of rows."""

    term: GradientTerm
    runs: Runs

    def example_gradients(self, rows: slice) -> Tensor:
        """The gradients of the runs in ``rows``."""
        return self.runs.summed(self.term.example_gradients(self.runs.rows(rows)))

    def squares(self) -> Squares:
        """The squared norms of all gradients, formed a few runs at a time."""
        slack = self.slack()
        one = self.example_gradients(slice(0, 1))
        parts = [
            squared_lengths(self.example_gradients(rows).flatten(1))
            for rows in chunks(len(slack), 4 * one.numel() * (self.runs.size + 1), chunk_bytes(one))
        ]
        return Squares(torch.cat(parts), slack)

    def slack(self) -> Tensor:
        """The squared norms (n,) float64 if nothing cancelled; see ``Squares``."""
        return self.runs.summed(self.term.slack().sqrt()).square()

    def add_weighted(self, total: Tensor, factors: Tensor, *, fresh: bool = False) -> Tensor:
        """Add the weighted sum to ``total``."""
        return self.term.add_weighted(total, self.runs.by_row(factors), fresh=fresh)
