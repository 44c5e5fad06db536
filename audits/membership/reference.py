"""The reference attack: how much better the model knows a record than others do (Watson et al. 2021).

Others are a model that never saw it, or, where none is given, shadow models, of which half saw it, member or not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.attack import Candidates, ScoreAttack, Settings

if TYPE_CHECKING:
    from numpy.typing import NDArray


def score(candidates: Candidates, _: Settings) -> NDArray[Any]:
    """The record's mean log-probability less that under the reference model, or of the shadow models, [records].

    lp -1 with shadow models' -1.5, -2, -2.5 and -3 gives 1.25.
    """
    usual = candidates.reference
    if usual is None:
        assert candidates.shadows is not None  # ``_missing`` said so
        usual = candidates.shadows.lp.mean(axis=0)
    return np.asarray(candidates.mean_lp - usual)


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
