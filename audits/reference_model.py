"""The reference model of an extraction audit: what reports say of it, and whether it may be one."""

from __future__ import annotations

from audits.audit_request import AuditRequest
from audits.extraction.elsewhere import ReferenceModel
from audits.lineage import Lineage, lineage_of, weights_of
from audits.model_scorer import OpenedModel
from privctl.data.recorded import recorded_files
from privctl.domain.errors import CommandError


def reference_for(request: AuditRequest, opened: OpenedModel | None, lineage: Lineage) -> ReferenceModel | None:
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
