"""One audit from files to a report: load, score once, attack, and say what the result rests on."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from audits import ATTACKS, AttackSettings, load_attack
from audits.scores import ScoreTable, Skip, write_scores
from audits.scoring import Advance, Workload, prepare, score
from privctl.data import read_records
from privctl.domain.errors import InputFault, PrivctlError, UsageFault
from privctl.domain.evidence import Evidence
from privctl.domain.report import Artifact, Omission, ParentReport, PrivacyReport
from privctl.models import CONFIG_NAME, TOKENIZER_FILES, LanguageModel, load_model
from privctl.reports import POINTER, file_artifact, now, pointer_of, relative, report_of, versions
from privctl.storage.digest import hash_tensors
from privctl.storage.reader import open_checkpoint

#: Allowed failure probability of everything an audit concludes, shared equally by its attacks (Bonferroni).
ALPHA = 0.05

#: (label, total, unit) -> a block that yields the function which advances it.
Progress = Callable[[str, float, str], AbstractContextManager[Advance]]

_SIDES = {True: "members", False: "nonmembers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRequest:
    """What to audit and where to put the result; ``report`` is only named here, the scores are written."""

    model: Path
    members: Path
    nonmembers: Path
    report: Path
    scores: Path
    attacks: tuple[str, ...] = tuple(ATTACKS)
    max_length: int | None = None
    seed: int = 0
    device: str | None = None


def run_audit(request: AuditRequest, progress: Progress) -> PrivacyReport:
    """Run every attack of ``request``, write the scores file, and return the report (not yet written).

    Raises InputFault for a model or data that cannot be scored, UsageFault for settings that do not fit the model.
    """
    _check_distinct(request)
    members, nonmembers = (list(read_records(path)) for path in (request.members, request.nonmembers))
    model = load_model(request.model, device=request.device)
    workload = prepare(model, members, nonmembers, request.max_length)
    _check_sides(workload, request)
    with progress("scoring", workload.tokens, "tokens") as advance:
        table = score(model, workload, advance=advance)
    settings = AttackSettings(seed=request.seed, confidence=1 - ALPHA / len(request.attacks))
    evidence = [item for name in request.attacks for item in load_attack(name).run(table, settings)]
    inputs = _inputs(request, model)
    parents, doubts = _parents(request, inputs)
    write_scores(request.scores, table, {POINTER: request.report.name})
    return PrivacyReport(
        step="audit",
        created=now(),
        versions=versions(("torch", "transformers", "numpy", "scipy", "tokenizers")),
        inputs=inputs,
        outputs=(file_artifact("scores", request.scores, request.report),),
        parameters={
            "attack": list(request.attacks),
            "max_length": workload.max_length,
            "seed": request.seed,
            "device": str(model.device),
            "dtype": model.dtype,
            "bos": "prepended, not scored" if workload.bos else "none",
            "truncation": "keeps the first max_length tokens, BOS counted",
        },
        evidence=tuple(evidence),
        omissions=_omissions(table),
        warnings=(*_caveats(request), *_data_warnings(table, workload.max_length), *_odd(evidence), *doubts),
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
    if request.members.resolve() == request.nonmembers.resolve():
        raise UsageFault(f"--members and --nonmembers are the same file, {request.members}; give two sets to compare")
    inputs = {path.resolve() for path in (request.model, request.members, request.nonmembers)}
    for path in (request.report, request.scores):
        if path.resolve() in inputs:
            raise UsageFault(f"{path} is an input of this audit; choose another --output")


def _check_sides(workload: Workload, request: AuditRequest) -> None:
    for member, path in ((True, request.members), (False, request.nonmembers)):
        if not (workload.member == member).any():
            counts: dict[Skip, int] = {}
            for side, _, skip in workload.skipped:
                if side == member:
                    counts[skip] = counts.get(skip, 0) + 1
            why = "; ".join(f"{count} left out ({skip.reason})" for skip, count in counts.items())
            raise InputFault(
                f"{path} has no record that can be scored: {why}; give records that differ between the files"
            )


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
    for role, path in (("members", request.members), ("nonmembers", request.nonmembers)):
        found.append(file_artifact(role, path, request.report))
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


def _caveats(request: AuditRequest) -> list[str]:
    """What no result of this audit shows."""
    count = len(request.attacks)
    tried = f"{count} attacks were" if count > 1 else "1 attack was"
    return [
        f"membership is what the caller asserts: records of {request.members.name} are taken to be training data, and "
        f"those of {request.nonmembers.name} not",
        "no baseline without the model was run: the two files may differ by themselves (topic, date, length), and a "
        "difference found may come from the data rather than the model",
        f"{tried} tried ({', '.join(request.attacks)}), on one model and one pair of files; each interval holds at "
        f"{100 * (1 - ALPHA / count):g} %, so that the first quantities of all attacks hold together at "
        f"{100 * (1 - ALPHA):g} %; the other quantities are not corrected for their number",
        "a stronger attack may find what these did not",
    ]


def _data_warnings(table: ScoreTable, max_length: int) -> list[str]:
    found = [f"left out: {count} {_SIDES[member]}, {skip.reason}" for (member, skip), count in table.skipped().items()]
    cut = int(table.truncated.sum())
    if cut:
        found.append(f"cut to their first {max_length} tokens: {cut} of {table.records} records")
    return found


def _odd(evidence: Sequence[Evidence]) -> list[str]:
    """An attack that works backwards points at the data, and is not turned round silently."""
    return [
        f"{item.method}: the {item.quantity} lies below {item.details['chance']:g}, so members look less like training "
        "data than non-members; check that the two files were not swapped and come from one source"
        for item in evidence
        if item.quantity == "AUC" and item.upper is not None and item.upper < item.details["chance"]
    ]


def _omissions(table: ScoreTable) -> tuple[Omission, ...]:
    left = [
        Omission(what=f"{count} {_SIDES[member]}", reason=skip.reason)
        for (member, skip), count in table.skipped().items()
    ]
    return (
        *left,
        Omission(what="baseline without the model", reason="not part of this audit"),
        Omission(what="lower bound on epsilon", reason="needs membership drawn at random before training"),
    )
