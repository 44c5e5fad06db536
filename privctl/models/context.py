"""The context length of a network."""

from __future__ import annotations

from typing import Any

import torch

#: Names of the context length in configurations: the usual one, that of MPT and DBRX, and that of Whisper's decoder.
_LENGTHS = ("max_position_embeddings", "max_seq_len", "max_target_positions")
#: A tokenizer without a limit states a number such as 10^30.
_NO_LIMIT = 10**9


def context_of(network: Any, tokenizer: Any) -> int | None:
    """The most tokens that the model reads; None if no limit is known.

    It is the smallest limit of its configuration, its position embeddings and its ``tokenizer``, which may be None.
    """
    limits = [getattr(network.config, name, None) for name in _LENGTHS]
    limits.append(None if tokenizer is None else tokenizer.model_max_length)
    # ProphetNet's prediction stream uses one more position.
    ahead = 1 if getattr(network.config, "ngram", None) else 0
    for name, module in network.named_modules():
        # RoBERTa and related models count positions from padding_idx + 1.
        first, table = getattr(module, "padding_idx", None), getattr(module, "weight", None)
        if name.endswith("position_embeddings") and first is not None and isinstance(table, torch.Tensor):
            limits.append(len(table) - first - 1 - ahead)
    stated = [limit for limit in limits if isinstance(limit, int) and 0 < limit < _NO_LIMIT]
    return min(stated, default=None)
