"""Near-verbatim extraction: what greedy decoding writes after a prefix, compared with the whole suffix.

A text that differs by one token is not an exact continuation, and yet discloses the record (Ippolito et al. 2023,
"Preventing verbatim memorization gives a false sense of privacy", who also compare by edit distance). So decoding
continues after the first mismatch. A text is abandoned once no continuation can bring it within ``FARTHEST`` of its
suffix, which for most happens early.
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
#: Decoding stops once the distance must exceed this.
FARTHEST = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class NearMatches:
    """What was written for each text, compared with its suffix; all of shape [texts].

    ``distance`` is the edit distance in tokens divided by the suffix's length, in [0, 1]; above ``FARTHEST`` it is a
    lower bound. ``characters`` is the same in characters of the decoded texts, divided by the longer one's length, and
    1 if ``distance`` exceeds ``FARTHEST``. ``run`` is the longest common run of tokens; for an abandoned text, the
    longest until then. ``but_for_spaces`` marks texts that are equal after removing all white space.
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

    Texts that are ``extracted`` [texts] are known to come out unchanged and are not decoded. ``advance`` is called with
    the number of tokens decided; ``workers`` share the texts. None if transformers cannot generate with the network.
    """

    def compute(some: Sequence[int]) -> torch.Tensor:
        chosen = np.array(some, dtype=np.int64)
        matches = _matches(model, [rows[i] for i in some], suffix, extracted[chosen], decoder, advance)
        if matches is None:
            return torch.full((len(some), 4), -1.0)
        columns = (matches.distance, matches.characters, matches.run, matches.but_for_spaces)
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
            matches = progress.result()
            distance[batch] = matches.distance / suffix
            run[batch] = matches.run
            for i, tokens in zip(batch, matches.tokens, strict=True):
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
    """For each text, distance and longest run in tokens, and the tokens written until it was abandoned."""

    distance: NDArray[np.int64]
    run: NDArray[np.int64]
    tokens: list[NDArray[np.int64]]


class _Progressing:
    """Compares texts with their targets as they are written; ``alive`` are the indices of those not abandoned."""

    def __init__(self, targets: NDArray[np.int64]) -> None:
        self._table = EditDistance(targets)
        self._most = int(FARTHEST * targets.shape[1])
        self._distance = np.zeros(len(targets), dtype=np.int64)
        self._run = np.zeros(len(targets), dtype=np.int64)
        self._written = np.zeros_like(targets)
        self._lengths = np.zeros(len(targets), dtype=np.int64)
        self.alive = np.arange(len(targets))

    def choose(self, logits: torch.Tensor) -> tuple[torch.Tensor, NDArray[np.int64]]:
        """The argmax of each text alive, and which of these, by index, remain alive after it."""
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
        """The results, once every text alive is complete."""
        self._distance[self.alive] = self._table.distance
        tokens = [row[:length] for row, length in zip(self._written, self._lengths.tolist(), strict=True)]
        return _Written(distance=self._distance, run=self._run, tokens=tokens)
