"""Comparing two values that must be equal, such as the same number stated in two places of a report."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

#: Relative difference up to which two numbers count as equal apart from rounding.
ROUNDING = 1e-9
#: Integers above this are compared exactly: JSON integers may be larger than any float.
LARGEST = 1e300


def compare(what: str, actual: Any, expected: Any, source: str) -> Iterator[str]:
    """Yields a sentence if ``what``, whose value is ``actual``, differs from what ``source`` expects."""
    if isinstance(actual, (int, float)) and isinstance(expected, (int, float)):
        equal = actual == expected or (
            max(abs(actual), abs(expected)) <= LARGEST and math.isclose(actual, expected, rel_tol=ROUNDING, abs_tol=0.0)
        )
    else:
        equal = actual == expected
    if not equal:
        yield f"{what} is {shown(actual)}, but {source} {shown(expected)}"


def shown(value: Any) -> str:
    """``value`` as text of at most 43 characters, for use in a sentence."""
    text = f"{value:.12g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
