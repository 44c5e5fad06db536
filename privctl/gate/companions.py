"""Whether every step used the same model: configuration and tokenizer change what the same weights compute."""

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
#: Roles under which an audit names the other files that it read with the weights.
_READ = frozenset({"config", "tokenizer", "preprocessor", "companion"})
#: What decides what the weights compute, so that an audit must have read it.
_DECISIVE = frozenset({
    "config.json", "adapter_config.json", "tokenizer.json", "tokenizer_config.json", "preprocessor_config.json",
})  # fmt: skip
#: Steps that copy the files next to the weights byte for byte.
_COPIES = "noise"


def check(case: JudgedModel, model: ModelAtHand | None) -> Iterator[Finding]:
    """Files that differ between training, audits and the model at hand, and files that no report lists."""
    written = _written_companions(case.makers)
    yield from _check_copies(case)
    for report in case.audits:
        yield from _check_audit(report, written, model)
        yield from _check_base(case, report)
    if model is not None and case.makers:
        yield from _check_unlisted(case, written, model)
        yield from _check_configurations(case, model)


def _written_companions(reports: tuple[LoadedReport, ...]) -> dict[str, str]:
    return {_name(each): each.digest for report in reports for each in report.report.outputs if each.role == _COMPANION}


def _check_copies(case: JudgedModel) -> Iterator[Finding]:
    """A step that only adds noise must leave the files next to the weights as the training wrote them."""
    before = _written_companions(case.inherited)
    for report in case.makers:
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
            expected = model.companion(name)
        if expected is None and not written:
            continue  # the weights were written by themselves, so no report tells
        if expected != artifact.digest:
            message = f"the audit read another {name} than the model is released with"
            yield _finding(name, message, "audit the folder that is released, unchanged", report, i, "inputs")
    read = {_name(artifact) for artifact in report.report.inputs if artifact.role in _READ}
    for name in sorted(written.keys() & _DECISIVE - read):
        yield Finding(
            rule=MODEL,
            outcome=GateOutcome.INCONCLUSIVE,
            subject=name,
            message=f"the audit does not say that it read the {name} that the model is released with",
            fix="audit the folder that is released, unchanged",
            place=report.place("inputs"),
        )


def _check_base(case: JudgedModel, report: LoadedReport) -> Iterator[Finding]:
    """An adapter must have been audited on the base that it was made on."""
    made = {a.role: a.digest for each in case.makers for a in each.report.inputs if a.role.startswith(BASE_ROLE)}
    for i, artifact in enumerate(report.report.inputs):
        if made.get(artifact.role, artifact.digest) != artifact.digest:
            name = artifact.role.removeprefix(BASE_ROLE)
            message = f"the audit read another {name} of the adapter's base than the adapter was made on"
            yield _finding(name, message, "audit the adapter on its own base", report, i, "inputs")


def _check_unlisted(case: JudgedModel, written: Mapping[str, str], model: ModelAtHand) -> Iterator[Finding]:
    if model.path.is_file() and not written:
        return  # a file by itself, wherever it lies
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
            message=f"{name} lies in the model's folder, and "
            + ("no step of privctl writes such a file beside a model" if listed else "no report lists it"),
            fix="move it elsewhere, or make the release again with it",
            place=case.makers[0].place("outputs"),
        )


def _check_configurations(case: JudgedModel, model: ModelAtHand) -> Iterator[Finding]:
    """Whatever its digest, no file may make a loader take other weights, or code."""
    for name in model.others:
        if reason := misleading_reason(model.folder / name):
            yield Finding(
                rule=MODEL,
                outcome=GateOutcome.FAIL,
                subject=name,
                message=reason,
                fix="make the release again with the files that privctl writes",
                place=case.makers[0].place("outputs"),
            )


def _name(artifact: Artifact) -> str:
    return PurePosixPath(artifact.path).name


def _finding(subject: str, message: str, fix: str, report: LoadedReport, i: int, side: str) -> Finding:
    place: FileLine = report.place(side, i, "digest")
    return Finding(rule=MODEL, outcome=GateOutcome.FAIL, subject=subject, message=message, fix=fix, place=place)
