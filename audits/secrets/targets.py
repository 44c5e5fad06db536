"""Which secrets are attacked, where in the data they stand, and what the plan says of them.

Secrets with a record that could be drawn are attacked as trained on; those whose records a plan never draws are the
control: everything else about them is alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from audits.canaries.formats import CanaryFormat
from audits.canaries.manifest import Canary, Manifest
from audits.secrets.bound import PlannedBound
from audits.secrets.find import OtherOccurrences, occurrence
from audits.secrets.fresh import WordFrequencies, words_of
from privctl.data.records import read_records
from privctl.data.texts import read_texts
from privctl.domain.errors import InputError
from privctl.secrets.protection import Protection
from privctl.secrets.table import Secret, read_secrets
from privctl.storage.json_text import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Records a secret is looked for in, and how many different ones it is asked of at most.
_LOOKED, _ASKED = 16, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretPassage:
    """A record's text, with the secret at its characters ``begin`` to ``end``."""

    text: str
    begin: int
    end: int

    @property
    def value(self) -> str:
        """The secret as the record writes it."""
        return self.text[self.begin : self.end]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretTarget:
    """A secret to attack; ``position`` is its place in the book.

    ``control`` secrets were never drawn for training. ``allowance`` is what the plan says of it, None without a plan,
    and where a record that the book does not name holds the value too. ``format`` is what the value was drawn from,
    uniformly, where it is a planted canary's.
    """

    position: int
    kind: str
    value: str
    passages: tuple[SecretPassage, ...]
    given: tuple[str, ...]
    control: bool
    allowance: PlannedBound | None
    format: CanaryFormat | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretTargets:
    """What to attack, and what was left out: (kind, why) of each secret.

    ``values`` are all values of each kind in the book, ``words`` those of the data, ``taken`` what canaries' values
    cannot have been, as it stands in the data or is another's. ``eligible`` secrets might have
    been attacked, ``strayed`` stand in records that the book does not name (looked for with a plan only), ``partial``
    counts canaries of a format of which the book lacks others.
    """

    targets: tuple[SecretTarget, ...]
    left: tuple[tuple[str, str], ...]
    values: Mapping[str, Sequence[str]]
    words: WordFrequencies
    taken: frozenset[str]
    records: int
    eligible: int
    strayed: int
    partial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """A secret, its records by how often they were drawn, and whether that is never."""

    position: int
    secret: Secret
    records: NDArray[np.int64]
    control: bool
    allowance: PlannedBound | None


def choose(
    book: Path, data: Path, plan: Protection | None, manifest: Manifest | None, *, most: int, seed: int
) -> SecretTargets:
    """At most ``most`` secrets of each side, drawn by numpy's PCG64 under ``seed``.

    Raises InputError for a book that does not fit the data or the plan.
    """
    secrets = list(read_secrets(book))
    left: list[tuple[str, str]] = []
    found: list[_Chosen] = []
    places = {} if plan is None else {name: j for j, name in enumerate(plan.ids)}
    for position, secret in enumerate(secrets):
        if secret.value is None:
            left.append((secret.kind, "without a value in the book, so that there is nothing to tell"))
        elif not len(secret.records):
            left.append((secret.kind, "in no record"))
        else:
            found.append(_planned(position, secret, plan, places, book))
    chosen = _drawn(found, most, seed)
    read = _read(data, chosen, plan, () if manifest is None else manifest.formats)
    _check_records(secrets, read.records, book, data)
    canaries, partial = _canaries(manifest, secrets)
    targets = []
    for each in chosen:
        made = _target(each, read, canaries)
        if isinstance(made, str):
            left.append((each.secret.kind, made))
        else:
            targets.append(made)
    values: dict[str, dict[str, None]] = {}
    for secret in secrets:
        if secret.value is not None:
            values.setdefault(secret.kind, {})[secret.value] = None
    return SecretTargets(
        targets=tuple(targets),
        left=tuple(left),
        values={kind: tuple(some) for kind, some in values.items()},
        words=WordFrequencies(read.words),
        taken=read.windows | {canary.secret for canary in (() if manifest is None else manifest.canaries)},
        records=read.records,
        eligible=len(found),
        strayed=sum(each.secret.value in read.strayed for each in chosen),
        partial=partial,
    )


def _planned(position: int, secret: Secret, plan: Protection | None, places: Mapping[str, int], book: Path) -> _Chosen:
    if plan is None:
        return _Chosen(position=position, secret=secret, records=secret.records, control=False, allowance=None)
    j = places.get(secret.id)
    if j is None or not np.array_equal(
        np.sort(plan.records[plan.starts[j] : plan.starts[j + 1]]), np.sort(secret.records)
    ):
        raise InputError(
            f"{book} has the secret {shown(secret.id)}, which the plan does not hold with the same records; give the "
            "book that was planned for, or plan again with privctl secrets plan"
        )
    drawn = plan.probabilities[secret.records]
    return _Chosen(
        position=position,
        secret=secret,
        records=secret.records[np.argsort(-drawn, kind="stable")][: int((drawn > 0).sum()) or None],
        control=not drawn.any(),
        allowance=PlannedBound(
            information=float(plan.information[j]),
            prior=float(plan.priors[j]),
            posterior=float(plan.bounds[j]),
        ),
    )


def _drawn(found: Sequence[_Chosen], most: int, seed: int) -> list[_Chosen]:
    random = np.random.default_rng(seed)
    kept: list[_Chosen] = []
    for control in (False, True):
        side = [each for each in found if each.control is control]
        some = random.permutation(len(side))[:most]
        kept += [side[i] for i in np.sort(some)]
    return kept


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadTargets:
    texts: Mapping[int, str]
    words: Mapping[str, int]
    strayed: frozenset[str]
    windows: frozenset[str]
    records: int


def _read(
    data: Path, chosen: Sequence[_Chosen], plan: Protection | None, formats: Sequence[CanaryFormat]
) -> _ReadTargets:
    """One pass over the data; records that a plan never draws count for nothing where values may have strayed."""
    wanted = {int(number) for each in chosen for number in each.records[:_LOOKED]}
    own = {} if plan is None else {each.secret.value or "": each.secret.records.tolist() for each in chosen}
    elsewhere = OtherOccurrences(own)
    patterns = _windows(formats)
    texts: dict[int, str] = {}
    words: Counter[str] = Counter()
    windows: set[str] = set()
    total = 0
    for number, text in enumerate(_texts(data)):
        total += 1
        if number in wanted:
            texts[number] = text
        words.update(words_of(text))
        for pattern in patterns:
            windows.update(pattern.findall(text))
        if plan is not None and number < len(plan.probabilities) and plan.probabilities[number] > 0:
            elsewhere.add(number, text)
    return _ReadTargets(texts=texts, words=words, strayed=elsewhere.found(), windows=frozenset(windows), records=total)


def _windows(formats: Sequence[CanaryFormat]) -> list[re.Pattern[str]]:
    """What finds all values of each format in a text; spaces of whole words are too large for one to be met twice."""
    return [
        re.compile(f"(?=([{re.escape(''.join(form.alphabet))}]{{{form.length}}}))")
        for form in dict.fromkeys(formats)
        if not form.joiner and all(len(piece) == 1 for piece in form.alphabet)
    ]


def _check_records(secrets: Sequence[Secret], total: int, book: Path, data: Path) -> None:
    for secret in secrets:
        if len(secret.records) and secret.records[-1] >= total:
            raise InputError(
                f"{book} has the secret {shown(secret.id)} in record {secret.records[-1]}, but {data} holds {total} "
                f"records, 0 to {total - 1}; give the data that the book was made of"
            )


def _texts(path: Path) -> Iterator[str]:
    """The texts of records as the book counts them."""
    if Path(path.name.removesuffix(".gz")).suffix.lower() in (".csv", ".tsv"):
        yield from (record.text for record in read_texts(path))
    else:
        yield from (record.text for record in read_records(path))


def _canaries(
    manifest: Manifest | None, secrets: Sequence[Secret]
) -> tuple[Mapping[str, tuple[Canary, CanaryFormat]], int]:
    """The included canaries by value, of formats whose included canaries the book holds all; how many it lacks some of.

    A book that holds only some may have chosen them by their values, and then these are no longer uniform.
    """
    if manifest is None:
        return {}, 0
    held = {secret.value for secret in secrets if len(secret.records)}
    found: dict[str, tuple[Canary, CanaryFormat]] = {}
    partial = 0
    for number, form in enumerate(manifest.formats):
        included = [each for each in manifest.canaries if each.included and each.format == number]
        here = [each for each in included if each.secret in held]
        if len(here) == len(included):
            found |= {each.secret: (each, form) for each in included}
        else:
            partial += len(here)
    return found, partial


def _target(
    each: _Chosen, read: _ReadTargets, canaries: Mapping[str, tuple[Canary, CanaryFormat]]
) -> SecretTarget | str:
    """The secret with its passages, or why it is left out."""
    value = each.secret.value or ""
    strayed = value in read.strayed
    if each.control and strayed:
        return "never drawn, but its value stands in a record that is"
    passages: dict[str, SecretPassage] = {}
    for number in each.records[:_LOOKED].tolist():
        text = read.texts[number]
        place = occurrence(text, value)
        if place is not None:
            passages.setdefault(text, SecretPassage(text=text, begin=place[0], end=place[1]))
    if not passages:
        return "whose value does not occur in its records"
    some = tuple(passages.values())[:_ASKED]
    canary, form = canaries.get(value, (None, None))
    planted = canary is not None and all(p.text[: p.begin] == canary.prefix and p.value == value for p in some)
    return SecretTarget(
        position=each.position,
        kind=each.secret.kind,
        value=value,
        passages=some,
        given=each.secret.candidates,
        control=each.control,
        allowance=None if strayed else each.allowance,
        format=form if planted else None,
    )
