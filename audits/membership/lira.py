"""The likelihood ratio attack (Carlini et al. 2022, arXiv 2112.03570), with shadow models.

Is the target's confidence in a record typical of models that saw it, or of models that did not? Confidence is phi =
log(p / (1 - p)), of which shadow models give nearly normal samples. *Offline*, the score is only how far the target
lies above the models that did not see the record; *online*, it compares both densities.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.attack import Candidates, ScoreAttack, Settings, Shadows
from privctl.domain.shown import counted

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: With fewer shadow models than this on a side, a record's own variance is mostly noise (Carlini et al., figure 9), and
#: so is the rise of its confidence if a model saw it.
POOLED_BELOW = 16
#: Log-probabilities closer to 0 are replaced by this one: float32 barely distinguishes them from certainty.
NEAREST = -1e-12
#: The smallest standard deviation of phi, in case all models agree.
_LEAST = 1e-6


def confidence(lp: NDArray[Any], nearest: float = NEAREST) -> NDArray[np.float64]:
    """Phi = log(p / (1 - p)) for p = exp(``lp``), any shape, in double precision; ``lp`` -0.5 gives 0.432752.

    Values of ``lp`` above ``nearest`` are replaced by it.
    """
    lp = np.minimum(np.asarray(lp, dtype=np.float64), nearest)
    return np.asarray(lp - np.log(-np.expm1(lp)), dtype=np.float64)


def moments(
    phi: NDArray[np.float64], chosen: NDArray[np.bool_], pooled_below: int = POOLED_BELOW
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation [records] of ``phi`` over the ``chosen`` models, both [models, records].

    The variance divides by n - 1. Records with fewer than ``pooled_below`` models share one standard deviation, that of
    all residuals around the records' own means, as differences between records must not count. [1.5, 2.1, 2.6, 1.8]
    have 2.0 and 0.469042. Every record needs one model, and at least one record needs two.
    """
    counts = chosen.sum(axis=0)
    mean = np.where(chosen, phi, 0.0).sum(axis=0) / counts
    squares = np.where(chosen, (phi - mean) ** 2, 0.0).sum(axis=0)
    pooled = squares.sum() / (counts - 1).sum()
    of_each_record = squares / np.maximum(counts - 1, 1)
    deviation = np.sqrt(np.where(counts < max(pooled_below, 2), pooled, of_each_record))
    return mean, np.maximum(deviation, _LEAST)


def offline_scores(lp: NDArray[Any], shadows: Shadows, pooled_below: int = POOLED_BELOW) -> NDArray[np.float64]:
    """How many standard deviations each record's confidence [records] lies above that of models that did not see it.

    One-sided (Carlini et al., section VI-D): an unusually *low* confidence does not suggest membership. phi 2 against
    [-0.2, 0.4, 0.1, 0.5] gives 5.692100.
    """
    mean, deviation = moments(confidence(shadows.lp), ~shadows.included, pooled_below)
    return np.asarray((confidence(lp) - mean) / deviation, dtype=np.float64)


def online_scores(lp: NDArray[Any], shadows: Shadows, pooled_below: int = POOLED_BELOW) -> NDArray[np.float64]:
    """Log N(phi; in) - log N(phi; out) of each record [records] (Carlini et al., algorithm 1).

    Records with fewer than ``pooled_below`` models on a side share the distance between the two means, centred on their
    own midpoint, and one standard deviation. A record's own distance is a factor of its score and with few models
    mostly noise; with two different deviations, the larger one would dominate in the tails.

    phi 2 with in [1.5, 2.1, 2.6, 1.8] and out [-0.2, 0.4, 0.1, 0.5] gives 15.805771. The tails are not calibrated: the
    result is a score, not a likelihood ratio from which an epsilon could be derived.
    """
    phi, target = confidence(shadows.lp), confidence(lp)
    (inside, deviation_in), (outside, deviation_out) = (
        moments(phi, chosen, pooled_below) for chosen in (shadows.included, ~shadows.included)
    )
    few = np.minimum(shadows.included.sum(axis=0), (~shadows.included).sum(axis=0)) < max(pooled_below, 2)
    middle, distance = (inside + outside) / 2, inside - outside
    if few.any():
        shared = np.sqrt((deviation_in**2 + deviation_out**2)[few].mean() / 2)
        distance = np.where(few, distance[few].mean(), distance)
        deviation_in, deviation_out = (np.where(few, shared, deviation) for deviation in (deviation_in, deviation_out))
    terms = [
        -0.5 * ((target - middle - side * distance / 2) / deviation) ** 2 - np.log(deviation)
        for side, deviation in ((1, deviation_in), (-1, deviation_out))
    ]
    return np.asarray(terms[0] - terms[1], dtype=np.float64)


def why_not_offline(candidates: Candidates) -> str:
    """Why an attack that needs models that did not see a record is not possible; empty if it is."""
    if candidates.shadows is None:
        return "it compares with shadow models; train some with `privctl shadow` and give their folder with --shadow"
    return _too_few_shadows(~candidates.shadows.included, "not trained on it")


def why_not_online(candidates: Candidates) -> str:
    """Why an attack that needs models of both kinds is not possible; empty if it is."""
    missing = why_not_offline(candidates)
    return missing or (
        "" if candidates.shadows is None else _too_few_shadows(candidates.shadows.included, "trained on it")
    )


def _too_few_shadows(chosen: NDArray[np.bool_], which: str) -> str:
    lacking = int((chosen.sum(axis=0) < 2).sum())
    return (
        f"{counted(lacking, 'record has', 'records have')} fewer than 2 shadow models {which}; train more of them"
        if lacking
        else ""
    )


def _offline(candidates: Candidates, _: Settings) -> NDArray[Any]:
    assert candidates.shadows is not None  # checked by why_not_offline
    return offline_scores(candidates.mean_lp, candidates.shadows)


def _online(candidates: Candidates, _: Settings) -> NDArray[Any]:
    assert candidates.shadows is not None
    return online_scores(candidates.mean_lp, candidates.shadows)


OFFLINE = ScoreAttack(name="lira", score=_offline, missing=why_not_offline)
ONLINE = ScoreAttack(name="lira-online", score=_online, missing=why_not_online)
