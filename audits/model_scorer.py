"""Opens and scores models, each once, using the cache if possible, with the work shared among all processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from blake3 import blake3

from audits.scores.cache import ScoreCache, folder_name
from audits.scores.scorer import RowScores, compute_scores, plan_scoring
from audits.scores.subject import AuditedModel, encode_records, load_subject, task_of
from audits.scores.table import FIELDS
from privctl.data.pixels import FILE_NAME
from privctl.data.records import Record
from privctl.domain.errors import InputError
from privctl.domain.progress import Progress
from privctl.domain.report import Artifact
from privctl.models.adapters import adapter_at
from privctl.models.choices import FloatFormat
from privctl.models.inference import fast_inference
from privctl.models.kept_memory import kept_memory
from privctl.models.language import CONFIG_NAME, TOKENIZER_FILES
from privctl.models.precision import precision_of
from privctl.parallel import Workers
from privctl.reports.files import file_artifact, weights_artifacts
from privctl.storage.digest import file_digest, tag
from privctl.storage.folder import base_files, companions_of
from privctl.storage.reader import Checkpoint, open_checkpoint, version_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedModel:
    """A model ready to be scored, its files, and the cache of its scores.

    ``versions`` show, by path, whether a file was written to since it was digested.
    """

    subject: AuditedModel
    inputs: tuple[Artifact, ...]
    versions: Mapping[Path, tuple[int, ...]]
    cache: ScoreCache | None

    def require_unchanged(self) -> None:
        """Raise InputError if a file differs from what was loaded; only files with a new version are reread."""
        for (file, version), known in zip(self.versions.items(), self.inputs, strict=True):
            if not file.is_file() or (version_of(file) != version and file_digest(file) != known.digest):
                raise InputError(
                    f"{file} was changed or removed while the model was audited, so what was found may be of another "
                    "model; let nothing write to it, and run the command again"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelScorer:
    """``cache`` is the folder of all caches, None for no caching; ``device`` None picks the best available.

    ``precision`` is that of all models; None is as for ``load_model``.
    """

    cache: Path | None
    device: str | None
    workers: Workers
    progress: Progress
    precision: FloatFormat | None = None

    def open(
        self,
        path: Path,
        report: Path,
        *,
        task: str | None = None,
        max_length: int | None = None,
        resize: tuple[int, int] | None = None,
        base: Path | None = None,
        base_bits: int | None = None,
        beside: OpenedModel | None = None,
    ) -> OpenedModel:
        """Load the model at ``path``, an adapter on ``base``; artifact paths are relative to ``report``.

        Without a precision, that of the model ``beside`` is used. Raises as ``load_subject``, and InputError if a file
        of the model changes before its digest is computed.
        """
        task = task or task_of(path, base)
        under = None if (adapter := adapter_at(path, base)) is None else adapter.base
        before = _versions(path, under)
        like = None if beside is None or base_bits is not None else precision_of(beside.subject.model.network)
        subject = load_subject(
            path,
            task=task,
            device=self.device,
            max_length=max_length,
            resize=resize,
            base=base,
            base_bits=base_bits,
            precision=self.precision or like,
        )
        inputs = inputs_of(path, under, report)
        for file in before.keys() | (now := _versions(path, under)).keys():
            if before.get(file) != now.get(file):
                raise InputError(
                    f"{file} was changed while the model was read, so its digest would not be that of what was loaded; "
                    "let nothing write to it, and run the command again"
                )
        cache = None if self.cache is None else ScoreCache(self.cache / folder_name(_identity(inputs, subject)))
        return OpenedModel(subject=subject, inputs=inputs, versions=before, cache=cache)

    def score(self, opened: OpenedModel, rows: Sequence[NDArray[Any]], label: str = "scoring") -> RowScores:
        """The scores of ``rows``, which must be the same in every process."""
        with kept_memory(opened.subject.model.device), fast_inference(opened.subject.model.network):
            return self._score(opened, rows, label)

    def _score(self, opened: OpenedModel, rows: Sequence[NDArray[Any]], label: str) -> RowScores:
        coarse = opened.subject.model.dtype != FloatFormat.FLOAT32
        scoring = plan_scoring(opened.subject.scorer, rows, opened.cache, coarse=coarse)
        self.workers.barrier()  # no process may write to the cache before all have planned
        with self.progress(label, scoring.work / self.workers.size, "tokens") as advance:
            row_scores = compute_scores(
                scoring,
                share=(self.workers.rank, self.workers.size),
                barrier=self.workers.barrier,
                workers=self.workers,
                advance=advance,
            )
        self.workers.barrier()  # no file may be merged before all processes have read it
        if opened.cache is not None and self.workers.is_main:
            opened.cache.tidy()
        self.workers.barrier()
        return row_scores

    def means(self, opened: OpenedModel, records: Sequence[Record]) -> NDArray[np.float64]:
        """The mean log-probability (nats) of each record, [records]. Raises InputError if one cannot be scored."""
        subject = opened.subject
        rows = encode_records(subject, records, self.progress).rows
        counts = subject.scorer.counts(rows)
        unscored = int((counts == 0).sum())
        if unscored:
            raise InputError(
                f"{subject.model.path} cannot score {unscored} of {len(records)} records, as too few tokens are left "
                "of them; give a reference model with a tokenizer like the audited one's"
            )
        values = self.score(opened, rows, "scoring the reference").take(rows, counts)[FIELDS.index("lp")]
        sums = np.add.reduceat(values.astype(np.float64), np.cumsum(counts) - counts)
        if not np.isfinite(sums).all():
            raise InputError(f"{subject.model.path} gives NaN or infinite scores; give another reference model")
        return np.asarray(sums / counts)


def inputs_of(path: Path, base: Path | None, report: Path) -> tuple[Artifact, ...]:
    """All files of the model at ``path``, an adapter on ``base``, with the digests of its own tensors."""
    with open_checkpoint(path) as checkpoint:
        weights = tuple(weights_artifacts(checkpoint, report))
        others = list(_beside_weights(checkpoint, base))
    return (*weights, *(file_artifact(role, file, report) for role, file in others))


def _beside_weights(checkpoint: Checkpoint, base: Path | None) -> Iterator[tuple[str, Path]]:
    """All other files that a loader may read, each with its role; those of an adapter's ``base`` come last."""
    roles = {CONFIG_NAME: "config", FILE_NAME: "preprocessor", **dict.fromkeys(TOKENIZER_FILES, "tokenizer")}
    for name, role in roles.items():
        if (file := checkpoint.folder / name).is_file():
            yield role, file
    yield from (("companion", file) for file in companions_of(checkpoint) if file.name not in roles)
    yield from () if base is None else base_files(base).items()


def _versions(path: Path, base: Path | None) -> dict[Path, tuple[int, ...]]:
    """The version of each of the model's files, which changes if the file is written to."""
    with open_checkpoint(path) as checkpoint:
        files = [*(file.path for file in checkpoint.files), *(file for _, file in _beside_weights(checkpoint, base))]
        return {file: version_of(file) for file in files}


def _identity(inputs: Sequence[Artifact], subject: AuditedModel) -> dict[str, str]:
    """Everything except the row that its scores depend on."""
    tensors = blake3()
    for tensor in sorted((t for item in inputs for t in item.tensors), key=lambda t: t.name):
        tensors.update(f"{tensor.name}\0{tensor.dtype}\0{tensor.shape}\0{tensor.digest}\n".encode())
    files = {f"{item.role} {Path(item.path).name}": item.digest for item in inputs if item.role != "model"}
    model = subject.model
    quantization = {} if model.base_bits is None else {"base bits": str(model.base_bits)}
    return {
        "tensors": tag(tensors),
        "task": subject.task,
        "dtype": model.dtype,
        "device": model.device.type,
        **quantization,
        **files,
    }
