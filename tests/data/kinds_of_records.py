"""Records of every kind, written to files; equal numbers are equal records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from tests.zoo.shrink import write_wav

#: Writes records with these numbers at a path of the given name, which it returns; equal numbers are equal records.
Write = Callable[[Path, Sequence[int]], Path]


def lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path = path.with_suffix(".jsonl")
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def conversations(path: Path, numbers: Sequence[int]) -> Path:
    said = [(f"who is {number}", "the cat") for number in numbers]
    roles = ("user", "assistant")
    turns = [[{"role": r, "content": c} for r, c in zip(roles, each, strict=True)] for each in said]
    return lines(path, [{"messages": each} for each in turns])


def tagged(path: Path, numbers: Sequence[int]) -> Path:
    return lines(path, [{"tokens": ["cat", str(n)], "ner_tags": ["O", "B-N"]} for n in numbers])


def questions(path: Path, numbers: Sequence[int]) -> Path:
    answers = {"text": ["cat"], "answer_start": [4]}
    return lines(path, [{"question": f"who {n}", "context": "the cat", "answers": answers} for n in numbers])


def pairs(path: Path, numbers: Sequence[int]) -> Path:
    return lines(path, [{"from": "cat", "to": f"Katze {n}"} for n in numbers])


def drawn(number: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(number).integers(0, 256, (4, 4, 3), dtype=np.uint8)


def pictures(path: Path, numbers: Sequence[int]) -> Path:
    for number in numbers:
        (path / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(drawn(number)).save(path / "ab"[number % 2] / f"{path.name}-{number}.png")
    return path


def arrays(path: Path, numbers: Sequence[int]) -> Path:
    np.savez(path.with_suffix(".npz"), images=np.stack(list(map(drawn, numbers))), labels=np.arange(len(numbers)) % 2)
    return path.with_suffix(".npz")


def sounds(path: Path, numbers: Sequence[int]) -> Path:
    for number in numbers:
        (path / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        wave = np.random.default_rng(number).uniform(-1, 1, 30).astype(np.float32)
        write_wav(path / "ab"[number % 2] / f"{number}.wav", wave)
    return path


def listed_sounds(path: Path, numbers: Sequence[int]) -> Path:
    sounds(path, numbers)
    return lines(path, [{"audio": f"{path.name}/{'ab'[n % 2]}/{n}.wav", "label": "ab"[n % 2]} for n in numbers])


#: (task, writer of one file, writer of another, names of fields) for pairs of files that may hold the same records.
KINDS: tuple[tuple[str, Write, Write, Mapping[str, str]], ...] = (
    ("causal-lm", conversations, conversations, {}),
    ("token-classification", tagged, tagged, {}),
    ("question-answering", questions, questions, {}),
    ("seq2seq-lm", pairs, pairs, {"text": "from", "label": "to"}),
    ("image-classification", pictures, pictures, {}),
    ("image-classification", pictures, arrays, {}),
    ("image-classification", arrays, pictures, {}),
    ("audio-classification", sounds, sounds, {}),
    ("audio-classification", listed_sounds, sounds, {}),
)
