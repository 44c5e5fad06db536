"""Extractive question answering: predicting the span of a text that answers a question."""

from __future__ import annotations

import inspect
import json
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from privctl.models.choices import TaskName
from privctl.models.tasks.base import EVALUATED_EXAMPLES, EVALUATED_TOKENS, evaluation_mode, group_by_length, moved
from privctl.models.tasks.classification import text_logits
from privctl.models.tasks.corpus import CorpusTask
from privctl.models.tasks.language import pad_batch
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Tokens of the longest answer that evaluation considers, as in transformers' examples.
LONGEST_ANSWER = 30
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionAnswering(CorpusTask):
    """Predicting the first and the last token of an answer; a record's loss is the mean of the two.

    If there is no answer, or it was cut off, both are the classification token. With ``typed`` the network gets
    segment ids. ``separator`` is that of ``question_mask``, None if the network needs no such mask.
    """

    typed: bool
    separator: int | None = None

    @property
    def name(self) -> TaskName:
        """See ``Task``."""
        return TaskName.QUESTION_ANSWERING

    def batch(self, examples: Sequence[int], device: torch.device, step: int) -> dict[str, Tensor]:
        """See ``Task``; ``positions`` (n, 2) are the answers' first and last tokens, ``padded`` (n, length) bool."""
        rows = self.rows(examples)
        inputs = pad_batch(rows, self.facts.pad, device, self.padding)
        positions = torch.from_numpy(np.stack([self.corpus.targets[row.record] for row in rows]).astype(np.int64))
        tensors = {"positions": moved(positions, device), "padded": inputs["attention_mask"] == 0}
        if self.separator is not None:
            tensors["global_attention_mask"] = question_mask(inputs, self.separator)
        if self.typed:
            types = np.zeros(tuple(inputs["input_ids"].shape), np.int64)
            for i, row in enumerate(rows):
                assert row.numbers is not None
                types[i, : len(row.ids)] = row.numbers
            tensors["token_type_ids"] = moved(torch.from_numpy(types), device)
        return {**inputs, **tensors}

    def losses(self, network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        """See ``Task``."""
        logits = span_logits(network, batch)
        ends = (functional.cross_entropy(logits[:, :, k], batch["positions"][:, k], reduction="none") for k in (0, 1))
        return sum(ends, torch.zeros(len(logits), device=logits.device)) / 2

    def evaluate(self, network: nn.Module, device: torch.device, workers: Workers = ALONE) -> dict[str, float]:
        """See ``Task``: ``loss`` in nats, ``exact_match`` and ``f1`` over all ``examples``, by SQuAD's definition.

        If any record has no answer, the network may predict that there is none.
        """

        def kept(record: int) -> tuple[str, list[int], list[int], list[Any], int]:
            return tuple(json.loads(self.corpus.kept_of(record)))

        unanswerable = any(not kept(record)[3] for record in range(self.corpus.records))

        def outcomes(group: Sequence[int]) -> Tensor:
            batch = self.batch(group, device, 0)
            logits, losses = span_logits(network, batch).cpu(), self.losses(network, batch).cpu()
            rows = []
            for i, row in enumerate(self.rows(group)):
                context, begins, ends, answers, none = kept(row.record)
                span = best_span(logits[i].numpy(), row.counted, none if unanswerable else None)
                predicted = "" if span is None else context[begins[span[0]] : ends[span[1]]]
                rows.append([float(losses[i]), *squad_measures(predicted, [text for _, text in answers])])
            return torch.tensor(rows, dtype=torch.float64)

        groups = list(group_by_length(range(self.corpus.records), self.length, EVALUATED_EXAMPLES, EVALUATED_TOKENS))
        with evaluation_mode(network):
            parts = torch.cat(list(workers.spread(groups, outcomes, 3)))
        loss, exact, f1 = parts.mean(0).tolist()
        return {"loss": loss, "exact_match": exact, "f1": f1, "examples": float(len(parts))}


def span_logits(network: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Logits (n, length, 2) float32 of an answer's first and last token; those of ``padded`` tokens are the minimum."""
    more = {name: batch[name] for name in ("token_type_ids", "global_attention_mask") if name in batch}
    logits = text_logits(network, batch, **more).float()
    return logits.masked_fill(batch["padded"][:, :, None], torch.finfo(torch.float32).min)


def reads_types(network: Any, tokenizer: Any) -> bool:
    """Whether the network reads segment ids, which distinguish the question's tokens from the context's."""
    taken = "token_type_ids" in inspect.signature(network.forward).parameters
    types = getattr(network.config, "type_vocab_size", None) or 0
    return taken and types > 1 and "token_type_ids" in tokenizer.model_input_names


def separator_of(network: Any, tokenizer: Any) -> int | None:
    """The token that ends a question, if only question tokens have global attention in ``network`` (Longformer).

    By itself the network searches for that token in the whole batch, where it may confuse the tokens of two records.
    """
    config = network.config
    taken = "global_attention_mask" in inspect.signature(network.forward).parameters
    if not taken or getattr(config, "is_encoder_decoder", False):  # LED has no global attention unless given a mask
        return None
    known = (getattr(config, "sep_token_id", None), tokenizer.sep_token_id, tokenizer.eos_token_id)
    return next((int(token) for token in known if token is not None), None)


def question_mask(inputs: Mapping[str, Tensor], separator: int) -> Tensor:
    """1 (n, length), int64, at the tokens before the first ``separator`` of each row, else 0, as in transformers."""
    before = (inputs["input_ids"] == separator).cumsum(1) == 0
    return before.long() * inputs["attention_mask"]


def best_span(
    logits: NDArray[np.float32], context: NDArray[np.bool_], none: int | None = None
) -> tuple[int, int] | None:
    """First and last token, counted within the context, of the span with the largest sum of ``logits`` (length, 2).

    None, for no answer, if the token at ``none`` has a larger sum.
    """
    scores = logits[: len(context)][context].astype(np.float64)
    sums = scores[:, 0][:, None] + scores[:, 1][None, :]
    positions = np.arange(len(scores))
    length = positions[None, :] - positions[:, None]
    sums[(length < 0) | (length >= LONGEST_ANSWER)] = -np.inf
    first, last = divmod(int(sums.argmax()), len(scores))
    if none is not None and float(logits[none].astype(np.float64).sum()) > sums[first, last]:
        return None
    return first, last


def squad_measures(predicted: str, answers: Sequence[str]) -> tuple[float, float]:
    """Exact match and word F1 of ``predicted`` with the best of ``answers`` (Rajpurkar et al. 2016, section 6.1).

    Case, punctuation, articles and spaces are ignored. Without answers, only "" is correct (SQuAD 2.0).
    """
    words = _normalized(predicted)
    pairs = [(float(words == answer), _f1(words, answer)) for answer in map(_normalized, answers or [""])]
    return max(exact for exact, _ in pairs), max(f1 for _, f1 in pairs)


def _normalized(text: str) -> list[str]:
    return _ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split()


def _f1(predicted: list[str], true: list[str]) -> float:
    if not predicted or not true:
        return float(predicted == true)
    common = (Counter(predicted) & Counter(true)).total()
    return 2 * common / (len(predicted) + len(true))
