"""The reference attack: how much better the model knows a record than other models do (Watson et al. 2021).

The other models are one that never saw the record or, if none is given, shadow models, half of which saw it, member or
not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.attack import Candidates, ScoreAttack, Settings
from audits.membership.lira import NEAREST, confidence
from privctl.data.columns import HeadKind

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Mean log-probabilities of tokens closer to 0 are replaced by this one: a log-softmax in float32 has errors of this
#: size.
NEAREST_OF_TOKENS = -1e-6


def score(candidates: Candidates, _: Settings) -> NDArray[Any]:
    """By how much the model's confidence exceeds that of the reference model or the shadow models, [records].

    With a reference model, it is the difference of the logits ln(p / (1 - p)), p = exp(mean log-probability): -1 with
    the reference model's -1.5 gives 0.706193. The logit scaling is that of Carlini et al. 2022, the difference that of
    Watson et al. 2021. A predicted number has a density instead of p, so its score is the difference of
    log-probabilities. With shadow models, it is the log-probability minus their mean: -1 with -1.5, -2, -2.5 and -3
    gives 1.25. The difference of logits would order records as ``lira-online`` does with few shadow models.
    """
    if candidates.reference is not None:
        return _confidence(candidates, candidates.mean_lp) - _confidence(candidates, candidates.reference)
    assert candidates.shadows is not None  # checked by _missing
    return np.asarray(candidates.mean_lp - candidates.shadows.lp.mean(axis=0))


def _confidence(candidates: Candidates, lp: NDArray[Any]) -> NDArray[np.float64]:
    """The mean log-probabilities ``lp`` [records], on the logit scale except for predicted numbers."""
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
