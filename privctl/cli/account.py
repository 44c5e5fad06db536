"""``privctl account``: the noise that a privacy budget needs, and the epsilon that given noise yields."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privctl.cli.numbers import AMOUNT, CHANCE, COUNT, FRACTION, POSITIVE, Number, Whole
from privctl.cli.options import common, force, show, to_standard_output, verbose
from privctl.domain.checks import flagged
from privctl.domain.errors import CommandError, InputError
from privctl.domain.events import EVENTS, Batches
from privctl.domain.guarantee import PrivacyUnit

if TYPE_CHECKING:
    from privctl.plan.accountants import BudgetPlan

_MECHANISMS = {kind.mechanism: kind for kind in EVENTS.values()}


def _options_of_events(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that belong to one kind of event each."""
    for option in reversed([option for kind in EVENTS.values() for option in kind.options]):
        declared = (option.flag, option.parameter) if option.repeatable else (option.flag,)
        kind = {float: Number, int: Whole}[option.kind](option.within) if option.kind is not str else None
        command = click.option(*declared, type=kind, multiple=option.repeatable, help=option.help)(command)
    return command


@click.command()
@click.option("--epsilon", type=POSITIVE, help="Target epsilon, to find the noise. In nats for ferret.")
@click.option("--noise-multiplier", type=POSITIVE, help="Noise standard deviation / clip norm, to find epsilon.")
@click.option("--delta", type=FRACTION, help="Delta of the guarantee, such as 1e-5.")
@click.option("--sample-rate", type=CHANCE, help="Chance that a step uses an example.  [default: 1]")
@click.option("--steps", type=COUNT, help="Number of steps.  [default: 1]")
@click.option("--dataset-size", type=COUNT, help="With --batch-size and --epochs, instead of rate and steps.")
@click.option("--batch-size", type=COUNT, help="Expected examples per batch.")
@click.option("--epochs", type=AMOUNT, help="Passes over the data.")
@click.option(
    "--batches",
    type=click.Choice([str(b) for b in Batches]),
    default=str(Batches.POISSON),
    show_default=True,
    help="How batches are drawn; most bounds are proved for poisson only.",
)
@click.option(
    "--mechanism",
    type=click.Choice(list(_MECHANISMS)),
    default="gaussian",
    show_default=True,
    help="What touches the data.",
)
@_options_of_events
@click.option(
    "--prior", "priors", type=FRACTION, multiple=True, help="Chance of guessing a secret blindly (repeatable)."
)
@click.option("--ledger", type=click.Path(), help="JSON list of events of any kind, to be composed; see below.")
@click.option(
    "--method",
    "methods",
    multiple=True,
    help="Methods to show beside the main one (repeatable): naive, advanced, optimal, rdp, gdp-clt, ...",
)
@click.option("--no-peers", is_flag=True, help="Skip other packages' accountants (importing Opacus takes seconds).")
@click.option("--plot", type=click.Path(), help="Draw epsilon over steps and the trade-off curve: FILE.svg or .png.")
@click.option("-o", "--output", type=click.Path(), help="Also write the JSON report here.")
@force
@common
def account(**options: Any) -> None:
    """Plan a privacy budget: every composition theorem and accountant side by side.

    Give --epsilon to find the noise, or the noise to find epsilon. Beside each method's number is the epsilon that
    really follows from the same noise, and whether the method gives a bound at all.

    A ledger is a list such as [{"type": "sampled-gaussian", "noise_multiplier": 1, "sample_rate": 0.01, "steps": 500},
    {"type": "laplace", "scale": 3}]; Opacus's accountant.history or state_dict() as JSON; or a dp_accounting tree of
    DpEvents, as repr() writes it.

    \b
    Example:
      privctl account --epsilon 1 --delta 1e-5 --sample-rate 0.01 --steps 1000
      privctl account --noise-multiplier 1 --delta 1e-6 --dataset-size 60000 --batch-size 256 \\
          --epochs 60 --plot plan.svg
    """
    from privctl.plan.report import report_of
    from privctl.reports.codec import encode
    from privctl.reports.files import file_artifact
    from privctl.show.progress import note
    from privctl.storage.atomic import require_absent
    from privctl.storage.commit import write_together

    if to_standard_output(options["output"]):
        options.update(output=None, as_json=True)
    given = _given(options)
    _check_accepted(options, given)
    plot, output = (Path(options[name]) if options[name] else None for name in ("plot", "output"))
    _check_files(plot, output)
    for path, option in ((plot, "--plot"), (output, "--output")):
        if path is not None:
            require_absent(path, options["force"], option=option)
    try:
        plan = _plan(options)
        drawn = _drawn(plan, plot) if plot is not None else b""
    except ValueError as error:
        raise CommandError(flagged(str(error), options)) from None
    parameters = {k: list(v) if isinstance(v, tuple) else v for k, v in options.items() if k in given - _NOT_REPORTED}
    inputs = []
    if options["ledger"]:
        inputs.append(file_artifact("ledger", Path(options["ledger"]), output or Path("plan.report.json")))
    text = encode(report_of(plan, parameters, inputs))
    show(text if options["as_json"] else _rendered(plan), as_json=options["as_json"])
    written = {path: content for path, content in ((plot, drawn), (output, text.encode())) if path is not None}
    write_together(written, replace=options["force"])
    for path in written:
        note(f"wrote {path}", quiet=options["quiet"])


_NOT_REPORTED = {"as_json", "quiet", "force", "plot", "output"}
_RATE = {"sample_rate", "steps", "dataset_size", "batch_size", "epochs"}
#: Options that a mechanism uses beside its event's own, delta and the options about output.
_ACCEPTED = {
    "gaussian": {"epsilon", "noise_multiplier", "batches", "methods", "no_peers", "priors"} | _RATE,
    "ferret": {"epsilon"} | _RATE,
    "secret": {"noise_multiplier", "priors"} | (_RATE - {"sample_rate"}),
    "ledger": {"ledger", "priors", "no_peers"},
}
_ACCEPTED_ELSE = {"epsilon", "priors"} | _RATE
_ALWAYS = {"delta", "mechanism"} | _NOT_REPORTED


def _given(options: dict[str, Any]) -> set[str]:
    """The options that the user stated, whatever their values."""
    context, default = click.get_current_context(), click.core.ParameterSource.DEFAULT
    return {name for name in options if context.get_parameter_source(name) is not default}


def _check_accepted(options: dict[str, Any], given: set[str]) -> None:
    """Raise CommandError for an option that the mechanism would ignore."""
    what = "ledger" if options["ledger"] else options["mechanism"]
    where = "--ledger, whose events state everything" if options["ledger"] else f"--mechanism {what}"
    own = {option.parameter for option in _MECHANISMS[what].options} if what in _MECHANISMS else set()
    extra = given - own - _ACCEPTED.get(what, _ACCEPTED_ELSE) - _ALWAYS
    if options["ledger"]:
        extra |= given & {"mechanism"}
    if extra:
        flags = {p.name: p.opts[-1 if p.name == "output" else 0] for p in click.get_current_context().command.params}
        raise CommandError(f"{flags[min(extra)]} does not apply to {where}; remove it")


def _check_files(plot: Path | None, output: Path | None) -> None:
    if plot is not None and plot.suffix.lower() not in (".svg", ".png"):
        raise CommandError(f"--plot {plot} ends neither in .svg nor in .png; choose one of these endings")
    if plot is not None and plot == output:
        raise CommandError(f"--plot and --output both name {plot}; name two different files")
    for flag, path in (("--plot", plot), ("--output", output)):
        if path is not None and not path.parent.is_dir():
            raise CommandError(f"{flag} {path} is in a folder that does not exist; create the folder first")


def _plan(options: dict[str, Any]) -> BudgetPlan:
    if options["ledger"]:
        return _plan_of_ledger(options)
    planned = {"gaussian": _plan_of_gaussian, "ferret": _plan_of_signs, "secret": _plan_of_secret}
    return planned.get(options["mechanism"], _plan_of_event)(options)


def _plan_of_gaussian(options: dict[str, Any]) -> BudgetPlan:
    from privctl.accounting.methods import METHODS
    from privctl.accounting.passes import shortest_pass_if_uneven
    from privctl.domain.events import SampledGaussian
    from privctl.plan.gaussian import plan_gaussian
    from privctl.show.progress import note

    target, given = _one_of(options, "epsilon", "noise_multiplier")
    unknown = set(options["methods"]) - {*METHODS, "tight", "opacus-prv"}
    if unknown:
        raise CommandError(f"--method {min(unknown)} is not one of {', '.join([*METHODS, 'tight', 'opacus-prv'])}")
    rate, steps = _rate_and_steps(options)
    event = SampledGaussian(
        noise_multiplier=given if given is not None else 1.0,
        sample_rate=rate,
        steps=steps,
        batches=Batches(options["batches"]),
    )
    quiet = options["quiet"]
    if event.batches is Batches.SHUFFLED and (length := shortest_pass_if_uneven(rate)) is not None:
        note(
            f"batches of rate {rate:g} do not divide the data; a pass is taken to be {length} steps, and the remainder "
            "to be dropped",
            quiet=quiet,
        )
    return plan_gaussian(
        event,
        _delta(options),
        target=target,
        only=options["methods"],
        with_peers=not options["no_peers"],
        priors=options["priors"],
        note=lambda title: note(f"{title} ...", quiet=quiet) if title.startswith("Opacus") else None,
    )


def _plan_of_event(options: dict[str, Any]) -> BudgetPlan:
    """A kind of event without a table of methods of its own."""
    from privctl.plan.theorems import NoiseSearch, plan_ledger, setting_of

    kind = _MECHANISMS[options["mechanism"]]
    setting = setting_of(kind)
    target, _ = _one_of(options, "epsilon", setting.parameter)
    rate, steps = _rate_and_steps(options)
    own = {option.field: options[option.parameter] for option in kind.options}
    facts = {field: value for field, value in own.items() if value is not None} | {"sample_rate": rate, "steps": steps}
    required = {field.name for field in fields(kind) if field.default is MISSING} - {setting.field}
    for option in kind.options:
        if option.field in required - facts.keys():
            raise CommandError(f"--mechanism {kind.mechanism} needs {option.flag}")
    if target is None:
        return plan_ledger([kind(**facts)], _delta(options), priors=options["priors"])
    search = NoiseSearch(kind=kind, facts=facts, target=target)
    return plan_ledger([], _delta(options), search=search, priors=options["priors"])


def _plan_of_signs(options: dict[str, Any]) -> BudgetPlan:
    from privctl.accounting.mutual_information import fire_probability_for
    from privctl.domain.events import SignBits
    from privctl.plan.theorems import plan_sign_bits

    target, chance = _one_of(options, "epsilon", "fire_probability")
    if options["groups"] is None:
        raise CommandError("--mechanism ferret needs --groups, the number of groups of tensors")
    rate, steps = _rate_and_steps(options)
    if chance is None:
        assert target is not None
        chance = fire_probability_for(target, options["groups"], steps, rate)
    event = SignBits(groups=options["groups"], fire_probability=chance, sample_rate=rate, steps=steps)
    return plan_sign_bits(event, _delta(options), target=target)


def _plan_of_secret(options: dict[str, Any]) -> BudgetPlan:
    from privctl.domain.events import SecretMixture
    from privctl.plan.theorems import plan_secret

    posterior, noise = _one_of(options, "posterior", "noise_multiplier")
    if len(options["priors"]) != 1:
        raise CommandError("--mechanism secret needs one --prior, the chance of guessing the secret blindly")
    if not options["records"]:
        raise CommandError("--mechanism secret needs --record, such as --record 0.001x50 for 50 records")
    _, steps = _rate_and_steps(options)
    chances = tuple(chance for text in options["records"] for chance in _records(text))
    event = SecretMixture(probabilities=chances, noise_multiplier=1.0 if noise is None else noise, steps=steps)
    return plan_secret(event, _delta(options), options["priors"][0], posterior=posterior)


def _plan_of_ledger(options: dict[str, Any]) -> BudgetPlan:
    from privctl.plan.foreign import foreign_events
    from privctl.plan.theorems import plan_ledger
    from privctl.reports.codec import decode_events
    from privctl.storage.reader import read_text

    path = Path(options["ledger"])
    text = read_text(path)
    events = foreign_events(text, str(path)) or decode_events(text, str(path))
    if not events:
        raise InputError(f"{path} lists no events; a ledger holds at least one")
    return plan_ledger(events, _delta(options), priors=options["priors"])


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


def _one_of(options: dict[str, Any], wanted: str, given: str) -> tuple[float | None, float | None]:
    """The target and the given value, exactly one of which was stated."""
    target, value = options[wanted], options[given]
    if (target is None) == (value is None):
        names = f"--{wanted} to find the noise or --{given.replace('_', '-')} to find what it yields"
        raise CommandError(f"give {'one of' if target is not None else 'either'} {names}")
    return target, value


def _delta(options: dict[str, Any]) -> float:
    if options["delta"] is None:
        raise CommandError("--delta is missing; give a value well below 1 / number of examples, such as 1e-5")
    return float(options["delta"])


_MOST_RECORDS = 100_000


def _rate_and_steps(options: dict[str, Any]) -> tuple[float, int]:
    """Sampling rate and steps, from their flags or from the data set's."""
    from privctl.accounting.guarantees import delta_warning
    from privctl.show.progress import note

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
        note(sentence, quiet=options["quiet"])
    if options["batches"] == Batches.SHUFFLED:
        steps_per_pass = math.ceil(facts["dataset_size"] / facts["batch_size"])
        return 1 / steps_per_pass, _whole_steps(facts["epochs"] * steps_per_pass)
    rate = facts["batch_size"] / facts["dataset_size"]
    return rate, _whole_steps(facts["epochs"] / rate)


def _whole_steps(steps: float) -> int:
    """``steps`` rounded up, ignoring the rounding error of the division."""
    return math.ceil(round(min(steps, 1e300), 6))


def _drawn(plan: BudgetPlan, path: Path) -> bytes:
    from privctl.plan.curves import curves_of
    from privctl.show.plots.curves import draw

    return draw(curves_of(plan), "svg" if path.suffix.lower() == ".svg" else "png")


def _rendered(plan: BudgetPlan) -> str:
    from privctl.domain.events import Ledger
    from privctl.show.text.account import AccountRow, account_text, notions_text

    rows = [
        AccountRow(title=row.title, seconds=row.seconds, guarantee=row.guarantee, failure=row.failure)
        for row in plan.rows
    ]
    whole = plan.mechanism if isinstance(plan.mechanism, Ledger) else None
    of_secret = whole is not None and whole.unit is PrivacyUnit.SECRET
    heading = "\n".join(_described(event) for event in (whole.events if whole is not None else (plan.mechanism,)))
    if plan.solution is not None:
        goal = "posterior" if of_secret else "epsilon"
        heading += f"\nFound for {goal} {plan.target:g}: {plan.solved.replace('_', ' ')} {plan.solution:.9g}"
    if whole is None or of_secret:
        return notions_text(rows, heading=heading, verbose=verbose())
    column = "noise multiplier" if plan.solved == "noise multiplier" else "epsilon"
    return account_text(rows, plan.guarantee, column=column, heading=heading, verbose=verbose())


def _described(event: object) -> str:
    facts = ", ".join(f"{f.name.replace('_', ' ')} {_short(getattr(event, f.name))}" for f in fields(event))  # type: ignore[arg-type]
    return f"{type(event).__name__}: {facts}"


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return f"{len(value)} of sum {math.fsum(value):g}"
    return f"{value:.9g}" if isinstance(value, float) else str(value)
