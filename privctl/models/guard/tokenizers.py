"""Limits on a tokenizer's files, checked before loading, since small files can require unbounded memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from privctl.domain.errors import InputError
from privctl.models.guard.keys import LARGEST_CONFIG, check_keys, read_object
from privctl.storage.reader import LARGEST_TEXT

#: Most bytes of tokenizer.json, and of any other vocabulary file; the largest published ones have 35 MB.
LARGEST_TOKENIZER = 128 << 20
#: Most entries of a vocabulary; the largest published ones have 300,000.
MOST_TOKENS = 2_000_000
#: Most tokens added to the vocabulary, and most characters of one; a single matcher is built from all of them.
MOST_ADDED, LONGEST_ADDED = 50_000, 1024
#: Most characters of all added tokens together.
MOST_ADDED_CHARACTERS = 1 << 20
#: Most characters of a pattern, and the largest factor by which all replacements together may lengthen a text.
LONGEST_PATTERN, LARGEST_GROWTH = 1 << 14, 64
#: Most tokens that are put around every text, and most to which every text is padded.
MOST_FRAME, LONGEST_PADDING = 64, 1 << 20

_JSON = "tokenizer.json"
_CONFIGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_VOCABULARIES = ("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model")


def check_tokenizer(folder: Path) -> None:
    """Raise InputError for a tokenizer in ``folder`` that exceeds a limit, or that reads other files or runs code."""
    for name in _VOCABULARIES:
        _bound(folder / name, LARGEST_TOKENIZER)
    for name in _CONFIGS:
        if (folder / name).is_file():
            data = read_object(folder / name, LARGEST_CONFIG)
            check_keys(data, folder / name)
            decoder = data.get("added_tokens_decoder", {})
            added = data if name == "added_tokens.json" else decoder if isinstance(decoder, dict) else {}
            tokens = [v.get("content", "") if isinstance(v, dict) else k for k, v in added.items()]
            _check_added(folder / name, tokens)
    if (folder / _JSON).is_file():
        path = folder / _JSON
        _check_json(read_object(path, min(LARGEST_TOKENIZER, LARGEST_TEXT)), path)


def _bound(path: Path, largest: int) -> None:
    if path.is_file() and path.stat().st_size > largest:
        raise InputError(f"{path} has {path.stat().st_size} bytes, and {largest} is the most that is read")


def _check_json(data: dict[str, Any], path: Path) -> None:
    added = data.get("added_tokens")
    entries = added if isinstance(added, list) else []
    _check_added(path, [entry.get("content", "") for entry in entries if isinstance(entry, dict)])
    model = data.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict | list) and len(vocabulary) > MOST_TOKENS:
        raise InputError(f"{path} has a vocabulary of {len(vocabulary)} tokens, and {MOST_TOKENS} is the most")
    _check_padding(data.get("padding"), path)
    growth, frame = 1.0, 0
    for section in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        for step in _steps(data.get(section)):
            _check_patterns(step, path)
            growth *= _growth(step) if section != "decoder" else 1.0
            frame = max(frame, *(len(step[name]) for name in ("single", "pair") if isinstance(step.get(name), list)), 0)
    if growth > LARGEST_GROWTH:
        raise InputError(
            f"{path} replaces and prepends so that a text may grow by a factor of {growth:.3g}, and "
            f"{LARGEST_GROWTH} is the most; give the model's own tokenizer"
        )
    if frame > MOST_FRAME:
        raise InputError(f"{path} puts {frame} tokens around every text, and {MOST_FRAME} is the most")


def _check_added(path: Path, tokens: list[Any]) -> None:
    lengths = [len(token) for token in tokens if isinstance(token, str)]
    if len(tokens) > MOST_ADDED:
        raise InputError(f"{path} adds {len(tokens)} tokens, and {MOST_ADDED} is the most; give the model's own")
    if max(lengths, default=0) > LONGEST_ADDED or sum(lengths) > MOST_ADDED_CHARACTERS:
        raise InputError(
            f"{path} adds tokens of up to {max(lengths)} characters, {sum(lengths)} in all; at most {LONGEST_ADDED} "
            f"and {MOST_ADDED_CHARACTERS} are read: give the model's own"
        )


def _check_padding(padding: Any, path: Path) -> None:
    if not isinstance(padding, dict):
        return
    strategy = padding.get("strategy")
    fixed = strategy.get("Fixed") if isinstance(strategy, dict) else None
    for length in (fixed, padding.get("pad_to_multiple_of")):
        if isinstance(length, int) and length > LONGEST_PADDING:
            raise InputError(f"{path} fills every text up to {length} tokens, and {LONGEST_PADDING} is the most")


def _steps(data: Any) -> Iterator[dict[str, Any]]:
    """All objects in a section of a tokenizer, at any depth."""
    waiting = [data]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def _check_patterns(step: dict[str, Any], path: Path) -> None:
    for value in (step.get("Regex"), step.get("String"), step.get("content"), step.get("prepend")):
        if isinstance(value, str) and len(value) > LONGEST_PATTERN:
            raise InputError(f"{path} has a pattern of {len(value)} characters, and {LONGEST_PATTERN} is the most")


def _growth(step: dict[str, Any]) -> float:
    """The largest factor by which a step may lengthen a text of one character."""
    if step.get("type") == "Prepend":
        return 1.0 + len(step.get("prepend") or "") / 1.0
    if step.get("type") != "Replace":
        return 1.0
    pattern = step.get("pattern")
    replaced = pattern.get("String") if isinstance(pattern, dict) else None
    shortest = len(replaced) if isinstance(replaced, str) and replaced else 1
    # A pattern that can match the empty string matches between any two characters.
    between = 1.0 if not replaced else 0.0
    return max(1.0, math.ceil(len(step.get("content") or "") / shortest) + between)
