"""Secrets as tokens in context, and how a model is queried for them.

A causal model reads the tokens before a value, run once for all candidates. A masked model reads both sides, and all
tokens of the value are masked together, so that one pass gives the losses of every candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from audits.canaries.completion import NEAR_TIE, Completion
from audits.canaries.rows import locate_secrets
from audits.extraction.greedy import decide
from audits.scores.causal import CausalSubject
from audits.scores.forward import enough_memory, token_scores
from audits.scores.masked import MaskedSubject
from audits.scores.rows import begins_with_bos
from audits.scores.scorer import RowScores
from audits.scores.subject import AuditedModel
from audits.scores.table import FIELDS
from audits.secrets.continuations import continuation_losses
from audits.secrets.targets import SecretPassage
from privctl.domain.errors import CommandError
from privctl.models.language import LanguageModel
from privctl.models.quiet import quiet_transformers
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The number of characters after a value that are included because they may change its tokenization.
_AFTER = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSpan:
    """The ``tokens`` of a value, those ``before`` it and, for a masked model, ``after`` it, with special tokens."""

    before: NDArray[np.int64]
    tokens: NDArray[np.int64]
    after: NDArray[np.int64]

    @property
    def kind(self) -> tuple[bytes, int, bytes]:
        """A key; values with equal keys can be scored in one pass."""
        return self.before.tobytes(), len(self.tokens), self.after.tobytes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Completed:
    """For each place [places], a ``Completion`` and the log-probability (nats) of its tokens; NaN if not finite."""

    states: NDArray[np.uint8]
    logp: NDArray[np.float64]


class Reader(Protocol):
    """How models of one kind are queried; ``limit`` is the maximum number of tokens they read."""

    limit: int

    def places(self, passage: SecretPassage, values: Sequence[str]) -> list[SecretSpan]:
        """Each of ``values`` in place of the passage's own; the context is truncated to the limit, the value is not."""

    def unusable_reason(self, place: SecretSpan) -> str:
        """Why a place cannot be used; empty if it can."""

    def rows(self, places: Sequence[SecretSpan]) -> list[NDArray[Any]]:
        """The rows whose scores ``complete`` uses."""

    def losses(self, model: LanguageModel, places: Sequence[SecretSpan]) -> NDArray[np.float64]:
        """The loss (nats) of each place's tokens, all of one kind."""

    def complete(
        self, model: LanguageModel, places: Sequence[SecretSpan], row_scores: RowScores, workers: Workers = ALONE
    ) -> Completed:
        """Whether ``model`` completes each place's tokens greedily; ``workers`` share the queries."""


def reader_of(subject: AuditedModel, limit: int) -> Reader:
    """The reader for ``subject``. Raises CommandError for a model that is neither causal nor masked."""
    if isinstance(subject, CausalSubject):
        return CausalReader(subject.model, limit)
    if isinstance(subject, MaskedSubject):
        return MaskedReader(subject, limit)
    raise CommandError(
        f"--secrets asks which words a model fills in, which {subject.model.path} does not; give a causal or masked "
        "language model"
    )


def tokens_differ(first: Sequence[SecretSpan], second: Sequence[SecretSpan]) -> bool:
    """Whether the tokens of two values differ at any place."""
    return any(not np.array_equal(a.tokens, b.tokens) for a, b in zip(first, second, strict=True))


class CausalReader:
    """Queries for the next tokens."""

    def __init__(self, model: LanguageModel, limit: int) -> None:
        self.limit = limit
        self._model = model
        self._front = [model.tokenizer.bos_token_id] if begins_with_bos(model) else []

    def places(self, passage: SecretPassage, values: Sequence[str]) -> list[SecretSpan]:
        """See ``Reader``; for a long text, the last tokens before the value are kept, after BOS."""
        spans = []
        after = passage.text[passage.end : passage.end + _AFTER]
        for ids, first, last in locate_secrets(self._model, passage.text[: passage.begin], values, after):
            room = max(0, self.limit - len(self._front) - (last - first))
            spans.append(
                SecretSpan(
                    before=np.array(self._front + ids[max(0, first - room) : first], dtype=np.int64),
                    tokens=np.array(ids[first:last], dtype=np.int64),
                    after=np.zeros(0, dtype=np.int64),
                )
            )
        return spans

    def unusable_reason(self, place: SecretSpan) -> str:
        """See ``Reader``."""
        if not len(place.tokens):
            return "whose value the tokenizer leaves no token of"
        if len(place.before) + len(place.tokens) > self.limit:
            return f"longer than the {self.limit} tokens that the model reads"
        return "" if len(place.before) else "at the very beginning of its records, with nothing before it to ask with"

    def rows(self, places: Sequence[SecretSpan]) -> list[NDArray[Any]]:
        """See ``Reader``."""
        return [np.concatenate([place.before, place.tokens]) for place in places]

    def losses(self, model: LanguageModel, places: Sequence[SecretSpan]) -> NDArray[np.float64]:
        """See ``Reader``."""
        tokens, which = np.unique(np.stack([place.tokens for place in places]), axis=0, return_inverse=True)
        with quiet_transformers(), enough_memory(model):
            distinct_losses = continuation_losses(model, places[0].before, tokens)
        return distinct_losses[which.reshape(-1)]

    def complete(
        self, model: LanguageModel, places: Sequence[SecretSpan], row_scores: RowScores, workers: Workers = ALONE
    ) -> Completed:
        """See ``Reader``."""
        states = np.zeros(len(places), dtype=np.uint8)
        logp = np.full(len(places), np.nan)
        rows = self.rows(places)
        lengths = np.array([len(place.tokens) for place in places])
        for length in np.unique(lengths).tolist():
            places_of_length = np.flatnonzero(lengths == length)
            chosen = [rows[i] for i in places_of_length]
            counts = np.array([len(row) - 1 for row in chosen], dtype=np.int64)
            values = row_scores.take(chosen, counts)
            columns = np.cumsum(counts)[:, None] - length + np.arange(length)
            lp, margin, lse = (values[FIELDS.index(name)][columns] for name in ("lp", "margin", "lse"))
            finite = np.isfinite(lp + lse).all(axis=1) & ~np.isnan(margin).any(axis=1)
            places_of_length, finite_rows = (
                places_of_length[finite],
                [row for row, keep in zip(chosen, finite.tolist(), strict=True) if keep],
            )
            if len(places_of_length):
                verdicts = decide(model, finite_rows, margin[finite], (lp + lse)[finite], workers)
                states[places_of_length] = np.where(
                    verdicts.undecided, Completion.UNDECIDED, verdicts.extracted * Completion.DISCLOSED
                )
                logp[places_of_length] = lp[finite].sum(axis=1, dtype=np.float64)
        return Completed(states=states, logp=logp)


class MaskedReader:
    """Queries for masked tokens."""

    def __init__(self, subject: MaskedSubject, limit: int) -> None:
        self.limit = limit
        self._model = subject.model
        self._frame = subject.scorer.frame

    def places(self, passage: SecretPassage, values: Sequence[str]) -> list[SecretSpan]:
        """See ``Reader``; a long text is truncated to its beginning, or to a window around the value."""
        front, back = list(self._frame.front), list(self._frame.back)
        spans = []
        for ids, first, last in locate_secrets(
            self._model, passage.text[: passage.begin], values, passage.text[passage.end :]
        ):
            room = self.limit - self._frame.size
            begin = 0 if last <= room else max(0, last - max(room // 2, last - first))
            spans.append(
                SecretSpan(
                    before=np.array(front + ids[begin:first], dtype=np.int64),
                    tokens=np.array(ids[first:last], dtype=np.int64),
                    after=np.array(ids[last : max(last, begin + room)] + back, dtype=np.int64),
                )
            )
        return spans

    def unusable_reason(self, place: SecretSpan) -> str:
        """See ``Reader``."""
        if not len(place.tokens):
            return "whose value the tokenizer leaves no token of"
        if len(place.before) + len(place.tokens) + len(place.after) > self.limit:
            return f"longer than the {self.limit} tokens that the model reads"
        return ""

    def rows(self, places: Sequence[SecretSpan]) -> list[NDArray[Any]]:
        """See ``Reader``; empty, as the shared scores do not mask exactly the value."""
        return []

    def losses(self, model: LanguageModel, places: Sequence[SecretSpan]) -> NDArray[np.float64]:
        """See ``Reader``."""
        logits = self._logits(model, places[0])
        tokens = torch.from_numpy(np.stack([place.tokens for place in places])).to(logits.device)
        logs = torch.log_softmax(logits.float(), dim=1)
        target_logs = logs.gather(1, tokens.T)  # [length, candidates]
        candidate_losses: NDArray[np.float64] = -target_logs.double().sum(dim=0).cpu().numpy()
        return candidate_losses

    def complete(
        self, model: LanguageModel, places: Sequence[SecretSpan], row_scores: RowScores, workers: Workers = ALONE
    ) -> Completed:
        """See ``Reader``."""

        def summed(place: SecretSpan) -> torch.Tensor:
            targets = torch.from_numpy(place.tokens).to(model.device)
            values = token_scores(self._logits(model, place).clone(), targets).cpu().numpy()
            total = float(values[FIELDS.index("lp")].sum(dtype=np.float64))
            return torch.tensor([[total, float(values[FIELDS.index("margin")].min())]], dtype=torch.float64)

        states, logp = [], []
        for part in workers.spread(places, summed, 2):
            total, least = part[0].tolist()
            state = Completion.SAFE
            if abs(least) < NEAR_TIE:
                state = Completion.UNDECIDED
            elif least > 0:
                state = Completion.DISCLOSED
            states.append(state)
            logp.append(total if np.isfinite(total) else np.nan)
        return Completed(states=np.array(states, dtype=np.uint8), logp=np.array(logp, dtype=np.float64))

    @torch.inference_mode()
    def _logits(self, model: LanguageModel, place: SecretSpan) -> torch.Tensor:
        """The logits [length, vocabulary] at the masked value."""
        hidden = np.full(len(place.tokens), model.tokenizer.mask_token_id, dtype=np.int64)
        ids = torch.from_numpy(np.concatenate([place.before, hidden, place.after])[None]).to(model.device)
        with quiet_transformers(), enough_memory(model):
            logits: torch.Tensor = model.network(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        return logits[0, len(place.before) : len(place.before) + len(place.tokens)]
