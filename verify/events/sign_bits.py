"""Published signs (FERRET), which compose with no other event; ``verify.recompute.signs`` verifies them."""

from __future__ import annotations

from dataclasses import dataclass

from privctl.reports.parameters import BudgetParameters
from verify.events.row import OF_STEPS, PlannedAs


@dataclass(frozen=True, slots=True, kw_only=True)
class SignParameters(BudgetParameters):
    """A plan of published signs."""

    groups: int | None = None
    fire_probability: float | None = None


PLANNED = PlannedAs(
    mechanism="ferret",
    parameters=SignParameters,
    fields={"groups": ("groups", None), "fire_probability": ("fire_probability", None), **OF_STEPS},
    solved={"fire probability": "fire_probability"},
)
