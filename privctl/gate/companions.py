"""Whether every step used the same companion files: configuration and tokenizer change what the weights compute."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from privctl.domain.gate import FileLine, Finding, GateOutcome
from privctl.domain.report import Artifact
from privctl.gate.files import LoadedReport
from privctl.gate.judged_model import MODEL, JudgedModel
from privctl.gate.model_at_hand import ModelAtHand
from privctl.storage.folder import BASE_ROLE, holds_weights, never_released
from privctl.storage.reader import ADAPTER_NAME
from verify.files.configuration import misleading_reason

_COMPANION = "companion"
#: Roles under which an audit lists the files that it read with the weights.
_READ = frozenset({"config", "tokenizer", "preprocessor", "companion"})
#: Files that decide what the weights compute, so an audit must have read them.
_DECISIVE = frozenset({
    "config.json", "adapter_config.json", "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json",
})  # fmt: skip
_WEIGHTS = ".safetensors"
#: The step that copies the files next to the weights byte for byte.
_COPIES = "noise"


def check(case: JudgedModel, model: ModelAtHand | None) -> Iterator[Finding]:
    """Find files that differ between training, audits and the model given, and files that no report lists."""
    written = _written_companions(case.writers)
    yield from _check_copies(case)
    for report in case.audits:
        yield from _check_audit(report, written, model)
        yield from _check_base(case, report)
    if model is not None and case.writers:
        yield from _check_unlisted(case, written, model)
        yield from _check_configurations(case, model)


def _written_companions(reports: tuple[LoadedReport, ...]) -> dict[str, str]:
    return {
        _name(artifact): artifact.digest
        for report in reports
        for artifact in report.report.outputs
        if artifact.role == _COMPANION
    }


def _check_copies(case: JudgedModel) -> Iterator[Finding]:
    """A step that only adds noise must leave the files next to the weights as the training wrote them."""
    before = _written_companions(case.inherited)
    for report in case.writers:
        if report.report.step != _COPIES:
            continue
        for i, artifact in enumerate(report.report.outputs):
            name = _name(artifact)
            if artifact.role == _COMPANION and before.get(name, artifact.digest) != artifact.digest:
                message = f"{name} is not the one that was written with the model before the noise"
                yield _finding(name, message, "run privctl noise on the folder as it was trained", report, i, "outputs")


def _check_audit(report: LoadedReport, written: Mapping[str, str], model: ModelAtHand | None) -> Iterator[Finding]:
    for i, artifact in enumerate(report.report.inputs):
        if artifact.role not in _READ:
            continue
        name = _name(artifact)
        expected = written.get(name)
        if expected is None and model is not None:
            expected = model.companion_digest(name)
        if expected is None and not written:
            continue  # the weights were written as a single file, so no report lists companions
        if expected != artifact.digest:
            message = f"the {name} that the audit read is not the one released with the model"
            yield _finding(name, message, "audit the folder that is released, unchanged", report, i, "inputs")
    read = {_name(artifact) for artifact in report.report.inputs if artifact.role in _READ}
    for name in sorted(written.keys() & _DECISIVE - read):
        yield Finding(
            rule=MODEL,
            outcome=GateOutcome.INCONCLUSIVE,
            subject=name,
            message=f"the audit's report does not list the {name} that is released with the model",
            fix="audit the folder that is released, unchanged",
            place=report.place("inputs"),
        )


def _check_base(case: JudgedModel, report: LoadedReport) -> Iterator[Finding]:
    """An adapter must have been audited on the base model that it was trained on."""
    base_digests = {
        a.role: a.digest for writer in case.writers for a in writer.report.inputs if a.role.startswith(BASE_ROLE)
    }
    for i, artifact in enumerate(report.report.inputs):
        weights = bool(base_digests) and artifact.role.startswith(BASE_ROLE) and artifact.role.endswith(_WEIGHTS)
        if base_digests.get(artifact.role, None if weights else artifact.digest) != artifact.digest:
            name = artifact.role.removeprefix(BASE_ROLE)
            message = f"the {name} of the base model that the audit read is not the one that the adapter was trained on"
            yield _finding(name, message, "audit the adapter on its own base model", report, i, "inputs")


def _check_unlisted(case: JudgedModel, written: Mapping[str, str], model: ModelAtHand) -> Iterator[Finding]:
    if model.path.is_file() and not written:
        return  # a single file in any folder
    adapter = [path.name for path in model.weights] == [ADAPTER_NAME]
    for name in model.others:
        listed = name in written
        if listed and not never_released(name, adapter=adapter):
            continue
        known = bool(written) or holds_weights(name)
        yield Finding(
            rule=MODEL,
            outcome=GateOutcome.FAIL if known else GateOutcome.INCONCLUSIVE,
            subject=name,
            message=f"{name} is in the model's folder, but "
            + ("no step of privctl writes such a file there" if listed else "no report lists it"),
            fix="move it elsewhere, or make the release again with it",
            place=case.writers[0].place("outputs"),
        )


def _check_configurations(case: JudgedModel, model: ModelAtHand) -> Iterator[Finding]:
    """No file may make a loader use other weights or run code, whatever its digest."""
    for name in model.others:
        if reason := misleading_reason(model.folder / name):
            yield Finding(
                rule=MODEL,
                outcome=GateOutcome.FAIL,
                subject=name,
                message=reason,
                fix="make the release again with the files that privctl writes",
                place=case.writers[0].place("outputs"),
            )


def _name(artifact: Artifact) -> str:
    return PurePosixPath(artifact.path).name


def _finding(subject: str, message: str, fix: str, report: LoadedReport, i: int, side: str) -> Finding:
    place: FileLine = report.place(side, i, "digest")
    return Finding(rule=MODEL, outcome=GateOutcome.FAIL, subject=subject, message=message, fix=fix, place=place)
