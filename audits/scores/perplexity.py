"""The perplexity of texts under a model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from audits.scores.forward import score_rows
from audits.scores.rows import encode_as_trained, length_limit
from audits.scores.table import FIELDS
from privctl.domain.errors import InputError
from privctl.models.language import LanguageModel


def perplexity(model: LanguageModel, texts: Sequence[str]) -> float:
    """Exp of the mean loss (nats) over all tokens of ``texts`` except each first, including end-of-text tokens.

    Texts are encoded and truncated as in training, so this is the held-out perplexity of ``privctl retrain`` and agrees
    with transformers' own loss for the same ids. Infinite if it overflows. Raises InputError if no text has 2 tokens,
    or for NaN scores.
    """
    limit = length_limit(model, None)
    rows = [row[:limit] for row in encode_as_trained(model, texts) if len(row) >= 2]
    if not rows:
        raise InputError(f"none of the {len(texts)} texts has 2 tokens; perplexity needs a next token to predict")
    values, _ = score_rows(model, rows)
    mean = -float(values[FIELDS.index("lp")].mean(dtype=np.float64))
    if math.isnan(mean):
        raise InputError(f"{model.path} gives NaN scores; check its weights for NaN and its format for overflow")
    return math.exp(mean) if mean < 709 else math.inf
