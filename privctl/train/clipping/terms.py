"""What one use of a parameter contributes to each example's gradient of it.

Notation of the package: n examples, T positions of each, d input and p output features of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

#: Temporary tensors take about this much memory at most; how a batch is cut changes only rounding.
CHUNK_BYTES = 64 << 20

#: The share of a card's memory that they may take: 320 MiB of 80 GiB, in fewer and larger operations.
_CARD_SHARE = 256

#: Of this size they stay in a processor's cache from one operation to the next.
CACHED_BYTES = 512 << 10


def on_gpu(values: Tensor) -> bool:
    """Whether ``values`` lie where starting an operation costs more than what a processor's cache saves."""
    return values.is_cuda


def chunk_bytes(values: Tensor) -> int:
    """How much memory temporary tensors may take at most where ``values`` lie: on a GPU, by the memory of the card."""
    return _of_card(values.device.index) if on_gpu(values) else CHUNK_BYTES


@cache
def _of_card(index: int) -> int:
    return max(CHUNK_BYTES, torch.cuda.get_device_properties(index).total_memory // _CARD_SHARE)


def place_of(values: Tensor) -> tuple[object, ...]:
    """What tells the numbers of ``values`` from others that are held at the same time: memory, layout and format.

    The memory is named by its storage, which tensors without numbers, as in estimates of memory, have too.
    """
    return values.untyped_storage()._cdata, values.storage_offset(), values.shape, values.stride(), values.dtype


class Squares(NamedTuple):
    """Squared norms of each example's gradient, (n,) float64, and how far rounding may have moved them.

    ``slack`` is the square of the sum over positions of the sizes of what was added: the gradient at its longest, had
    nothing cancelled. Rounding moves ``square`` by a small share of it. It is 0 where the gradient that is released is
    itself a multiple of the one that was measured.
    """

    square: Tensor
    slack: Tensor


class GradientTerm(Protocol):
    """One or several uses' part of the per-example gradients (n, *shape) of one parameter."""

    def example_gradients(self, rows: slice) -> Tensor:
        """The gradients of the examples in ``rows``, (r, *shape)."""

    def squares(self) -> Squares:
        """The squared norms of all n gradients."""

    def slack(self) -> Tensor:
        """The slack that ``Squares`` describes, (n,) float64."""

    def add_weighted(self, total: Tensor, factors: Tensor, *, fresh: bool = False) -> Tensor:
        """Add the sum over examples of factor (n,) times gradient to ``total``, of the parameter's shape.

        ``fresh`` says that ``total`` holds nothing yet, not even zeros, which saves filling and reading. Returns the
        tensor that holds the sum: ``total``, or where that is fresh another of its shape and type in its place.
        """


@dataclass(frozen=True, slots=True)
class Dense:
    """Per-example gradients as they are, (n, *shape): for small parameters, and where they are the cheapest."""

    gradients: Tensor

    def example_gradients(self, rows: slice) -> Tensor:
        """Form the gradients of some examples."""
        return self.gradients[rows]

    def squares(self) -> Squares:
        """Measure all gradients."""
        square = squared_lengths(self.gradients.flatten(1))
        return Squares(square, torch.zeros_like(square))

    def slack(self) -> Tensor:
        """Bound what was added, as if nothing cancelled."""
        return torch.zeros(len(self.gradients), dtype=torch.float64, device=self.gradients.device)

    def add_weighted(self, total: Tensor, factors: Tensor, *, fresh: bool = False) -> Tensor:
        """Add the weighted sum to ``total``."""
        weights = factors.to(self.gradients.dtype)
        return add_or_take(total, (weights @ self.gradients.flatten(1)).view(total.shape), fresh=fresh)


def add_or_take(total: Tensor, values: Tensor, *, fresh: bool) -> Tensor:
    """Add ``values``, which nobody else reads, to ``total``, or take them for it where it is ``fresh``."""
    if not fresh:
        return total.add_(values)
    if values.dtype == total.dtype and values.is_contiguous() and total.is_contiguous():
        return values
    return total.copy_(values)


def squared_lengths(vectors: Tensor) -> Tensor:
    """(n, k) to (n,) float64."""
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=1)
    return lengths.double().square()


def chunks(count: int, bytes_each: int, limit: int = CHUNK_BYTES) -> Iterator[slice]:
    """Cuts of ``count`` examples, one or more at a time, that keep temporary tensors within ``limit`` bytes."""
    size = max(1, limit // max(1, bytes_each))
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def by_positions(values: Tensor) -> Tensor:
    """(n, ..., d) as (n, T, d); T is 1 where there are no positions."""
    return values.reshape(len(values), -1, values.shape[-1])
