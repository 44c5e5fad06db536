"""One permutation test over all attacks of whether any beats chance; see ``audits.statistics.max_t``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from audits.statistics.max_t import MaxT, Statistics, max_t
from audits.statistics.power import detectable_area_beyond
from privctl.domain.evidence import Evidence, JointTest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def with_joint_test(
    evidence: Mapping[str, Sequence[Evidence]],
    statistics: Mapping[str, Statistics],
    member: NDArray[np.bool_],
    seed: int,
    level: float,
) -> tuple[Evidence, ...]:
    """All ``evidence`` by attack; the first item of each attack gets the ``JointTest`` at ``level``.

    ``statistics`` are those of each attack, ``member`` [records] the true labels, and ``seed`` a seed derived from the
    records.
    """
    if not evidence:
        return ()
    test = max_t(statistics, member, seed, level)
    joined: list[Evidence] = []
    for name, (first, *others) in evidence.items():
        joined += [replace(first, test=_test(first, name, test, level)), *others]
    return tuple(joined)


def _test(first: Evidence, name: str, test: MaxT, level: float) -> JointTest:
    reachable = math.isfinite(test.critical)
    least = math.nan
    if reachable and ("detectable" in first.details or "deviation" in first.details):
        least = detectable_area_beyond(
            test.critical,
            first.samples["members"],
            first.samples["nonmembers"],
            deviation=first.details.get("deviation"),
        )
    return JointTest(
        p_value=test.p_values[name],
        level=level,
        compared=len(test.p_values),
        relabellings=test.relabellings,
        critical=test.critical if reachable else None,
        detectable=None if math.isnan(least) else least,
    )
