"""Min-K% and Min-K%++: a record seen in training has few tokens that surprise the model (Shi 2023; Zhang 2024)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.attack import Candidates, ScoreAttack, Settings, why_no_token_probabilities

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The fraction of a record's tokens that is averaged, as both papers recommend.
SHARE = 0.2
#: Below this variance (nats squared), the prediction is practically certain and its variance mostly rounding error.
_CERTAIN = 1e-6


def lowest_mean(values: NDArray[Any], offsets: NDArray[Any], share: float) -> NDArray[np.float64]:
    """The mean of each record's smallest values, a fraction ``share`` and at least one, [records].

    ``values`` [tokens] are those of all records. Values -0.36, -1.20, -1.39, -3.00, -0.92 at 0.4 give -2.19.
    """
    lengths = np.diff(offsets)
    record = np.repeat(np.arange(len(lengths)), lengths)
    ranked = values[np.lexsort((values, record))].astype(np.float64)
    count = np.maximum(1, np.floor(share * lengths + 1e-9).astype(np.int64))
    within = np.arange(len(values)) - np.repeat(offsets[:-1], lengths)
    lowest = np.where(within < np.repeat(count, lengths), ranked, 0.0)
    return np.asarray(np.add.reduceat(lowest, offsets[:-1]) / count)


def standardised_log_probs(candidates: Candidates) -> NDArray[np.float64]:
    """Each token's log-probability minus the model's expectation of it, in standard deviations, [tokens]."""
    table = candidates.table
    deviation = np.sqrt(np.maximum(table.var.astype(np.float64), _CERTAIN))
    return np.asarray((table.lp.astype(np.float64) - table.mu) / deviation)


def _min_k(candidates: Candidates, _: Settings) -> NDArray[Any]:
    return lowest_mean(candidates.table.lp, candidates.table.offsets, SHARE)


def _min_k_plus(candidates: Candidates, share: float) -> NDArray[Any]:
    return lowest_mean(standardised_log_probs(candidates), candidates.table.offsets, share)


def _plus(name: str, share: float) -> ScoreAttack:
    return ScoreAttack(
        name=name,
        score=lambda candidates, _: _min_k_plus(candidates, share),
        missing=why_no_token_probabilities,
        alone=True,
    )


MIN_K = ScoreAttack(name="min-k", score=_min_k, missing=why_no_token_probabilities, alone=True)
MIN_K_PLUS = _plus("min-k++", SHARE)
#: Other fractions; the fused score learns on other records which of the three to trust.
MIN_K_PLUS_HALF, MIN_K_PLUS_ALL = _plus("min-k++-half", 0.5), _plus("min-k++-all", 1.0)
