"""Synthetic public examples for a task, with the task's own batches and losses.

All numbers come from a fixed seed, so no result obtained with them depends on a private example.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from privctl.data.columns import HeadKind
from privctl.models.corpora import IN_MEMORY, Encoded, EncodedRecord
from privctl.models.encoding import TextFacts
from privctl.models.pairs import joined
from privctl.models.tasks.answers import QuestionAnswering
from privctl.models.tasks.base import Task
from privctl.models.tasks.classification import ImageClassification, TextClassification
from privctl.models.tasks.corpus import CorpusTask
from privctl.models.tasks.seq2seq import SequenceToSequence
from privctl.models.tasks.sounds import SoundClassification
from privctl.models.tasks.units import content_key
from privctl.models.tasks.words import WordClassification

_SEED = 20_160


def synthetic(task: Task, lengths: Sequence[int], *, plain: Collection[int] = (), classes: int = 2) -> Task:
    """``task`` on synthetic examples, one for each of ``lengths`` in tokens, which images and sounds ignore.

    Examples at the positions in ``plain`` repeat one token, or are of one brightness or a tone. Labels are below
    ``classes``. Raises TypeError for a task that is not on texts, images or sounds.
    """
    source = np.random.default_rng(_SEED)
    labels = source.integers(max(1, classes), size=len(lengths)).tolist()
    if isinstance(task, ImageClassification):
        return _images(task, len(lengths), plain, _labels(task.problem, labels, max(1, classes)), source)
    if isinstance(task, SoundClassification):
        return _sounds(task, len(lengths), plain, _labels(task.problem, labels, max(1, classes)), source)
    if not isinstance(task, CorpusTask):
        raise TypeError(f"{type(task).__name__} is on neither texts nor images nor sounds")
    text = _pair if isinstance(task, SequenceToSequence) else _text
    rows = (text(task.facts, length, index, source, plain=index in plain) for index, length in enumerate(lengths))
    if isinstance(task, WordClassification):
        rows = (_labelled(row, max(1, classes), source) for row in rows)
    is_question = isinstance(task, QuestionAnswering)
    between = _separator_tokens(task.facts) if is_question else []
    records = (_question(row, between) if is_question else EncodedRecord([row], share=1) for row in rows)
    corpus = IN_MEMORY.corpus(records)
    if isinstance(task, TextClassification):
        return replace(task, corpus=corpus, labels=_labels(task.problem, labels, max(1, classes)))
    return replace(task, corpus=corpus)


def _labels(problem: HeadKind, drawn: list[int], classes: int) -> Any:
    """Labels in the format of ``problem``, from ``drawn`` numbers below ``classes``."""
    if problem is HeadKind.ONE:
        return drawn
    numbers = np.array(drawn)[:, None]
    if problem is HeadKind.NUMBER:
        return (2.0 * (np.arange(len(drawn))[:, None] % 2) - 1).astype(np.float32)
    return (numbers >= np.arange(classes)).astype(np.float32)


def _text(facts: TextFacts, length: int, record: int, source: np.random.Generator, *, plain: bool) -> Encoded:
    """Ordinary tokens, surrounded by the tokenizer's special tokens if there is room."""
    head, tail = _ends(facts)
    if length < len(head) + len(tail) + 2:
        head, tail = [], []
    inside = length - len(head) - len(tail)
    tokens = np.resize(source.choice(_ordinary(facts), 1 if plain else inside), inside)
    ids = np.concatenate([head, tokens, tail]).astype(np.int32)
    counted = np.zeros(length, np.bool_)
    counted[max(1, len(head)) : len(head) + inside] = True
    return Encoded(ids=ids, counted=counted, record=record, key=content_key(ids.tobytes(), counted.tobytes()))


def _pair(facts: TextFacts, length: int, record: int, source: np.random.Generator, *, plain: bool) -> Encoded:
    """A source and a target of half the length each."""
    half = max(1, length // 2)
    first, second = (_text(facts, part, record, source, plain=plain) for part in (max(1, length - half), half))
    return joined(first.ids.tolist(), second.ids.tolist(), record)


def _labelled(row: Encoded, classes: int, source: np.random.Generator) -> Encoded:
    """The example with a random label for each token."""
    return replace(row, numbers=source.integers(classes, size=len(row.ids)).astype(np.int32))


def _question(row: Encoded, between: Sequence[int]) -> EncodedRecord:
    """A question, the first half, with its context, the second half, and an answer within that.

    The special tokens between two texts separate the halves if there is room.
    """
    half = len(row.ids) // 2
    start = half + len(between)
    if not row.counted[start : start + 1].any():
        start, between = half, ()
    positions = np.arange(len(row.ids))
    ids = row.ids.copy()
    ids[half:start] = between
    context = row.counted & (positions >= start)
    question = replace(row, ids=ids, counted=context, numbers=(positions >= half).astype(np.int32))
    return EncodedRecord([question], share=1, targets=(start, (start + len(row.ids) - 1) // 2))


def _ends(facts: TextFacts) -> tuple[list[int], list[int]]:
    """The special tokens before and after every text."""
    ids = [int(i) for i in facts.tokenizer("")["input_ids"]]
    return ids[: (len(ids) + 1) // 2], ids[(len(ids) + 1) // 2 :]


def _separator_tokens(facts: TextFacts) -> list[int]:
    """The special tokens between two texts."""
    head, tail = _ends(facts)
    ids = [int(i) for i in facts.tokenizer("", "")["input_ids"]]
    return ids[len(head) : len(ids) - len(tail)]


def _ordinary(facts: TextFacts) -> np.ndarray:
    special = {facts.pad, *(facts.tokenizer.all_special_ids or ())}
    ids = [i for i in range(min(facts.vocabulary, len(facts.tokenizer))) if i not in special]
    return np.array(ids or [facts.pad])


def _images(
    task: ImageClassification, count: int, plain: Collection[int], labels: Any, source: np.random.Generator
) -> Task:
    """Random images of the task's size and type; plain ones are white, or 100 if they are floats."""
    originals = task.images.pixels
    shape = (count, *originals.shape[1:])
    if originals.dtype == np.uint8:
        pixels = source.integers(256, size=shape).astype(np.uint8)
    else:
        pixels = source.standard_normal(shape).astype(originals.dtype)
    for place in plain:
        pixels[place] = 255 if originals.dtype == np.uint8 else 100
    images = replace(task.images, pixels=pixels, labels=("",) * count, places=("",) * count)
    return replace(task, images=images, labels=labels)


def _sounds(
    task: SoundClassification, count: int, plain: Collection[int], labels: Any, source: np.random.Generator
) -> Task:
    """Noise of the task's length, or down to half of it if the network gets a mask; plain ones are a loud tone."""
    least = (task.length + 1) // 2 if task.facts.masked and task.facts.samples is not None else task.length
    features = []
    for index in range(count):
        length = task.length - (task.length - least) * index // count
        sound = source.standard_normal((length, *task.features[0].shape[1:])).astype(np.float32)
        # Normalisation over time would reduce a constant to rounding errors.
        tone = 100 * np.sin(np.arange(length, dtype=np.float32)).reshape(-1, *[1] * (sound.ndim - 1))
        features.append(np.broadcast_to(tone, sound.shape).copy() if index in plain else sound)
    return replace(task, features=features, labels=labels)
