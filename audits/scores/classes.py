"""Classifiers of texts and of images: one score per record, that of its label."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from audits.scores.forward import Batching, batches, enough_memory, token_scores
from audits.scores.rows import Rows, frame_of, framed_limit, pad_rows
from audits.scores.table import FIELDS
from audits.scores.tasks import IMAGE_CLASSIFICATION, TEXT_CLASSIFICATION
from privctl.data.columns import HeadKind
from privctl.data.labels import quoted_label
from privctl.data.pixels import image_facts
from privctl.data.records import Record
from privctl.domain.errors import InputError
from privctl.domain.progress import Advance, silent
from privctl.models.choices import TaskName
from privctl.models.images import check_reads_pixels, class_names, image_logits
from privctl.models.language import LanguageModel, pad_of
from privctl.models.purpose import checked_problem
from privctl.models.quiet import quiet_transformers
from privctl.models.running import network_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of pixels, regardless of channels, per batch on a CPU and elsewhere.
_PIXELS = {"cpu": 1 << 17}
_PIXELS_ELSEWHERE = 1 << 23
#: The number of int32 values before an image's bytes: label, 1 for floats, and the shape.
_HEAD = 5


def class_scores(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The scores [6, n], rows as ``FIELDS``, of ``labels`` [n] under ``logits`` [n, labels].

    ``lp`` is -log(1 + sum exp(z_other - z_own)) in double precision, so that a probability near 1 keeps its digits:
    logits (40, 0) and label 0 give -4.248354e-18, where float32's log-softmax gives 0.
    """
    wide = logits.to(torch.float64)
    label_logit = wide.gather(1, labels[:, None])
    log_sum_of_others = wide.scatter(1, labels[:, None], -torch.inf).logsumexp(dim=1, keepdim=True)
    scores = token_scores(logits.clone(), labels)
    scores[FIELDS.index("lp")] = -torch.logaddexp(torch.zeros_like(label_logit), log_sum_of_others - label_logit)[
        :, 0
    ].to(torch.float32)
    return scores


def flag_scores(logits: torch.Tensor, flags: torch.Tensor) -> torch.Tensor:
    """The scores [6, n] of sets of labels, ``flags`` [n, labels], which are decided independently.

    They are those of one choice among all sets, where a set's logit is the sum of its labels' ``logits``; but ``rank``
    counts the labels whose opposite is more likely.
    """
    z, is_set = logits.to(torch.float64), flags > 0.5
    signed = torch.where(is_set, z, -z)
    share = torch.sigmoid(signed)
    wrong = signed < 0
    margin = torch.where(wrong.any(1), (signed * wrong).sum(1), signed.abs().amin(1))
    mean = -(torch.nn.functional.softplus(z) - torch.sigmoid(z) * z).sum(1)
    scores = [
        torch.nn.functional.logsigmoid(signed).sum(1), mean, (share * (1 - share) * z.square()).sum(1), wrong.sum(1),
        margin, torch.nn.functional.softplus(z).sum(1),
    ]  # fmt: skip
    return torch.stack([score.to(torch.float32) for score in scores])


def number_scores(outputs: torch.Tensor, numbers: torch.Tensor) -> torch.Tensor:
    """The scores [6, n] of ``numbers`` [n, 1]: ``lp`` is minus half the squared error of ``outputs``.

    Up to a constant, that is the log density of a Gaussian with variance 1; ``mu`` and ``var`` are the mean and
    variance of ``lp`` under that Gaussian.
    """
    lp = -(outputs.to(torch.float64) - numbers).square().sum(1) / 2
    half, none = torch.full_like(lp, 0.5), torch.zeros_like(lp)
    return torch.stack([lp, -half, half, none, lp, none]).to(torch.float32)


class TextClassScorer:
    """Rows are token ids followed by the label's number, by a flag for each label, or by a number's bits."""

    causal = False

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.pad = pad_of(model.network, model.tokenizer)
        self.problem = checked_problem(model.path, model.network.config, TaskName.TEXT_CLASSIFICATION)
        self.behind = model.network.config.num_labels if self.problem is HeadKind.SEVERAL else 1
        if getattr(model.network.config, "use_cache", False):
            model.network.config.use_cache = False  # not needed, and some hybrid networks fail with it

    def counts(self, rows: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
        """1 if there is a token, otherwise 0."""
        return np.array([int(len(row) > self.behind) for row in rows], dtype=np.int64)

    @torch.inference_mode()
    def score(
        self, rows: Sequence[NDArray[Any]], advance: Advance = silent, *, batching: Batching | None = None
    ) -> NDArray[np.float32]:
        """The scores [6, rows] of the labels."""
        model, behind, tokens = self.model, self.behind, (batching or Batching.of(self.model)).tokens
        values = np.empty((len(FIELDS), len(rows)), dtype=np.float32)
        lengths = np.array([len(row) - behind for row in rows], dtype=np.int64)
        with quiet_transformers(), enough_memory(model):
            for batch in batches(lengths, tokens):
                arrays = pad_rows([rows[i][:-behind] for i in batch], self.pad)
                ids, real = (torch.from_numpy(array).to(model.device) for array in arrays)
                labels = torch.from_numpy(np.stack([rows[i][-behind:] for i in batch])).to(model.device)
                with network_errors(model.path, model.network):
                    logits = model.network(input_ids=ids, attention_mask=real).logits
                if self.problem is HeadKind.NUMBER:
                    labels = labels.view(torch.float64)
                labels = labels[:, 0] if self.problem is HeadKind.ONE else labels
                values[:, batch] = problem_scores(self.problem, logits, labels).cpu().numpy()
                advance(len(batch))
        return values


def problem_scores(problem: HeadKind, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The scores of ``labels``: label numbers (n,), flags (n, labels), or real numbers (n, 1)."""
    if problem is HeadKind.SEVERAL:
        return flag_scores(logits, labels)
    if problem is HeadKind.NUMBER:
        return number_scores(logits, labels)
    return class_scores(logits, labels)


def flags_of(record: Record, labels: dict[str, int], model: LanguageModel, outputs: int) -> NDArray[np.int64]:
    """1 for each of the record's labels, otherwise 0, [outputs]."""
    numbers = {number_of(labels, name, record.line, model) for name in json.loads(record.label or "[]")}
    return np.isin(np.arange(outputs), list(numbers)).astype(np.int64)


def described(problem: HeadKind) -> dict[str, str]:
    """A description of the score if it is not a label's log-probability, for the report."""
    scored = {
        HeadKind.SEVERAL: {"scored": "the record's set of labels, each of them decided by itself"},
        HeadKind.NUMBER: {"scored": "half the squared error of the number, negative"},
    }
    return scored.get(problem, {})


class TextClassifierSubject:
    """Records are texts with labels. Raises CommandError for a ``max_length`` that does not fit the model."""

    task = TEXT_CLASSIFICATION

    def __init__(self, model: LanguageModel, max_length: int | None = None) -> None:
        self.model = model
        self.scorer = TextClassScorer(model)
        if getattr(model.network.config, "pad_token_id", None) is None:
            # causal classifiers need it to find the last real token
            model.network.config.pad_token_id = self.scorer.pad
        self._frame = frame_of(model.tokenizer)
        self._labels = {} if self.scorer.problem is HeadKind.NUMBER else label_numbers(model)
        self.max_length: int | None = framed_limit(model, self._frame, max_length)

    def rows(self, records: Sequence[Record]) -> Rows:
        """See ``AuditedModel``."""
        encoded = self._frame.encode(self.model, [record.text for record in records], self.max_length or 0)
        stated = [self._stated_labels(record) for record in records]
        return Rows(
            rows=[np.append(row, label) for row, label in zip(encoded.rows, stated, strict=True)],
            truncated=encoded.truncated,
        )

    def _stated_labels(self, record: Record) -> NDArray[np.int64]:
        """The labels at the end of a record's row."""
        if self.scorer.problem is HeadKind.NUMBER:
            return np.array([float(record.label or "nan")]).view(np.int64)
        if self.scorer.problem is HeadKind.SEVERAL:
            return flags_of(record, self._labels, self.model, self.scorer.behind)
        return np.array([number_of(self._labels, record.label, record.line, self.model)])

    def describe(self) -> dict[str, Any]:
        """See ``AuditedModel``."""
        return {
            "task": self.task,
            "max_length": self.max_length,
            "truncation": "keeps the first max_length tokens, special ones counted",
            **described(self.scorer.problem),
        }


class ImageScorer:
    """Rows are bytes: a head of int32 (label, float or not, shape), the pixels as read, then targets.

    Targets are float64: a flag for each label, or a number; none for a single label.
    """

    causal = False

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.problem = checked_problem(model.path, model.network.config, TaskName.IMAGE_CLASSIFICATION)
        self.behind = {HeadKind.ONE: 0, HeadKind.NUMBER: 1}.get(self.problem, model.network.config.num_labels)
        check_reads_pixels(model.path, model.network)
        self.facts = image_facts(model.folder, model.network.config)

    def counts(self, rows: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
        """Always 1."""
        return np.ones(len(rows), dtype=np.int64)

    @torch.inference_mode()
    def score(
        self, rows: Sequence[NDArray[Any]], advance: Advance = silent, *, pixels: int | None = None
    ) -> NDArray[np.float32]:
        """The scores [6, rows] of the labels; at most ``pixels`` are run at once."""
        model = self.model
        pixels = pixels or _PIXELS.get(model.device.type, _PIXELS_ELSEWHERE)
        values = np.empty((len(FIELDS), len(rows)), dtype=np.float32)
        with quiet_transformers(), enough_memory(model):
            for batch in _image_batches(rows, pixels):
                heads, images, targets = zip(*(unpack(rows[i], self.behind) for i in batch), strict=True)
                scaled = self.facts.scale(torch.from_numpy(np.stack(images)).to(model.device))
                labels = torch.tensor(heads) if self.problem is HeadKind.ONE else torch.from_numpy(np.stack(targets))
                with network_errors(model.path, model.network):
                    logits = image_logits(model.network, scaled.to(model.network.dtype))
                values[:, batch] = problem_scores(self.problem, logits, labels.to(model.device)).cpu().numpy()
                advance(len(batch))
        return values


class ImageSubject:
    """Records are images with labels, resized to ``resize`` (height, width) if given."""

    task = IMAGE_CLASSIFICATION
    max_length: int | None = None

    def __init__(self, model: LanguageModel, resize: tuple[int, int] | None = None) -> None:
        self.model = model
        self.scorer = ImageScorer(model)
        self.facts = self.scorer.facts
        self.resize = resize
        self._labels = {} if self.scorer.problem is HeadKind.NUMBER else label_numbers(model)

    def rows(self, records: Sequence[Record]) -> Rows:
        """See ``AuditedModel``; raises InputError for images of another size than the model's."""
        rows = []
        for record in records:
            assert record.pixels is not None  # as they were read
            size = record.pixels.shape[:2] if record.pixels.dtype == np.uint8 else record.pixels.shape[1:]
            if self.facts.size is not None and size != self.facts.size:
                height, width = self.facts.size
                raise InputError(
                    f"image {record.line} is {size[0]}x{size[1]} pixels and {self.model.path} takes {height}x{width}; "
                    f"give --resize {height} {width}"
                )
            rows.append(self._row(record, record.pixels))
        return Rows(rows=rows, truncated=np.zeros(len(rows), dtype=np.bool_))

    def describe(self) -> dict[str, Any]:
        """See ``AuditedModel``."""
        size = None if self.resize is None else list(self.resize)
        return {"task": self.task, "resize": size, **described(self.scorer.problem)}

    def _row(self, record: Record, pixels: NDArray[Any]) -> NDArray[np.uint8]:
        if self.scorer.problem is HeadKind.ONE:
            return pack(number_of(self._labels, record.label, record.line, self.model), pixels)
        if self.scorer.problem is HeadKind.NUMBER:
            return pack(0, pixels, [float(record.label or "nan")])
        return pack(0, pixels, flags_of(record, self._labels, self.model, self.scorer.behind))


def pack(label: int, pixels: NDArray[Any], targets: Sequence[float] | NDArray[Any] = ()) -> NDArray[np.uint8]:
    """An image [height, width, channels] uint8 or [channels, height, width] float32 as a row, then ``targets``."""
    head = np.array([label, pixels.dtype != np.uint8, *pixels.shape], dtype="<i4")
    content = np.ascontiguousarray(pixels).reshape(-1).view(np.uint8)
    return np.concatenate([head.view(np.uint8), content, np.asarray(targets, np.float64).view(np.uint8)])


def unpack(row: NDArray[Any], behind: int = 0) -> tuple[int, NDArray[Any], NDArray[np.float64]]:
    """The inverse of ``pack``, for a row with ``behind`` targets."""
    label, floats, *shape = row[: 4 * _HEAD].copy().view("<i4").tolist()
    end = len(row) - 8 * behind
    pixels = row[4 * _HEAD : end].copy().view(np.float32 if floats else np.uint8).reshape(shape)
    return label, pixels, row[end:].copy().view(np.float64)


def _image_batches(rows: Sequence[NDArray[Any]], pixels: int) -> Iterator[list[int]]:
    """Indices of consecutive rows of equal shape."""
    batch: list[int] = []
    shape: list[int] = []
    for i, row in enumerate(rows):
        _, floats, *row_shape = row[: 4 * _HEAD].copy().view("<i4").tolist()
        size = row_shape[1] * row_shape[2] if floats else row_shape[0] * row_shape[1]
        if batch and (row_shape != shape or (len(batch) + 1) * size > pixels):
            yield batch
            batch = []
        shape = row_shape
        batch.append(i)
    if batch:
        yield batch


def label_numbers(model: LanguageModel) -> dict[str, int]:
    """The number of each label, by its name, and by the number itself unless another label has that name.

    Raises InputError if there are fewer than 2 labels.
    """
    names = class_names(model.network.config)
    if len(names) < 2:
        raise InputError(f"{model.path} has {len(names)} output, which is no choice between labels; give a classifier")
    return {str(i): i for i in names} | {name: i for i, name in names.items()}


def number_of(labels: dict[str, int], name: str | None, line: int, model: LanguageModel) -> int:
    """The number of the label ``name`` of the record on ``line``. Raises InputError for an unknown label."""
    given = name or ""
    try:
        return labels[given]
    except KeyError:
        known_names = ", ".join(sorted(name for name in labels if not name.isdecimal())[:4])
        raise InputError(
            f"the record on line {line} has the label {quoted_label(given)}, which {model.path} does not know (its "
            f"config.json names {known_names}); give the labels the model was trained with"
        ) from None
