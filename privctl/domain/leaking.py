"""A training record as attacks see it, for its owner alone: never part of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

#: A false positive rate of 1 %, with room for rounding.
_RATE = 0.01 + 1e-9


class Why(StrEnum):
    """Why a record may stand out, or a group of records."""

    COPIES = "copies"
    NEAR_COPY = "near-copy"
    RARE_WORDS = "rare words"
    RARE_LABEL = "rare label"
    HARD = "hard"
    MANY_RECORDS = "many records"
    SHARED = "shared"

    @property
    def repeats(self) -> bool:
        """Whether the record is repeated, so that leaving repetitions out of the data concerns it."""
        return self in (Why.COPIES, Why.NEAR_COPY, Why.SHARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a record may stand out, and in which way; ``text`` holds numbers and lines, nothing of the record."""

    why: Why
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakingRecord:
    """A record by its ``line``, from 1, in ``file``; its text is not here.

    ``extracted``: the model writes it word for word; None where that was not tried, as for the second of two equal
    texts. ``scores`` by attack, higher for more member-like; ``nonmembers_as_high`` is the share of non-members that
    score at least as high. Both lack an attack that left the record out, and name the attack that tells most first.
    ``reasons`` say why it may stand out, as far as that was looked for. Of a group, ``line`` is that of its first
    scored record, and ``records`` how many it has in all. ``known_elsewhere``: a reference model writes it too.
    """

    file: str
    line: int
    extracted: bool | None
    scores: Mapping[str, float]
    nonmembers_as_high: Mapping[str, float]
    reasons: tuple[Reason, ...] = ()
    records: int | None = None
    known_elsewhere: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """How well ``attack`` tells ``records`` from the non-members: ``auc`` with ties against it, ``tpr`` at 1 % FPR."""

    attack: str
    records: int
    auc: float
    tpr: float


def told(records: Sequence[LeakingRecord], attack: str) -> Told | None:
    """How well ``attack`` tells those of ``records`` that it scores; None where there are none."""
    shares = [record.nonmembers_as_high[attack] for record in records if attack in record.nonmembers_as_high]
    if not shares:
        return None
    beyond = sum(share <= _RATE for share in shares)
    return Told(attack=attack, records=len(shares), auc=1 - sum(shares) / len(shares), tpr=beyond / len(shares))
