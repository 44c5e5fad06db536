"""The table of per-token scores that every attack uses. Kept in memory only: texts can be reconstructed from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The scores of one token, in the order of ``token_scores`` (docs/attacks.md#scores).
FIELDS = ("lp", "mu", "var", "rank", "margin", "lse")


class Skip(IntEnum):
    """Why a record has no scores; the numbers are part of the file format."""

    TOO_SHORT = 1
    DUPLICATE = 2
    IN_BOTH = 3
    NOT_FINITE = 4
    PUT_ASIDE = 5
    SHARED = 6
    REPEATED = 7

    @property
    def reason(self) -> str:
        """The wording in reports."""
        return {
            Skip.TOO_SHORT: "of too few tokens for one to be predicted",
            Skip.DUPLICATE: "repeating an earlier record of their file",
            Skip.IN_BOTH: "occurring among members and non-members alike",
            Skip.NOT_FINITE: "given NaN or infinite scores by the model",
            Skip.PUT_ASIDE: "put aside for attacks that put such records in front of others",
            Skip.SHARED: "with a text that several groups of the split have",
            Skip.REPEATED: "repeated, while others occur in both files",
        }[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTable:
    """Scores of every predicted token, record after record; for a classifier, the label is its record's only token.

    Of shape [tokens], float32: ``lp`` log-probability of the actual token, ``mu`` and ``var`` mean and variance of the
    log-probability over the vocabulary (nats), ``rank`` how many tokens had a greater logit, ``margin`` its logit minus
    the best other one (0 is a tie), ``lse`` the log-sum-exp of the logits.

    Record i owns tokens ``offsets[i]`` to ``offsets[i + 1]``; ``member``, ``line`` (in its file) and ``truncated`` have
    one entry per record, the ``skipped_`` arrays one per record without scores.
    """

    lp: NDArray[np.float32]
    mu: NDArray[np.float32]
    var: NDArray[np.float32]
    rank: NDArray[np.float32]
    margin: NDArray[np.float32]
    lse: NDArray[np.float32]
    offsets: NDArray[np.int64]
    member: NDArray[np.bool_]
    line: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    skipped_member: NDArray[np.bool_]
    skipped_line: NDArray[np.int64]
    skipped_reason: NDArray[np.uint8]

    @property
    def records(self) -> int:
        """The number of records with scores."""
        return len(self.member)

    @property
    def tokens(self) -> int:
        """The number of scored tokens."""
        return len(self.lp)

    @property
    def samples(self) -> dict[str, int]:
        """The numbers of scored members and non-members."""
        members = int(self.member.sum())
        return {"members": members, "nonmembers": self.records - members}

    @property
    def cut_counts(self) -> dict[str, int]:
        """The numbers of scored members and non-members that were cut; empty if none were."""
        members = int(self.truncated[self.member].sum())
        others = int(self.truncated.sum()) - members
        return {"members": members, "nonmembers": others} if members or others else {}

    def means(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """The mean of ``values`` [tokens] over each record's tokens, [records], in double precision."""
        return np.asarray(self.sums(values) / np.diff(self.offsets), dtype=np.float64)

    def sums(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """The sum of ``values`` [tokens] over each record's tokens, [records], in double precision."""
        return np.asarray(np.add.reduceat(values.astype(np.float64), self.offsets[:-1]), dtype=np.float64)

    def split(self, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """``values`` [records] of the members, and of the non-members."""
        return values[self.member], values[~self.member]

    def skip_counts(self) -> Mapping[tuple[bool, Skip], int]:
        """The number of records left out, by membership and reason."""
        pairs = zip(self.skipped_member.tolist(), self.skipped_reason.tolist(), strict=True)
        counts: dict[tuple[bool, Skip], int] = {}
        for member, reason in pairs:
            counts[member, Skip(reason)] = counts.get((member, Skip(reason)), 0) + 1
        return dict(sorted(counts.items(), reverse=True))
