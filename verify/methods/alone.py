"""Ways to train by DP-SGD that no bound covers together: a report that states two of them is of no training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

#: A parameter that is stated where a run trained so -> what it says.
_ALONE = {
    "search": "it is the best of several runs",
    "coefficients": "noise is correlated over some steps",
    "matrix": "noise is correlated over all steps",
    "max_records_per_user": "each record of a user is clipped by itself",
    "largest_batch": "batches are cut to a largest size",
    "plan": "a plan of secrets says how often each record is drawn",
}
#: A clip norm that changes goes with cut batches, and with none of the others.
_CHANGES, _GOES_WITH = "target_unclipped_quantile", "largest_batch"


def together(parameters: Any) -> Iterator[str]:
    """What the ``parameters`` state of two such ways, for which one ledger cannot stand."""
    stated = [name for name in _ALONE if getattr(parameters, name) is not None]
    if len(stated) > 1:
        yield f"{_ALONE[stated[0]]}, and {_ALONE[stated[1]]}: no training does both, and no bound here covers both"
    if getattr(parameters, _CHANGES) is not None and (others := [name for name in stated if name != _GOES_WITH]):
        yield f"the clip norm changes, and {_ALONE[others[0]]}: no training does both, and no bound here covers both"
