"""Files that accompany weights: an adapter's base is the recorded one, and no configuration loads anything else."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from privctl.domain.errors import PrivctlError
from privctl.domain.report import Artifact, PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.models.guard.adapters import base_at_hand
from privctl.storage.digest import NamedFiles
from privctl.storage.folder import BASE_ROLE
from privctl.storage.reader import ADAPTER_NAME
from verify.files.configuration import misleading_reason
from verify.files.places import located
from verify.methods.expected import TRAINING

_MODEL = "model"
#: Steps that check the configuration of the model they read, and write it to their output.
_MAKERS = ("retrain", "noise", "replay")


def changed_base(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """Yields a verdict for each file of an adapter's base that is present but differs from the recorded digest.

    Files are looked for where the report at ``path`` found them and, for a training, in the base that the written
    adapter now names. Other steps may have been given another base than the named one.
    """
    adapters = [located(path, a.path) for a in _adapters(report)]
    if not adapters:
        return
    files = NamedFiles()
    written = adapters if report.step == TRAINING else []
    now = {folder for adapter in written if (folder := _named(adapter.parent)) is not None}
    for artifact in report.inputs:
        if not artifact.role.startswith(BASE_ROLE):
            continue
        name = Path(artifact.role.removeprefix(BASE_ROLE))
        if name.is_absolute() or ".." in name.parts:
            continue
        for place in {located(path, artifact.path), *(folder / name for folder in now)}:
            if os.path.isfile(place) and not _same(files, place, artifact):
                yield Verdict(
                    subject=str(name),
                    outcome=Outcome.REFUTED,
                    reason="it belongs to the adapter's base, and its digest is not the one recorded: the base was "
                    "changed or replaced since",
                )
                break


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


def _same(files: NamedFiles, place: Path, artifact: Artifact) -> bool:
    try:
        return files.digest(place) == artifact.digest
    except PrivctlError:
        return False
