"""A plan of protection at hand against the report of the step that made it, or of the training that followed it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from privctl.domain.events import Ledger, SampledGaussian
from privctl.domain.report import PrivacyReport
from privctl.reports.parameters import FollowedPlan, ProtectionParameters, parameters_as
from verify.recompute.protection import Arrays
from verify.stated import training_of

_ROUNDING = 1e-9


def of_plan_file(report: PrivacyReport, facts: Mapping[str, Any], arrays: Arrays, digest: str) -> Iterator[str]:
    """Each entry of ``report`` that is not what the plan with this ``digest`` holds, in one sentence."""
    largest = float(arrays["probabilities"].max(initial=0.0))
    ledger = report.mechanism
    events = ledger.events if isinstance(ledger, Ledger) else ()
    event = events[0] if len(events) == 1 else None
    if not isinstance(event, SampledGaussian):
        return  # said elsewhere: a mechanism of this kind is that of no plan
    yield from _differs("sampling rate", event.sample_rate, largest)
    said: ProtectionParameters | FollowedPlan | None
    made = report.step == "secrets-plan"
    said = parameters_as(ProtectionParameters, report) if made else training_of(report).plan
    if said is None:
        yield "the report does not say which plan was followed"
        return
    for name, told in (
        ("form", said.form),
        ("calibration", said.calibration),
        ("steps", said.steps),
        ("batch_size", said.batch_size),
    ):
        yield from _differs(f"parameter {name}", told, facts.get(name))
    yield from _differs("number of secrets", said.secrets, len(arrays["budgets"]))
    if isinstance(said, ProtectionParameters):
        yield from _differs("noise multiplier", event.noise_multiplier, facts.get("noise_multiplier"))
        yield from _differs("number of steps", event.steps, facts.get("steps"))
        return
    yield from _differs("plan's noise multiplier", said.noise_multiplier, facts.get("noise_multiplier"))
    yield from _differs("plan's largest probability", said.largest_probability, largest)
    yield from _differs("plan's book of secrets", said.book, facts.get("secrets"))
    yield from _differs("plan's digest", said.digest, digest)


def _differs(what: str, told: Any, held: Any) -> Iterator[str]:
    numbers = isinstance(told, int | float) and isinstance(held, int | float)
    if not (math.isclose(told, held, rel_tol=_ROUNDING) if numbers else told == held):
        yield f"the report's {what} is {told}, and the plan has {held}"
