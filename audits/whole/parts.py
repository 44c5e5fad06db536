"""The parts of one audit, each with its request and models."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from audits.canaries.audit import CanaryAudit
from audits.canaries.gradients import GradientCanaryAudit, is_gradient_evidence, unused_beside
from audits.extraction.audit import ExtractionAudit
from audits.extraction.request import ExtractionRequest
from audits.findings import AuditPart
from audits.mechanism_curve import Epsilon, Profile, curve_of
from audits.membership.audit import MembershipAudit
from audits.scores.subject import AuditedModel
from audits.scores.tasks import CAUSAL_LM, SEQ2SEQ_LM
from audits.secrets.audit import SecretRequest, SecretsAudit
from audits.whole.attempts import SkippedPart, attempted
from audits.whole.models import AuditModels
from audits.whole.request import AuditRequest
from privctl.domain.errors import CommandError

#: The names of parts in omissions if they could not be run; ``verify`` and the HTML pages rely on them.
EXTRACTION, SECRETS = "extraction", "secrets"


def parts_of(
    request: AuditRequest, models: AuditModels, profile: Profile | None, epsilon: Epsilon | None = None
) -> list[AuditPart]:
    """The requested parts, which read their data here; ``profile`` and ``epsilon`` are an accountant's functions.

    Extraction and secrets that cannot be measured on this model, or from these records, are left out if there are other
    parts, and the report says why. Raises CommandError if there are no parts, or if one does not apply to this kind of
    model; InputError for data that cannot be used.
    """
    parts: list[AuditPart] = []
    subject, lineage = models.audited.subject, models.lineage
    claims = request.claims_beside(lineage.claims)
    if request.membership is not None:
        membership = request.membership
        if request.of_drawn_split:
            membership = replace(membership, claims=claims)
        if request.of_drawn_split and request.canaries is None:  # only one part tests the curve
            membership = replace(membership, curve=partial(curve_of, lineage, profile), unit=lineage.unit)
        weights = tuple(tensor for item in models.audited.inputs for tensor in item.tensors)
        parts.append(
            MembershipAudit(
                subject,
                membership,
                weights=weights,
                reference=models.reference_means,
                differentiator=models.differentiator,
                columns=request.columns,
                trained_on=lineage.trained_on,
                progress=models.scorer.progress,
            )
        )
    if request.canaries is not None:
        gradients = is_gradient_evidence(request.canaries.manifest)
        tested = replace(lineage, mechanism=lineage.steps) if gradients else lineage
        curve = curve_of(tested, profile, epsilon=epsilon)
        canaries = replace(request.canaries, trained_on=lineage.trained_on, claims=claims, curve=curve)
        if gradients:
            beside = lineage.steps != lineage.mechanism
            parts.append(GradientCanaryAudit(canaries, lineage.gradient_canaries, measured=beside))
        else:
            _require_causal(subject, "--canaries")
            parts.append(CanaryAudit(subject.model, canaries, models.scorer.workers))
    requested = (request.membership, request.canaries, request.extraction, request.secrets)
    alone = sum(part is not None for part in requested) == 1
    if request.extraction is not None:
        parts.append(attempted(EXTRACTION, partial(_extraction, request.extraction, request, models), alone=alone))
    if request.secrets is not None:
        parts.append(attempted(SECRETS, partial(_secrets, request.secrets, request, models), alone=alone))
    if parts and all(isinstance(part, SkippedPart) for part in parts):
        raise next(part.why for part in parts if isinstance(part, SkippedPart))
    if not parts:
        raise CommandError(
            unused_beside(request.model, lineage.gradient_canaries)
            or "there is nothing to audit; give --members and --nonmembers, --canaries, --train, --split, or --secrets"
        )
    return parts


def _extraction(extraction: ExtractionRequest, request: AuditRequest, models: AuditModels) -> ExtractionAudit:
    subject = models.audited.subject
    pairs = subject.task == SEQ2SEQ_LM
    if not pairs:
        _require_causal(subject, "--train")
    return ExtractionAudit(
        subject.model, extraction, models.scorer.progress, request.columns, models.scorer.workers, pairs=pairs,
        trained_on=models.lineage.trained_on, reference=models.elsewhere,
    )  # fmt: skip


def _secrets(secret_request: SecretRequest, request: AuditRequest, models: AuditModels) -> SecretsAudit:
    lineage, scorer = models.lineage, models.scorer
    secrets = replace(secret_request, trained_on=lineage.trained_on, planned_by=lineage.planned_by)
    return SecretsAudit(
        models.audited.subject, secrets, models.compared_base, scorer.progress, request.columns, scorer.workers
    )


def _require_causal(subject: AuditedModel, flag: str) -> None:
    if subject.task == SEQ2SEQ_LM:
        raise CommandError(
            f"{flag} asks how a text goes on, and {subject.model.path} writes a target from a source; audit its pairs "
            "with --members and --nonmembers, or with --train and --held-out"
        )
    if subject.task != CAUSAL_LM:
        raise CommandError(
            f"{flag} asks what a model writes next, which {subject.model.path} does not say; audit its records with "
            "--members and --nonmembers"
        )
