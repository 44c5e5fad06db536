"""Token-by-token decoding with a caller that chooses the tokens; all generation in extraction goes through it.

If a network caches only keys and values, texts that end early are dropped from the batch. Other networks are run by
transformers' own loop, which is made to take the same tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from transformers import EncoderDecoderCache, GenerationConfig, LogitsProcessor, LogitsProcessorList
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer
from transformers.modeling_outputs import BaseModelOutput

from audits.scores.forward import Batching, trunk_and_head
from privctl.models.language import LanguageModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The batch size on a CPU, where each step reads all weights once.
TOGETHER = 128

#: Maps the logits [texts, vocabulary] of the active texts to the next token [texts] of each, and the indices of those
#: that continue.
Choose = Callable[[torch.Tensor], "tuple[torch.Tensor, NDArray[np.int64]]"]


class Decoder(Protocol):
    """Continues prompts of equal length."""

    def together(self, length: int) -> int:
        """The batch size for texts of ``length`` tokens."""

    def decode(self, prompts: torch.Tensor, steps: int, choose: Choose) -> bool:
        """Continue ``prompts`` [texts, length] by up to ``steps`` tokens; False if the network cannot generate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextDecoder:
    """Decodes with a causal model; ``halves`` are the network's trunk and head, or None if it cannot be split."""

    model: LanguageModel
    halves: tuple[Any, Any] | None

    @classmethod
    def of(cls, model: LanguageModel) -> TextDecoder:
        """The decoder of ``model``. Raises InputError for a network that is not causal."""
        return cls(model=model, halves=trunk_and_head(model))

    def together(self, length: int) -> int:
        """See ``Decoder``; a network that cannot be split computes logits at all positions of the prompt."""
        most = _most(self.model)
        logits = 8 * Batching.of(self.model).logits // (length * self.model.vocabulary)
        return most if self.halves is not None else max(1, min(most, logits))

    def decode(self, prompts: torch.Tensor, steps: int, choose: Choose) -> bool:
        """See ``Decoder``."""
        logits, cache = self._next(prompts, None)
        if not _is_selectable(cache):
            return _generated(self.model.network, prompts, steps, choose)
        for step in range(steps):
            chosen, kept = choose(logits)
            if not len(kept) or step == steps - 1:
                break
            if len(kept) < len(chosen):
                places = torch.from_numpy(kept).to(chosen.device)
                chosen = chosen[places]
                cache.batch_select_indices(places)
            logits, cache = self._next(chosen[:, None], cache)
        return True

    def _next(self, ids: torch.Tensor, cache: Any) -> tuple[torch.Tensor, Any]:
        """The logits [texts, vocabulary] after ``ids`` [texts, new], and the updated cache."""
        if self.halves is None:
            out = self.model.network(input_ids=ids, past_key_values=cache, use_cache=True)
            return out.logits[:, -1], getattr(out, "past_key_values", None)
        trunk, head = self.halves
        out = trunk(input_ids=ids, past_key_values=cache, use_cache=True)
        return head(out.last_hidden_state[:, -1]), getattr(out, "past_key_values", None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetDecoder:
    """Decodes with a sequence-to-sequence model.

    The last ``given`` ids of a prompt are the decoder's, beginning with its start token; the ids before them are the
    source.
    """

    model: LanguageModel
    given: int

    def together(self, length: int) -> int:
        """See ``Decoder``."""
        return _most(self.model)

    def decode(self, prompts: torch.Tensor, steps: int, choose: Choose) -> bool:
        """See ``Decoder``."""
        network = self.model.network
        ids = prompts[:, -self.given :]
        mask = torch.ones_like(prompts[:, : -self.given])
        hidden = network.get_encoder()(input_ids=prompts[:, : -self.given], attention_mask=mask).last_hidden_state
        cache: Any = EncoderDecoderCache(DynamicCache(), DynamicCache())
        for step in range(steps):
            out = network(
                encoder_outputs=BaseModelOutput(last_hidden_state=hidden),
                attention_mask=mask,
                decoder_input_ids=ids,
                past_key_values=cache,
                use_cache=True,
            )
            cache = out.past_key_values
            chosen, kept = choose(out.logits[:, -1])
            if not len(kept) or step == steps - 1:
                break
            if len(kept) < len(chosen):
                places = torch.from_numpy(kept).to(chosen.device)
                chosen, hidden, mask = chosen[places], hidden[places], mask[places]
                cache.batch_select_indices(places)
            ids = chosen[:, None]
        return True


def batches_of_one_length(
    rows: Sequence[NDArray[np.int64]], indices: NDArray[np.int64], together: int
) -> Iterator[NDArray[np.int64]]:
    """Batches of the rows at ``indices``, each of a single length: the cache does not support padding."""
    lengths = np.array([len(rows[i]) for i in indices], dtype=np.int64)
    for length in np.unique(lengths):
        alike = indices[lengths == length]
        yield from (alike[start : start + together] for start in range(0, len(alike), together))


def _most(model: LanguageModel) -> int:
    return TOGETHER if model.device.type == "cpu" else 16 * TOGETHER


def _is_selectable(cache: Any) -> bool:
    """Whether the cache holds only keys and values, from which the texts that continue can be selected."""
    layers = getattr(cache, "layers", None) or [None]
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)


class _ForcedTokens(LogitsProcessor):  # type: ignore[misc]
    """Makes transformers' argmax pick the token that ``choose`` returns; texts that have ended get token 0."""

    def __init__(self, choose: Choose, texts: int) -> None:
        self._choose = choose
        self._alive = np.arange(texts)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[:, 0] = 0
        if len(self._alive):
            places = torch.from_numpy(self._alive).to(scores.device)
            chosen, kept = self._choose(scores[places])
            forced[places, 0] = -torch.inf
            forced[places, chosen] = 0
            self._alive = self._alive[kept]
        return forced


def _generated(network: Any, prompts: torch.Tensor, steps: int, choose: Choose) -> bool:
    """Decode with transformers' own loop, for networks that cache something other than keys and values."""
    processor = LogitsProcessorList([_ForcedTokens(choose, len(prompts))])
    try:
        with _plain_decoding(network, steps):
            network.generate(prompts, attention_mask=torch.ones_like(prompts), logits_processor=processor)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError, TypeError, AttributeError):
        return False  # some architectures cannot generate
    return True


@contextmanager
def _plain_decoding(network: Any, tokens: int) -> Iterator[None]:
    """Decode ``tokens`` tokens by plain argmax: a model's generation configuration may suppress or penalize tokens."""
    before = network.generation_config
    network.generation_config = GenerationConfig(
        do_sample=False, max_new_tokens=tokens, eos_token_id=None, pad_token_id=0
    )
    try:
        yield
    finally:
        network.generation_config = before
