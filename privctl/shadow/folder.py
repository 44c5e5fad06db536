"""A folder of shadow models: the files of each model, and the report that lists them."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from blake3 import blake3
from torch import nn

from audits.membership.shadows import (
    REPORT_NAME,
    ShadowScores,
    coins,
    scores_path,
    shadow_paths,
    staged_shadow,
    weights_digest,
)
from audits.scores.scorer import compute_scores, plan_scoring
from audits.scores.subject import AuditedModel, scoring_of, subject_of
from audits.scores.table import FIELDS
from privctl.domain.errors import InputError
from privctl.domain.report import Artifact, PrivacyReport, TensorDigest
from privctl.domain.shown import counted
from privctl.models.adapters import state_of
from privctl.models.choices import FloatFormat
from privctl.models.language import LanguageModel
from privctl.models.loading import TrainingModel
from privctl.models.normalisation import require_initial
from privctl.models.precision import convert
from privctl.reports.files import (
    file_artifact,
    now,
    pending_artifact,
    relative,
    staged_report,
    versions,
)
from privctl.shadow.pool import ShadowPool
from privctl.storage.commit import commit_together
from privctl.storage.digest import file_digest
from privctl.train.network.tensors import named_tensors
from privctl.train.release.adapter import released_adapter
from privctl.train.release.model import save_network
from privctl.train.release.reload_check import reference_answers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from privctl.storage.atomic import PendingFile

_PRIVATE = (
    "shadow models are trained on the pool without any protection: keep this folder as safe as the records themselves"
)
_SAME = (
    "they tell what is usual for models made like the audited one: a model that was trained with other settings, or "
    "from another start, is compared with the wrong ones"
)


class ShadowFolder:
    """A folder to which models are added one by one, committing scores, weights (if kept) and the report together.

    ``report`` is the report at ``place``, or what it will be once the first model is added.
    """

    def __init__(self, pool: ShadowPool, settings: dict[str, Any], done: Iterable[int]) -> None:
        """``settings`` are those of ``settings_of``; the scores of the models ``done`` exist already."""
        self._pool, self._settings = pool, settings
        self._folder = pool.request.training.output
        self.place = self._folder / REPORT_NAME
        self._inputs = (*pool.inputs.start, *pool.inputs.data)
        self._scores: tuple[Artifact, ...] = ()
        self._list(scores_path(self._folder, index) for index in sorted(done))

    def refresh(self) -> None:
        """Add the scores that other processes have stored meanwhile to the report."""
        listed = {artifact.path for artifact in self._scores}
        self._list(path for path in shadow_paths(self._folder) if relative(path, self.place) not in listed)

    def _list(self, paths: Iterable[Path]) -> None:
        added = (file_artifact("scores", path, self.place) for path in paths)
        self._scores = tuple(sorted((*self._scores, *added), key=lambda artifact: artifact.path))
        self.report = self._report_of(self._scores)

    def add(self, index: int, model: TrainingModel, network: nn.Module, device: torch.device) -> None:
        """Score the pool with a trained model and store the scores, whose file marks the model as finished.

        Raises InputError if the files that the model started from have changed since they were first read.
        """
        pool = self._pool
        pool.inputs.require_same_start()
        if model.converted is not None:
            require_initial(model.network, model.frozen_norms)
        scores = ShadowScores(
            index=index,
            settings=self._settings,
            weights=_weights(pool, network),
            lp=_scores(pool, audited_model(pool, model, device, network), index),
            included=coins(pool.request.training.seed, index, len(pool.records)),
            digests=pool.digests,
        )
        with ExitStack() as stack:
            scores_file = stack.enter_context(staged_shadow(self._folder, scores))
            outputs = sorted(
                (*self._scores, pending_artifact("scores", scores_file, self.place)), key=lambda artifact: artifact.path
            )
            report = self._report_of(tuple(outputs))
            files = [scores_file, stack.enter_context(staged_report(self.place, report))]
            if pool.request.keep_models:
                self._save(index, model, network, files)
            else:
                commit_together(files)
        self._scores, self.report = report.outputs, report

    def _save(self, index: int, model: TrainingModel, network: nn.Module, other_files: list[PendingFile]) -> None:
        """Store the weights together with ``other_files``."""

        def describe(report_path: Path, outputs: tuple[Artifact, ...]) -> PrivacyReport:
            return PrivacyReport(
                step="shadow",
                created=now(),
                versions=versions(("torch", "transformers", "numpy")),
                outputs=outputs,
                parameters={**self._settings, "index": index},
                warnings=(_PRIVATE,),
            )

        save_network(
            network,
            model.companion,
            weights_path(self._folder, index),
            describe,
            reference=reference_answers(model, network),
            adapter=released_adapter(network, model, self._pool.request.training.model),
            public=False,
            force=True,
            beside=other_files,
        )

    def _report_of(self, scores: tuple[Artifact, ...]) -> PrivacyReport:
        left_out = counted(self._pool.repeated, "record that repeats", "records that repeat")
        repeated = f"left out: {left_out} an earlier one of the pool"
        return PrivacyReport(
            step="shadow",
            created=now(),
            versions=versions(("torch", "transformers", "numpy", "tokenizers")),
            inputs=self._inputs,
            outputs=scores,
            parameters={**self._settings, "count": len(scores)},
            warnings=(_PRIVATE, _SAME, *([repeated] if self._pool.repeated else [])),
        )


def weights_path(folder: Path, index: int) -> Path:
    """The directory with the weights of shadow model ``index``, if they are kept."""
    return folder / f"shadow-{index:04d}"


def settings_of(pool: ShadowPool, subject: AuditedModel) -> dict[str, Any]:
    """The settings that all models of a folder share, as JSON values."""
    training, recipe = pool.request.training, pool.recipe
    left_out = {
        "method",
        "micro_tokens",
        "micro_examples",
        "clipping_passes",
        "clip_norm",
        "noise_multiplier",
        "adaptive",
    }
    of_recipe = {name: getattr(recipe, name) for name in recipe.__slots__ if name not in left_out}
    return {
        **{name: str(value) if isinstance(value, str) else value for name, value in of_recipe.items()},
        "task": str(training.task),
        "records": len(pool.records),
        "pool": pool.fingerprint,
        "start": [artifact.digest for artifact in pool.inputs.start],
        "from_scratch": training.model.from_scratch,
        "vocabulary": None if training.model.vocabulary is None else file_digest(Path(training.model.vocabulary)),
        "norm": training.model.norm,
        **({} if training.model.convert is None else {"converted": training.model.convert}),
        **({"adapter": True} if training.model.adapter_only else {}),
        "dropout": training.model.dropout,
        "trained": list(training.model.train),
        "lora_rank": training.model.lora_rank,
        "labels": list(pool.labels),
        "long": str(training.data.long),
        "response_only": training.data.response_only,
        "seed": training.seed,
        "scoring": scoring_of(subject),
    }


def audited_model(
    pool: ShadowPool, model: TrainingModel, device: torch.device, network: nn.Module | None = None
) -> AuditedModel:
    """The model as an audit loads it, with an adapter in the layers of its base."""
    training = pool.request.training
    path = training.model.path
    loaded: Any = model.network if network is None else network
    if network is not None and training.model.adapter_only:
        loaded = loaded.base_model.model
    if pool.request.precision is FloatFormat.BFLOAT16:
        loaded = copy.deepcopy(loaded)  # so that the stored weights are not rounded
        convert(loaded, FloatFormat.BFLOAT16)
    audited = LanguageModel(
        path=path,
        folder=path if path.is_dir() else path.parent,
        network=loaded.to(device).eval().requires_grad_(False),
        tokenizer=None if model.text is None else model.text.tokenizer,
        device=device,
    )
    return subject_of(str(training.task), audited, max_length=training.data.max_length, resize=training.data.resize)


def _scores(pool: ShadowPool, subject: AuditedModel, index: int) -> NDArray[np.float64]:
    """The mean log-probability [records] of each record, NaN for one without anything to predict.

    Raises InputError for scores that are not finite.
    """
    rows = subject.rows(pool.records).rows
    counts = subject.scorer.counts(rows)
    scorable = np.flatnonzero(counts > 0)
    chosen, counts = [rows[i] for i in scorable], counts[scorable]
    scores = np.full(len(pool.records), math.nan)
    if len(chosen):
        values = (
            compute_scores(plan_scoring(subject.scorer, chosen))
            .take(chosen, counts)[FIELDS.index("lp")]
            .astype(np.float64)
        )
        scores[scorable] = np.add.reduceat(values, np.cumsum(counts) - counts) / counts
    if not np.isfinite(scores[scorable]).all():
        raise InputError(
            f"shadow model {index} gives NaN or infinite scores; the training diverged: lower --learning-rate"
        )
    return scores


def _weights(pool: ShadowPool, network: nn.Module) -> str:
    """The digest of the weights, equal to that of an audit of the model's file."""
    tensors = state_of(network) if pool.request.training.model.adapter_only else named_tensors(network)
    return weights_digest(
        TensorDigest(
            name=name,
            dtype=str(tensor.dtype),
            shape=tuple(tensor.shape),
            digest=f"blake3:{blake3(_bytes(tensor)).hexdigest()}",
        )
        for name, tensor in tensors.items()
    )


def _bytes(tensor: torch.Tensor) -> bytes:
    raw: bytes = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return raw
