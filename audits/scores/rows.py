"""Texts as rows of token ids.

For causal models, text is tokenized without special tokens. If the tokenizer's own template begins with its BOS token,
BOS is prepended; it is never scored. No EOS is added. A record longer than the limit keeps its first tokens. For other
models, the tokenizer's complete template is put around the text, which is truncated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.errors import CommandError, InputError
from privctl.models.context import context_of
from privctl.models.encoding import with_end
from privctl.models.language import LanguageModel
from privctl.models.quiet import quiet_transformers

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The length limit for models whose configuration states a longer context, or none.
DEFAULT_LENGTH = 2048
#: The number of texts tokenized in one call.
_TEXTS = 1024


def length_limit(model: LanguageModel, max_length: int | None) -> int:
    """The maximum length of a record in tokens: ``max_length``, or the model's context up to ``DEFAULT_LENGTH``.

    Raises CommandError for a ``max_length`` below 2 or beyond the context.
    """
    context = model.context
    if max_length is None:
        return min(context or DEFAULT_LENGTH, DEFAULT_LENGTH)
    if max_length < 2:
        raise CommandError(f"--max-length is {max_length}; it must be at least 2, as scoring predicts each next token")
    if context is not None and max_length > context:
        raise CommandError(f"--max-length is {max_length}, but {model.path} sees at most {context} tokens; give less")
    return max_length


def begins_with_bos(model: LanguageModel) -> bool:
    """Whether the tokenizer's own template prepends BOS."""
    bos = model.tokenizer.bos_token_id
    ids = model.tokenizer("a")["input_ids"]
    return bos is not None and len(ids) > 0 and ids[0] == bos


def encode(model: LanguageModel, texts: Sequence[str]) -> list[NDArray[np.int64]]:
    """Token ids of each text, with BOS if the tokenizer's template has it; not truncated.

    Raises InputError for ids without an embedding in the model.
    """
    front = [model.tokenizer.bos_token_id] if begins_with_bos(model) else []
    return [np.array(front + ids, dtype=np.int64) for ids in _tokenise(model, texts)]


def encode_as_trained(model: LanguageModel, texts: Sequence[str]) -> list[NDArray[np.int64]]:
    """Token ids of each text as in ``privctl retrain``: in the tokenizer's template, with an end token; not truncated.

    Raises InputError for ids without an embedding in the model.
    """
    return [np.array(with_end(ids, model.tokenizer), dtype=np.int64) for ids in _tokenise(model, texts, template=True)]


def decoded(model: LanguageModel, rows: Sequence[NDArray[np.int64]]) -> list[str]:
    """The text of each row of ids."""
    with quiet_transformers():
        texts: list[str] = model.tokenizer.batch_decode(
            [ids.tolist() for ids in rows], clean_up_tokenization_spaces=False
        )
    return texts


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """One array per record; ``truncated`` [records] marks those that were cut."""

    rows: list[NDArray[Any]]
    truncated: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """The special tokens that a tokenizer puts around every text."""

    front: tuple[int, ...]
    back: tuple[int, ...]

    @property
    def size(self) -> int:
        """The total number of special tokens."""
        return len(self.front) + len(self.back)

    def encode(self, model: LanguageModel, texts: Sequence[str], limit: int) -> Rows:
        """Token ids of each text with its special tokens, at most ``limit`` in total. Raises as ``encode`` does."""
        ids_of_texts = list(_tokenise(model, texts))
        room = limit - self.size
        return Rows(
            rows=[np.array([*self.front, *ids[:room], *self.back], dtype=np.int64) for ids in ids_of_texts],
            truncated=np.array([len(ids) > room for ids in ids_of_texts], dtype=np.bool_),
        )


def frame_of(tokenizer: Any) -> SpecialTokens:
    """The special tokens that the tokenizer puts around a text."""
    encoded = tokenizer("a", return_special_tokens_mask=True)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    front = next((i for i, flag in enumerate(special) if not flag), len(ids))
    back = next((i for i, flag in enumerate(reversed(special)) if not flag), 0)
    return SpecialTokens(front=tuple(ids[:front]), back=tuple(ids[len(ids) - back :]))


def framed_limit(model: LanguageModel, frame: SpecialTokens, max_length: int | None) -> int:
    """The maximum length of a record, including special tokens. Raises CommandError for an invalid ``max_length``."""
    context = context_of(model.network, model.tokenizer)
    if max_length is None:
        return min(context or DEFAULT_LENGTH, DEFAULT_LENGTH)
    if max_length <= frame.size:
        raise CommandError(f"--max-length is {max_length}, of which special tokens take {frame.size}; give more")
    if context is not None and max_length > context:
        raise CommandError(f"--max-length is {max_length}, but {model.path} sees at most {context} tokens; give less")
    return max_length


def pad_rows(rows: Sequence[NDArray[np.int64]], pad: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids [rows, longest], padded on the right with ``pad``, and 1 where they are real."""
    width = max(len(row) for row in rows)
    ids = np.full((len(rows), width), pad, dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    real = np.arange(width)[None, :] < np.array([len(row) for row in rows])[:, None]
    return ids, real.astype(np.int64)


def _tokenise(model: LanguageModel, texts: Sequence[str], *, template: bool = False) -> Iterator[list[int]]:
    """The ids of each text, with special tokens only if ``template`` is set.

    Raises InputError for ids without an embedding in the model.
    """
    vocabulary = model.vocabulary
    for start in range(0, len(texts), _TEXTS):
        some_texts = list(texts[start : start + _TEXTS])
        with quiet_transformers():
            ids_of_texts = model.tokenizer(some_texts, add_special_tokens=template, return_attention_mask=False)[
                "input_ids"
            ]
        highest = max((max(ids) for ids in ids_of_texts if ids), default=0)
        if highest >= vocabulary:
            raise InputError(
                f"{model.folder} has a tokenizer that gives id {highest}, but the model knows {vocabulary} tokens; "
                "give the tokenizer the model was trained with"
            )
        yield from ids_of_texts
