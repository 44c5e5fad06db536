"""Reports near weights that are about a copy of them in other files, or about what lay in their place before."""

from __future__ import annotations

import os
from collections.abc import Set
from pathlib import Path

from privctl.domain.errors import PrivctlError
from privctl.domain.report import PrivacyReport
from privctl.reports.chain import ReportFiles
from privctl.reports.files import FoundReport, pointer_of
from privctl.reports.of_model import own_reports, report_by_name, report_places, weight_digests
from privctl.storage.digest import hash_tensors
from privctl.storage.reader import Checkpoint, open_checkpoint

#: What identifies a tensor without reading it: its name, type and shape.
_Kind = tuple[str, str, tuple[int, ...]]
#: The roles of the files that an audit takes to hold what the model was trained on.
_TAKEN_AS_TRAINED_ON = ("members", "train")


def reports_of_copy(model: Path) -> tuple[FoundReport, ...]:
    """The reports near ``model`` that list exactly its tensors, in files with other digests: saved again, or in shards.

    Tensors are read only if names, types and shapes agree. Empty if there is no model.
    """
    try:
        with open_checkpoint(model) as checkpoint:
            return tuple(_reports_of_copy(model, checkpoint))
    except PrivctlError:
        return ()


def _reports_of_copy(model: Path, checkpoint: Checkpoint) -> list[FoundReport]:
    kinds = {(info.name, info.dtype, info.shape) for _, info in checkpoint.tensors()}
    files, by_digest = ReportFiles(), dict[str, FoundReport]()
    for place in report_places(model):
        file = files.at(place)
        if file.digest is not None and file.report is not None and _kinds(file.report) == kinds:
            by_digest.setdefault(file.digest, FoundReport(file.path, file.report))
    own_paths = {report.path for report in own_reports(model)} if by_digest else set()
    others = [report for report in by_digest.values() if report.path not in own_paths]
    if not others:
        return []
    tensors = {digest for file in checkpoint.files for digest in hash_tensors(file).tensors}
    return [report for report in others if _tensors(report.report) == tensors]


def unfitting_report(model: Path) -> tuple[Path, str] | None:
    """A report that the header of the weights names, or that lists their files, and why it does not tell of them.

    None if a report of these weights is near, or if none is named. Weights are read only if there is a report.
    """
    try:
        with open_checkpoint(model) as checkpoint:
            named = pointer_of(checkpoint)
        if named is None:
            named = report_by_name(model)
        if named is None or own_reports(model) or reports_of_copy(model):
            return None
    except PrivctlError:
        return None
    return named, "is about other weights" if os.path.isfile(named) else "is missing"


def audit_as_trained_on(model: Path, data: Set[str]) -> Path | None:
    """An audit near ``model`` of exactly its weights that took a file with one of these digests for training data.

    Weights are read only if an audit did so. None if there is no model.
    """
    files = ReportFiles()
    try:
        for place in report_places(model):
            report = files.at(place).report
            if report is None or report.step != "audit":
                continue
            taken = {each.digest for each in report.inputs if each.role in _TAKEN_AS_TRAINED_ON}
            looked_at = frozenset(each.digest for each in report.inputs if each.role == "model")
            if not data.isdisjoint(taken) and looked_at == weight_digests(model):
                return place
    except PrivctlError:
        return None
    return None


def _tensors(report: PrivacyReport) -> set[object]:
    return {digest for artifact in report.outputs if artifact.role == "model" for digest in artifact.tensors}


def _kinds(report: PrivacyReport) -> set[_Kind]:
    outputs = (artifact for artifact in report.outputs if artifact.role == "model")
    return {(tensor.name, tensor.dtype, tensor.shape) for artifact in outputs for tensor in artifact.tensors}
