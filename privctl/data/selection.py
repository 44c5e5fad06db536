"""Records chosen such that each user is in so many at most (docs/batches.md#records-of-several-users).

What is chosen depends on the users that records name and on the order of the records, on nothing that they say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from privctl.data.sharing import Sharing
from privctl.domain.errors import InputError
from privctl.domain.shared_records import SharedRecords
from privctl.domain.shown import counted

if TYPE_CHECKING:
    from scipy.sparse import csr_array

    from privctl.data.sharing import Flags

#: Records in dispute up to which an integer program is solved, and the nodes of its search tree.
_PROGRAM, _NODES = 4000, 200
#: Passes of the local search, and users of a record up to which it is exchanged for others.
_PASSES, _USERS = 10, 8


def select(sharing: Sharing, most: int, rule: SharedRecords, name: str = "the data") -> Flags:
    """Which records are used, [records], by ``rule``, such that each user is in ``most`` of them at most.

    Raises InputError, calling the data ``name``, where all must be used and a user is in more.
    """
    if rule is SharedRecords.ALL:
        _require(sharing, most, name)
    kept = np.ones(len(sharing), np.bool_) if rule is SharedRecords.ALL else _RULES[rule](sharing, most)
    if (used := int(sharing.counts(kept).max(initial=0))) > most:
        raise RuntimeError(f"{rule} puts a user in {used} records, where {most} are allowed")
    return kept


def _require(sharing: Sharing, most: int, name: str) -> None:
    counts = sharing.counts()
    if (over := int((counts > most).sum())) == 0:
        return
    used = int(greedy(sharing, most).sum())
    raise InputError(
        f"{name} has {counted(over, 'user')} in more than {counted(most, 'record')} (one is in {counts.max()}), and "
        f"--shared-records all uses every record; raise --max-records-per-user, or give --shared-records greedy, which "
        f"uses {used} of {len(sharing)} and takes as public which users a record names"
    )


def first_records(sharing: Sharing, most: int) -> Flags:
    """The records that are among the first ``most`` of each of their users.

    Without some records, the others keep their order: of these, then, only more are used, and only such as share a user
    with what is gone.
    """
    order = np.lexsort((sharing.records, sharing.users))
    users = sharing.users[order]
    beyond = np.arange(len(order)) - np.searchsorted(users, users) >= most
    kept: Flags = np.bincount(sharing.records[order], weights=beyond, minlength=len(sharing)) == 0
    return kept


def greedy(sharing: Sharing, most: int) -> Flags:
    """Records one after another as long as no user is in more than ``most``, those first whose users are in few.

    A record's price is the sum of 1 - ``most`` / n over those of its users who are in n > ``most``; the cheapest come
    first, and among equals the earliest.
    """
    disputed = _Disputed(sharing, most)
    kept = np.ones(len(sharing), np.bool_)
    kept[disputed.records] = disputed.greedy()
    return kept


def most_records(sharing: Sharing, most: int) -> Flags:
    """As many records as can be found: the greedy choice, bettered by exchanges, and where few are in dispute by HiGHS.

    What HiGHS finds within its limit is a best choice, or not; the limit is one of nodes, so that it is repeatable.
    """
    disputed = _Disputed(sharing, most)
    kept = np.ones(len(sharing), np.bool_)
    found = disputed.exchanged(disputed.greedy())
    if 0 < len(found) <= _PROGRAM:
        solved = disputed.solved()
        found = solved if solved is not None and solved.sum() > found.sum() else found
    kept[disputed.records] = found
    return kept


class _Disputed:
    """The records of users who are in more than ``most``, with these users only: all other records are used."""

    def __init__(self, sharing: Sharing, most: int) -> None:
        counts = sharing.counts()
        scarce = counts[sharing.users] > most
        self.records, records = np.unique(sharing.records[scarce], return_inverse=True)
        users, numbers = np.unique(sharing.users[scarce], return_inverse=True)
        self._part = Sharing(records.astype(np.int64), numbers.astype(np.int64))
        self._users = self._part.by_record() if len(self.records) else []
        self._counts = counts[users]
        self._most = most

    def greedy(self) -> Flags:
        """See ``greedy``, [disputed records]."""
        wanted = 1 - self._most / self._counts[self._part.users]
        price = np.bincount(self._part.records, weights=wanted, minlength=len(self.records))
        load = [0] * len(self._counts)
        kept = np.zeros(len(self.records), np.bool_)
        for record in np.argsort(price, kind="stable").tolist():
            self._take(record, load, kept)
        return kept

    def _take(self, record: int, load: list[int], kept: Flags) -> bool:
        """Use the record if nobody is in too many then."""
        if kept[record] or any(load[user] >= self._most for user in self._users[record]):
            return False
        self._move(record, 1, load)
        kept[record] = True
        return True

    def _move(self, record: int, by: int, load: list[int]) -> None:
        for user in self._users[record]:
            load[user] += by

    def exchanged(self, kept: Flags) -> Flags:
        """``kept``, of which one record after another is given up wherever two or more can take its place."""
        kept = kept.copy()
        load: list[int] = self._part.counts(kept).tolist()
        for _ in range(_PASSES):
            waiting = self._waiting(kept, load)
            if not sum(self._exchange(record, waiting, load, kept) for record in np.flatnonzero(kept).tolist()):
                break
        return kept

    def _waiting(self, kept: Flags, load: Sequence[int]) -> dict[tuple[int, ...], list[int]]:
        """The records that are not used, by those of their users who are in as many as they may be."""
        found: dict[tuple[int, ...], list[int]] = {}
        for record in np.flatnonzero(~kept).tolist():
            full = tuple(sorted(user for user in self._users[record] if load[user] >= self._most))
            found.setdefault(full, []).append(record)
        return found

    def _exchange(
        self, record: int, waiting: Mapping[tuple[int, ...], list[int]], load: list[int], kept: Flags
    ) -> bool:
        """Put two or more waiting records in the place of ``record``; whether that could be done."""
        users = sorted(self._users[record])
        if not kept[record] or len(users) > _USERS:
            return False
        self._move(record, -1, load)
        kept[record] = False
        taken: list[int] = []
        for size in range(1, len(users) + 1):
            for full in combinations(users, size):
                for other in waiting.get(full, ()):
                    if any(load[user] >= self._most for user in full):
                        break
                    if other != record and self._take(other, load, kept):
                        taken.append(other)
        if len(taken) > 1:
            return True
        for other in taken:
            self._move(other, -1, load)
            kept[other] = False
        self._move(record, 1, load)
        kept[record] = True
        return False

    def solved(self) -> Flags | None:
        """The choice of HiGHS for the integer program, at most so many nodes deep; None where it finds none."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        limits, aim = LinearConstraint(self._matrix(), -np.inf, self._most), -np.ones(len(self.records))
        whole = np.ones(len(aim), np.int64)
        found = milp(aim, integrality=whole, bounds=Bounds(0, 1), constraints=limits, options={"node_limit": _NODES})
        if found.x is None:
            return None
        kept = found.x > 1 / 2
        return kept if (self._part.counts(kept) <= self._most).all() else None

    def most_possible(self) -> int:
        """A bound on how many of the disputed records can be used, by the dual of the linear program.

        Any prices of users give one (weak duality), so those of the solver need not be exact.
        """
        from scipy.optimize import linprog

        if not len(self.records):
            return 0
        matrix, limits = self._matrix(), np.full(len(self._counts), float(self._most))
        aim = -np.ones(len(self.records))
        # The types that scipy states know no sparse matrix here.
        found = linprog(aim, A_ub=matrix, b_ub=limits, bounds=(0, 1), method="highs")  # type: ignore[call-overload]
        if found.ineqlin is None:
            return len(self.records)
        prices = np.maximum(0.0, -found.ineqlin.marginals)
        left = np.maximum(0.0, 1 - matrix.T @ prices)
        return min(len(self.records), int(np.floor(self._most * prices.sum() + left.sum() + 1e-6)))

    def _matrix(self) -> csr_array[np.float64]:
        """1 where a user is in a record, [users, records]."""
        from scipy.sparse import csr_array

        part, shape = self._part, (len(self._counts), len(self.records))
        places = (part.users.astype(np.int32), part.records.astype(np.int32))  # scipy 1.13's milp takes no wider ones
        return csr_array((np.ones(len(part.users)), places), shape=shape)


def most_possible(sharing: Sharing, most: int) -> int:
    """A number of records that no choice exceeds in which every user is in ``most`` at most: the linear program's."""
    disputed = _Disputed(sharing, most)
    return len(sharing) - len(disputed.records) + disputed.most_possible()


_RULES: Mapping[SharedRecords, Callable[[Sharing, int], Flags]] = {
    SharedRecords.FIRST: first_records,
    SharedRecords.GREEDY: greedy,
    SharedRecords.MOST: most_records,
}
