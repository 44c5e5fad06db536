"""One audit from files to a report: load, score once, let every part judge, and say what the result rests on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from audits.findings import Findings, Part
from audits.membership.part import MembershipPart, MembershipRequest
from audits.scoring.book import make_book, work
from audits.scoring.forward import Advance
from audits.scoring.subject import load_subject
from audits.scoring.table import write_arrays
from privctl.domain.errors import PrivctlError, UsageFault
from privctl.domain.report import Artifact, ParentReport, PrivacyReport
from privctl.models import CONFIG_NAME, TOKENIZER_FILES, LanguageModel
from privctl.reports import POINTER, file_artifact, now, pointer_of, relative, report_of, versions
from privctl.storage.digest import hash_tensors
from privctl.storage.reader import open_checkpoint

#: Allowed failure probability of everything an audit concludes, shared equally by its parts (Bonferroni).
ALPHA = 0.05

#: (label, total, unit) -> a block that yields the function which advances it.
Progress = Callable[[str, float, str], AbstractContextManager[Advance]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """What to audit and where to put the result; ``report`` is only named here, the scores are written."""

    model: Path
    report: Path
    scores: Path
    membership: MembershipRequest
    task: str | None = None
    max_length: int | None = None
    resize: tuple[int, int] | None = None
    device: str | None = None

    @property
    def files(self) -> dict[str, Path]:
        """The data this audit reads, by role."""
        return {"members": self.membership.members, "nonmembers": self.membership.nonmembers}


def run_audit(request: AuditRequest, progress: Progress) -> PrivacyReport:
    """Let every part of ``request`` judge, write the scores file, and return the report (not yet written).

    Raises InputFault for a model or data that cannot be scored, UsageFault for settings that do not fit the model.
    """
    _check_distinct(request)
    subject = load_subject(
        request.model,
        task=request.task,
        device=request.device,
        max_length=request.max_length,
        resize=request.resize,
    )
    model, scorer = subject.model, subject.scorer
    parts: list[Part] = [MembershipPart(subject, request.membership)]
    rows = [row for part in parts for row in part.rows]
    with progress("scoring", work(scorer, rows), "tokens") as advance:
        book = make_book(scorer, rows, advance=advance)
    found = [part.judge(book, ALPHA / len(parts)) for part in parts]
    inputs = _inputs(request, model)
    parents, doubts = _parents(request, inputs)
    arrays = {name: array for each in found for name, array in each.arrays.items()}
    write_arrays(request.scores, arrays, {POINTER: request.report.name})
    return _report(request, model, found, inputs, parents, doubts)


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


def _inputs(request: AuditRequest, model: LanguageModel) -> tuple[Artifact, ...]:
    found: list[Artifact] = []
    with open_checkpoint(request.model) as checkpoint:
        for file in checkpoint.files:
            hashed = hash_tensors(file)
            found.append(
                Artifact(
                    role="model",
                    path=relative(file.path, request.report),
                    digest=hashed.file_digest,
                    bytes=file.size,
                    tensors=hashed.tensors,
                )
            )
    for role, names in (("config", (CONFIG_NAME,)), ("tokenizer", TOKENIZER_FILES)):
        paths = [model.folder / name for name in names if (model.folder / name).is_file()]
        found += [file_artifact(role, path, request.report) for path in paths]
    found += [file_artifact(role, path, request.report) for role, path in request.files.items() if path.is_file()]
    return tuple(found)


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
