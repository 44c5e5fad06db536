"""Integrity: whether files still have the digests recorded in the chain of reports."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from privctl.domain.errors import InputError, PrivctlError
from privctl.domain.report import LogPosition, Omission, PrivacyReport, TensorDigest
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.audit_log import AuditLog, read_log
from privctl.reports.chain import (
    MOST_REPORTS,
    ChainTooLongError,
    ReportFiles,
    Visit,
    absolute_path,
    path_of,
    walk,
)
from privctl.storage.digest import NamedFiles, TensorHasher, bytes_digest, changed_tensors
from privctl.storage.folder import files_of, never_released, strays_of
from privctl.storage.reader import ADAPTER_NAME, open_checkpoint, read_named_bytes
from verify.files.places import located

_MODEL_ROLE = "model"
_COMPANION_ROLE = "companion"
_AS_RECORDED, _NOT_AS_RECORDED = "its digest is the one recorded", "its digest is not the one recorded"
_OTHER_WEIGHTS = "the report describes other weights: none of its outputs is this file"
#: Roles of the files that a step read along with the weights.
_BESIDE_ROLES = frozenset({_COMPANION_ROLE, "config", "tokenizer", "preprocessor"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """One report of the chain, ``depth`` parents from the first; ``report`` is None if it is missing or unreadable."""

    path: Path
    depth: int
    report: PrivacyReport | None
    verdicts: tuple[Verdict, ...]


def check_chain(
    path: Path, weights: Mapping[Path, TensorHasher], files: NamedFiles | None = None
) -> tuple[ChainLink, ...]:
    """Follow the report at ``path`` and its parents, and check every digest that can be checked.

    ``weights`` are the hashed files of the model, which are compared with the outputs of the first report. Every report
    is read once, however often it is named, and at most ``MOST_REPORTS`` are followed.
    """
    return tuple(_Chain(files or NamedFiles()).links(path, weights))


class _Chain:
    """Walks a chain of reports and checks each link."""

    def __init__(self, files: NamedFiles) -> None:
        self.files = files
        self.reports = ReportFiles()

    def links(self, start: Path, weights: Mapping[Path, TensorHasher]) -> Iterator[ChainLink]:
        """Every report once, newest first; a report named with two digests is checked against both."""
        try:
            for visit in walk([start], self.reports, most=MOST_REPORTS):
                yield self._link(visit, weights if visit.depth == 0 else {})
        except ChainTooLongError as error:
            verdict = Verdict(subject=str(error.path), outcome=Outcome.INCONCLUSIVE, reason=str(error))
            yield ChainLink(path=error.path, depth=0, report=None, verdicts=(verdict,))

    def _link(self, visit: Visit, weights: Mapping[Path, TensorHasher]) -> ChainLink:
        file, path = visit.file, visit.file.path
        if visit.loops:
            return _unread(visit, Outcome.REFUTED, "the chain of reports loops back to it")
        if file.digest is None:
            return _unread(visit, Outcome.INCONCLUSIVE, "the report is not where it was, or is no file to read")
        verdicts = [] if visit.recorded is None else [_compare(path.name, file.digest, visit.recorded)]
        if file.report is None:
            verdicts.append(Verdict(subject=path.name, outcome=Outcome.REFUTED, reason=file.fault))
        elif not visit.revisited:
            verdicts += _check_weights(path, file.report, weights)
            verdicts += self._lineage(path, file.report)
            verdicts += _check_others(path, file.report, weights, self.files)
        return ChainLink(path=path, depth=visit.depth, report=file.report, verdicts=tuple(verdicts))

    def _lineage(self, path: Path, report: PrivacyReport) -> Iterator[Verdict]:
        """The step must have read what a parent wrote; undecided if a parent is missing or unreadable."""
        written: dict[str, tuple[TensorDigest, ...]] = {}
        companions: dict[str, str] = {}
        for place in dict.fromkeys(path_of(path, parent) for parent in report.parents):
            found = self.reports.at(place)
            if found.report is None:
                return
            written |= {a.digest: a.tensors for a in found.report.outputs}
            companions |= {Path(a.path).name: a.digest for a in found.report.outputs if a.role == _COMPANION_ROLE}
        for artifact in report.inputs if report.parents else ():
            recorded = companions.get(Path(artifact.path).name, artifact.digest)
            if artifact.role in _BESIDE_ROLES and recorded != artifact.digest:
                yield Verdict(
                    subject=artifact.path,
                    outcome=Outcome.REFUTED,
                    reason=f"the {report.step} step read it, but its parent report wrote another",
                )
            if artifact.role == _MODEL_ROLE and artifact.digest not in written:
                yield Verdict(
                    subject=artifact.path,
                    outcome=Outcome.REFUTED,
                    reason=f"the {report.step} step read it, but its parent report did not write it",
                )
            maker = written.get(artifact.digest)
            if maker and artifact.tensors and (changed := changed_tensors(artifact.tensors, maker)):
                yield Verdict(
                    subject=artifact.path,
                    outcome=Outcome.REFUTED,
                    reason=f"its list of tensors is not that of its parent report: {', '.join(changed[:5])}",
                )


def _unread(visit: Visit, outcome: Outcome, reason: str) -> ChainLink:
    verdict = Verdict(subject=str(visit.file.path), outcome=outcome, reason=reason)
    return ChainLink(path=visit.file.path, depth=visit.depth, report=None, verdicts=(verdict,))


def _check_weights(path: Path, report: PrivacyReport, weights: Mapping[Path, TensorHasher]) -> Iterator[Verdict]:
    """Compares hashed weights with the recorded outputs, wherever the files are now, and names changed tensors."""
    recorded = [a for a in report.outputs if a.role == _MODEL_ROLE]
    for file, hasher in weights.items():
        same = next((a for a in recorded if a.digest == hasher.file_digest), None)
        absolute_file = absolute_path(file)
        artifact = same or next((a for a in recorded if path_of(path, a) == absolute_file), None)
        artifact = artifact or next((a for a in recorded if Path(a.path).name == file.name), None)
        if artifact is None:
            yield Verdict(subject=file.name, outcome=Outcome.REFUTED, reason=_OTHER_WEIGHTS)
            continue
        recorded.remove(artifact)
        changed = changed_tensors(hasher.tensors, artifact.tensors) if artifact.tensors else []
        if changed and hasher.file_digest == artifact.digest:
            yield Verdict(
                subject=file.name,
                outcome=Outcome.REFUTED,
                reason=f"the report's list of its tensors is not what the file holds: {', '.join(changed[:5])}",
            )
            continue
        yield _compare(file.name, hasher.file_digest, artifact.digest, changed, len(hasher.tensors))
    for artifact in recorded if weights else ():
        yield Verdict(
            subject=Path(artifact.path).name, outcome=Outcome.INCONCLUSIVE, reason="recorded as an output, not at hand"
        )


def check_beside(paths: Sequence[Path], weights: Mapping[Path, TensorHasher]) -> Iterator[Verdict]:
    """Refutes each report at ``paths`` that a reader may take for the report of ``weights`` but that lists others.

    Files that are not reports, and reports that list no weights, are skipped.
    """
    reports = ReportFiles()
    for path in paths:
        report = reports.at(path).report
        recorded = {a.digest for a in report.outputs if a.role == _MODEL_ROLE} if report is not None else set()
        if recorded and not recorded >= {hasher.file_digest for hasher in weights.values()}:
            yield Verdict(
                subject=path.name,
                outcome=Outcome.REFUTED,
                reason="by the model's name or header this is its report, but it describes other weights: it says "
                "nothing of this model",
            )


def _check_others(
    path: Path, report: PrivacyReport, weights: Mapping[Path, TensorHasher], files: NamedFiles
) -> Iterator[Verdict]:
    """Checks outputs other than weights (scores, configuration, tokenizer); companions must lie next to the weights."""
    model_folder = next((file.absolute().parent for file in weights), None)
    yield from _check_unlisted(report, weights, model_folder)
    for artifact in report.outputs:
        if artifact.role == _MODEL_ROLE:
            continue
        place = path_of(path, artifact)
        if artifact.role == _COMPANION_ROLE and model_folder is not None:
            place = model_folder / place.name
        if not os.path.isfile(place):
            yield Verdict(subject=place.name, outcome=Outcome.INCONCLUSIVE, reason="the file is not where it was")
            continue
        try:
            if files.is_as_recorded(place, artifact.digest, artifact.bytes):
                yield Verdict(subject=place.name, outcome=Outcome.PROVED, reason=_AS_RECORDED)
            else:
                yield Verdict(subject=place.name, outcome=Outcome.REFUTED, reason=_NOT_AS_RECORDED)
        except PrivctlError as fault:
            yield Verdict(subject=place.name, outcome=Outcome.INCONCLUSIVE, reason=str(fault))


def _check_unlisted(
    report: PrivacyReport, weights: Mapping[Path, TensorHasher], model_folder: Path | None
) -> Iterator[Verdict]:
    """Refutes files in a model's folder that the report does not list, since a loader may take them for its part."""
    listed = {Path(a.path).name for a in report.outputs if a.role == _COMPANION_ROLE}
    if model_folder is None or not listed:
        return
    known, strays = {file.name for file in weights} | listed, _strays(model_folder)
    adapter = {file.name for file in weights} == {ADAPTER_NAME}
    for path in files_of(model_folder):
        name = path.relative_to(model_folder).as_posix()
        if name not in known:
            shown = name.encode(errors="backslashreplace").decode()  # as a verdict is kept in a report, in UTF-8
            yield Verdict(
                subject=shown, outcome=Outcome.REFUTED, reason="it lies in the folder, and no report lists it"
            )
        elif path in strays or (name in listed and never_released(name, adapter=adapter)):
            reason = "the report lists it, but privctl writes no such file beside a model, and a loader may take it"
            yield Verdict(subject=name, outcome=Outcome.REFUTED, reason=reason)


def _strays(folder: Path) -> frozenset[Path]:
    """Weight files in ``folder`` that are not part of the model there; empty if it is not a model's folder."""
    try:
        with open_checkpoint(folder) as checkpoint:
            return frozenset(strays_of(checkpoint))
    except PrivctlError:
        return frozenset()


def _compare(subject: str, actual: str, recorded: str, changed: Sequence[str] = (), tensors: int = 0) -> Verdict:
    """Compares a digest with the recorded one; ``changed`` names those of the file's ``tensors`` that differ."""
    if actual == recorded:
        return Verdict(subject=subject, outcome=Outcome.PROVED, reason=_AS_RECORDED)
    which = f"; changed: {', '.join(changed[:5])}{' ...' if len(changed) > 5 else ''}" if changed else ""
    if changed and len(changed) >= tensors > 1:
        which = ", and no tensor's is: the report describes other weights"
    return Verdict(subject=subject, outcome=Outcome.REFUTED, reason=f"{_NOT_AS_RECORDED}{which}")


def check_log(path: Path, report: PrivacyReport) -> tuple[list[Verdict], list[Omission]]:
    """Checks the audit log that the report at ``path`` names; an absent log is only an omission."""
    if report.log is None:
        return [], []
    place = located(path, report.log.path)
    if not os.path.isfile(place):
        return [], [Omission(what=f"the log of audits {report.log.path}", reason="it is not at hand")]
    try:
        log = read_log(place)
        verdicts = list(_judge_log(log, report.log, bytes_digest(read_named_bytes(path))))
    except InputError as fault:
        return [Verdict(subject=report.log.path, outcome=Outcome.REFUTED, reason=str(fault))], []
    except PrivctlError as fault:
        return [], [Omission(what=f"the log of audits {report.log.path}", reason=str(fault))]
    return verdicts, []


def _judge_log(log: AuditLog, position: LogPosition, digest: str) -> Iterator[Verdict]:
    audit = next((audit for audit in log.audits if audit.begun.digest == position.digest), None)
    outcome = Outcome.REFUTED
    if audit is None or audit.begun.number != position.entry:
        reason = (
            f"its line {position.entry} is not the one that the report names: it is another log, or was written anew"
        )
    elif audit.report is None:
        outcome = Outcome.INCONCLUSIVE
        reason = f"it says at line {position.entry} that this audit began, and not that it led to a report"
    elif audit.report != digest:
        reason = f"it says that the audit begun at line {position.entry} led to another report than this one"
    else:
        others = len(log.audits) - 1
        outcome = Outcome.CONSISTENT
        reason = (
            f"the audit stands at line {position.entry} of {len(log.entries)}, beside {others} other audit"
            f"{'' if others == 1 else 's'}; whoever holds the log can have written it anew, unless its head is kept"
        )
    yield Verdict(subject=position.path, outcome=outcome, reason=reason)
