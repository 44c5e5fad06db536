"""Compares what an audit kept of canary gradients with what the training observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from privctl.domain.errors import InputError
from privctl.domain.evidence import Evidence
from privctl.domain.report import Omission, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.storage.arrays import read_arrays
from privctl.storage.digest import NamedFiles
from privctl.storage.reader import SafetensorsFile
from verify.audits.canaries.gradients import (
    COINS,
    OBSERVED,
    SUBJECT,
    Observations,
    bounds_in,
    observations_at_hand,
    unchecked_counts,
    verdicts_on,
)
from verify.audits.recounted import kept_file


@dataclass(frozen=True, slots=True, kw_only=True)
class Recount:
    """The ``bounds`` from canary gradients of a report, and findings on their counts beyond those of the gate."""

    bounds: Sequence[Evidence] = ()
    verdicts: tuple[Verdict, ...] = ()
    omissions: tuple[Omission, ...] = ()


def recount(path: Path, report: PrivacyReport, files: NamedFiles) -> Recount:
    """Compare the audit's own file with the training's, or the counts with the former if the latter is missing."""
    if not (bounds := bounds_in(report)):
        return Recount()
    try:
        observed, stored = observations_at_hand(path, report), _kept_observations(path, report, files)
    except (InputError, ValueError, TypeError, KeyError) as fault:
        omitted = tuple(unchecked_counts(report, f"what was observed of them cannot be read ({fault})"))
        return Recount(bounds=bounds, omissions=omitted)
    if observed is None and stored is None:
        reason = "neither what the training observed of them nor what the audit kept of that is at hand"
        return Recount(bounds=bounds, omissions=tuple(unchecked_counts(report, reason)))
    if observed is None and stored is not None:
        return Recount(bounds=bounds, verdicts=tuple(verdicts_on(bounds, report, stored)))
    if observed is not None and stored is not None and not observed.same(stored):
        reason = f"{stored.source} holds other observations of canaries than {observed.source}"
        return Recount(bounds=bounds, verdicts=(Verdict(subject=SUBJECT, outcome=Outcome.REFUTED, reason=reason),))
    return Recount(bounds=bounds)


def _kept_observations(path: Path, report: PrivacyReport, files: NamedFiles) -> Observations | None:
    """The observations the audit kept; None if its file is missing or changed. Raises InputError if unreadable."""
    place = kept_file(path, report, files)
    if place is None:
        return None
    kinds = {COINS: "BOOL", **{entry: "F64" for _, entry in OBSERVED.values()}}
    with SafetensorsFile(place) as file:
        arrays = read_arrays(file, kinds, "an audit's scores of canary gradients")
    return Observations(
        source=place.name,
        included=tuple(arrays[COINS].tolist()),
        scores={name: tuple(arrays[entry].tolist()) for name, (_, entry) in OBSERVED.items()},
    )
