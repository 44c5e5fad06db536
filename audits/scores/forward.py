"""One forward pass over every row, batched by length, that serves all attacks.

The network's trunk runs on complete batches; then only the unpadded positions are projected to the vocabulary, a few
hundred at a time and in float32, so that logits of shape [batch, length, vocabulary] are never materialized. Rows are
padded on the right, which a causal model cannot see, so a token's score depends on its batch only by rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from audits.scores.table import FIELDS
from privctl.domain.errors import FileSystemError, InputError
from privctl.domain.progress import Advance, silent
from privctl.models.language import LanguageModel
from privctl.models.quiet import quiet_transformers
from privctl.models.running import network_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: (logits [n, vocabulary], targets [n]) -> values [fields, n] in float32; the logits may be overwritten.
Measure = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

#: For each model, what ``trunk_and_head`` found. A network may be trained and made into another model.
_apart: WeakKeyDictionary[LanguageModel, tuple[Any, Any] | None] = WeakKeyDictionary()

#: See ``padded_width``.
_ALIGNED = 16

#: The maximum number of logits in memory for a network that can only be run as a whole.
_WHOLE_LOGITS = 1 << 26


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Performance settings, which affect scores only by rounding.

    A batch has at most ``tokens`` positions, including padding. At most ``logits`` numbers (positions times vocabulary,
    but at least 32 positions) exist at once, and scores are computed from ``block`` of them at a time (at least one
    position): few enough to stay in a CPU core's cache, as everything except the head's matrix product is memory-bound.
    """

    tokens: int = 1024
    logits: int = 1 << 22
    block: int = 1 << 16

    @classmethod
    def of(cls, model: LanguageModel) -> Batching:
        """The settings for the device and the format of ``model``; products in half precision need more rows."""
        if model.device.type != "cpu":
            return cls(tokens=1 << 15, logits=1 << 27, block=1 << 27)
        return cls() if model.network.dtype == torch.float32 else cls(tokens=2048)

    def positions(self, vocabulary: int) -> int:
        """The number of positions projected at once."""
        return max(32, self.logits // vocabulary)


def score_rows(
    model: LanguageModel,
    rows: Sequence[NDArray[np.int64]],
    *,
    batching: Batching | None = None,
    advance: Advance = silent,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Scores [6, tokens] of every token after each row's first, in the rows' order, and the offsets [rows + 1].

    Each row has at least 2 ids. Raises InputError for a network that is not causal.
    """
    return measure_rows(model, rows, token_scores, len(FIELDS), batching=batching, advance=advance)


@torch.inference_mode()
def measure_rows(
    model: LanguageModel,
    rows: Sequence[NDArray[np.int64]],
    measure: Measure,
    fields: int,
    *,
    last: int | None = None,
    batching: Batching | None = None,
    advance: Advance = silent,
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """The values of ``measure``, [fields, tokens], and the offsets [rows + 1]; see ``score_rows``.

    With ``last``, only that many tokens at the end of each row are measured and projected to the vocabulary.
    """
    batching = batching or Batching.of(model)
    positions = batching.positions(model.vocabulary)
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    counts = lengths - 1 if last is None else np.minimum(lengths - 1, last)
    offsets = np.concatenate([[0], np.cumsum(counts)])
    values = np.empty((fields, int(offsets[-1])), dtype=np.float32)
    with quiet_transformers(), enough_memory(model):
        logits_of = _projection(model)
        for batch in batches(lengths, batching.tokens):
            width = padded_width(model, int(lengths[batch[0]]))
            ids, real = _pad([rows[i] for i in batch], counts[batch], width)
            ids, real = ids.to(model.device), real.to(model.device)
            targets = ids[:, 1:][real]
            done = 0
            chunks = []
            for logits in logits_of(ids, real, positions):
                chunks.append(in_blocks(measure, logits, targets[done : done + len(logits)], batching))
                done += len(logits)
            indices = np.concatenate([np.arange(offsets[i], offsets[i + 1]) for i in batch])
            values[:, indices] = torch.cat(chunks, dim=1).cpu().numpy()
            advance(done)
    return values, offsets


def in_blocks(measure: Measure, logits: torch.Tensor, targets: torch.Tensor, batching: Batching) -> torch.Tensor:
    """The values of ``measure`` for all of ``logits``, computed block by block."""
    rows = max(1, batching.block // logits.shape[1])
    blocks = zip(torch.split(logits, rows), torch.split(targets, rows), strict=True)
    return torch.cat([measure(*block) for block in blocks], dim=1)


def token_scores(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The scores [6, n], rows as ``FIELDS``, of ``targets`` [n] under ``logits`` [n, vocabulary], in float32.

    ``logits`` is used as working memory and overwritten if it is float32. The variance is computed around the mean: a
    difference of means of squares suffers from cancellation in float32.

    Probabilities (.7, .2, .1) and target 0 give lp -0.356675, mu -0.801819, var 0.494382.
    """
    z = logits.to(torch.float32)
    index = targets[:, None]
    target_logit = z.gather(1, index)
    best_other = z.scatter_(1, index, -math.inf).amax(dim=1, keepdim=True)
    z.scatter_(1, index, target_logit)
    weight = torch.empty_like(z)
    rank = torch.gt(z, target_logit, out=weight).sum(dim=1)  # summing floats is faster than summing bools
    top = torch.maximum(target_logit, best_other)
    # Masked-out vocabulary has logits of -inf; a floor far below any real one keeps 0 * inf out of the sums.
    y = z.sub_(top).clamp_(min=-1e15)
    power = torch.exp(y, out=weight)  # dividing the sums is faster than normalizing all
    total = power.sum(dim=1, keepdim=True)
    log_total = total.log()
    mean = torch.linalg.vecdot(power, y)[:, None] / total
    deviation = y.sub_(mean)
    var = torch.linalg.vecdot(power.mul_(deviation), deviation) / total[:, 0]
    lp, mu, lse = target_logit - top - log_total, mean - log_total, top + log_total
    return torch.stack([lp[:, 0], mu[:, 0], var, rank, (target_logit - best_other)[:, 0], lse[:, 0]])


def batches(lengths: NDArray[np.int64], tokens: int) -> Iterator[list[int]]:
    """Indices of rows to run together, longest first: at most ``tokens`` positions per batch, unless one row has more.

    A batch is closed early rather than padded by more than a tenth, once it has reached an eighth of ``tokens``.
    """
    order = np.argsort(-lengths, kind="stable").tolist()
    batch: list[int] = []
    width = real = 0
    for i in order:
        length = int(lengths[i])
        size = (len(batch) + 1) * width
        if batch and (size > tokens or (8 * size > tokens and size > 1.1 * (real + length))):
            yield batch
            batch, real = [], 0
        width = width if batch else length
        batch.append(i)
        real += length
    if batch:
        yield batch


@contextmanager
def enough_memory(model: LanguageModel) -> Iterator[None]:
    """Turn running out of device memory into a one-sentence error."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise FileSystemError(
            f"{model.device} has too little memory to score with {model.path}; give a smaller --max-length, or "
            "--device cpu"
        ) from None


def padded_width(model: LanguageModel, longest: int) -> int:
    """The width of a batch whose longest row has ``longest`` ids.

    In half precision on a CPU, attention takes up to twice as long where the width is no multiple of 16. The width is
    rounded up to one if that adds at most a sixteenth and stays within the context.
    """
    if model.device.type != "cpu" or model.network.dtype == torch.float32:
        return longest
    wider = -(-longest // _ALIGNED) * _ALIGNED
    fits = wider <= (model.context or wider) and _ALIGNED * (wider - longest) <= longest
    return wider if fits else longest


def _pad(rows: Sequence[NDArray[np.int64]], counts: NDArray[np.int64], width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids [rows, width], padded on the right, and flags [rows, width - 1] of the positions that are scored.

    These are the positions that predict each row's last ``counts`` [rows] tokens.
    """
    ids = np.zeros((len(rows), width), dtype=np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)] = row
    ends = np.array([len(row) - 1 for row in rows])[:, None]
    position = np.arange(width - 1)[None, :]
    real = (position < ends) & (position >= ends - counts[:, None])
    return torch.from_numpy(ids), torch.from_numpy(real)


#: (ids [rows, width], real [rows, width - 1], positions at once) -> logits [<= positions, vocabulary] of the real ones.
_Projection = Callable[[torch.Tensor, torch.Tensor, int], Iterator[torch.Tensor]]


def _projection(model: LanguageModel) -> _Projection:
    """A function that computes logits: from trunk and head if these give the network's own, otherwise as a whole."""
    apart = trunk_and_head(model)
    if apart is None:
        return lambda *batch: _whole_logits(model.network, *batch)
    return lambda *batch: _headed_logits(*apart, *batch)


def trunk_and_head(model: LanguageModel) -> tuple[Any, Any] | None:
    """The trunk and head of a network that is exactly their composition; None for any other.

    Determined by running both, once for each model, which also detects networks that scale or cap their logits after
    the head. Raises InputError for a network that is not causal.
    """
    if model not in _apart:
        _apart[model] = _found_apart(model)
    return _apart[model]


def _found_apart(model: LanguageModel) -> tuple[Any, Any] | None:
    network = model.network
    ids = torch.arange(4, device=model.device).repeat(2, 1) % model.vocabulary
    ids[1, -1] = (ids[1, -1] + 1) % model.vocabulary
    with network_errors(model.path, model.network):
        logits = network(input_ids=ids, use_cache=False).logits
    ahead = logits[1, :-1] - logits[0, :-1]
    if ahead.abs().max() > 1e-3 * (1e-6 + logits.abs().max()):
        raise InputError(
            f"{model.path} is not a causal language model: what it says of a token depends on later ones; "
            "give one that predicts the next token"
        )
    head, trunk = network.get_output_embeddings(), network.base_model
    if head is None or trunk is network:
        return None
    hidden = _hidden(trunk, ids)
    return (trunk, head) if hidden is not None and torch.equal(head(hidden), logits) else None


def _hidden(trunk: Any, ids: torch.Tensor) -> torch.Tensor | None:
    state = getattr(trunk(input_ids=ids, use_cache=False), "last_hidden_state", None)
    return state if isinstance(state, torch.Tensor) else None


def _headed_logits(
    trunk: Any, head: Any, ids: torch.Tensor, real: torch.Tensor, positions: int
) -> Iterator[torch.Tensor]:
    hidden = _hidden(trunk, ids)
    assert hidden is not None  # trunk_and_head checked this
    for chunk in torch.split(hidden[:, :-1][real], positions):
        yield head(chunk)


def _whole_logits(network: Any, ids: torch.Tensor, real: torch.Tensor, positions: int) -> Iterator[torch.Tensor]:
    """Logits of a few rows at a time, limited by memory."""
    at_once = max(1, _WHOLE_LOGITS // (ids.shape[1] * network.config.get_text_config().vocab_size))
    for some_ids, some_real in zip(torch.split(ids, at_once), torch.split(real, at_once), strict=True):
        logits = network(input_ids=some_ids, use_cache=False).logits[:, :-1][some_real]
        yield from torch.split(logits, positions)
