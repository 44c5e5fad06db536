"""Builds a task from a model and its data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from privctl.data.columns import HeadKind
from privctl.data.images import ImageSet
from privctl.data.labels import LabelSet, numbers_of
from privctl.data.sounds import SoundSet
from privctl.data.texts import TextRecord
from privctl.domain.errors import InputError
from privctl.models.annotated import encode_questions, encode_words
from privctl.models.choices import TaskName
from privctl.models.corpora import IN_MEMORY, CorpusStorage
from privctl.models.encoding import TextOptions, encode_causal, encode_classified, encode_masked, head_targets
from privctl.models.loading import TrainingModel
from privctl.models.pairs import encode_pairs
from privctl.models.sounds import features_of
from privctl.models.tasks.answers import QuestionAnswering, reads_types, separator_of
from privctl.models.tasks.base import Task
from privctl.models.tasks.classification import ImageClassification, TextClassification
from privctl.models.tasks.language import CausalLanguage, MaskedLanguage
from privctl.models.tasks.seq2seq import SequenceToSequence
from privctl.models.tasks.sounds import SoundClassification
from privctl.models.tasks.words import WordClassification

if TYPE_CHECKING:
    from numpy.typing import NDArray


def text_task(
    model: TrainingModel,
    records: Iterable[TextRecord],
    options: TextOptions | None = None,
    *,
    seed: int = 0,
    keep: CorpusStorage = IN_MEMORY,
) -> Task:
    """The model's task on ``records``, stored by ``keep``; for classification they must be read with labels.

    ``seed`` determines the draws of masks and of examples from units. Raises InputError, naming the record, for a text
    that does not fit or a label that the model lacks; CommandError for incompatible options.
    """
    facts, options = model.text, options or TextOptions()
    if facts is None:
        raise ValueError(f"the task {model.task} is not on text")
    if model.task is TaskName.CAUSAL_LM:
        return CausalLanguage(corpus=encode_causal(records, facts, options, keep), facts=facts, seed=seed)
    if model.task is TaskName.MASKED_LM:
        corpus = encode_masked(records, facts, options, keep)
        return MaskedLanguage(corpus=corpus, facts=facts, mask=facts.tokenizer.mask_token_id, seed=seed)
    if model.task is TaskName.SEQ2SEQ_LM:
        corpus = encode_pairs(records, facts, options, keep)
        return SequenceToSequence(corpus=corpus, facts=facts, start=model.decoder_start, seed=seed)
    if model.task is TaskName.TOKEN_CLASSIFICATION:
        names = model.labels or ()
        corpus = encode_words(records, facts, options, LabelSet(names), keep)
        return WordClassification(corpus=corpus, facts=facts, labels=names, seed=seed)
    if model.task is TaskName.QUESTION_ANSWERING:
        corpus = encode_questions(records, facts, options, keep)
        typed = reads_types(model.network, facts.tokenizer)
        separator = separator_of(model.network, facts.tokenizer)
        return QuestionAnswering(corpus=corpus, facts=facts, typed=typed, separator=separator, seed=seed)
    named = None if model.problem is HeadKind.NUMBER else LabelSet(model.labels or ())
    corpus = encode_classified(records, facts, options, keep, named, model.problem)
    labels = corpus.labels if model.problem is HeadKind.ONE else corpus.targets
    return TextClassification(corpus=corpus, facts=facts, labels=labels, problem=model.problem, seed=seed)


def image_task(model: TrainingModel, images: ImageSet) -> Task:
    """The model's task on ``images``.

    Raises InputError if size or number of channels differ from the model's, and for a label that the model lacks.
    """
    facts = model.images
    if facts is None:
        raise ValueError(f"the task {model.task} is not on images")
    if images.channels != facts.channels:
        raise InputError(
            f"the images have {images.channels} channels and {model.path} takes {facts.channels}; convert them"
        )
    if facts.size is not None and images.size != facts.size:
        height, width = facts.size
        raise InputError(
            f"the images are {images.size[0]}x{images.size[1]} pixels and {model.path} takes {height}x{width}; give "
            f"--resize {height} {width}, or set image_size in config.json to train from scratch"
        )
    labels = _targets(model, images.labels, images.places)
    return ImageClassification(images=images, facts=facts, labels=labels, problem=model.problem)


def sound_task(model: TrainingModel, sounds: SoundSet) -> Task:
    """The model's task on ``sounds``.

    Raises InputError if their lengths differ and the model does not state a length to pad them to, and for a label that
    the model lacks.
    """
    facts = model.sounds
    if facts is None:
        raise ValueError(f"the task {model.task} is not on sounds")
    features = features_of(facts, sounds, model.path)
    return SoundClassification(
        features=features,
        length=facts.length or len(features[0]),
        facts=facts,
        labels=_targets(model, sounds.labels, sounds.places),
        problem=model.problem,
    )


def _targets(model: TrainingModel, labels: Sequence[str], places: Sequence[str]) -> Sequence[int] | NDArray[np.float32]:
    """The number of each label, or targets (examples, outputs), depending on the model's ``problem``."""
    named = None if model.problem is HeadKind.NUMBER else LabelSet(model.labels or ())
    if model.problem is HeadKind.ONE and named is not None:
        return numbers_of(labels, places, named)
    stated = zip(labels, places, strict=True)
    return np.array([head_targets(model.problem, named, *label) for label in stated], np.float32)
