"""Short prefixes, optimized so that the model continues with a given text even if the record's own beginning fails.

The search is greedy coordinate gradient (Zou et al. 2023, "Universal and transferable adversarial attacks on aligned
language models"). The question is that of Schwarzschild et al. 2024, "Rethinking LLM memorization through the lens of
adversarial compression": is there a prompt shorter than the text that reproduces it word for word? A long enough
prefix, searched for long enough, makes a model write anything. So the length and the number of forward passes are
fixed, and the same search on held-out text is the control.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from audits.extraction.greedy import GreedyMatches, decide, margin_scores, rounding_margin
from audits.scores.forward import enough_memory, measure_rows
from privctl.domain.errors import CommandError
from privctl.domain.progress import Advance, silent
from privctl.models.language import LanguageModel
from privctl.models.quiet import quiet_transformers
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Substitutions tried per batch, and the number of best candidates per position from which they are drawn.
_TOGETHER, _LIKELIEST = 64, 64
#: The cost of a gradient in forward passes: a backward pass takes about twice as long as a forward pass.
GRADIENT = 3
#: The search restarts after this many rounds of substitutions that do not reduce the loss.
_PATIENCE = 2
#: Default ratio of the suffix's length to the prefix's.
_COMPRESSION = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Adversary:
    """The settings of the attack: ``texts`` of each file are attacked, each with at most ``budget`` forward passes.

    ``tokens`` is the length of the prefixes; None means a quarter of the suffix.
    """

    texts: int
    budget: int = 1000
    tokens: int | None = None

    def length(self, suffix: int) -> int:
        """The length of a prefix for ``suffix`` tokens.

        Raises CommandError if the prefix is as long as the suffix or the budget does not exceed the cost of one
        gradient.
        """
        tokens = max(1, suffix // _COMPRESSION) if self.tokens is None else self.tokens
        if tokens >= suffix:
            raise CommandError(
                f"--adversarial-tokens is {tokens}, and --suffix-tokens {suffix}: a prefix as long as the text can "
                "spell it out; give fewer"
            )
        if self.budget <= GRADIENT:
            raise CommandError(
                f"--adversarial-budget is {self.budget}; a gradient alone takes {GRADIENT} forward passes, give more"
            )
        return tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizedPrefixes:
    """For each attacked text, whether its prefix reproduces it, and the forward passes ``spent`` [texts]."""

    matches: GreedyMatches
    spent: NDArray[np.int64]


def optimized_prefixes(
    model: LanguageModel,
    rows: Sequence[NDArray[np.int64]],
    suffix: int,
    adversary: Adversary,
    *,
    bos: bool,
    seed: int,
    workers: Workers = ALONE,
    advance: Advance = silent,
) -> OptimizedPrefixes | None:
    """Search for a prefix that reproduces the last ``suffix`` tokens of each of ``rows``; the rest of a row is ignored.

    With ``bos``, the first token of each row is kept in front of its prefix. ``advance`` counts forward passes. Returns
    None if no gradient with respect to the network's embeddings is available. Raises CommandError as
    ``Adversary.length`` does.
    """
    embedding = _embedding(model)
    if embedding is None:
        return None
    length = adversary.length(suffix)
    searched = _PrefixSearch(
        model=model, embedding=embedding, allowed=_allowed(model), start=int(bos), length=length, suffix=suffix,
        budget=adversary.budget, seed=seed,
    )  # fmt: skip
    try:
        ids = searched.allowed[np.arange(length) % 2]
        searched.likeliest(searched.row(rows[0], ids))
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        return None  # some networks look ids up elsewhere, or in a way that has no gradient

    def compute(some: Sequence[NDArray[np.int64]]) -> torch.Tensor:
        with quiet_transformers(), enough_memory(model):
            results = [searched.best(row, advance) for row in some]
        return torch.tensor(np.array(results).reshape(len(some), -1))

    width = bos + length + suffix
    table = workers.spread_rows(rows, compute, width + 1 + 2 * suffix).numpy()
    tokens, spent, scores = table[:, :width], table[:, width], table[:, width + 1 :].reshape(-1, 2, suffix)
    best = list(tokens.astype(np.int64))
    matches = decide(model, best, scores[:, 0], scores[:, 1], workers)
    return OptimizedPrefixes(matches=matches, spent=spent.astype(np.int64))


@dataclass(frozen=True, slots=True, kw_only=True)
class _PrefixSearch:
    """Searches for prefixes of ``length`` tokens, chosen from the ids ``allowed``, before ``suffix`` tokens of a text.

    The first ``start`` tokens of a row are kept in front of its prefix. Each text has ``budget`` forward passes.
    """

    model: LanguageModel
    embedding: torch.nn.Module
    allowed: NDArray[np.int64]
    start: int
    length: int
    suffix: int
    budget: int
    seed: int

    def row(self, text: NDArray[np.int64], prefix: NDArray[np.int64]) -> NDArray[np.int64]:
        """The suffix of ``text`` after ``prefix``."""
        return np.concatenate([text[: self.start], prefix, text[-self.suffix :]])

    def best(self, text: NDArray[np.int64], advance: Advance) -> NDArray[np.float64]:
        """The best row, the forward passes spent, and the margins and target logits of its suffix, concatenated."""
        random = _random(self.seed, text[-self.suffix :])
        best = self.row(text, random.choice(self.allowed, self.length))
        current, likeliest, scores = best, None, np.stack([np.full(self.suffix, -np.inf), np.zeros(self.suffix)])
        least = loss = np.inf
        spent, in_vain = 0, _PATIENCE
        while True:
            fresh = in_vain >= _PATIENCE
            if fresh:  # restart when substitutions no longer help
                current = self.row(text, random.choice(self.allowed, self.length))
                loss, likeliest, in_vain = np.inf, None, 0
            if likeliest is None:
                if spent + GRADIENT >= self.budget:
                    break
                likeliest = self.likeliest(current)
                spent += GRADIENT
            count = min(_TOGETHER, self.budget - spent)
            if count < 1:
                break
            tried = _substituted(current, likeliest, count, self.start, random)
            if fresh:
                tried[0] = current
            spent += count
            losses, margins, logits = _measured(self.model, tried, self.suffix)
            comes_out = np.all(margins > rounding_margin(margins, logits, self.model.dtype), axis=1)
            best_index = int(np.where(comes_out, -np.inf, losses).argmin())
            in_vain += 1
            if losses[best_index] < loss:
                current, loss, likeliest, in_vain = tried[best_index], float(losses[best_index]), None, 0
            if losses[best_index] < least or comes_out[best_index]:
                best, least, scores = (
                    tried[best_index],
                    float(losses[best_index]),
                    np.stack([margins[best_index], logits[best_index]]),
                )
            if comes_out[best_index]:
                break
        advance(self.budget)
        return np.concatenate([best, [spent], scores.ravel()])

    def likeliest(self, row: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ids [length, candidates] that, to first order, reduce the loss most at each position of the prefix."""
        caught: list[torch.Tensor] = []

        def catch(_module: torch.nn.Module, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
            caught.append(output.detach().requires_grad_())
            return caught[-1]

        ids = torch.from_numpy(row).to(self.model.device)[None]
        handle = self.embedding.register_forward_hook(catch)
        try:
            with torch.enable_grad():
                logits = self.model.network(input_ids=ids, use_cache=False).logits[0, -self.suffix - 1 : -1].float()
                loss = torch.nn.functional.cross_entropy(logits, ids[0, -self.suffix :])
                (slope,) = torch.autograd.grad(loss, caught[0])
        finally:
            handle.remove()
        weight: torch.Tensor = self.embedding.weight  # type: ignore[assignment]
        of_prefix = slope[0, -self.suffix - self.length : -self.suffix].to(weight.dtype)
        predicted = (of_prefix @ weight.detach().T).float()
        is_allowed = torch.zeros(len(weight), dtype=torch.bool, device=weight.device)
        is_allowed[torch.from_numpy(self.allowed).to(weight.device)] = True
        predicted = predicted.masked_fill(~is_allowed, torch.inf)
        best = predicted.topk(min(_LIKELIEST, len(self.allowed)), dim=1, largest=False).indices
        return np.asarray(best.cpu().numpy(), dtype=np.int64)


def _substituted(
    row: NDArray[np.int64], likeliest: NDArray[np.int64], count: int, start: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """``count`` copies of ``row``, each with one token of its prefix replaced by one of the ``likeliest``."""
    copies = np.tile(row, (count, 1))
    places = random.integers(len(likeliest), size=count)
    copies[np.arange(count), start + places] = likeliest[places, random.integers(likeliest.shape[1], size=count)]
    return copies


def _measured(
    model: LanguageModel, rows: NDArray[np.int64], suffix: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """The loss [rows], and the margin and target logit [rows, suffix], of the rows' suffixes."""

    def measure(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(logits.float(), targets, reduction="none")
        return torch.cat([loss[None], margin_scores(logits, targets)])

    values, _ = measure_rows(model, list(rows), measure, 3, last=suffix)
    loss, margin, logit = values.reshape(3, len(rows), suffix)
    return np.nan_to_num(loss.mean(axis=1), nan=np.inf), margin, logit


def _embedding(model: LanguageModel) -> torch.nn.Module | None:
    """The network's input embedding, if it is a single table indexed by token id; otherwise None."""
    try:
        module = model.network.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        return None
    weight = getattr(module, "weight", None)
    return module if weight is not None and weight.ndim == 2 and len(weight) >= model.vocabulary else None


def _allowed(model: LanguageModel) -> NDArray[np.int64]:
    """The ids that a prefix may contain: all except special tokens, which users do not type."""
    special = list(getattr(model.tokenizer, "all_special_ids", ()))
    return np.setdiff1d(np.arange(min(model.vocabulary, len(model.tokenizer))), special)


def _random(seed: int, target: NDArray[np.int64]) -> np.random.Generator:
    """A generator that depends only on the seed and the text, not on the process or the other texts."""
    digest = hashlib.blake2b(target.tobytes(), digest_size=8, key=seed.to_bytes(8, "little")).digest()
    return np.random.default_rng(int.from_bytes(digest, "little"))
