"""Attacks that query altered copies of labelled records (Choquette-Choo et al. 2021).

``augmented`` averages the model's margin for the label over mildly altered copies, such as training may have used;
``label-only`` counts how many of increasingly altered copies keep the label, so predicted labels suffice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.membership.queries import Answers, AttackQueries, Query, asking, draws
from audits.scores.tasks import AUDIO_CLASSIFICATION, IMAGE_CLASSIFICATION, TEXT_CLASSIFICATION
from privctl.data.columns import HeadKind
from privctl.data.records import Record

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from audits.membership.workload import Workload
    from audits.scores.subject import AuditedModel

#: The fraction of words removed from each mildly altered copy of a text, and from increasingly altered ones.
MILD, WORDS = 0.15, (0.2, 0.35, 0.5, 0.65)
#: The noise on images and sounds as a fraction of their range, and the number of copies for each level.
NOISES, TIMES = (0.05, 0.1, 0.2, 0.4), 4
#: The number of mildly altered copies of a text or a sound.
COPIES = 8

#: Maps a record and a random generator to altered copies, always the same number.
Alter = Callable[[Record, np.random.Generator], list[Record]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copies:
    """An attack by altered copies, which ``texts``, ``images`` and ``sounds`` make.

    ``score`` maps the margins [1 + copies] of the record itself and its copies to the attack's score.
    """

    name: str
    texts: Alter
    images: Alter
    sounds: Alter
    score: Callable[[NDArray[np.float64]], float]
    #: Whether the attack needs discrete labels.
    labels: bool = False

    def why_not(self, work: Workload) -> str:
        """See ``Query``."""
        if self.labels and work.head is HeadKind.NUMBER:
            return (
                "it counts the copies that keep their label, and this model predicts a number; augmented judges those"
            )
        if work.task in (TEXT_CLASSIFICATION, IMAGE_CLASSIFICATION, AUDIO_CLASSIFICATION):
            return ""
        return f"it looks at the labels of records, which a model for {work.task} does not give"

    def ask(self, subject: AuditedModel, work: Workload) -> AttackQueries:
        """See ``Query``."""
        others = {IMAGE_CLASSIFICATION: self.images, AUDIO_CLASSIFICATION: self.sounds}
        alter = others.get(work.task, self.texts)
        copies = [
            alter(record, draws(digest, self.name)) for record, digest in zip(work.records, work.digests, strict=True)
        ]
        count = len(copies[0]) if copies else 0

        def score(own: Answers, record: int, answers: Answers, begin: int) -> float:
            margins = [own.of(record, "margin"), *(answers.of(begin + i, "margin") for i in range(count))]
            return self.score(np.concatenate(margins))

        return AttackQueries(
            rows=subject.rows([row for record_rows in copies for row in record_rows]).rows, copies=count, score=score
        )


def without_words(record: Record, share: float, random: np.random.Generator) -> Record:
    """``record`` with each word removed with probability ``share``; at least one word is kept."""
    words = record.text.split()
    stay = random.random(len(words)) >= share
    stay[random.integers(len(words))] = True
    return replace(record, text=" ".join(word for word, stays in zip(words, stay, strict=True) if stays))


def moved(pixels: NDArray[Any], down: int, right: int, *, flipped: bool = False) -> NDArray[Any]:
    """An image shifted by pixels, with its edge replicated.

    Images are [height, width, channels] uint8 or [channels, height, width] float32.
    """
    rows, columns = (0, 1) if pixels.dtype == np.uint8 else (1, 2)
    height, width = pixels.shape[rows], pixels.shape[columns]
    shifted = pixels.take(np.clip(np.arange(height) - down, 0, height - 1), axis=rows)
    shifted = shifted.take(np.clip(np.arange(width) - right, 0, width - 1), axis=columns)
    return np.flip(shifted, columns) if flipped else shifted


def noised(pixels: NDArray[Any], share: float, random: np.random.Generator) -> NDArray[Any]:
    """An image or sound with Gaussian noise, clipped to its range; ``share`` is the noise's fraction of that range."""
    low, high = (0.0, 255.0) if pixels.dtype == np.uint8 else (float(pixels.min()), float(pixels.max()))
    noise = random.normal(scale=share * (high - low), size=pixels.shape)
    noisy = np.clip(pixels + noise, low, high)
    return np.asarray(noisy.round() if pixels.dtype == np.uint8 else noisy).astype(pixels.dtype)


def _mild_texts(record: Record, random: np.random.Generator) -> list[Record]:
    return [without_words(record, MILD, random) for _ in range(COPIES)]


def _mild_images(record: Record, _: np.random.Generator) -> list[Record]:
    pixels = record.pixels
    assert pixels is not None
    shift = max(1, max(pixels.shape) // 16)
    ways = [(0, 0), (shift, 0), (-shift, 0), (0, shift), (0, -shift)]
    copies = [moved(pixels, *way, flipped=flipped) for flipped in (False, True) for way in ways][1:]
    return [replace(record, pixels=np.ascontiguousarray(copy)) for copy in copies]


def _mild_sounds(record: Record, _: np.random.Generator) -> list[Record]:
    """Shift a sound in time by up to an eighth either way, padding with silence."""
    wave = record.pixels
    assert wave is not None
    copies = []
    for part in range(1, COPIES // 2 + 1):
        shift = min(len(wave) - 1, max(1, part * len(wave) // 32))
        silence = np.zeros(shift, wave.dtype)
        copies += [np.concatenate([wave[shift:], silence]), np.concatenate([silence, wave[: len(wave) - shift]])]
    return [replace(record, pixels=copy) for copy in copies]


def _rough_texts(record: Record, random: np.random.Generator) -> list[Record]:
    return [without_words(record, share, random) for share in WORDS for _ in range(TIMES)]


def _rough_images(record: Record, random: np.random.Generator) -> list[Record]:
    assert record.pixels is not None
    return [replace(record, pixels=noised(record.pixels, share, random)) for share in NOISES for _ in range(TIMES)]


QUERIES: dict[str, Query] = {
    "augmented": _Copies(
        name="augmented",
        texts=_mild_texts,
        images=_mild_images,
        sounds=_mild_sounds,
        score=lambda margins: float(margins.mean()),
    ),
    "label-only": _Copies(
        name="label-only",
        texts=_rough_texts,
        images=_rough_images,
        sounds=_rough_images,
        score=lambda margins: float((margins > 0).mean()),
        labels=True,
    ),
}
AUGMENTED, LABEL_ONLY = (asking(name) for name in QUERIES)
