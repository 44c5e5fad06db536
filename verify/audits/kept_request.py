"""Whether an audit's report states the request, the settings and the files that the ranks kept beside it record.

Does not import numpy, like ``verify.audits.consistency``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from privctl.domain.errors import InputError
from privctl.domain.report import PrivacyReport
from privctl.reports.audit_parameters import AskedAudit, AuditParameters
from privctl.reports.codec import decode_value, encode_value
from privctl.reports.parameters import parameters_as
from privctl.storage.digest import NamedFiles
from privctl.storage.json_text import parse_json, shown
from privctl.storage.reader import SafetensorsFile
from verify.audits import parts_not_run
from verify.files.places import located

#: The keys of the request, of the other parameters, of what was read and of the versions of packages in the header of
#: the ranks; older audits lack all but the first.
KEY, SETTINGS, READ, VERSIONS = "privctl.asked", "privctl.settings", "privctl.read", "privctl.versions"
_NOTHING = object()


def request_mismatches(path: Path, report: PrivacyReport, files: NamedFiles) -> Iterator[str]:
    """Yields a sentence if the ranks that the audit kept, if present, record another request or none.

    Also yields one for each other parameter of the report, each file that it read, each report before it and each
    version of a package that is not what they record.
    """
    for place in _ranks(path, report, files):
        try:
            with SafetensorsFile(place) as file:
                text, settings, read, used = (file.metadata.get(key) for key in (KEY, SETTINGS, READ, VERSIONS))
                yield from parts_not_run.kept(report, [tensor.name for tensor in file.tensors])
            if settings is not None:
                yield from _other_settings(report, parse_json(settings, str(place)))
            if read is not None:
                yield from _other_files(report, parse_json(read, str(place)))
            if used is not None and parse_json(used, str(place)) != dict(report.versions):
                yield "its versions of packages are not those that the ranks that it kept say"
            kept = None if text is None else decode_value(AskedAudit, parse_json(text, str(place)), str(place), "asked")
            if parameters_as(AuditParameters, report).asked != kept:
                yield "what it says that it was asked is not what the ranks that it kept say"
        except InputError:
            continue  # unreadable ranks are reported by another check


def kept_keys(path: Path, report: PrivacyReport, files: NamedFiles) -> frozenset[str]:
    """The keys in the header of the ranks that the audit kept, if present: ``SETTINGS`` and others above."""
    for place in _ranks(path, report, files):
        with suppress(InputError), SafetensorsFile(place) as file:
            return frozenset(file.metadata)
    return frozenset()


def _ranks(path: Path, report: PrivacyReport, files: NamedFiles) -> Iterator[Path]:
    """The files of ranks that the audit's report at ``path`` names, if present and as recorded."""
    for named in (artifact for artifact in report.outputs if artifact.role == "scores" and report.step == "audit"):
        place = located(path, named.path)
        with suppress(InputError):  # unreadable ranks are reported by another check
            if os.path.isfile(place) and files.digest(place) == named.digest:
                yield place


def _other_settings(report: PrivacyReport, kept: Any) -> Iterator[str]:
    """Yields a sentence for each parameter but the request that is not what the ranks say, ``kept``."""
    stated = {**report.parameters}
    stated.pop("asked", None)
    now, then = (
        {".".join(place): value for place, value in _leaves(entries)} for entries in (encode_value(stated), kept)
    )
    for name in sorted(now.keys() | then.keys()):
        if now.get(name, _NOTHING) != then.get(name, _NOTHING):
            yield f"its parameter {name} is not what the ranks that it kept say"


def _other_files(report: PrivacyReport, kept: Any) -> Iterator[str]:
    """Yields a sentence for each role of files, and for the reports before it, that the ranks record otherwise."""
    named = dict(_leaves(kept))
    digests = {role: [a.digest for a in report.inputs if a.role == role] for role in {a.role for a in report.inputs}}
    now: dict[tuple[str, ...], list[str]] = {("parents",): [parent.digest for parent in report.parents]}
    now |= {("inputs", role): found for role, found in digests.items()}
    for place in sorted(now.keys() | named.keys()):
        if sorted(now.get(place, ())) != _sorted(named.get(place, [])):
            what = f"the files in the role {shown(place[1])}" if len(place) > 1 else "the reports that it builds on"
            yield f"{what} are not those that the ranks that it kept name"


def _sorted(digests: Any) -> list[str] | None:
    """``digests`` in order; None if they are none."""
    return sorted(map(str, digests)) if isinstance(digests, list) else None


def _leaves(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(path, value) of everything in objects within objects that is not an object with entries."""
    if not isinstance(value, dict) or not value:
        yield place, value
        return
    for name, inner in value.items():
        yield from _leaves(inner, (*place, name))
