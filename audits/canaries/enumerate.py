"""Exact exposure for small spaces: the loss of every secret there is, over the tree of their shared beginnings.

Every node of the tree is one token fed to the network once, with the keys and values of the tokens before it kept; the
last token of a secret is only read off the logits, never fed. Six digits are 111,111 nodes for a million secrets.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import DynamicCache

from audits.canaries.formats import CanaryFormat
from audits.canaries.rows import Class, SecretRow, secret_rows
from audits.scores.forward import Batching, score_rows
from audits.scores.table import FIELDS
from privctl.domain.progress import Advance, silent
from privctl.models.language import LanguageModel, hushed

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Spaces no larger than this can be enumerated at all.
LARGEST = 1_000_000
#: Secrets tokenised at once, and numbers of keys and values copied at once.
_AT_ONCE = 10_000
HELD = 1 << 25
#: What is enumerated unasked: spaces of so many secrets to tokenise, or trees of so many nodes to feed.
_FEW_TEXTS, _FEW_NODES = 20_000, 200_000
#: How vocabularies write a single byte; it stands for no digit.
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Every secret of one class: ``tokens`` [secrets, length] after the ids of ``before``."""

    before: NDArray[np.int64]
    tokens: NDArray[np.int32]

    @property
    def kind(self) -> Class:
        """What the secrets may be compared with."""
        return self.before.tobytes(), self.tokens.shape[1]

    def place(self, row: SecretRow) -> int:
        """Which of the secrets ``row`` ends with; -1 for none."""
        found = np.arange(len(self.tokens))
        for column, token in enumerate(row.ids[row.start :]):
            found = found[self.tokens[found, column] == token]
        return int(found[0]) if len(found) else -1


def affordable(model: LanguageModel, forms: Sequence[CanaryFormat]) -> bool:
    """Whether enumerating all of these costs no more than references would: few tokens to feed, few texts to split."""
    if sum(form.space for form in forms) <= _FEW_TEXTS:
        return True
    nodes = sum(form.space // (len(form.alphabet) - 1) for form in forms)
    return (
        nodes <= _FEW_NODES
        and all(form.space <= LARGEST for form in forms)
        and all(piecewise(model, form) for form in dict.fromkeys(forms))
    )


def spaces(model: LanguageModel, form: CanaryFormat, prefix: str) -> list[Space]:
    """All secrets of a format after a prefix, by class."""
    whole = _product(model, form, prefix) if piecewise(model, form) else None
    if whole is not None:
        return [whole]
    found: dict[Class, tuple[NDArray[np.int64], list[NDArray[np.int64]]]] = {}
    pieces = itertools.product(form.alphabet, repeat=form.length)
    secrets = (form.joiner.join(each) for each in pieces)
    while part := list(itertools.islice(secrets, _AT_ONCE)):
        for row in secret_rows(model, prefix, part, form.after):
            if 0 < row.start < len(row.ids):
                entry = found.setdefault(row.kind, (row.ids[: row.start], []))
                entry[1].append(row.ids[row.start :])
    return [Space(before=before, tokens=np.stack(rows).astype(np.int32)) for before, rows in found.values()]


def losses(model: LanguageModel, space: Space, advance: Advance = silent) -> NDArray[np.float64]:
    """The negative log-likelihood (nats) of every secret, summed over its tokens; ``advance`` counts tokens fed."""
    with torch.inference_mode(), hushed():
        root = torch.as_tensor(space.before, device=model.device)[None]
        out = model.network(input_ids=root, past_key_values=DynamicCache(), use_cache=True)
        if not copyable(out.past_key_values):
            return _row_by_row(model, space, advance)
        walk = _PrefixTree(model, space, advance)
        first = torch.zeros(1, dtype=torch.float64, device=model.device)
        walk.visit(0, 0, out.logits[:, -1], first, out.past_key_values)
        result: NDArray[np.float64] = -walk.total.cpu().numpy()[walk.inverse]
        return result


class _PrefixTree:
    """The tree in the order of its leaves: level d has a node for each distinct beginning of d tokens."""

    def __init__(self, model: LanguageModel, space: Space, advance: Advance) -> None:
        tokens = space.tokens
        order = np.lexsort(tokens.T[::-1])
        ordered = tokens[order]
        self.inverse = np.empty(len(order), dtype=np.int64)
        self.inverse[order] = np.arange(len(order))
        self.model, self.advance = model, advance
        self.length = tokens.shape[1]
        self.ordered = torch.as_tensor(ordered.astype(np.int64), device=model.device)
        differs = np.logical_or.accumulate(ordered[1:] != ordered[:-1], axis=1)
        #: Where in the order each level's nodes begin.
        self.begins = [np.zeros(1, dtype=np.int64)]
        self.begins += [np.concatenate([[0], 1 + np.flatnonzero(differs[:, d])]) for d in range(self.length)]
        self.total = torch.empty(len(order), dtype=torch.float64, device=model.device)

    def visit(self, level: int, low: int, logits: torch.Tensor, sums: torch.Tensor, cache: DynamicCache) -> None:
        """Score the children of the nodes from ``low`` on, as many as there are rows of ``logits``, and go on to them.

        ``sums`` [nodes] are the log-probabilities of the nodes themselves.
        """
        here, below = self.begins[level], self.begins[level + 1]
        end = here[low + len(logits)] if low + len(logits) < len(here) else len(self.total)
        first, last = np.searchsorted(below, [here[low], end])
        starts = below[first:last]
        parents = torch.as_tensor(np.searchsorted(here, starts, side="right") - 1 - low, device=logits.device)
        tokens = self.ordered[torch.as_tensor(starts, device=logits.device), level]
        logs = torch.log_softmax(logits.float(), dim=1)
        children = sums[parents] + logs[parents, tokens].double()
        if level + 1 == self.length:
            self.total[first:last] = children
            return
        at_once = self._at_once(cache)
        for begin in range(0, last - first, at_once):
            part = slice(begin, begin + at_once)
            kept = DynamicCache([(layer.keys[parents[part]], layer.values[parents[part]]) for layer in cache.layers])
            out = self.model.network(input_ids=tokens[part, None], past_key_values=kept, use_cache=True)
            self.advance(len(parents[part]))
            self.visit(level + 1, first + begin, out.logits[:, -1], children[part], kept)

    def _at_once(self, cache: DynamicCache) -> int:
        """How many nodes to feed together, by the batch that suits the device and by the size of what is copied."""
        size = sum(layer.keys[0].numel() + layer.values[0].numel() for layer in cache.layers)
        held = HELD if self.model.device.type == "cpu" else 16 * HELD
        return int(max(1, min(Batching.on(self.model.device).tokens, held // size)))


def copyable(cache: Any) -> bool:
    """Whether the network keeps plain keys and values; others (recurrent states) cannot be shared by branches."""
    return type(cache) is DynamicCache and all(
        isinstance(getattr(layer, "keys", None), torch.Tensor) and layer.keys.ndim == 4 and not layer.is_sliding
        for layer in cache.layers
    )


def _row_by_row(model: LanguageModel, space: Space, advance: Advance) -> NDArray[np.float64]:
    """The same from whole rows, for networks whose memory is not one of keys and values."""
    found: list[NDArray[np.float64]] = []
    length = space.tokens.shape[1]
    for begin in range(0, len(space.tokens), _AT_ONCE):
        part = space.tokens[begin : begin + _AT_ONCE].astype(np.int64)
        rows = list(np.concatenate([np.broadcast_to(space.before, (len(part), len(space.before))), part], axis=1))
        values, _ = score_rows(model, rows, advance=advance)
        lp = values[FIELDS.index("lp")].reshape(len(part), -1)[:, -length:]
        found.append(-lp.sum(axis=1, dtype=np.float64))
    return np.concatenate(found)


def piecewise(model: LanguageModel, form: CanaryFormat) -> bool:
    """Whether every piece is one token whatever stands beside it: no token of the vocabulary holds two of them.

    Only asked of single characters without a joiner; the sign that some tokenizers put for a space is none of these.
    """
    if form.joiner or any(len(piece) != 1 for piece in form.alphabet):
        return False
    pair = re.compile(f"[{re.escape(''.join(form.alphabet))}]{{2}}")
    special = set(model.tokenizer.all_special_tokens)
    words = (text for text in model.tokenizer.get_vocab() if text not in special and not _BYTE.fullmatch(text))
    return not any(pair.search(text) for text in words)


def _product(model: LanguageModel, form: CanaryFormat, prefix: str) -> Space | None:
    """The space of a tokenizer that gives each piece its own token, from one text a piece; None where it does not."""
    texts = [piece * form.length for piece in form.alphabet]
    rows = secret_rows(model, prefix, texts, form.after)
    if len({row.kind for row in rows}) != 1 or len(rows[0].ids) - rows[0].start != form.length:
        return None
    table = np.stack([row.ids[row.start :] for row in rows])  # [pieces, length]: a token may depend on its place
    places = np.indices((len(form.alphabet),) * form.length, dtype=np.uint8).reshape(form.length, -1)
    tokens = np.stack([table[places[d], d] for d in range(form.length)], axis=1)
    return Space(before=rows[0].ids[: rows[0].start], tokens=tokens.astype(np.int32))
