"""Batches of a batch's shorter records alone, which are padded less far."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median_low
from typing import NamedTuple

import torch
from torch import Tensor

#: What losses in batches of several widths may differ by, relative to a loss and to the mean.
_TOLERANCE = 1e-2

FAULT = (
    "losses of rows change with how far the batch is padded, and so with its longest record, so that one record "
    "changes what several add to the sum; leave padding out of means and states by a mask or by packed sequences, or "
    "pad every batch to one length"
)


class Shorter(NamedTuple):
    """The rows ``kept`` of a batch, and pairs of a tensor of the batch and the same of these rows alone."""

    kept: list[int]
    pairs: list[tuple[Tensor, Tensor]]


def shorter_alone(collated: Callable[[Sequence[int]], Sequence[Tensor]], count: int) -> Shorter | None:
    """The shorter records of a batch of ``count``, where alone they have the same rows but for less padding.

    ``collated`` gives the tensors of the records at these places that have a row for each. None where all records are
    equally long, and where the rows alone are in another order or differ in more than the padding.
    """
    widths = [sum(tensor[0].numel() for tensor in collated([place])) for place in range(count)]
    limit = min(median_low(widths), max(widths) - 1)
    kept = [place for place, width in enumerate(widths) if width <= limit]
    if not kept:
        return None
    pairs = list(zip(collated(range(count)), collated(kept), strict=True))
    same = all(_is_cut(whole[kept], part) for whole, part in pairs)
    return Shorter(kept, pairs) if same and any(w.shape[1:] != p.shape[1:] for w, p in pairs) else None


def has_same(kept: list[int], losses: Tensor, alone: Tensor) -> bool:
    """Whether the losses of the ``kept`` rows ``alone`` are those in a batch that is padded further."""
    if len(alone) != len(kept):
        return True  # nothing to compare
    allowed = _TOLERANCE * (losses.abs() + losses.abs().mean())
    return bool(((losses[kept] - alone).abs() <= allowed[kept]).all())


def _is_cut(rows: Tensor, cut: Tensor) -> bool:
    """Whether ``cut`` is ``rows`` without some positions at the end, or at the beginning, of the second dimension."""
    if rows.dim() != cut.dim() or len(rows) != len(cut) or rows.shape[2:] != cut.shape[2:]:
        return False
    if rows.dim() == 1:
        return torch.equal(rows, cut)
    width = cut.shape[1]
    return torch.equal(rows[:, :width], cut) or torch.equal(rows[:, rows.shape[1] - width :], cut)
