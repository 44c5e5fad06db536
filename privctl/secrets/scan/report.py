"""Writes the results of a scan: the book of secrets, which only the owner may read, and a report without secrets."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, cast

from privctl.domain.report import Artifact, PrivacyReport
from privctl.reports.files import digested_artifact, now, versions
from privctl.secrets.scan.kinds import not_looked_for
from privctl.secrets.scan.occurrences import SecretGroup
from privctl.secrets.scan.request import ScanRequest
from privctl.secrets.table import Secret, write_secrets
from privctl.storage.atomic import PendingFile
from privctl.storage.digest import DigestedFile

if TYPE_CHECKING:
    from typing_extensions import Buffer


_BUFFER = 1 << 20

#: A file that was read: its role, and its digest.
InputFile = tuple[str, DigestedFile]


class _Appending(io.RawIOBase):
    """A pending file as a writable stream."""

    def __init__(self, pending: PendingFile) -> None:
        super().__init__()
        self._pending, self._position = pending, 0

    def writable(self) -> bool:
        return True

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data)
        self._pending.write_at(self._position, view)
        self._position += view.nbytes
        return view.nbytes


@contextmanager
def packed_stream(pending: PendingFile) -> Iterator[IO[bytes]]:
    """A stream that writes to ``pending``, compressed if the file's name ends in ``.gz``."""
    with io.BufferedWriter(_Appending(pending), _BUFFER) as stream:
        if pending.path.suffix == ".gz":
            with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as packed:
                yield cast("IO[bytes]", packed)
        else:
            yield stream


def write_book(pending: PendingFile, secrets: Iterable[Secret]) -> int:
    """Write ``secrets``, compressed if the file's name ends in ``.gz``, and return how many there are.

    Raises FileSystemError if writing fails.
    """
    with packed_stream(pending) as stream:
        return write_secrets(stream, secrets)


_KEEP = (
    "the book holds the secrets themselves: keep it as you keep the data; this report holds none, but patterns as they "
    "were given, and digests of the files, which tell whoever guesses a file whether that is right"
)


def _limits(kinds: Sequence[str]) -> str:
    return (
        f"not looked for: {'; '.join(not_looked_for(kinds))}; what --pattern, --literals and --by describe is found "
        "whatever it is, and nothing else that the data hold"
    )


def versions_of(request: ScanRequest) -> dict[str, str]:
    """The versions of all packages that affect the findings."""
    return versions(("numpy", "regex", "blake3", *(("presidio-analyzer",) if request.presidio else ())))


def report_of(
    request: ScanRequest,
    groups: Sequence[SecretGroup],
    inputs: Sequence[InputFile],
    *,
    records: int,
    unseen: int,
    book: Artifact | None,
) -> PrivacyReport:
    """The report of a scan of ``records`` records; ``book`` is None if none was written.

    ``unseen`` is the number of listed texts that are in no record.
    """
    counts = {
        group.kind: {
            "secrets": len(group),
            "records": group.holders,
            "memberships": len(group.records),
            "most_records": group.most,
        }
        for group in groups
    }
    parameters = {
        "kinds": [group.kind for group in groups],
        "patterns": dict(pattern.split("=", 1) for pattern in request.patterns),
        "by": request.by,
        "text_column": request.columns.text,
        "rare_words": request.rare_words,
        "rare_least": request.rare_least,
        "most_secrets": request.most_secrets,
        "pattern_seconds": request.pattern_seconds,
        "dataset_size": records,
        "found": counts,
    }
    warnings = [_KEEP, _limits([group.kind for group in groups])]
    if unseen:
        warnings.append(
            f"{unseen} of the listed texts {'is' if unseen == 1 else 'are'} in no record, and not in the book"
        )
    return PrivacyReport(
        step="secrets-scan",
        created=now(),
        versions=versions_of(request),
        inputs=tuple(digested_artifact(role, file, request.report) for role, file in inputs),
        outputs=() if book is None else (book,),
        parameters=parameters,
        warnings=tuple(warnings),
    )
