"""What a model writes after prompts, once by argmax and otherwise sampled: an attacker's queries without records."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from audits.extraction.decoding import TextDecoder, batches_of_one_length
from audits.extraction.law import SamplingLaw, draw
from audits.scores.forward import enough_memory
from privctl.domain.progress import Advance, silent
from privctl.models.language import LanguageModel
from privctl.models.quiet import quiet_transformers
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Queries:
    """Each prompt is continued ``count`` times by up to ``tokens`` tokens: once by argmax, otherwise drawn by ``law``.

    If ``seed`` is None, a seed is drawn from the operating system.
    """

    count: int
    tokens: int
    law: SamplingLaw
    seed: int | None = None

    def seeded(self, workers: Workers) -> int:
        """The seed for sampling, the same in all processes."""
        if self.seed is not None:
            return self.seed
        return int.from_bytes(workers.once(lambda: os.urandom(8)), "little") >> 1


def continuations(
    model: LanguageModel,
    prompts: Sequence[NDArray[np.int64]],
    queries: Queries,
    seed: int,
    workers: Workers = ALONE,
    advance: Advance = silent,
) -> list[NDArray[np.int64]] | None:
    """The texts written after each of ``prompts``: ``queries.count`` of each, the one by argmax first.

    A text stops before the end-of-text token. Samples depend only on ``seed``, the prompt's index and the
    continuation's number, not on the batch. ``advance`` counts tokens. None if transformers cannot generate with the
    network.
    """
    every, count, steps = np.arange(len(prompts)), queries.count, queries.tokens

    def written(some: Sequence[int]) -> torch.Tensor:
        drawn_tokens = torch.full((len(some), count * steps), -1, dtype=torch.int64)
        with torch.inference_mode(), quiet_transformers(), enough_memory(model):
            decoder = TextDecoder.of(model)
            rows = [prompts[i] for i in some for _ in range(count)]
            longest = max(map(len, rows), default=1)
            for batch in batches_of_one_length(rows, np.arange(len(rows)), decoder.together(longest)):
                pairs = [(some[k // count], k % count) for k in batch.tolist()]
                drawing = _Drawing(pairs, queries, seed, ends_of(model))
                ids = torch.from_numpy(np.stack([rows[k] for k in batch])).to(model.device)
                if not decoder.decode(ids, steps, drawing.choose):
                    return torch.full_like(drawn_tokens, -2)
                for k, tokens in zip(batch.tolist(), drawing.tokens, strict=True):
                    drawn_tokens[k // count, (k % count) * steps : (k % count + 1) * steps] = torch.from_numpy(tokens)
                advance(len(batch) * steps)
        return drawn_tokens

    rows = workers.spread_rows(every.tolist(), written, count * steps, torch.int64).numpy()
    if (rows == -2).any():
        return None
    texts = rows.reshape(len(prompts) * count, steps)
    return [text[: int((text >= 0).sum())].astype(np.int64) for text in texts]


def ends_of(model: LanguageModel) -> frozenset[int]:
    """The ids that end a text, according to the tokenizer and the model's generation configuration."""
    stated = getattr(getattr(model.network, "generation_config", None), "eos_token_id", None)
    ids = stated if isinstance(stated, list) else [stated]
    return frozenset(int(i) for i in (*ids, model.tokenizer.eos_token_id) if i is not None)


class _Drawing:
    """Chooses the tokens of a batch and collects them in ``tokens`` [texts, steps], -1 after the end."""

    def __init__(self, asked: Sequence[tuple[int, int]], queries: Queries, seed: int, ends: frozenset[int]) -> None:
        """``asked`` holds the prompt's index and the continuation's number of each text."""
        self.tokens = np.full((len(asked), queries.tokens), -1, dtype=np.int64)
        self._law, self._step, self._alive = queries.law, 0, np.arange(len(asked))
        self._ends = np.array(sorted(ends), dtype=np.int64)
        drawn = [_uniform(seed, prompt, number, queries.tokens) for prompt, number in asked]
        #: Numbers in [0, 1) used for sampling; NaN means argmax.
        self._uniform = np.stack(drawn)

    def choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, NDArray[np.int64]]:
        """The next token of each active text, and the indices of the texts that continue after it."""
        chosen = logits.argmax(dim=1)
        uniform = self._uniform[self._alive, self._step]
        sampled = np.flatnonzero(~np.isnan(uniform))
        if len(sampled):
            places = torch.from_numpy(sampled).to(logits.device)
            numbers = torch.from_numpy(uniform[sampled]).to(logits.device)
            chosen[places] = draw(logits[places], numbers, self._law)
        tokens = chosen.cpu().numpy()
        kept = np.flatnonzero(~np.isin(tokens, self._ends))
        self._alive = self._alive[kept]
        self.tokens[self._alive, self._step] = tokens[kept]
        self._step += 1
        return chosen, kept


def _uniform(seed: int, prompt: int, number: int, steps: int) -> NDArray[np.float64]:
    if number == 0:
        return np.full(steps, math.nan)
    return np.random.default_rng([seed, prompt, number]).random(steps)
