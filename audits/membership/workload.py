"""Two sets of records as rows to be scored, and the records among them that are put in front of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from audits.scores.table import Skip
from privctl.data.columns import HeadKind
from privctl.data.records import Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Shots:
    """The rows of non-members and members that are put in front of others; ``reason`` says why there are none."""

    nonmembers: Sequence[NDArray[np.int64]] = ()
    members: Sequence[NDArray[np.int64]] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Two sets of records, ready to be scored; ``rows`` are in file order, members first.

    ``counts`` [records] are the numbers of token scores of each.
    """

    task: str
    rows: tuple[NDArray[Any], ...]
    counts: NDArray[np.int64]
    records: tuple[Record, ...]
    digests: tuple[bytes, ...]
    member: NDArray[np.bool_]
    line: NDArray[np.int64]
    truncated: NDArray[np.bool_]
    skipped: tuple[tuple[bool, int, Skip], ...]
    max_length: int | None
    #: The kind of a classifier's head; None for other models.
    head: HeadKind | None = None
    #: Records set aside to be put in front of others; None if no attack needs them.
    shots: Shots | None = None
