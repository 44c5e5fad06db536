"""An audit's entries in the log of audits: one before its attacks run, one when its report is written."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from audits.membership.baseline import BLIND, CONTROL, LENGTH
from audits.places import output_paths
from privctl.domain.errors import CommandError, FileSystemError, PrivctlError
from privctl.domain.progress import Notify
from privctl.domain.report import Artifact, LogPosition, PrivacyReport
from privctl.domain.verdict import Outcome
from privctl.reports.audit_log import LOG_SUFFIX, Entry, abandon, begin, finish, read_log
from privctl.reports.codec import encode
from privctl.reports.files import relative
from privctl.storage.atomic import require_regular
from privctl.storage.digest import bytes_digest, file_digest

if TYPE_CHECKING:
    from audits.whole.request import AuditRequest

#: Fields of a request that only name locations.
_PLACES = ("model", "report", "scores", "cache", "log", "leaks", "device")
#: Prefixes of quantities for which larger is worse.
_WORSE = (
    "AUC",
    "TPR at ",
    "epsilon",
    "rate on training text",
    "near-verbatim rate on training text",
    "training text found in ",
    "disclosed, included",
)
#: Methods that do not use the audited model.
_BASELINES = (BLIND, LENGTH, CONTROL)


def log_path(report: Path, output: Path | None) -> Path:
    """The log of a model with the default report ``report``: ``output`` if given, else a file beside the report."""
    return output or report.with_name(report.name.removesuffix(".audit.report.json") + LOG_SUFFIX)


def is_logged(log: Path, report: Path) -> bool:
    """Whether ``log`` names the report at ``report``, so that replacing the file would lose a logged report.

    Called before anything is computed. Raises InputError for a log that was tampered with, CommandError if no log can
    be written there.
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
    logged = {audit.report for audit in read_log(log).audits}
    return report.is_file() and file_digest(report) in logged


def logged_beside(model: Path, report: Path, log: Path | None, notify: Notify) -> Path:
    """The log of audits of ``model``: ``log`` if given, otherwise beside it; ``notify`` if a logged report is replaced.

    Raises as ``is_logged``, and CommandError if the report would replace the log.
    """
    place = log_path(output_paths(model, None)[0], log)
    if os.path.realpath(place) == os.path.realpath(report):
        raise CommandError(f"{place} is named as the log and as an output; choose another --log")
    if is_logged(place, report):
        notify(f"{report} is in {place}, and is replaced: a gate that asks for every audit will miss it")
    return place


@contextmanager
def logged_audit(request: AuditRequest, inputs: Sequence[Artifact]) -> Iterator[LogPosition | None]:
    """As ``logged``, with the settings of ``request``."""
    with logged(request.log, request.report, inputs, _settings_of(request)) as position:
        yield position


@contextmanager
def logged(
    log: Path | None, report: Path, inputs: Sequence[Artifact], settings: Mapping[str, Any]
) -> Iterator[LogPosition | None]:
    """Log the start of an audit of the model ``inputs`` and, if the block fails, why.

    Yields the position for the report at ``report``, or None without a log.
    """
    if log is None:
        yield None
        return
    try:
        begun = begin(log, inputs, _as_plain(settings))
    except FileSystemError as error:
        raise FileSystemError(f"{error} for the log of audits, with --log") from None
    position = LogPosition(path=relative(log, report), entry=begun.number, digest=begun.digest)
    with _abandon_on_error(log, position):
        yield position


def log_result(report: PrivacyReport, log: Path | None) -> Entry | None:
    """Log ``report``, which was just written. Returns the new entry, or None without a log."""
    if log is None or report.log is None:
        return None
    return finish(
        log,
        report.log,
        report=bytes_digest(encode(report).encode()),
        refuted=sum(verdict.outcome is Outcome.REFUTED for verdict in report.verdicts),
        worst=_worst_estimates(report),
    )


@contextmanager
def _abandon_on_error(log: Path, begun: LogPosition) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        reason = str(error) if isinstance(error, PrivctlError) else type(error).__name__
        with suppress(PrivctlError):  # report the original error, not a failure to log it
            abandon(log, begun, reason)
        raise


def _worst_estimates(report: PrivacyReport) -> dict[str, float]:
    """For each quantity for which larger is worse, the largest estimate from the model's own scores."""
    worst: dict[str, float] = {}
    for item in report.evidence:
        if item.estimate is not None and item.method not in _BASELINES and item.quantity.startswith(_WORSE):
            worst[item.quantity] = max(item.estimate, worst.get(item.quantity, item.estimate))
    return worst


def _settings_of(request: AuditRequest) -> dict[str, Any]:
    """The settings of an audit, without locations."""
    settings = {field.name: getattr(request, field.name) for field in fields(request)}
    return {name: value for name, value in settings.items() if name not in _PLACES and value is not None}


def _as_plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        items = ((field.name, getattr(value, field.name)) for field in fields(value))
        # Functions are determined by the other settings, and their names would differ between runs.
        return {name: _as_plain(item) for name, item in items if item not in (None, ()) and not callable(item)}
    if isinstance(value, Path):
        return file_digest(value) if value.is_file() else value.name
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): _as_plain(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [_as_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
