"""A drawn split in an extraction audit: which texts share a coin, and which texts are examined, independent of side.

Given the records and the number of members, every assignment of the sides is equally likely. So Fisher's exact test is
exact if what comes out, and which texts are compared, do not depend on the sides. For groups, it counts the groups of
which any text comes out, as the records of a group share a coin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.extraction.alike import digest_of
from audits.extraction.windows import LabelledWindows, WindowSample
from audits.split.drawn import DrawnSplit
from audits.split.premises import split_parameters

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitCoins:
    """The coins of ``split``; sides are numbered as in the audit, members first."""

    split: DrawnSplit

    @property
    def of_groups(self) -> bool:
        """Whether the coins were tossed for groups of records."""
        return self.split.group_by is not None

    def units(self, side: int, lines: NDArray[np.int64]) -> NDArray[np.int64] | None:
        """The number of the coin of each of ``lines`` [texts]; None if each text has its own."""
        if not self.of_groups:
            return None
        return np.array([self.split.coins[side == 0, line] for line in lines.tolist()], dtype=np.int64)

    def parameters(self) -> dict[str, Any]:
        """The parameters of the split for the report."""
        groups = {} if self.split.group_by is None else {"group_by": self.split.group_by}
        return {**split_parameters(self.split), **groups}

    def labelled(self, sides: Sequence[LabelledWindows]) -> list[LabelledWindows]:
        """``sides``, restricted to comparing windows whose side was decided by a single coin.

        If groups were drawn, a window that begins several records may have been decided by several coins, so no
        repeated or shared window is compared.
        """
        if not self.of_groups:
            return list(sides)
        return [replace(side, compared=~side.sample.repeated & ~side.shared) for side in sides]


def drawn_together(samples: Sequence[WindowSample], limit: int | None) -> list[WindowSample]:
    """The ``limit`` windows of least token digest among all ``samples``; all windows if ``limit`` is None."""
    if limit is None:
        return list(samples)
    kept = least([[digest_of(row) for row in one.rows] for one in samples], limit)
    return [
        replace(
            one,
            rows=tuple(one.rows[i] for i in places.tolist()),
            line=one.line[places],
            repeated=one.repeated[places],
        )
        for one, places in zip(samples, kept, strict=True)
    ]


def least(digests: Sequence[Sequence[bytes]], count: int) -> list[NDArray[np.int64]]:
    """The places on each side of those with the ``count`` least of all ``digests``."""
    bar = sorted({digest for side in digests for digest in side})[:count][-1:]
    return [np.flatnonzero([[digest] <= bar for digest in side]) for side in digests]
