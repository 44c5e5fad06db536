"""A masked language model: every token is scored once, while masked together with a seventh of the text.

The mean over a text's tokens approximates its pseudo-log-likelihood (Salazar et al. 2020, arXiv 1910.14659) with seven
passes per text instead of one per token, masking about the 15 % at once that such models are trained with. Which tokens
are masked together depends only on their positions, so the partition is the same for every record and model, and scores
are deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from audits.scores.forward import Batching, batches, enough_memory, token_scores
from audits.scores.rows import Rows, SpecialTokens, frame_of, framed_limit, pad_rows
from audits.scores.table import FIELDS
from audits.scores.tasks import MASKED_LM
from privctl.data.records import Record
from privctl.domain.errors import InputError
from privctl.domain.progress import Advance, silent
from privctl.models.language import LanguageModel, pad_of
from privctl.models.quiet import quiet_transformers
from privctl.models.running import network_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of passes over a text.
PASSES = 7


def pass_of_tokens(tokens: int) -> NDArray[np.int64]:
    """The pass in which each of ``tokens`` tokens is masked; each pass masks one of every block of seven."""
    blocks = [np.random.default_rng(block).permutation(PASSES) for block in range(-(-tokens // PASSES))]
    return np.concatenate([*blocks, np.zeros(0, dtype=np.int64)])[:tokens].astype(np.int64)


class MaskedScorer:
    """Rows are token ids framed by the tokenizer's special tokens, which are never masked or scored."""

    causal = False

    def __init__(self, model: LanguageModel, frame: SpecialTokens) -> None:
        self.model = model
        self.frame = frame

    def counts(self, rows: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
        """The number of tokens of the text."""
        return np.array([len(row) - self.frame.size for row in rows], dtype=np.int64)

    @torch.inference_mode()
    def score(
        self, rows: Sequence[NDArray[Any]], advance: Advance = silent, *, batching: Batching | None = None
    ) -> NDArray[np.float32]:
        """The scores [6, total] of every token of every text."""
        model, batching = self.model, batching or Batching.of(self.model)
        mask, pad = model.tokenizer.mask_token_id, pad_of(model.network, model.tokenizer)
        counts = self.counts(rows)
        begins = np.cumsum(counts) - counts
        hidden = {count: pass_of_tokens(count) for count in set(counts.tolist())}
        jobs = [(i, number) for i, count in enumerate(counts.tolist()) for number in np.unique(hidden[count])]
        values = np.empty((len(FIELDS), int(counts.sum())), dtype=np.float32)
        lengths = np.array([len(rows[i]) for i, _ in jobs], dtype=np.int64)
        # only masked positions, about one in seven, are projected to the vocabulary
        tokens = min(batching.tokens, PASSES * batching.positions(model.vocabulary))
        with quiet_transformers(), enough_memory(model):
            logits_at = _projection(model, mask, pad)
            for batch in batches(lengths, tokens):
                ids, real = pad_rows([rows[jobs[j][0]] for j in batch], pad)
                hidden_now = np.zeros(ids.shape, dtype=np.bool_)
                places = []
                for row, (i, number) in enumerate(jobs[j] for j in batch):
                    where = np.flatnonzero(hidden[int(counts[i])] == number)
                    hidden_now[row, len(self.frame.front) + where] = True
                    places.append(begins[i] + where)
                targets = torch.from_numpy(ids[hidden_now]).to(model.device)
                ids[hidden_now] = mask
                tensors = (torch.from_numpy(array).to(model.device) for array in (ids, real, hidden_now))
                values[:, np.concatenate(places)] = token_scores(logits_at(*tensors), targets).cpu().numpy()
                advance(len(targets))
        return values


class MaskedSubject:
    """Records are texts. Raises CommandError for an invalid ``max_length``, InputError without a mask token."""

    task = MASKED_LM

    def __init__(self, model: LanguageModel, max_length: int | None = None) -> None:
        if model.tokenizer.mask_token_id is None:
            raise InputError(f"{model.path} has a tokenizer without a mask token; give the one the model was made with")
        frame = frame_of(model.tokenizer)
        self.model = model
        self.scorer = MaskedScorer(model, frame)
        self.max_length: int | None = framed_limit(model, frame, max_length)

    def rows(self, records: Sequence[Record]) -> Rows:
        """See ``AuditedModel``."""
        return self.scorer.frame.encode(self.model, [record.text for record in records], self.max_length or 0)

    def describe(self) -> dict[str, Any]:
        """See ``AuditedModel``."""
        return {
            "task": self.task,
            "max_length": self.max_length,
            "hidden": f"every token once, in {PASSES} passes that depend on positions alone",
            "truncation": "keeps the first max_length tokens, special ones counted",
        }


#: (ids, attention mask, masked), each [rows, width] -> logits [masked, vocabulary].
_Projection = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _projection(model: LanguageModel, mask: int, pad: int) -> _Projection:
    """A function that computes logits: at masked positions only if that gives the same result, otherwise at all.

    Determined by running both, as heads differ in what they do besides the projection.
    """
    network = model.network

    def project_all(ids: torch.Tensor, real: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = network(input_ids=ids, attention_mask=real).logits
        if logits.shape[1] == getattr(network.config, "max_position_embeddings", None):
            logits = logits[:, : ids.shape[1]]  # Perceiver's decoder pads to all positions
        return logits[masked]

    def project_masked(ids: torch.Tensor, real: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
        handle = network.get_output_embeddings().register_forward_pre_hook(lambda _, arguments: (arguments[0][masked],))
        try:
            logits: torch.Tensor = network(input_ids=ids, attention_mask=real).logits
        finally:
            handle.remove()
        return logits

    ids = torch.tensor([[mask, mask, mask], [mask, mask, pad]], device=model.device)
    real = torch.tensor([[1, 1, 1], [1, 1, 0]], device=model.device)
    masked = torch.tensor([[False, True, True], [True, False, False]], device=model.device)
    with network_errors(model.path, model.network):
        expected = project_all(ids, real, masked)
    if network.get_output_embeddings() is None:
        return project_all
    try:
        logits = project_masked(ids, real, masked)
    except (RuntimeError, IndexError, TypeError, ValueError):
        return project_all
    rounding = 4 * torch.finfo(logits.dtype).eps
    same = logits.shape == expected.shape and torch.allclose(
        logits, expected, rtol=max(1e-3, rounding), atol=max(1e-4, rounding)
    )
    return project_masked if same else project_all
