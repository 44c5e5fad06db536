"""One audit from files to a report: load, score once, let every part judge, and state the assumptions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from audits.asked import ASKED, as_text, files_of, pairs_of, stated
from audits.canaries.audit import CanaryAudit
from audits.canaries.gradients import GradientCanaryAudit, is_gradient_evidence, unused_beside
from audits.claims import EpsilonClaim
from audits.extraction.audit import ExtractionAudit
from audits.extraction.elsewhere import ReferenceModel
from audits.findings import ALPHA, PRIVATE, AuditPart, Findings
from audits.lineage import Lineage, lineage_of, require_unseen, weights_of
from audits.mechanism_curve import Profile, curve_of
from audits.membership.audit import MembershipAudit, Reference
from audits.membership.gradients import Differentiator
from audits.model_scorer import ModelScorer, OpenedModel
from audits.scores.scores_file import staged_scores
from audits.scores.subject import AuditedModel
from audits.scores.tasks import CAUSAL_LM, SEQ2SEQ_LM
from audits.secrets.audit import BaseModel, SecretsAudit
from audits.secrets.evidence import of_secrets
from audits.whole.leaking_records import leaking_records, staged_leaks
from audits.whole.log_entry import log_result, logged_audit
from audits.whole.options import flag_of
from audits.whole.request import AuditRequest, require_distinct
from privctl.data.recorded import recorded_files, require_same
from privctl.domain.errors import CommandError
from privctl.domain.leaking import LeakingRecord
from privctl.domain.progress import Progress
from privctl.domain.report import Artifact, LogPosition, PrivacyReport
from privctl.models.choices import FloatFormat
from privctl.parallel import ALONE, Workers
from privctl.reports.audit_log import Entry
from privctl.reports.audit_parameters import AskedAudit
from privctl.reports.files import POINTER, commit_with_report, digested_artifact, now, pending_artifact, versions
from privctl.storage.digest import DigestedFile

_OTHER_BITS = (
    "the training held the adapter's base in as many bits as its report's base_bits says, and this audit did not: what "
    "is audited answers differently from what was trained; give --base-bits 4 if, and only if, the report has it"
)
_ROUNDED = (
    "all models were run in bfloat16, their weights rounded to it: scores of members and of others are rounded alike, "
    "and an attack may find less than in float32"
)


def run_audit(
    request: AuditRequest,
    progress: Progress,
    workers: Workers = ALONE,
    *,
    on_records: Callable[[Sequence[LeakingRecord]], None] | None = None,
    on_entry: Callable[[Entry], None] | None = None,
    profile: Profile | None = None,
    notify: Callable[[str], None] = lambda _: None,
) -> PrivacyReport | None:
    """Run every part of ``request``, write scores and report together, log it, and return the report.

    ``profile`` gives points of the curve of a mechanism that the model's report states; without it none is tested.
    ``notify`` is told beforehand how much more is scored than the records.
    ``on_records`` is given the training records once all is written, those that leak most first; ``on_entry`` the
    line that the log of audits ends with.

    Several processes share all that is asked of a model, and come to the same findings; the main one alone writes and
    returns them, the others return None. Raises InputError for a
    model or data that cannot be scored, CommandError for settings that do not fit the model or each other and for files
    that exist and may not be replaced.
    """
    require_distinct(request)
    model_scorer = ModelScorer(
        cache=request.cache,
        device=request.device,
        workers=workers,
        progress=progress,
        precision=request.precision,
    )
    opened = model_scorer.open(
        request.model,
        request.report,
        task=request.task,
        max_length=request.max_length,
        resize=request.resize,
        base=request.base,
        base_bits=request.base_bits,
    )
    lineage = lineage_of(request.model, opened.inputs, request.report)
    request = _as_trained(request, lineage, notify if workers.is_main else lambda _: None)
    if request.membership is not None:
        require_unseen(lineage, "--nonmembers", request.membership.nonmembers)
    if request.extraction is not None and request.extraction.heldout is not None:
        require_unseen(lineage, "--heldout", request.extraction.heldout)
    reference = _open_other(model_scorer, request, request.reference, opened, "--reference", "one that saw no data")
    means = None if reference is None else partial(model_scorer.means, reference)
    compared = None if request.secrets is None else request.base
    opened_base = _open_other(model_scorer, request, compared, opened, "--base", "the one that it was trained from")
    base = None
    if opened_base is not None:
        base = BaseModel(
            subject=opened_base.subject, score=partial(model_scorer.score, opened_base, label="scoring the base")
        )
    elsewhere = _reference_for(request, reference, lineage)
    differentiator = Differentiator(
        subject=opened.subject,
        reference=None if reference is None else reference.subject,
        workers=workers,
        progress=progress,
    )
    before = {role: recorded_files(path) for role, path in request.files.items()} if workers.is_main else {}
    parts = _parts(request, opened, lineage, means, elsewhere, differentiator, base, progress, workers, profile)
    if not workers.is_main:
        _findings(model_scorer, opened, parts)
        return None
    other_inputs = tuple(
        replace(item, role=f"{role} {item.role}")
        for role, other in (("reference", reference), ("base", opened_base))
        for item in (other.inputs if other else ())
    )
    for part in parts:
        if isinstance(part, MembershipAudit) and part.cost:
            notify(part.cost)
    if request.canaries is None and (unused := unused_beside(request.model, lineage.gradient_canaries)):
        notify(unused)
    with logged_audit(request, opened.inputs) as position:
        report, records = _judge_and_write(
            request, model_scorer, opened, lineage, parts, other_inputs, before, position
        )
    entry = log_result(report, request.log)
    if on_records is not None:
        on_records(records)
    if on_entry is not None and entry is not None:
        on_entry(entry)
    return report


def _as_trained(request: AuditRequest, lineage: Lineage, notify: Callable[[str], None]) -> AuditRequest:
    """``request`` with the fields that the training read, where none are named: another would audit other texts."""
    named, trained = request.columns.named, lineage.columns.named
    unnamed = {name: field for name, field in trained.items() if name not in named}
    if not unnamed or (request.membership, request.extraction, request.secrets) == (None, None, None):
        return request
    flags = " ".join(f"{flag_of(name)} {field}" for name, field in unnamed.items())
    notify(f"the audit goes by {flags}, as {lineage.source} says of the training; name another field to change that")
    columns = replace(
        request.columns,
        text=request.columns.text or lineage.columns.text,
        label=request.columns.label or lineage.columns.label,
    )
    return replace(request, columns=columns)


def _findings(model_scorer: ModelScorer, opened: OpenedModel, parts: Sequence[AuditPart]) -> list[Findings]:
    """What the parts find in the scores; in all processes, which share what is asked of the model on the way."""
    row_scores = model_scorer.score(opened, [row for part in parts for row in part.rows])
    return [part.judge(row_scores, ALPHA / len(parts)) for part in parts]


def _judge_and_write(
    request: AuditRequest,
    model_scorer: ModelScorer,
    opened: OpenedModel,
    lineage: Lineage,
    parts: Sequence[AuditPart],
    other_inputs: Sequence[Artifact],
    before: Mapping[str, tuple[DigestedFile, ...]],
    position: LogPosition | None,
) -> tuple[PrivacyReport, tuple[LeakingRecord, ...]]:
    """Score, let every part judge, and write all files; ``other_inputs`` are the files of other models.

    ``before`` are the request's files as they were when the parts read them.
    """
    findings = _findings(model_scorer, opened, parts)
    for role, path in request.files.items():
        require_same(path, before[role])
    data = tuple(digested_artifact(role, file, request.report) for role, files in before.items() for file in files)
    inputs, asked = (*opened.inputs, *other_inputs, *data), _asked(request, lineage, findings, data)
    arrays = {name: array for part_findings in findings for name, array in part_findings.arrays.items()}
    reasons = {line: why for part_findings in findings for line, why in part_findings.reasons.items()}
    sizes = {line: size for part_findings in findings for line, size in part_findings.sizes.items()}
    records = leaking_records(arrays, request.files.get("members"), request.files.get("train"), reasons, sizes)
    with (
        staged_scores(request.scores, arrays, {POINTER: request.report.name, ASKED: as_text(asked)}) as scores,
        staged_leaks(request.leaks, records) as leaks,
    ):
        scores_artifact = pending_artifact("scores", scores, request.report)
        report = replace(_report(opened, lineage, findings, asked, inputs, scores_artifact), log=position)
        commit_with_report([scores, *leaks], request.report, report, replace=request.force)
    return report, records


def _asked(
    request: AuditRequest, lineage: Lineage, findings: Sequence[Findings], data: Sequence[Artifact]
) -> AskedAudit:
    """What ``request`` asks of a model of this ``lineage``; ``data`` are the files that it names."""
    membership, canaries, extraction = request.membership, request.canaries, request.extraction
    bounds = canaries is not None or _draws(request)
    delta = next((each.delta for each in (canaries, membership) if each is not None and each.delta is not None), None)
    return AskedAudit(
        files=files_of(data),
        attacks=() if membership is None else membership.attacks,
        thorough=membership is not None and membership.thorough,
        least_auc=None if membership is None else membership.least_auc,
        text_column=request.columns.text,
        label_column=request.columns.label,
        group_by=next((each for each in _group_fields(request, findings) if each is not None), None),
        claims=pairs_of(_claims(request, lineage)) if bounds else (),
        curve=any("canary_curve" in part.parameters for part in findings),
        delta=delta if bounds else None,
        greedy_only=extraction is not None and extraction.greedy_only,
        exact_only=extraction is not None and extraction.exact_only,
        adversarial=extraction is not None and extraction.adversary is not None,
        divergence=extraction is not None and extraction.untargeted is not None and extraction.untargeted.divergence,
        reference=request.reference is not None and extraction is not None and extraction.heldout is not None,
        beam=None if request.secrets is None else request.secrets.beam,
        secret_figures=tuple(f"{item.method}: {item.quantity}" for each in findings for item in of_secrets(each)),
        precision=request.precision,
        logged=request.log is not None,
    )


def _group_fields(request: AuditRequest, findings: Sequence[Findings]) -> Iterator[str | None]:
    """The fields by which the parts count groups: membership by its option, extraction by its split."""
    yield None if request.membership is None else request.membership.group_by
    yield from (part.parameters.get("group_by") for part in findings)


def _claims(request: AuditRequest, lineage: Lineage) -> tuple[EpsilonClaim, ...]:
    """The claims to be judged; one that was given is about what the audit counts, records or groups."""
    if request.claim is None:
        return lineage.claims
    groups = request.membership.group_by if request.membership is not None and _draws(request) else None
    return (replace(request.claim, unit=groups), *lineage.claims)


def _report(
    opened: OpenedModel,
    lineage: Lineage,
    findings: Sequence[Findings],
    asked: AskedAudit,
    inputs: tuple[Artifact, ...],
    scores: Artifact,
) -> PrivacyReport:
    parameters = {name: value for part in findings for name, value in part.parameters.items()}
    bits = opened.subject.model.base_bits
    doubts = lineage.doubts if bits == lineage.base_bits else (*lineage.doubts, _OTHER_BITS)
    rounded = [_ROUNDED] if opened.subject.model.precision is FloatFormat.BFLOAT16 else []
    return PrivacyReport(
        step="audit",
        created=now(),
        versions=versions(("torch", "transformers", "numpy", "scipy", "tokenizers")),
        inputs=inputs,
        outputs=(scores,),
        parameters={
            **parameters,
            "asked": stated(asked),
            "confidence": 1 - ALPHA,
            "device": str(opened.subject.model.device),
            "dtype": opened.subject.model.dtype,
            **({} if bits is None else {"base_bits": bits}),
        },
        evidence=tuple(item for part in findings for item in part.evidence),
        verdicts=tuple(item for part in findings for item in part.verdicts),
        omissions=tuple(item for part in findings for item in part.omissions),
        warnings=(*(line for part in findings for line in part.warnings), *doubts, *rounded, PRIVATE),
        parents=lineage.parents,
    )


def _open_other(
    model_scorer: ModelScorer, request: AuditRequest, path: Path | None, opened: OpenedModel, flag: str, hint: str
) -> OpenedModel | None:
    """Another model to compare with. Raises CommandError where it is the audited one."""
    if path is None:
        return None
    bits = request.base_bits if path == request.base else None
    other = model_scorer.open(
        path, request.report, task=opened.subject.task, resize=request.resize, base_bits=bits, beside=opened
    )
    if {t.digest for i in opened.inputs for t in i.tensors} == {t.digest for i in other.inputs for t in i.tensors}:
        raise CommandError(f"{flag} {path} is the audited model itself; give {hint}")
    return other


def _reference_for(request: AuditRequest, opened: OpenedModel | None, lineage: Lineage) -> ReferenceModel | None:
    """The reference model ``opened`` for an audit of a model of this ``lineage``; None without one, or held-out text.

    Raises CommandError where its own report says that it was trained on one of the files that are compared.
    """
    extraction = request.extraction
    if opened is None or extraction is None or extraction.heldout is None:
        return None
    model = opened.subject.model
    learned = lineage_of(model.path, opened.inputs, request.report).learned
    for flag, data in (("--train", extraction.train), ("--heldout", extraction.heldout)):
        for file in recorded_files(data):
            if learned is not None and file.digest in learned:
                raise CommandError(
                    f"--reference {model.path} was trained on {file.path.name} of {flag}, as its report says, and "
                    "cannot tell what is known from elsewhere; give a model that was trained on neither file"
                )
    return ReferenceModel(
        model=model, began=lineage.began_with == weights_of(opened.inputs), cleared=learned is not None
    )


def _parts(
    request: AuditRequest,
    opened: OpenedModel,
    lineage: Lineage,
    means: Reference | None,
    elsewhere: ReferenceModel | None,
    differentiator: Differentiator,
    base: BaseModel | None,
    progress: Progress,
    workers: Workers,
    profile: Profile | None,
) -> list[AuditPart]:
    """The requested parts. Raises CommandError if there are none, or if a part does not apply to this kind of model."""
    parts: list[AuditPart] = []
    subject = opened.subject
    claims = _claims(request, lineage)
    if request.membership is not None:
        membership = request.membership
        if _draws(request):
            membership = replace(membership, claims=claims)
        if _draws(request) and request.canaries is None:  # of several parts one tests the curve
            membership = replace(membership, curve=partial(curve_of, lineage, profile), unit=lineage.unit)
        weights = tuple(tensor for item in opened.inputs for tensor in item.tensors)
        parts.append(
            MembershipAudit(
                subject,
                membership,
                weights=weights,
                reference=means,
                differentiator=differentiator,
                columns=request.columns,
                trained_on=lineage.trained_on,
            )
        )
    if request.canaries is not None:
        curve = curve_of(lineage, profile)
        canaries = replace(request.canaries, trained_on=lineage.trained_on, claims=claims, curve=curve)
        if is_gradient_evidence(canaries.manifest):
            parts.append(GradientCanaryAudit(canaries, lineage.gradient_canaries))
        else:
            _require_causal(subject, "--canaries")
            parts.append(CanaryAudit(subject.model, canaries, workers))
    if request.extraction is not None:
        pairs = subject.task == SEQ2SEQ_LM
        if not pairs:
            _require_causal(subject, "--train")
        parts.append(
            ExtractionAudit(
                subject.model, request.extraction, progress, request.columns, workers, pairs=pairs,
                trained_on=lineage.trained_on, reference=elsewhere,
            )
        )  # fmt: skip
    if request.secrets is not None:
        secrets = replace(request.secrets, trained_on=lineage.trained_on, planned_by=lineage.planned_by)
        parts.append(SecretsAudit(subject, secrets, base, progress, request.columns, workers))
    if not parts:
        raise CommandError(
            unused_beside(request.model, lineage.gradient_canaries)
            or "there is nothing to audit; give --members and --nonmembers, --canaries, --train, --split, or --secrets"
        )
    return parts


def _draws(request: AuditRequest) -> bool:
    """Whether the members are those of a split that privctl drew."""
    return request.membership is not None and request.membership.split is not None


def _require_causal(subject: AuditedModel, flag: str) -> None:
    if subject.task == SEQ2SEQ_LM:
        raise CommandError(
            f"{flag} asks how a text goes on, and {subject.model.path} writes a target from a source; audit its pairs "
            "with --members and --nonmembers, or with --train and --heldout"
        )
    if subject.task != CAUSAL_LM:
        raise CommandError(
            f"{flag} asks what a model writes next, which {subject.model.path} does not say; audit its records with "
            "--members and --nonmembers"
        )
