"""Whether a number agrees with one that a page prints."""

from __future__ import annotations

import math
from decimal import Decimal


def agrees(rounded: str, found: float) -> bool:
    """Whether ``found`` is ``text`` to the last digit but for one unit of it, or to a double's precision."""
    printed = Decimal(rounded)
    exponent = printed.as_tuple().exponent
    assert isinstance(exponent, int)
    unit = 10.0**exponent
    return abs(float(printed) - found) <= unit * (1 + 1e-6) or math.isclose(float(printed), found, rel_tol=2e-13)
