"""Published signs (FERRET), which compose with nothing; what they give away is judged in ``verify.signs``."""

from __future__ import annotations

from verify.events.row import OF_STEPS, PlannedAs

PLANNED = PlannedAs(
    mechanism="ferret",
    fields={"groups": ("groups", None), "fire_probability": ("fire_probability", None), **OF_STEPS},
    solved={"fire probability": "fire_probability"},
)
