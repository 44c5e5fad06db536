"""How log-probabilities change along a record: two of the signals of CAMIA (Chang et al. 2024).

If the model recognizes a record, it predicts later tokens better and better; otherwise it only learns the style.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.attack import Candidates, ScoreAttack, Settings, why_no_next_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray


def slope(candidates: Candidates, _: Settings) -> NDArray[Any]:
    """The least-squares slope of the log-probability along each record, in nats per token, [records].

    0 for a record of one token; -0.36, -1.20, -1.39, -3.00, -0.92 give -0.291.
    """
    table = candidates.table
    lengths = np.diff(table.offsets)
    position = np.arange(table.tokens) - np.repeat(table.offsets[:-1], lengths)
    centred = position - np.repeat((lengths - 1) / 2, lengths)
    spread = table.sums(centred**2)
    return np.asarray(table.sums(centred * table.lp.astype(np.float64)) / np.where(spread > 0, spread, 1.0))


def rises(candidates: Candidates, _: Settings) -> NDArray[Any]:
    """The fraction of each record's later tokens that are likelier than the mean of those before them, [records].

    0.5 for a record of one token; -0.36, -1.20, -1.39, -3.00, -0.92 give 0.25.
    """
    table = candidates.table
    lengths = np.diff(table.offsets)
    total = np.cumsum(table.lp.astype(np.float64))
    before = np.concatenate([[0.0], total[:-1]]) - np.repeat(total[table.offsets[:-1]], lengths)
    before += np.repeat(table.lp[table.offsets[:-1]].astype(np.float64), lengths)
    position = np.arange(table.tokens) - np.repeat(table.offsets[:-1], lengths)
    risen = (position > 0) & (table.lp > before / np.maximum(position, 1))
    return np.asarray(np.where(lengths > 1, table.sums(risen) / np.maximum(lengths - 1, 1), 0.5))


SLOPE = ScoreAttack(name="slope", score=slope, missing=why_no_next_tokens, alone=True)
RISES = ScoreAttack(name="rises", score=rises, missing=why_no_next_tokens, alone=True)
