"""Which reports are about which model: each model is judged by the reports about it.

Models are identified by the digests of their weights. A step that only adds noise, or replays published updates, is
post-processing of a release: its input's guarantees hold for its output too.
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
_HOW_WRITTEN = "; privctl retrain writes it, and in a training by other programs privctl.AuditCallback or make_private"
_OTHER_MODEL = ", or the model that the reports are about"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedModel:
    """One model: the reports of its making, those whose guarantees carry over to it, and those that examined it.

    ``history`` are all reports in its past, its own included. ``anchor`` is the place of findings about something
    missing, unless the policy has a line that demands it.
    """

    name: str
    digests: frozenset[str]
    makers: tuple[LoadedReport, ...]
    inherited: tuple[LoadedReport, ...]
    looks: tuple[LoadedReport, ...]
    history: tuple[LoadedReport, ...]
    now: datetime
    anchor: FileLine

    @property
    def guarantees(self) -> Iterator[tuple[LoadedReport, int, Guarantee]]:
        """Every guarantee that holds of this model, with its report and its position there."""
        for report in (*self.makers, *self.inherited):
            for i, guarantee in enumerate(report.report.guarantees):
                yield report, i, guarantee

    @property
    def audits(self) -> tuple[LoadedReport, ...]:
        """The audits of this model."""
        return tuple(each for each in self.looks if each.report.step == "audit" and each.looks_at == self.digests)

    def verifying(self, reports: Iterable[LoadedReport]) -> list[LoadedReport]:
        """Those that examined this model or its own report, and not only an audit or an earlier model."""
        made = {each.digest for each in self.makers}
        return [
            each
            for each in reports
            if each.looks_at == self.digests or any(parent.digest in made for parent in each.report.parents)
        ]


def cases_of(report_set: ReportSet, model: ModelAtHand | None, now: datetime) -> tuple[JudgedModel, ...]:
    """The model at hand if there is one; else every model made last, and every model audited without its own report."""
    related = RelatedReports(report_set.all)
    if model is not None:
        name, digests = str(model.path), model.digests
        anchor = report_set.given[0].place() if report_set.given else FileLine(path=str(model.path))
        return (_case(name, digests, related, now, anchor),)
    models: dict[frozenset[str], LoadedReport] = {}
    readers = Counter(digest for each in report_set.given if each.makes for digest in each.reads)
    for report in report_set.given:
        own = report.reads
        # What another step read, and not this one alone, is not what was made last.
        if report.makes and not any(readers[digest] > (digest in own) for digest in report.gives):
            models.setdefault(report.makes, report)
    known = {digest for report in report_set.all for digest in report.makes}
    made = bool(models)
    for report in report_set.given:
        about = report.looks_at
        if not report.makes and about and not (made and about <= known):
            models.setdefault(about, report)
    return tuple(_case(_name(report), digests, related, now, report.place()) for digests, report in models.items())


def unrelated_reports(report_set: ReportSet, cases: Iterable[JudgedModel]) -> Iterator[tuple[LoadedReport, str]]:
    """The reports given that are about none of the ``cases``, and what they are about instead."""
    concerned = {each.digest for case in cases for each in (*case.history, *case.looks)}
    seen = {digest for case in cases for each in case.history for digest in each.makes | each.looks_at}
    for report in report_set.given:
        if report.digest in concerned:
            continue
        about = report.makes or report.looks_at
        if not about:
            yield report, "no model"
        elif about & seen:
            yield report, "an earlier model of the chain"
        else:
            yield report, "another model"


def check_model_at_hand(case: JudgedModel, model: ModelAtHand) -> Iterator[Finding]:
    """Whether ``model`` is the one that ``case``'s reports describe, its companion files included."""
    if not case.makers:
        looked = " (they only looked at it)" if case.looks else ""
        yield Finding(
            rule=MODEL,
            outcome=GateOutcome.INCONCLUSIVE if case.looks else GateOutcome.FAIL,
            subject=case.name,
            message=f"no report says that it made these weights{looked}; their digest is {min(case.digests)}",
            fix="give the report that was written with this model" + (_HOW_WRITTEN if case.looks else _OTHER_MODEL),
            place=case.anchor,
        )
        return
    changed = [finding for report in case.makers for finding in _differences(report, model)]
    yield from changed
    if not changed:
        yield Finding(
            rule=MODEL,
            outcome=GateOutcome.PASS,
            subject=case.name,
            message="the model at hand is the one that the reports describe",
            place=case.makers[0].place("outputs"),
        )


def audit_runs(case: JudgedModel) -> Iterator[Finding]:
    """Trainings of ``case`` that mixed in canary gradients, which the weights still hold: they are not for release."""
    for report in case.history:
        if _mixed_in_canaries(report):
            yield Finding(
                rule=MODEL,
                outcome=GateOutcome.FAIL,
                subject=case.name,
                message="its training was an audit run, whose canary gradients the weights hold",
                fix="train again without --gradient-canaries, and release that model",
                place=report.place("parameters", "gradient_canaries"),
            )


def _mixed_in_canaries(report: LoadedReport) -> bool:
    if report.report.step != "retrain":
        return False
    try:
        return bool(parameters_as(TrainingParameters, report.report).gradient_canaries)
    except ParametersError:
        return False  # verify's to say


def _differences(report: LoadedReport, model: ModelAtHand) -> Iterator[Finding]:
    """Where what ``report`` says was written is not what is at hand."""
    for i, artifact in enumerate(report.report.outputs):
        name = PurePosixPath(artifact.path).name
        missing, contents = False, model.held.get(artifact.digest)
        message, place = f"{name} beside the weights is not the one recorded", report.place("outputs", i, "digest")
        if artifact.role == "companion":
            digest = model.companion(name)
            missing = digest is None
            message = f"{name} beside the weights is missing" if missing else message
            if digest == artifact.digest:
                continue
        elif artifact.role != MODEL or contents is None or _describes(artifact, contents):
            continue
        else:
            message, place = f"{name} holds other tensors than the report lists", report.place("outputs", i, "tensors")
        yield Finding(
            rule=MODEL,
            outcome=GateOutcome.INCONCLUSIVE if missing else GateOutcome.FAIL,
            subject=name,
            message=message,
            fix="restore it as it was written with the model",
            place=place,
        )


def _describes(artifact: Artifact, contents: WeightFileContents) -> bool:
    """Whether size and tensors are as recorded; a report may list no tensors."""
    listed = {(each.name, each.dtype, each.shape) for each in artifact.tensors}
    return artifact.bytes == contents.bytes and (not listed or listed == contents.tensors)


def _case(name: str, digests: frozenset[str], related: RelatedReports, now: datetime, anchor: FileLine) -> JudgedModel:
    makers = related.makers(digests)
    history = (*makers, *related.before(makers))
    return JudgedModel(
        name=name,
        digests=digests,
        makers=makers,
        inherited=related.released_by(makers),
        looks=related.looks(digests, history),
        history=history,
        now=now,
        anchor=makers[0].place("outputs") if makers else anchor,
    )


def _name(report: LoadedReport) -> str:
    artifacts = [a for a in (*report.report.outputs, *report.report.inputs) if a.role == "model"]
    folders = {str(PurePosixPath(a.path).parent) for a in artifacts if a.digest in (report.makes or report.looks_at)}
    return folders.pop() if len(folders) == 1 and folders != {"."} else artifacts[0].path
