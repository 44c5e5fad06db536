"""The reports of the model that noise is added to, and of its base: where they lie, and what they rule out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from privctl.domain.errors import InputError, PrivctlError
from privctl.domain.mechanism import ClippedTraining, WeightNoise
from privctl.domain.report import Artifact, PrivacyReport
from privctl.domain.shown import upward
from privctl.noise.placement import report_path
from privctl.reports.chain import path_of
from privctl.reports.files import FoundReport, pointer_of, read_report, report_of
from privctl.reports.of_model import own_reports
from privctl.reports.trained_before import earlier_training, made_from
from privctl.storage.digest import file_digest
from privctl.storage.reader import Checkpoint

_TRAINING = "retrain"


def own_report(checkpoint: Checkpoint) -> FoundReport | None:
    """The report that the header points to; without a pointer, the one beside the model, if it names these very bytes.

    Raises InputError where the header points to something that is no report.
    """
    if pointer_of(checkpoint) is not None:
        return report_of(checkpoint)
    path = report_path(checkpoint.root.absolute())
    if not os.path.isfile(path):
        return None
    try:
        found = FoundReport(path, read_report(path))
    except PrivctlError:
        return None  # someone else's file: nothing here said that it is the model's report
    return found if describes(found.report, checkpoint) else None


def require_bounded(found: FoundReport | None, checkpoint: Checkpoint, *, facts: bool) -> None:
    """Raise InputError where the model's report says that no noise follows from its training, and what would help.

    That is so of a training without clipping; and of one that was private itself, unless the user stated ``facts``.
    """
    if found is None or found.report.step != _TRAINING:
        return
    report = found.report
    data = {each.digest for each in report.inputs if each.role == "data"}
    starts = [path_of(found.path, each) for each in report.parents]
    if describes(report, checkpoint) and (earlier := earlier_training(starts, data)) is not None:
        raise InputError(
            f"the weights that the training of {checkpoint.root} began with were trained on the same data before, as "
            f"{earlier} says, so its clipping bounds only a part of what one example moved; begin with weights that "
            "were made without these examples"
        )
    if isinstance(report.mechanism, ClippedTraining | WeightNoise) or not describes(report, checkpoint):
        return
    if report.mechanism is None:
        raise InputError(
            f"{checkpoint.root} was trained without clipping, as its report {found.path} says, so nothing bounds how "
            "far one example moved the weights, and no noise makes them private; train again with privctl retrain "
            "clipped and give its model noise, or, better for a neural network, with privctl retrain dp-sgd"
        )
    if not facts:
        raise InputError(
            f"{checkpoint.root} was trained privately, as its report {found.path} says{_stated(report)}; more noise "
            "lowers no bound that is derived here, so release it as it is, or train again with a smaller --epsilon"
        )


def reports_of_base(base: Checkpoint | None) -> tuple[FoundReport, ...]:
    """The reports beside a ``base`` that say they made its weights, or where its header names one."""
    return () if base is None else own_reports(base.root)


def require_public(
    base: Checkpoint | None, reports: Sequence[FoundReport], found: FoundReport | None, checkpoint: Checkpoint
) -> None:
    """Raise InputError where ``reports`` of ``base`` show that its weights are not public.

    They are not where they were made from the very weights of ``checkpoint``, or trained on the data of the training
    that made those, which its own report ``found`` names, or on one of its records in another file.
    """
    if base is None:
        return
    data = {each.digest for each in found.report.inputs if each.role == "data"} if found else set()
    starts = [each.path for each in reports]
    why, place = "", earlier_training(starts, data)
    if place is not None:
        why = f"trained on the data of {checkpoint.root}"
    elif (place := made_from(starts, lambda read: _among(read, checkpoint))) is not None:
        why = f"made from {checkpoint.root}"
    if place is not None:
        raise _not_public(base, f"{why}, as {place} says")
    if found is None or not reports:
        return
    from privctl.noise.base_records import shared_record  # reads data, which noise mostly does not

    if (shared := shared_record(reports, found)) is not None:
        record, earlier, private = shared
        raise _not_public(
            base, f"trained on record {record} of {earlier}, which stands in {private} too, case and white space aside"
        )


def _not_public(base: Checkpoint, why: str) -> InputError:
    return InputError(
        f"the base {base.root} was {why}, so it is not public, and what is equal in both needs noise too; give the "
        "weights that the training began with as --base"
    )


def _among(read: Sequence[Artifact], checkpoint: Checkpoint) -> bool:
    """Whether a file of ``checkpoint`` is among those read; a file of another size is not digested."""
    digests = {each.digest for each in read}
    sizes = {each.bytes for each in read}
    return any(file.size in sizes and file_digest(Path(file.path)) in digests for file in checkpoint.files)


def _stated(report: PrivacyReport) -> str:
    least = min((g.epsilon for g in report.guarantees if g.epsilon is not None), default=None)
    deltas = {g.delta for g in report.guarantees if g.epsilon == least}
    return "" if least is None else f" (epsilon {upward(least, 4)} at delta {upward(max(deltas), 3)})"


def describes(report: PrivacyReport, checkpoint: Checkpoint) -> bool:
    """Whether the report's outputs are these very bytes."""
    sizes = {artifact.bytes for artifact in report.outputs}
    if not all(file.size in sizes for file in checkpoint.files):
        return False
    digests = {artifact.digest for artifact in report.outputs}
    return all(file_digest(Path(file.path)) in digests for file in checkpoint.files)
