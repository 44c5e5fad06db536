"""Loading the data of a page from the files that the user names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from privctl.domain.errors import PrivctlError
from privctl.domain.verdict import Outcome
from privctl.domain.version import VERSION
from privctl.show.gather.bounds import bounds_of
from privctl.show.gather.noise import tensors_of
from privctl.show.gather.scores import curves_of, exposures_of, scores_path
from privctl.show.gather.sources import ChainEntry, entries_of, names_of
from privctl.show.page_data import (
    AUDIT_STEP,
    VERIFY_STEP,
    ExposureGroup,
    JudgedSubject,
    PageData,
    ReportSource,
    RocCurve,
    TensorNoiseSummary,
)
from privctl.storage.reader import SafetensorsFile

#: Weight files of more bytes than this are not read for a figure.
_LARGEST = 1 << 30
_EXAMINING = (AUDIT_STEP, VERIFY_STEP)


def load(paths: Sequence[Path], title: str | None = None, *, drawn: bool = True) -> PageData:
    """Read the reports at ``paths``, their ancestors and the files next to them.

    ``drawn`` False skips what only figures need. Raises InputError or FileSystemError if a report at ``paths`` cannot
    be read, CommandError if there are too many.
    """
    entries = entries_of(paths)
    names = names_of(entries)
    keys = {entry.path: f"r{number}" for number, entry in enumerate(entries, start=1)}
    sources = tuple(_source(entry, names, keys, drawn=drawn) for entry in entries)
    subjects = _subjects(sources)
    if title is None:
        title = "Privacy report: " + ", ".join(subject.source.name for subject in subjects[:2])
        title += f" and {len(subjects) - 2} more" if len(subjects) > 2 else ""
    return PageData(title=title, version=VERSION, sources=sources, subjects=subjects)


def _source(entry: ChainEntry, names: Mapping[Path, str], keys: Mapping[Path, str], *, drawn: bool) -> ReportSource:
    roc: tuple[RocCurve, ...] = ()
    exposures: tuple[ExposureGroup, ...] = ()
    tensors: tuple[TensorNoiseSummary, ...] = ()
    left_out: list[str] = []
    if drawn:
        roc, exposures, why = _scores(entry)
        left_out += why
        try:
            tensors = tuple(tensors_of(entry.report, entry.path, _LARGEST)) if _is_intact(entry) else ()
        except (PrivctlError, OSError):
            left_out.append("The released weights could not be read, so noise is not drawn against them.")
    return ReportSource(
        key=keys[entry.path],
        name=names[entry.path],
        digest=entry.digest,
        report=entry.report,
        given=entry.given,
        parents=tuple(keys[path] for path in entry.parents if path in keys),
        absent=entry.absent,
        digests=entry.digests,
        roc=roc,
        exposures=exposures,
        bounds=tuple(bounds_of(entry.report)) if drawn else (),
        tensors=tensors,
        left_out=tuple(left_out),
    )


def _is_intact(entry: ChainEntry) -> bool:
    return not any(verdict.outcome is Outcome.REFUTED for verdict in entry.digests)


def _scores(entry: ChainEntry) -> tuple[tuple[RocCurve, ...], tuple[ExposureGroup, ...], list[str]]:
    """ROC curves and histograms from an audit's scores file, or the reasons why there are none."""
    path = scores_path(entry.report, entry.path)
    if entry.report.step != AUDIT_STEP or path is None:
        return (), (), []
    if not os.path.isfile(path):  # False, too, for names that no file can have
        return (), (), [f"{path.name} does not exist, so curves and histograms are not drawn."]
    if not _is_intact(entry):
        return (), (), [f"Files are not those that the report recorded, so nothing is drawn from {path.name}."]
    try:
        with SafetensorsFile(path) as file:
            return tuple(curves_of(file, entry.report)), tuple(exposures_of(file)), []
    except (PrivctlError, OSError):
        return (), (), [f"{path.name} could not be read, so curves and histograms are not drawn."]


def _subjects(sources: Sequence[ReportSource]) -> tuple[JudgedSubject, ...]:
    """What verdicts are about: models that no later step builds on, and reports that build on no model."""
    by_key = {source.key: source for source in sources}
    built_on = {parent for source in sources if source.report.step not in _EXAMINING for parent in source.parents}
    subjects = []
    for source in sources:
        looking = source.report.step in _EXAMINING and any(by_key[key].models for key in source.parents)
        named = source.given or any(source.key in o.parents and o.given for o in sources if o.report.step in _EXAMINING)
        if looking or (source.key in built_on and not named):
            continue
        later = [other for other in sources if source.key in other.parents]
        itself = [source] if source.report.step == AUDIT_STEP else []
        subjects.append(
            JudgedSubject(
                source=source,
                ancestors=_ancestors(source, by_key),
                audits=tuple(other for other in chain(itself, later) if other.report.step == AUDIT_STEP),
                checks=tuple(other for other in later if other.report.step == VERIFY_STEP),
            )
        )
    return tuple(subjects)


def _ancestors(source: ReportSource, by_key: Mapping[str, ReportSource]) -> tuple[ReportSource, ...]:
    ancestors: dict[str, ReportSource] = {}
    waiting = list(source.parents)
    while waiting:
        key = waiting.pop()
        if key not in ancestors and key != source.key:
            ancestors[key] = by_key[key]
            waiting += by_key[key].parents
    return tuple(ancestors.values())
