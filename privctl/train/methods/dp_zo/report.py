"""What the report of a DP-ZO run says beside that of any private training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from privctl.domain.guarantee import Assumption, AssumptionState, Guarantee, status_of
from privctl.domain.report import PrivacyReport
from privctl.train.methods.dp_zo.settings import DpZoSettings


def with_directions(report: PrivacyReport, settings: DpZoSettings, seed: bytes) -> PrivacyReport:
    """The ``report`` with the directions that the public ``seed`` made, and what its guarantee rests on for them."""
    return replace(
        report,
        parameters={
            **report.parameters,
            "clipping": "differences",
            "directions": settings.directions,
            "perturbation": settings.perturbation,
            "public_seed": seed.hex(),
        },
        guarantees=tuple(_resting(guarantee, settings) for guarantee in report.guarantees),
    )


def _resting(guarantee: Guarantee, settings: DpZoSettings) -> Guarantee:
    assumptions = (*guarantee.assumptions, *_premises(settings))
    return replace(guarantee, assumptions=assumptions, status=status_of(assumptions))


def _premises(settings: DpZoSettings) -> Iterator[Assumption]:
    given = settings.public_seed is not None
    yield Assumption(
        name="public directions",
        statement="the random directions do not depend on the data: a public seed makes them, which "
        + ("was given" if given else "the operating system drew before the first step"),
        state=AssumptionState.ASSERTED if given else AssumptionState.ENFORCED,
    )
    yield Assumption(
        name="lone records",
        statement="each record goes through the network by itself, so that the losses that are compared, and their "
        "rounding, are of that record and of weights that are released anyway",
        state=AssumptionState.ENFORCED,
    )
