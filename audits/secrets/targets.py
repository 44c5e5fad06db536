"""The secrets to attack, their positions in the data, and the plan's bounds for them.

Secrets with a record that could be drawn count as trained on. Those whose records a plan never draws are the control,
as they are otherwise alike.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from audits.canaries.formats import CanaryFormat
from audits.canaries.manifest import Canary, Manifest
from audits.secrets.fresh_values import WordFrequencies, words_of
from audits.secrets.occurrences import OtherOccurrences, occurrence
from audits.secrets.planned_bound import PlannedBound
from privctl.data.columns import Columns
from privctl.data.records import Record, read_records
from privctl.data.rows import with_progress
from privctl.data.several import DataPath
from privctl.domain.errors import InputError
from privctl.domain.progress import Progress, unseen
from privctl.secrets.protection import Protection
from privctl.secrets.table import Secret, read_secrets
from privctl.storage.json_text import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of records searched for a secret, and the maximum number of distinct passages used by the attack.
_LOOKED, _ASKED = 16, 4
#: The prefix of reasons to leave out held-out secrets.
HELD_OUT_MARK = "held out, "


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
    """A secret to attack; ``position`` is its index in the book.

    ``control`` secrets were never drawn for training. ``allowance`` is the plan's bound, None without a plan or if a
    record that the book does not name also contains the value. ``format`` is the format of a planted canary, from which
    the value was drawn uniformly. ``held_out`` marks secrets of held-out records, and ``compared`` those and the
    trained ones compared with them; ``records`` counts the records that contain the secret.
    """

    position: int
    kind: str
    value: str
    passages: tuple[SecretPassage, ...]
    candidates: tuple[str, ...]
    control: bool
    allowance: PlannedBound | None
    format: CanaryFormat | None
    records: int = 1
    held_out: bool = False
    compared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretTargets:
    """The secrets to attack, and (kind, reason) of each that is ``omitted``.

    ``values`` are all values of each kind in the book, ``words`` those of the data. Canary candidates skip ``excluded``
    values, which occur in the data or belong to another canary. ``eligible`` secrets could be attacked, ``elsewhere``
    counts those that also occur in records that the book does not name (searched only with a plan), ``partial`` counts
    canaries of a format for which the book lacks others. ``listed`` counts all secrets of the book.
    """

    targets: tuple[SecretTarget, ...]
    omitted: tuple[tuple[str, str], ...]
    values: Mapping[str, Sequence[str]]
    words: WordFrequencies
    excluded: frozenset[str]
    records: int
    eligible: int
    elsewhere: int
    partial: int
    listed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chosen:
    """A secret, its records sorted by how often they were drawn, and whether they were never drawn."""

    position: int
    secret: Secret
    records: NDArray[np.int64]
    control: bool
    allowance: PlannedBound | None


def choose(
    book: Path,
    data: DataPath,
    plan: Protection | None,
    manifest: Manifest | None,
    *,
    most: int,
    seed: int,
    columns: Columns | None = None,
    progress: Progress = unseen,
) -> SecretTargets:
    """At most ``most`` secrets of each side, drawn by numpy's PCG64 under ``seed``.

    Raises InputError for a book that does not match the data or the plan.
    """
    secrets = list(read_secrets(book))
    omitted: list[tuple[str, str]] = []
    eligible: list[_Chosen] = []
    plan_indices = {} if plan is None else {name: j for j, name in enumerate(plan.ids)}
    for position, secret in enumerate(secrets):
        if secret.value is None:
            omitted.append((secret.kind, "without a value in the book, so that there is nothing to tell"))
        elif not len(secret.records):
            omitted.append((secret.kind, "in no record"))
        else:
            eligible.append(_with_plan(position, secret, plan, plan_indices, book))
    chosen = _draw(eligible, most, seed)
    records = with_progress(read_records(data, columns), data, progress)
    read = _read_data(records, chosen, plan, () if manifest is None else manifest.formats)
    _check_records(secrets, read.records, book, data)
    canaries, partial = _canaries(manifest, secrets)
    targets = []
    for chosen_secret in chosen:
        target = _target(chosen_secret, read, canaries)
        if isinstance(target, str):
            omitted.append((chosen_secret.secret.kind, target))
        else:
            targets.append(target)
    values: dict[str, dict[str, None]] = {}
    for secret in secrets:
        if secret.value is not None:
            values.setdefault(secret.kind, {})[secret.value] = None
    return SecretTargets(
        targets=tuple(targets),
        omitted=tuple(omitted),
        values={kind: tuple(distinct_values) for kind, distinct_values in values.items()},
        words=WordFrequencies(read.words),
        excluded=read.windows | {canary.secret for canary in (() if manifest is None else manifest.canaries)},
        records=read.records,
        eligible=len(eligible),
        elsewhere=sum(chosen_secret.secret.value in read.strayed for chosen_secret in chosen),
        partial=partial,
        listed=len(secrets),
    )


def _with_plan(
    position: int, secret: Secret, plan: Protection | None, plan_indices: Mapping[str, int], book: Path
) -> _Chosen:
    if plan is None:
        return _Chosen(position=position, secret=secret, records=secret.records, control=False, allowance=None)
    j = plan_indices.get(secret.id)
    if j is None or not np.array_equal(
        np.sort(plan.records[plan.starts[j] : plan.starts[j + 1]]), np.sort(secret.records)
    ):
        raise InputError(
            f"{book} has the secret {shown(secret.id)}, which the plan does not hold with the same records; give the "
            "book that was planned for, or plan again with privctl secrets plan"
        )
    draw_probabilities = plan.probabilities[secret.records]
    return _Chosen(
        position=position,
        secret=secret,
        records=secret.records[np.argsort(-draw_probabilities, kind="stable")][
            : int((draw_probabilities > 0).sum()) or None
        ],
        control=not draw_probabilities.any(),
        allowance=PlannedBound(
            information=float(plan.information[j]),
            prior=float(plan.priors[j]),
            posterior=float(plan.bounds[j]),
        ),
    )


def _draw(eligible: Sequence[_Chosen], most: int, seed: int) -> list[_Chosen]:
    random = np.random.default_rng(seed)
    drawn: list[_Chosen] = []
    for control in (False, True):
        side = [secret for secret in eligible if secret.control is control]
        order = random.permutation(len(side))[:most]
        drawn += [side[i] for i in np.sort(order)]
    return drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadTargets:
    texts: Mapping[int, str]
    words: Mapping[str, int]
    strayed: frozenset[str]
    windows: frozenset[str]
    records: int


def _read_data(
    data: Iterable[Record], chosen: Sequence[_Chosen], plan: Protection | None, formats: Sequence[CanaryFormat]
) -> _ReadTargets:
    """Read the data once. Records that a plan never draws are not searched for values of other records."""
    needed_records = {int(number) for chosen_secret in chosen for number in chosen_secret.records[:_LOOKED]}
    own_records = (
        {}
        if plan is None
        else {chosen_secret.secret.value or "": chosen_secret.secret.records.tolist() for chosen_secret in chosen}
    )
    elsewhere = OtherOccurrences(own_records)
    patterns = _windows(formats)
    texts: dict[int, str] = {}
    words: Counter[str] = Counter()
    windows: set[str] = set()
    total = 0
    for number, text in enumerate(record.text for record in data):
        total += 1
        if number in needed_records:
            texts[number] = text
        words.update(words_of(text))
        for pattern in patterns:
            windows.update(pattern.findall(text))
        if plan is not None and number < len(plan.probabilities) and plan.probabilities[number] > 0:
            elsewhere.add(number, text)
    return _ReadTargets(texts=texts, words=words, strayed=elsewhere.values(), windows=frozenset(windows), records=total)


def _windows(formats: Sequence[CanaryFormat]) -> list[re.Pattern[str]]:
    """Patterns for all values of each format; formats of whole words are too large for chance hits."""
    return [
        re.compile(f"(?=([{re.escape(''.join(form.alphabet))}]{{{form.length}}}))")
        for form in dict.fromkeys(formats)
        if not form.joiner and all(len(piece) == 1 for piece in form.alphabet)
    ]


def _check_records(secrets: Sequence[Secret], total: int, book: Path, data: DataPath) -> None:
    for secret in secrets:
        if len(secret.records) and secret.records[-1] >= total:
            raise InputError(
                f"{book} has the secret {shown(secret.id)} in record {secret.records[-1]}, but {data} holds {total} "
                f"records, 0 to {total - 1}; give the data that the book was made of"
            )


def _canaries(
    manifest: Manifest | None, secrets: Sequence[Secret]
) -> tuple[Mapping[str, tuple[Canary, CanaryFormat]], int]:
    """The included canaries by value, for formats that are complete in the book; and the number of listed others.

    A book with only some canaries may have selected them by value, and then their values are no longer uniform.
    """
    if manifest is None:
        return {}, 0
    in_book = {secret.value for secret in secrets if len(secret.records)}
    canaries_of_book: dict[str, tuple[Canary, CanaryFormat]] = {}
    partial = 0
    for number, form in enumerate(manifest.formats):
        included = [canary for canary in manifest.canaries if canary.included and canary.format == number]
        listed = [canary for canary in included if canary.secret in in_book]
        if len(listed) == len(included):
            canaries_of_book |= {canary.secret: (canary, form) for canary in included}
        else:
            partial += len(listed)
    return canaries_of_book, partial


def _target(
    chosen: _Chosen, read: _ReadTargets, canaries: Mapping[str, tuple[Canary, CanaryFormat]]
) -> SecretTarget | str:
    """The secret with its passages, or why it is left out."""
    value = chosen.secret.value or ""
    strayed = value in read.strayed
    if chosen.control and strayed:
        return "never drawn, but its value stands in a record that is"
    passages: dict[str, SecretPassage] = {}
    for number in chosen.records[:_LOOKED].tolist():
        text = read.texts[number]
        place = occurrence(text, value)
        if place is not None:
            passages.setdefault(text, SecretPassage(text=text, begin=place[0], end=place[1]))
    if not passages:
        return "whose value does not occur in its records"
    distinct_passages = tuple(passages.values())[:_ASKED]
    canary, form = canaries.get(value, (None, None))
    planted = canary is not None and all(
        p.text[: p.begin] == canary.prefix and p.value == value for p in distinct_passages
    )
    return SecretTarget(
        position=chosen.position,
        kind=chosen.secret.kind,
        value=value,
        passages=distinct_passages,
        candidates=chosen.secret.candidates,
        control=chosen.control,
        allowance=None if strayed else chosen.allowance,
        format=form if planted else None,
        records=len(chosen.secret.records),
    )
