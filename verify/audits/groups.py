"""Whether the number of groups that an audit counts is the one in its files, by the named field.

An audit that treats records of one user as independent finds a leak where there is none. So the number of groups must
be that of the files, and each group must lie entirely on one side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from privctl.data.columns import Columns
from privctl.data.names import spelled_alike
from privctl.data.rows import rows_of
from privctl.data.users import group_of
from privctl.domain.errors import InputError
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_parameters import AuditParameters
from privctl.reports.parameters import readable
from verify.audits.terms import sides_by_coins
from verify.files.places import as_recorded

_SUBJECT = "audited groups"
_SIDES = ("members", "nonmembers")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """The number of records in the files of one side, and the groups that they belong to."""

    records: int
    groups: frozenset[str]
    #: A sentence on a record that names no group; empty if every record names one.
    unnamed: str = ""


def check_groups(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Compares the groups counted by the audit report at ``path`` with its files, if they are present."""
    stated = readable(AuditParameters, report) if report.step == "audit" else None
    if stated is None or (stated.group_by is None and stated.grouped_records is None):
        return
    roles = {item.role for item in report.inputs}
    if not roles & set(_SIDES) and stated.grouped_records is None and sides_by_coins(stated.extraction):
        return  # ``verify.audits.split.drawn`` recomputes the coins of its groups
    outcome, reason = _judge_groups(path, report, stated)
    yield Verdict(subject=_SUBJECT, outcome=outcome, reason=reason)


def _judge_groups(path: Path, report: PrivacyReport, stated: AuditParameters) -> tuple[Outcome, str]:
    field, records = stated.group_by, stated.grouped_records
    if field is None or records is None or records.keys() != set(_SIDES):
        return Outcome.REFUTED, "it states a field of groups without the records in them, or these without a field"
    counted = {
        tuple(item.samples[side] for side in _SIDES) for item in report.evidence if item.samples.keys() == set(_SIDES)
    }
    if len(counted) != 1:
        return Outcome.REFUTED, "its figures are not all of the same groups"
    groups = dict(zip(_SIDES, counted.pop(), strict=True))
    try:
        sides = {side: _read_side(path, report, side, field) for side in _SIDES}
    except InputError as fault:
        return Outcome.INCONCLUSIVE, f"its groups cannot be counted again ({fault})"
    if unnamed := [groups.unnamed for groups in sides.values() if groups is not None and groups.unnamed]:
        return Outcome.REFUTED, f"it counts groups, but a record names none: {unnamed[0]}"
    for side, found in sides.items():
        if found is None:
            return Outcome.INCONCLUSIVE, f"the {side} are not at hand, so that their groups cannot be counted again"
        left_out = found.records - records[side]
        if left_out < 0 or not len(found.groups) - left_out <= groups[side] <= min(len(found.groups), records[side]):
            return Outcome.REFUTED, (
                f"it counts {groups[side]} groups of {records[side]} {side}, but their files hold {len(found.groups)} "
                f"values of {field!r} in {found.records} records"
            )
    members, others = (side.groups for side in sides.values() if side is not None)
    if both := members & others:
        return Outcome.REFUTED, f"{len(both)} groups have records among the members and the non-members"
    if (wrong := _misnamed(stated, members | others)) is not None:
        return wrong
    return Outcome.CONSISTENT, f"the files hold these groups by {field!r}, and none on both sides"


def _misnamed(stated: AuditParameters, groups: frozenset[str]) -> tuple[Outcome, str] | None:
    """The answer if the number of ``groups`` whose names differ only in spelling is wrong or missing, else None."""
    similar = spelled_alike(groups)
    if stated.similar_names == similar or (stated.similar_names is None and not similar):
        return None
    description = f"{similar} of its groups have names spelled like another's"
    if stated.similar_names is None:
        return Outcome.INCONCLUSIVE, f"{description}, and it does not say whether these are different"
    return Outcome.REFUTED, f"{description}, and it says {stated.similar_names}"


def _read_side(path: Path, report: PrivacyReport, side: str, field: str) -> _Side | None:
    """The records and groups in the files of ``side``; None if a file is missing or no longer as recorded."""
    places = [as_recorded(path, item) for item in report.inputs if item.role == side]
    if not places or None in places:
        return None
    groups, records = set(), 0
    for place in places:
        assert place is not None
        for row in rows_of(place, Columns(), unit=field, otherwise=".jsonl"):
            try:
                groups.add(group_of(row.fields, field, row.where))
            except InputError as fault:  # the file is the audited one, and an audit would have refused such a record
                return _Side(records=records, groups=frozenset(groups), unnamed=str(fault))
            records += 1
    return _Side(records=records, groups=frozenset(groups))
