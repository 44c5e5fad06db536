"""The losses of many continuations of one prefix, which is run once.

The tree of ``canaries.enumerate`` feeds one token at a time, which is efficient if secrets share prefixes. A hundred
random values share almost none, so here all their tokens are fed at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from audits.canaries.enumerate import SecretSpace, losses
from audits.scores.forward import Batching
from audits.scores.shared import CACHE_NUMBERS, copies, feed, size_of
from privctl.models.language import LanguageModel

if TYPE_CHECKING:
    from numpy.typing import NDArray


@torch.inference_mode()
def continuation_losses(
    model: LanguageModel, before: NDArray[np.int64], tokens: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The loss (nats) of each of the distinct rows of ``tokens`` [values, length] after ``before``, [values]."""
    root = torch.as_tensor(before, device=model.device)[None]
    out, cache = feed(model.network, root)
    if cache is None:
        return losses(model, SecretSpace(before=before, tokens=tokens.astype(np.int32)))
    ids = torch.as_tensor(tokens, device=model.device)
    total = torch.log_softmax(out.logits[0, -1].float(), dim=0)[ids[:, 0]].double()
    length = ids.shape[1]
    if length > 1:
        chunk_size = _values_at_once(model, cache, length)
        chunks = zip(torch.split(ids, chunk_size), torch.split(total, chunk_size), strict=True)
        total = torch.cat(
            [first_token_logs + _later_log_probs(model, cache, chunk) for chunk, first_token_logs in chunks]
        )
    losses_of_values: NDArray[np.float64] = -total.cpu().numpy()
    return losses_of_values


def _later_log_probs(model: LanguageModel, cache: Any, ids: torch.Tensor) -> torch.Tensor:
    """The sum of the log-probabilities of all tokens of ``ids`` [values, length] except the first, [values]."""
    kept = copies(cache, len(ids))
    logits: torch.Tensor = model.network(input_ids=ids[:, :-1], past_key_values=kept, use_cache=True).logits
    logits = logits.float()
    target_logits = logits.gather(2, ids[:, 1:, None])[:, :, 0]
    logs: torch.Tensor = target_logits - logits.logsumexp(dim=2)
    return logs.double().sum(dim=1)


def _values_at_once(model: LanguageModel, cache: Any, length: int) -> int:
    """The number of values to run together, limited by the copies of the prefix's cache and by their logits."""
    batching = Batching.of(model)
    budget = CACHE_NUMBERS if model.device.type == "cpu" else 16 * CACHE_NUMBERS
    logits = 4 * batching.logits // ((length - 1) * model.vocabulary)
    return int(max(1, min(batching.tokens // length, budget // size_of(cache), logits)))
