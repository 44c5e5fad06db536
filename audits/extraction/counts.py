"""Counts of texts that come out, some undecided because of rounding; or of groups, if coins were tossed for these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.statistics.metrics import clopper_pearson

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class UncertainCount:
    """How many of ``total`` texts are extracted: between ``least`` and ``most``, at best estimate ``extracted``."""

    extracted: int
    least: int
    most: int
    total: int

    @classmethod
    def of(
        cls, extracted: NDArray[np.bool_], undecided: NDArray[np.bool_], units: NDArray[np.int64] | None = None
    ) -> UncertainCount:
        """Count texts [texts] or, with ``units`` [texts], the units of which any text comes out."""
        extracted, least, most = (
            of_units(flags, units) for flags in (extracted, extracted & ~undecided, extracted | undecided)
        )
        return cls(extracted=int(extracted.sum()), least=int(least.sum()), most=int(most.sum()), total=len(extracted))

    def interval(self, alpha: float) -> tuple[float, float]:
        """A confidence interval for the rate that is valid whatever the undecided texts turn out to be."""
        return clopper_pearson(self.least, self.total, alpha)[0], clopper_pearson(self.most, self.total, alpha)[1]


def of_units(values: NDArray[Any], units: NDArray[np.int64] | None) -> NDArray[Any]:
    """The maximum of ``values`` [texts] over each of ``units`` [texts], ordered by unit; ``values`` itself for None."""
    if units is None or not len(values):
        return values
    order = np.argsort(units, kind="stable")
    starts = np.flatnonzero(np.diff(units[order], prepend=units[order][0] - 1))
    return np.asarray(np.maximum.reduceat(values[order], starts))
