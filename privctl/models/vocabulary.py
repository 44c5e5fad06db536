"""A word-level tokenizer for models that are trained from random weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from privctl.data.packed import byte_lines
from privctl.data.texts import TextRecord
from privctl.domain.errors import InputError

#: Ids 0 to 4; ``<bos>`` and ``<eos>`` surround every text, and serve as BERT's [CLS] and [SEP].
SPECIAL = ("<pad>", "<unk>", "<bos>", "<eos>", "<mask>")
_ROLES = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "bos_token": "<bos>",
    "cls_token": "<bos>",
    "eos_token": "<eos>",
    "sep_token": "<eos>",
    "mask_token": "<mask>",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """A tokenizer of lower-cased words and single punctuation marks.

    ``from_private_data`` says that its words were collected from the private records. Then the list of words is
    released with the model, and no guarantee covers it.
    """

    tokenizer: Any
    from_private_data: bool


def vocabulary_from_file(path: Path, *, limit: int | None = None) -> Vocabulary:
    """The first ``limit`` distinct words of a public file with one word per line.

    Raises InputError, naming the line, for a line of more than one word, and for a file without any.
    """
    words: dict[str, None] = {}
    splitter = _splitter([])
    for number, line in enumerate(byte_lines(path), start=1):
        try:
            line_words = _words(splitter, line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError:
            raise InputError(f"{path} line {number} is not UTF-8 text; save the file as UTF-8") from None
        if len(line_words) > 1:
            raise InputError(
                f"{path} line {number} holds {len(line_words)} words ({line_words[0]!r}, {line_words[1]!r}); give one "
                "per line"
            )
        words.update(dict.fromkeys(line_words))
    if not words:
        raise InputError(f"{path} holds no words; expected one per line")
    return Vocabulary(tokenizer=_wrap(list(words)[:limit]), from_private_data=False)


def frequent_words(records: Iterable[TextRecord], *, min_frequency: int = 2, limit: int | None = 20_000) -> list[str]:
    """The ``limit`` most frequent words that occur at least ``min_frequency`` times; ties are broken alphabetically.

    Raises InputError if no word is that frequent.
    """
    splitter = _splitter([])
    counts = Counter(word for record in records for word in _words(splitter, record.text))
    frequent = [word for word, count in counts.items() if count >= min_frequency]
    if not frequent:
        raise InputError(f"no word occurs {min_frequency} times in the records; lower --min-frequency")
    frequent.sort(key=lambda word: (-counts[word], word))
    return frequent[:limit]


def private_vocabulary(words: Sequence[str]) -> Vocabulary:
    """The vocabulary of ``words`` that were collected from the private records, by ``frequent_words``."""
    return Vocabulary(tokenizer=_wrap(words), from_private_data=True)


def _splitter(words: Iterable[str]) -> Tokenizer:
    ids = {word: i for i, word in enumerate((*SPECIAL, *(w for w in words if w not in SPECIAL)))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=SPECIAL[1]))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[(token, ids[token]) for token in ("<bos>", "<eos>")]
    )
    return tokenizer


def _words(splitter: Tokenizer, text: str) -> list[str]:
    normal = splitter.normalizer.normalize_str(text)
    return [word for word, _ in splitter.pre_tokenizer.pre_tokenize_str(normal)]


def _wrap(words: Sequence[str]) -> Any:
    wrap: Any = PreTrainedTokenizerFast  # its constructor is not typed
    return wrap(tokenizer_object=_splitter(words), padding_side="right", **_ROLES)
