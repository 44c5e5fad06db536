"""How audits name what they state, and the counts behind a bound. Standard library only, like a gate over audits."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from privctl.domain.evidence import Evidence
from privctl.reports.audit_parameters import AuditParameters

#: The methods of bounds from coins: of canaries, and of the records of a drawn split.
BOUND, MAHLOUJIFAR = "one run, Steinke 2023 or Mahloujifar 2024", "one run, Mahloujifar 2024"
METHODS = (BOUND, "one run, Steinke 2023", MAHLOUJIFAR)
#: The bound on the noise multiplier of steps that are as stated in all else.
NOISE = "one run, stated steps"
#: What a verdict on a claim is about, and relatively how far its six digits may be from what was tested.
CLAIM, CLAIMED = re.compile(r"\(([0-9.e+-]+), ([0-9.e+-]+)\)-DP, "), 1e-5
#: An omission of the bounds from a split, which has too few records for any.
NO_BOUNDS = "bounds from the split"
#: What extraction compares: rates on training text with rates on held-out text.
BEYOND = ("rate beyond held-out text", "near-verbatim rate beyond held-out text")
#: What an audit says of sides that coins of a drawn split decided about.
_BY_COINS = "drawn by privctl"

#: (canaries, guesses, correct) of one set.
Counts = tuple[int, int, int]


def of_split(item: Evidence, parameters: AuditParameters) -> bool:
    """Whether a bound is from records of a drawn split, whose bounds are named after attacks; else from canaries."""
    _, _, name = item.quantity.partition(", ")
    return parameters.split_commitment is not None and name in parameters.attack


def counts_of(item: Evidence) -> Iterator[Counts]:
    """The sets of guesses; reports from before there were several have one."""
    canaries = item.samples["canaries"]
    if "sets" not in item.details:
        yield canaries, item.samples["guesses"], int(item.details["correct"])
        return
    for i in range(1, int(item.details["sets"]) + 1):
        yield canaries, int(item.details[f"guesses {i}"]), int(item.details[f"correct {i}"])


def sides_by_coins(extraction: Mapping[str, Any] | None) -> bool:
    """Whether the audit of these settings of ``extraction`` says that coins of a split decided about its sides."""
    return (extraction or {}).get("sides") == _BY_COINS
