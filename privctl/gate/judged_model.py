"""Which reports are about which model.

Models are identified by the digests of their weights. A step that only adds noise, or replays published updates, is
post-processing: the guarantees of its input hold for its output too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePosixPath

from privctl.domain.gate import FileLine, Finding, GateOutcome
from privctl.domain.guarantee import Guarantee
from privctl.domain.report import Artifact
from privctl.gate.files import LoadedReport
from privctl.gate.model_at_hand import ModelAtHand, WeightFileContents
from privctl.gate.related import RelatedReports
from privctl.gate.report_set import ReportSet
from privctl.reports.parameters import ParametersError, TrainingParameters, parameters_as

MODEL = "model"
_HOW_WRITTEN = "; privctl retrain writes it, or in other training loops privctl.AuditCallback or make_private"
_OTHER_MODEL = ", or the model that the reports are about"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedModel:
    """One model with the reports about it.

    ``writers`` are the reports of steps that wrote its weights, ``inherited`` those whose guarantees carry over to it,
    ``examinations`` those of steps that only read it, and ``history`` its ``writers`` with all their ancestors.
    ``default_place`` is the place of findings about something missing, unless a line of the policy demands it.
    """

    name: str
    digests: frozenset[str]
    writers: tuple[LoadedReport, ...]
    inherited: tuple[LoadedReport, ...]
    examinations: tuple[LoadedReport, ...]
    history: tuple[LoadedReport, ...]
    now: datetime
    default_place: FileLine

    @property
    def guarantees(self) -> Iterator[tuple[LoadedReport, int, Guarantee]]:
        """Every guarantee stated for this model, with its report and its index there."""
        for report in (*self.writers, *self.inherited):
            for i, guarantee in enumerate(report.report.guarantees):
                yield report, i, guarantee

    @property
    def takes_noise(self) -> bool:
        """Whether ``privctl noise`` may lower an epsilon: it does not where the training itself has a guarantee."""
        return not any(writer.report.step == "retrain" and writer.report.guarantees for writer in self.writers)

    @property
    def audits(self) -> tuple[LoadedReport, ...]:
        """The audits of this model."""
        return tuple(
            examination
            for examination in self.examinations
            if examination.report.step == "audit" and examination.weights_read == self.digests
        )

    def examining(self, reports: Iterable[LoadedReport]) -> list[LoadedReport]:
        """Those of ``reports`` that examined this model or the report written with it."""
        writer_digests = {writer.digest for writer in self.writers}
        return [
            report
            for report in reports
            if report.weights_read == self.digests
            or any(parent.digest in writer_digests for parent in report.report.parents)
        ]


def judged_models(report_set: ReportSet, model: ModelAtHand | None, now: datetime) -> tuple[JudgedModel, ...]:
    """The model given; otherwise each model that no later step read, and each model audited without its own report."""
    related = RelatedReports(report_set.all)
    if model is not None:
        name, digests = str(model.path), model.digests
        default_place = report_set.given[0].place() if report_set.given else FileLine(path=str(model.path))
        return (_judged_model(name, digests, related, now, default_place),)
    models: dict[frozenset[str], LoadedReport] = {}
    readers = Counter(digest for report in report_set.given if report.weights_written for digest in report.inputs_read)
    for report in report_set.given:
        own = report.inputs_read
        # A model that another step read is not the last of its chain.
        if report.weights_written and not any(readers[digest] > (digest in own) for digest in report.released):
            models.setdefault(report.weights_written, report)
    known = {digest for report in report_set.all for digest in report.weights_written}
    is_made = bool(models)
    for report in report_set.given:
        about = report.weights_read
        if not report.weights_written and about and not (is_made and about <= known):
            models.setdefault(about, report)
    return tuple(
        _judged_model(_name(report), digests, related, now, report.place()) for digests, report in models.items()
    )


def unrelated_reports(report_set: ReportSet, cases: Iterable[JudgedModel]) -> Iterator[tuple[LoadedReport, str]]:
    """The reports given that are about none of ``cases``, each with what it is about instead."""
    concerned = {report.digest for case in cases for report in (*case.history, *case.examinations)}
    seen = {
        digest for case in cases for report in case.history for digest in report.weights_written | report.weights_read
    }
    for report in report_set.given:
        if report.digest in concerned:
            continue
        about = report.weights_written or report.weights_read
        if not about:
            yield report, "no model"
        elif about & seen:
            yield report, "an earlier model of the chain"
        else:
            yield report, "another model"


_BESIDE = "; only privctl verify compares the files beside its weights with those that the training began with"


def check_model_at_hand(case: JudgedModel, model: ModelAtHand) -> Iterator[Finding]:
    """Check that ``model``, with its companion files, is the one that the reports of ``case`` describe."""
    if not case.writers:
        remark = " (those given only examined them)" if case.examinations else ""
        yield Finding(
            rule=MODEL,
            outcome=GateOutcome.INCONCLUSIVE if case.examinations else GateOutcome.FAIL,
            subject=case.name,
            message=f"no report states that its step wrote these weights{remark}; their digest is {min(case.digests)}",
            fix="give the report that was written with this model"
            + (_HOW_WRITTEN if case.examinations else _OTHER_MODEL),
            place=case.default_place,
        )
        return
    changed = [finding for report in case.writers for finding in _differences(report, model)]
    yield from changed
    if not changed:
        roles = {artifact.role for report in case.writers for artifact in report.report.outputs}
        yield Finding(
            rule=MODEL,
            outcome=GateOutcome.PASS,
            subject=case.name,
            message="the model given is the one that the reports describe" + (_BESIDE if "companion" in roles else ""),
            place=case.writers[0].place("outputs"),
        )


def canary_gradient_findings(case: JudgedModel) -> Iterator[Finding]:
    """A finding for each training of ``case`` that added canary gradients: its weights must not be released."""
    for report in case.history:
        if _has_canary_gradients(report):
            yield Finding(
                rule=MODEL,
                outcome=GateOutcome.FAIL,
                subject=case.name,
                message="its training added canary gradients for an audit, so its weights are not for release",
                fix="train again without --gradient-canaries, and release that model",
                place=report.place("parameters", "gradient_canaries"),
            )


def _has_canary_gradients(report: LoadedReport) -> bool:
    if report.report.step != "retrain":
        return False
    try:
        return bool(parameters_as(TrainingParameters, report.report).gradient_canaries)
    except ParametersError:
        return False  # privctl verify reports it


def _differences(report: LoadedReport, model: ModelAtHand) -> Iterator[Finding]:
    """A finding for each file given that is not the one that ``report`` recorded."""
    for i, artifact in enumerate(report.report.outputs):
        name = PurePosixPath(artifact.path).name
        missing, contents = False, model.contents.get(artifact.digest)
        message, place = f"{name} next to the weights is not the one recorded", report.place("outputs", i, "digest")
        if artifact.role == "companion":
            digest = model.companion_digest(name)
            missing = digest is None
            message = f"{name} is missing next to the weights" if missing else message
            if digest == artifact.digest:
                continue
        elif artifact.role != MODEL or contents is None or _matches(artifact, contents):
            continue
        else:
            message, place = (
                f"the tensors in {name} are not those that the report lists",
                report.place("outputs", i, "tensors"),
            )
        yield Finding(
            rule=MODEL,
            outcome=GateOutcome.INCONCLUSIVE if missing else GateOutcome.FAIL,
            subject=name,
            message=message,
            fix="restore it as it was written with the model",
            place=place,
        )


def _matches(artifact: Artifact, contents: WeightFileContents) -> bool:
    """Whether size and tensors are as recorded; a report need not list tensors."""
    listed = {(tensor.name, tensor.dtype, tensor.shape) for tensor in artifact.tensors}
    return artifact.bytes == contents.bytes and (not listed or listed == contents.tensors)


def _judged_model(
    name: str, digests: frozenset[str], related: RelatedReports, now: datetime, default_place: FileLine
) -> JudgedModel:
    writers = related.writers(digests)
    history = (*writers, *related.ancestors(writers))
    return JudgedModel(
        name=name,
        digests=digests,
        writers=writers,
        inherited=related.post_processed(writers),
        examinations=related.examinations(digests, history),
        history=history,
        now=now,
        default_place=writers[0].place("outputs") if writers else default_place,
    )


def _name(report: LoadedReport) -> str:
    artifacts = [a for a in (*report.report.outputs, *report.report.inputs) if a.role == "model"]
    folders = {
        str(PurePosixPath(a.path).parent)
        for a in artifacts
        if a.digest in (report.weights_written or report.weights_read)
    }
    return folders.pop() if len(folders) == 1 and folders != {"."} else artifacts[0].path
