"""A plan of ``privctl account``: its mechanism is what its parameters say, and nothing else."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
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
from privctl.reports.parameters import BudgetParameters, parameters_as
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


def of_plan(report: PrivacyReport) -> Iterator[str]:
    """Each disagreement in one sentence."""
    said, mechanism = parameters_as(BudgetParameters, report), report.mechanism
    if said.ledger is not None:
        return  # ``of_file`` says, where that is at hand
    event = mechanism.events[0] if isinstance(mechanism, Ledger) and len(mechanism.events) == 1 else mechanism
    planned = said.mechanism or "gaussian"
    kind = _KINDS.get(planned)
    if kind is None or not isinstance(event, kind):
        yield f"its mechanism is not the one planned: {planned}"
        return
    assert isinstance(event, SampledGaussian | LaplaceNoise | RandomizedResponse | SignBits | SecretMixture)
    yield from _fields(event, said)
    yield from _targets(report, said)
    if isinstance(event, SampledGaussian) and said.epsilon is None:
        for guarantee in report.guarantees:
            if guarantee.noise_multiplier != event.noise_multiplier:
                yield (
                    f"noise multiplier of {guarantee.name!r} is {guarantee.noise_multiplier}, but it is "
                    f"{event.noise_multiplier} in the plan"
                )


def of_file(path: Path, report: PrivacyReport) -> Iterator[Verdict]:
    """The events of a plan that read them from a file (``--ledger``) against that file, where it is at hand."""
    if report.step != "account" or parameters_as(BudgetParameters, report).ledger is None:
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


def _fields(event: Event | SignBits, said: BudgetParameters) -> Iterator[str]:
    # What was looked for was not given; what was neither has its default, or is not compared.
    wanted: dict[str, Any] = {name: value for name, value in _given(event, said).items() if value is not None}
    wanted |= {_SOLVED.get(what, what): value for what, value in said.found.items()}
    if said.dataset_size is not None:
        wanted |= _rate_and_steps(said, said.dataset_size)
    if isinstance(event, SecretMixture):
        wanted["probabilities"] = tuple(_chances(said.records or ()))
    for name, value in wanted.items():
        if hasattr(event, name) and not _alike(here := getattr(event, name), value):
            yield f"mechanism's {name} is {_shown(here)}, but the parameters say {_shown(value)}"


def _given(event: Event | SignBits, said: BudgetParameters) -> dict[str, Any]:
    """What the options say of the event, by its fields."""
    return {
        "noise_multiplier": said.noise_multiplier,
        "scale": said.scale,
        "epsilon": said.bit_epsilon if isinstance(event, RandomizedResponse) else None,
        "fire_probability": said.fire_probability,
        "groups": said.groups,
        "bits": 1 if said.bits is None else said.bits,
        "batches": said.batches or str(Batches.POISSON),
        "sample_rate": 1.0 if said.sample_rate is None else said.sample_rate,
        "steps": 1 if said.steps is None else said.steps,
    }


def _rate_and_steps(said: BudgetParameters, size: int) -> dict[str, Any]:
    batch, epochs = said.batch_size, said.epochs
    if batch is None or epochs is None or min(size, batch, epochs) <= 0:
        return {}
    if said.batches == Batches.SHUFFLED:
        a_pass = math.ceil(size / batch)
        return {"sample_rate": 1 / a_pass, "steps": math.ceil(round(epochs * a_pass, 6))}
    return {"sample_rate": batch / size, "steps": math.ceil(round(epochs * size / batch, 6))}


def _chances(records: Sequence[str]) -> Iterator[float]:
    """The probabilities that P or PxCOUNT stands for."""
    for text in records:
        chance, _, count = text.partition("x")
        try:
            yield from [float(chance)] * int(count or 1)
        except ValueError:
            yield math.nan


def _targets(report: PrivacyReport, said: BudgetParameters) -> Iterator[str]:
    """What was looked for: the guarantee to rely on meets it, at the priors that were given."""
    main = (said.methods or {}).get(said.rely_on or "")
    guarantee = next((g for g in report.guarantees if main is not None and g.name == main.title), None)
    if guarantee is None:
        return
    target, posterior = said.epsilon, said.posterior
    if target is not None and not (guarantee.epsilon or 0) <= target * (1 + _ROUNDING):
        yield f"the guarantee to rely on has epsilon {_shown(guarantee.epsilon)}, above the {target:g} planned for"
    for risk in guarantee.risks:
        if posterior is not None and risk.measure is RiskMeasure.POSTERIOR and risk.bound > posterior * (1 + 1e-6):
            yield f"a secret may be guessed with probability {risk.bound:.6g}, above the {posterior:g} planned for"
    if guarantee.notion is Notion.SECRET_PROTECTION and said.priors is not None:
        for each in report.guarantees:
            if {risk.at for risk in each.risks} - set(said.priors):
                yield f"{each.name!r} speaks of another prior than was given"


def _alike(here: Any, value: Any) -> bool:
    if isinstance(here, tuple):
        return isinstance(value, tuple) and len(here) == len(value) and all(map(_alike, here, value))
    if isinstance(here, int | float) and isinstance(value, int | float):
        return math.isclose(here, value, rel_tol=_ROUNDING)
    return bool(here == value)


def _shown(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)
