"""Plans from the options of ``privctl account``; used by the command and by the function ``privctl.account``."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from dataclasses import MISSING, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from privctl.domain.checks import flagged
from privctl.domain.errors import CommandError
from privctl.domain.events import EVENTS, Batches, Event
from privctl.domain.progress import Notify
from privctl.domain.report import Omission, PrivacyReport
from privctl.plan.accountants import BudgetPlan
from privctl.reports.files import digested_artifact, now, versions

_WARNINGS = (
    "a plan, not a run: it holds for a training that does exactly what the mechanism says",
    "bounds are for real arithmetic; the report of a run adds what floating-point noise costs on its model",
)
_BEYOND_FLOATS = (
    "the mechanism's numbers are so small or so large that floats cannot hold what follows from them; give others"
)
#: How Python's messages begin if an intermediate result leaves the range of floats.
_FLOAT_ERRORS = ("math domain error", "cannot convert float")
#: Option -> its flag, if that differs from its name.
_FLAGS = {"methods": "--method", "priors": "--prior", "records": "--record"}
_RATE = {"sample_rate", "steps", "dataset_size", "batch_size", "epochs"}
#: Options that a mechanism accepts besides its event's own, delta and the options about output.
_ACCEPTED = {
    "gaussian": {"epsilon", "noise_multiplier", "batches", "methods", "no_peers", "priors"} | _RATE,
    "banded": {"epsilon", "noise_multiplier", "priors"} | _RATE,
    "blt": {"epsilon", "noise_multiplier", "priors"} | _RATE,
    "ferret": {"epsilon"} | _RATE,
    "secret": {"noise_multiplier", "priors"} | (_RATE - {"sample_rate"}),
    "search": {"epsilon", "noise_multiplier", "priors"} | _RATE,
    "ledger": {"ledger", "priors", "no_peers"},
}
#: Mechanisms whose noise is set by --noise-multiplier.
_GAUSSIANS = ("group-gaussian", "replace-one-gaussian", "truncated-poisson", "tree", "with-replacement")
_ACCEPTED |= {name: {"epsilon", "noise_multiplier", "priors"} | _RATE for name in _GAUSSIANS}
_ACCEPTED_ELSE = {"epsilon", "priors"} | _RATE
_ALWAYS = {"delta", "mechanism"}


#: Computes a plan whose options have been checked.
_Planner = Callable[[], BudgetPlan]


def planner_of(options: Mapping[str, Any], given: Container[str], note: Notify) -> _Planner:
    """Check the options and return a function that computes the plan; nothing slow is done here.

    ``options`` holds every option of ``privctl account`` by name; ``given`` contains those that the user set, whatever
    their values; ``note`` is called with what the user should know. Raises CommandError for options that are missing,
    out of range or contradictory, and InputError for a ledger that cannot be read. The function returned raises
    CommandError for what only shows during the computation.
    """
    _check_accepted(options, given)
    names: Container[str] = () if options["ledger"] else options  # numbers in a ledger are not options

    def compute(plan: _Planner) -> BudgetPlan:
        import numpy as np

        try:
            with np.errstate(over="ignore", divide="ignore", invalid="raise"):  # inf is a valid result, NaN is not
                return plan()
        except ValueError as error:
            beyond = str(error).startswith(_FLOAT_ERRORS)
            raise CommandError(_BEYOND_FLOATS if beyond else flagged(str(error), names)) from None
        except ArithmeticError:
            raise CommandError(_BEYOND_FLOATS) from None

    try:
        return partial(compute, _planner(options, note))
    except ValueError as error:
        raise CommandError(flagged(str(error), names)) from None


def report_for(plan: BudgetPlan, options: Mapping[str, Any], given: Container[str], report_path: Path) -> PrivacyReport:
    """The report of ``plan``, to be written at ``report_path``, with the options that were given and the delta.

    It holds every row's guarantee; rows without one become omissions with the reason.
    """
    parameters = {
        name: list(value) if isinstance(value, tuple) else value for name, value in options.items() if name in given
    }
    if len(options["ledger"]) == 1:
        (parameters["ledger"],) = options["ledger"]
    elif options["ledger"]:
        parameters["ledgers"] = parameters.pop("ledger")
    return PrivacyReport(
        step="account",
        created=now(),
        versions=versions(("numpy", "scipy", "opacus")),
        inputs=tuple(digested_artifact("ledger", source, report_path) for source in plan.sources),
        parameters={
            **parameters,
            "delta": plan.delta,
            "methods": {row.key: {"title": row.title, "seconds": round(row.seconds, 6)} for row in plan.rows},
            "rely_on": plan.main,
            "found": {} if plan.solution is None else {plan.solved: plan.solution},
        },
        mechanism=plan.mechanism,
        guarantees=tuple(row.guarantee for row in plan.rows if row.guarantee is not None),
        omissions=tuple(Omission(what=row.title, reason=row.failure) for row in plan.rows if row.guarantee is None),
        warnings=(*_WARNINGS, *plan.remarks),
    )


def _check_accepted(options: Mapping[str, Any], given: Container[str]) -> None:
    """Raise CommandError for an option that the mechanism would ignore."""
    what = "ledger" if options["ledger"] else options["mechanism"]
    where = "--ledger, whose events state everything" if options["ledger"] else f"--mechanism {what}"
    kind = _event_kind(what)
    accepted = set() if kind is None else {option.parameter for option in kind.options}
    extra = {name for name in options if name in given} - accepted - _ACCEPTED.get(what, _ACCEPTED_ELSE) - _ALWAYS
    if options["ledger"] and "mechanism" in given:
        extra.add("mechanism")
    if extra:
        flag = _FLAGS.get(min(extra), f"--{min(extra).replace('_', '-')}")
        raise CommandError(f"{flag} does not apply to {where}; remove it")


def _event_kind(mechanism: str) -> type[Event] | None:
    """The kind of event with this mechanism name; None if there is none."""
    return next((kind for kind in EVENTS.values() if kind.mechanism == mechanism), None)


def _planner(options: Mapping[str, Any], note: Notify) -> _Planner:
    if options["ledger"]:
        return _plan_of_ledger(options)
    planned = {
        "gaussian": _plan_of_gaussian, "banded": _plan_of_banded, "blt": _plan_of_buffered, "ferret": _plan_of_signs,
        "secret": _plan_of_secret, "search": _plan_of_search,
    }  # fmt: skip
    return planned.get(options["mechanism"], _plan_of_event)(options, note)


def _plan_of_gaussian(options: Mapping[str, Any], note: Notify) -> _Planner:
    from privctl.accounting.methods import METHODS
    from privctl.accounting.passes import shortest_pass_if_uneven
    from privctl.domain.events import SampledGaussian
    from privctl.plan.gaussian import plan_gaussian

    target, given = _one_of(options, "epsilon", "noise_multiplier")
    unknown = set(options["methods"]) - {*METHODS, "tight", "opacus-prv"}
    if unknown:
        raise CommandError(f"--method {min(unknown)} is not one of {', '.join([*METHODS, 'tight', 'opacus-prv'])}")
    rate, steps = _rate_and_steps(options, note)
    event = SampledGaussian(
        noise_multiplier=given if given is not None else 1.0,
        sample_rate=rate,
        steps=steps,
        batches=Batches(options["batches"]),
    )
    if event.batches is Batches.SHUFFLED and (length := shortest_pass_if_uneven(rate)) is not None:
        note(
            f"batches of rate {rate:g} do not divide the data; a pass is taken to be {length} steps, and the remainder "
            "to be dropped"
        )
    return partial(
        plan_gaussian,
        event,
        _delta(options),
        target=target,
        only=options["methods"],
        with_peers=not options["no_peers"],
        priors=options["priors"],
        note=lambda title: note(f"{title} ...") if title.startswith("Opacus") else None,
    )


def _plan_of_banded(options: Mapping[str, Any], note: Notify) -> _Planner:
    from privctl.plan.banded import BandedRequest, plan_banded

    target, noise = _one_of(options, "epsilon", "noise_multiplier")
    rate, steps = _rate_and_steps(options, note)
    banded_request = BandedRequest(
        sample_rate=rate, steps=steps, bands=options["bands"], target=target, noise_multiplier=noise
    )
    return partial(plan_banded, banded_request, _delta(options), priors=tuple(options["priors"]))


def _plan_of_buffered(options: Mapping[str, Any], note: Notify) -> _Planner:
    from privctl.plan.buffered import BufferedRequest, plan_buffered

    target, noise = _one_of(options, "epsilon", "noise_multiplier")
    rate, steps = _rate_and_steps(options, note)
    buffered_request = BufferedRequest(
        sample_rate=rate, steps=steps, buffers=options["buffers"], target=target, noise_multiplier=noise
    )
    return partial(plan_buffered, buffered_request, _delta(options), priors=tuple(options["priors"]))


def _plan_of_search(options: Mapping[str, Any], note: Notify) -> _Planner:
    from privctl.accounting.runs_law import shape_of
    from privctl.domain.events import BestOfRuns
    from privctl.plan.theorems import plan_search

    target, noise = _one_of(options, "epsilon", "noise_multiplier")
    if options["expected_runs"] is None:
        raise CommandError("--mechanism search needs --expected-runs, the number of runs on average, such as 10")
    rate, steps = _rate_and_steps(options, note)
    event = BestOfRuns(
        noise_multiplier=1.0 if noise is None else noise,
        mean_runs=options["expected_runs"],
        shape=shape_of(options["runs_law"] or "geometric"),
        sample_rate=rate,
        run_steps=steps,
    )
    return partial(plan_search, event, _delta(options), target=target, priors=options["priors"])


def _plan_of_event(options: Mapping[str, Any], note: Notify) -> _Planner:
    """Plan a kind of event that has no planner of its own."""
    from privctl.plan.theorems import NoiseSearch, plan_ledger, setting_of

    kind = _event_kind(options["mechanism"])
    if kind is None:
        known = ", ".join(kind.mechanism for kind in EVENTS.values())
        raise CommandError(f"--mechanism {options['mechanism']} is not known; choose from {known}")
    setting = setting_of(kind)
    target, stated = _one_of(options, "epsilon", setting.parameter)
    rate, steps = _rate_and_steps(options, note)
    values = {option.field: options[option.parameter] for option in kind.options}
    facts = {field: value for field, value in values.items() if value is not None} | {"steps": steps}
    if stated is not None:
        facts[setting.field] = stated
    facts |= _sizes_of(kind, rate, options)
    required = {field.name for field in fields(kind) if field.default is MISSING} - {setting.field}
    for option in kind.options:
        if option.field in required - facts.keys():
            raise CommandError(f"--mechanism {kind.mechanism} needs {option.flag}")
    if target is None:
        return partial(plan_ledger, [kind(**facts)], _delta(options, zero=True), priors=options["priors"])
    search = NoiseSearch(kind=kind, facts=facts, target=target)
    return partial(plan_ledger, [], _delta(options), search=search, priors=options["priors"])


def _sizes_of(kind: type[Event], rate: float, options: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of an event that follow from the options on sampling."""
    names = {field.name for field in fields(kind)}
    if "sample_rate" not in names and rate != 1 and ("draws" not in names or options["sample_rate"] is not None):
        raise CommandError(
            f"--mechanism {kind.mechanism} is not known on batches; remove --sample-rate, --dataset-size and --epochs"
            if "draws" not in names
            else f"--mechanism {kind.mechanism} needs --dataset-size, --batch-size and --epochs, not --sample-rate"
        )
    if "examples" in names and options["dataset_size"] is None:
        raise CommandError(f"--mechanism {kind.mechanism} needs --dataset-size, --batch-size and --epochs")
    known = {"sample_rate": rate, "examples": options["dataset_size"], "draws": options["batch_size"]}
    return {name: value for name, value in known.items() if name in names}


def _plan_of_signs(options: Mapping[str, Any], note: Notify) -> _Planner:
    from privctl.accounting.mutual_information import fire_probability_for
    from privctl.domain.events import SignBits
    from privctl.plan.theorems import plan_sign_bits

    target, chance = _one_of(options, "epsilon", "fire_probability")
    if options["groups"] is None:
        raise CommandError("--mechanism ferret needs --groups, the number of groups of tensors")
    rate, steps = _rate_and_steps(options, note)
    if chance is None:
        assert target is not None
        chance = fire_probability_for(target, options["groups"], steps, rate)
    event = SignBits(groups=options["groups"], fire_probability=chance, sample_rate=rate, steps=steps)
    return partial(plan_sign_bits, event, _delta(options), target=target)


def _plan_of_secret(options: Mapping[str, Any], note: Notify) -> _Planner:
    from privctl.domain.events import SecretMixture
    from privctl.plan.theorems import plan_secret

    posterior, noise = _one_of(options, "posterior", "noise_multiplier")
    if len(options["priors"]) != 1:
        raise CommandError("--mechanism secret needs one --prior, the chance of guessing the secret blindly")
    if not options["records"]:
        raise CommandError("--mechanism secret needs --record, such as --record 0.001x50 for 50 records")
    _, steps = _rate_and_steps(options, note)
    chances = tuple(chance for text in options["records"] for chance in _records(text))
    event = SecretMixture(probabilities=chances, noise_multiplier=1.0 if noise is None else noise, steps=steps)
    return partial(plan_secret, event, _delta(options), options["priors"][0], posterior=posterior)


def _plan_of_ledger(options: Mapping[str, Any]) -> _Planner:
    from privctl.plan.given_ledgers import events_of
    from privctl.plan.theorems import plan_ledger

    ledgers = events_of(options["ledger"])
    delta = options["delta"] if options["delta"] is not None else ledgers.delta
    if delta is None:
        raise CommandError("--delta is missing; give a value well below 1 / number of examples, such as 1e-5")
    plan = partial(plan_ledger, ledgers.events, float(delta), priors=options["priors"], remarks=ledgers.remarks)
    return lambda: replace(plan(), sources=ledgers.sources)


def _records(text: str) -> list[float]:
    """The probabilities that ``P`` or ``PxCOUNT`` denotes."""
    chance, _, count = text.partition("x")
    try:
        probability, times = float(chance), int(count) if count else 1
        if not (0 <= probability <= 1 and 1 <= times <= _MOST_RECORDS):
            raise ValueError
        return [probability] * times
    except ValueError:
        raise CommandError(
            f"--record {text} is neither a probability nor PROBABILITYxCOUNT, such as 0.001x50, of at most 100,000"
        ) from None


def _one_of(options: Mapping[str, Any], wanted: str, given: str) -> tuple[float | None, float | None]:
    """The values of the options ``wanted`` and ``given``; raises CommandError unless exactly one is set."""
    target, value = options[wanted], options[given]
    if (target is None) == (value is None):
        names = f"--{wanted} to find the noise or --{given.replace('_', '-')} to find what it yields"
        raise CommandError(f"give {'one of' if target is not None else 'either'} {names}")
    return target, value


def _delta(options: Mapping[str, Any], *, zero: bool = False) -> float:
    """Delta, which may be 0 if ``zero``; by default, the default for a training run on ``dataset_size`` examples."""
    if options["delta"] is None and options["dataset_size"] is not None:
        from privctl.accounting.deltas import default_delta

        return default_delta(options["dataset_size"])
    if options["delta"] is None:
        raise CommandError(
            "--delta is missing; give a value well below 1 / number of examples, such as 1e-5, or --dataset-size"
        )
    if options["delta"] == 0 and not zero:
        raise CommandError("--delta is 0, which only mechanisms with a bounded privacy loss have; give one above 0")
    return float(options["delta"])


_MOST_RECORDS = 100_000


def _rate_and_steps(options: Mapping[str, Any], note: Notify) -> tuple[float, int]:
    """Sampling rate and steps, from their own options or from data set size, batch size and epochs."""
    from privctl.accounting.deltas import delta_warning

    facts = {name: options[name] for name in ("dataset_size", "batch_size", "epochs")}
    stated = {name: value for name, value in facts.items() if value is not None}
    if not stated:
        return (1.0 if options["sample_rate"] is None else options["sample_rate"]), (
            1 if options["steps"] is None else options["steps"]
        )
    if len(stated) < 3:
        missing = next(name for name in facts if name not in stated).replace("_", "-")
        raise CommandError(f"--{missing} is missing; --dataset-size, --batch-size and --epochs go together")
    if options["sample_rate"] is not None or options["steps"] is not None:
        raise CommandError("give either --sample-rate and --steps or --dataset-size, --batch-size and --epochs")
    if facts["batch_size"] > facts["dataset_size"]:
        raise CommandError(f"--batch-size {facts['batch_size']} exceeds --dataset-size {facts['dataset_size']}")
    if options["delta"] is not None and (sentence := delta_warning(options["delta"], facts["dataset_size"])):
        note(sentence)
    if options["batches"] in (Batches.SHUFFLED, Batches.BALLS_AND_BINS) or options["mechanism"] == "blt":
        steps_per_pass = math.ceil(facts["dataset_size"] / facts["batch_size"])
        return 1 / steps_per_pass, _whole_steps(facts["epochs"] * steps_per_pass)
    rate = facts["batch_size"] / facts["dataset_size"]
    return rate, _whole_steps(facts["epochs"] / rate)


def _whole_steps(steps: float) -> int:
    """``steps`` rounded up, ignoring rounding errors of a division."""
    return math.ceil(round(min(steps, 1e300), 6))
