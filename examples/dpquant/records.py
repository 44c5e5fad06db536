"""Write the data of both tasks in privctl's formats: traffic signs, and sentences of film reviews."""

from __future__ import annotations

import io
import random
import tarfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from transformers import BertConfig, ResNetConfig

from examples.harness.results import write_jsonl, write_lines

#: Paths inside the folder that ``--data-dir`` names.
SIGNS, SENTENCES = Path("vision/gtsrb-train-subset.tar.gz"), Path("text/sst2")
#: Every fifth of 43 classes, sorted by name, is used, and every fifth track of photographs is held out.
EVERY, HELD_OUT = 5, 5
PIXELS = 32
#: Size of the public vocabulary, from sentences that are used for nothing else.
WORDS = 1500
#: Number of sentences that are taken as public.
PUBLIC = 3000


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A model's folder, possibly with a config.json only, and the data for training and evaluation.

    ``labels`` are the class names, which are public: names collected from the private data would void the guarantee.
    The model is first trained on ``public`` data, if there is any.
    """

    name: str
    model: Path
    train: Path
    held_out: Path
    examples: int
    labels: tuple[str, ...]
    vocabulary: Path | None = None
    public: Path | None = None


def signs(archive: Path, folder: Path, most: int | None = None) -> Task:
    """GTSRB's traffic signs at 32x32 pixels, of few classes. All pictures of a track are in the same file."""
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[tuple[str, Any]]] = {"train": [], "held-out": []}
    with tarfile.open(archive) as tar:
        members = sorted((m for m in tar if m.name.endswith(".ppm")), key=lambda m: m.name)
        classes = sorted({Path(m.name).parent.name for m in members})[::EVERY]
        for member in members:
            path = Path(member.name)
            file = tar.extractfile(member) if path.parent.name in classes else None
            if file is not None:
                image = Image.open(io.BytesIO(file.read())).convert("RGB").resize((PIXELS, PIXELS))
                side = "held-out" if int(path.name[:5]) % HELD_OUT == 0 else "train"
                found[side].append((path.parent.name, np.asarray(image)))
    random.Random(0).shuffle(found["train"])  # noqa: S311 - an order, not a secret
    found["train"] = found["train"][:most]
    for side, rows in found.items():
        np.savez(
            folder / f"{side}.npz",
            images=np.stack([pixels for _, pixels in rows]),
            labels=np.array([name for name, _ in rows]),
        )
    ResNetConfig(
        num_channels=3, embedding_size=16, hidden_sizes=[16, 32, 64], depths=[1, 1, 1], layer_type="basic",
        image_size=PIXELS,
    ).save_pretrained(folder / "model")  # fmt: skip
    return Task(
        name="signs",
        model=folder / "model",
        train=folder / "train.npz",
        held_out=folder / "held-out.npz",
        examples=len(found["train"]),
        labels=tuple(classes),
    )


def sentences(source: Path, folder: Path, most: int | None = None) -> Task:
    """SST-2: sentences of film reviews labelled positive or negative, and a BERT of two layers.

    From random weights this model learns nothing at epsilon 8 in so few epochs. So it is first trained on a part of the
    sentences, which is taken as public. Its vocabulary is public too.
    """
    folder.mkdir(parents=True, exist_ok=True)
    rows = {name: _rows(source / f"{name}.tsv") for name in ("train", "dev", "test")}
    random.Random(0).shuffle(rows["train"])  # noqa: S311 - an order, not a secret
    rows["public"], rows["train"] = rows["train"][:PUBLIC], rows["train"][PUBLIC:][:most]
    for name, file in (("public", "public"), ("train", "train"), ("test", "held-out")):
        write_jsonl(folder / f"{file}.jsonl", ({"text": text, "label": label} for text, label in rows[name]))
    counts = Counter(word for text, _ in rows["dev"] for word in text.split() if word.isalpha())
    words = [word for word, _ in counts.most_common(WORDS)]
    write_lines(folder / "words.txt", words)
    BertConfig(
        vocab_size=WORDS + 16, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        max_position_embeddings=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.1,
    ).save_pretrained(folder / "model")  # fmt: skip
    return Task(
        name="sentences",
        model=folder / "model",
        train=folder / "train.jsonl",
        held_out=folder / "held-out.jsonl",
        examples=len(rows["train"]),
        labels=("0", "1"),
        vocabulary=folder / "words.txt",
        public=folder / "public.jsonl",
    )


def _rows(path: Path) -> list[list[str]]:
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line.rsplit("\t", 1) for line in lines if line]
