"""The files that shadow models are made from: the pool's data and the initial model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from audits.membership.shadows import REPORT_NAME
from privctl.data.recorded import recorded_files
from privctl.domain.errors import InputError
from privctl.domain.report import Artifact
from privctl.models.language import CONFIG_NAME, TOKENIZER_FILES
from privctl.models.loading import without_weights
from privctl.reports.files import digested_artifact, file_artifact
from privctl.storage.folder import base_files, companions_of
from privctl.storage.reader import open_checkpoint
from privctl.train.settings.request import ModelRequest, RetrainRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowInputs:
    """The input files of a folder of shadow models, as entries of its report.

    ``start`` are the files of the initial model, ``data`` those of the pool.
    """

    training: RetrainRequest
    start: tuple[Artifact, ...]
    data: tuple[Artifact, ...]

    def require_same(self) -> None:
        """Raise InputError if one of the files has changed."""
        _require_same(self.data, _data_of(self.training))
        self.require_same_start()

    def require_same_start(self) -> None:
        """Raise InputError if one of the files of the initial model has changed."""
        _require_same(self.start, _start_of(self.training))


def inputs_of(training: RetrainRequest) -> ShadowInputs:
    """The input files with their current digests. Raises InputError and FileSystemError for unreadable files."""
    return ShadowInputs(training=training, data=_data_of(training), start=_start_of(training))


def _require_same(before: tuple[Artifact, ...], now: tuple[Artifact, ...]) -> None:
    if before != now:
        changed = min({item.path for item in {*before} ^ {*now}})
        raise InputError(
            f"{changed} was changed while it was read, so its digest would not be that of what the shadow models were "
            "made from; let nothing write to it, and run the command again"
        )


def _data_of(training: RetrainRequest) -> tuple[Artifact, ...]:
    report_path = training.output / REPORT_NAME
    return tuple(digested_artifact("data", file, report_path) for file in recorded_files(training.data.train))


def _start_of(training: RetrainRequest) -> tuple[Artifact, ...]:
    path, report_path = training.model.path, training.output / REPORT_NAME
    if training.model.adapter_only:
        return _adapter_artifacts(training.model, report_path)
    folder = path if path.is_dir() else path.parent
    roles = {CONFIG_NAME: "config", **dict.fromkeys(TOKENIZER_FILES, "tokenizer")}
    start = [
        file_artifact(role, folder / name, report_path) for name, role in roles.items() if (folder / name).is_file()
    ]
    if not (training.model.from_scratch or without_weights(path)):
        with open_checkpoint(path) as checkpoint:
            start += [file_artifact("model", file.path, report_path) for file in checkpoint.files]
    return tuple(start)


def _adapter_artifacts(model: ModelRequest, report_path: Path) -> tuple[Artifact, ...]:
    """The files of the base, and of the adapter if one was given."""
    artifacts = [file_artifact(role, file, report_path) for role, file in base_files(model.path).items()]
    if model.adapter is not None:
        with open_checkpoint(model.adapter) as checkpoint:
            artifacts += [file_artifact("model", file.path, report_path) for file in checkpoint.files]
            artifacts += [file_artifact("companion", file, report_path) for file in companions_of(checkpoint)]
    return tuple(artifacts)
