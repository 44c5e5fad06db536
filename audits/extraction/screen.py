"""Fast greedy extraction: run the prefixes first, and continue only texts that still match.

Most texts differ from greedy decoding within a few tokens. So each batch is run up to the end of its prefixes, which
already decides the first suffix token. Texts that still match continue from the key-value cache, first by a few tokens
and then by the rest at once, with teacher forcing. Logits are computed for suffix positions only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from audits.extraction.greedy import margin_scores, rounding_margin
from audits.scores.forward import Batching, batches, enough_memory, in_blocks, measure_rows, trunk_and_head
from privctl.domain.progress import Advance, silent
from privctl.models.language import LanguageModel
from privctl.models.quiet import quiet_transformers

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of suffix tokens tested before the rest: many texts match one token by chance, few match this many.
_TRIAL = 8
#: Batch size relative to other passes: few texts continue after their prefix, and small batches are slow.
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
    """Margin and target logit [rows, suffix] of each row's last ``suffix`` tokens, as ``greedy.decide`` takes them.

    After a token that is certainly not the argmax, the margins are -inf and the logits 0: nothing was computed there.
    ``advance`` is called with the number of suffix tokens decided.
    """
    batching = batching or Batching.of(model)
    with quiet_transformers(), enough_memory(model):
        network_halves = trunk_and_head(model)
        if network_halves is None or not _is_selectable(network_halves[0], model, rows[0]):
            values, _ = measure_rows(model, rows, margin_scores, 2, last=suffix, batching=batching, advance=advance)
            return values[0].reshape(-1, suffix), values[1].reshape(-1, suffix)
        margin = np.full((len(rows), suffix), -np.inf, dtype=np.float32)
        target_logit = np.zeros_like(margin)
        for batch in _same_length(rows, _WIDER * batching.tokens):
            ids = torch.from_numpy(np.stack([rows[i] for i in batch])).to(model.device)
            scores = _score_in_stages(model, network_halves, ids, suffix, batching)
            margin[batch], target_logit[batch] = scores.cpu().numpy()
            advance(len(batch) * suffix)
    return margin, target_logit


def _score_in_stages(
    model: LanguageModel, network_halves: tuple[Any, Any], ids: torch.Tensor, suffix: int, batching: Batching
) -> torch.Tensor:
    """Margin and target logit [2, rows, suffix] of ``ids`` [rows, length]."""
    trunk, head = network_halves
    positions = batching.positions(model.vocabulary)
    rows, length = ids.shape
    scores = torch.zeros(2, rows, suffix, device=ids.device)
    scores[0] = -torch.inf
    alive = torch.arange(rows, device=ids.device)
    cache = None
    start = 0
    for stop in sorted({length - suffix, length - suffix + min(_TRIAL, suffix) - 1, length - 1}):
        state = trunk(input_ids=ids[alive, start:stop], past_key_values=cache, use_cache=True)
        cache = state.past_key_values
        first_position = max(start, length - suffix - 1)  # the position that predicts the first suffix token
        hidden = state.last_hidden_state[:, first_position - stop :].flatten(0, 1)
        targets = ids[alive, first_position + 1 : stop + 1].flatten()
        chunks = zip(torch.split(hidden, positions), torch.split(targets, positions), strict=True)
        blocks = [in_blocks(margin_scores, head(states), expected, batching) for states, expected in chunks]
        values = torch.cat(blocks, dim=1).view(2, len(alive), -1)
        place = first_position + 1 - (length - suffix)
        scores[:, alive, place : place + values.shape[2]] = values
        margin, target_logit = values.cpu().numpy()
        still_matching = torch.from_numpy(
            np.flatnonzero(~(margin < -rounding_margin(margin, target_logit, model.dtype)).any(axis=1))
        ).to(ids.device)
        if not len(still_matching):
            break
        if len(still_matching) < len(alive):
            alive = alive[still_matching]
            cache.batch_select_indices(still_matching)
        start = stop
    return scores


def _same_length(rows: Sequence[NDArray[np.int64]], tokens: int) -> Iterator[list[int]]:
    """The batches used for scoring, split by row length: the cache does not support padding."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    for batch in batches(lengths, tokens):
        for length in np.unique(lengths[batch]):
            yield [i for i in batch if lengths[i] == length]


def _is_selectable(trunk: Any, model: LanguageModel, row: NDArray[np.int64]) -> bool:
    """Whether the trunk caches only keys and values, from which the texts that continue can be selected."""
    state = trunk(input_ids=torch.from_numpy(row[None, :2]).to(model.device), use_cache=True)
    layers = getattr(getattr(state, "past_key_values", None), "layers", None) or [None]
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
