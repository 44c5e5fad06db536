"""Evidence from optimized prefixes: how many texts of both files they open, and an exact test of the difference."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from audits.extraction.adversarial import GRADIENT, Adversary, OptimizedPrefixes, optimized_prefixes
from audits.extraction.alike import digest_of
from audits.extraction.coins import least
from audits.extraction.compare import beyond, known_details, rate
from audits.extraction.counts import UncertainCount
from audits.extraction.elsewhere import KnownElsewhere
from audits.extraction.summary import BEYOND
from audits.extraction.windows import TextShape, WindowShape
from privctl.domain.errors import CommandError
from privctl.domain.evidence import Evidence
from privctl.domain.progress import Progress, unseen
from privctl.domain.report import Omission
from privctl.models.language import LanguageModel
from privctl.parallel import ALONE, Workers

if TYPE_CHECKING:
    from numpy.typing import NDArray

METHOD = "adversarial prefix"
#: Two rates and their comparison.
QUANTITIES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Searchable:
    """Texts of one side, as ``rows`` of tokens; ``units`` [texts] are their randomization units, None if texts are.

    ``place`` [texts] is the index of each among the texts of its side.
    """

    rows: Sequence[NDArray[np.int64]]
    place: NDArray[np.int64]
    units: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, rows: Sequence[NDArray[np.int64]], units: NDArray[np.int64] | None = None) -> Searchable:
        """All texts of a side."""
        return cls(rows=rows, units=units, place=np.arange(len(rows)))

    def at(self, places: NDArray[np.int64]) -> Searchable:
        """The texts at ``places``."""
        units = None if self.units is None else self.units[places]
        return Searchable(rows=[self.rows[i] for i in places.tolist()], units=units, place=self.place[places])


@dataclass(frozen=True, slots=True, kw_only=True)
class BothSides:
    """The results of searching prefixes of ``tokens`` tokens for the selected training and held-out texts.

    ``elsewhere`` [texts] marks, by side, texts that the same search also opens in a reference model; None without one.
    """

    sides: tuple[Searchable, ...]
    train: OptimizedPrefixes
    heldout: OptimizedPrefixes
    adversary: Adversary
    tokens: int
    elsewhere: tuple[NDArray[np.bool_], ...] | None = None

    def judged(self, side: int) -> NDArray[np.bool_]:
        """Which texts [texts] of one side are compared."""
        every = np.ones(len((self.train, self.heldout)[side].spent), dtype=np.bool_)
        return every if self.elsewhere is None else ~self.elsewhere[side]


def require_control(adversary: Adversary, shape: TextShape, *, heldout: bool) -> None:
    """Raise CommandError if there is no held-out text or the prefixes are longer than a record's own."""
    tokens = adversary.length(shape.suffix)
    if not heldout:
        raise CommandError("--adversarial needs --held-out: a prefix can be found for text that nobody trained on too")
    if tokens > shape.prefix:
        raise CommandError(
            f"--adversarial-tokens is {tokens}, more than --prefix-tokens {shape.prefix}; give at most that"
        )


def parameters(adversary: Adversary | None, shape: WindowShape) -> dict[str, Any]:
    """The parameters of the search for the report."""
    if adversary is None:
        return {}
    return {
        "adversarial_texts": adversary.texts,
        "adversarial_tokens": adversary.length(shape.suffix),
        "adversarial_budget": adversary.budget,
        "adversarial_search": f"greedy coordinate gradient; a gradient counts as {GRADIENT} forward passes",
    }


def omissions(adversary: Adversary | None, found: BothSides | None) -> tuple[Omission, ...]:
    """An omission if a search was asked for and not possible."""
    if adversary is None or found is not None:
        return ()
    reason = "no text is left to search for, or the embeddings of this network give no gradient to search by"
    return (Omission(what=METHOD, reason=reason),)


def search_both(
    model: LanguageModel,
    sides: Sequence[Searchable],
    shape: TextShape,
    adversary: Adversary,
    seed: int,
    workers: Workers = ALONE,
    progress: Progress = unseen,
    *,
    drawn: bool = False,
    elsewhere: KnownElsewhere | None = None,
) -> BothSides | None:
    """Run the same search for texts selected from both ``sides``; None if not possible.

    If the sides were ``drawn`` by coins, the texts are selected from both together, by digest. Texts that were opened
    are also searched for in the reference model of ``elsewhere``.
    """
    found = []
    searched = _chosen(sides, adversary.texts, seed, drawn=drawn)
    if not all(side.rows for side in searched):
        return None
    for side in searched:
        count = len(side.rows)
        with progress("optimizing prefixes", count * adversary.budget / workers.size, "passes") as advance:
            one = optimized_prefixes(
                model, side.rows, shape.suffix, adversary, bos=shape.bos, seed=seed, workers=workers,
                advance=advance,
            )  # fmt: skip
        if one is None:
            return None
        found.append(one)
    known = [
        elsewhere.opens(side.rows, one.matches.extracted | one.matches.undecided, adversary, seed)
        for side, one in zip(searched, found, strict=True)
        if elsewhere is not None
    ]
    return BothSides(
        sides=tuple(searched),
        train=found[0],
        heldout=found[1],
        adversary=adversary,
        tokens=adversary.length(shape.suffix),
        elsewhere=tuple(known) or None,
    )


def _chosen(sides: Sequence[Searchable], texts: int, seed: int, *, drawn: bool) -> list[Searchable]:
    if drawn:
        places = least([[digest_of(row) for row in side.rows] for side in sides], len(sides) * texts)
        return [side.at(some) for side, some in zip(sides, places, strict=True)]
    counts = [min(texts, len(side.rows)) for side in sides]
    return [
        side.at(np.sort(np.random.default_rng(seed).choice(len(side.rows), count, replace=False)))
        for side, count in zip(sides, counts, strict=True)
    ]


def of_prefixes(both: BothSides, confidence: float) -> tuple[Evidence, ...]:
    """The rates of texts that a prefix opens, and whether training text is opened more often.

    Undecided texts count against a difference.
    """
    ours, theirs = _count(both.train), _count(both.heldout)
    samples = {"training": ours.total, "held_out": theirs.total}
    rates = [
        rate(
            METHOD,
            side,
            count,
            confidence,
            samples,
            {
                "undecided": int(found.matches.undecided.sum()),
                "prefix_tokens": both.tokens,
                "budget": both.adversary.budget,
                "passes_mean": float(found.spent.mean()),
            },
        )
        for side, count, found in (("training", ours, both.train), ("held-out", theirs, both.heldout))
    ]
    ours, theirs = (
        _count(found, both.judged(i), both.sides[i].units) for i, found in enumerate((both.train, both.heldout))
    )
    difference = beyond(METHOD, BEYOND, ours, theirs, confidence)
    left_out = None if both.elsewhere is None else [int(known.sum()) for known in both.elsewhere]
    return (replace(difference, details={**difference.details, **known_details(left_out)}), *rates)


def compared(both: BothSides) -> tuple[list[list[NDArray[np.int64]]], list[NDArray[np.bool_]]]:
    """The tokens of the compared texts of each side, and which of them a prefix opens.

    Undecided texts count against a difference.
    """
    ours, theirs = both.train.matches, both.heldout.matches
    out = (ours.extracted & ~ours.undecided, theirs.extracted | theirs.undecided)
    judged = [both.judged(side) for side in (0, 1)]
    rows = [
        [side.rows[i] for i in np.flatnonzero(some).tolist()] for side, some in zip(both.sides, judged, strict=True)
    ]
    return rows, [flags[some] for flags, some in zip(out, judged, strict=True)]


def _count(
    found: OptimizedPrefixes, among: NDArray[np.bool_] | None = None, units: NDArray[np.int64] | None = None
) -> UncertainCount:
    some = np.ones(len(found.spent), dtype=np.bool_) if among is None else among
    matches = found.matches
    return UncertainCount.of(matches.extracted[some], matches.undecided[some], None if units is None else units[some])
