"""Which records are used where a record may belong to several users, each of whom may be in so many at most."""

from __future__ import annotations

from enum import StrEnum


class SharedRecords(StrEnum):
    """How records are chosen; all but ALL look at which users the records name, and at nothing else of them.

    ALL uses every record, and no data set in which a user is in too many. FIRST uses a record that is among the first
    of each of its users. GREEDY takes one record after another as long as nobody is in
    too many, those first whose users are in few. MOST looks from there for as many records as can be.
    """

    ALL = "all"
    FIRST = "first"
    GREEDY = "greedy"
    MOST = "most"

    @property
    def fixes_graph(self) -> bool:
        """Whether neighbours must name the same users in the same records (fixed-graph DP; Ganesh et al. 2025).

        Without a user's records others might be chosen, so a bound on this user's says nothing of their removal.
        """
        return self is not SharedRecords.ALL
