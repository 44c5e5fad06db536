"""Scans one shard of the data, and writes the findings for ``merge``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from privctl.data.agreement import FileFacts, facts_of
from privctl.data.places import require_inputs
from privctl.data.recorded import changed, recorded_files, require_unchanged
from privctl.data.rows import progress_total_of_share
from privctl.data.several import paths_of
from privctl.data.shares import FileShare, digests_of, shares_of
from privctl.data.texts import TextRecord, iter_share
from privctl.domain.errors import CommandError
from privctl.domain.progress import Progress
from privctl.domain.progress import unseen as silent_progress
from privctl.secrets.scan.part import PartHeader, ReadFile, ShareRead, write_part
from privctl.secrets.scan.report import versions_of
from privctl.secrets.scan.request import ScanRequest, settings_of
from privctl.secrets.scan.run import require_writable_outputs
from privctl.secrets.scan.search import find_in_shard, prepare_search, with_progress
from privctl.storage.atomic import PendingFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardResult:
    """How many ``records`` a shard has, and how many ``candidates`` for secrets were found in them."""

    records: int
    candidates: int


@dataclass(slots=True)
class _Reader:
    """Reads the records of a shard's ``shares``, and counts the ``rows`` of each share."""

    request: ScanRequest
    shares: Sequence[FileShare]
    rows: dict[FileShare, int] = field(default_factory=dict)

    def records(self) -> Iterator[TextRecord]:
        """The records of all shares in order, numbered on from share to share; counts them in ``rows``."""
        line = 0
        for share in self.shares:
            self.rows[share] = 0
            columns, unit = self.request.columns, self.request.by
            for record in iter_share(self.request.data, share, unit=unit, columns=columns, before=line):
                self.rows[share] += 1
                yield record
                line = record.line


def scan_shard(request: ScanRequest, progress: Progress | None = None, *, force: bool = False) -> ShardResult:
    """Search the shard that ``request`` names and write its partial result. Raises as ``scan`` does.

    Also raises CommandError if the request names no output, or data that cannot be split into shares.
    """
    if request.shard is None or request.output is None:
        raise CommandError("--shard I/N writes a partial result and nothing else; name its file with --output")
    require_inputs(request.data)
    require_writable_outputs(request, force=force)
    shard, count = request.shard
    literals = None if request.literals is None else recorded_files(request.literals)[0]
    search = prepare_search(request)
    shares = shares_of(request.data, count)
    own_shares = [share for share in shares if share.shard == shard - 1]
    digests = {share: digests_of(share, shares) for share in own_shares}
    facts = {share: facts_of(share.file, request.columns, request.by) for share in own_shares if share.is_first}
    lines = 0 if progress is None else sum(map(progress_total_of_share, own_shares))
    reader, seen = _Reader(request, own_shares), progress or silent_progress
    state = find_in_shard(request, search, lambda label: with_progress(reader.records(), seen(label, lines, "lines")))
    if literals is not None:
        require_unchanged([literals])
    for share in own_shares:
        if digests_of(share, shares) != digests[share]:
            raise changed(share.file)
    files = {share.index: ReadFile(path=str(share.file.absolute()), bytes=share.size) for share in shares}
    header = PartHeader(
        shard=shard,
        of=count,
        versions=versions_of(request),
        settings=settings_of(request),
        kinds=tuple(kind.name for kind in search.kinds),
        data=tuple(map(str, paths_of(request.data))),
        files=tuple(files[index] for index in sorted(files)),
        shares=tuple(_share_read(share, digests[share], reader.rows[share], facts.get(share)) for share in own_shares),
        records=state.records,
        literals=None if literals is None else ReadFile(path=str(literals.path.absolute()), bytes=literals.bytes),
        literals_digest=None if literals is None else literals.digest,
        listed=search.listed,
    )
    with PendingFile(request.output) as pending:
        candidates = write_part(pending, header, state)
        pending.commit(replace=force)
    return ShardResult(records=state.records, candidates=candidates)


def _share_read(
    share: FileShare, digest_and_parts: tuple[str, tuple[str, ...]], rows: int, facts: FileFacts | None
) -> ShareRead:
    digest, digests = digest_and_parts
    read = ShareRead(file=share.index, begin=share.begin, end=share.end, rows=rows, digest=digest, digests=digests)
    return read if facts is None else replace(read, form=facts.form, types=facts.types)
