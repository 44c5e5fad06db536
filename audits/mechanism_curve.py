"""The curve of the mechanism that a model's report states, for coins and canaries to be held against."""

from __future__ import annotations

from collections.abc import Callable

from audits.claims import CurveClaim, with_half_noise
from audits.lineage import Lineage
from privctl.domain.events import Ledger
from privctl.domain.groups import of_group

#: A mechanism's (epsilon, delta), which hold all at once.
Profile = Callable[[Ledger], tuple[tuple[float, float], ...]]


def curve_of(lineage: Lineage, profile: Profile | None, examples: int = 1) -> CurveClaim | None:
    """The stated mechanism, of ``examples`` together, with points of its curve; None if none can be computed."""
    if lineage.mechanism is None or profile is None:
        return None
    try:
        mechanism = lineage.mechanism if examples == 1 else of_group(lineage.mechanism, examples)
        points = profile(mechanism)
        half = profile(with_half_noise(mechanism))
    except (ArithmeticError, ValueError):  # valid numbers that no real run has, or no bound for groups
        return None
    return CurveClaim(mechanism=mechanism, points=points, source=lineage.source, half=half)
