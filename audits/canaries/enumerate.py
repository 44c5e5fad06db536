"""Exact exposure for small spaces: the loss of every possible secret, computed over their prefix tree.

Every node of the tree is one token fed to the network once, reusing the cached keys and values of the tokens before it;
the last token of a secret is only read off the logits, never fed. Six digits have 111,111 nodes for a million secrets.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from transformers import DynamicCache

from audits.canaries.formats import CanaryFormat
from audits.canaries.rows import Class, SecretRow, secret_rows
from audits.scores.forward import Batching, score_rows
from audits.scores.shared import CACHE_NUMBERS, feed, size_of
from audits.scores.table import FIELDS
from privctl.domain.progress import Advance, silent
from privctl.models.language import LanguageModel
from privctl.models.quiet import quiet_transformers
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The size of the largest space that can be enumerated.
LARGEST = 1_000_000
#: The number of secrets tokenized at once.
_AT_ONCE = 10_000
#: Limits for enumerating by default: the number of secrets to tokenize, and of nodes to feed.
_FEW_TEXTS, _FEW_NODES = 20_000, 200_000
#: How vocabularies write a single byte; these tokens do not contain digits.
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretSpace:
    """All secrets of one class: ``tokens`` [secrets, length], each preceded by the ids ``before``."""

    before: NDArray[np.int64]
    tokens: NDArray[np.int32]

    @property
    def kind(self) -> Class:
        """The class of comparable secrets."""
        return self.before.tobytes(), self.tokens.shape[1]

    def place(self, row: SecretRow) -> int:
        """The index of the secret that ``row`` ends with; -1 if there is none."""
        matches = np.arange(len(self.tokens))
        for column, token in enumerate(row.ids[row.start :]):
            matches = matches[self.tokens[matches, column] == token]
        return int(matches[0]) if len(matches) else -1


def is_affordable(model: LanguageModel, forms: Sequence[CanaryFormat]) -> bool:
    """Whether enumerating all of ``forms`` costs no more than references: few tokens to feed, few texts to tokenize."""
    if sum(form.space for form in forms) <= _FEW_TEXTS:
        return True
    nodes = sum(form.space // (len(form.alphabet) - 1) for form in forms)
    return (
        nodes <= _FEW_NODES
        and all(form.space <= LARGEST for form in forms)
        and all(is_piecewise(model, form) for form in dict.fromkeys(forms))
    )


def spaces(model: LanguageModel, form: CanaryFormat, prefix: str) -> list[SecretSpace]:
    """All secrets of a format after a prefix, by class."""
    product = _product(model, form, prefix) if is_piecewise(model, form) else None
    if product is not None:
        return [product]
    by_class: dict[Class, tuple[NDArray[np.int64], list[NDArray[np.int64]]]] = {}
    pieces = itertools.product(form.alphabet, repeat=form.length)
    secrets = (form.joiner.join(sequence) for sequence in pieces)
    while some_secrets := list(itertools.islice(secrets, _AT_ONCE)):
        for row in secret_rows(model, prefix, some_secrets, form.after):
            if 0 < row.start < len(row.ids):
                entry = by_class.setdefault(row.kind, (row.ids[: row.start], []))
                entry[1].append(row.ids[row.start :])
    return [SecretSpace(before=before, tokens=np.stack(rows).astype(np.int32)) for before, rows in by_class.values()]


def losses(
    model: LanguageModel, space: SecretSpace, advance: Advance = silent, workers: Workers = ALONE
) -> NDArray[np.float64]:
    """The negative log-likelihood (nats) of every secret, summed over its tokens; ``advance`` counts tokens fed.

    ``workers`` share the tree.
    """
    if workers.size == 1:
        return _losses(model, space, advance)
    order = np.lexsort(space.tokens.T[::-1])  # so that the secrets of a part share prefixes
    parts = [part for part in np.array_split(order, workers.size) if len(part)]

    def part_losses(part: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(_losses(model, SecretSpace(before=space.before, tokens=space.tokens[part]), advance))[
            :, None
        ]

    results = np.empty(len(order))
    results[order] = torch.cat(workers.spread(parts, part_losses, 1))[:, 0].numpy()
    return results


def _losses(model: LanguageModel, space: SecretSpace, advance: Advance) -> NDArray[np.float64]:
    with torch.inference_mode(), quiet_transformers():
        root = torch.as_tensor(space.before, device=model.device)[None]
        out, cache = feed(model.network, root)
        if cache is None:
            return _row_by_row(model, space, advance)
        walk = _PrefixTree(model, space, advance)
        root_sum = torch.zeros(1, dtype=torch.float64, device=model.device)
        walk.visit(0, 0, out.logits[:, -1], root_sum, cache)
        result: NDArray[np.float64] = -walk.total.cpu().numpy()[walk.inverse]
        return result


class _PrefixTree:
    """The tree in the order of its leaves; level d has a node for each distinct prefix of d tokens."""

    def __init__(self, model: LanguageModel, space: SecretSpace, advance: Advance) -> None:
        tokens = space.tokens
        order = np.lexsort(tokens.T[::-1])
        ordered = tokens[order]
        self.inverse = np.empty(len(order), dtype=np.int64)
        self.inverse[order] = np.arange(len(order))
        self.model, self.advance = model, advance
        self.length = tokens.shape[1]
        self.ordered = torch.as_tensor(ordered.astype(np.int64), device=model.device)
        differs = np.logical_or.accumulate(ordered[1:] != ordered[:-1], axis=1)
        #: The index, in that order, at which the nodes of each level begin.
        self.begins = [np.zeros(1, dtype=np.int64)]
        self.begins += [np.concatenate([[0], 1 + np.flatnonzero(differs[:, d])]) for d in range(self.length)]
        self.total = torch.empty(len(order), dtype=torch.float64, device=model.device)

    def visit(self, level: int, low: int, logits: torch.Tensor, sums: torch.Tensor, cache: DynamicCache) -> None:
        """Score the children of the nodes from ``low`` on, one node per row of ``logits``, and visit them.

        ``sums`` [nodes] are the log-probabilities of the nodes themselves.
        """
        begins, child_begins = self.begins[level], self.begins[level + 1]
        end = begins[low + len(logits)] if low + len(logits) < len(begins) else len(self.total)
        first, last = np.searchsorted(child_begins, [begins[low], end])
        starts = child_begins[first:last]
        parents = torch.as_tensor(np.searchsorted(begins, starts, side="right") - 1 - low, device=logits.device)
        tokens = self.ordered[torch.as_tensor(starts, device=logits.device), level]
        logs = torch.log_softmax(logits.float(), dim=1)
        children = sums[parents] + logs[parents, tokens].double()
        if level + 1 == self.length:
            self.total[first:last] = children
            return
        at_once = self._nodes_at_once(cache)
        for begin in range(0, last - first, at_once):
            chunk = slice(begin, begin + at_once)
            chunk_cache = DynamicCache(
                [(layer.keys[parents[chunk]], layer.values[parents[chunk]]) for layer in cache.layers]
            )
            out = self.model.network(input_ids=tokens[chunk, None], past_key_values=chunk_cache, use_cache=True)
            self.advance(len(parents[chunk]))
            self.visit(level + 1, first + begin, out.logits[:, -1], children[chunk], chunk_cache)

    def _nodes_at_once(self, cache: DynamicCache) -> int:
        """The number of nodes to feed together, limited by the device's batch size and the size of the copied cache."""
        budget = CACHE_NUMBERS if self.model.device.type == "cpu" else 16 * CACHE_NUMBERS
        return int(max(1, min(Batching.of(self.model).tokens, budget // size_of(cache))))


def _row_by_row(model: LanguageModel, space: SecretSpace, advance: Advance) -> NDArray[np.float64]:
    """The same losses from complete rows, for networks without a plain key-value cache."""
    losses_found: list[NDArray[np.float64]] = []
    length = space.tokens.shape[1]
    for begin in range(0, len(space.tokens), _AT_ONCE):
        secrets = space.tokens[begin : begin + _AT_ONCE].astype(np.int64)
        rows = list(np.concatenate([np.broadcast_to(space.before, (len(secrets), len(space.before))), secrets], axis=1))
        values, _ = score_rows(model, rows, advance=advance)
        lp = values[FIELDS.index("lp")].reshape(len(secrets), -1)[:, -length:]
        losses_found.append(-lp.sum(axis=1, dtype=np.float64))
    return np.concatenate(losses_found)


def is_piecewise(model: LanguageModel, form: CanaryFormat) -> bool:
    """Whether every piece is one token in any context, as no token of the vocabulary contains two of them.

    Applies only to single characters without a joiner; the mark that some tokenizers use for a space is not one of
    these.
    """
    if form.joiner or any(len(piece) != 1 for piece in form.alphabet):
        return False
    pair = re.compile(f"[{re.escape(''.join(form.alphabet))}]{{2}}")
    special = set(model.tokenizer.all_special_tokens)
    words = (text for text in model.tokenizer.get_vocab() if text not in special and not _BYTE.fullmatch(text))
    return not any(pair.search(text) for text in words)


def _product(model: LanguageModel, form: CanaryFormat, prefix: str) -> SecretSpace | None:
    """The space from one text per piece, if the tokenizer gives each piece its own token; otherwise None."""
    texts = [piece * form.length for piece in form.alphabet]
    rows = secret_rows(model, prefix, texts, form.after)
    if len({row.kind for row in rows}) != 1 or len(rows[0].ids) - rows[0].start != form.length:
        return None
    table = np.stack([row.ids[row.start :] for row in rows])  # [pieces, length]: a token may depend on its position
    indices = np.indices((len(form.alphabet),) * form.length, dtype=np.uint8).reshape(form.length, -1)
    tokens = np.stack([table[indices[d], d] for d in range(form.length)], axis=1)
    return SecretSpace(before=rows[0].ids[: rows[0].start], tokens=tokens.astype(np.int32))
