"""Texts as rows of token ids.

Policy. Text is tokenised without special tokens. Where the tokenizer's own template begins with its BOS token, BOS is
put in front; it is never scored. No EOS is added. A record longer than the limit keeps its first tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from privctl.domain.errors import InputFault, UsageFault
from privctl.models import LanguageModel, hushed

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Length limit for models whose configuration states a longer context, or none.
DEFAULT_LENGTH = 2048
#: Texts tokenised in one call.
_TEXTS = 1024


def length_limit(model: LanguageModel, max_length: int | None) -> int:
    """Tokens kept of a record: ``max_length``, else the model's context up to ``DEFAULT_LENGTH``.

    Raises UsageFault for a ``max_length`` below 2 or beyond the context.
    """
    context = model.context
    if max_length is None:
        return min(context or DEFAULT_LENGTH, DEFAULT_LENGTH)
    if max_length < 2:
        raise UsageFault(f"--max-length is {max_length}; it must be at least 2, as scoring predicts each next token")
    if context is not None and max_length > context:
        raise UsageFault(f"--max-length is {max_length}, but {model.path} sees at most {context} tokens; give less")
    return max_length


def begins_with_bos(model: LanguageModel) -> bool:
    """Whether the tokenizer's own template puts BOS in front of a text."""
    bos = model.tokenizer.bos_token_id
    ids = model.tokenizer("a")["input_ids"]
    return bos is not None and len(ids) > 0 and ids[0] == bos


def encode(model: LanguageModel, texts: Sequence[str]) -> list[NDArray[np.int64]]:
    """Token ids of each text, with BOS in front where the tokenizer's template has it; not cut.

    Raises InputFault for ids the model has no embedding for.
    """
    front = [model.tokenizer.bos_token_id] if begins_with_bos(model) else []
    rows: list[NDArray[np.int64]] = []
    with hushed():
        for start in range(0, len(texts), _TEXTS):
            part = list(texts[start : start + _TEXTS])
            ids = model.tokenizer(part, add_special_tokens=False, return_attention_mask=False)["input_ids"]
            rows += [np.array(front + row, dtype=np.int64) for row in ids]
    highest = max((int(row.max()) for row in rows if len(row)), default=0)
    if highest >= model.vocabulary:
        raise InputFault(
            f"{model.folder} has a tokenizer that gives id {highest}, but the model knows {model.vocabulary} tokens; "
            "give the tokenizer the model was trained with"
        )
    return rows
