"""Models for attacks to be compared on: each trained on records that are known, beside records it never saw.

Text of three sources, sentences with labels, and images; trained plainly, with clipping alone and with differential
privacy. A "null" target was trained on other records of the same source, so that an attack can only err. A target that
is there already is not trained again.
"""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import random
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.common import execute

_SEED = 7
#: Characters of a text.
_LONGEST = 200
#: The sides of a source: what a target is trained on, what it did not see, and what the null target is trained on.
SIDES = ("members", "nonmembers", "others")
SHADOWS = 4
#: How targets are trained, beside the settings of their source; shadow models as "plain".
METHODS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "clipped": {},
    "dp-sgd 1": {"epsilon": 1},
    "dp-sgd 8": {"epsilon": 8},
    "dp-sgd 64": {"epsilon": 64},
    "null": {},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where records come from, ``records`` a side, what is trained on them and how.

    ``suffix`` is that of the sides' files; ``settings`` are those of ``privctl retrain``; ``methods`` of ``METHODS``.
    """

    name: str
    records: int
    read: Callable[[Path], list[Any]]
    settings: Mapping[str, Any]
    shadows: bool
    methods: tuple[str, ...] = tuple(METHODS)
    suffix: str = "jsonl"

    def side(self, folder: Path, side: str) -> Path:
        """The file of one side's records."""
        return folder / self.name / f"{side}.{self.suffix}"

    def target(self, folder: Path, method: str) -> Path:
        """Where a target is."""
        return folder / self.name / method.replace(" ", "-")

    def shadow(self, folder: Path) -> Path | None:
        """Where the shadow models' scores are, if there are any."""
        return folder / self.name / "shadows" if self.shadows else None


def _dialogues(data: Path) -> list[Any]:
    with gzip.open(data / "text" / "sgd_dialogues.jsonl.gz", "rt") as lines:
        turns = (json.loads(line)["turns"] for line in lines)
        return [" ".join(turn[-1] if isinstance(turn, list) else turn for turn in each) for each in turns]


def _commands(data: Path) -> list[Any]:
    with gzip.open(data / "text" / "tldr_pairs.jsonl.gz", "rt") as lines:
        rows = [json.loads(line) for line in lines]
    pages = {row["page"]: f"{row['instruction']}: {row['output']}" for row in rows}
    return list(pages.values())


def _abstracts(data: Path) -> list[Any]:
    with lzma.open(data / "text" / "20200101-cs.CR.tsv.xz", "rt") as lines:
        return [row["abstract"] for row in csv.DictReader(lines, delimiter="\t")]


def _sentences(data: Path) -> list[Any]:
    with open(data / "text" / "sst2" / "train.tsv") as lines:
        return [tuple(line.rstrip("\n").split("\t")) for line in lines]


def _pictures(data: Path) -> list[Any]:
    """Of each class some, (bytes of a JPEG, class)."""
    found: dict[str, list[bytes]] = {}
    with tarfile.open(data / "vision" / "cifar10-jpg.tar.gz") as archive:
        for item in archive:
            folder, label = (*item.name.split("/"), "")[:2]
            if folder == "train" and item.name.endswith(".jpg") and len(found.setdefault(label, [])) < 400:
                file = archive.extractfile(item)
                assert file is not None
                found[label].append(file.read())
    return [(picture, label) for label, pictures in found.items() for picture in pictures]


_TEXT = {"epochs": 8, "learning_rate": 0.003, "batch_size": 32}
_LABELLED = {"epochs": 5, "learning_rate": 0.002, "batch_size": 32, "task": "text-classification"}
SOURCES = (
    Source(name="sentences", records=1000, read=_sentences, shadows=False, settings=_LABELLED),
    Source(name="sentences with shadow models", records=1000, read=_sentences, shadows=True, settings=_LABELLED),
    Source(
        name="images", records=1000, read=_pictures, shadows=True, suffix="npz",
        settings={
            "epochs": 20, "learning_rate": 0.002, "batch_size": 32, "task": "image-classification",
            "from_scratch": True,
        },
    ),
    Source(name="dialogues", records=300, read=_dialogues, shadows=False, settings=_TEXT),
    Source(name="commands", records=300, read=_commands, shadows=False, settings=_TEXT),
    Source(name="abstracts", records=300, read=_abstracts, shadows=False, settings=_TEXT),
    Source(
        name="commands with shadow models", records=1050, read=_commands, shadows=True,
        settings={**_TEXT, "epochs": 4}, methods=("plain", "dp-sgd 8", "null"),
    ),
)  # fmt: skip


def make(source: Source, data: Path, folder: Path) -> dict[str, float]:
    """Every target of ``source`` and its shadow models; processor seconds of each that was made now."""
    import privctl

    write_sides(source, data, folder)
    start = _start(source, data, folder)
    spent: dict[str, float] = {}
    for method in source.methods:
        target = source.target(folder, method)
        if not target.exists():
            began = time.process_time()
            name, settings = _training(source, method)
            side = source.side(folder, "others" if method == "null" else "members")
            privctl.retrain(name, start, data=side, output=target, **settings)
            spent[method] = time.process_time() - began
    return spent | shadow_models(source, start, folder)


def shadow_models(source: Source, start: Path, folder: Path) -> dict[str, float]:
    """The shadow models of ``source``, where it has any; processor seconds if they were made now."""
    shadows = source.shadow(folder)
    # A run that was cut short is resumed.
    if shadows is None or len(list(shadows.glob("*.scores.safetensors"))) >= SHADOWS:
        return {}
    return {"shadows": execute(_shadow_command(source, start, folder, shadows)).cpu}


def _training(source: Source, method: str) -> tuple[str, dict[str, Any]]:
    name = {"null": "plain"}.get(method, method.partition(" ")[0])
    larger = {"batch_size": 64} if name == "dp-sgd" else {}
    return name, {**source.settings, **larger, **METHODS[method]}


def _shadow_command(source: Source, start: Path, folder: Path, shadows: Path) -> list[str]:
    import sys

    paths = [f"--data={source.side(folder, side)}" for side in SIDES[:2]]
    for option, value in source.settings.items():
        flag = f"--{option.replace('_', '-')}"
        paths.append(flag if value is True else f"{flag}={value}")
    paths += [f"--count={SHADOWS}", "--keep-models", "-o", str(shadows)]
    return [sys.executable, "-m", "privctl", "shadow", str(start), *paths]


def _start(source: Source, data: Path, folder: Path) -> Path:
    """What training begins with: a small pretrained language model, or the architecture of a small image model."""
    if source.suffix != "npz":
        return data / "stories260k"
    path = folder / source.name / "start"
    path.mkdir(exist_ok=True)
    about = {
        "architectures": ["ViTForImageClassification"], "model_type": "vit", "image_size": 32, "patch_size": 8,
        "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 128,
        "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_channels": 3,
        "id2label": {str(i): str(i) for i in range(10)}, "label2id": {str(i): i for i in range(10)},
    }  # fmt: skip
    (path / "config.json").write_text(json.dumps(about))
    return path


def write_sides(source: Source, data: Path, folder: Path) -> None:
    """The files of the three sides' records, unless they are there."""
    (folder / source.name).mkdir(parents=True, exist_ok=True)
    if all(source.side(folder, side).exists() for side in SIDES):
        return
    read = source.read(data)
    if isinstance(read[0], str):
        read = [text[:_LONGEST] for text in read if text.strip()]
    distinct = sorted(set(read))
    drawn = random.Random(_SEED).sample(distinct, len(SIDES) * source.records)
    for i, side in enumerate(SIDES):
        some = drawn[i * source.records : (i + 1) * source.records]
        path = source.side(folder, side)
        if source.suffix == "npz":
            _write_images(path, some)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in _rows(some)))


def _rows(records: list[Any]) -> Iterator[dict[str, str]]:
    for record in records:
        yield {"text": record} if isinstance(record, str) else {"text": record[0], "label": record[1]}


def _write_images(path: Path, records: list[tuple[bytes, str]]) -> None:
    import io

    import numpy as np
    from PIL import Image

    classes = sorted({label for _, label in records})
    pixels = np.stack([np.asarray(Image.open(io.BytesIO(picture)).convert("RGB")) for picture, _ in records])
    np.savez(path, images=pixels, labels=np.array([classes.index(label) for _, label in records]))
