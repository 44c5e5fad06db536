"""The report of the model that noise is added to: finding it, and refusing models whose report rules noise out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path

from privctl.domain.errors import InputError, PrivctlError
from privctl.domain.mechanism import ClippedTraining, WeightNoise
from privctl.domain.report import PrivacyReport
from privctl.domain.shown import upward
from privctl.noise.placement import report_path
from privctl.noise.public_base import shared_record, started_from
from privctl.noise.selection import BATCH_STATISTICS
from privctl.reports.chain import path_of
from privctl.reports.files import FoundReport, pointer_of, read_report, report_of
from privctl.reports.of_model import own_reports
from privctl.reports.parameters import TrainingParameters, parameters_as
from privctl.reports.trained_before import earlier_training, trainings
from privctl.storage.digest import file_digest
from privctl.storage.reader import Checkpoint

_TRAINING = "retrain"


def own_report(checkpoint: Checkpoint) -> FoundReport | None:
    """The report that the header points to or, if none is there, the one beside the model whose digests match.

    Model and report may have been renamed. None if there is none, or if there are several. Raises InputError if the
    header points to something that is not a report.
    """
    if pointer_of(checkpoint) is not None and (named := report_of(checkpoint)) is not None:
        return named
    path = report_path(checkpoint.root.absolute())
    if os.path.isfile(path):
        with suppress(PrivctlError):  # nothing said that this file is the model's report
            model_report = FoundReport(path, read_report(path))
            if describes(model_report.report, checkpoint):
                return model_report
    fitting = own_reports(checkpoint.root)
    return fitting[0] if len(fitting) == 1 else None


def require_bounded(model_report: FoundReport | None, checkpoint: Checkpoint, *, facts: bool) -> None:
    """Raise InputError if, by ``model_report``, no noise level follows from its training.

    That is so if it began with weights trained on the same data, or did not clip, or was private itself and the user
    gave no ``facts``.
    """
    if model_report is None or model_report.report.step != _TRAINING:
        return
    report = model_report.report
    data = {artifact.digest for artifact in report.inputs if artifact.role == "data"}
    starts = [path_of(model_report.path, parent) for parent in report.parents]
    if describes(report, checkpoint) and (earlier := earlier_training(starts, data)) is not None:
        raise InputError(
            f"the weights that the training of {checkpoint.root} began with were trained on the same data before, as "
            f"{earlier} says, so its clipping bounds only a part of what one example moved; begin with weights that "
            "were made without these examples"
        )
    if describes(report, checkpoint) and (shared := shared_record(started_from(model_report), model_report)):
        raise InputError(
            f"the weights that the training of {checkpoint.root} began with were trained before on {shared}, so its "
            "clipping bounds only a part of what one example moved; begin with weights that were made without these "
            "examples"
        )
    if isinstance(report.mechanism, ClippedTraining | WeightNoise) or not describes(report, checkpoint):
        return
    if report.mechanism is None:
        raise InputError(
            f"{checkpoint.root} was trained without clipping, as its report {model_report.path} says, so nothing "
            "bounds how far one example moved the weights, and no noise makes them private; "
            "train again with privctl retrain clipped and give its model noise, or, better for a neural network, with "
            "privctl retrain dp-sgd"
        )
    if not facts:
        raise InputError(
            f"{checkpoint.root} was trained privately, as its report {model_report.path} says"
            f"{_stated_epsilon(report)}; more noise lowers no bound that is derived here, so release it as it is, "
            "or train again with a smaller --epsilon"
        )


def require_untrained(model_report: FoundReport | None, checkpoint: Checkpoint, left_out: Sequence[str]) -> None:
    """Raise InputError if a tensor that gets no noise (``left_out``) was trained, by the report of its training.

    Statistics of batch normalisation, which no step trains, are checked elsewhere.
    """
    if model_report is None or not left_out or not describes(model_report.report, checkpoint):
        return
    _, report = next(trainings([model_report.path]), (None, None))
    if report is None or report.step != _TRAINING:
        return
    globs = parameters_as(TrainingParameters, report).trained or ("*",)
    for name in left_out:
        if any(fnmatchcase(name, glob) for glob in globs) and name.rsplit(".", 1)[-1] not in BATCH_STATISTICS:
            raise InputError(
                f"tensor {name!r} of {checkpoint.root} is left out of the noise, but was trained, as "
                f"{model_report.path} says, so what it holds of the data would go out as it is; leave it in, or, "
                "if it did not change, give the weights that the training began with as --base"
            )


def _stated_epsilon(report: PrivacyReport) -> str:
    least = min((g.epsilon for g in report.guarantees if g.epsilon is not None), default=None)
    deltas = {g.delta for g in report.guarantees if g.epsilon == least}
    return "" if least is None else f" (epsilon {upward(least, 4)} at delta {upward(max(deltas), 3)})"


def describes(report: PrivacyReport, checkpoint: Checkpoint) -> bool:
    """Whether all files of ``checkpoint`` are outputs of ``report``, by their digests."""
    sizes = {artifact.bytes for artifact in report.outputs}
    if not all(file.size in sizes for file in checkpoint.files):
        return False
    digests = {artifact.digest for artifact in report.outputs}
    return all(file_digest(Path(file.path)) in digests for file in checkpoint.files)
