"""The robust attack (Zarifzadeh, Liu and Shokri 2024, arXiv 2312.03262), with shadow models.

Does the target favour a record more than it favours other records of the population? ratio(x) = Pr(x | target) / Pr(x),
where Pr(x) comes from shadow models; the score is the share of the population whose ratio the record's own reaches
``GAMMA`` times over. For one target model the score only rises with the ratio: the population turns the ratio into
something like a false positive rate, and adds no evidence to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import rankdata

from audits.membership.attack import Candidates, ScoreAttack, Settings, Shadows
from audits.membership.lira import without_both, without_out

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
#: Shadow models that each stand for the target once, when the slope is chosen.
_REHEARSALS = 8


def _probability(lp: NDArray[Any]) -> NDArray[np.float64]:
    """What ``lp`` (nats) is the logarithm of, but never 0: of two that are, none would be greater."""
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


def dominated(ratio: NDArray[np.float64], population: NDArray[np.bool_], gamma: float = GAMMA) -> NDArray[np.float64]:
    """The share [records] of the ``population`` [records] z with ratio(x) / ratio(z) >= gamma; equal counts one half.

    In O((n + k) log k) for n records and a population of k. Ratio 1.311475 against [0.745342, 0.481928, 1.216216] gives
    1, 2/3 and 1/3 at gamma 1, 1.5 and 2. Who belongs to the population meets itself as an equal: were that counted
    fully, its greatest ratio would share its score with all that lie above; were it left out, equal ratios of members
    and of others would differ.
    """
    known, reached = np.sort(ratio[population]), ratio / gamma
    below, upto = np.searchsorted(known, reached, side="left"), np.searchsorted(known, reached, side="right")
    return np.asarray((below + upto) / (2 * len(known)), dtype=np.float64)


def best_slope(shadows: Shadows) -> float:
    """The slope that tells best which records a shadow model was trained on, with each of a few as the target.

    It uses nothing of the target's own members, so that it costs no correction and cannot fit to them.
    """
    models = len(shadows.lp)
    gains = np.zeros(len(SLOPES))
    for i in range(min(models, _REHEARSALS)):
        rest = np.arange(models) != i
        out = shadows.included[rest]
        judged = (~out).any(axis=0)
        member = shadows.included[i][judged]
        if not 0 < member.sum() < len(member):
            continue
        lp = _probability(shadows.lp[i][judged])
        for j, slope in enumerate(SLOPES):
            ratio = lp / evidence_offline(shadows.lp[rest][:, judged], out[:, judged], slope)
            gains[j] += rankdata(ratio)[member].mean() / len(member)
    return SLOPES[int(gains.argmax())] if gains.any() else _SLOPE


def _offline(candidates: Candidates, _: Settings) -> NDArray[Any]:
    shadows = candidates.shadows
    assert shadows is not None  # without_out says so
    chance = evidence_offline(shadows.lp, shadows.included, best_slope(shadows))
    return dominated(_probability(candidates.mean_lp) / chance, ~candidates.table.member)


def _online(candidates: Candidates, _: Settings) -> NDArray[Any]:
    assert candidates.shadows is not None
    return dominated(
        _probability(candidates.mean_lp) / evidence_online(candidates.shadows.lp), ~candidates.table.member
    )


OFFLINE = ScoreAttack(name="rmia", score=_offline, missing=without_out)
ONLINE = ScoreAttack(name="rmia-online", score=_online, missing=without_both)
