"""Scores of windows' suffixes by teacher forcing: each token's margin over all others, and its probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from audits.extraction.greedy import margin_scores
from audits.extraction.law import SamplingLaw, law_scores
from audits.extraction.screen import screen
from audits.extraction.windows import TextShape, WindowShape
from audits.scores.scorer import RowScores
from audits.scores.table import FIELDS
from privctl.domain.progress import Advance
from privctl.models.language import LanguageModel
from privctl.parallel import Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class SuffixScores:
    """Scores of suffix tokens, [texts, suffix] each; ``logp`` is None without sampling."""

    margin: NDArray[np.float32]
    target_logit: NDArray[np.float32]
    logp: NDArray[np.float32] | None

    @property
    def finite(self) -> NDArray[np.bool_]:
        """Texts [texts] with finite logits; a margin of -inf only means that it was not computed."""
        return np.asarray((np.isfinite(self.target_logit) & ~np.isnan(self.margin)).all(axis=1))

    def split(self, ends: NDArray[np.int64]) -> list[SuffixScores]:
        """Split the texts at the indices ``ends``."""
        logp = [None] * (len(ends) + 1) if self.logp is None else np.split(self.logp, ends)
        parts = zip(np.split(self.margin, ends), np.split(self.target_logit, ends), logp, strict=True)
        return [SuffixScores(margin=margin, target_logit=logit, logp=side_logp) for margin, logit, side_logp in parts]


def score_suffixes(
    model: LanguageModel,
    shape: WindowShape,
    rows: Sequence[NDArray[np.int64]],
    law: SamplingLaw | None,
    workers: Workers,
    advance: Advance,
) -> SuffixScores:
    """Score ``rows`` in a separate pass, shared by ``workers``; ``law`` None skips sampling, which is faster."""
    suffix = shape.suffix

    def screened(some: Sequence[NDArray[np.int64]]) -> torch.Tensor:
        return torch.from_numpy(np.concatenate(screen(model, some, suffix, advance=advance), axis=1))

    def measure(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if law is None:
            return margin_scores(logits, targets)
        logp = law_scores(logits, targets, law)  # first, as margin_scores overwrites the logits
        return torch.cat([margin_scores(logits, targets), logp[None, :]])

    fields = 2 if law is None else 3

    def measured(some: Sequence[NDArray[np.int64]]) -> torch.Tensor:
        return torch.from_numpy(shape.measure(model, some, measure, fields, advance)).transpose(0, 1).flatten(1)

    compute = screened if law is None and isinstance(shape, TextShape) else measured
    table = workers.spread_rows(rows, compute, fields * suffix, torch.float32).numpy()
    margin, target_logit, *logp = table.reshape(len(rows), fields, suffix).swapaxes(0, 1)
    return SuffixScores(margin=margin, target_logit=target_logit, logp=logp[0] if logp else None)


def from_row_scores(row_scores: RowScores, rows: Sequence[NDArray[Any]], suffix: int) -> SuffixScores:
    """The scores of texts all of whose tokens were scored, under the model's own distribution."""
    counts = np.array([len(row) - 1 for row in rows], dtype=np.int64)
    indices = np.cumsum(counts)[:, None] - suffix + np.arange(suffix)
    values = row_scores.take(rows, counts)
    lp, margin, lse = (values[FIELDS.index(name)][indices] for name in ("lp", "margin", "lse"))
    return SuffixScores(margin=margin, target_logit=lp + lse, logp=lp)
