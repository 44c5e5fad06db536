"""The report of one audit: its request, its inputs, and the findings of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from audits.asked import PACKAGES, files_of, pairs_of, stated
from audits.canaries.stated_noise import METHOD as STATED_STEPS
from audits.findings import ALPHA, PRIVATE, Findings
from audits.secrets.evidence import of_secrets
from audits.whole.models import AuditModels
from audits.whole.request import AuditRequest
from privctl.domain.report import Artifact, LogPosition, PrivacyReport
from privctl.reports.audit_parameters import AskedAudit
from privctl.reports.files import now, versions


def asked_of(
    request: AuditRequest, models: AuditModels, findings: Sequence[Findings], data: Sequence[Artifact]
) -> AskedAudit:
    """The request as stated in the report; ``data`` are the files that it names."""
    membership, canaries, extraction = request.membership, request.canaries, request.extraction
    bounds = canaries is not None or request.of_drawn_split
    delta = next((part.delta for part in (canaries, membership) if part is not None and part.delta is not None), None)
    return AskedAudit(
        files=files_of(data),
        attacks=() if membership is None else membership.attacks,
        thorough=membership is not None and membership.thorough,
        least_auc=None if membership is None else membership.least_auc,
        text_column=request.columns.text,
        label_column=request.columns.label,
        group_by=next((field for field in _group_fields(request, findings) if field is not None), None),
        claims=pairs_of(request.claims_beside(models.lineage.claims)) if bounds else (),
        curve=any("canary_curve" in part.parameters for part in findings),
        noise=any(item.method == STATED_STEPS for part in findings for item in part.evidence),
        delta=delta if bounds else None,
        greedy_only=extraction is not None and extraction.greedy_only,
        exact_only=extraction is not None and extraction.exact_only,
        adversarial=extraction is not None and extraction.adversary is not None,
        divergence=extraction is not None and extraction.untargeted is not None and extraction.untargeted.divergence,
        reference=request.reference is not None and extraction is not None and extraction.heldout is not None,
        beam=None if request.secrets is None else request.secrets.beam,
        secret_figures=tuple(f"{item.method}: {item.quantity}" for finding in findings for item in of_secrets(finding)),
        precision=request.precision,
        max_length=request.max_length,
        logged=request.log is not None,
    )


def _group_fields(request: AuditRequest, findings: Sequence[Findings]) -> Iterator[str | None]:
    """The fields by which the parts group records: membership by its option, extraction by its split."""
    yield None if request.membership is None else request.membership.group_by
    yield from (part.parameters.get("group_by") for part in findings)


def parameters_of(models: AuditModels, findings: Sequence[Findings], asked: AskedAudit) -> dict[str, Any]:
    """The parameters that the report states: the request, and the settings of the parts and of the model."""
    model = models.audited.subject.model
    return {
        **{name: value for part in findings for name, value in part.parameters.items()},
        "asked": stated(asked),
        "confidence": 1 - ALPHA,
        "device": str(model.device),
        "dtype": model.dtype,
        **({} if model.base_bits is None else {"base_bits": model.base_bits}),
    }


def audit_report(
    models: AuditModels,
    findings: Sequence[Findings],
    parameters: Mapping[str, Any],
    data: Sequence[Artifact],
    scores: Artifact,
    position: LogPosition | None,
) -> PrivacyReport:
    """The report of ``findings``, whose ``scores`` are written; ``position`` is its position in the log of audits."""
    return PrivacyReport(
        step="audit",
        created=now(),
        versions=versions(PACKAGES),
        inputs=(*models.inputs, *data),
        outputs=(scores,),
        parameters=parameters,
        evidence=tuple(item for part in findings for item in part.evidence),
        verdicts=tuple(item for part in findings for item in part.verdicts),
        omissions=tuple(item for part in findings for item in part.omissions),
        warnings=(*(line for part in findings for line in part.warnings), *models.doubts, PRIVATE),
        parents=models.lineage.parents,
        log=position,
    )
