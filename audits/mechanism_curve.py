"""The trade-off curve of the mechanism that a model's report states, to be tested with coins and canaries."""

from __future__ import annotations

from collections.abc import Callable

from audits.claims import CurveClaim, NoiseFamily, Points, noise_of, with_half_noise, with_noise
from audits.lineage import Lineage
from privctl.domain.events import Ledger
from privctl.domain.groups import of_group

#: Gives pairs (epsilon, delta) that a mechanism satisfies jointly.
Profile = Callable[[Ledger], Points]
#: Gives a mechanism's epsilon at a delta.
Epsilon = Callable[[Ledger, float], float]


def curve_of(
    lineage: Lineage, profile: Profile | None, examples: int = 1, epsilon: Epsilon | None = None
) -> CurveClaim | None:
    """The stated mechanism, for ``examples`` together, with points of its curve; None if these cannot be computed.

    With ``epsilon``, also its family of any noise.
    """
    if lineage.mechanism is None or profile is None:
        return None
    try:
        mechanism = lineage.mechanism if examples == 1 else of_group(lineage.mechanism, examples)
        points = profile(mechanism)
        half = profile(with_half_noise(mechanism))
    except (ArithmeticError, ValueError):  # extreme parameters, or no bound for groups
        return None
    family = None if epsilon is None else family_of(mechanism, profile, epsilon)
    return CurveClaim(mechanism=mechanism, points=points, source=lineage.source, half=half, family=family)


def family_of(mechanism: Ledger, profile: Profile, epsilon: Epsilon) -> NoiseFamily | None:
    """``mechanism`` with any noise; None if it is not a single kind of Gaussian steps."""
    stated = noise_of(mechanism)
    if stated is None:
        return None
    return NoiseFamily(
        stated=stated,
        points=lambda share: profile(with_noise(mechanism, share)),
        epsilon=lambda share, delta: epsilon(with_noise(mechanism, share), delta),
    )
