"""The pool of records that shadow models are trained on by halves, and the model each of them begins as."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.data.images import ImageSet, read_images
from privctl.data.labels import labels_of
from privctl.data.records import Record
from privctl.data.texts import TextRecord, read_texts
from privctl.domain.errors import CommandError, InputError
from privctl.models.choices import Long, TaskName
from privctl.models.encoding import TextOptions
from privctl.models.language import hushed, read_config
from privctl.models.loading import CLASSIFICATION, TrainingModel, known_labels, load_for_training
from privctl.models.tasks.base import Task
from privctl.models.tasks.make import image_task, text_task
from privctl.models.vocabulary import Vocabulary, vocabulary_from_file
from privctl.train.budget import recipe_for
from privctl.train.prepare import choose_trained
from privctl.train.request import RetrainRequest
from privctl.train.settings import TrainingSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: First words of the seeds of draws, so that none repeats another's (coins have 1).
_WEIGHTS = 2
#: Fewer records than this have halves of which nothing could be learned.
_FEWEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRequest:
    """What ``privctl shadow`` was told.

    ``training`` is how each model is trained; its ``output`` is the folder to write, its ``data.train`` the first of
    ``data``, whose records together are the pool. ``vectorize`` models are trained at a time, None decides by size.
    """

    training: RetrainRequest
    data: tuple[Path, ...]
    count: int
    vectorize: int | None = None
    keep_models: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowPool:
    """Distinct records, the task they are for, and how each model is trained on its half of them.

    ``digests`` [records, 16] uint8 are what the records are known by; ``repeated`` records were left out.
    ``start_is_checkpoint`` says that the models begin with weights of a file, not with random ones.
    """

    request: ShadowRequest
    task: Task
    records: tuple[Record, ...]
    digests: NDArray[np.uint8]
    recipe: TrainingSettings
    labels: tuple[str, ...]
    vocabulary: Vocabulary | None
    start_is_checkpoint: bool
    repeated: int

    def start(self, index: int) -> TrainingModel:
        """What shadow model ``index`` is before its training; random weights are other ones for every model."""
        return _start(self.request, self.labels, self.vocabulary, index)

    @property
    def fingerprint(self) -> str:
        """A digest of the records in their order."""
        return f"blake2b:{hashlib.blake2b(self.digests.tobytes(), digest_size=16).hexdigest()}"


def read_pool(request: ShadowRequest) -> ShadowPool:
    """Read the data and decide every setting; nothing is written. Raises PrivctlError for whatever does not fit."""
    _check(request)
    vocabulary = request.training.model.vocabulary
    made = None if vocabulary is None else vocabulary_from_file(Path(vocabulary))
    images = request.training.task is TaskName.IMAGE_CLASSIFICATION
    records, task_for, repeated = _images(request) if images else _texts(request)
    if len(records) < _FEWEST:
        raise InputError(f"the pool holds {len(records)} distinct records; halves of it need at least {_FEWEST}")
    labels = _labels(request, [record.label or "" for record in records])
    first = _start(request, labels, made, 0)
    recipe, _ = recipe_for(request.training, len(records) // 2)
    return ShadowPool(
        request=request,
        task=task_for(first),
        records=tuple(records),
        digests=np.stack([np.frombuffer(record.digest, np.uint8) for record in records]),
        recipe=recipe,
        labels=labels,
        vocabulary=made,
        start_is_checkpoint=first.initial_weights == "checkpoint",
        repeated=repeated,
    )


def _check(request: ShadowRequest) -> None:
    training = request.training
    data, images = training.data, training.task is TaskName.IMAGE_CLASSIFICATION
    if request.count < 4:
        raise CommandError(
            f"--count is {request.count}; with fewer than 4 models no two are sure not to have seen a record, and 16 "
            "tell more"
        )
    if request.vectorize is not None and request.vectorize < 1:
        raise CommandError(f"--vectorize is {request.vectorize}; it must be at least 1")
    if data.long is Long.SPLIT:
        raise CommandError("--long split trains on pieces of a record, which is scored whole; choose truncate")
    unused = {
        "--long": images and data.long is not Long.REFUSE,
        "--max-length": images and data.max_length is not None,
        "--vocabulary": images and training.model.vocabulary is not None,
        "--resize": not images and data.resize is not None,
        "--labels": training.task not in CLASSIFICATION and bool(data.labels),
    }
    for flag, given in unused.items():
        if given:
            raise CommandError(f"{flag} does not apply to the task {training.task}; remove it")


def _start(request: ShadowRequest, labels: Sequence[str], vocabulary: Vocabulary | None, index: int) -> TrainingModel:
    training = request.training
    seed = np.random.default_rng((_WEIGHTS, training.seed, index)).integers(1 << 31)
    model = load_for_training(
        training.model.path,
        training.task,
        labels=labels or None,
        from_scratch=training.model.from_scratch,
        seed=int(seed),
        vocabulary=vocabulary,
        norm=training.model.norm,
        dropout=training.model.dropout,
    )
    choose_trained(model.network, training.model)
    return model


#: Distinct records, what makes the task of them for a model, and how many records were left out.
_Read = tuple[list[Record], Callable[[TrainingModel], Task], int]


def _texts(request: ShadowRequest) -> _Read:
    training = request.training
    labelled = training.task in CLASSIFICATION
    pooled = [record for path in request.data for record in read_texts(path, labelled=labelled)]
    first = _first([(record.text, record.label) for record in pooled])
    kept: list[TextRecord] = [pooled[i] for i in first]
    options = TextOptions(
        long=training.data.long, max_length=training.data.max_length, response_only=training.data.response_only
    )
    records = [Record(record.line, record.text, record.label) for record in kept]
    return records, lambda model: text_task(model, kept, options, seed=training.seed), len(pooled) - len(kept)


def _images(request: ShadowRequest) -> _Read:
    training = request.training
    sets = [
        read_images(path, channels=_channels(training.model.path), resize=training.data.resize) for path in request.data
    ]
    if len({(one.pixels.dtype, one.size) for one in sets}) > 1:
        raise InputError("the --data sets hold images of different sizes or number formats; bring them to one")
    pixels = np.concatenate([one.pixels for one in sets])
    labels = [label for one in sets for label in one.labels]
    places = [place for one in sets for place in one.places]
    records = [
        Record(i, "", label, image) for i, (label, image) in enumerate(zip(labels, pixels, strict=True), start=1)
    ]
    first = _first([record.digest for record in records])
    kept = ImageSet(pixels=pixels[first], labels=tuple(labels[i] for i in first), places=[places[i] for i in first])
    return [records[i] for i in first], lambda model: image_task(model, kept), len(records) - len(first)


def _first(names: Sequence[Hashable]) -> list[int]:
    """Where each distinct one of ``names`` comes first."""
    places: dict[Hashable, int] = {}
    for i, name in enumerate(names):
        places.setdefault(name, i)
    return list(places.values())


def _channels(path: Path) -> int:
    folder = path if path.is_dir() else path.parent
    with hushed():
        config: Any = read_config(folder, path)
    return 1 if getattr(config, "num_channels", 3) == 1 else 3


def _labels(request: ShadowRequest, occurring: Sequence[str]) -> tuple[str, ...]:
    """The classes' names: as given, as the model knows them, or as the data has them; none for other tasks."""
    if request.training.task not in CLASSIFICATION:
        return ()
    given = request.training.data.labels or known_labels(request.training.model.path)
    return given or labels_of(occurring, str(request.data[0])).names
