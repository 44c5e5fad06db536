"""Integrity: whether the bytes at hand still have the digests that the chain of reports records."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from privctl.codec import decode
from privctl.domain.errors import InputFault, PrivctlError
from privctl.domain.report import Artifact, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.storage.digest import TensorHasher, changed_tensors, file_digest
from privctl.storage.folder import files_of
from privctl.storage.reader import read_named_text

_MODEL_ROLE = "model"
_COMPANION_ROLE = "companion"
#: Roles of what a step read beside weights.
_BESIDE_ROLES = frozenset({_COMPANION_ROLE, "config", "tokenizer", "preprocessor"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One report of the chain, newest first; ``report`` is None where it is missing or unreadable."""

    path: Path
    depth: int
    report: PrivacyReport | None
    verdicts: tuple[Verdict, ...]


def check_chain(path: Path, weights: Mapping[Path, TensorHasher]) -> tuple[Link, ...]:
    """Follow the report at ``path`` and its parents, checking every digest that can be checked.

    ``weights`` are the model's files as just hashed; they are held against the first report's outputs.
    """
    return tuple(_follow(path, weights, None, 0, frozenset(), set()))


def _follow(
    path: Path,
    weights: Mapping[Path, TensorHasher],
    recorded: str | None,
    depth: int,
    ancestors: frozenset[Path],
    followed: set[Path],
) -> Iterator[Link]:
    path = Path(os.path.normpath(path.absolute()))
    if path in ancestors:
        verdict = Verdict(subject=str(path), outcome=Outcome.REFUTED, reason="the chain of reports loops back to it")
        yield Link(path=path, depth=depth, report=None, verdicts=(verdict,))
        return
    if path in followed and recorded is not None and not _changed(path, recorded):
        return  # two steps share a parent
    followed.add(path)
    if not os.path.isfile(path):
        verdict = Verdict(subject=str(path), outcome=Outcome.INCONCLUSIVE, reason="the report is not where it was")
        yield Link(path=path, depth=depth, report=None, verdicts=(verdict,))
        return
    verdicts = [] if recorded is None else [_compare(path.name, file_digest(path), recorded)]
    try:
        report = decode(read_named_text(path), str(path))
    except InputFault as fault:
        verdicts.append(Verdict(subject=path.name, outcome=Outcome.REFUTED, reason=str(fault)))
        yield Link(path=path, depth=depth, report=None, verdicts=tuple(verdicts))
        return
    verdicts += _check_weights(path, report, weights)
    verdicts += _check_lineage(path, report)
    verdicts += _check_others(path, report, weights)
    yield Link(path=path, depth=depth, report=report, verdicts=tuple(verdicts))
    for parent in report.parents:
        yield from _follow(path.parent / parent.path, {}, parent.digest, depth + 1, ancestors | {path}, followed)


def _changed(path: Path, recorded: str) -> bool:
    return not os.path.isfile(path) or file_digest(path) != recorded


def _check_weights(path: Path, report: PrivacyReport, weights: Mapping[Path, TensorHasher]) -> Iterator[Verdict]:
    """The files at hand against the outputs recorded, wherever they lie now; a changed tensor is named."""
    recorded = [a for a in report.outputs if a.role == _MODEL_ROLE]
    for file, hasher in weights.items():
        same = next((a for a in recorded if a.digest == hasher.file_digest), None)
        here = Path(os.path.normpath(file.absolute()))
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


def _check_lineage(path: Path, report: PrivacyReport) -> Iterator[Verdict]:
    """What a step read must be what one of its parents wrote; not decided while a parent is missing or unreadable."""
    written: set[str] = set()
    beside: dict[str, str] = {}
    for parent in report.parents:
        try:
            outputs = decode(read_named_text(path.parent / parent.path), parent.path).outputs
        except PrivctlError:
            return
        written |= {a.digest for a in outputs}
        beside |= {Path(a.path).name: a.digest for a in outputs if a.role == _COMPANION_ROLE}
    for artifact in report.inputs if report.parents else ():
        if artifact.role in _BESIDE_ROLES and beside.get(Path(artifact.path).name, artifact.digest) != artifact.digest:
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


def _check_others(path: Path, report: PrivacyReport, weights: Mapping[Path, TensorHasher]) -> Iterator[Verdict]:
    """Outputs that are not weights (scores, configuration, tokenizer); a companion is looked for beside the weights."""
    beside = next((file.absolute().parent for file in weights), None)
    yield from _check_unlisted(report, weights, beside)
    for artifact in report.outputs:
        if artifact.role == _MODEL_ROLE:
            continue
        located = _located(path, artifact)
        if artifact.role == _COMPANION_ROLE and beside is not None:
            located = beside / located.name
        if os.path.isfile(located):
            yield _compare(located.name, file_digest(located), artifact.digest)
        else:
            yield Verdict(subject=located.name, outcome=Outcome.INCONCLUSIVE, reason="the file is not where it was")


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
    return Path(os.path.normpath(report.parent.absolute() / artifact.path))
