"""The events of the files that ``--ledger`` names: lists of events, other programs' ledgers, and reports of trainings.

The events of all files compose: every file is taken to be about the same people's data.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from privctl.domain.errors import CommandError, InputError
from privctl.domain.events import Event, Ledger
from privctl.domain.guarantee import Guarantee, Notion, PrivacyUnit, Status, status_of
from privctl.domain.report import PrivacyReport
from privctl.plan.foreign import adjacency_taken, foreign_events
from privctl.reports.codec import decode, decode_events
from privctl.reports.parameters import UnitParameters, parameters_as
from privctl.storage.digest import DigestedFile, read_digested
from privctl.storage.json_text import parse_json

_ADD_UP = "their epsilons do not add up; give those of one kind"


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenLedgers:
    """The ``events`` of all files in their order, the files read, and what to say of how they were understood.

    ``delta`` is the smallest that the reports state for their epsilon, None if a file is no report.
    """

    events: tuple[Event, ...]
    sources: tuple[DigestedFile, ...]
    remarks: tuple[str, ...]
    delta: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    path: str
    source: DigestedFile
    events: tuple[Event, ...]
    foreign: bool = False
    unit: str | None = None
    guarantee: Guarantee | None = None


def events_of(paths: Sequence[str]) -> GivenLedgers:
    """The events of the ledgers and reports at ``paths``.

    Raises CommandError for a file that is given twice, and InputError for one that is neither a ledger nor the report
    of a training with a guarantee, and for reports that protect different units.
    """
    read: list[_Read] = []
    for path in paths:
        if any(os.path.realpath(each.path) == os.path.realpath(path) for each in read):
            raise CommandError(f"--ledger {path} is given twice, and each of its events would count twice; remove one")
        one = _read(path)
        same = next((each for each in read if each.source.digest == one.source.digest), None)
        if same is not None and one.guarantee is not None:
            raise CommandError(f"{path} is a copy of {same.path}, and the same training would count twice; remove one")
        read.append(one)
    _check_units(read)
    deltas = [each.guarantee.delta for each in read if each.guarantee is not None]
    return GivenLedgers(
        events=tuple(event for each in read for event in each.events),
        sources=tuple(each.source for each in read),
        remarks=tuple(dict.fromkeys(_remarks(read))),
        delta=min(deltas) if len(deltas) == len(read) else None,
    )


def _read(path: str) -> _Read:
    text, source = read_digested(Path(path))
    if _is_report(text, path):
        return _of_report(decode(text, path), path, source)
    foreign = foreign_events(text, path)
    events = foreign or decode_events(text, path)
    if not events:
        raise InputError(f"{path} lists no events; a ledger holds at least one")
    return _Read(path=path, source=source, events=events, foreign=bool(foreign))


def _is_report(text: str, path: str) -> bool:
    if text.lstrip()[:1] != "{":
        return False
    data = parse_json(text, path)
    return isinstance(data, dict) and "schema_version" in data


def _of_report(report: PrivacyReport, path: str, source: DigestedFile) -> _Read:
    holding = [each for each in report.guarantees if _bounds_one_example(each)]
    if not isinstance(report.mechanism, Ledger) or not holding:
        raise InputError(
            f"{path} is the report of a {report.step} step that states no (epsilon, delta) guarantee of one example by "
            "a ledger of events, so nothing is known to add up; give reports of private trainings, and state what "
            'other releases cost in a ledger such as [{"type": "approximate-dp", "step_epsilon": 1, '
            '"step_delta": 1e-6, "steps": 1}]'
        )
    unit = parameters_as(UnitParameters, report).unit
    return _Read(path=path, source=source, events=report.mechanism.events, unit=unit, guarantee=holding[0])


def _bounds_one_example(guarantee: Guarantee) -> bool:
    return (
        guarantee.status in (Status.PROVED, Status.CONDITIONAL)
        and status_of(guarantee.assumptions) is not Status.VOID
        and guarantee.notion is Notion.APPROXIMATE_DP
        and guarantee.unit is PrivacyUnit.EXAMPLE
        and guarantee.epsilon is not None
    )


def _check_units(read: Sequence[_Read]) -> None:
    reports = [each for each in read if each.guarantee is not None]
    other = next((each for each in reports if each.unit != reports[0].unit), None)
    if other is not None:
        first = reports[0]
        raise InputError(
            f"{first.path} protects {_protected(first.unit)}, and {other.path} {_protected(other.unit)}: {_ADD_UP}"
        )


def _remarks(read: Sequence[_Read]) -> Iterator[str]:
    for each in read:
        if each.foreign:
            yield adjacency_taken(each.events)
    reports = [each for each in read if each.guarantee is not None]
    if reports:
        yield f"In the reports given, one example is {_one(reports[0].unit)}"
    if len(read) > 1:
        yield (
            "All files are counted together, as for models that were trained on the same people's data and are all "
            "released"
        )


def _protected(unit: str | None) -> str:
    return "single records" if unit is None else f"all records with one value of {unit!r} together"


def _one(unit: str | None) -> str:
    return "a record" if unit is None else f"all records with one value of {unit!r}"
