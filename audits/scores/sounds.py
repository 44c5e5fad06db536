"""Classifiers of sounds: one score per record, that of its label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from audits.scores.classes import described, flags_of, label_numbers, number_of, pack, problem_scores, unpack
from audits.scores.forward import enough_memory
from audits.scores.rows import Rows
from audits.scores.table import FIELDS
from audits.scores.tasks import AUDIO_CLASSIFICATION
from privctl.data.columns import HeadKind
from privctl.data.records import Record
from privctl.domain.progress import Advance, silent
from privctl.models.choices import TaskName
from privctl.models.language import LanguageModel
from privctl.models.purpose import checked_problem
from privctl.models.quiet import quiet_transformers
from privctl.models.running import network_errors
from privctl.models.sounds import SoundFacts, sound_facts, sound_logits

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of values per batch on a CPU and elsewhere.
_NUMBERS = {"cpu": 1 << 20}
_NUMBERS_ELSEWHERE = 1 << 24


class SoundScorer:
    """Rows are bytes as for images: the network's input for a sound, (1, length, features), then targets.

    If the model has a fixed length, sounds are padded to it; otherwise only sounds of equal length are batched.
    """

    causal = False

    def __init__(self, model: LanguageModel, samples: int | None = None) -> None:
        self.model = model
        self.problem = checked_problem(model.path, model.network.config, TaskName.AUDIO_CLASSIFICATION)
        self.behind = {HeadKind.ONE: 0, HeadKind.NUMBER: 1}.get(self.problem, model.network.config.num_labels)
        self.facts: SoundFacts = sound_facts(model.folder, model.network.config, samples)
        self.length = self.facts.length

    def counts(self, rows: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
        """Always 1."""
        return np.ones(len(rows), dtype=np.int64)

    @torch.inference_mode()
    def score(
        self, rows: Sequence[NDArray[Any]], advance: Advance = silent, *, numbers: int | None = None
    ) -> NDArray[np.float32]:
        """The scores [6, rows] of the labels; at most ``numbers`` values are run at once."""
        model = self.model
        most = numbers or _NUMBERS.get(model.device.type, _NUMBERS_ELSEWHERE)
        values = np.empty((len(FIELDS), len(rows)), dtype=np.float32)
        with quiet_transformers(), enough_memory(model):
            for batch in self._batches(rows, most):
                heads, features, targets = zip(*(unpack(rows[i], self.behind) for i in batch), strict=True)
                inputs = self.facts.padded([_unpacked(feature) for feature in features], self.length)
                name = self.facts.input_name
                inputs[name] = inputs[name].to(model.network.dtype)
                labels = torch.tensor(heads) if self.problem is HeadKind.ONE else torch.from_numpy(np.stack(targets))
                with network_errors(model.path, model.network):
                    logits = sound_logits(model.network, {n: tensor.to(model.device) for n, tensor in inputs.items()})
                values[:, batch] = problem_scores(self.problem, logits, labels.to(model.device)).cpu().numpy()
                advance(len(batch))
        return values

    def _batches(self, rows: Sequence[NDArray[Any]], most: int) -> Iterator[list[int]]:
        """Indices of rows that are padded to one length or have the same length."""
        order = range(len(rows)) if self.length is not None else sorted(range(len(rows)), key=lambda i: len(rows[i]))
        batch: list[int] = []
        size = 0
        for i in order:
            length = len(rows[i]) // 4 if self.length is None else max(len(rows[i]) // 4, self.length)
            if batch and ((self.length is None and length != size) or (len(batch) + 1) * max(size, length) > most):
                yield batch
                batch, size = [], 0
            size = max(size, length)
            batch.append(i)
        if batch:
            yield batch


class SoundSubject:
    """Records are sounds with labels, cut or padded to ``max_length`` samples, or to the model's length."""

    task = AUDIO_CLASSIFICATION

    def __init__(self, model: LanguageModel, max_length: int | None = None) -> None:
        self.model = model
        self.scorer = SoundScorer(model, max_length)
        self.facts = self.scorer.facts
        self.max_length: int | None = self.facts.samples
        self._labels = {} if self.scorer.problem is HeadKind.NUMBER else label_numbers(model)

    def rows(self, records: Sequence[Record]) -> Rows:
        """See ``AuditedModel``."""
        waves = [record.pixels for record in records]
        rows = [self._row(record) for record in records]
        limit = self.max_length
        cut = [limit is not None and wave is not None and len(wave) > limit for wave in waves]
        return Rows(rows=rows, truncated=np.array(cut, dtype=np.bool_))

    def describe(self) -> dict[str, Any]:
        """See ``AuditedModel``."""
        return {"task": self.task, "max_length": self.max_length, **described(self.scorer.problem)}

    def _row(self, record: Record) -> NDArray[np.uint8]:
        assert record.pixels is not None  # the samples as they were read
        features = self.facts.features(record.pixels)
        shaped = features.reshape(1, len(features), -1)
        if self.scorer.problem is HeadKind.ONE:
            return pack(number_of(self._labels, record.label, record.line, self.model), shaped)
        if self.scorer.problem is HeadKind.NUMBER:
            return pack(0, shaped, [float(record.label or "nan")])
        return pack(0, shaped, flags_of(record, self._labels, self.model, self.scorer.behind))


def _unpacked(packed: NDArray[np.float32]) -> NDArray[np.float32]:
    """The network's input for a sound, as it was before ``pack``."""
    return packed[0, :, 0] if packed.shape[2] == 1 else packed[0]
