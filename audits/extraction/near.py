"""Near-verbatim extraction: what greedy decoding writes after a prefix, compared with the whole suffix.

A text that differs by one token is no exact continuation, and yet gives the record away (Ippolito et al. 2023,
"Preventing verbatim memorization gives a false sense of privacy", who compare by edit distance too). So decoding goes
on after the first mismatch. A text is given up once no continuation can bring it within ``FARTHEST`` of its suffix, as
most are early.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from audits.extraction.decoding import Decoder, TextDecoder, batches_of_one_length
from audits.extraction.distance import EditDistance, string_distances
from audits.scores.forward import enough_memory
from audits.scores.rows import decoded
from privctl.domain.progress import Advance, silent
from privctl.models.language import LanguageModel
from privctl.models.quiet import quiet_transformers
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Normalized edit distances up to which a text counts as near-verbatim.
NEAR = (0.1, 0.3)
#: Beyond this, distances are not measured to the end.
FARTHEST = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMatches:
    """What was written for each text, against its suffix, all of shape [texts].

    ``distance`` is the edit distance in tokens over the suffix's length, in 0 to 1; above ``FARTHEST`` it is the least
    that it can be. ``characters`` is the same in characters of the decoded texts, over the longer one's length, and 1
    where the former is above ``FARTHEST``. ``run`` is the longest run of tokens that both hold; of a text that was
    given up, the longest until then. ``but_for_spaces`` marks texts that are equal once all white space is removed.
    """

    distance: NDArray[np.float32]
    characters: NDArray[np.float32]
    run: NDArray[np.int64]
    but_for_spaces: NDArray[np.bool_]


def near_matches(
    model: LanguageModel,
    rows: Sequence[NDArray[np.int64]],
    suffix: int,
    extracted: NDArray[np.bool_],
    *,
    decoder: Callable[[LanguageModel], Decoder] = TextDecoder.of,
    workers: Workers = ALONE,
    advance: Advance = silent,
) -> NearMatches | None:
    """Greedy decoding by ``decoder`` after each row's prefix, compared with its last ``suffix`` tokens.

    Texts that are ``extracted`` [texts] are known to come out as they are, and are not decoded. ``advance`` is called
    with the number of tokens that were decided, ``workers`` share the texts. None for a network that transformers
    cannot generate with.
    """

    def compute(some: Sequence[int]) -> torch.Tensor:
        chosen = np.array(some, dtype=np.int64)
        found = _matches(model, [rows[i] for i in some], suffix, extracted[chosen], decoder, advance)
        if found is None:
            return torch.full((len(some), 4), -1.0)
        columns = (found.distance, found.characters, found.run, found.but_for_spaces)
        return torch.from_numpy(np.stack([column.astype(np.float32) for column in columns], axis=1))

    values = workers.spread_rows(range(len(rows)), compute, 4, torch.float32).cpu().numpy()
    if (values < 0).any():
        return None
    distance, characters, run, but_for_spaces = values.T
    return NearMatches(
        distance=distance, characters=characters, run=run.astype(np.int64), but_for_spaces=but_for_spaces > 0
    )


def _matches(
    model: LanguageModel,
    rows: Sequence[NDArray[np.int64]],
    suffix: int,
    extracted: NDArray[np.bool_],
    decoder: Callable[[LanguageModel], Decoder],
    advance: Advance,
) -> NearMatches | None:
    """The matches of some rows; see ``near_matches``."""
    distance = np.zeros(len(rows), dtype=np.float32)
    run = np.full(len(rows), suffix, dtype=np.int64)
    written = [row[-suffix:] for row in rows]
    advance(int(extracted.sum()) * suffix)
    with torch.inference_mode(), quiet_transformers(), enough_memory(model):
        writer = decoder(model)
        together = writer.together(max(map(len, rows), default=1))
        for batch in batches_of_one_length(rows, np.flatnonzero(~extracted), together):
            ids = np.stack([rows[i] for i in batch])
            progress = _Progressing(ids[:, -suffix:])
            prompts = torch.from_numpy(ids[:, :-suffix].copy()).to(model.device)
            if not writer.decode(prompts, suffix, progress.choose):
                return None
            found = progress.result()
            distance[batch] = found.distance / suffix
            run[batch] = found.run
            for i, tokens in zip(batch, found.tokens, strict=True):
                written[i] = tokens
            advance(len(batch) * suffix)
    characters = np.where(distance > FARTHEST, np.float32(1), np.float32(0))
    but_for_spaces = extracted.copy()
    compared = np.flatnonzero((distance <= FARTHEST) & ~extracted)
    if len(compared):
        expected = [row[-suffix:] for row in rows]
        ours, theirs = (decoded(model, [texts[i] for i in compared]) for texts in (written, expected))
        characters[compared] = string_distances(ours, theirs)
        but_for_spaces[compared] = ["".join(a.split()) == "".join(b.split()) for a, b in zip(ours, theirs, strict=True)]
    return NearMatches(distance=distance, characters=characters, run=run, but_for_spaces=but_for_spaces)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """Of each text: distance and longest run in tokens, and the tokens written until it was given up."""

    distance: NDArray[np.int64]
    run: NDArray[np.int64]
    tokens: list[NDArray[np.int64]]


class _Progressing:
    """Texts that are compared as they are written; ``alive`` are those that are not given up."""

    def __init__(self, targets: NDArray[np.int64]) -> None:
        self._table = EditDistance(targets)
        self._most = int(FARTHEST * targets.shape[1])
        self._distance = np.zeros(len(targets), dtype=np.int64)
        self._run = np.zeros(len(targets), dtype=np.int64)
        self._written = np.zeros_like(targets)
        self._lengths = np.zeros(len(targets), dtype=np.int64)
        self.alive = np.arange(len(targets))

    def choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, NDArray[np.int64]]:
        """The argmax of each that is alive, and which of these (by place) still are after it."""
        chosen = logits.argmax(dim=1)
        return chosen, self._add(chosen.cpu().numpy())

    def _add(self, tokens: NDArray[np.int64]) -> NDArray[np.int64]:
        self._written[self.alive, self._lengths[self.alive]] = tokens
        self._lengths[self.alive] += 1
        self._table.add(tokens)
        self._distance[self.alive], self._run[self.alive] = self._table.least, self._table.run
        kept = np.flatnonzero(self._table.least <= self._most)
        if len(kept) < len(self.alive):
            self._table.keep(kept)
            self.alive = self.alive[kept]
        return kept

    def result(self) -> _Written:
        """What was found, once every text that is alive has its length."""
        self._distance[self.alive] = self._table.distance
        tokens = [row[:length] for row, length in zip(self._written, self._lengths.tolist(), strict=True)]
        return _Written(distance=self._distance, run=self._run, tokens=tokens)
