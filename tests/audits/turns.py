"""Several processes in one: each one's share is computed in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from privctl.parallel import Workers


@dataclass(frozen=True, slots=True)
class Turns(Workers):
    """Shares what is spread as ``size`` processes would, here; ``shares`` has the number of items each process had."""

    size: int = 3
    shares: list[list[int]] = field(default_factory=list)

    def spread(
        self,
        items: Sequence[Any],
        compute: Callable[[Any], Tensor],
        width: int,
        dtype: torch.dtype = torch.float64,
    ) -> list[Tensor]:
        found: dict[int, Tensor] = {}
        for rank in range(self.size):
            found |= {i: compute(items[i]) for i in range(rank, len(items), self.size)}
        self.shares.append([len(items[rank :: self.size]) for rank in range(self.size)])
        rows = [found[i] for i in range(len(items))]
        assert all(row.shape[1:] == (width,) and row.dtype == dtype for row in rows)
        return rows
