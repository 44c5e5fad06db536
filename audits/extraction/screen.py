"""Greedy extraction at the least cost: prefixes first, and only what still matches goes on.

Most texts part from greedy decoding within a few tokens. So each batch is run up to the end of its prefixes, which
already decides the first suffix token; the texts that still match go on from the attention's cache, a few tokens and
then all the rest at once, by teacher forcing. Logits are computed for suffix positions only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from audits.extraction.greedy import margin_scores, near
from audits.scores.forward import Batching, batches, enough_memory, halves, in_blocks, measure_rows
from privctl.domain.progress import Advance, silent
from privctl.models.language import LanguageModel, hushed

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Suffix tokens that are looked at before the rest: many texts match one token by chance, few match these.
_TRIAL = 8
#: Times the tokens of other batches: few texts of one go on after their prefix, and few rows are slow to compute.
_WIDER = 2


@torch.inference_mode()
def screen(
    model: LanguageModel,
    rows: Sequence[NDArray[np.int64]],
    suffix: int,
    *,
    batching: Batching | None = None,
    advance: Advance = silent,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Margin and own logit [rows, suffix] of each row's last ``suffix`` tokens, as ``greedy.decide`` takes them.

    After a token that certainly is not the argmax, the margins are -inf and the logits 0: nothing was computed there.
    ``advance`` is called with the suffix tokens that were decided.
    """
    batching = batching or Batching.on(model.device)
    with hushed(), enough_memory(model):
        apart = halves(model)
        if apart is None or not _selectable(apart[0], model, rows[0]):
            values, _ = measure_rows(model, rows, margin_scores, 2, last=suffix, batching=batching, advance=advance)
            return values[0].reshape(-1, suffix), values[1].reshape(-1, suffix)
        margin = np.full((len(rows), suffix), -np.inf, dtype=np.float32)
        own = np.zeros_like(margin)
        for some in _same_length(rows, _WIDER * batching.tokens):
            ids = torch.from_numpy(np.stack([rows[i] for i in some])).to(model.device)
            found = _staged(model, apart, ids, suffix, batching)
            margin[some], own[some] = found.cpu().numpy()
            advance(len(some) * suffix)
    return margin, own


def _staged(
    model: LanguageModel, apart: tuple[Any, Any], ids: torch.Tensor, suffix: int, batching: Batching
) -> torch.Tensor:
    """Margin and own logit [2, rows, suffix] of ``ids`` [rows, length]."""
    trunk, head = apart
    positions = batching.positions(model.vocabulary)
    rows, length = ids.shape
    found = torch.zeros(2, rows, suffix, device=ids.device)
    found[0] = -torch.inf
    alive = torch.arange(rows, device=ids.device)
    cache = None
    start = 0
    for stop in sorted({length - suffix, length - suffix + min(_TRIAL, suffix) - 1, length - 1}):
        state = trunk(input_ids=ids[alive, start:stop], past_key_values=cache, use_cache=True)
        cache = state.past_key_values
        first = max(start, length - suffix - 1)  # the position that predicts the first suffix token
        hidden = state.last_hidden_state[:, first - stop :].flatten(0, 1)
        targets = ids[alive, first + 1 : stop + 1].flatten()
        chunks = zip(torch.split(hidden, positions), torch.split(targets, positions), strict=True)
        parts = [in_blocks(margin_scores, head(each), wanted, batching) for each, wanted in chunks]
        values = torch.cat(parts, dim=1).view(2, len(alive), -1)
        place = first + 1 - (length - suffix)
        found[:, alive, place : place + values.shape[2]] = values
        margin, own = values.cpu().numpy()
        left = torch.from_numpy(np.flatnonzero(~(margin < -near(own, model.dtype)).any(axis=1))).to(ids.device)
        if not len(left):
            break
        if len(left) < len(alive):
            alive = alive[left]
            cache.batch_select_indices(left)
        start = stop
    return found


def _same_length(rows: Sequence[NDArray[np.int64]], tokens: int) -> Iterator[list[int]]:
    """Batches as of scoring, each of rows that are equally long: the cache knows no padding."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    for batch in batches(lengths, tokens):
        for length in np.unique(lengths[batch]):
            yield [i for i in batch if lengths[i] == length]


def _selectable(trunk: Any, model: LanguageModel, row: NDArray[np.int64]) -> bool:
    """Whether the trunk keeps nothing but keys and values, of which the texts that go on can be taken out."""
    state = trunk(input_ids=torch.from_numpy(row[None, :2]).to(model.device), use_cache=True)
    layers = getattr(getattr(state, "past_key_values", None), "layers", None) or [None]
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
