"""Counts of texts that come out, some of which rounding leaves open; of groups, where these have the coins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.statistics.metrics import clopper_pearson

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class UncertainCount:
    """Extracted texts of ``total``: at least ``least``, at most ``most``; ``extracted`` is the best estimate."""

    extracted: int
    least: int
    most: int
    total: int

    @classmethod
    def of(
        cls, extracted: NDArray[np.bool_], undecided: NDArray[np.bool_], units: NDArray[np.int64] | None = None
    ) -> UncertainCount:
        """Of texts [texts]; with ``units`` [texts] of what shares a coin, of which any text comes out."""
        extracted, least, most = (
            of_units(flags, units) for flags in (extracted, extracted & ~undecided, extracted | undecided)
        )
        return cls(extracted=int(extracted.sum()), least=int(least.sum()), most=int(most.sum()), total=len(extracted))

    def interval(self, alpha: float) -> tuple[float, float]:
        """An interval of the rate that holds however the undecided texts turn out."""
        return clopper_pearson(self.least, self.total, alpha)[0], clopper_pearson(self.most, self.total, alpha)[1]


def of_units(values: NDArray[Any], units: NDArray[np.int64] | None) -> NDArray[Any]:
    """The largest of ``values`` [texts] of each of ``units`` [texts], in their order; ``values`` itself for None."""
    if units is None or not len(values):
        return values
    order = np.argsort(units, kind="stable")
    starts = np.flatnonzero(np.diff(units[order], prepend=units[order][0] - 1))
    return np.asarray(np.maximum.reduceat(values[order], starts))
