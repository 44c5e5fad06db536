"""Drawn splits with one coin per group: which claims they can test, and whether their groups are whole.

Treating coins of records as coins of groups, or the reverse, gives invalid bounds. Does not import numpy.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from blake3 import blake3

from privctl.data.users import group_of
from privctl.domain.events import Ledger
from privctl.domain.evidence import Evidence
from privctl.domain.groups import of_group
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AuditParameters
from privctl.storage.json_text import parse_json
from verify.audits.split.choice import has_skipped_units
from verify.audits.terms import METHODS, of_split

#: The suffix of bounds on groups, and the detail with the largest number of records in a group.
_OF_GROUP, _SIZE = " of a group", "group_records"
#: The subject of a verdict on what a claim implies for several examples together.
TOGETHER = re.compile(
    r"\(([0-9.e+-]+), ([0-9.e+-]+)\)-DP, of ([0-9]+) examples together by \(([0-9.e+-]+), ([0-9.e+-]+)\)-DP, "
)
#: The subject of a verdict that the coins were drawn for other groups than the claim's examples.
_OTHER = re.compile(r"\(([0-9.e+-]+), ([0-9.e+-]+)\)-DP for values of '(.*)', ")
#: Relative tolerance of numbers that are shown with six digits.
_SHOWN = 1e-4


def nonempty_lines(file: Path) -> Iterator[bytes]:
    """Yields the records of ``file``, one per nonempty line."""
    with file.open("rb") as lines:
        yield from (content for line in lines if (content := line.strip()))


def counted(lines: Iterable[bytes], field: str) -> Counter[str]:
    """The number of ``lines`` by the value of ``field``. Raises InputError for a line without it."""
    counts = Counter[str]()
    records: Mapping[bytes, int] = lines if isinstance(lines, Counter) else Counter(lines)
    for content, number in records.items():
        counts[group_of(parse_json(content.decode(), "a record"), field, "a record")] += number
    return counts


def coin(key: bytes, name: str) -> bool:
    """Whether the coin of the group called ``name`` says member, by the ``key`` of the manifest."""
    return blake3(b"group coin\0" + name.encode(), key=key).digest(length=1)[0] % 2 == 1


def unit_mismatch(manifest: Mapping[str, Any], stated: AuditParameters) -> str:
    """Why an audit with parameters ``stated`` counts other units than those with coins in ``manifest``; "" if not."""
    field = manifest.get("group_by")
    if field != stated.group_by:
        manifest_unit, report_unit = (
            "records" if unit is None else f"groups by {unit!r}" for unit in (field, stated.group_by)
        )
        return f"its split tossed coins for {manifest_unit}, and it judges {report_unit}"
    if manifest.get("groups") != stated.split_groups:
        return f"it states {stated.split_groups} groups, its manifest {manifest.get('groups')}"
    return ""


def partial_group(
    whole: Path, manifest: Mapping[str, Any], groups: Mapping[str, object], members: Mapping[str, int]
) -> str:
    """How the training file ``whole`` shows that ``groups`` were not drawn by ``manifest``; "" if it does not.

    Each group must have exactly its drawn records in it, and no group without a coin may precede one with a coin.
    """
    counts = counted(nonempty_lines(whole), manifest["group_by"])
    for name in groups:
        if counts[name] != members.get(name, 0):
            return (
                f"{whole.name} holds {counts[name]} records of a group of which {members.get(name, 0)} were drawn as "
                "members, and a group is drawn as a whole"
            )
    drawn = {name.encode() for name in groups}
    if has_skipped_units(bytes.fromhex(manifest["key"]), drawn, map(str.encode, counts), of_groups=True):
        return f"{whole.name} holds groups without a coin that the manifest's key puts before some that have one"
    return ""


def size_mismatch(report: PrivacyReport, largest: int) -> str:
    """A sentence if a bound on groups states another group size than ``largest``; "" if not."""
    for item in report.evidence:
        if _SIZE in item.details and item.details[_SIZE] != largest:
            return (
                f"its groups have up to {largest} records, and its bound on {item.quantity} says "
                f"{item.details[_SIZE]:g}"
            )
    return ""


def faults(report: PrivacyReport, parameters: AuditParameters) -> Iterator[str]:
    """Yields one sentence for each bound or verdict on a claim that is about other units than the audit counts."""
    drawn = [item for item in report.evidence if item.method in METHODS and of_split(item, parameters)]
    grouped = parameters.group_by is not None
    if parameters.split_groups is not None and not grouped:
        yield "it states groups of a drawn split, and not by which field"
    for item in drawn:
        if grouped is not _is_of_group(item) or grouped is not (item.details.get(_SIZE, 0) >= 1):
            yield f"its bound on {item.quantity} is not about what it counts, {'groups' if grouped else 'records'}"
    sizes = {item.details[_SIZE] for item in drawn if _SIZE in item.details}
    if len(sizes) > 1:
        yield "its bounds are about groups of different sizes"
    for verdict in report.verdicts:
        if match := TOGETHER.match(verdict.subject):
            yield from _group_privacy_faults(match, verdict.subject, next(iter(sizes), 2.0) if grouped else 2.0)
        elif (match := _OTHER.match(verdict.subject)) and (not drawn or match[3] == parameters.group_by):
            yield f"its verdict on {verdict.subject!r} is about what it counts, and does not judge it"


def _group_privacy_faults(match: re.Match[str], subject: str, examples: float) -> Iterator[str]:
    """Checks a verdict on several examples: its epsilon and delta must follow from the claim by group privacy."""
    epsilon, delta, one, share = (float(match[place]) for place in (1, 2, 4, 5))
    if int(match[3]) != examples:
        yield f"its verdict on {subject!r} is about {match[3]} examples, and a coin changes up to {examples:g}"
        return
    total = 0.0
    for step in range(int(examples)):
        total += share * math.exp(min(step * one, 700.0))
        if total >= 1:
            break
    sums = (examples * one, min(1.0, total))
    if not all(math.isclose(*pair, rel_tol=_SHOWN, abs_tol=1e-12) for pair in zip((epsilon, delta), sums, strict=True)):
        yield f"its verdict on {subject!r} does not follow by group privacy, which gives ({sums[0]:g}, {sums[1]:g})"


def wrong_form(
    subject: str, report: PrivacyReport, parameters: AuditParameters, unit: str | None, *, chosen: bool = False
) -> bool:
    """Whether a verdict on a claim has a form that does not fit the units for which coins were drawn.

    ``unit`` is the field whose values define the claim's examples, None if each record is one. ``chosen`` is whether
    its records were selected by the users of all records, so that coins of records do not test it.
    """
    field = parameters.group_by
    sizes = [item.details[_SIZE] for item in report.evidence if _SIZE in item.details]
    if unit == field or (unit is None and max(sizes, default=1.0) == 1):
        return TOGETHER.match(subject) is not None or _OTHER.match(subject) is not None
    if unit is not None and (field is not None or chosen):
        return _OTHER.match(subject) is None
    return TOGETHER.match(subject) is None


def mechanisms(stated: object, report: PrivacyReport) -> Iterator[object]:
    """Yields the mechanisms whose curve an audit may have tested: none, the ``stated`` one, and those of its groups."""
    yield from (None, stated)
    if not isinstance(stated, Ledger):
        return
    for size in {int(item.details[_SIZE]) for item in report.evidence if _SIZE in item.details}:
        try:
            yield of_group(stated, size)
        except ValueError:  # no group version of this mechanism, or not for this size
            continue


def _is_of_group(item: Evidence) -> bool:
    return item.quantity.partition(", ")[0].endswith(_OF_GROUP)


def is_about_claim(subject: str, epsilon: float | None, delta: float) -> bool:
    """Whether a verdict's ``subject`` is about this claim, in any of the forms above."""
    start = f"({epsilon:g}, {delta:g})-DP"
    if subject.startswith((f"{start}, ", f"{start} for values of ")):
        return True
    return TOGETHER.match(subject) is not None and f" by {start}, " in subject
