"""A plan of ``privctl account``: its mechanism is what its parameters say, and nothing else."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from privctl.domain.errors import InputError
from privctl.domain.events import (
    Batches,
    Event,
    LaplaceNoise,
    Ledger,
    RandomizedResponse,
    SampledGaussian,
    SecretMixture,
    SignBits,
)
from privctl.domain.guarantee import Notion, RiskMeasure
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.codec import decode_events
from privctl.storage.reader import read_text

_ROUNDING = 1e-9

#: What a plan may have looked for -> the field of its event, and the mechanism's name -> its event.
_SOLVED = {
    "noise multiplier": "noise_multiplier", "fire probability": "fire_probability", "scale": "scale",
    "bit epsilon": "epsilon",
}  # fmt: skip
_KINDS: dict[str, type] = {
    "gaussian": SampledGaussian, "laplace": LaplaceNoise, "randomized-response": RandomizedResponse,
    "ferret": SignBits, "secret": SecretMixture,
}  # fmt: skip
#: Parameter -> (the event's field of the same meaning, what it is where it was not given; None: not known).
_FIELDS: dict[str, tuple[str, Any]] = {
    "noise_multiplier": ("noise_multiplier", None), "scale": ("scale", None), "bit_epsilon": ("epsilon", None),
    "fire_probability": ("fire_probability", None), "groups": ("groups", None), "bits": ("bits", 1),
    "batches": ("batches", str(Batches.POISSON)), "sample_rate": ("sample_rate", 1.0), "steps": ("steps", 1),
}  # fmt: skip


def of_plan(report: PrivacyReport) -> Iterator[str]:
    """Each disagreement in one sentence."""
    said, mechanism = report.parameters, report.mechanism
    if "ledger" in said:
        return  # ``of_file`` says, where that is at hand
    event = mechanism.events[0] if isinstance(mechanism, Ledger) and len(mechanism.events) == 1 else mechanism
    kind = _KINDS.get(str(said.get("mechanism", "gaussian")))
    if kind is None or not isinstance(event, kind):
        yield f"its mechanism is not the one planned: {said.get('mechanism', 'gaussian')}"
        return
    assert isinstance(event, SampledGaussian | LaplaceNoise | RandomizedResponse | SignBits | SecretMixture)
    yield from _fields(event, said)
    yield from _targets(report)
    if isinstance(event, SampledGaussian) and said.get("epsilon") is None:
        for guarantee in report.guarantees:
            if guarantee.noise_multiplier != event.noise_multiplier:
                yield (
                    f"noise multiplier of {guarantee.name!r} is {guarantee.noise_multiplier}, but it is "
                    f"{event.noise_multiplier} in the plan"
                )


def of_file(path: Path, report: PrivacyReport) -> Iterator[Verdict]:
    """The events of a plan that read them from a file (``--ledger``) against that file, where it is at hand."""
    if report.step != "account" or "ledger" not in report.parameters:
        return
    files = [artifact for artifact in report.inputs if artifact.role == "ledger"]
    if len(files) != 1 or not isinstance(report.mechanism, Ledger):
        reason = "the plan is of a ledger file, of which the report records no digest"
        yield Verdict(subject="ledger", outcome=Outcome.INCONCLUSIVE, reason=reason)
        return
    place = Path(os.path.normpath(path.parent.absolute() / files[0].path))
    if not os.path.isfile(place):
        return  # told as an omission, as of any input
    try:
        same = decode_events(read_text(place), str(place)) == report.mechanism.events
    except InputError as fault:
        yield Verdict(subject=files[0].path, outcome=Outcome.REFUTED, reason=str(fault))
        return
    reason = (
        "its events are the mechanism's" if same else "its events are not those that the guarantees are computed of"
    )
    yield Verdict(subject=files[0].path, outcome=Outcome.PROVED if same else Outcome.REFUTED, reason=reason)


def _fields(event: Event | SignBits, said: Mapping[str, Any]) -> Iterator[str]:
    found = said.get("found")
    solved: dict[str, Any] = {
        _SOLVED.get(str(what), str(what)): value for what, value in (found.items() if isinstance(found, dict) else ())
    }
    wanted: dict[str, Any] = dict(solved)
    for key, (field, default) in _FIELDS.items():
        if key == "bit_epsilon" and not isinstance(event, RandomizedResponse):
            continue
        if field not in solved and (value := said.get(key, default)) is not None:
            wanted[field] = value
    if "dataset_size" in said:
        wanted |= _rate_and_steps(said)
    if isinstance(event, SecretMixture):
        wanted["probabilities"] = tuple(_chances(said.get("records")))
    for name, value in wanted.items():
        if hasattr(event, name) and not _alike(here := getattr(event, name), value):
            yield f"mechanism's {name} is {_shown(here)}, but the parameters say {_shown(value)}"


def _rate_and_steps(said: Mapping[str, Any]) -> dict[str, Any]:
    size, batch, epochs = (said.get(name) for name in ("dataset_size", "batch_size", "epochs"))
    if not all(isinstance(value, int | float) and value > 0 for value in (size, batch, epochs)):
        return {}
    assert size is not None
    assert batch is not None
    assert epochs is not None
    if said.get("batches") == str(Batches.SHUFFLED):
        a_pass = math.ceil(size / batch)
        return {"sample_rate": 1 / a_pass, "steps": math.ceil(round(epochs * a_pass, 6))}
    return {"sample_rate": batch / size, "steps": math.ceil(round(epochs * size / batch, 6))}


def _chances(records: Any) -> Iterator[float]:
    """The probabilities that P or PxCOUNT stands for."""
    for text in records if isinstance(records, list) else ():
        chance, _, count = str(text).partition("x")
        try:
            yield from [float(chance)] * int(count or 1)
        except ValueError:
            yield math.nan


def _targets(report: PrivacyReport) -> Iterator[str]:
    """What was looked for: the guarantee to rely on meets it, at the priors that were given."""
    said, methods = report.parameters, report.parameters.get("methods")
    main = methods.get(said.get("rely_on")) if isinstance(methods, dict) else None
    title = main.get("title") if isinstance(main, dict) else None
    guarantee = next((g for g in report.guarantees if g.name == title), None)
    if guarantee is None:
        return
    target, posterior, priors = said.get("epsilon"), said.get("posterior"), said.get("priors")
    if isinstance(target, int | float) and not (guarantee.epsilon or 0) <= target * (1 + _ROUNDING):
        yield f"the guarantee to rely on has epsilon {_shown(guarantee.epsilon)}, above the {target:g} planned for"
    for risk in guarantee.risks:
        if (
            isinstance(posterior, int | float)
            and risk.measure is RiskMeasure.POSTERIOR
            and risk.bound > posterior * (1 + 1e-6)
        ):
            yield f"a secret may be guessed with probability {risk.bound:.6g}, above the {posterior:g} planned for"
    if guarantee.notion is Notion.SECRET_PROTECTION and isinstance(priors, list):
        for each in report.guarantees:
            if {risk.at for risk in each.risks} - set(priors):
                yield f"{each.name!r} speaks of another prior than was given"


def _alike(here: Any, value: Any) -> bool:
    if isinstance(here, tuple):
        return isinstance(value, tuple) and len(here) == len(value) and all(map(_alike, here, value))
    if isinstance(here, int | float) and isinstance(value, int | float):
        return math.isclose(here, value, rel_tol=_ROUNDING)
    return bool(here == value)


def _shown(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)
