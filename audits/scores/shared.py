"""Rows with a common prefix, such as secrets after the same text: the prefix is run once and its keys and values kept.

The tokens of each row continue from a copy of these. Scores are those of complete rows, up to rounding: for the first
rows the difference is measured, and if it is larger than rounding, complete rows are run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import DynamicCache

from audits.scores.forward import (
    Batching,
    enough_memory,
    in_blocks,
    score_rows,
    token_scores,
    trunk_and_head,
)
from audits.scores.table import FIELDS
from privctl.domain.progress import Advance, silent
from privctl.models.language import LanguageModel
from privctl.models.quiet import quiet_transformers

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: A prefix is kept for at least this many rows, and if it is at least this fraction of each.
_FEWEST, _SHARE = 8, 1 / 3
#: The number of key and value entries copied at once.
CACHE_NUMBERS = 1 << 25
#: The number of rows compared with complete passes, and the tolerance for rounding: relative, and in nats.
_COMPARED, _TOLERANCE = 2, 1e-3
#: Maps the head's input [n, ...] to logits [n, vocabulary].
_Head = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBeginning:
    """Rows (by index) that begin with the same ``length`` ids and have at least one more."""

    length: int
    rows: tuple[int, ...]


@torch.inference_mode()
def score_shared(
    model: LanguageModel,
    rows: Sequence[NDArray[np.int64]],
    *,
    batching: Batching | None = None,
    advance: Advance = silent,
) -> NDArray[np.float32]:
    """The scores [6, tokens] as by ``score_rows``, with common prefixes run only once.

    Raises InputError for a network that is not causal.
    """
    groups = shared_beginnings(rows)
    counts = np.array([len(row) - 1 for row in rows], dtype=np.int64)
    ends = np.cumsum(counts)
    values = np.empty((len(FIELDS), int(counts.sum())), dtype=np.float32)
    left = set(range(len(rows)))
    with quiet_transformers(), enough_memory(model):
        walk = _Continuations.of(model, batching or Batching.of(model)) if groups else None
        for number, group in enumerate(groups):
            scores = None if walk is None else walk.scores([rows[i] for i in group.rows], group.length)
            if scores is None or (number == 0 and not _as_whole(model, rows, group, scores, counts)):
                break
            values[:, _token_places(ends, counts, group.rows)] = scores
            left -= set(group.rows)
            advance(int(counts[list(group.rows)].sum()))
    whole = sorted(left)
    if whole:
        scores, _ = score_rows(model, [rows[i] for i in whole], batching=batching, advance=advance)
        values[:, _token_places(ends, counts, whole)] = scores
    return values


def shared_beginnings(rows: Sequence[NDArray[np.int64]]) -> list[SharedBeginning]:
    """Groups of rows with a common prefix that is worth keeping; a row is in at most one group."""
    keys = [row.tobytes() for row in rows]
    order = sorted(range(len(rows)), key=keys.__getitem__)  # rows with a common prefix become adjacent
    groups: list[SharedBeginning] = []
    members: list[int] = []
    common = 0
    for i in order:
        shared = min(common, _common(rows[members[-1]], rows[i]), len(rows[i]) - 1) if members else len(rows[i]) - 1
        if members and shared < max(1.0, _SHARE * len(rows[i])):
            _close(groups, members, common)
            members, shared = [], len(rows[i]) - 1
        members.append(i)
        common = shared
    _close(groups, members, common)
    return groups


def _close(groups: list[SharedBeginning], members: list[int], common: int) -> None:
    if len(members) >= _FEWEST and common > 0:
        groups.append(SharedBeginning(length=common, rows=tuple(members)))


def _common(a: NDArray[np.int64], b: NDArray[np.int64]) -> int:
    """The length of the common prefix of ``a`` and ``b``."""
    length = min(len(a), len(b))
    differs = a[:length] != b[:length]
    return int(differs.argmax()) if differs.any() else length


def _token_places(ends: NDArray[np.int64], counts: NDArray[np.int64], rows: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([np.arange(ends[i] - counts[i], ends[i]) for i in rows])


def _as_whole(
    model: LanguageModel, rows: Sequence[NDArray[np.int64]], group: SharedBeginning, scores: NDArray[np.float32],
    counts: NDArray[np.int64],
) -> bool:  # fmt: skip
    """Whether the first rows of a group have the same log-probabilities as in complete passes."""
    compared = group.rows[:_COMPARED]
    expected, _ = score_rows(model, [rows[i] for i in compared])
    own_scores = scores[:, : int(counts[list(compared)].sum())]
    lp = FIELDS.index("lp")
    return bool(np.allclose(own_scores[lp], expected[lp], rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True))


def feed(network: Any, ids: torch.Tensor) -> tuple[Any, DynamicCache | None]:
    """The output of ``network`` for ``ids`` [1, length], and its key-value cache; None if it cannot be copied."""
    try:
        out = network(input_ids=ids, past_key_values=DynamicCache(), use_cache=True)
    except (TypeError, ValueError, AttributeError):  # its cache is of another kind
        return network(input_ids=ids, use_cache=False), None
    cache = getattr(out, "past_key_values", None)
    return out, cache if is_copyable(cache, ids.shape[1]) else None


def is_copyable(cache: Any, length: int) -> bool:
    """Whether ``cache`` is plain keys and values of ``length`` tokens; recurrent states cannot be shared."""
    return (
        type(cache) is DynamicCache
        and len(cache.layers) > 0
        and all(
            isinstance(getattr(layer, "keys", None), torch.Tensor)
            and layer.keys.ndim == 4
            and layer.keys.shape[2] == length
            and not layer.is_sliding
            for layer in cache.layers
        )
    )


def size_of(cache: DynamicCache) -> int:
    """The number of key and value entries of one row."""
    return sum(layer.keys[0].numel() + layer.values[0].numel() for layer in cache.layers)


def copies(cache: DynamicCache, count: int) -> DynamicCache:
    """Expand the ``cache`` of one row to ``count`` rows."""
    return DynamicCache(
        [(layer.keys.expand(count, -1, -1, -1), layer.values.expand(count, -1, -1, -1)) for layer in cache.layers]
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Continuations:
    """Scores groups of rows; ``trunk`` and ``head`` are the network's, or the whole network and the identity."""

    model: LanguageModel
    batching: Batching
    trunk: Any
    state: str
    head: _Head

    @classmethod
    def of(cls, model: LanguageModel, batching: Batching) -> _Continuations:
        apart = trunk_and_head(model)
        trunk, head = (model.network, lambda logits: logits) if apart is None else apart
        state = "logits" if apart is None else "last_hidden_state"
        return cls(model=model, batching=batching, trunk=trunk, state=state, head=head)

    def scores(self, rows: Sequence[NDArray[np.int64]], length: int) -> NDArray[np.float32] | None:
        """The scores of ``rows``, which begin with the same ``length`` ids; None if these cannot be cached."""
        before = torch.from_numpy(rows[0][:length].copy()).to(self.model.device)
        out, cache = feed(self.trunk, before[None])
        if cache is None:
            return None
        hidden = getattr(out, self.state)[0]
        beginning = self._measured(hidden[:-1], before[1:])
        first = np.array([row[length] for row in rows], dtype=np.int64)
        distinct, inverse = np.unique(first, return_inverse=True)
        targets = torch.from_numpy(distinct).to(self.model.device)
        firsts = self._measured(hidden[-1:].expand(len(distinct), -1), targets)[:, inverse]
        later = self._later(rows, length, cache)
        parts: list[NDArray[np.float32]] = []
        for i, after in enumerate(later):
            parts += [beginning, firsts[:, i : i + 1], *([] if after is None else [after])]
        return np.concatenate(parts, axis=1)

    def _later(
        self, rows: Sequence[NDArray[np.int64]], length: int, cache: DynamicCache
    ) -> list[NDArray[np.float32] | None]:
        """The scores of each row's ids after index ``length``; None for a row without any."""
        scores: list[NDArray[np.float32] | None] = [None] * len(rows)
        longest_first = sorted((i for i in range(len(rows)) if len(rows[i]) > length + 1), key=lambda i: -len(rows[i]))
        start = 0
        while start < len(longest_first):
            width = len(rows[longest_first[start]]) - length - 1
            indices = longest_first[start : start + self._at_once(cache, width)]
            start += len(indices)
            ids = np.zeros((len(indices), width + 1), dtype=np.int64)
            for row, i in enumerate(indices):
                ids[row, : len(rows[i]) - length] = rows[i][length:]
            counts = np.array([len(rows[i]) - length - 1 for i in indices])
            real = torch.from_numpy(np.arange(width) < counts[:, None]).to(self.model.device)
            tokens = torch.from_numpy(ids).to(self.model.device)
            out = self.trunk(input_ids=tokens[:, :-1], past_key_values=copies(cache, len(indices)), use_cache=True)
            values = self._measured(getattr(out, self.state)[real], tokens[:, 1:][real])
            for i, part in zip(indices, np.split(values, np.cumsum(counts)[:-1], axis=1), strict=True):
                scores[i] = part
        return scores

    def _measured(self, hidden: torch.Tensor, targets: torch.Tensor) -> NDArray[np.float32]:
        """The scores [6, n] of ``targets`` [n] after ``hidden`` [n, ...]."""
        positions = self.batching.positions(self.model.vocabulary)
        chunks = zip(torch.split(hidden, positions), torch.split(targets, positions), strict=True)
        # Scoring overwrites the block, and an expanded one has only one row of memory.
        losses = [in_blocks(token_scores, self.head(states).clone(), goals, self.batching) for states, goals in chunks]
        empty = torch.empty(len(FIELDS), 0)
        scores: NDArray[np.float32] = torch.cat([empty, *(part.cpu() for part in losses)], dim=1).numpy()
        return scores

    def _at_once(self, cache: DynamicCache, width: int) -> int:
        """The number of rows to run together, limited by copies of the cache and, with no separate head, by logits."""
        budget = CACHE_NUMBERS if self.model.device.type == "cpu" else 16 * CACHE_NUMBERS
        most = min(self.batching.tokens // width, budget // size_of(cache))
        if self.state == "logits":
            most = min(most, 4 * self.batching.logits // (width * self.model.vocabulary))
        return max(1, most)
