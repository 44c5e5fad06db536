"""Whether the mechanism of a ``privctl account`` plan is exactly the one its parameters describe."""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

from privctl.domain.errors import InputError
from privctl.domain.events import Batches, Event, Ledger, SampledGaussian
from privctl.domain.guarantee import Guarantee, Notion, RiskMeasure
from privctl.domain.report import PrivacyReport
from privctl.domain.verdict import Outcome, Verdict
from privctl.reports.parameters import BudgetParameters, parameters_as
from privctl.storage.reader import read_text
from verify.compare import shown
from verify.events import planned_kinds, row_of
from verify.events.row import PlannedAs
from verify.files.ledgers import events_in
from verify.files.places import located
from verify.stated import budget_of

_ROUNDING = 1e-9
#: What every plan states: its answer, and what it was asked.
_ALWAYS = frozenset({"delta", "mechanism", "methods", "rely_on", "found"})
#: The parameters that give the sampling rate and the number of steps together.
_SIZES = ("dataset_size", "batch_size", "epochs")
#: What a plan of some mechanisms states besides the fields of its event, instead of a target epsilon and priors.
_ASKED: dict[str, frozenset[str]] = {
    "gaussian": frozenset({"epsilon", "priors", "no_peers"}),
    "secret": frozenset({"posterior", "priors"}),
    "ferret": frozenset({"epsilon"}),
}
_OF_LEDGER = frozenset({"ledger", "ledgers", "priors", "no_peers"})


def plan_disagreements(report: PrivacyReport) -> Iterator[str]:
    """Yields one sentence per disagreement between mechanism and parameters."""
    parameters, mechanism = budget_of(report), report.mechanism
    if parameters is None:
        return
    if _ledgers(parameters):  # ``ledger_file_verdicts`` compares the events with the files
        yield from _inapplicable(parameters, (_ALWAYS | _OF_LEDGER) - {"mechanism"}, "a ledger")
        yield from (f"it found {shown(what)}, and a ledger states everything" for what in parameters.found)
        return
    event = mechanism.events[0] if isinstance(mechanism, Ledger) and len(mechanism.events) == 1 else mechanism
    named = parameters.mechanism or "gaussian"
    as_planned = next(
        (planned for kind, planned in planned_kinds() if planned.mechanism == named and type(event) is kind), None
    )
    if as_planned is None:
        yield f"the parameters plan {named}, but the mechanism is another"
        return
    own = type(parameters).__dataclass_fields__.keys() - BudgetParameters.__dataclass_fields__.keys()
    asked = _ASKED.get(named, frozenset({"epsilon", "priors"}))
    yield from _inapplicable(parameters, {*_ALWAYS, *_SIZES, *asked, *as_planned.fields, *own}, named)
    for what in parameters.found:
        if not hasattr(event, as_planned.solved.get(what, what)):
            yield f"it found {shown(what)}, which is no number of {named} events"
    yield from _sizes(parameters)
    yield from _fields(event, as_planned, parameters)
    yield from _targets(report, parameters)
    if isinstance(mechanism, Ledger):
        each_own = isinstance(mechanism.events[0], SampledGaussian) and parameters.epsilon is not None
        main = _relied_on(report, parameters)
        stated = report.guarantees if not each_own else () if main is None else (main,)
        yield from _noise_stated(mechanism.events[0], stated)


def _inapplicable(parameters: BudgetParameters, applicable: Collection[str], what: str) -> Iterator[str]:
    """Yields a sentence for each parameter that is stated and is not ``applicable`` to a plan of ``what``."""
    for name in sorted(type(parameters).__dataclass_fields__.keys() - set(applicable)):
        if (value := getattr(parameters, name)) not in (None, ()):
            yield f"parameter {name} is {shown(value)}, which says nothing of a plan of {what}"


def _sizes(parameters: BudgetParameters) -> Iterator[str]:
    """Yields a sentence unless the sizes are stated together, without rate and steps, and are those of a training."""
    stated = [value for name in _SIZES if (value := getattr(parameters, name)) is not None]
    if not stated:
        return
    if len(stated) < len(_SIZES) or parameters.sample_rate is not None or parameters.steps is not None:
        yield f"{', '.join(_SIZES)} go together, and without sample_rate and steps"
    elif min(stated) <= 0 or (parameters.batch_size or 0) > (parameters.dataset_size or 0):
        yield f"no training has the {', '.join(_SIZES)} that its parameters say"


def _relied_on(report: PrivacyReport, parameters: BudgetParameters) -> Guarantee | None:
    main = (parameters.methods or {}).get(parameters.rely_on or "")
    return next((g for g in report.guarantees if main is not None and g.name == main.title), None)


def _noise_stated(event: Event, guarantees: Sequence[Guarantee]) -> Iterator[str]:
    """Each guarantee must state the event's noise multiplier, if that kind of event has one.

    If every accounting method calibrated the noise to one epsilon, each states its own; only the one to rely on must
    state the event's.
    """
    row = row_of(event)
    if row.with_noise is None:
        return
    noise = row.noise(event)
    for guarantee in guarantees:
        if guarantee.noise_multiplier != noise:
            yield (
                f"noise multiplier of {guarantee.name!r} is {guarantee.noise_multiplier}, but it is {noise} in the plan"
            )


def ledger_file_verdicts(path: Path, report: PrivacyReport) -> Iterator[Verdict]:
    """Compares the events of a plan made with ``--ledger`` with the ledger files, if all are present."""
    if report.step != "account" or not (stated := _ledgers(parameters_as(BudgetParameters, report))):
        return
    files = [artifact for artifact in report.inputs if artifact.role == "ledger"]
    if len(files) != len(stated) or not isinstance(report.mechanism, Ledger):
        reason = "the plan was made from ledger files, but the report has no digest of each"
        yield Verdict(subject="ledger", outcome=Outcome.INCONCLUSIVE, reason=reason)
        return
    places = [located(path, file.path) for file in files]
    if not all(map(os.path.isfile, places)):
        return  # reported as an omission, like any missing input
    subject, events = ", ".join(file.path for file in files), list[Event]()
    for file, place in zip(files, places, strict=True):
        try:
            read = events_in(read_text(place), str(place))
        except InputError as fault:
            yield Verdict(subject=file.path, outcome=Outcome.REFUTED, reason=str(fault))
            return
        if read is None:
            reason = "it is another program's ledger, in a form that verify does not read"
            yield Verdict(subject=file.path, outcome=Outcome.INCONCLUSIVE, reason=reason)
            return
        events += read
    same = tuple(events) == report.mechanism.events
    reason = "its events are the mechanism's" if same else "its events are not those the guarantees were computed from"
    if len(files) > 1:
        reason = reason.replace("its events", "their events together", 1)
    yield Verdict(subject=subject, outcome=Outcome.PROVED if same else Outcome.REFUTED, reason=reason)


def _ledgers(parameters: BudgetParameters) -> tuple[str, ...]:
    return (*(parameters.ledgers or ()), *([] if parameters.ledger is None else [parameters.ledger]))


def _fields(event: object, as_planned: PlannedAs, parameters: BudgetParameters) -> Iterator[str]:
    # Quantities that were solved for were not given. A quantity that was neither given nor solved for has its default
    # value; if it has no default, it is not compared.
    solved: dict[str, Any] = {as_planned.solved.get(what, what): value for what, value in parameters.found.items()}
    wanted = dict(solved)
    for key, (field, default) in as_planned.fields.items():
        value = getattr(parameters, key)
        if field not in solved and (value is not None or default is not None):
            wanted[field] = default if value is None else value
    if parameters.dataset_size is not None:
        derived = _rate_and_steps(parameters, parameters.dataset_size)
        wanted |= {as_planned.fields.get(name, (name,))[0]: value for name, value in derived.items()}
    wanted |= as_planned.more(parameters)
    for name, value in wanted.items():
        if hasattr(event, name) and not _are_alike(in_event := getattr(event, name), value):
            yield f"mechanism's {name} is {_value_text(in_event)}, but the parameters say {_value_text(value)}"


def _rate_and_steps(parameters: BudgetParameters, size: int) -> dict[str, Any]:
    batch, epochs = parameters.batch_size, parameters.epochs
    if batch is None or epochs is None or min(size, batch, epochs) <= 0:
        return {}
    if parameters.batches in (Batches.SHUFFLED, Batches.BALLS_AND_BINS):
        a_pass = math.ceil(size / batch)
        return {"sample_rate": 1 / a_pass, "steps": math.ceil(round(epochs * a_pass, 6))}
    return {"sample_rate": batch / size, "steps": math.ceil(round(epochs * size / batch, 6))}


def _targets(report: PrivacyReport, parameters: BudgetParameters) -> Iterator[str]:
    """Whether the guarantee to rely on meets the targets, and all guarantees are for the requested priors."""
    guarantee = _relied_on(report, parameters)
    if guarantee is None:
        return
    target, posterior = parameters.epsilon, parameters.posterior
    if target is not None and not (guarantee.epsilon or 0) <= target * (1 + _ROUNDING):
        yield f"the guarantee to rely on has epsilon {_value_text(guarantee.epsilon)}, above the {target:g} planned for"
    for risk in guarantee.risks:
        if posterior is not None and risk.measure is RiskMeasure.POSTERIOR and risk.bound > posterior * (1 + 1e-6):
            yield f"a secret may be guessed with probability {risk.bound:.6g}, above the {posterior:g} planned for"
    if guarantee.notion is Notion.SECRET_PROTECTION and parameters.priors is not None:
        for each in report.guarantees:
            if {risk.at for risk in each.risks} - set(parameters.priors):
                yield f"{each.name!r} is for a prior that was not requested"


def _are_alike(recomputed: Any, value: Any) -> bool:
    if isinstance(recomputed, tuple):
        return isinstance(value, tuple) and len(recomputed) == len(value) and all(map(_are_alike, recomputed, value))
    if isinstance(recomputed, int | float) and isinstance(value, int | float):
        return math.isclose(recomputed, value, rel_tol=_ROUNDING)
    return bool(recomputed == value)


def _value_text(value: Any) -> str:
    return f"{value:.12g}" if isinstance(value, float) else str(value)
