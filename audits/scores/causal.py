"""A causal language model: every token after the first is scored given those before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.scores.rows import Rows, begins_with_bos, encode, length_limit
from audits.scores.shared import score_shared
from audits.scores.tasks import CAUSAL_LM
from privctl.data.records import Record
from privctl.domain.progress import Advance, silent
from privctl.models.language import LanguageModel

if TYPE_CHECKING:
    from numpy.typing import NDArray


class CausalScorer:
    """Rows are token ids, at least 2 each."""

    causal = True

    def __init__(self, model: LanguageModel) -> None:
        self.model = model

    def counts(self, rows: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
        """The number of tokens after the first; 0 for an empty text."""
        return np.array([max(0, len(row) - 1) for row in rows], dtype=np.int64)

    def score(self, rows: Sequence[NDArray[Any]], advance: Advance = silent) -> NDArray[np.float32]:
        """The scores [6, total] of every token after each row's first."""
        return score_shared(self.model, rows, advance=advance)


class CausalSubject:
    """Records are texts. Raises CommandError for a ``max_length`` that does not fit the model."""

    task = CAUSAL_LM

    def __init__(self, model: LanguageModel, max_length: int | None = None) -> None:
        self.model = model
        self.scorer = CausalScorer(model)
        self.max_length: int | None = length_limit(model, max_length)

    def rows(self, records: Sequence[Record]) -> Rows:
        """See ``AuditedModel``."""
        encoded = encode(self.model, [record.text for record in records])
        return Rows(
            rows=[row[: self.max_length] for row in encoded],
            truncated=np.array([len(row) > (self.max_length or 0) for row in encoded], dtype=np.bool_),
        )

    def describe(self) -> dict[str, Any]:
        """See ``AuditedModel``."""
        return {
            "task": self.task,
            "max_length": self.max_length,
            "bos": "prepended, not scored" if begins_with_bos(self.model) else "none",
            "truncation": "keeps the first max_length tokens, BOS counted",
        }
