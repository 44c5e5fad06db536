"""An audit in the log of audits: entered before its attacks look at the model, and again when its report is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audits.membership.baseline import BLIND, CONTROL, LENGTH
from privctl.domain.errors import CommandError, PrivctlError
from privctl.domain.report import Artifact, LogPosition, PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.audit_log import LOG_SUFFIX, Entry, abandon, begin, finish, read_log
from privctl.reports.codec import encode
from privctl.reports.files import relative
from privctl.storage.atomic import require_regular
from privctl.storage.digest import bytes_digest, file_digest

if TYPE_CHECKING:
    from audits.run import AuditRequest

#: Fields of a request that say where things lie, not what is asked.
_PLACES = ("model", "report", "scores", "cache", "log", "device")
#: Beginnings of the quantities of which more is worse.
_WORSE = ("AUC", "TPR at ", "epsilon", "rate on training text", "training text found in ", "disclosed, included")
#: Methods that do without the model.
_BASELINES = (BLIND, LENGTH, CONTROL)


def log_path(report: Path, output: Path | None) -> Path:
    """The log of a model whose default report lies at ``report``: as ``output`` says, else beside that report."""
    return output or report.with_name(report.name.removesuffix(".audit.report.json") + LOG_SUFFIX)


def replaces(log: Path, report: Path) -> bool:
    """Whether ``report`` is one that ``log`` names, so that replacing it loses it.

    Raises InputError for a log that was tampered with, CommandError where none can be kept, before anything is
    computed.
    """
    require_regular(log, option="--log")
    if not log.absolute().parent.is_dir():
        raise CommandError(
            f"{log.absolute().parent} is not a folder to keep {log.name} in; make it, or name another --log"
        )
    if log.is_dir():
        raise CommandError(f"{log} is a folder, in which no log can be kept; name a file with --log")
    if not log.exists() or not log.stat().st_size:
        return False
    known = {audit.report for audit in read_log(log).audits}
    return report.is_file() and file_digest(report) in known


@contextmanager
def entered(request: AuditRequest, inputs: Sequence[Artifact]) -> Iterator[LogPosition | None]:
    """Enter that the audit begins, and, where the block does not come to its end, why; None without a log."""
    if request.log is None:
        yield None
        return
    begun = begin(request.log, inputs, _asked(request))
    position = LogPosition(path=relative(request.log, request.report), entry=begun.number, digest=begun.digest)
    with _abandoned(request.log, position):
        yield position


def enter(report: PrivacyReport, log: Path | None) -> Entry | None:
    """Enter ``report``, which was just written, into ``log``; the line, or None without a log."""
    if log is None or report.log is None:
        return None
    return finish(
        log,
        report.log,
        report=bytes_digest(encode(report).encode()),
        refuted=sum(verdict.outcome is Outcome.REFUTED for verdict in report.verdicts),
        worst=_worst(report),
    )


@contextmanager
def _abandoned(log: Path, begun: LogPosition) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        said = str(error) if isinstance(error, PrivctlError) else type(error).__name__
        with suppress(PrivctlError):  # what went wrong first is what is told
            abandon(log, begun, said)
        raise


def _worst(report: PrivacyReport) -> dict[str, float]:
    """Of every quantity of which more is worse, the largest value that the model's own scores gave."""
    found: dict[str, float] = {}
    for item in report.evidence:
        if item.estimate is not None and item.method not in _BASELINES and item.quantity.startswith(_WORSE):
            found[item.quantity] = max(item.estimate, found.get(item.quantity, item.estimate))
    return found


def _asked(request: AuditRequest) -> dict[str, Any]:
    """The settings of an audit: files by their digests, models by their names."""
    named = {each.name: getattr(request, each.name) for each in fields(request)}
    return {name: _plain(value) for name, value in named.items() if name not in _PLACES and value is not None}


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        named = ((each.name, getattr(value, each.name)) for each in fields(value))
        return {name: _plain(each) for name, each in named if each not in (None, ())}
    if isinstance(value, Path):
        return file_digest(value) if value.is_file() else value.name
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
