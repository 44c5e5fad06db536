"""Which records are used if a record may belong to several users and the records per user are limited."""

from __future__ import annotations

from enum import StrEnum


class SharedRecords(StrEnum):
    """How records are selected. All rules but ALL look at the records' users, and at nothing else in the records.

    ALL uses every record and refuses a data set in which a user exceeds the limit. FIRST uses the records that are
    among the first ``limit`` of each of their users. GREEDY adds records one by one as long as no user exceeds the
    limit, beginning with records whose users have few. MOST starts from there and searches for as many records as
    possible.
    """

    ALL = "all"
    FIRST = "first"
    GREEDY = "greedy"
    MOST = "most"

    @property
    def fixes_graph(self) -> bool:
        """Whether neighbours must have the same users in the same records (fixed-graph DP; Ganesh et al. 2025).

        Removing a user's records could change which others are selected, so a limit on this user's records does not
        bound the effect of removing them.
        """
        return self is not SharedRecords.ALL
