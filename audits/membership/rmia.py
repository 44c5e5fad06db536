"""The robust attack (Zarifzadeh, Liu and Shokri 2024, arXiv 2312.03262), with shadow models.

Does the target favour a record more than other records of the population? ratio(x) = Pr(x | target) / Pr(x), with Pr(x)
estimated from shadow models; the score is the fraction of the population whose ratio, times ``GAMMA``, does not exceed
the record's. For one target model, the score is a monotone function of the ratio: the population turns it into
something like a false positive rate, but adds no evidence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.attack import Candidates, ScoreAttack, Settings, Shadows
from audits.membership.lira import why_not_offline, why_not_online
from audits.statistics.laws import mean_ranks

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: At 1, distinct ratios stay distinct. A mean over tokens varies so little that few ratios differ by the paper's factor
#: 2.
GAMMA = 1.0
#: Candidate slopes for the gain of a record from being trained on; 1 assumes no gain.
SLOPES = (0.0, 0.2, 0.33, 0.4, 0.6, 0.8, 0.9, 1.0)
#: Log-probabilities below this are replaced by it.
_LEAST_LP = -600.0
#: The slope used if the shadow models cannot decide (LeakPro's default).
_SLOPE = 0.33
#: The number of shadow models that act as the target to choose the slope.
_MOCK_TARGETS = 8


def _probability(lp: NDArray[Any]) -> NDArray[np.float64]:
    """exp(``lp``), but never 0, so that ratios remain comparable."""
    return np.asarray(np.exp(np.maximum(np.asarray(lp, dtype=np.float64), _LEAST_LP)), dtype=np.float64)


def evidence_offline(lp: NDArray[Any], included: NDArray[np.bool_], slope: float) -> NDArray[np.float64]:
    """Pr(x) [records] from the models [models, records] that did not see x: ((1 + a) mean_out + (1 - a)) / 2.

    This assumes that training on x raises its probability from p to a p + 1 - a (Zarifzadeh et al., appendix B.2.2).
    Probabilities [0.3, 0.5] and a = 0.3 give 0.61.
    """
    out = ~included
    mean = np.where(out, _probability(lp), 0.0).sum(axis=0) / out.sum(axis=0)
    return np.asarray(0.5 * ((1 + slope) * mean + (1 - slope)), dtype=np.float64)


def evidence_online(lp: NDArray[Any]) -> NDArray[np.float64]:
    """Pr(x) [records]: the mean over all models [models, records], half of which saw x."""
    return np.asarray(_probability(lp).mean(axis=0), dtype=np.float64)


def dominated_share(
    ratio: NDArray[np.float64], population: NDArray[np.bool_], gamma: float = GAMMA
) -> NDArray[np.float64]:
    """The fraction [records] of the ``population`` [records] z with ratio(x) / ratio(z) >= gamma; ties count one half.

    In O((n + k) log k) for n records and a population of k. Ratio 1.311475 against [0.745342, 0.481928, 1.216216] gives
    1, 2/3 and 1/3 at gamma 1, 1.5 and 2. A record of the population is also compared with itself, as a tie. If ties
    counted fully, the population's largest ratio would score the same as all above it; without them, equal ratios
    inside and outside the population would score differently.
    """
    sorted_population, scaled = np.sort(ratio[population]), ratio / gamma
    below, upto = (
        np.searchsorted(sorted_population, scaled, side="left"),
        np.searchsorted(sorted_population, scaled, side="right"),
    )
    return np.asarray((below + upto) / (2 * len(sorted_population)), dtype=np.float64)


def best_slope(shadows: Shadows) -> float:
    """The slope that best predicts which records a shadow model was trained on, with a few acting as the target.

    It does not use the real target's members, so it needs no correction and cannot overfit to them.
    """
    models = len(shadows.lp)
    gains = np.zeros(len(SLOPES))
    for i in range(min(models, _MOCK_TARGETS)):
        others = np.arange(models) != i
        out = shadows.included[others]
        judged = (~out).any(axis=0)
        member = shadows.included[i][judged]
        if not 0 < member.sum() < len(member):
            continue
        lp = _probability(shadows.lp[i][judged])
        for j, slope in enumerate(SLOPES):
            ratio = lp / evidence_offline(shadows.lp[others][:, judged], out[:, judged], slope)
            gains[j] += mean_ranks(ratio)[member].mean() / len(member)
    return SLOPES[int(gains.argmax())] if gains.any() else _SLOPE


def _offline_ratio(candidates: Candidates, _: Settings) -> NDArray[Any]:
    shadows = candidates.shadows
    assert shadows is not None  # checked by why_not_offline
    chance = evidence_offline(shadows.lp, shadows.included, best_slope(shadows))
    return np.asarray(_probability(candidates.mean_lp) / chance)


def _online_ratio(candidates: Candidates, _: Settings) -> NDArray[Any]:
    assert candidates.shadows is not None
    return np.asarray(_probability(candidates.mean_lp) / evidence_online(candidates.shadows.lp))


def _share_of(
    ratio: Callable[[Candidates, Settings], NDArray[Any]],
) -> Callable[[Candidates, Settings], NDArray[Any]]:
    return lambda candidates, settings: dominated_share(ratio(candidates, settings), ~candidates.table.member)


# The fraction is monotone in the ratio, but in steps set by the non-members; the permutation test uses the ratio.
OFFLINE = ScoreAttack(name="rmia", score=_share_of(_offline_ratio), missing=why_not_offline, unlabelled=_offline_ratio)
ONLINE = ScoreAttack(
    name="rmia-online", score=_share_of(_online_ratio), missing=why_not_online, unlabelled=_online_ratio
)
