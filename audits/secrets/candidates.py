"""The candidates that a secret is ranked among: other values that it could have had.

A planted canary is ranked among fresh draws of its own format, which are exchangeable with it by design. Any other
secret is ranked among the candidates that its book names, if any; otherwise among other values of its kind, as they are
real, and then among fresh values of its shape. None of these occurs in the records used by the attack.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from audits.canaries.formats import CanaryFormat
from audits.secrets.fresh_values import WordFrequencies, fresh_value, in_case_of
from audits.secrets.rows import Reader, SecretSpan, tokens_differ
from audits.secrets.targets import SecretPassage, SecretTarget

#: Formats of more values than this have so many that their candidates are as good as independent.
_COUNTED = 10**9
#: The maximum number of fresh values drawn per candidate: some have another number of tokens.
_TRIES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """The attack on one secret: ``places`` [passages][candidates], with the true value first in each.

    ``pool`` is the number of values that candidates of a planted canary were drawn from; 0 for other secrets.
    """

    target: SecretTarget
    places: tuple[tuple[SecretSpan, ...], ...]
    pool: int = 0

    @property
    def count(self) -> int:
        """The number of candidates, including the true value."""
        return len(self.places[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """Sources of candidates: ``values`` by kind and the ``words`` of the data; canaries skip ``excluded`` values."""

    values: Mapping[str, Sequence[str]]
    words: WordFrequencies
    excluded: Collection[str]
    #: The number of values left of each format; see ``pool``.
    left: dict[CanaryFormat, int] = field(default_factory=dict)

    def pool(self, form: CanaryFormat) -> int:
        """The number of values of ``form`` that are not excluded, at least 1 and at most 10^9."""
        if form not in self.left:
            taken = 0
            if form.space <= _COUNTED:  # of more, those excluded make no difference
                piece = f"(?:{'|'.join(map(re.escape, form.alphabet))})"
                possible = re.compile(re.escape(form.joiner).join([piece] * form.length))
                taken = sum(possible.fullmatch(value) is not None for value in self.excluded)
            self.left[form] = max(1, min(form.space, _COUNTED) - taken)
        return self.left[form]


def make_problem(reader: Reader, target: SecretTarget, sources: Sources, most: int, seed: int) -> Problem | str:
    """The secret among at most ``most`` values, including itself; or why it cannot be attacked.

    Generated candidates have as many tokens as the true value, after (and, for a masked model, before) the same ones.
    Candidates named by the book are used unchanged, except if one is a prefix of the true value or vice versa: the
    shorter of two such values always has the lower loss.
    """
    passages, true, reason = _usable_passages(reader, target)
    if not true:
        return reason
    candidates: list[tuple[SecretSpan, ...]] = [tuple(true)]
    source = random.Random(f"privctl secrets {seed} {target.position}")  # noqa: S311 (nothing secret)
    named_by_book = bool(target.candidates) and target.format is None
    for values in _batches(_values(target, sources, most, source), most):
        columns = (
            reader.places(passage, [match_case(target, passage, value) for value in values]) for passage in passages
        )
        for spans in zip(*columns, strict=True):
            if named_by_book:
                fits = not any(
                    reader.unusable_reason(a) or _one_begins_other(a, b) for a, b in zip(spans, true, strict=True)
                )
            else:
                fits = all(a.kind == b.kind for a, b in zip(spans, true, strict=True))
            if fits and len(candidates) < most:
                candidates.append(spans)
        if len(candidates) >= most:
            break
    if len(candidates) < 2:
        return "with no other value of as many tokens to tell it from"
    if not any(tokens_differ(spans, candidates[0]) for spans in candidates[1:]):
        return "which the tokenizer does not tell from any other value"
    pool = 0 if target.format is None else sources.pool(target.format)
    return Problem(target=target, places=tuple(zip(*candidates, strict=True)), pool=pool)


def _usable_passages(reader: Reader, target: SecretTarget) -> tuple[list[SecretPassage], list[SecretSpan], str]:
    """The distinct usable passages, the true value's tokens in them, and why the first unusable one is not."""
    passages: list[SecretPassage] = []
    places: list[SecretSpan] = []
    reason = ""
    distinct = set()
    for passage in target.passages:
        (place,) = reader.places(passage, [passage.value])
        why = reader.unusable_reason(place)
        reason = reason or why
        name = (place.kind, place.tokens.tobytes())
        if not why and name not in distinct:
            distinct.add(name)
            passages.append(passage)
            places.append(place)
    return passages, places, reason


def _one_begins_other(first: SecretSpan, second: SecretSpan) -> bool:
    """Whether the tokens of one are a proper prefix of the other's."""
    shorter, longer = sorted((first.tokens, second.tokens), key=len)
    return len(shorter) < len(longer) and np.array_equal(shorter, longer[: len(shorter)])


def match_case(target: SecretTarget, passage: SecretPassage, value: str) -> str:
    """``value`` in the letter case of ``passage``, if that differs from the book's."""
    return value if passage.value == target.value else in_case_of(passage.value, value)


def _values(target: SecretTarget, sources: Sources, most: int, source: random.Random) -> Iterator[str]:
    """Distinct values other than the secret's own."""
    texts = [passage.text.casefold() for passage in target.passages]
    seen = {target.value.casefold()}
    for value in _draw_values(target, sources, most, source):
        name = value.casefold()
        if name not in seen and (target.candidates or target.format or not any(name in text for text in texts)):
            seen.add(name)
            yield value


def _draw_values(target: SecretTarget, sources: Sources, most: int, source: random.Random) -> Iterator[str]:
    tries = _TRIES * most
    if target.format is not None:
        for _ in range(tries):
            value = target.format.draw(source)
            if value not in sources.excluded:
                yield value
    elif target.candidates:
        yield from source.sample(target.candidates, len(target.candidates))
    else:
        others = sources.values[target.kind]
        yield from source.sample(others, min(len(others), tries))
        for _ in range(tries):
            value_drawn = fresh_value(target.value, sources.words, source)
            if value_drawn is not None:
                yield value_drawn


def _batches(values: Iterator[str], size: int) -> Iterator[list[str]]:
    while batch := list(itertools.islice(values, size)):
        yield batch
