"""Integrity: whether the bytes at hand still have the digests that the chain of reports records."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from privctl.domain.errors import InputFault, PrivctlError
from privctl.domain.report import Artifact, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.codec import decode
from privctl.storage.digest import NamedFiles, TensorHasher, bytes_digest, changed_tensors
from privctl.storage.folder import files_of
from privctl.storage.reader import named_text, read_named_bytes

_MODEL_ROLE = "model"
_COMPANION_ROLE = "companion"
#: Roles of what a step read beside weights.
_BESIDE_ROLES = frozenset({_COMPANION_ROLE, "config", "tokenizer", "preprocessor"})
#: Reports that are followed; a model has a handful.
MOST_REPORTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainLink:
    """One report of the chain, newest first; ``report`` is None where it is missing or unreadable."""

    path: Path
    depth: int
    report: PrivacyReport | None
    verdicts: tuple[Verdict, ...]


def check_chain(
    path: Path, weights: Mapping[Path, TensorHasher], files: NamedFiles | None = None
) -> tuple[ChainLink, ...]:
    """Follow the report at ``path`` and its parents, checking every digest that can be checked.

    ``weights`` are the model's files as just hashed; they are held against the first report's outputs. Every report is
    read once, however often it is named, and at most ``MOST_REPORTS`` are followed.
    """
    return tuple(_Chain(files or NamedFiles()).follow(_placed(path), weights))


@dataclass(frozen=True, slots=True)
class _Named:
    """A report as another one names it: with the digest recorded there, and the reports on the way to it."""

    path: Path
    recorded: str | None
    depth: int
    ancestors: frozenset[Path]


@dataclass(frozen=True, slots=True)
class _ReadReport:
    """What lies at a report's path: its digest, and the report or what is wrong with it."""

    digest: str
    report: PrivacyReport | None
    fault: str = ""


class _Chain:
    """Reports by their paths, each read once."""

    def __init__(self, files: NamedFiles) -> None:
        self.files = files
        self._read: dict[Path, _ReadReport | None] = {}

    def read(self, path: Path) -> _ReadReport | None:
        """What is at ``path``; None where there is nothing that could be read."""
        if path not in self._read:
            self._read[path] = self._reading(path)
        return self._read[path]

    def _reading(self, path: Path) -> _ReadReport | None:
        if not os.path.isfile(path):
            return None
        try:
            data = read_named_bytes(path)
        except PrivctlError:
            return None
        try:
            return _ReadReport(bytes_digest(data), decode(named_text(data, path), str(path)))
        except InputFault as fault:
            return _ReadReport(bytes_digest(data), None, str(fault))

    def follow(self, path: Path, weights: Mapping[Path, TensorHasher]) -> Iterator[ChainLink]:
        """Every report once, newest first, with what is wrong with it; one named with two digests is judged twice."""
        waiting = [_Named(path, None, 0, frozenset())]
        judged: set[tuple[Path, str | None]] = set()
        followed: set[Path] = set()
        while waiting:
            named = waiting.pop()
            if named.path in named.ancestors:
                yield _unread(named, Outcome.REFUTED, "the chain of reports loops back to it")
                continue
            if (named.path, named.recorded) in judged:
                continue  # two steps share a parent
            if len(judged) == MOST_REPORTS:
                yield _unread(named, Outcome.INCONCLUSIVE, f"more than {MOST_REPORTS} reports are in one chain")
                return
            judged.add((named.path, named.recorded))
            link = self._link(named, weights if named.depth == 0 else {}, again=named.path in followed)
            yield link
            if link.report is None or named.path in followed:
                continue
            followed.add(named.path)
            above = named.ancestors | {named.path}
            parents = dict.fromkeys((_placed(named.path.parent / p.path), p.digest) for p in link.report.parents)
            waiting += [_Named(place, digest, named.depth + 1, above) for place, digest in reversed(parents)]

    def _link(self, named: _Named, weights: Mapping[Path, TensorHasher], *, again: bool) -> ChainLink:
        found = self.read(named.path)
        if found is None:
            return _unread(named, Outcome.INCONCLUSIVE, "the report is not where it was, or is no file to read")
        path = named.path
        verdicts = [] if named.recorded is None else [_compare(path.name, found.digest, named.recorded)]
        if found.report is None:
            verdicts.append(Verdict(subject=path.name, outcome=Outcome.REFUTED, reason=found.fault))
        elif not again:
            verdicts += _check_weights(path, found.report, weights)
            verdicts += self._lineage(path, found.report)
            verdicts += _check_others(path, found.report, weights, self.files)
        return ChainLink(path=path, depth=named.depth, report=found.report, verdicts=tuple(verdicts))

    def _lineage(self, path: Path, report: PrivacyReport) -> Iterator[Verdict]:
        """What a step read must be what a parent wrote; not decided while a parent is missing or unreadable."""
        written: set[str] = set()
        beside: dict[str, str] = {}
        for place in dict.fromkeys(_placed(path.parent / parent.path) for parent in report.parents):
            found = self.read(place)
            if found is None or found.report is None:
                return
            written |= {a.digest for a in found.report.outputs}
            beside |= {Path(a.path).name: a.digest for a in found.report.outputs if a.role == _COMPANION_ROLE}
        for artifact in report.inputs if report.parents else ():
            recorded = beside.get(Path(artifact.path).name, artifact.digest)
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


def _unread(named: _Named, outcome: Outcome, reason: str) -> ChainLink:
    verdict = Verdict(subject=str(named.path), outcome=outcome, reason=reason)
    return ChainLink(path=named.path, depth=named.depth, report=None, verdicts=(verdict,))


def _placed(path: Path) -> Path:
    return Path(os.path.normpath(path.absolute()))


def _check_weights(path: Path, report: PrivacyReport, weights: Mapping[Path, TensorHasher]) -> Iterator[Verdict]:
    """The files at hand against the outputs recorded, wherever they lie now; a changed tensor is named."""
    recorded = [a for a in report.outputs if a.role == _MODEL_ROLE]
    for file, hasher in weights.items():
        same = next((a for a in recorded if a.digest == hasher.file_digest), None)
        here = _placed(file)
        artifact = same or next((a for a in recorded if _located(path, a) == here), None)
        artifact = artifact or next((a for a in recorded if Path(a.path).name == file.name), None)
        if artifact is None:
            yield Verdict(subject=file.name, outcome=Outcome.REFUTED, reason="no output recorded is this file")
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
        yield _compare(file.name, hasher.file_digest, artifact.digest, changed)
    for artifact in recorded if weights else ():
        yield Verdict(
            subject=Path(artifact.path).name, outcome=Outcome.INCONCLUSIVE, reason="recorded as an output, not at hand"
        )


def _check_others(
    path: Path, report: PrivacyReport, weights: Mapping[Path, TensorHasher], files: NamedFiles
) -> Iterator[Verdict]:
    """Outputs that are not weights (scores, configuration, tokenizer); a companion is looked for beside the weights."""
    beside = next((file.absolute().parent for file in weights), None)
    yield from _check_unlisted(report, weights, beside)
    for artifact in report.outputs:
        if artifact.role == _MODEL_ROLE:
            continue
        located = _located(path, artifact)
        if artifact.role == _COMPANION_ROLE and beside is not None:
            located = beside / located.name
        if not os.path.isfile(located):
            yield Verdict(subject=located.name, outcome=Outcome.INCONCLUSIVE, reason="the file is not where it was")
            continue
        try:
            yield _compare(located.name, files.digest(located), artifact.digest)
        except PrivctlError as fault:
            yield Verdict(subject=located.name, outcome=Outcome.INCONCLUSIVE, reason=str(fault))


def _check_unlisted(
    report: PrivacyReport, weights: Mapping[Path, TensorHasher], beside: Path | None
) -> Iterator[Verdict]:
    """Files in a model's folder that the report does not list: a loader may take them for part of the model."""
    listed = {Path(a.path).name for a in report.outputs if a.role == _COMPANION_ROLE}
    if beside is None or not listed:
        return
    known = {file.name for file in weights} | listed
    for path in files_of(beside):
        if path.name not in known or path.parent != beside:
            name = path.relative_to(beside).as_posix()
            yield Verdict(subject=name, outcome=Outcome.REFUTED, reason="it lies in the folder, and no report lists it")


def _compare(subject: str, found: str, recorded: str, changed: list[str] | None = None) -> Verdict:
    if found == recorded:
        return Verdict(subject=subject, outcome=Outcome.PROVED, reason="its digest is the one recorded")
    which = f"; changed: {', '.join(changed[:5])}{' ...' if len(changed) > 5 else ''}" if changed else ""
    return Verdict(subject=subject, outcome=Outcome.REFUTED, reason=f"its digest is not the one recorded{which}")


def _located(report: Path, artifact: Artifact) -> Path:
    return _placed(report.parent / artifact.path)
