"""A sequence-to-sequence model: every token of the target is scored given the source and the tokens before it.

Texts are tokenized as in ``privctl retrain``, so a target's end-of-text token is scored too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from audits.scores.forward import Batching, batches, enough_memory, token_scores
from audits.scores.rows import DEFAULT_LENGTH, Rows, pad_rows
from audits.scores.table import FIELDS
from audits.scores.tasks import SEQ2SEQ_LM
from privctl.data.records import Record
from privctl.domain.errors import CommandError, InputError
from privctl.domain.progress import Advance, silent
from privctl.models.context import context_of
from privctl.models.language import LanguageModel, pad_of
from privctl.models.pairs import cut_pair, decoder_inputs, decoder_start, tokenise_pairs
from privctl.models.quiet import quiet_transformers
from privctl.models.running import network_errors

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The maximum number of logits held in memory.
_LOGITS = 1 << 26


class PairScorer:
    """Rows are the number of source tokens, then the tokens of the source and of the target."""

    causal = False

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self.start = decoder_start(model.path, model.network)

    def counts(self, rows: Sequence[NDArray[Any]]) -> NDArray[np.int64]:
        """The number of tokens of the target."""
        return np.array([len(row) - 1 - int(row[0]) for row in rows], dtype=np.int64)

    @torch.inference_mode()
    def score(
        self, rows: Sequence[NDArray[Any]], advance: Advance = silent, *, batching: Batching | None = None
    ) -> NDArray[np.float32]:
        """The scores [6, total] of every token of every target."""
        model, batching = self.model, batching or Batching.of(self.model)
        pad, counts = pad_of(model.network, model.tokenizer), self.counts(rows)
        begins = np.cumsum(counts) - counts
        values = np.empty((len(FIELDS), int(counts.sum())), dtype=np.float32)
        lengths = np.array([len(row) - 1 for row in rows], dtype=np.int64)
        tokens = min(batching.tokens, max(32, _LOGITS // model.vocabulary))
        with quiet_transformers(), enough_memory(model):
            for batch in batches(lengths, tokens):
                ids, real = pad_rows([rows[i][1 : 1 + int(rows[i][0])] for i in batch], pad)
                goals, scored = pad_rows([rows[i][1 + int(rows[i][0]) :] for i in batch], pad)
                shifted = decoder_inputs(goals, counts[batch].tolist(), self.start)
                given = {"input_ids": ids, "attention_mask": real, "decoder_input_ids": shifted}
                tensors = {name: torch.from_numpy(array).to(model.device) for name, array in given.items()}
                with network_errors(model.path, model.network):
                    logits = model.network(**tensors, use_cache=False).logits
                flags = torch.from_numpy(scored.astype(np.bool_)).to(model.device)
                targets = torch.from_numpy(goals).to(model.device)[flags]
                indices = np.concatenate([np.arange(begins[i], begins[i] + counts[i]) for i in batch])
                parts = zip(
                    torch.split(logits[flags], batching.positions(model.vocabulary)),
                    torch.split(targets, batching.positions(model.vocabulary)),
                    strict=True,
                )
                values[:, indices] = torch.cat([token_scores(*part) for part in parts], 1).cpu().numpy()
                advance(len(indices))
        return values


class PairSubject:
    """Records are sources with their targets. Raises CommandError for a ``max_length`` that does not fit the model."""

    task = SEQ2SEQ_LM

    def __init__(self, model: LanguageModel, max_length: int | None = None) -> None:
        context = context_of(model.network, model.tokenizer)
        if max_length is not None and max_length < 4:
            raise CommandError(f"--max-length is {max_length}; it must be at least 4 tokens")
        if max_length is not None and context is not None and max_length > context:
            raise CommandError(f"--max-length is {max_length}, but {model.path} sees at most {context} tokens")
        self.model = model
        self.scorer = PairScorer(model)
        self.max_length: int | None = max_length or min(context or DEFAULT_LENGTH, DEFAULT_LENGTH)

    def rows(self, records: Sequence[Record]) -> Rows:
        """See ``AuditedModel``."""
        tokenizer, limit = self.model.tokenizer, self.max_length or 0
        rows, truncated = [], []
        for record, pair in zip(records, tokenise_pairs(tokenizer, [r.pair for r in records]), strict=True):
            highest = max(max(ids, default=0) for ids in pair)
            if highest >= self.model.vocabulary:
                raise InputError(
                    f"{self.model.folder} has a tokenizer that gives id {highest}, but the model knows "
                    f"{self.model.vocabulary} tokens; give the tokenizer the model was trained with"
                )
            source, target = cut_pair(tokenizer, record.pair, pair, limit)
            rows.append(np.array([len(source), *source, *target], dtype=np.int64))
            truncated.append(any(len(ids) > limit for ids in pair))
        return Rows(rows=rows, truncated=np.array(truncated, dtype=np.bool_))

    def describe(self) -> dict[str, Any]:
        """See ``AuditedModel``."""
        return {
            "task": self.task,
            "max_length": self.max_length,
            "scored": "the target's tokens, its end-of-text token among them, given the source",
            "truncation": "keeps the first max_length tokens of source and of target, special ones counted",
        }
