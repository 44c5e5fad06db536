"""Where a text can be cut so that its parts, tokenised alone, give the tokens of the whole.

Of a text around a secret only some words can change with the secret. A cut lies between a letter or digit and a space
that another one follows, all of them ASCII. There most tokenizers end one piece and begin the next, whatever else the
text holds: their normalizers look at single characters, or (the Unicode forms) at a character and the marks that
follow it, and no piece of their pre-tokenizers goes from a letter or digit on to a space. A model of tokens never sees
more than one piece. What is not known to be so is taken not to be: such a tokenizer reads the whole text each time.
"""

from __future__ import annotations

import json
import re
import string
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_CUT = re.compile(r"(?<=[0-9A-Za-z]) (?=[0-9A-Za-z])")
_MODELS = {"BPE", "Unigram", "WordLevel", "WordPiece"}
_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"}
#: Pre-tokenizers that separate a word from the one before it, and others that look at characters alone.
_SEPARATORS = {"BertPreTokenizer", "Whitespace", "WhitespaceSplit"}
_BY_CHARACTER = {"Digits", "Punctuation"}
#: The parts, between bars, that expressions of byte-level tokenizers are made of. In none of them does a letter or
#: digit stand before a space, and none looks further ahead than to the end of a run of spaces.
_PARTS = {
    *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d"),
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
    *(r" ?\p{L}+", r" ?\p{N}+", r"[^\r\n\p{L}\p{N}]?\p{L}+", r"\p{N}", r"\p{N}+", r"\p{N}{1,3}"),
    *(r" ?[^\s\p{L}\p{N}]+", r" ?[^\s\p{L}\p{N}]+[\r\n]*"),
    *(r"\s*[\r\n]+", r"\s*[\r\n]", r"\s+(?!\S)", r"\s+"),
}
_BAR = re.compile(r"\|(?![^(]*\))")  # outside of parentheses


def can_be_cut(tokenizer: Any) -> bool:
    """Whether transformers' fast ``tokenizer`` is known to give the same tokens for a text and its parts."""
    backend = tokenizer.backend_tokenizer
    return (
        type(backend.model).__name__ in _MODELS
        and not getattr(backend.model, "dropout", None)
        and all(step["type"] in _NORMALIZERS for step in _steps(backend.normalizer, "normalizers"))
        and _separates(_steps(backend.pre_tokenizer, "pretokenizers"))
        and not any(map(_reaches_over, tokenizer.added_tokens_decoder.values()))
    )


def cuts_around(prefix: str, after: str) -> tuple[int, int]:
    """Where to cut ``prefix``, 0 for nowhere, and the first place to cut ``after``, its length for nowhere.

    The prefix is cut at its last place but one: byte-level tokenizers place the first token of a text in another way.
    """
    places = [match.start() for match in _CUT.finditer(prefix)]
    behind = _CUT.search(after)
    return places[-2] if len(places) > 1 else 0, len(after) if behind is None else behind.start()


def _steps(part: Any, inner: str) -> list[Mapping[str, Any]]:
    """The settings of a normalizer or pre-tokenizer, or of all those in a sequence of them."""
    return [] if part is None else list(_flat(json.loads(part.__getstate__()), inner))


def _flat(settings: Mapping[str, Any], inner: str) -> Iterable[Mapping[str, Any]]:
    if settings["type"] == "Sequence":
        for setting in settings[inner]:
            yield from _flat(setting, inner)
    else:
        yield settings


def _separates(steps: Sequence[Mapping[str, Any]]) -> bool:
    """Whether some pre-tokenizer separates words, while the spaces are still there, and none looks beyond them."""
    separated = False
    for step in steps:
        kind = step["type"]
        if (
            kind in _SEPARATORS
            or (kind == "ByteLevel" and step["use_regex"])
            or (kind == "Metaspace" and step["split"])
            or (kind == "Split" and _splits_words(step))
        ):
            separated = True
        elif not (kind in _BY_CHARACTER or (kind == "ByteLevel" and separated)):
            return False
    return separated


def _splits_words(step: Mapping[str, Any]) -> bool:
    """Whether a pre-tokenizer ``Split`` cuts out what an expression of known parts matches."""
    expression = step["pattern"].get("Regex")
    whole = (step["behavior"], step["invert"]) in {("Isolated", False), ("Removed", True)}
    return whole and expression is not None and _is_known(expression)


def _is_known(expression: str) -> bool:
    parts = _BAR.split(expression)
    # Everything must be matched, so that no piece is left between two matches.
    return set(parts) <= _PARTS and {r"\s+"} <= set(parts)


def _reaches_over(token: Any) -> bool:
    """Whether an added token may stand across a cut, or take the space behind it."""
    content = unicodedata.normalize("NFKC", token.content)
    return re.search(r"\S\s", content) is not None or (token.rstrip and content[-1:] not in string.punctuation)
