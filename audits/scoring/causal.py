"""A causal language model as a scorer: every token after the first is scored from those before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.scoring.forward import Advance, score_rows, silent
from privctl.models import LanguageModel

if TYPE_CHECKING:
    from numpy.typing import NDArray


class CausalScorer:
    """Rows are token ids, at least 2 each."""

    causal = True

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    def counts(self, rows: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
        """Tokens after the first."""
        return np.array([len(row) - 1 for row in rows], dtype=np.int64)

    def score(self, rows: Sequence[NDArray[Any]], advance: Advance = silent) -> NDArray[np.float32]:
        """The scores [6, total] of every token after each row's first."""
        return score_rows(self.model, rows, advance=advance)[0]
