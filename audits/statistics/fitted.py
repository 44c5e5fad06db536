"""The limits of an AUC by a score that is fitted to the labels of the records it judges, and of differences from it.

Errors of cross-fitted scores are correlated, so DeLong's standard error is too small. Relabelling and fitting again
shows the law of the AUC, but only where nothing tells members from non-members. If members are of two kinds, some like
no non-member, the AUC varies more: with 30 groups of members and 300 others, an interval at 95 % by the deviation over
relabellings alone missed the AUC of the fitted score on other records in 39 of 400 data sets, and this one in 21. So
that deviation is multiplied by the ratio of DeLong's standard error to the one that scores have under relabelling, if
DeLong's is larger. What is estimated is the AUC on other records of the score as it was fitted (LeDell, Petersen and
van der Laan 2015).

Without a difference the AUC is skewed to the left, and its mean lies below 1/2: a fold that happens to favour one
direction makes the others favour the opposite one. The limits are therefore quantiles of a gamma distribution with the
mean, the deviation and the skewness over relabellings (Pearson's type III), though never closer than normal ones, as
the AUC of a score that does distinguish the sides is close to normal.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import gammainccinv, gammaincinv, ndtri, stdtrit

from audits.statistics.laws import mean_ranks
from audits.statistics.metrics import auc

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

#: The names of the interval of a difference, and of an AUC.
RELABELLED = "gamma, moments over relabellings"
WIDENED = f"{RELABELLED}, widened if DeLong's is larger"
#: A skewness closer to 0 counts as this, so that the shape of the gamma distribution stays finite.
_LEAST_SKEWNESS = 1e-4


@dataclass(frozen=True, slots=True, kw_only=True)
class NullLaw:
    """The moments of a statistic over ``relabellings``: mean ``center``, ``deviation`` and ``skewness``.

    ``chance`` is the value of what it estimates if nothing distinguishes the sides.
    """

    chance: float
    center: float
    deviation: float
    skewness: float
    relabellings: int

    @classmethod
    def of(cls, values: NDArray[np.float64], chance: float, scale: float = 1.0) -> NullLaw:
        """That of ``values`` over relabellings, without NaN, if their distances from ``chance`` are so much larger."""
        distances = scale * (values[~np.isnan(values)] - chance)
        center, deviation = float(distances.mean()), float(distances.std())
        third = float(((distances - center) ** 3).mean())
        return cls(
            chance=chance,
            center=chance + center,
            deviation=deviation,
            skewness=third / deviation**3 if deviation > 0 else 0.0,
            relabellings=len(distances),
        )

    @property
    def details(self) -> Mapping[str, float]:
        """What the limits follow from, as evidence states it."""
        return {
            "chance": self.chance,
            "center": self.center,
            "deviation": self.deviation,
            "skewness": self.skewness,
            "relabellings": self.relabellings,
        }

    def reaches(self, tail: float) -> tuple[float, float]:
        """How far the limits lie below and above an estimate, in its standard errors, to err with ``tail`` each.

        Moments over few relabellings are uncertain. So the quantiles are larger by the ratio of Student's to the normal
        one, and those of a skewness that is larger by its standard error.
        """
        count, normal = self.relabellings, -float(ndtri(tail))
        uncertain = -float(stdtrit(count - 1, tail)) * math.sqrt(count / (count - 1)) / normal
        off, more = (self.center - self.chance) / self.deviation, math.sqrt(6 / count)
        below = uncertain * _beyond(more + self.skewness, tail) + off
        above = uncertain * _beyond(more - self.skewness, tail) - off
        return max(uncertain * normal, below), max(uncertain * normal, above)


def _beyond(skewness: float, tail: float) -> float:
    """What a gamma variable of mean 0, variance 1 and this ``skewness`` exceeds with probability ``tail``."""
    shape = 4 / max(_LEAST_SKEWNESS, abs(skewness)) ** 2
    if skewness < 0:
        return (shape - float(gammaincinv(shape, tail))) / math.sqrt(shape)
    return (float(gammainccinv(shape, tail)) - shape) / math.sqrt(shape)


def widened(scores: NDArray[Any], member: NDArray[np.bool_], deviation: float) -> float:
    """The standard error of the AUC of fitted ``scores`` [records] with this ``deviation`` over relabellings."""
    members, others = int(member.sum()), int((~member).sum())
    delong = auc(scores[member], scores[~member]).stderr
    fixed = math.sqrt(float(mean_ranks(scores).var(ddof=1)) / (members * others * len(scores)))
    return deviation * max(1.0, delong / fixed) if fixed > 0 and not math.isnan(delong) else deviation


def interval(value: float, stderr: float, confidence: float, law: NullLaw) -> tuple[float, float]:
    """The limits of ``value``, an AUC or a difference of two, with this standard error; the widest ones if it is 0."""
    least = 0.0 if law.chance else -1.0
    if not stderr > 0 or not law.deviation > 0:
        return least, 1.0
    below, above = law.reaches((1 - confidence) / 2)
    return max(least, value - below * stderr), min(1.0, value + above * stderr)
