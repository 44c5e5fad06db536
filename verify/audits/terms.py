"""The names that audits use, and the counts behind a bound. Standard library only, like a gate over audits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from privctl.domain.evidence import Evidence
from privctl.reports.audit_parameters import AuditParameters

#: The methods of bounds from random inclusion, of canaries or of the records of a drawn split.
BOUND, MAHLOUJIFAR = "one run, Steinke 2023 or Mahloujifar 2024", "one run, Mahloujifar 2024"
METHODS = (BOUND, "one run, Steinke 2023", MAHLOUJIFAR)
#: The bound on the noise multiplier, given that the steps are otherwise as stated.
NOISE = "one run, stated steps"
#: The pattern of the subject of a verdict on a claim, and the relative rounding of its six digits.
CLAIM, CLAIMED = re.compile(r"\(([0-9.e+-]+), ([0-9.e+-]+)\)-DP, "), 1e-5
#: The subject of the verdict on membership.
MEMBERSHIP = "members cannot be told from non-members"
#: The omission of bounds from a split with too few records for any bound.
NO_BOUNDS = "bounds from the split"
#: The quantities that compare rates on training text with rates on held-out text.
BEYOND = ("rate beyond held-out text", "near-verbatim rate beyond held-out text")
#: The false positive rates at which the true positive rate is tested.
RATES = (0.01, 0.001)
#: The blind baseline, and the AUC beyond it.
BLIND, OVER_BLIND = "blind baseline", "AUC over the blind baseline's"
#: What tells the records apart without the model, or by another one.
LENGTH, CONTROL = "length baseline", "reference control"
BASELINES = (BLIND, LENGTH, CONTROL)
#: The interval of an AUC of a score that is fitted to labels, and of a difference from such an AUC.
RELABELLED = "gamma, moments over relabellings"
WIDENED = f"{RELABELLED}, widened if DeLong's is larger"
#: How an audit describes sides that were assigned by the coins of a drawn split.
_BY_COINS = "drawn by privctl"

#: (canaries, guesses, correct) of one set.
Counts = tuple[int, int, int]


def of_split(item: Evidence, parameters: AuditParameters) -> bool:
    """Whether a bound comes from a drawn split, whose bounds are named after attacks, rather than from canaries."""
    _, _, name = item.quantity.partition(", ")
    return parameters.split_commitment is not None and name in parameters.attack


def counts_of(item: Evidence) -> Iterator[Counts]:
    """Yields the counts of each set of guesses; older reports have a single set."""
    canaries = item.samples["canaries"]
    if "sets" not in item.details:
        yield canaries, item.samples["guesses"], int(item.details["correct"])
        return
    for i in range(1, int(item.details["sets"]) + 1):
        yield canaries, int(item.details[f"guesses {i}"]), int(item.details[f"correct {i}"])


def sides_by_coins(extraction: Mapping[str, Any] | None) -> bool:
    """Whether these ``extraction`` settings say that the coins of a drawn split assigned the sides."""
    return (extraction or {}).get("sides") == _BY_COINS
