"""The table of per-token scores that every attack reads, in memory and as a safetensors file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from privctl.domain.errors import InputFault
from privctl.storage.arrays import read_arrays
from privctl.storage.reader import SafetensorsFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: The scores of one token, in the order ``token_scores`` returns them (AUDITS 2.0).
FIELDS = ("lp", "mu", "var", "rank", "margin", "lse")

_LAYOUT = {
    **dict.fromkeys(FIELDS, "F32"),
    "offsets": "I64",
    "member": "BOOL",
    "line": "I64",
    "truncated": "BOOL",
    "skipped_member": "BOOL",
    "skipped_line": "I64",
    "skipped_reason": "U8",
}


class Skip(IntEnum):
    """Why a record has no scores; the numbers are part of the file format."""

    TOO_SHORT = 1
    DUPLICATE = 2
    IN_BOTH = 3
    NOT_FINITE = 4

    @property
    def reason(self) -> str:
        """What a report says."""
        return {
            Skip.TOO_SHORT: "of too few tokens for one to be predicted",
            Skip.DUPLICATE: "repeating an earlier record of their file",
            Skip.IN_BOTH: "occurring among members and non-members alike",
            Skip.NOT_FINITE: "given NaN or infinite scores by the model",
        }[self]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreTable:
    """Scores of every predicted token, record after record; of a classifier, the label is the one token of its record.

    Of shape [tokens], float32: ``lp`` log-probability of the token that came, ``mu`` and ``var`` mean and variance of
    the log-probability over the vocabulary (nats), ``rank`` how many tokens had a greater logit, ``margin`` its logit
    minus the best other one (0 is a tie), ``lse`` the log of the logits' summed exponentials.
    Record i owns tokens ``offsets[i]`` to ``offsets[i + 1]``; ``member``, ``line`` (in its file) and ``truncated`` have
    one entry a record, the ``skipped_`` arrays one a record that has no scores.
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
        """Number of records with scores."""
        return len(self.member)

    @property
    def tokens(self) -> int:
        """Number of scored tokens."""
        return len(self.lp)

    @property
    def samples(self) -> dict[str, int]:
        """Scored records by set."""
        members = int(self.member.sum())
        return {"members": members, "nonmembers": self.records - members}

    def means(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """The mean over each record's tokens of ``values`` [tokens], as [records] in double precision."""
        return np.asarray(self.sums(values) / np.diff(self.offsets), dtype=np.float64)

    def sums(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """The sum over each record's tokens of ``values`` [tokens], as [records] in double precision."""
        return np.asarray(np.add.reduceat(values.astype(np.float64), self.offsets[:-1]), dtype=np.float64)

    def split(self, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """``values`` [records] of the members, and of the non-members."""
        return values[self.member], values[~self.member]

    def skipped(self) -> Mapping[tuple[bool, Skip], int]:
        """How many records were left out, by membership and reason."""
        pairs = zip(self.skipped_member.tolist(), self.skipped_reason.tolist(), strict=True)
        counts: dict[tuple[bool, Skip], int] = {}
        for member, reason in pairs:
            counts[member, Skip(reason)] = counts.get((member, Skip(reason)), 0) + 1
        return dict(sorted(counts.items(), reverse=True))


def arrays_of(table: ScoreTable) -> dict[str, NDArray[Any]]:
    """The table as arrays by name, as ``read_scores`` finds them in a file."""
    return {name: getattr(table, name) for name in _LAYOUT}


def read_scores(path: Path) -> ScoreTable:
    """The table held by ``path``; raises InputFault for any other safetensors file, or one that contradicts itself."""
    with SafetensorsFile(path) as file:
        arrays = read_arrays(file, _LAYOUT, "an audit's scores; give a *.scores.safetensors file")
    table = ScoreTable(**arrays)
    _check(table, path)
    return table


def _check(table: ScoreTable, path: Path) -> None:
    ends, records = table.offsets, table.records
    reasons = np.isin(table.skipped_reason, [int(skip) for skip in Skip]).all()
    fits = (
        len(ends) == records + 1
        and ends[0] == 0
        and ends[-1] == table.tokens
        and bool((np.diff(ends) > 0).all())
        and len(table.line) == len(table.truncated) == records
        and len(table.skipped_member) == len(table.skipped_line) == len(table.skipped_reason)
        and all(len(getattr(table, name)) == table.tokens for name in FIELDS)
    )
    if not fits or not reasons:
        raise InputFault(f"{path} holds scores that do not add up to records; run the audit again")
    for name in FIELDS:
        if not np.isfinite(getattr(table, name)).all():
            raise InputFault(f"{path} holds NaN or infinite values in {name!r}; run the audit again")
