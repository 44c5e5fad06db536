"""The lineage of an audited model according to its reports: its training data, and the claims made about it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from audits.claims import EpsilonClaim, claims_of, mechanism_of
from privctl.data.columns import USUAL, Columns
from privctl.data.recorded import recorded_files
from privctl.data.several import DataPath
from privctl.domain.errors import CommandError, PrivctlError
from privctl.domain.events import Ledger
from privctl.domain.report import Artifact, ParentReport, PrivacyReport
from privctl.domain.shared_records import SharedRecords
from privctl.reports.chain import ChainTooLongError, ReportFiles, walk
from privctl.reports.files import FoundReport, pointer_of, read_report, report_beside, report_of
from privctl.reports.of_model import own_reports
from privctl.reports.parameters import ParametersError, TrainingParameters, parameters_as
from privctl.reports.trained_before import LEARNED
from privctl.storage.folder import BASE_ROLE
from privctl.storage.reader import open_checkpoint

#: The prefix of the roles of files that a training began with, and the suffix of roles of weights.
_START_ROLE, _WEIGHTS = "start-", ".safetensors"
#: The step whose inputs are training data.
_TRAINING = "retrain"
#: A training in another program's loop; its report names no data, but may name a unit of privacy.
_EXTERNAL = "external-training"
#: The maximum number of reports of the chain that are searched for trainings.
_MOST_REPORTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """What a model's own report says, checked against the weights by their digests.

    ``trained_on`` are the digests of the last training's data, ``planned_by`` those of the plan of protection it
    followed, if any; None if no report says. ``mechanism`` is the one that the report ``source`` states and promises,
    ``steps`` its steps without what was measured beside them, ``gradient_canaries`` the digest of the file of canary
    gradients that the training wrote, empty if it wrote none. A later step's model has none: what was observed while
    training the model before it says nothing about its guarantees. ``unit`` is the field whose values made the examples
    of the last training, None if each record was one. ``columns`` are the fields of its data.

    ``base_bits`` is the precision in which the base of an adapter was loaded. ``began_with`` are the digests of the
    initial weights of the last training, ``learned`` those of the records of all trainings, public ones too; None if no
    report says.
    """

    parents: tuple[ParentReport, ...] = ()
    doubts: tuple[str, ...] = ()
    claims: tuple[EpsilonClaim, ...] = ()
    trained_on: tuple[str, ...] | None = None
    planned_by: tuple[str, ...] | None = None
    mechanism: Ledger | None = None
    steps: Ledger | None = None
    unit: str | None = None
    columns: Columns = USUAL
    source: str = ""
    gradient_canaries: str | None = None
    base_bits: int | None = None
    began_with: frozenset[str] | None = None
    learned: frozenset[str] | None = None


def lineage_of(model: Path, inputs: Sequence[Artifact], report: Path) -> Lineage:
    """The lineage of the weights among ``inputs``, as referred to by the audit's report at ``report``."""
    try:
        with open_checkpoint(model) as checkpoint:
            pointer, model_report = pointer_of(checkpoint), report_of(checkpoint)
    except PrivctlError as error:
        return Lineage(doubts=(f"the model names a report of how it was made, which cannot be used: {error}",))
    weights = frozenset(item.digest for item in inputs if item.role == "model")
    if model_report is None and pointer is None:
        model_report = _report_beside(model, weights)
    if model_report is None or not _wrote(model_report, weights):  # renamed or copied, as may be its report
        fitting = own_reports(model, weights)
        model_report = fitting[0] if len(fitting) == 1 else model_report
    if model_report is None:
        missing = f"the model names a report of how it was made, but {pointer} is not a file"
        return Lineage(doubts=() if pointer is None else (missing,))
    parents = (model_report.parent_of(report),)
    if not _wrote(model_report, weights):
        doubt = f"the model names {model_report.path.name} as its report, but that report is about other weights"
        return Lineage(parents=parents, doubts=(doubt,))
    training, parameters = next(_trainings(model_report), None), _parameters(model_report.report)
    last = parameters if training is None else _parameters(training)
    unit = None if last is None else last.unit
    mechanism = mechanism_of(model_report.report.mechanism, model_report.report.guarantees)
    return Lineage(
        parents=parents,
        claims=claims_of(model_report.report.guarantees, model_report.path.name, unit, fixed_graph=_fixes_graph(last)),
        trained_on=_digests_read(training, "data"),
        planned_by=_digests_read(training, "plan"),
        mechanism=mechanism,
        steps=_of_steps(mechanism, parameters),
        unit=unit,
        columns=USUAL if last is None else Columns(text=last.text_column, label=last.label_column),
        source=model_report.path.name,
        gradient_canaries="" if parameters is None else parameters.gradient_canaries_file or "",
        base_bits=None if parameters is None else parameters.base_bits,
        began_with=None if training is None else _start(training),
        learned=_learned_digests(model_report),
    )


def _wrote(found: FoundReport, weights: frozenset[str]) -> bool:
    """Whether the report lists the ``weights`` as outputs."""
    return weights <= {item.digest for item in found.report.outputs}


def _report_beside(model: Path, weights: frozenset[str]) -> FoundReport | None:
    """The report beside a model whose header names none, such as from other programs, if it is about that model."""
    place = report_beside(model.absolute())
    try:
        found = FoundReport(place, read_report(place))
    except PrivctlError:
        return None
    return found if _wrote(found, weights) else None


def _digests_read(training: PrivacyReport | None, role: str) -> tuple[str, ...] | None:
    return None if training is None else tuple(item.digest for item in training.inputs if item.role == role)


def require_unseen(lineage: Lineage, flag: str, data: DataPath) -> None:
    """Raise CommandError if the model was trained on a file of ``data``, given with ``flag`` as not trained on.

    The same records in another file are not detected here.
    """
    learned = lineage.learned or frozenset()
    for file in recorded_files(data) if learned else ():
        if file.digest in learned:
            raise CommandError(
                f"{file.path.name} of {flag} is what the model was trained on, as {lineage.source} or a report that it "
                "builds on says, so nothing can be told by comparing with it; give records that it was not trained on"
            )


def weights_of(inputs: Sequence[Artifact]) -> frozenset[str]:
    """The digests of a model's weights among its files, including those of an adapter's base."""
    return frozenset(
        artifact.digest
        for artifact in inputs
        if artifact.role == "model" or (artifact.role.startswith(BASE_ROLE) and artifact.role.endswith(_WEIGHTS))
    )


def _start(training: PrivacyReport) -> frozenset[str]:
    """The digests of the initial weights of a training; empty if they were random."""
    return frozenset(
        artifact.digest
        for artifact in training.inputs
        if artifact.role.startswith((_START_ROLE, BASE_ROLE)) and artifact.role.endswith(_WEIGHTS)
    )


def _parameters(report: PrivacyReport) -> TrainingParameters | None:
    """The training parameters of ``report``; None if it is of another step or cannot be read."""
    if report.step not in (_TRAINING, _EXTERNAL):
        return None
    try:
        return parameters_as(TrainingParameters, report)
    except ParametersError:
        return None


def _of_steps(mechanism: Ledger | None, training: TrainingParameters | None) -> Ledger | None:
    """The first event where it holds all steps of the ``training``, as of one that also measured; else all events."""
    if mechanism is None or training is None or mechanism.events[0].steps != training.steps_begun:
        return mechanism
    return Ledger(events=mechanism.events[:1])


def _fixes_graph(training: TrainingParameters | None) -> bool:
    """Whether the training chose records depending on the users of all; True for an unknown rule."""
    rule = None if training is None else training.shared_records
    return rule is not None and rule != SharedRecords.ALL


def _learned_digests(model_report: FoundReport) -> frozenset[str] | None:
    trainings = list(_trainings(model_report))
    data = (item.digest for training in trainings for item in training.inputs if item.role in LEARNED)
    return frozenset(data) if trainings else None


def _trainings(model_report: FoundReport) -> Iterator[PrivacyReport]:
    """The trainings among the report's ancestors, following parents that exist and are unchanged, most recent first."""
    with suppress(ChainTooLongError):
        for visit in walk([model_report.path], ReportFiles(), follow=lambda visit: visit.unchanged, most=_MOST_REPORTS):
            if visit.unchanged and visit.file.report is not None and visit.file.report.step == _TRAINING:
                yield visit.file.report
