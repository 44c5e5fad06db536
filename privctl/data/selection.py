"""Chooses records so that no user is in more than a given number of them (docs/batches.md#records-of-several-users).

The choice depends only on which users the records name and on the order of the records, not on their contents.
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

#: Most contested records for which an integer program is solved, and the limit on nodes of its search tree.
_PROGRAM, _NODES = 4000, 200
#: Most passes of the local search, and most users of a record that it tries to exchange.
_PASSES, _USERS = 10, 8


def select(sharing: Sharing, most: int, rule: SharedRecords, name: str = "the data") -> Flags:
    """Which records are used, [records], chosen by ``rule`` so that no user is in more than ``most`` of them.

    Raises InputError, naming the data ``name``, if the rule is to use all records and a user is in more.
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
    """The records that are among the first ``most`` of every one of their users, [records].

    Removing records only ever adds to the chosen ones among the rest, and only records that share a user with a removed
    one.
    """
    order = np.lexsort((sharing.records, sharing.users))
    users = sharing.users[order]
    beyond = np.arange(len(order)) - np.searchsorted(users, users) >= most
    kept: Flags = np.bincount(sharing.records[order], weights=beyond, minlength=len(sharing)) == 0
    return kept


def greedy(sharing: Sharing, most: int) -> Flags:
    """A greedy choice, [records]: in order of price, each record is used unless a user would exceed ``most``.

    A record's price is the sum of 1 - ``most`` / n over those of its users who are in n > ``most`` records; ties are
    broken by the order of records.
    """
    contested = _Contested(sharing, most)
    kept = np.ones(len(sharing), np.bool_)
    kept[contested.records] = contested.greedy()
    return kept


def most_records(sharing: Sharing, most: int) -> Flags:
    """A choice of as many records as can be found, [records]: the greedy choice, improved by exchanges and by HiGHS.

    HiGHS is used if few records are contested. It need not find an optimum within its limit, which is on nodes rather
    than time so that the result is reproducible.
    """
    contested = _Contested(sharing, most)
    kept = np.ones(len(sharing), np.bool_)
    selected = contested.exchanged(contested.greedy())
    if 0 < len(selected) <= _PROGRAM:
        by_program = contested.by_program()
        selected = by_program if by_program is not None and by_program.sum() > selected.sum() else selected
    kept[contested.records] = selected
    return kept


class _Contested:
    """The records of users who are in more than ``most``, restricted to these users; all other records are used."""

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
        """The greedy choice among the contested records, [contested records]; see the function ``greedy``."""
        wanted = 1 - self._most / self._counts[self._part.users]
        price = np.bincount(self._part.records, weights=wanted, minlength=len(self.records))
        load = [0] * len(self._counts)
        kept = np.zeros(len(self.records), np.bool_)
        for record in np.argsort(price, kind="stable").tolist():
            self._take(record, load, kept)
        return kept

    def _take(self, record: int, load: list[int], kept: Flags) -> bool:
        """Use the record, and return True, if it is unused and puts no user over the limit."""
        if kept[record] or any(load[user] >= self._most for user in self._users[record]):
            return False
        self._add_load(record, 1, load)
        kept[record] = True
        return True

    def _add_load(self, record: int, by: int, load: list[int]) -> None:
        for user in self._users[record]:
            load[user] += by

    def exchanged(self, kept: Flags) -> Flags:
        """``kept`` improved by local search: a record is given up if two or more others can replace it."""
        kept = kept.copy()
        load: list[int] = self._part.counts(kept).tolist()
        for _ in range(_PASSES):
            waiting = self._waiting_by_users(kept, load)
            if not sum(self._exchange(record, waiting, load, kept) for record in np.flatnonzero(kept).tolist()):
                break
        return kept

    def _waiting_by_users(self, kept: Flags, load: Sequence[int]) -> dict[tuple[int, ...], list[int]]:
        """The unused records, grouped by those of their users who are at the limit."""
        waiting: dict[tuple[int, ...], list[int]] = {}
        for record in np.flatnonzero(~kept).tolist():
            full = tuple(sorted(user for user in self._users[record] if load[user] >= self._most))
            waiting.setdefault(full, []).append(record)
        return waiting

    def _exchange(
        self, record: int, waiting: Mapping[tuple[int, ...], list[int]], load: list[int], kept: Flags
    ) -> bool:
        """Replace ``record`` by two or more waiting records, and return whether that was possible."""
        users = sorted(self._users[record])
        if not kept[record] or len(users) > _USERS:
            return False
        self._add_load(record, -1, load)
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
            self._add_load(other, -1, load)
            kept[other] = False
        self._add_load(record, 1, load)
        kept[record] = True
        return False

    def by_program(self) -> Flags | None:
        """The best choice that HiGHS finds for the integer program within ``_NODES`` nodes; None if it finds none."""
        from scipy.optimize import Bounds, LinearConstraint, milp

        limits, aim = LinearConstraint(self._matrix(), -np.inf, self._most), -np.ones(len(self.records))
        whole = np.ones(len(aim), np.int64)
        solution = milp(aim, integrality=whole, bounds=Bounds(0, 1), constraints=limits, options={"node_limit": _NODES})
        if solution.x is None:
            return None
        kept = solution.x > 1 / 2
        return kept if (self._part.counts(kept) <= self._most).all() else None

    def records_upper_bound(self) -> int:
        """An upper bound on how many contested records can be used, from the dual of the linear relaxation.

        By weak duality any non-negative prices give a bound, so the solver's need not be exact.
        """
        from scipy.optimize import linprog

        if not len(self.records):
            return 0
        matrix, limits = self._matrix(), np.full(len(self._counts), float(self._most))
        aim = -np.ones(len(self.records))
        # scipy's type stubs do not allow a sparse matrix here.
        solution = linprog(aim, A_ub=matrix, b_ub=limits, bounds=(0, 1), method="highs")  # type: ignore[call-overload]
        if solution.ineqlin is None:
            return len(self.records)
        prices = np.maximum(0.0, -solution.ineqlin.marginals)
        left = np.maximum(0.0, 1 - matrix.T @ prices)
        return min(len(self.records), int(np.floor(self._most * prices.sum() + left.sum() + 1e-6)))

    def _matrix(self) -> csr_array[np.float64]:
        """The incidence matrix [users, records], 1 if a user is in a record."""
        from scipy.sparse import csr_array

        part, shape = self._part, (len(self._counts), len(self.records))
        places = (part.users.astype(np.int32), part.records.astype(np.int32))  # all that milp of scipy 1.13 accepts
        return csr_array((np.ones(len(part.users)), places), shape=shape)


def records_upper_bound(sharing: Sharing, most: int) -> int:
    """An upper bound on how many records can be used if no user may be in more than ``most``, by linear relaxation."""
    contested = _Contested(sharing, most)
    return len(sharing) - len(contested.records) + contested.records_upper_bound()


_RULES: Mapping[SharedRecords, Callable[[Sharing, int], Flags]] = {
    SharedRecords.FIRST: first_records,
    SharedRecords.GREEDY: greedy,
    SharedRecords.MOST: most_records,
}
