"""Compares the log of searches beside a model with what the report says of searches.

Each line of the log has the time at which a search began and the digest of its data. The log lies beside the output and
lists the searches for it; whoever holds it can remove or rewrite it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from blake3 import blake3

from privctl.data.recorded import digest_of
from privctl.domain.errors import PrivctlError
from privctl.domain.report import Omission, PrivacyReport
from privctl.domain.shown import counted
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.parameters import ParametersError
from privctl.storage.digest import DigestedFile
from privctl.storage.hash_chain import BrokenChainError, Chain
from privctl.storage.reader import read_named_bytes
from verify.files.places import located
from verify.methods.expected import TRAINING
from verify.stated import training_of

_SUFFIX = ".searches"
_CHAIN = Chain(root=blake3(b"privctl searches 1").hexdigest(length=16), prefix=b" ")


def check_searches(path: Path, report: PrivacyReport, parents: Sequence[PrivacyReport]) -> Iterator[Verdict]:
    """The verdict on the number of earlier searches that a training states; none without the log of searches."""
    found = _compared(path, report)
    if isinstance(found, Verdict):
        yield found


def unlisted_searches(path: Path, report: PrivacyReport) -> Iterator[Omission]:
    """What the log does not show of a search, or the report of searches that the log lists."""
    found = _compared(path, report)
    if isinstance(found, Omission):
        yield found


def _compared(path: Path, report: PrivacyReport) -> Verdict | Omission | None:
    """A report without a search is not refuted by a log with one: a single run may have replaced the output since."""
    folder = next((located(path, each.path).parent for each in report.outputs if each.role == "model"), None)
    if report.step != TRAINING or folder is None:
        return None
    try:
        search = getattr(training_of(report), "search", None)
    except ParametersError:  # reported by a check
        return None
    log = folder.with_name(folder.name + _SUFFIX)
    what = f"the log of searches {log.name}"
    if not os.path.isfile(log):
        return None if search is None else Omission(what=what, reason="it is not at hand")
    try:
        began = sum(1 for _ in _begun(log, report))
    except (PrivctlError, BrokenChainError) as fault:
        return Omission(what=what, reason=f"it was edited, or cannot be read ({fault})")
    searches = counted(began, "search", "searches")
    if search is None:
        reason = (
            f"it lists {searches} of these data for this output, begun before this report of a single run: whatever "
            "they decided here costs privacy beside what is reported"
        )
        return Omission(what=what, reason=reason) if began else None
    stated = 1 + (search.earlier or 0)
    reason = f"it lists {searches} of these data begun before this report, which states {stated}"
    if began < stated:
        return Omission(what=what, reason=reason)
    if began > stated:
        return Verdict(subject=log.name, outcome=Outcome.REFUTED, reason=reason)
    reason = f"it lists as many searches of these data as the report states, {stated}; its holder can have rewritten it"
    return Verdict(subject=log.name, outcome=Outcome.CONSISTENT, reason=reason)


def _begun(log: Path, report: PrivacyReport) -> Iterator[bytes]:
    """Yields the lines of searches of the report's data that began before it was written, to the second."""
    files = [
        DigestedFile(path=Path(each.path), digest=each.digest, bytes=each.bytes)
        for each in report.inputs
        if each.role == "data"
    ]
    if not files:
        return
    data, created = digest_of(files).encode(), report.created.encode()
    for link in _CHAIN.read(read_named_bytes(log))[0]:
        time, _, digest = link.body.partition(b" ")
        if digest == data and time <= created:
            yield link.body
