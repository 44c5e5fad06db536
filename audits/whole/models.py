"""The models of one audit: the audited one with its lineage, and those that it is compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from audits.extraction.elsewhere import ReferenceModel
from audits.findings import rounded
from audits.lineage import Lineage, lineage_of, require_unseen, weights_of
from audits.membership.audit import Reference
from audits.membership.gradients import Differentiator
from audits.model_scorer import ModelScorer, OpenedModel
from audits.secrets.audit import BaseModel
from audits.whole.request import AuditRequest
from privctl.data.recorded import recorded_files
from privctl.domain.errors import CommandError
from privctl.domain.progress import Progress
from privctl.domain.report import Artifact
from privctl.parallel import Workers

_OTHER_BITS = (
    "the training held the adapter's base in as many bits as its report's base_bits says, and this audit did not: what "
    "is audited answers differently from what was trained; give --base-bits 4 if, and only if, the report has it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditModels:
    """The ``audited`` model and its ``lineage``, the ``reference``, and the ``base`` that it was trained from.

    ``elsewhere`` is the reference for extraction; None without one, or without held-out text.
    """

    scorer: ModelScorer
    audited: OpenedModel
    lineage: Lineage
    reference: OpenedModel | None
    base: OpenedModel | None
    elsewhere: ReferenceModel | None

    @property
    def inputs(self) -> tuple[Artifact, ...]:
        """The files of all models."""
        others = (("reference", self.reference), ("base", self.base))
        return (
            *self.audited.inputs,
            *(replace(item, role=f"{role} {item.role}") for role, other in others if other for item in other.inputs),
        )

    def require_unchanged(self) -> None:
        """Raise InputError if a file of any model is not what was loaded."""
        for model in (self.audited, self.reference, self.base):
            if model is not None:
                model.require_unchanged()

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why the audited model may not be the trained one, or may give other answers."""
        model = self.audited.subject.model
        other_bits = () if model.base_bits == self.lineage.base_bits else (_OTHER_BITS,)
        return (*self.lineage.doubts, *other_bits, *rounded(model.dtype))

    @property
    def reference_means(self) -> Reference | None:
        """A function that scores records with the reference; None without one."""
        return None if self.reference is None else partial(self.scorer.means, self.reference)

    @property
    def compared_base(self) -> BaseModel | None:
        """The base model with a function that scores rows with it; None without one."""
        if self.base is None:
            return None
        return BaseModel(
            subject=self.base.subject, score=partial(self.scorer.score, self.base, label="scoring the base")
        )

    @property
    def differentiator(self) -> Differentiator:
        """Computes gradients of the audited model."""
        return Differentiator(
            subject=self.audited.subject,
            reference=None if self.reference is None else self.reference.subject,
            workers=self.scorer.workers,
            progress=self.scorer.progress,
        )


def open_models(request: AuditRequest, progress: Progress, workers: Workers) -> AuditModels:
    """Load all models that ``request`` names.

    Raises InputError for a model that cannot be scored; CommandError for non-members that it was trained on, for a
    model that is compared with itself, and for a reference that was trained on the data it is to be compared on.
    """
    scorer = ModelScorer(
        cache=request.cache,
        device=request.device,
        workers=workers,
        progress=progress,
        precision=request.precision,
    )
    audited = scorer.open(
        request.model,
        request.report,
        task=request.task,
        max_length=request.max_length,
        resize=request.resize,
        base=request.base,
        base_bits=request.base_bits,
    )
    lineage = lineage_of(request.model, audited.inputs, request.report)
    if request.membership is not None:
        require_unseen(lineage, "--nonmembers", request.membership.nonmembers)
    if request.extraction is not None and request.extraction.heldout is not None:
        require_unseen(lineage, "--held-out", request.extraction.heldout)

    def other(path: Path | None, flag: str, hint: str) -> OpenedModel | None:
        if path is None:
            return None
        bits = request.base_bits if path == request.base else None
        opened = scorer.open(
            path, request.report, task=audited.subject.task, resize=request.resize, base_bits=bits, beside=audited
        )
        if _tensors(opened) == _tensors(audited):
            raise CommandError(f"{flag} {path} is the audited model itself; give {hint}")
        return opened

    reference = other(request.reference, "--reference", "one that saw no data")
    compared = None if request.secrets is None else request.base
    return AuditModels(
        scorer=scorer,
        audited=audited,
        lineage=lineage,
        reference=reference,
        base=other(compared, "--base", "the one that it was trained from"),
        elsewhere=_reference_for(request, reference, lineage),
    )


def _tensors(model: OpenedModel) -> set[str]:
    return {tensor.digest for item in model.inputs for tensor in item.tensors}


def _reference_for(request: AuditRequest, opened: OpenedModel | None, lineage: Lineage) -> ReferenceModel | None:
    """``opened`` as the reference for extraction from a model of this ``lineage``; None without one or held-out text.

    Raises CommandError if its own report says that it was trained on one of the compared files.
    """
    extraction = request.extraction
    if opened is None or extraction is None or extraction.heldout is None:
        return None
    model = opened.subject.model
    learned = lineage_of(model.path, opened.inputs, request.report).learned
    for flag, data in (("--train", extraction.train), ("--held-out", extraction.heldout)):
        for file in recorded_files(data):
            if learned is not None and file.digest in learned:
                raise CommandError(
                    f"--reference {model.path} was trained on {file.path.name} of {flag}, as its report says, and "
                    "cannot tell what is known from elsewhere; give a model that was trained on neither file"
                )
    return ReferenceModel(
        model=model, began=lineage.began_with == weights_of(opened.inputs), cleared=learned is not None
    )
