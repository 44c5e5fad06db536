"""The outcome of one set of prompts: what was written after them, and which records of both files it contains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from audits.extraction.came_out import SearchedFile
from audits.extraction.counts import UncertainCount
from audits.extraction.prompts import PromptSet

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenTexts:
    """What the model wrote for one set of prompts: ``texts`` in the order of the prompts, equally many for each.

    ``begins`` [texts] is the index at which each text stopped repeating its word.
    """

    prompts: PromptSet
    texts: list[NDArray[np.int64]]
    begins: NDArray[np.int64]

    @property
    def searched(self) -> list[NDArray[np.int64]]:
        """The part of each text after the repetition."""
        return [text[begin:] for text, begin in zip(self.texts, self.begins.tolist(), strict=True)]

    def details(self) -> dict[str, float]:
        """How many texts repeated and then stopped repeating, and after how many tokens on average."""
        if self.prompts.words is None:
            return {}
        lengths = np.array([len(text) for text in self.texts])
        left = (self.begins > 0) & (self.begins < lengths)
        mean = {"left_after_mean": float(self.begins[left].mean())} if left.any() else {}
        return {"repeated": int((self.begins > 0).sum()), "diverged": int(left.sum()), **mean}


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptOutcome:
    """The outcome for one set of prompts: by side, which records count, are compared, and come out.

    ``units`` [records] by side are the randomization units, if groups share coins. ``elsewhere`` [stretches] by side
    marks the stretches that a reference model also produces, None without one; ``left_out`` [records] by side marks the
    records that come out by these alone and are not compared.
    """

    written: WrittenTexts
    files: tuple[SearchedFile, ...]
    number: int
    counted: tuple[NDArray[np.bool_], ...]
    compared: tuple[NDArray[np.bool_], ...]
    units: tuple[NDArray[np.int64] | None, ...] = (None, None)
    elsewhere: tuple[NDArray[np.bool_], ...] | None = None
    left_out: tuple[NDArray[np.bool_], ...] | None = None

    def count(self, side: int, chosen: NDArray[np.bool_], *, nearly: bool = False) -> UncertainCount:
        """How many of the ``chosen`` records of one side come out."""
        return certain(self.files[side].came_out[self.number].records(chosen, nearly=nearly)[chosen])

    def compared_count(self, side: int, *, nearly: bool) -> UncertainCount:
        """How many of the compared records of one side, or of their units, come out."""
        chosen, units = self.compared[side], self.units[side]
        return certain(self.out(side, nearly=nearly)[chosen], None if units is None else units[chosen])

    def out(self, side: int, *, nearly: bool) -> NDArray[np.bool_]:
        """Which compared records [records] of one side come out, ignoring what is known from elsewhere."""
        but = None if self.elsewhere is None else self.elsewhere[side]
        return self.files[side].came_out[self.number].records(self.compared[side], nearly=nearly, but=but)

    def without(self, elsewhere: Sequence[NDArray[np.bool_]]) -> PromptOutcome:
        """The outcome if a reference model also produces the stretches ``elsewhere`` [stretches] of each side."""
        kept = []
        for file, among, but in zip(self.files, self.compared, elsewhere, strict=True):
            came = file.came_out[self.number]
            only = came.records(among, nearly=True) & ~came.records(among, nearly=True, but=but)
            kept.append(among & ~only)
        left_out = tuple(some & ~rest for some, rest in zip(self.compared, kept, strict=True))
        return replace(self, compared=tuple(kept), elsewhere=tuple(elsewhere), left_out=left_out)

    @property
    def giving(self) -> NDArray[np.bool_]:
        """Which texts contain a training record word for word."""
        return self.files[0].came_out[self.number].texts(self.counted[0], len(self.written.texts))

    @property
    def giving_prompts(self) -> NDArray[np.bool_]:
        """Which prompts yield a training record in any of their texts."""
        return np.asarray(self.giving.reshape(len(self.written.prompts.rows), -1).any(axis=1))


def certain(extracted: NDArray[np.bool_], units: NDArray[np.int64] | None = None) -> UncertainCount:
    """A count of what is ``extracted`` [texts] without undecided texts; with ``units`` [texts], of units."""
    return UncertainCount.of(extracted, np.zeros(len(extracted), dtype=np.bool_), units)
