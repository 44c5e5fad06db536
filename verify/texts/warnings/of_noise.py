"""The warning on the upper bound that canaries give on the noise of stated steps, and on its assumptions."""

from __future__ import annotations

import re

from privctl.domain.evidence import Evidence
from privctl.domain.shown import downward, upward
from verify.texts.warnings.forms import NUMBER, form

_AT_MOST = (
    "noise multiplier at most {most}, {share} times what is stated ({confidence} %), if all else of the steps is as "
    "stated, for which the accountant gives an epsilon of at least {epsilon} at delta {delta}; of other steps it says "
    "nothing; taken to be so: the steps were those of the stated mechanism in all but the noise multiplier{and}"
)
_INDEPENDENT = ", and noise and draws of each canary were independent of the others'"
_GAPS = ("most", "share", "confidence", "epsilon", "delta")
_DIGITS = 4


def noise_at_most(item: Evidence | None) -> str:
    """The warning that goes with the bound ``item``; with any bound for None."""
    if item is None:
        return form(_AT_MOST, **{"and": f"({re.escape(_INDEPENDENT)})?"}, **dict.fromkeys(_GAPS, NUMBER))
    gaps = {
        "most": upward(item.upper or 0.0, _DIGITS),
        "share": upward(item.details["share"], _DIGITS),
        "confidence": f"{100 * item.confidence:.4g}",
        "epsilon": downward(item.details["epsilon"], _DIGITS),
        "delta": f"{item.details['delta']:g}",
        "and": _INDEPENDENT if item.details["independent"] else "",
    }
    return form(_AT_MOST, **{name: re.escape(text) for name, text in gaps.items()})
