"""The robust attack (Zarifzadeh, Liu and Shokri 2024, arXiv 2312.03262), with shadow models.

Does the target favour a record more than it favours other records of the population? ratio(x) = Pr(x | target) / Pr(x),
where Pr(x) comes from shadow models; the score is the share of the population whose ratio the record's own reaches
``GAMMA`` times over. For one target model the score only rises with the ratio: the population turns the ratio into
something like a false positive rate, and adds no evidence to it.
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

#: At 1 no two ratios become equal. A mean over tokens varies so little that few ratios differ by the paper's 2.
GAMMA = 1.0
#: Slopes tried for what a record gains by being trained on; 1 takes it that it gains nothing.
SLOPES = (0.0, 0.2, 0.33, 0.4, 0.6, 0.8, 0.9, 1.0)
#: A probability this small is as good as none.
_LEAST_LP = -600.0
#: The slope where the shadow models cannot tell (LeakPro's default).
_SLOPE = 0.33
#: Shadow models that each take the target's role once, to choose the slope.
_MOCK_TARGETS = 8


def _probability(lp: NDArray[Any]) -> NDArray[np.float64]:
    """exp(``lp``), but never 0, so that ratios can still be compared."""
    return np.asarray(np.exp(np.maximum(np.asarray(lp, dtype=np.float64), _LEAST_LP)), dtype=np.float64)


def evidence_offline(lp: NDArray[Any], included: NDArray[np.bool_], slope: float) -> NDArray[np.float64]:
    """Pr(x) [records] from the models [models, records] that did not see x: ((1 + a) mean_out + (1 - a)) / 2.

    It supposes that training on x lifts its probability from p to a p + 1 - a (Zarifzadeh et al., appendix B.2.2).
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
    """The share [records] of the ``population`` [records] z with ratio(x) / ratio(z) >= gamma; equal counts one half.

    In O((n + k) log k) for n records and a population of k. Ratio 1.311475 against [0.745342, 0.481928, 1.216216] gives
    1, 2/3 and 1/3 at gamma 1, 1.5 and 2. A record of the population is compared with itself too, as an equal. If that
    counted fully, the population's greatest ratio would score the same as all above it; if it were left out, equal
    ratios inside and outside the population would score differently.
    """
    sorted_population, scaled = np.sort(ratio[population]), ratio / gamma
    below, upto = (
        np.searchsorted(sorted_population, scaled, side="left"),
        np.searchsorted(sorted_population, scaled, side="right"),
    )
    return np.asarray((below + upto) / (2 * len(sorted_population)), dtype=np.float64)


def best_slope(shadows: Shadows) -> float:
    """The slope that best predicts which records a shadow model was trained on, with a few of them as the target.

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
    assert shadows is not None  # without_out says so
    chance = evidence_offline(shadows.lp, shadows.included, best_slope(shadows))
    return np.asarray(_probability(candidates.mean_lp) / chance)


def _online_ratio(candidates: Candidates, _: Settings) -> NDArray[Any]:
    assert candidates.shadows is not None
    return np.asarray(_probability(candidates.mean_lp) / evidence_online(candidates.shadows.lp))


def _share_of(
    ratio: Callable[[Candidates, Settings], NDArray[Any]],
) -> Callable[[Candidates, Settings], NDArray[Any]]:
    return lambda candidates, settings: dominated_share(ratio(candidates, settings), ~candidates.table.member)


# The share only rises with the ratio, but its steps are the non-members'; relabelled records are ranked by the ratio.
OFFLINE = ScoreAttack(name="rmia", score=_share_of(_offline_ratio), missing=why_not_offline, unlabelled=_offline_ratio)
ONLINE = ScoreAttack(
    name="rmia-online", score=_share_of(_online_ratio), missing=why_not_online, unlabelled=_online_ratio
)
