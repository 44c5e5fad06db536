"""The reference attack: how much better the model knows a record than others do (Watson et al. 2021).

Others are a model that never saw it, or, where none is given, shadow models, of which half saw it, member or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.attack import Candidates, ScoreAttack, Settings
from audits.membership.lira import NEAREST, confidence
from privctl.data.columns import HeadKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Mean log-probabilities of tokens closer to 0 are replaced by this one: a log-softmax in float32 is off by as much.
NEAREST_OF_TOKENS = -1e-6


def score(candidates: Candidates, _: Settings) -> NDArray[Any]:
    """By how much the model is surer of a record than the reference model, or than the shadow models, [records].

    With a reference model it is the difference of the logits ln(p / (1 - p)), p = exp(mean log-probability): -1 with
    the reference model's -1.5 gives 0.706193. The logit scaling is that of Carlini et al. 2022, the difference that of
    Watson et al. 2021. A number has a density and no p, so of one it is the difference of log-probabilities. So it is
    with shadow models, less their mean: -1 with -1.5, -2, -2.5 and -3 gives 1.25. The difference of logits would put
    the records into the order of ``lira-online`` with few shadow models.
    """
    if candidates.reference is not None:
        return _surety(candidates, candidates.mean_lp) - _surety(candidates, candidates.reference)
    assert candidates.shadows is not None  # ``_missing`` said so
    return np.asarray(candidates.mean_lp - candidates.shadows.lp.mean(axis=0))


def _surety(candidates: Candidates, lp: NDArray[Any]) -> NDArray[np.float64]:
    """What of the mean log-probabilities ``lp`` [records] is compared, [records]."""
    if candidates.head is HeadKind.NUMBER:
        return np.asarray(lp, dtype=np.float64)
    of_labels = candidates.head in (HeadKind.ONE, HeadKind.SEVERAL)
    return confidence(lp, NEAREST if of_labels else NEAREST_OF_TOKENS)


def _missing(candidates: Candidates) -> str:
    if candidates.reference is not None or candidates.shadows is not None:
        return ""
    return "it needs a model given by --reference, or shadow models"


ATTACK = ScoreAttack(
    name="reference",
    score=score,
    missing=_missing,
    alone=True,
)
