"""Whether the initial weights of a training were trained on one of its records before, or one chose without noise.

``begun_with`` compares files by their digests. Here records are compared, where both trainings' files are at hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from privctl.data.columns import Columns
from privctl.data.contents import contents_at, first_shared, users_at
from privctl.data.recorded import data_as_recorded
from privctl.data.several import DataPath
from privctl.domain.errors import PrivctlError
from privctl.domain.guarantee import STANDING, AssumptionState, Guarantee
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.storage.digest import NamedFiles
from verify.consistency.begun_with import LEARNED, roles_behind, trainings_behind
from verify.files.data import columns_of, unit_of
from verify.files.places import located

_NAME, _DATA = "starting weights", "data"
#: For the role of records that chose something without noise: the assumption that they are public, and what they chose.
_PUBLIC = {"measured": "public measurements", "held-out": "selection"}
_CHOSE = {"measured": "layers were measured on", "held-out": "the best run was chosen by"}
#: One report and its path.
Placed = tuple[Path, PrivacyReport]


def check_records(path: Path, report: PrivacyReport, links: Sequence[Placed], files: NamedFiles) -> Iterator[Verdict]:
    """Yields a refuted verdict if a guarantee of ``report`` stands and an earlier training shares a record.

    The same if records that its own training took for public, to choose by, are among its private ones. ``links`` are
    the reports behind it that are at hand, with their paths.
    """
    places = {id(each): place for place, each in ((path, report), *links)}
    trainings = trainings_behind(report, [each for _, each in links])
    if trainings:
        yield from _chosen_by_own((places[id(trainings[0])], trainings[0]), files)
    if not any(map(_rests_on_it, report.guarantees)):
        return
    for each, role in ((earlier, role) for earlier in trainings[1:] for role in roles_behind(earlier)):
        own = trainings[0]
        with suppress(PrivctlError):  # records that cannot be read are compared by nobody
            reason = _shared((places[id(own)], own), (places[id(each)], each), role, files)
            if reason:
                yield Verdict(subject=_NAME, outcome=Outcome.REFUTED, reason=reason)
                return


def _chosen_by_own(own: Placed, files: NamedFiles) -> Iterator[Verdict]:
    """Yields a refuted verdict if a private record is among those that chose layers or a run, taken for public."""
    for role in set(roles_behind(own[1])) - set(LEARNED):
        with suppress(PrivctlError):
            ours, public = _records(*own, _DATA, files), _records(*own, role, files)
            if ours is None or public is None:
                continue
            if (place := first_shared(contents_at(*public), contents_at(*ours))) is not None:
                reason = (
                    f"record {place} of {public[0].name} is a private one, and {_CHOSE[role]} these records without "
                    "noise"
                )
                yield Verdict(subject=_PUBLIC[role], outcome=Outcome.REFUTED, reason=reason)
            unit = unit_of(own[1])
            if unit is not None and users_at(*ours, unit) & users_at(*public, unit):
                reason = (
                    f"{public[0].name} holds records of a {unit!r} whose records are private, and {_CHOSE[role]} them "
                    "without noise"
                )
                yield Verdict(subject=_PUBLIC[role], outcome=Outcome.REFUTED, reason=reason)


def _shared(own: Placed, earlier: Placed, role: str, files: NamedFiles) -> str:
    """Why the training ``own`` does not protect what an ``earlier`` one read in a ``role``; "" if nothing shows it."""
    ours, theirs = _records(*own, _DATA, files), _records(*earlier, role, files)
    if ours is None or theirs is None:
        return ""
    name, before = next(file.path for file in own[1].inputs if file.role == _DATA), earlier[0].name
    if (shared := first_shared(contents_at(*ours), contents_at(*theirs))) is not None:
        return (
            f"the weights that its training began with were trained on record {shared} of {name} before, which "
            f"{before} names in another file, so no guarantee covers what they hold of it"
        )
    unit = unit_of(own[1])
    if unit is not None and users_at(*ours, unit) & users_at(*theirs, unit):
        return (
            f"the weights that its training began with were trained before on records of a {unit!r} whose records "
            f"{name} holds, which {before} names in another file, so no guarantee covers what they hold of them"
        )
    return ""


def _rests_on_it(guarantee: Guarantee) -> bool:
    violated = (a.name == _NAME and a.state is AssumptionState.VIOLATED for a in guarantee.assumptions)
    return guarantee.status in STANDING and not any(violated)


def _records(path: Path, report: PrivacyReport, role: str, files: NamedFiles) -> tuple[DataPath, Columns] | None:
    """The records that the training with this report read in a ``role``, with their columns; None if not at hand."""
    artifacts = [each for each in report.inputs if each.role == role]
    data, columns = (
        data_as_recorded([(located(path, each.path), each) for each in artifacts], files),
        columns_of(report),
    )
    return None if data is None or columns is None else (data, columns)
