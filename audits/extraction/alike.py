"""Whether training text comes out more often than held-out text *of the same kind*, and not only on the whole.

Held-out text is a control only if both files were drawn alike. Where boilerplate that models learn elsewhere, such as
public licences, stands in one file alone, it comes out of that file alone, although the model never saw the file. So
what would accuse a model has to hold among texts that are alike too: those texts are ordered by how much their words
resemble texts that come out (a prognostic score, Hansen 2008, cross-fitted, so that no text has a part in its own), cut
into blocks, and Fisher's exact test is made within the blocks. A block with texts of one file says nothing.

If the sides are exchangeable, the test is exact: the order is by what comes out and never by the sides. It doubts only
what resembles something; texts that resemble nothing, and that the model learned elsewhere, no control can tell.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from audits.membership.features import ngrams
from audits.scores.rows import decoded
from audits.statistics.cross_fit import cross_fitted, folds
from audits.statistics.laws import hypergeometric
from privctl.domain.evidence import Bound, Evidence
from privctl.models.language import LanguageModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALIKE = ", among texts alike"
INTERVAL = "Fisher's exact test within blocks of texts alike, one-sided"
#: How many texts that come out are looked at, and as many others, by their digests.
MOST = 1000
#: Texts of the smaller side that a block has on average.
_EACH = 5
_RIDGE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """So many ``texts`` of which ``train`` are training text and ``out`` come out, ``found`` of these training text."""

    train: int
    heldout: int
    out: int
    found: int

    @property
    def tells(self) -> bool:
        """Whether it could have come out otherwise."""
        return 0 < self.out < self.train + self.heldout and min(self.train, self.heldout) > 0


def looked_at(digests: Sequence[bytes], out: NDArray[np.bool_], most: int = MOST) -> NDArray[np.int64]:
    """The places of at most ``most`` texts that come ``out`` [texts], and as many others: those of least digests."""
    order = np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)
    kept = [order[out[order]][:most], order[~out[order]][:most]]
    return np.sort(np.concatenate(kept))


def digest_of(row: NDArray[np.int64]) -> bytes:
    """Names a text by its tokens."""
    return hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).digest()


def blocks(
    texts: Sequence[str], digests: Sequence[bytes], train: NDArray[np.bool_], out: NDArray[np.bool_]
) -> list[Block]:
    """``texts`` in blocks of those that resemble what comes ``out`` [texts] alike; ``train`` [texts] are the sides."""
    fewer = int(min(train.sum(), (~train).sum()))
    if not fewer or not 0 < out.sum() < len(out):
        return []
    alike = cross_fitted(ngrams(texts), folds(digests), out[None], _RIDGE)[0]
    order = sorted(range(len(texts)), key=lambda i: (-round(float(alike[i]), 9), digests[i]))
    size = -(-_EACH * len(texts) // fewer)
    starts = range(0, max(1, len(order) - size + 1), size)
    pieces = [order[start : start + size] for start in starts]
    pieces[-1] = order[starts[-1] :]
    return [_block(train[piece], out[piece]) for piece in pieces]


def _block(train: NDArray[np.bool_], out: NDArray[np.bool_]) -> Block:
    members = int(train.sum())
    return Block(train=members, heldout=len(train) - members, out=int(out.sum()), found=int((out & train).sum()))


def p_value(found: Sequence[Block]) -> float:
    """The chance that so many of what comes out, or more, is training text, if the sides of each block were shuffled.

    The sum of independent hypergeometric variables, by convolution. Two blocks of 2 and 2 texts, of each of which both
    that come out are training text, give 1/36.
    """
    law, least, seen = np.ones(1), 0, 0
    for block in found:
        if not block.tells:
            continue
        low, ours = hypergeometric(block.train + block.heldout, block.out, block.train)
        law = np.convolve(law, ours)
        least, seen = least + low, seen + block.found
    return min(1.0, float(law[seen - least :].sum()))


def among_alike(
    accusing: Evidence, texts: Sequence[str], digests: Sequence[bytes], train: NDArray[np.bool_], out: NDArray[np.bool_]
) -> Evidence:
    """The comparison ``accusing``, made again among ``texts`` alike, at the same level.

    Its estimate is the difference of the rates within blocks (Mantel and Haenszel).
    """
    level = 1 - accusing.confidence
    telling = [block for block in blocks(texts, digests, train, out) if block.tells]
    tables = Counter(f"blocks of {b.train} and {b.heldout}, {b.out} out" for b in telling)
    value = p_value(telling)
    beyond = sum(b.found - b.out * b.train / (b.train + b.heldout) for b in telling)
    weight = sum(b.train * b.heldout / (b.train + b.heldout) for b in telling)
    return Evidence(
        method=accusing.method,
        quantity=accusing.quantity + ALIKE,
        estimate=beyond / weight if telling else None,
        confidence=accusing.confidence,
        bound=Bound.NONE,
        interval=INTERVAL,
        samples={"training": int(train.sum()), "held_out": int((~train).sum())},
        details={
            "chance": 0.0,
            "compared": sum(block.out for block in telling),
            "compared_training": sum(block.found for block in telling),
            **{name: float(count) for name, count in sorted(tables.items())},
            "p_value": value,
            "level": level,
            "detected": float(value <= level),
        },
        reason="" if telling else "no texts of both files resemble what comes out",
    )


def again(
    accusing: Evidence,
    model: LanguageModel,
    sides: Sequence[Sequence[NDArray[np.int64]]],
    out: Sequence[NDArray[np.bool_]],
) -> Evidence:
    """``among_alike`` of the tokens of both ``sides``, training text first, of which ``out`` [texts] come out."""
    rows = [*sides[0], *sides[1]]
    train, came = np.arange(len(rows)) < len(sides[0]), np.concatenate(out)
    digests = [digest_of(row) for row in rows]
    chosen = looked_at(digests, came)
    texts = decoded(model, [rows[i] for i in chosen])
    return among_alike(accusing, texts, [digests[i] for i in chosen], train[chosen], came[chosen])


def silenced(evidence: Sequence[Evidence]) -> set[tuple[str, str]]:
    """Method and quantity of each comparison that does not hold among texts alike."""
    return {
        (item.method, item.quantity.removesuffix(ALIKE))
        for item in evidence
        if item.quantity.endswith(ALIKE) and not item.details["detected"]
    }
