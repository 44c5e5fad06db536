"""Training records that attacks expose: for the owner of the data only, never part of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

#: A false positive rate of 1 %, with a margin for rounding.
_RATE = 0.01 + 1e-9


class Why(StrEnum):
    """Why a record, or a group of records, may stand out."""

    COPIES = "copies"
    NEAR_COPY = "near-copy"
    RARE_WORDS = "rare words"
    RARE_LABEL = "rare label"
    HARD = "hard"
    MANY_RECORDS = "many records"
    SHARED = "shared"

    @property
    def repeats(self) -> bool:
        """Whether the record is a repetition, so that deduplicating the data would affect it."""
        return self in (Why.COPIES, Why.NEAR_COPY, Why.SHARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a record may stand out; ``text`` gives counts and line numbers, nothing of the record's content."""

    why: Why
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakingRecord:
    """A record, identified by ``file`` and ``line`` (from 1); its text is not included.

    ``extracted`` says whether the model reproduces it verbatim; None if that was not tried, as for the second of two
    equal texts. ``scores`` are by attack, higher for more member-like; ``nonmembers_as_high`` is the fraction of
    non-members that score at least as high. Both omit attacks that did not score the record, and list the most
    revealing attack first. ``reasons`` say why it may stand out, as far as that was examined. For a group, ``line`` is
    that of its first scored record, and ``records`` its total number of records. ``known_elsewhere`` says whether a
    reference model reproduces it too.
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
class Separation:
    """How well ``attack`` separates ``records`` from non-members: ``auc`` with ties as losses, ``tpr`` at 1 % FPR."""

    attack: str
    records: int
    auc: float
    tpr: float


def separation(records: Sequence[LeakingRecord], attack: str) -> Separation | None:
    """How well ``attack`` separates those of ``records`` that it scored from non-members; None if it scored none."""
    rates = [record.nonmembers_as_high[attack] for record in records if attack in record.nonmembers_as_high]
    if not rates:
        return None
    detected = sum(rate <= _RATE for rate in rates)
    return Separation(attack=attack, records=len(rates), auc=1 - sum(rates) / len(rates), tpr=detected / len(rates))
