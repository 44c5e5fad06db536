"""The pool of records on whose halves shadow models are trained, and their initial models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.data.columns import HeadKind
from privctl.data.images import ImageSet, read_images
from privctl.data.labels import labels_of
from privctl.data.records import Record
from privctl.data.sounds import SoundSet, read_sounds
from privctl.data.texts import TextRecord, read_texts
from privctl.domain.errors import CommandError, InputError
from privctl.models.chat import chat_of
from privctl.models.choices import CLASSIFICATION, LABELLED, NOT_ON_TEXTS, FloatFormat, LongTextPolicy, TaskName
from privctl.models.language import read_config
from privctl.models.loading import TrainingModel, known_labels, load_for_training
from privctl.models.purpose import problem_of
from privctl.models.quiet import quiet_transformers
from privctl.models.tasks.base import Task
from privctl.models.tasks.build import image_task, sound_task, text_task
from privctl.models.vocabulary import Vocabulary, vocabulary_from_file
from privctl.shadow.inputs import ShadowInputs, inputs_of
from privctl.train.preparation.budget import recipe_for
from privctl.train.preparation.prepare import choose_trained, of_samples, text_options
from privctl.train.preparation.reading import sampling_rate
from privctl.train.settings.recipe import TrainingSettings
from privctl.train.settings.request import RetrainRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The first word of the seed of initial weights, which separates it from other draws (coins have 1).
_WEIGHTS = 2
#: The smallest number of records in a pool.
_FEWEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowRequest:
    """The request of ``privctl shadow``.

    ``training`` is how each model is trained; its ``output`` is the folder to write, and the records of its
    ``data.train`` are the pool. ``vectorize`` models are trained at a time; None decides by their size. ``precision``
    is the number format for scoring; None is float32.
    """

    training: RetrainRequest
    count: int
    vectorize: int | None = None
    keep_models: bool = False
    precision: FloatFormat | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowPool:
    """Distinct records, their task, and how each model is trained on its half of them.

    ``digests`` [records, 16] uint8 identify the records; ``repeated`` is the number of duplicates left out. ``inputs``
    are the files with their digests when read.
    """

    request: ShadowRequest
    task: Task
    records: tuple[Record, ...]
    digests: NDArray[np.uint8]
    recipe: TrainingSettings
    labels: tuple[str, ...]
    vocabulary: Vocabulary | None
    inputs: ShadowInputs
    repeated: int

    def start(self, index: int) -> TrainingModel:
        """The initial model ``index``; random weights differ between models."""
        return _start(self.request, self.labels, self.vocabulary, index)

    @property
    def fingerprint(self) -> str:
        """A digest of the records in order."""
        return f"blake2b:{hashlib.blake2b(self.digests.tobytes(), digest_size=16).hexdigest()}"


def read_pool(request: ShadowRequest) -> ShadowPool:
    """Read the data and determine all settings. Nothing is written.

    Raises PrivctlError for invalid input, and for a file that changes while it is read.
    """
    _check(request)
    inputs = inputs_of(request.training)
    vocabulary = request.training.model.vocabulary
    words = None if vocabulary is None else vocabulary_from_file(Path(vocabulary))
    readers = {TaskName.IMAGE_CLASSIFICATION: _images, TaskName.AUDIO_CLASSIFICATION: _sounds}
    records, task_for, repeated = readers.get(request.training.task, _texts)(request)
    if len(records) < _FEWEST:
        raise InputError(f"the pool holds {len(records)} distinct records; halves of it need at least {_FEWEST}")
    labels = _labels(request, [record.label or "" for record in records])
    first_model = _start(request, labels, words, 0)
    recipe, _ = recipe_for(request.training, len(records) // 2)
    inputs.require_same()
    return ShadowPool(
        request=request,
        task=task_for(first_model),
        records=tuple(records),
        digests=np.stack([np.frombuffer(record.digest, np.uint8) for record in records]),
        recipe=recipe,
        labels=labels,
        vocabulary=words,
        inputs=inputs,
        repeated=repeated,
    )


def _check(request: ShadowRequest) -> None:
    training = request.training
    data, images = training.data, training.task is TaskName.IMAGE_CLASSIFICATION
    textless = training.task in NOT_ON_TEXTS
    if request.count < 4:
        raise CommandError(
            f"--count is {request.count}; with fewer than 4 models no two are sure not to have seen a record, and 16 "
            "tell more"
        )
    if request.vectorize is not None and request.vectorize < 1:
        raise CommandError(f"--vectorize is {request.vectorize}; it must be at least 1")
    if data.long is LongTextPolicy.SPLIT:
        raise CommandError("--long split trains on pieces of a record, which is scored whole; choose truncate")
    unused = {
        "--long": textless and data.long is not None,
        "--max-length": images and data.max_length is not None,
        "--text-column": (textless or training.task is TaskName.QUESTION_ANSWERING) and data.columns.text is not None,
        "--label-column": training.task not in LABELLED and data.columns.label is not None,
        "--vocabulary": textless and training.model.vocabulary is not None,
        "--resize": not images and data.resize is not None,
        "--labels": training.task not in CLASSIFICATION and bool(data.labels),
    }
    for flag, is_set in unused.items():
        if is_set:
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
        adapter=training.model.adapter,
        convert=training.model.convert,
    )
    choose_trained(model.network, training.model)
    return of_samples(model, training.data.max_length)


#: The distinct records, a function that makes their task for a model, and the number of duplicates left out.
_Read = tuple[list[Record], Callable[[TrainingModel], Task], int]


def _texts(request: ShadowRequest) -> _Read:
    training = request.training
    labelled = training.task in CLASSIFICATION
    pair = training.task is TaskName.SEQ2SEQ_LM
    chat = chat_of(training.model.path, training.model.adapter)
    problem = problem_of(training.model.path, training.task)
    columns = replace(training.data.columns, chat=chat, pair=pair, problem=problem)
    pooled = read_texts(training.data.train, labelled=labelled, columns=columns)
    parted = pair or problem is HeadKind.SPAN
    first_places = _first_places([(record.text, record.label, record.start * parted) for record in pooled])
    distinct: list[TextRecord] = [pooled[i] for i in first_places]
    options = text_options(training.data)
    records = [Record(r.line, r.text, r.label, start=r.start if parted else 0) for r in distinct]
    return records, lambda model: text_task(model, distinct, options, seed=training.seed), len(pooled) - len(distinct)


def _images(request: ShadowRequest) -> _Read:
    training = request.training
    images = read_images(
        training.data.train,
        channels=_channels(training.model.path),
        resize=training.data.resize,
        columns=replace(training.data.columns, problem=problem_of(training.model.path, training.task)),
    )
    pairs = zip(images.labels, images.pixels, strict=True)
    records = [Record(i, "", label, image) for i, (label, image) in enumerate(pairs, start=1)]
    first_places = _first_places([record.digest for record in records])
    distinct = ImageSet(
        pixels=images.pixels[first_places],
        labels=tuple(images.labels[i] for i in first_places),
        places=[images.places[i] for i in first_places],
    )
    return (
        [records[i] for i in first_places],
        lambda model: image_task(model, distinct),
        len(records) - len(first_places),
    )


def _sounds(request: ShadowRequest) -> _Read:
    training = request.training
    columns = replace(training.data.columns, problem=problem_of(training.model.path, training.task))
    sounds = read_sounds(training.data.train, rate=sampling_rate(training.model.path), columns=columns)
    pairs = zip(sounds.labels, sounds.waves, strict=True)
    records = [Record(i, "", label, wave) for i, (label, wave) in enumerate(pairs, start=1)]
    first_places = _first_places([record.digest for record in records])
    distinct = SoundSet(
        waves=[sounds.waves[i] for i in first_places],
        labels=tuple(sounds.labels[i] for i in first_places),
        places=[sounds.places[i] for i in first_places],
    )
    return (
        [records[i] for i in first_places],
        lambda model: sound_task(model, distinct),
        len(records) - len(first_places),
    )


def _first_places(names: Sequence[Hashable]) -> list[int]:
    """The index of the first occurrence of each distinct name."""
    first_indices: dict[Hashable, int] = {}
    for i, name in enumerate(names):
        first_indices.setdefault(name, i)
    return list(first_indices.values())


def _channels(path: Path) -> int:
    folder = path if path.is_dir() else path.parent
    with quiet_transformers():
        config: Any = read_config(folder, path)
    return 1 if getattr(config, "num_channels", 3) == 1 else 3


def _labels(request: ShadowRequest, occurring: Sequence[str]) -> tuple[str, ...]:
    """The class names: those given, or else the model's, or else those in the data; empty for other tasks."""
    problem = problem_of(request.training.model.path, request.training.task)
    if request.training.task not in CLASSIFICATION or problem is HeadKind.NUMBER:
        return ()
    if problem in (HeadKind.SEVERAL, HeadKind.TOKENS):
        occurring = [name for stated in occurring for name in json.loads(stated)]
    named = request.training.data.labels or known_labels(request.training.model.path)
    return named or labels_of(occurring, str(request.training.data.train)).names
