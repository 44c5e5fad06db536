"""Two values that must be the same: what a report says in one place, and what it says in another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

#: Relative difference of numbers that are the same but for rounding.
ROUNDING = 1e-9
#: Whole numbers in JSON may be larger than any float.
LARGEST = 1e300


def compare(what: str, found: Any, expected: Any, source: str) -> Iterator[str]:
    """A sentence where ``what``, which is ``found``, differs from what ``source`` expects."""
    if isinstance(found, (int, float)) and isinstance(expected, (int, float)):
        alike = found == expected or (
            max(abs(found), abs(expected)) <= LARGEST and math.isclose(found, expected, rel_tol=ROUNDING, abs_tol=0.0)
        )
    else:
        alike = found == expected
    if not alike:
        yield f"{what} is {shown(found)}, but {source} {shown(expected)}"


def shown(value: Any) -> str:
    """``value``, short enough for a sentence."""
    text = f"{value:.12g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
