"""One audit from files to a report: load, score once, let every part judge, and say what the result rests on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from audits.desk import Desk, Progress
from audits.findings import Findings, Part
from audits.membership.part import MembershipPart, MembershipRequest
from audits.scoring.table import write_arrays
from privctl.domain.errors import PrivctlError, UsageFault
from privctl.domain.report import Artifact, ParentReport, PrivacyReport
from privctl.models import LanguageModel
from privctl.parallel import Crew
from privctl.reports import POINTER, file_artifact, now, pointer_of, report_of, versions
from privctl.storage.reader import open_checkpoint

#: The crew of an audit that runs in one process.
ALONE = Crew()

#: Allowed failure probability of everything an audit concludes, shared equally by its parts (Bonferroni).
ALPHA = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """What to audit and where to put the result; ``report`` is only named here, the scores are written."""

    model: Path
    report: Path
    scores: Path
    membership: MembershipRequest
    reference: Path | None = None
    #: Where scores are kept between audits; None keeps none.
    cache: Path | None = None
    device: str | None = None

    @property
    def files(self) -> dict[str, Path]:
        """The data this audit reads, by role."""
        return {"members": self.membership.members, "nonmembers": self.membership.nonmembers}


def run_audit(request: AuditRequest, progress: Progress, crew: Crew = ALONE) -> PrivacyReport | None:
    """Let every part of ``request`` judge, write the scores file, and return the report (not yet written).

    Of several processes, all score and the first one alone judges; the others return None. Raises InputFault for a
    model or data that cannot be scored, UsageFault for settings that do not fit the model or each other.
    """
    _check_distinct(request)
    if crew.size > 1 and request.cache is None:
        raise UsageFault("several processes meet in the cache of scores; leave --no-cache away")
    desk = Desk(cache=request.cache, device=request.device, crew=crew, progress=progress)
    subject = desk.open(request.model, request.report)
    reference = None if request.reference is None else desk.open(request.reference, request.report)
    means = None if reference is None else partial(desk.means, reference)
    parts: list[Part] = [MembershipPart(subject.model, request.membership, means)]
    book = desk.score(subject, [row for part in parts for row in part.rows])
    if not crew.leads:
        return None
    found = [part.judge(book, ALPHA / len(parts)) for part in parts]
    inputs = (
        *subject.inputs,
        *(replace(item, role=f"reference {item.role}") for item in (reference.inputs if reference else ())),
        *(file_artifact(role, path, request.report) for role, path in request.files.items()),
    )
    parents, doubts = _parents(request, inputs)
    arrays = {name: array for each in found for name, array in each.arrays.items()}
    write_arrays(request.scores, arrays, {POINTER: request.report.name})
    return _report(request, subject.model, found, inputs, parents, doubts)


def _report(
    request: AuditRequest,
    model: LanguageModel,
    found: Sequence[Findings],
    inputs: tuple[Artifact, ...],
    parents: tuple[ParentReport, ...],
    doubts: Sequence[str],
) -> PrivacyReport:
    parameters = {name: value for each in found for name, value in each.parameters.items()}
    return PrivacyReport(
        step="audit",
        created=now(),
        versions=versions(("torch", "transformers", "numpy", "scipy", "tokenizers")),
        inputs=inputs,
        outputs=(file_artifact("scores", request.scores, request.report),),
        parameters={
            **parameters,
            "confidence": 1 - ALPHA,
            "device": str(model.device),
            "dtype": model.dtype,
        },
        evidence=tuple(item for each in found for item in each.evidence),
        verdicts=tuple(item for each in found for item in each.verdicts),
        omissions=tuple(item for each in found for item in each.omissions),
        warnings=(*(line for each in found for line in each.warnings), *doubts),
        parents=parents,
    )


def output_paths(model: Path, output: Path | None) -> tuple[Path, Path]:
    """The report and the scores file: as ``output`` says, else beside the model, else in the current folder."""
    if output is None:
        whole = model.absolute()
        name = whole.name if model.is_dir() else whole.stem
        folder = model.parent if model.name else whole.parent
        output = (folder if os.access(folder, os.W_OK) else Path()) / f"{name}.audit.report.json"
    stem = output.name.removesuffix(".json").removesuffix(".report")
    return output, output.with_name(f"{stem}.scores.safetensors")


def _check_distinct(request: AuditRequest) -> None:
    inputs = {path.resolve() for path in (request.model, *request.files.values())}
    for path in (request.report, request.scores):
        if path.resolve() in inputs:
            raise UsageFault(f"{path} is an input of this audit; choose another --output")


def _parents(request: AuditRequest, inputs: Sequence[Artifact]) -> tuple[tuple[ParentReport, ...], list[str]]:
    """The report that the weights' own metadata point to, and what is doubtful about it."""
    digests = {item.digest for item in inputs if item.role == "model"}
    try:
        with open_checkpoint(request.model) as checkpoint:
            named, found = pointer_of(checkpoint), report_of(checkpoint)
    except PrivctlError as error:
        return (), [f"the model names a report of how it was made, which cannot be used: {error}"]
    if found is None:
        return (), [] if named is None else [f"the model names a report of how it was made, but {named} is not a file"]
    about = {item.digest for item in found.report.outputs}
    doubt = f"the model names {found.path.name} as its report, but that report is about other weights"
    return (found.parent_of(request.report),), [] if digests & about else [doubt]
