"""Files that accompany weights: an adapter's base is the recorded one, and no configuration loads anything else."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath

from privctl.domain.errors import PrivctlError
from privctl.domain.report import Artifact, Omission, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.models.guard.adapters import base_at_hand, stated_base
from privctl.storage.digest import NamedFiles
from privctl.storage.folder import BASE_ROLE, adds_weights, holds_weights
from privctl.storage.json_text import shown
from privctl.storage.reader import ADAPTER_CONFIG, ADAPTER_NAME, INDEX_NAME, SINGLE_NAME
from verify.files.configuration import misleading_reason
from verify.files.places import located
from verify.methods.expected import TRAINING

_MODEL, _COMPANION, _NOISE, _CONFIG = "model", "companion", "noise", "config.json"
#: Steps that check the configuration of the model they read, and write it to their output.
_MAKERS = (TRAINING, _NOISE, "replay")


def changed_base(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Yields a verdict for each file by which an adapter's base is not the recorded one.

    Files are looked for where the report at ``path`` found them and, for a written adapter, in the base that it names
    now, which is compared with that of its training. Other steps may have been given another base than the named one.
    """
    adapters = [located(path, a.path) for a in _adapters(report)]
    if not adapters:
        return
    training = next(
        (training for training in (report, *parents) if training.step == TRAINING and _adapters(training)), None
    )
    written = adapters if training is not None and report.step in _MAKERS else []
    now = sorted({folder for adapter in written if (folder := _named(adapter.parent)) is not None})
    expected = {located(path, artifact.path): artifact for _, artifact in _base_entries(report)}
    trained_on = {} if training is None else dict(_base_entries(training))
    expected |= {folder / name: artifact for folder in now for name, artifact in trained_on.items()}
    files = NamedFiles()
    changed = {
        place.name for place, digest in expected.items() if os.path.isfile(place) and not _is_same(files, place, digest)
    }
    added = {name for folder in now for name in _taken_instead(folder, {adapter.as_posix() for adapter in trained_on})}
    for name in sorted(changed | added):
        yield Verdict(
            subject=name,
            outcome=Outcome.REFUTED,
            reason="it belongs to the adapter's base, and its digest is not the one recorded: the base was changed or "
            "replaced since",
        )
    if training is report:
        yield from _named_elsewhere(report, adapters)


def _base_entries(report: PrivacyReport) -> Iterator[tuple[Path, Artifact]]:
    """(name in the base's folder, entry) of each file of an adapter's base that the report names."""
    for artifact in report.inputs:
        name = Path(artifact.role.removeprefix(BASE_ROLE))
        if artifact.role.startswith(BASE_ROLE) and not name.is_absolute() and ".." not in name.parts:
            yield name, artifact


def _taken_instead(folder: Path, recorded: Collection[str]) -> Iterator[str]:
    """The files in ``folder`` that are not ``recorded``, and that a loader reads: a configuration, or weights."""
    gone = not any((folder / name).is_file() for name in {SINGLE_NAME, INDEX_NAME} & set(recorded))
    for name in sorted(os.listdir(folder)) if os.access(folder, os.R_OK) else ():
        first = name in (SINGLE_NAME, INDEX_NAME, _CONFIG)
        if name not in recorded and (first or adds_weights(name) or (gone and holds_weights(name))):
            yield name


def _named_elsewhere(report: PrivacyReport, adapters: Sequence[Path]) -> Iterator[Verdict]:
    """Refutes the name of another base than the one whose files the training's ``report`` names.

    Both are paths to the same folder from different ones, so the names at their ends are the same.
    """
    places = [PurePosixPath(artifact.path) for name, artifact in _base_entries(report) if len(name.parts) == 1]
    if not places:
        return
    recorded = _names(places[0].parent)
    for adapter in adapters:
        named = _stated(adapter.parent)
        names = () if named is None else _names(PurePosixPath(named))
        short = min(len(names), len(recorded))
        if names[len(names) - short :] != recorded[len(recorded) - short :]:
            yield Verdict(
                subject=ADAPTER_CONFIG,
                outcome=Outcome.REFUTED,
                reason=f"it names the base {shown(named)}, and the adapter was trained on {places[0].parent}",
            )


def _names(folder: PurePosixPath) -> tuple[str, ...]:
    return tuple(name for name in PurePosixPath(os.path.normpath(folder)).parts if name not in ("/", "//", ".", ".."))


def unseen_base(path: Path, report: PrivacyReport) -> Iterator[Omission]:
    """Says so if the base of an adapter that a step wrote is not at hand."""
    for artifact in report.outputs if report.step in _MAKERS else ():
        place = located(path, artifact.path)
        if artifact.role == _MODEL and place.name == ADAPTER_NAME and _named(place.parent) is None:
            reason = "the base that it names is not at hand, so another one of that name would not be noticed"
            yield Omission(what="the adapter's base", reason=reason)


def changed_copies(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Refutes each file beside noised weights that is not the one written with the weights before the noise."""
    if report.step != _NOISE:
        return
    read = {artifact.digest for artifact in report.inputs if artifact.role == _MODEL}
    makers = [parent for parent in parents if any(a.role == _MODEL and a.digest in read for a in parent.outputs)]
    before = {Path(a.path).name: a.digest for maker in makers for a in maker.outputs if a.role == _COMPANION}
    for artifact in report.outputs:
        name = Path(artifact.path).name
        if artifact.role == _COMPANION and before.get(name, artifact.digest) != artifact.digest:
            reason = "it is not the one that was written with the model before the noise"
            yield Verdict(subject=name, outcome=Outcome.REFUTED, reason=reason)


def check_configurations(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Refutes each configuration that no step would have accepted, even if its digest is the recorded one."""
    if report.step not in _MAKERS:
        return
    for artifact in report.outputs:
        if reason := misleading_reason(located(path, artifact.path)):
            yield Verdict(subject=artifact.path, outcome=Outcome.REFUTED, reason=reason)


def _adapters(report: PrivacyReport) -> list[Artifact]:
    return [a for a in (*report.outputs, *report.inputs) if a.role == _MODEL and Path(a.path).name == ADAPTER_NAME]


def _named(folder: Path) -> Path | None:
    try:
        return base_at_hand(folder)
    except PrivctlError:
        return None  # its configuration is checked separately


def _stated(folder: Path) -> str | None:
    try:
        return stated_base(folder)
    except PrivctlError:
        return None


def _is_same(files: NamedFiles, place: Path, artifact: Artifact) -> bool:
    try:
        return files.digest(place) == artifact.digest
    except PrivctlError:
        return False
