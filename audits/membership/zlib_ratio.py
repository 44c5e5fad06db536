"""The zlib attack: the loss of a text relative to its compressed size (Carlini et al. 2021)."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.attack import Candidates, ScoreAttack, Settings, why_no_text

if TYPE_CHECKING:
    from numpy.typing import NDArray


def score(candidates: Candidates, _: Settings) -> NDArray[Any]:
    """Minus the log-perplexity divided by the size in bytes of the text compressed by zlib at default level, [records].

    The log-perplexity is the mean loss in nats per token (Carlini et al. 2021, section 5.2). Five tokens with a total
    of 6.859 nats for b"the quick brown fox jumps over the lazy dog", 50 bytes compressed, give -0.027436.
    """
    table = candidates.table
    packed = np.array([len(zlib.compress(text.encode())) for text in candidates.texts], dtype=np.float64)
    return np.asarray(table.means(table.lp) / packed)


ATTACK = ScoreAttack(name="zlib", score=score, missing=why_no_text, alone=True)
