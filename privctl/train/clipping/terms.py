"""Terms: what one use of a parameter contributes to each example's gradient of it.

Notation of the package: n examples with T positions each, d input and p output features of a layer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

#: About the most memory that temporary tensors take; how a batch is split into chunks changes only rounding.
CHUNK_BYTES = 64 << 20

#: On a GPU they may take one part in this many of its memory (320 MiB of 80 GiB), for fewer and larger operations.
_CARD_SHARE = 256

#: Tensors up to this size stay in a CPU's cache from one operation to the next.
CACHED_BYTES = 512 << 10


def on_gpu(values: Tensor) -> bool:
    """Whether ``values`` are on a GPU, where launching more operations costs more than cache locality saves."""
    return values.is_cuda


def readable(values: Tensor) -> bool:
    """Whether a number of ``values`` can be read without waiting for a device."""
    return values.device.type == "cpu"


def chunk_bytes(values: Tensor) -> int:
    """The most memory that temporary tensors may take on the device of ``values``; on a GPU, by its total memory."""
    return _of_card(values.device.index) if on_gpu(values) else CHUNK_BYTES


@cache
def _of_card(index: int) -> int:
    return max(CHUNK_BYTES, torch.cuda.get_device_properties(index).total_memory // _CARD_SHARE)


def memory_key(values: Tensor) -> tuple[object, ...]:
    """A key that identifies the data of ``values`` while they are alive: storage, layout and dtype.

    It uses the storage's identity, not the data pointer, so it works for tensors without data in memory estimates.
    """
    return values.untyped_storage()._cdata, values.storage_offset(), values.shape, values.stride(), values.dtype


class Squares(NamedTuple):
    """Squared norms of each example's gradient, (n,) float64, and a bound on the scale of their rounding error.

    ``slack`` is the square of the sum over positions of the norms of what was added: the squared norm if nothing
    cancelled. Rounding moves ``square`` by a small fraction of it. It is 0 if the gradient that is added is itself a
    multiple of the one that was measured.
    """

    square: Tensor
    slack: Tensor


class GradientTerm(Protocol):
    """The part of one parameter's per-example gradients (n, *shape) that comes from one or several of its uses."""

    def example_gradients(self, rows: slice) -> Tensor:
        """The gradients of the examples in ``rows``, (r, *shape)."""

    def squares(self) -> Squares:
        """The squared norms of all n gradients."""

    def slack(self) -> Tensor:
        """The slack defined in ``Squares``, (n,) float64."""

    def add_weighted(self, total: Tensor, factors: Tensor, *, fresh: bool = False) -> Tensor:
        """Add the sum over examples of factor (n,) times gradient to ``total``, which has the parameter's shape.

        ``fresh`` means that ``total`` is uninitialized and is overwritten. Returns the tensor that holds the sum:
        ``total`` or, if that is fresh, possibly another tensor of its shape and dtype.
        """


@dataclass(frozen=True, slots=True)
class Dense:
    """Per-example gradients in full, (n, *shape): for small parameters, and wherever forming them is cheapest."""

    gradients: Tensor

    def example_gradients(self, rows: slice) -> Tensor:
        """The gradients of the examples in ``rows``."""
        return self.gradients[rows]

    def squares(self) -> Squares:
        """The squared norms of all gradients."""
        return dense_squares([self])[0]

    def slack(self) -> Tensor:
        """Zeros (n,): the gradients that are added are the ones that were measured."""
        return torch.zeros(len(self.gradients), dtype=torch.float64, device=self.gradients.device)

    def add_weighted(self, total: Tensor, factors: Tensor, *, fresh: bool = False) -> Tensor:
        """Add the weighted sum to ``total``."""
        weights = factors.to(self.gradients.dtype)
        return add_or_take(total, (weights @ self.gradients.flatten(1)).view(total.shape), fresh=fresh)


def dense_squares(terms: Collection[Dense]) -> list[Squares]:
    """The squares of each of ``terms``, which share operations and their slack."""
    if not terms:
        return []
    lengths = torch.stack([torch.linalg.vector_norm(term.gradients.flatten(1), dim=1) for term in terms])
    squares = lengths.double().square()
    return [Squares(square, slack) for square, slack in zip(squares, torch.zeros_like(squares), strict=True)]


def add_or_take(total: Tensor, values: Tensor, *, fresh: bool) -> Tensor:
    """Add ``values`` to ``total``, or return ``values`` in its place if that is ``fresh``; do not reuse ``values``."""
    if not fresh:
        return total.add_(values)
    if values.dtype == total.dtype and values.is_contiguous() and total.is_contiguous():
        return values
    return total.copy_(values)


def squared_lengths(vectors: Tensor) -> Tensor:
    """The squared norms (n,) float64 of vectors (n, k)."""
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=1)
    return lengths.double().square()


def at_least_float32(values: Tensor) -> Tensor:
    """``values`` in float32, or in their own format if that is more precise."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def chunks(count: int, bytes_each: int, limit: int = CHUNK_BYTES) -> Iterator[slice]:
    """Slices of ``count`` examples, each of at least one, that keep temporary tensors within ``limit`` bytes."""
    size = max(1, limit // max(1, bytes_each))
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def by_positions(values: Tensor) -> Tensor:
    """Flatten (n, ..., d) to (n, T, d), with T = 1 if there are no positions."""
    return values.reshape(len(values), -1, values.shape[-1])
