"""The design of canaries: secrets, prefixes, copies and coins, before anything is planted."""

from __future__ import annotations

import itertools
import math
import random
import re
import secrets
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from audits.canaries.formats import DIGITS, CanaryFormat, SecretAlphabet, format_of, lead, parse_template
from audits.canaries.manifest import Canary, Guesses, RecordFields
from audits.statistics.power import one_run_detectable
from audits.statistics.several_guesses import GuessCount, ceiling, rejects_claim
from privctl.data.columns import Columns, text_of
from privctl.data.records import read_records
from privctl.data.rows import rows_of
from privctl.data.several import DataPath
from privctl.domain.errors import CommandError, InputError

#: The maximum number of canaries, so that a typing error does not fill a disk.
_MOST = 100_000
_MOST_COPIES = 100_000
#: A prefix is the first words of a record, at most 8.
_PREFIX = re.compile(r"\s*\S+(?:\s+\S+){0,7}")
#: The number of characters of text searched for secrets at once.
_BLOCK = 1 << 22
#: The maximum number of rounds of redrawing secrets that occur in the data.
_ROUNDS = 20
#: The minimum number of guesses of each kind, if there are enough canaries: if all are right, they certify a positive
#: epsilon.
_FEWEST_GUESSES = 10
#: Fractions of the canaries that are guessed, half as included, in addition to guessing all. A weak trace shows only in
#: the extremes; a large claimed epsilon can be refuted only by many guesses that are nearly all right.
_SHARES = (0.02, 0.2, 0.5)
#: This many canaries have all sets of guesses, and so have more.
_EVERY_SET = 200
#: The share of the failure probability for bounds on epsilon; tests and intervals get the rest.
BOUNDS_SHARE = 0.5
#: The maximum number of words kept of a tokenizer's vocabulary.
_WORDS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantRequest:
    """What to plant where; all ``copies`` are used equally often. ``seed`` None uses the system's randomness.

    Raises CommandError for options that are out of range or do not go together.
    """

    data: DataPath
    output: Path
    manifest: Path
    count: int = 200
    kind: SecretAlphabet | None = None
    length: int | None = None
    templates: tuple[str, ...] = ()
    copies: tuple[int, ...] = (1,)
    prefix_from: DataPath | None = None
    tokenizer: Path | None = None
    delta: float = 1e-5
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.count <= _MOST:
            raise CommandError(f"--count is {self.count}; plant between 2 and {_MOST} canaries")
        if not 0 <= self.delta < 1:
            raise CommandError(f"--delta is {self.delta:g}; it must be at least 0 and below 1, best far below")
        for copies in self.copies:
            if not 1 <= copies <= _MOST_COPIES:
                raise CommandError(f"--copies is {copies}; each canary has between 1 and {_MOST_COPIES} copies")
        if len(set(self.copies)) > self.count:
            raise CommandError(f"--copies names {len(set(self.copies))} numbers for {self.count} canaries; plant more")
        kind = self.secret_kind
        if (kind is SecretAlphabet.TEMPLATE) != bool(self.templates):
            raise CommandError("--template goes with --kind template, and only with it")
        if (kind is SecretAlphabet.TOKENS) != (self.tokenizer is not None):
            raise CommandError("--tokenizer goes with --kind tokens, and only with it; name the model to be trained")
        if kind is SecretAlphabet.TEMPLATE and self.length is not None:
            raise CommandError("--length is said in the template's slot, such as {digits:9}; leave the option out")
        if self.seed is not None and not 0 <= self.seed < 2**32:
            raise CommandError(f"--seed is {self.seed}; it must lie between 0 and 4294967295")

    @property
    def secret_kind(self) -> SecretAlphabet:
        """The requested kind of secret, or the one that follows from the other options."""
        if self.kind is not None:
            return self.kind
        return (
            SecretAlphabet.TEMPLATE
            if self.templates
            else SecretAlphabet.TOKENS
            if self.tokenizer
            else SecretAlphabet.DIGITS
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CanaryPower:
    """The power of a number of canaries: the largest possible bound, and the smallest epsilon likely to be detected.

    Both are for groups of ``copies`` records, over all sets of ``guesses``. ``detectable`` (with probability 0.8, for
    randomized response) is None if even all guesses being right proves nothing.
    """

    copies: int
    canaries: int
    guesses: tuple[int, ...]
    ceiling: float
    detectable: float | None


def power(sets: Sequence[Guesses], delta: float, alpha: float) -> CanaryPower:
    """The power of the sets of guesses on the same canaries, whose bound may fail with probability ``alpha``."""
    first = sets[0]
    share = alpha / len(sets)
    least = min(one_run_detectable(group.canaries, group.guesses, delta, share) for group in sets)
    return CanaryPower(
        copies=first.copies,
        canaries=first.canaries,
        guesses=tuple(group.guesses for group in sets),
        ceiling=power_ceiling(sets, delta, alpha),
        detectable=least if math.isfinite(least) else None,
    )


def levels(groups: Sequence[Guesses]) -> list[tuple[Guesses, ...]]:
    """The sets of guesses grouped by the canaries they are on, in the order of copies."""
    by_copies: dict[int, tuple[Guesses, ...]] = {}
    for group in groups:
        by_copies[group.copies] = (*by_copies.get(group.copies, ()), group)
    return list(by_copies.values())


def bound_alpha(alpha: float, groups: Sequence[Guesses], sets: Sequence[Guesses]) -> float:
    """The share of an audit's ``alpha`` for the bounds from ``sets``, among all registered ``groups`` (Bonferroni).

    Several bounds from one set need no correction: each fails if the number of right guesses exceeds a threshold, so
    jointly they fail no more often than the one with the lowest threshold.
    """
    return BOUNDS_SHARE * alpha * len(sets) / len(groups)


def register(copies: Sequence[int]) -> tuple[Guesses, ...]:
    """The guesses to be made, fixed by the numbers of copies alone: 2, 20, 50 and 100 % of the canaries.

    Each set has at least 20 guesses if there are more canaries than that; sets of equal size count once. Half of each
    set is guessed as included, half as left out. In the set of all canaries, the scores decide how many, because coins
    rarely include exactly half. There are sets for the canaries with the fewest copies, where a bound is tightest for
    single records, and for all canaries.
    """
    guess_sets = []
    for most in dict.fromkeys((min(copies), max(copies))):
        count = sum(number <= most for number in copies)
        if count < 2:
            continue
        halves = (max(_FEWEST_GUESSES, round(share * count / 2)) for share in _SHARES)
        guess_sets += [
            Guesses(copies=most, canaries=count, included=half, excluded=half)
            for half in dict.fromkeys(halves)
            if half < count // 2
        ]
        guess_sets.append(
            Guesses(copies=most, canaries=count, included=count // 2, excluded=count - count // 2, divided=True)
        )
    return tuple(guess_sets)


def canaries_to_refute(epsilon: float, delta: float, alpha: float) -> int | None:
    """The least number of single-copy canaries that could refute ``epsilon`` at ``delta`` if every guess were right.

    ``alpha`` is the whole audit's. None if even the maximum number of canaries could not. With one more set of guesses,
    each has a smaller share of the error, so 106 canaries certify less than 105.
    """

    def could(count: int) -> bool:
        sets = register([1] * count)
        perfect = [
            GuessCount(canaries=count, guesses=guess_set.guesses, correct=guess_set.guesses) for guess_set in sets
        ]
        return rejects_claim(perfect, epsilon, delta, bound_alpha(alpha, sets, sets))

    sizes = [len(register([1] * count)) for count in range(2, _EVERY_SET + 1)]
    begins = [2, *(count for count, (a, b) in enumerate(itertools.pairwise(sizes), start=3) if a != b), _MOST + 1]
    for first, end in itertools.pairwise(begins):
        if could(end - 1):
            return first + bisect_left(range(first, end - 1), True, key=could)
    return None


def power_ceiling(sets: Sequence[Guesses], delta: float, alpha: float) -> float:
    """The largest epsilon that ``sets`` can certify."""
    return ceiling([(group.canaries, group.guesses) for group in sets], delta, alpha)


def randomness(request: PlantRequest) -> random.Random:
    """The operating system's generator, or a reproducible one if the request has a seed."""
    if request.seed is None:
        return secrets.SystemRandom()
    return random.Random(f"privctl canaries {request.seed}")  # noqa: S311 (the manifest says that it is no secret)


def shape_of(path: DataPath) -> RecordFields:
    """The fields of a data set's records. Raises InputError if they differ between records or are conversations."""
    pairs = records = 0
    for row in rows_of(path, Columns(), otherwise=".jsonl"):
        where, data = row.where, row.fields
        passage = text_of(data, where)
        if "messages" in data and "text" not in data:
            raise InputError(f"{where} is a conversation, and canaries are planted among texts; write it as one text")
        records, pairs = records + 1, pairs + (passage.start > 0)
        if 0 < pairs < records:
            raise InputError(
                f"{where} has other fields than the lines before it; a canary must look like the other "
                "records, so give data with 'text' alone, or with 'prompt' and 'response' alone"
            )
    return RecordFields.PAIR if pairs else RecordFields.TEXT


def formats_of(request: PlantRequest) -> tuple[CanaryFormat, ...]:
    """The formats requested."""
    kind = request.secret_kind
    if kind is SecretAlphabet.TEMPLATE:
        return tuple(dict.fromkeys(parse_template(text) for text in request.templates))
    before = "" if request.prefix_from else lead(kind)
    if kind is SecretAlphabet.DIGITS:
        return (format_of(kind, DIGITS, 6 if request.length is None else request.length, before=before),)
    assert request.tokenizer is not None
    words = vocabulary_words(request.tokenizer)
    return (format_of(kind, words, 8 if request.length is None else request.length, before=before),)


def vocabulary_words(path: Path) -> tuple[str, ...]:
    """Up to 4096 lower-case ASCII words that a model's tokenizer encodes as one token each inside a text."""
    from privctl.models.language import (  # imports torch, which other kinds do not need
        read_tokenizer,
    )
    from privctl.models.quiet import quiet_transformers

    folder = path if path.is_dir() else path.parent
    tokenizer = read_tokenizer(folder, path)
    with quiet_transformers():
        words = {tokenizer.decode([i]).strip() for i in range(len(tokenizer))}
        fit = sorted(word for word in words if re.fullmatch(r"[a-z0-9]{2,}", word))
        ids: list[list[int]] = []
        if fit:
            ids = tokenizer([f"{word} {word} {word}" for word in fit], add_special_tokens=False)["input_ids"]
    whole_words = [
        word for word, row in zip(fit, ids, strict=True) if len(row) == 3 and row[1] == row[2] != tokenizer.unk_token_id
    ]
    if len(whole_words) < 2:
        raise InputError(f"{path} has a tokenizer without whole words; use --kind digits or --kind template")
    step = max(1, -(-len(whole_words) // _WORDS))
    return tuple(whole_words[::step])


def draw(
    request: PlantRequest, formats: Sequence[CanaryFormat], shape: RecordFields, source: random.Random
) -> list[Canary]:
    """The canaries with their coins; secrets are distinct and do not occur in the data.

    Raises CommandError if a format has too few secrets, InputError for data that cannot be read.
    """
    prefixes = _prefixes(request, source)
    where = [i // len(request.copies) % len(formats) for i in range(request.count)]
    for f, form in enumerate(formats):
        if form.space < 2 * where.count(f):
            raise CommandError(
                f"there are only {form.space} secrets for {where.count(f)} canaries of one format; give a longer "
                "--length, or fewer canaries"
            )
    fronts = [_front(prefix, formats[f], shape) for prefix, f in zip(prefixes, where, strict=True)]
    secrets_drawn = _draw_distinct(request.data, [formats[f] for f in where], fronts, source)
    return [
        Canary(
            format=where[i],
            prefix=fronts[i],
            secret=secrets_drawn[i],
            copies=request.copies[i % len(request.copies)],
            included=bool(source.getrandbits(1)),
        )
        for i in range(request.count)
    ]


def _front(prefix: str, form: CanaryFormat, shape: RecordFields) -> str:
    """Everything before the secret; a prompt ends with the newline that joins it to its response."""
    front = f"{prefix} {form.before}" if prefix else form.before
    if shape is RecordFields.PAIR:
        front = front.rstrip()
    if not front.strip():
        raise CommandError("a canary needs words before its secret; put some into the template, or give --prefix-from")
    return front + "\n" if shape is RecordFields.PAIR else front


def _prefixes(request: PlantRequest, source: random.Random) -> list[str]:
    """The first words of a random record for each canary, of distinct records if there are enough."""
    if request.prefix_from is None:
        return [""] * request.count
    pool: list[str] = []  # a uniform sample of the distinct beginnings (reservoir sampling)
    seen: set[str] = set()
    for record in read_records(request.prefix_from):
        match = _PREFIX.match(record.text)
        assert match is not None  # a record is not blank
        text = match.group()
        if text in seen:
            continue
        seen.add(text)
        if len(pool) < request.count:
            pool.append(text)
        elif (index := source.randrange(len(seen))) < request.count:
            pool[index] = text
    source.shuffle(pool)
    return [pool[i % len(pool)] for i in range(request.count)]


def _draw_distinct(
    data: DataPath, formats: Sequence[CanaryFormat], fronts: Sequence[str], source: random.Random
) -> list[str]:
    """One secret for each of ``formats``; secrets that occur in the data or in another canary are redrawn."""
    chosen: dict[int, str] = {}
    for _ in range(_ROUNDS):
        fresh: dict[int, str] = {}
        used = set(chosen.values())
        for i in sorted(set(range(len(formats))) - chosen.keys()):
            secret = formats[i].draw(source)
            if secret not in used:
                fresh[i] = secret
                used.add(secret)
        present = secrets_present((record.text for record in read_records(data)), fresh.values())
        chosen |= {i: secret for i, secret in fresh.items() if secret not in present}
        chosen = _unique_to_one(chosen, formats, fronts)
        if len(chosen) == len(formats):
            return [chosen[i] for i in range(len(formats))]
    raise CommandError(
        f"--data {data} already holds so many of the possible secrets that {len(formats)} others are hard to find; "
        "give a longer --length"
    )


def _unique_to_one(chosen: Mapping[int, str], formats: Sequence[CanaryFormat], fronts: Sequence[str]) -> dict[int, str]:
    """The secrets that occur in no other canary."""
    blob = "\0".join(fronts[i] + secret + formats[i].after for i, secret in chosen.items())
    return {i: secret for i, secret in chosen.items() if blob.count(secret) == 1}


def secrets_present(texts: Iterator[str], sought: Collection[str]) -> set[str]:
    """Which of ``sought`` occur in any of the texts."""
    present: set[str] = set()
    for block in blocks(texts):
        present |= {secret for secret in sought if secret not in present and secret in block}
    return present


def blocks(texts: Iterator[str]) -> Iterator[str]:
    """Join the texts into long blocks, which are faster to search, with a separator that no secret contains."""
    texts_of_block: list[str] = []
    size = 0
    for text in texts:
        texts_of_block.append(text)
        size += len(text)
        if size > _BLOCK:
            yield "\0".join(texts_of_block)
            texts_of_block, size = [], 0
    yield "\0".join(texts_of_block)
