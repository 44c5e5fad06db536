"""Greedy extraction, decided by teacher forcing: would greedy decoding produce exactly these tokens?

Greedy decoding from a prefix produces the suffix if and only if each of its tokens is the argmax given the true tokens
before it (by induction: as long as all matched, the decoder has seen the same tokens). So one pass over the text
decides, instead of one step per token. This is plain argmax: no repetition penalty, suppressed tokens or other settings
of a model's generation configuration; among equal logits, the lowest id wins.

Rounding may decide the order of nearly equal logits, so a text that depends on such a tie is rerun alone in float32.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from audits.scores.forward import enough_memory
from privctl.models.language import LanguageModel
from privctl.models.quiet import quiet_transformers
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Margins within float32 rounding: across batches, and for a text run alone. The latter is relative to the logit if
#: that exceeds 1.
_NEAR, _ALONE = 1e-3, 1e-5
#: The same for formats with less precision, relative to the largest logit of the text: what is rounded are all numbers
#: inside the network, so small logits are as far off as large ones. A small Llama's margins were off by up to 2^-5.4
#: and 2^-8.4 of it.
_COARSE = {"bfloat16": 2.0**-4, "float16": 2.0**-7}


#: (model, row, suffix) -> the logits [suffix, vocabulary] of the row's last tokens.
Logits = Callable[[LanguageModel, "NDArray[np.int64]", int], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyMatches:
    """For each text, the number ``matched`` [texts] of suffix tokens before the first mismatch, and whether all match.

    ``undecided`` marks texts whose verdict still depends on a margin within rounding; ``extracted`` is then the result
    of the last run. ``rerun`` counts the texts that were run alone.
    """

    matched: NDArray[np.int64]
    extracted: NDArray[np.bool_]
    undecided: NDArray[np.bool_]
    rerun: int


def rounding_margin(margin: NDArray[Any], target_logit: NDArray[Any], dtype: str) -> NDArray[Any]:
    """The margin [..., 1] below which rounding in ``dtype`` may decide, by the measured ones of a text [..., suffix].

    ``margin`` and ``target_logit`` [..., suffix] are as ``margin_scores`` gives them.
    """
    largest = np.maximum(np.abs(target_logit), np.abs(target_logit - margin)).max(axis=-1, keepdims=True)
    return np.asarray(np.maximum(_NEAR, _COARSE.get(dtype, _ALONE) * largest))


def margin_scores(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The margin over the best other logit, and the logit, [2, n], of ``targets`` [n] under ``logits`` [n, vocabulary].

    In float32; overwrites ``logits`` if these are float32.
    """
    z = logits.to(torch.float32)
    index = targets[:, None]
    target_logit = z.gather(1, index)
    best_other = z.scatter_(1, index, -torch.inf).amax(dim=1)
    return torch.stack([target_logit[:, 0] - best_other, target_logit[:, 0]])


def decide(
    model: LanguageModel,
    rows: Sequence[NDArray[np.int64]],
    margin: NDArray[Any],
    target_logit: NDArray[Any],
    workers: Workers = ALONE,
    logits: Logits | None = None,
) -> GreedyMatches:
    """The verdict on each of ``rows``, given its measured ``margin`` and ``target_logit`` [texts, suffix].

    Values after the first certain mismatch are ignored. ``workers`` share the texts that must be rerun; ``logits``
    computes their logits if the rows are not plain texts of a causal model.
    """
    close = rounding_margin(margin, target_logit, model.dtype)
    matched = first_true(margin < -close)
    ahead = np.arange(margin.shape[1]) < matched[:, None]
    doubtful = np.flatnonzero((ahead & (np.abs(margin) <= close)).any(axis=1))
    undecided = np.zeros(len(rows), dtype=np.bool_)
    if len(doubtful):
        with quiet_transformers(), enough_memory(model), in_float32(model.network):

            def verdicts(some: Sequence[int]) -> torch.Tensor:
                decided = [_decide_alone(model, rows[i], margin.shape[1], logits or text_logits) for i in some]
                return torch.tensor(decided, dtype=torch.int64)

            table = workers.spread_rows(doubtful.tolist(), verdicts, 2, torch.int64).numpy()
            matched[doubtful], undecided[doubtful] = table[:, 0], table[:, 1] > 0
    return GreedyMatches(
        matched=matched, extracted=matched == margin.shape[1], undecided=undecided, rerun=len(doubtful)
    )


def first_true(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Index [rows] of the first True in each row of ``flags`` [rows, n]; n where there is none."""
    return np.asarray(np.where(flags.any(axis=1), flags.argmax(axis=1), flags.shape[1]), dtype=np.int64)


def text_logits(model: LanguageModel, row: NDArray[np.int64], suffix: int) -> torch.Tensor:
    """The logits [suffix, vocabulary] for the last tokens of a text, each given the true tokens before it."""
    ids = torch.from_numpy(row).to(model.device)
    logits: torch.Tensor = model.network(input_ids=ids[None, :], use_cache=False).logits[0, -suffix - 1 : -1]
    return logits


@torch.inference_mode()
def _decide_alone(model: LanguageModel, row: NDArray[np.int64], suffix: int, logits_of: Logits) -> tuple[int, bool]:
    """The number of matched tokens, and whether the verdict is left to rounding.

    That is so if some margin is tiny but not 0 and no token clearly fails. A margin of exactly 0 is a tie, which argmax
    decides.
    """
    logits = logits_of(model, row, suffix).float()
    targets = torch.from_numpy(row[-suffix:].copy()).to(model.device)
    missed = (logits.argmax(dim=1) != targets).cpu().numpy()
    margin, target_logit = margin_scores(logits, targets).cpu().numpy()
    within = _ALONE * np.maximum(1.0, np.abs(target_logit))
    tiny = (margin != 0) & (np.abs(margin) <= within)
    lost = missed & ~tiny
    return int(first_true(missed[None, :])[0]), bool(tiny.any() and not lost.any())


@contextmanager
def in_float32(network: Any) -> Iterator[None]:
    """Convert the network's weights to float32 for the block, then restore the original tensors."""
    tensors = itertools.chain(network.parameters(), network.buffers())
    originals = [
        (tensor, tensor.data) for tensor in tensors if tensor.is_floating_point() and tensor.dtype != torch.float32
    ]
    for tensor, data in originals:
        tensor.data = data.float()
    try:
        yield
    finally:
        for tensor, data in originals:
            tensor.data = data
