"""Report files: their paths, reading and writing, and the entries that the reports of all steps share."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from privctl.domain.errors import CommandError, PrivctlError
from privctl.domain.report import Artifact, ParentReport, PrivacyReport
from privctl.domain.version import VERSION
from privctl.reports.codec import decode_bytes, encode
from privctl.storage.atomic import PendingFile, PendingFolder, require_no_folder, takes_a_stream, write_bytes
from privctl.storage.commit import commit_together
from privctl.storage.digest import DigestedFile, file_digest, hash_tensors
from privctl.storage.folder import companions_of
from privctl.storage.journal import recover
from privctl.storage.reader import Checkpoint, read_named_bytes

#: Key in the metadata of a safetensors header: the path of the report, relative to the file's folder.
POINTER = "privctl.report"

REPORT_SUFFIX = ".report.json"

_FILE_SUFFIXES = (".gz", ".jsonl", ".ndjson", ".json", ".safetensors")


@dataclass(frozen=True, slots=True)
class FoundReport:
    """A report with the path from which it was read."""

    path: Path
    report: PrivacyReport

    def parent_of(self, child: Path) -> ParentReport:
        """The reference to this report in a report at ``child``."""
        return ParentReport(path=relative(self.path, child), digest=file_digest(self.path))


def read_report(path: Path) -> PrivacyReport:
    """The report at ``path``; raises InputError if the file is not a report."""
    return decode_bytes(read_named_bytes(path), str(path))


def write_report(path: Path, report: PrivacyReport) -> None:
    """Write ``report`` atomically."""
    write_bytes(path, encode(report).encode())


@contextmanager
def staged_report(place: Path, report: PrivacyReport) -> Iterator[PendingFile]:
    """Within the block, ``report`` is written but not yet committed to ``place``."""
    with PendingFile(place) as pending:
        pending.write_at(0, encode(report).encode())
        yield pending


def commit_with_report(
    outputs: Sequence[PendingFile | PendingFolder],
    place: Path,
    report: PrivacyReport,
    *,
    replace: bool,
    remove: Sequence[Path] = (),
) -> None:
    """Commit ``outputs`` together with their ``report`` at ``place``; see ``commit_together``."""
    if takes_a_stream(place):
        commit_together(outputs, replace=replace, remove=remove)
        write_report(place, report)
        return
    with staged_report(place, report) as pending:
        commit_together([*outputs, pending], replace=replace, remove=remove)


def pointer_of(checkpoint: Checkpoint) -> Path | None:
    """The path of the report that the checkpoint's header names, whether or not it exists; None if it names none."""
    for file in checkpoint.files:
        pointer = file.metadata.get(POINTER)
        if pointer:
            return Path(os.path.normpath(file.path.parent / pointer))
    return None


def report_of(checkpoint: Checkpoint) -> FoundReport | None:
    """The report that a checkpoint's header names; None if it names none or the file does not exist.

    Raises InputError if the file exists but is not a report.
    """
    path = pointer_of(checkpoint)
    return FoundReport(path, read_report(path)) if path is not None and os.path.isfile(path) else None


def require_not_weights_or_report(path: Path, *, but: str = "") -> None:
    """Raise CommandError if ``path`` holds tensors or a report, which are not to be overwritten.

    A report of the step ``but`` may be overwritten, by one of the same step.
    """
    if not os.path.isfile(path):
        return
    if path.suffix == ".safetensors":
        raise CommandError(f"{path} holds tensors, which no report replaces; name another file")
    if path.suffix == ".json":
        try:
            step = read_report(path).step
        except PrivctlError:
            return
        if step != but:
            raise CommandError(
                f"{path} is the report of another step ({step}); no command edits it, so name another file"
            )


def require_replaceable(folder: Path, place: Path, force: bool, *, inputs: Iterable[Path] = ()) -> None:
    """Raise CommandError if ``folder`` exists and may not be replaced by a new one whose report is at ``place``.

    It may be replaced with ``force`` if the existing report at ``place`` lists every file in it with its digest, so
    that nothing else is lost, and if it contains none of the ``inputs``.
    """
    recover(folder.absolute().parent)  # completing an interrupted commit may create the folder
    if not os.path.isdir(folder) or os.path.islink(folder):
        require_no_folder(folder)
        return
    if not force:
        raise CommandError(f"{folder} exists; give --force to replace it, or choose another --output")
    for path in inputs:
        if Path(os.path.realpath(folder)) in (real := Path(os.path.realpath(path)), *real.parents):
            raise CommandError(f"{path} is an input of this command, so --output {folder} cannot replace it")
    try:
        listed = {artifact.path: artifact for artifact in read_report(place).outputs}
    except PrivctlError:
        listed = {}
    strays = sorted(
        entry.name
        for entry in os.scandir(folder)
        if f"{folder.name}/{entry.name}" not in listed or not entry.is_file(follow_symlinks=False)
    )
    if strays:
        raise CommandError(
            f"{folder} holds {strays[0]}, which no report at {place} lists; --force replaces only folders that privctl "
            "wrote, so move this one away or choose another --output"
        )
    for entry in sorted(os.scandir(folder), key=lambda item: item.name):
        artifact = listed[f"{folder.name}/{entry.name}"]
        if entry.stat().st_size != artifact.bytes or file_digest(Path(entry.path)) != artifact.digest:
            raise CommandError(
                f"{folder / entry.name} is not what {place} lists: it was changed since, and --force would lose it; "
                "move it away or choose another --output"
            )


def report_beside(path: Path) -> Path:
    """The path of the report beside a file of records or arrays: its name without suffixes of formats."""
    name = path.name
    for suffix in _FILE_SUFFIXES:
        name = name.removesuffix(suffix)
    return path.with_name((name or path.name) + REPORT_SUFFIX)


def relative(path: Path, report: Path) -> str:
    """``path`` relative to the folder of the report at ``report``, with forward slashes."""
    return Path(os.path.relpath(path.absolute(), report.absolute().parent)).as_posix()


def file_artifact(role: str, path: Path, report: Path) -> Artifact:
    """The artifact entry of a file, including its digest."""
    return Artifact(
        role=role,
        path=relative(path, report),
        digest=file_digest(path),
        bytes=path.stat().st_size,
    )


def weights_artifacts(checkpoint: Checkpoint, report: Path) -> Iterator[Artifact]:
    """The artifact entries of a checkpoint's weights, including digests of files and tensors."""
    for file in checkpoint.files:
        hashed = hash_tensors(file)
        yield Artifact(
            role="model",
            path=relative(file.path, report),
            digest=hashed.file_digest,
            bytes=file.size,
            tensors=hashed.tensors,
        )


def checkpoint_artifacts(checkpoint: Checkpoint, report: Path) -> tuple[Artifact, ...]:
    """The artifact entries of a checkpoint's weights and of all other files that a loader may read."""
    companions = (file_artifact("companion", path, report) for path in companions_of(checkpoint))
    return (*weights_artifacts(checkpoint, report), *companions)


def digested_artifact(role: str, file: DigestedFile, report: Path) -> Artifact:
    """The artifact entry of a file whose digest is known."""
    return Artifact(role=role, path=relative(file.path, report), digest=file.digest, bytes=file.bytes)


def pending_artifact(role: str, pending: PendingFile, report: Path) -> Artifact:
    """The artifact entry of a file that is written but not yet committed."""
    return Artifact(
        role=role,
        path=relative(pending.path, report),
        digest=file_digest(pending.temporary),
        bytes=pending.temporary.stat().st_size,
    )


def now() -> str:
    """The current time in the format of reports: UTC, ISO 8601, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of privctl, Python and the named packages; a package that is not installed is left out."""
    installed = {package: version for package in packages if (version := _version(package)) is not None}
    return {"privctl": VERSION, "python": platform.python_version(), **installed}


@cache  # versions do not change in a process, and each look-up takes milliseconds
def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # here, as reading reports does not need it

    try:
        return version(package)
    except PackageNotFoundError:
        return None
