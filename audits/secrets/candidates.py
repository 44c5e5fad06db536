"""What a secret is told from: other values that it could have had.

A planted canary is told from fresh draws of its own format, so that its value and theirs are exchangeable by design.
Any other secret is told from the candidates its book names; else from other values of its kind, as they are real ones,
and then from fresh values of its shape. None of these stands in the records that the attack looks at.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from audits.secrets.fresh import WordFrequencies, fresh, in_case_of
from audits.secrets.rows import Reader, SecretSpan, tells
from audits.secrets.targets import SecretPassage, SecretTarget

#: Fresh values drawn for each candidate wanted, at most: some have another number of tokens.
_TRIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What a model is asked of one secret: ``places`` [passages][candidates], the true value first in each."""

    target: SecretTarget
    places: tuple[tuple[SecretSpan, ...], ...]

    @property
    def count(self) -> int:
        """Candidates, the true value among them."""
        return len(self.places[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Where candidates come from: ``values`` by kind, the ``words`` of the data; no canary's may be ``taken``."""

    values: Mapping[str, Sequence[str]]
    words: WordFrequencies
    taken: Collection[str]


def problem(reader: Reader, target: SecretTarget, sources: Sources, wanted: int, seed: int) -> Problem | str:
    """The secret among ``wanted`` values at most, itself counted; or why it cannot be attacked.

    Made candidates have as many tokens as the true value, after (and, for a masked model, before) the same ones.
    Candidates named by the book are taken as they are, but for those that begin the true value or that it begins:
    the shorter of two such has the lower loss whatever the model knows.
    """
    passages, true, reason = _asked(reader, target)
    if not true:
        return reason
    found: list[tuple[SecretSpan, ...]] = [tuple(true)]
    source = random.Random(f"privctl secrets {seed} {target.position}")  # noqa: S311 (nothing secret)
    as_they_are = bool(target.given) and target.format is None
    for some in _batches(_values(target, sources, wanted, source), wanted):
        columns = (reader.places(passage, [written(target, passage, value) for value in some]) for passage in passages)
        for made in zip(*columns, strict=True):
            if as_they_are:
                fits = not any(reader.unfit(a) or _begins(a, b) for a, b in zip(made, true, strict=True))
            else:
                fits = all(a.kind == b.kind for a, b in zip(made, true, strict=True))
            if fits and len(found) < wanted:
                found.append(made)
        if len(found) >= wanted:
            break
    if len(found) < 2:
        return "with no other value of as many tokens to tell it from"
    if not any(tells(made, found[0]) for made in found[1:]):
        return "which the tokenizer does not tell from any other value"
    return Problem(target=target, places=tuple(zip(*found, strict=True)))


def _asked(reader: Reader, target: SecretTarget) -> tuple[list[SecretPassage], list[SecretSpan], str]:
    """The passages that differ and can be asked of, the true value's places in them, and what was wrong with others."""
    passages: list[SecretPassage] = []
    places: list[SecretSpan] = []
    reason = ""
    seen = set()
    for passage in target.passages:
        (place,) = reader.places(passage, [passage.value])
        why = reader.unfit(place)
        reason = reason or why
        name = (place.kind, place.tokens.tobytes())
        if not why and name not in seen:
            seen.add(name)
            passages.append(passage)
            places.append(place)
    return passages, places, reason


def _begins(one: SecretSpan, other: SecretSpan) -> bool:
    """Whether the tokens of one are the beginning of the other's, and not all of them."""
    shorter, longer = sorted((one.tokens, other.tokens), key=len)
    return len(shorter) < len(longer) and np.array_equal(shorter, longer[: len(shorter)])


def written(target: SecretTarget, passage: SecretPassage, value: str) -> str:
    """``value`` in the case in which ``passage`` writes the secret, where that is not how the book does."""
    return value if passage.value == target.value else in_case_of(passage.value, value)


def _values(target: SecretTarget, sources: Sources, wanted: int, source: random.Random) -> Iterator[str]:
    """Values that are not the secret's, none twice."""
    texts = [passage.text.casefold() for passage in target.passages]
    seen = {target.value.casefold()}
    for value in _drawn(target, sources, wanted, source):
        name = value.casefold()
        if name not in seen and (target.given or target.format or not any(name in text for text in texts)):
            seen.add(name)
            yield value


def _drawn(target: SecretTarget, sources: Sources, wanted: int, source: random.Random) -> Iterator[str]:
    tries = _TRIES * wanted
    if target.format is not None:
        for _ in range(tries):
            value = target.format.draw(source)
            if value not in sources.taken:
                yield value
    elif target.given:
        yield from source.sample(target.given, len(target.given))
    else:
        others = sources.values[target.kind]
        yield from source.sample(others, min(len(others), tries))
        for _ in range(tries):
            made = fresh(target.value, sources.words, source)
            if made is not None:
                yield made


def _batches(values: Iterator[str], size: int) -> Iterator[list[str]]:
    while some := list(itertools.islice(values, size)):
        yield some
