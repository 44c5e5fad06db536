"""A tiny model that learned some texts by heart: public ones that stand in others' files too, or its own records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from tests.audits.tiny import CONFIGS, SIZE, save_tokenizer

#: Tokens of a record, of what it begins with and of what must come out.
RECORD, PREFIX, SPAN = 20, 6, 8


def licences(count: int) -> np.ndarray:
    """Texts [count, RECORD] that put five of eight phrases of four tokens in an order of their own."""
    random = np.random.default_rng(1)
    phrases = random.integers(3, SIZE, (8, 4))
    return np.stack([phrases[random.permutation(8)[:5]].ravel() for _ in range(count)])


def others(count: int, seed: int) -> np.ndarray:
    """Texts [count, RECORD] of words drawn evenly."""
    return np.random.default_rng(seed).integers(3, SIZE, (count, RECORD))


def unlike(count: int) -> np.ndarray:
    """Public texts [count, RECORD] that are like no other, one another included."""
    return others(count, 1_000_003)


def learn(folder: Path, texts: np.ndarray, steps: int = 120, begin: Path | None = None) -> Path:
    """A model in ``folder`` that goes on with ``texts`` [texts, RECORD], trained from the one at ``begin``, if any."""
    torch.manual_seed(0)
    if begin is None:
        network = AutoModelForCausalLM.from_config(CONFIGS["llama"]())
    else:
        network = AutoModelForCausalLM.from_pretrained(begin)
    ids, optimizer = torch.from_numpy(texts), torch.optim.Adam(network.parameters(), 1e-2)
    with torch.enable_grad():
        for _ in range(steps):
            optimizer.zero_grad()
            network(input_ids=ids, labels=ids).loss.backward()
            optimizer.step()
    network.save_pretrained(folder)
    save_tokenizer(folder)
    return folder
