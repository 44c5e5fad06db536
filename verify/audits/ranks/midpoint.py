"""Recounts the decisions of the attack ``midpoint`` from the ranks of the losses and the number of records it called.

The halves that were judged are drawn again by numpy's generator under the seed that the audit states. The threshold, in
nats, is not kept: the audit keeps how many records lie beyond it. For an older audit, which did not, the counts must be
those of some threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.evidence import Evidence
from verify.audits.midpoint import METHOD
from verify.audits.ranks.relabelled import Relabelled, joined_p_value

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The attack with the same scores, and the fewest records of a side of which a half can be judged by the other.
_LOSS, _LEAST = "loss", 2
#: The array with the number of records that the attack called members.
CALLED = "midpoint.called"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedHalves:
    """``ranks`` [records] of the scores of the attack ``loss``, ``member`` [records], and the number ``called``.

    ``called`` is None if the audit did not keep it. ``same`` is whether this numpy is the version the audit used.
    """

    ranks: NDArray[np.float64]
    member: NDArray[np.bool_]
    called: int | None
    relabelled: Relabelled | None
    same: bool

    def faults(self, item: Evidence) -> Iterator[str]:
        """Yields one sentence per fault of a figure of ``midpoint``; another check notices that one is incomplete."""
        if not {"true_positives", "false_positives", "seed"} <= item.details.keys():
            return
        stated = tuple(int(item.details[f"{side}_positives"]) for side in ("true", "false"))
        judged = self._judged(int(item.details["seed"]))
        if self.called is None:
            cuts = (*np.unique(self.ranks).tolist(), -math.inf)
            possible = {tuple(int((half > cut).sum()) for half in judged) for cut in cuts}
            if self.same and stated not in possible:
                yield f"no threshold calls {stated[0]} of the members and {stated[1]} of the others judged members"
            return
        least = len(self.ranks) - self.called
        if int((self.ranks > least).sum()) != self.called:
            yield f"no threshold calls {self.called} of the records members"
            return
        found = tuple(int((half > least).sum()) for half in judged)
        if self.same and stated != found:
            yield (
                f"it calls {stated[0]} of the members and {stated[1]} of the others judged members, but the ranks kept "
                f"give {found[0]} and {found[1]}"
            )
        yield from self._test_faults(item, (found[0] / len(judged[0]), found[1] / len(judged[1])), judged)

    def _judged(self, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The ranks of the members and of the others that were judged, not used to set the threshold."""
        random = np.random.default_rng(seed)
        sides = (self.ranks[self.member], self.ranks[~self.member])
        first, second = (side[random.permutation(len(side))][len(side) // 2 :] for side in sides)
        return first, second

    def _test_faults(
        self, item: Evidence, rates: tuple[float, float], judged: tuple[NDArray[np.float64], NDArray[np.float64]]
    ) -> Iterator[str]:
        """Yields a sentence if the p-value is not that of the difference of the ``rates``, in standard errors."""
        test = item.test
        if test is None or self.relabelled is None or not self.same or not 0 < test.level < 1:
            return
        (hits, errors), (members, others) = rates, (len(judged[0]), len(judged[1]))
        joined = (hits * members + errors * others) / (members + others)
        deviation = math.sqrt(joined * (1 - joined) * (1 / members + 1 / others))
        statistic = (hits - errors) / deviation if deviation > 0 else 0.0
        least, most = joined_p_value(self.relabelled, test, statistic, {METHOD})
        if not least <= test.p_value <= most:
            yield f"its p-value is {test.p_value:.4g}, but relabelling the ranks gives {least:.4g} to {most:.4g}"


def halves_of(
    scores: Mapping[str, NDArray[np.float64]],
    member: NDArray[np.bool_],
    kept: Mapping[str, NDArray[Any]],
    relabelled: Relabelled | None,
    *,
    same: bool,
) -> JudgedHalves | None:
    """What the attack was judged on, from the ranks by attack and the array ``kept`` of it; None without its ranks."""
    ranks = scores.get(_LOSS)
    if ranks is None or np.isnan(ranks).any() or min(int(member.sum()), int((~member).sum())) < _LEAST:
        return None
    called = int(kept[CALLED][0]) if CALLED in kept and kept[CALLED].size == 1 else None
    return JudgedHalves(ranks=ranks, member=member, called=called, relabelled=relabelled, same=same)
