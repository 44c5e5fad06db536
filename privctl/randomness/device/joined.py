"""Stretches of many tensors in one buffer: one launch draws the noise of all, each from its own keystream."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from privctl.randomness.device.engine import TILE, ElementRange


def tiles_of(stretches: Sequence[ElementRange], device: torch.device) -> Tensor:
    """The tiles (k, 5) int64 of non-empty ``stretches`` that are concatenated in a buffer.

    The columns are the tensor, the number of the tile in it, the buffer index of the tile's first element (negative or
    in another stretch if the stretch begins within the tile), and the buffer indices where the stretch begins and ends.
    """
    rows, begin = [], 0
    for stretch in stretches:
        end = begin + stretch.count
        numbers = torch.arange(stretch.offset // TILE, -(-(stretch.offset + stretch.count) // TILE))
        row = torch.empty(len(numbers), 5, dtype=torch.int64)
        row[:, 0], row[:, 1], row[:, 3], row[:, 4] = stretch.tensor, numbers, begin, end
        row[:, 2] = numbers * TILE - stretch.offset + begin
        rows.append(row)
        begin = end
    return torch.cat(rows).to(device)
