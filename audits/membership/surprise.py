"""SURP: how improbable a record's tokens are where the model was certain (Zhang and Wu 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.attack import Candidates, ScoreAttack, Settings, why_no_token_probabilities

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The quantile of a record's log-probabilities below which a token is unlikely; the paper's 40 %.
UNLIKELY = 0.4


def certain_but_wrong(lp: NDArray[Any], entropy: NDArray[Any]) -> float:
    """The mean of ``lp`` [tokens] over tokens with low ``lp`` and low ``entropy`` [tokens], both in nats.

    Low means at most the record's median entropy and at most its 40 % quantile of ``lp``; the paper tunes both limits
    on other data. If no token has both, it is the mean over the unlikely ones. Values -1, -2, -3, -4, -5 with entropies
    1, 2, 3, 4, 0 give -5.
    """
    unlikely = lp <= np.quantile(lp, UNLIKELY)
    both = unlikely & (entropy <= np.median(entropy))
    return float(lp[both if both.any() else unlikely].mean(dtype=np.float64))


def score(candidates: Candidates, _: Settings) -> NDArray[Any]:
    """``certain_but_wrong`` of each record, [records]."""
    table = candidates.table
    pieces = zip(*(np.split(values, table.offsets[1:-1]) for values in (table.lp, -table.mu)), strict=True)
    return np.array([certain_but_wrong(lp, entropy) for lp, entropy in pieces])


ATTACK = ScoreAttack(name="surp", score=score, missing=why_no_token_probabilities, alone=True)
