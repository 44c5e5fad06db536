"""The losses of many continuations of one beginning, which is fed once.

The tree of ``canaries.enumerate`` feeds a token at a time, as it must where secrets share their beginnings. A hundred
values picked at random share next to none, so here all their tokens are fed together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import DynamicCache

from audits.canaries.enumerate import HELD, Space, copyable, losses
from audits.scores.forward import Batching
from privctl.models.language import LanguageModel

if TYPE_CHECKING:
    from numpy.typing import NDArray


@torch.inference_mode()
def continuations(model: LanguageModel, before: NDArray[np.int64], tokens: NDArray[np.int64]) -> NDArray[np.float64]:
    """The loss (nats) of each of the distinct rows of ``tokens`` [values, length] after ``before``, [values]."""
    root = torch.as_tensor(before, device=model.device)[None]
    out = model.network(input_ids=root, past_key_values=DynamicCache(), use_cache=True)
    if not copyable(out.past_key_values):
        return losses(model, Space(before=before, tokens=tokens.astype(np.int32)))
    ids = torch.as_tensor(tokens, device=model.device)
    total = torch.log_softmax(out.logits[0, -1].float(), dim=0)[ids[:, 0]].double()
    length = ids.shape[1]
    if length > 1:
        at_once = _at_once(model, out.past_key_values, length)
        parts = zip(torch.split(ids, at_once), torch.split(total, at_once), strict=True)
        total = torch.cat([first + _rest(model, out.past_key_values, part) for part, first in parts])
    found: NDArray[np.float64] = -total.cpu().numpy()
    return found


def _rest(model: LanguageModel, cache: Any, ids: torch.Tensor) -> torch.Tensor:
    """Log-probabilities of all tokens of ``ids`` [values, length] but the first, summed, [values]."""
    count = len(ids)
    kept = DynamicCache([
        (layer.keys.expand(count, -1, -1, -1), layer.values.expand(count, -1, -1, -1)) for layer in cache.layers
    ])  # fmt: skip
    logits: torch.Tensor = model.network(input_ids=ids[:, :-1], past_key_values=kept, use_cache=True).logits
    logits = logits.float()
    own = logits.gather(2, ids[:, 1:, None])[:, :, 0]
    logs: torch.Tensor = own - logits.logsumexp(dim=2)
    return logs.double().sum(dim=1)


def _at_once(model: LanguageModel, cache: Any, length: int) -> int:
    """How many values to feed together, by what their copies of the beginning hold, and by their logits."""
    beginning = sum(layer.keys[0].numel() + layer.values[0].numel() for layer in cache.layers)
    batching = Batching.on(model.device)
    held = HELD if model.device.type == "cpu" else 16 * HELD
    logits = 4 * batching.logits // ((length - 1) * model.vocabulary)
    return int(max(1, min(batching.tokens // length, held // beginning, logits)))
