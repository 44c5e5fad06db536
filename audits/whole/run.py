"""One audit from files to a report: open models, score once, let every part judge, and write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from audits.asked import ASKED, READ, SETTINGS, VERSIONS, as_text, read_text, settings_text, versions_text
from audits.canaries.gradients import unused_beside
from audits.findings import ALPHA, AuditPart, Findings
from audits.mechanism_curve import Epsilon, Profile
from audits.membership.audit import MembershipAudit
from audits.membership.groups import SINGLE_RECORDS, not_named
from audits.scores.scores_file import staged_scores
from audits.scores.subject import text_columns
from audits.whole.attempts import SkippedPart
from audits.whole.leaking_records import leaking_records, staged_leaks
from audits.whole.log_entry import log_result, logged_audit
from audits.whole.models import AuditModels, open_models
from audits.whole.options import flag_of
from audits.whole.parts import parts_of
from audits.whole.report import asked_of, audit_report, parameters_of
from audits.whole.request import AuditRequest, require_distinct
from privctl.data.recorded import recorded_files, require_same
from privctl.domain.leaking import LeakingRecord
from privctl.domain.progress import Progress
from privctl.domain.report import LogPosition, PrivacyReport
from privctl.parallel import ALONE, Workers
from privctl.reports.audit_log import Entry
from privctl.reports.files import POINTER, commit_with_report, digested_artifact, pending_artifact
from privctl.storage.digest import DigestedFile

#: The fields that are read by default.
_USUAL = {"text_column": "text", "label_column": "label"}


def run_audit(
    request: AuditRequest,
    progress: Progress,
    workers: Workers = ALONE,
    *,
    on_records: Callable[[Sequence[LeakingRecord]], None] | None = None,
    on_entry: Callable[[Entry], None] | None = None,
    profile: Profile | None = None,
    epsilon: Epsilon | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> PrivacyReport | None:
    """Run every part of ``request``, write scores and report together, log it, and return the report.

    ``profile`` gives points of the trade-off curve of a mechanism stated by the model's report; without it, no curve is
    tested. With ``epsilon``, which gives the mechanism's epsilon at a delta, canaries also bound its noise. ``notify``
    is called beforehand with the additional cost of scoring and other remarks. ``on_records`` is called with the
    training records once all is written, those that leak most first; ``on_entry`` with the last entry of the log of
    audits.

    Several processes share all model queries and reach the same findings; only the main one writes and returns them,
    the others return None. Raises InputError for a model or data that cannot be scored, CommandError for settings that
    do not fit the model or each other and for files that exist and may not be replaced.
    """
    require_distinct(request)
    models = open_models(request, progress, workers)
    request = _as_trained(request, models, notify if workers.is_main else lambda _: None)
    before = {role: recorded_files(path) for role, path in request.files.items()} if workers.is_main else {}
    parts = parts_of(request, models, profile, epsilon)
    if not workers.is_main:
        _findings(models, parts)
        return None
    for part in parts:
        if isinstance(part, MembershipAudit) and part.cost:
            notify(part.cost)
        if isinstance(part, SkippedPart):
            notify(part.sentence)
    if request.canaries is None and (unused := unused_beside(request.model, models.lineage.gradient_canaries)):
        notify(unused)
    with logged_audit(request, models.audited.inputs) as position:
        report, records = _judge_and_write(request, models, parts, before, position)
    entry = log_result(report, request.log)
    if on_records is not None:
        on_records(records)
    if on_entry is not None and entry is not None:
        on_entry(entry)
    return report


def _as_trained(request: AuditRequest, models: AuditModels, notify: Callable[[str], None]) -> AuditRequest:
    """``request`` with the training's fields and unit of privacy, if none are named.

    With another field, other texts would be audited; with single records of a user, another promise than was made.
    """
    lineage = models.lineage
    if (request.membership, request.extraction, request.secrets) == (None, None, None):
        return request
    named, trained = request.columns.named, lineage.columns.named
    other = {name: field for name, field in named.items() if (trained.get(name) or _USUAL[name]) != field}
    if other and lineage.trained_on is not None:
        notify(
            f"the audit goes by {_flags(other)}, which {lineage.source} does not name as a field of the training: what "
            "the model never read cannot leak, and a gate counts no such audit"
        )
    unnamed = {name: field for name, field in trained.items() if name not in named}
    columns = replace(
        request.columns,
        text=request.columns.text or lineage.columns.text,
        label=request.columns.label or lineage.columns.label,
    )
    membership = request.membership
    by_coins = membership is not None and membership.split is not None
    if membership is not None and membership.group_by is None and lineage.unit is not None and not by_coins:
        subject, files = models.audited.subject, (membership.members, membership.nonmembers)
        missing = not_named(lineage.unit, files, membership.attacks, subject.task, text_columns(subject, columns))
        if missing is None:
            unnamed["group_by"] = lineage.unit
            membership = replace(membership, group_by=lineage.unit)
        elif missing:
            notify(
                f"{lineage.source} protects all records with one value of {lineage.unit!r} together, and {missing}: "
                "single records are judged, which says less"
            )
    if membership is not None and membership.group_by == SINGLE_RECORDS:
        membership = replace(membership, group_by=None)
    if unnamed:
        records = ", or --group-by none for single records" if "group_by" in unnamed else ""
        notify(
            f"the audit goes by {_flags(unnamed)}, as {lineage.source} says of the training; name another field to "
            f"change that{records}"
        )
    return replace(request, columns=columns, membership=membership)


def _flags(fields: Mapping[str, str]) -> str:
    return " ".join(f"{flag_of(name)} {field}" for name, field in fields.items())


def _findings(models: AuditModels, parts: Sequence[AuditPart]) -> list[Findings]:
    """The findings of all parts; called in all processes, which share the model queries on the way."""
    row_scores = models.scorer.score(models.audited, [row for part in parts for row in part.rows])
    return [part.judge(row_scores, ALPHA / len(parts)) for part in parts]


def _judge_and_write(
    request: AuditRequest,
    models: AuditModels,
    parts: Sequence[AuditPart],
    before: Mapping[str, tuple[DigestedFile, ...]],
    position: LogPosition | None,
) -> tuple[PrivacyReport, tuple[LeakingRecord, ...]]:
    """Score, let every part judge, and write all files.

    ``before`` are the digests of the request's files when the parts read them.
    """
    findings = _findings(models, parts)
    for role, path in request.files.items():
        require_same(path, before[role])
    models.require_unchanged()
    data = tuple(digested_artifact(role, file, request.report) for role, files in before.items() for file in files)
    asked = asked_of(request, models, findings, data)
    arrays = {name: array for part_findings in findings for name, array in part_findings.arrays.items()}
    reasons = {line: why for part_findings in findings for line, why in part_findings.reasons.items()}
    sizes = {line: size for part_findings in findings for line, size in part_findings.sizes.items()}
    records = leaking_records(arrays, request.files.get("members"), request.files.get("train"), reasons, sizes)
    parameters = parameters_of(models, findings, asked)
    header = {
        POINTER: request.report.name,
        ASKED: as_text(asked),
        SETTINGS: settings_text(parameters),
        READ: read_text((*models.inputs, *data), models.lineage.parents),
        VERSIONS: versions_text(),
    }
    with (
        staged_scores(request.scores, arrays, header) as scores,
        staged_leaks(request.leaks, records) as leaks,
    ):
        scores_artifact = pending_artifact("scores", scores, request.report)
        report = audit_report(models, findings, parameters, data, scores_artifact, position)
        commit_with_report([scores, *leaks], request.report, report, replace=request.force)
    return report, records
