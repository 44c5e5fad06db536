"""Tiny sequence-to-sequence models and pairs of made-up texts: untrained models, and some that know targets."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

#: Sizes of each architecture.
KINDS = {
    "bart": {"d_model": 48, "init_std": 0.1},
    "t5": {"d_model": 48, "d_kv": 16, "d_ff": 96, "initializer_factor": 1.0, "tie_word_embeddings": False},
}
Pair = tuple[str, str]


def drawn_pairs(count: int, seed: int, length: int = 8) -> list[Pair]:
    """Sources and targets of ``length`` words each, drawn evenly."""
    import numpy as np

    from tests.audits.tiny import WORDS

    random = np.random.default_rng(seed)
    texts = [" ".join(random.choice(WORDS, length).tolist()) for _ in range(2 * count)]
    return list(zip(texts[::2], texts[1::2], strict=True))


def write_pairs(path: Path, pairs: Sequence[Pair]) -> Path:
    """``path``, with ``pairs`` as JSON lines."""
    path.write_text("".join(json.dumps({"source": a, "target": b}) + "\n" for a, b in pairs))
    return path


def untrained(folder: Path, kind: str) -> Path:
    """A model of this ``kind`` in the folder ``folder``."""
    return learned(folder, kind, (), 0)


def learned(folder: Path, kind: str, pairs: Sequence[Pair], steps: int) -> Path:
    """The same after so many ``steps`` on all ``pairs``."""
    import torch

    from privctl.data.rows import Stretch
    from privctl.data.texts import TextRecord
    from privctl.models.choices import TaskName
    from privctl.models.loading import load_for_training
    from privctl.models.vocabulary import frequent_words, private_vocabulary
    from tests.audits.tiny import WORDS
    from tests.models.tasks.small import architecture

    known = [TextRecord(stretch=Stretch("a"), line=1, text=" ".join(WORDS))]
    vocabulary = private_vocabulary(frequent_words(known, min_frequency=1))
    start = architecture(folder.with_name(f"{folder.name}-start"), kind, **KINDS[kind])
    model = load_for_training(start, TaskName.SEQ2SEQ_LM, vocabulary=vocabulary, seed=3)
    if steps:
        ids = torch.tensor(model.companion([a for a, _ in pairs])["input_ids"])
        labels = torch.tensor(model.companion(text_target=[b for _, b in pairs])["input_ids"])
        optimizer = torch.optim.Adam(model.network.parameters(), 3e-3)
        with torch.enable_grad():
            for _ in range(steps):
                optimizer.zero_grad()
                model.network(input_ids=ids, labels=labels).loss.backward()
                optimizer.step()
    model.network.save_pretrained(folder)
    model.companion.save_pretrained(folder)
    return folder
