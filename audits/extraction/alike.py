"""Whether training text comes out more often than *similar* held-out text, and not only overall.

Held-out text is a control only if both files were drawn alike. If boilerplate that models learn elsewhere, such as
public licences, occurs in only one file, it comes out of that file alone, although the model never saw the file. So
evidence against a model must also hold among similar texts. The texts are ordered by how much their words resemble
those of texts that come out (a prognostic score, Hansen 2008, cross-fitted, so that no text influences its own score)
and cut into blocks, and Fisher's exact test is stratified by block. A block with texts of only one file is not
informative.

If the sides are exchangeable, the test is exact: the order depends on what comes out and never on the sides. It can
only cast doubt on texts that resemble others; no control can detect unusual texts that the model learned elsewhere.
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
#: At most this many of the texts that come out are compared, and as many of the others, selected by digest.
MOST = 1000
#: The average number of texts of the smaller side per block.
_EACH = 5
_RIDGE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of ``train`` training and ``heldout`` held-out texts; ``out`` come out, ``found`` of them in training."""

    train: int
    heldout: int
    out: int
    found: int

    @property
    def informative(self) -> bool:
        """Whether another value of ``found`` was possible."""
        return 0 < self.out < self.train + self.heldout and min(self.train, self.heldout) > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class AmongAlike:
    """A comparison repeated among similar texts, and how these were chosen.

    ``place`` [chosen] is the index of each chosen text among those compared, training text first, and ``block``
    [chosen] the number of its block; -1 without blocks.
    """

    evidence: Evidence
    place: NDArray[np.int64]
    block: NDArray[np.int64]


def select_texts(digests: Sequence[bytes], out: NDArray[np.bool_], most: int = MOST) -> NDArray[np.int64]:
    """Indices of up to ``most`` texts that come ``out`` [texts] and as many that do not, by least digest."""
    order = np.array(sorted(range(len(digests)), key=digests.__getitem__), dtype=np.int64)
    kept = [order[out[order]][:most], order[~out[order]][:most]]
    return np.sort(np.concatenate(kept))


def digest_of(row: NDArray[np.int64]) -> bytes:
    """A digest that identifies a text by its tokens."""
    return hashlib.blake2b(np.ascontiguousarray(row).tobytes(), digest_size=8).digest()


def block_numbers(
    texts: Sequence[str], digests: Sequence[bytes], train: NDArray[np.bool_], out: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Cut ``texts`` into blocks that resemble what comes ``out`` [texts] to a similar degree: the block of each.

    ``train`` [texts] marks the training texts. All are -1 if one side is empty or all or none come out.
    """
    fewer = int(min(train.sum(), (~train).sum()))
    number = np.full(len(texts), -1, dtype=np.int64)
    if not fewer or not 0 < out.sum() < len(out):
        return number
    alike = cross_fitted(ngrams(texts), folds(digests), out[None], _RIDGE)[0]
    order = sorted(range(len(texts)), key=lambda i: (-round(float(alike[i]), 9), digests[i]))
    size = -(-_EACH * len(texts) // fewer)
    number[order] = np.minimum(np.arange(len(order)) // size, max(1, len(order) // size) - 1)
    return number


def blocks(number: NDArray[np.int64], train: NDArray[np.bool_], out: NDArray[np.bool_]) -> list[Block]:
    """The blocks of texts by the ``number`` [texts] of each, of ``train`` [texts] texts, some of which come ``out``."""
    return [_block(train[number == each], out[number == each]) for each in range(int(number.max(initial=-1)) + 1)]


def _block(train: NDArray[np.bool_], out: NDArray[np.bool_]) -> Block:
    members = int(train.sum())
    return Block(train=members, heldout=len(train) - members, out=int(out.sum()), found=int((out & train).sum()))


def p_value(blocks: Sequence[Block]) -> float:
    """The one-sided p-value of the training texts found, if the sides were permuted within each block.

    The count is a sum of independent hypergeometric variables, convolved exactly. Two blocks of 2 and 2 texts, in each
    of which both texts that come out are training text, give 1/36.
    """
    law, least, seen = np.ones(1), 0, 0
    for block in blocks:
        if not block.informative:
            continue
        low, ours = hypergeometric(block.train + block.heldout, block.out, block.train)
        law = np.convolve(law, ours)
        least, seen = least + low, seen + block.found
    return min(1.0, float(law[seen - least :].sum()))


def among_alike(
    accusing: Evidence, number: NDArray[np.int64], train: NDArray[np.bool_], out: NDArray[np.bool_]
) -> Evidence:
    """The comparison ``accusing``, repeated within the blocks ``number`` [texts] at the same level.

    Its estimate is the difference of the rates within blocks (Mantel and Haenszel).
    """
    level = 1 - accusing.confidence
    telling = [block for block in blocks(number, train, out) if block.informative]
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


def compared_among_alike(
    accusing: Evidence,
    model: LanguageModel,
    sides: Sequence[Sequence[NDArray[np.int64]]],
    out: Sequence[NDArray[np.bool_]],
) -> AmongAlike:
    """``among_alike`` for the tokens of both ``sides``, training text first, of which ``out`` [texts] come out."""
    rows = [*sides[0], *sides[1]]
    train, came = np.arange(len(rows)) < len(sides[0]), np.concatenate(out)
    digests = [digest_of(row) for row in rows]
    chosen = select_texts(digests, came)
    texts = decoded(model, [rows[i] for i in chosen])
    number = block_numbers(texts, [digests[i] for i in chosen], train[chosen], came[chosen])
    return AmongAlike(evidence=among_alike(accusing, number, train[chosen], came[chosen]), place=chosen, block=number)


def not_confirmed(evidence: Sequence[Evidence]) -> set[tuple[str, str]]:
    """The (method, quantity) of each comparison that is not significant among similar texts."""
    return {
        (item.method, item.quantity.removesuffix(ALIKE))
        for item in evidence
        if item.quantity.endswith(ALIKE) and not item.details["detected"]
    }
