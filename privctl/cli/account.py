"""``privctl account``: the noise that a privacy budget needs, and the epsilon that given noise yields."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privctl.cli.groups import WithRareOptions
from privctl.cli.numbers import AMOUNT, BELOW_ONE, CHANCE, COUNT, FRACTION, POSITIVE, Number, Whole
from privctl.cli.options import TEXT_COLUMN, common, data_option, force, given, show, to_standard_output, verbose
from privctl.domain.errors import CommandError
from privctl.domain.events import EVENTS, SAMPLED_BATCHES, Batches
from privctl.domain.guarantee import PrivacyUnit

if TYPE_CHECKING:
    from privctl.plan.accountants import BudgetPlan

_MECHANISMS = {kind.mechanism: kind for kind in EVENTS.values()}
#: Mechanisms that options cannot describe. ``--mechanism`` accepts them only to advise a ledger.
_BY_LEDGER = ("gaussian-mixture", "laplace-search", "non-private")
_PLANNED = [name for name in _MECHANISMS if name not in _BY_LEDGER]


def _options_of_events(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every kind of event; an option that several kinds share is added once."""
    for option in reversed(list(dict.fromkeys(option for kind in EVENTS.values() for option in kind.options))):
        declared = (option.flag, option.parameter) if option.repeatable else (option.flag,)
        kind = {float: Number, int: Whole}[option.kind](option.within) if option.kind is not str else None
        command = click.option(*declared, type=kind, multiple=option.repeatable, help=option.help)(command)
    return command


#: What ``--help`` lists; ``--help-all`` shows the other options too.
_SHOWN = (
    "epsilon", "noise_multiplier", "delta", "sample_rate", "steps", "dataset_size", "data", "batch_size", "epochs",
    "mechanism", "ledger", "methods", "plot", "output", "force", "as_json", "quiet",
)  # fmt: skip


@click.command(cls=WithRareOptions, shown=_SHOWN)
@click.option("--epsilon", type=POSITIVE, help="Target epsilon, to find the noise for. In nats for ferret.")
@click.option("--noise-multiplier", type=POSITIVE, help="Noise stddev / clip norm, to find epsilon for.")
@click.option(
    "--delta",
    type=BELOW_ONE,
    help="Delta of the guarantee; 0 for mechanisms with a bounded privacy loss.  [default: "
    "with --dataset-size or --data, the smaller of 1e-5 and 1 / examples^1.1]",
)
@click.option("--sample-rate", type=CHANCE, help="Probability that a step uses an example.  [default: 1]")
@click.option("--steps", type=COUNT, help="Number of steps.  [default: 1]")
@click.option("--dataset-size", type=COUNT, help="Number of examples, with --batch-size and --epochs.")
@data_option(
    "--data",
    "Training data, to count its records, or its owners with --unit FIELD (repeatable).",
)
@click.option("--unit", help="With --data: field that names a record's owner, to count owners.")
@TEXT_COLUMN
@click.option("--batch-size", type=COUNT, help="Expected examples per batch.")
@click.option("--epochs", type=AMOUNT, help="Passes over the data.")
@click.option(
    "--batches",
    type=click.Choice([str(b) for b in SAMPLED_BATCHES]),
    default=str(Batches.POISSON),
    show_default=True,
    help="How batches are drawn; most bounds are proved for poisson only.",
)
@click.option(
    "--mechanism",
    type=click.Choice(list(_MECHANISMS)),
    metavar="NAME",
    default="gaussian",
    show_default=True,
    help=f"Mechanism applied to the data. One of {', '.join(_PLANNED)}; a --ledger also takes {', '.join(_BY_LEDGER)}.",
)
@_options_of_events
@click.option(
    "--prior",
    "priors",
    type=FRACTION,
    multiple=True,
    help="Probability of guessing a secret without the model (repeatable).",
)
@click.option(
    "--ledger",
    type=click.Path(),
    multiple=True,
    help="Report of a private training, or JSON file of events; all given are composed (repeatable).",
)
@click.option(
    "--method",
    "methods",
    multiple=True,
    help="Methods to compare with the main one (repeatable): naive, advanced, optimal, rdp, gdp-clt, ...",
)
@click.option("--no-peers", is_flag=True, help="Skip other packages' accountants (importing Opacus takes seconds).")
@click.option("--plot", type=click.Path(), help="Draw epsilon over steps and the trade-off curve: FILE.svg or .png.")
@click.option("-o", "--output", type=click.Path(), help="Also write the JSON report here.")
@force
@common
def account(**options: Any) -> None:
    """Plan a privacy budget: compare composition theorems and accountants.

    Give --epsilon to find the noise, or the noise to find epsilon. Each method is shown with the epsilon that follows
    from its noise, and with whether it gives a bound at all.

    \b
    Example:
      privctl account --epsilon 1 --delta 1e-5 --sample-rate 0.01 --steps 1000
      privctl account --noise-multiplier 1 --delta 1e-6 --dataset-size 60000 --batch-size 256 \\
          --epochs 60 --plot plan.svg
    \f
    Reports of several private trainings on the same data, given as ledgers, show what all of them cost together. A
    ledger is a list such as [{"type": "sampled-gaussian", "noise_multiplier": 1, "sample_rate": 0.01, "steps": 500},
    {"type": "laplace", "scale": 3}]; Opacus's accountant.history or state_dict() as JSON; or a dp_accounting tree of
    DpEvents, as repr() writes it.

    \b
    More examples:
      privctl account --ledger risk.report.json --ledger churn.report.json
      privctl account --epsilon 8 --delta 1e-6 --data train.jsonl --batch-size 256 --epochs 3
      privctl account --mechanism search --expected-runs 5 --epsilon 8 --delta 1e-6 \\
          --sample-rate 0.01 --steps 1000
      privctl account --mechanism tree --tree-steps 100 --steps 500 --epsilon 8 --delta 1e-6
      privctl account --mechanism with-replacement --noise-multiplier 1 --delta 1e-6 \\
          --dataset-size 60000 --batch-size 256 --epochs 3
      privctl account --mechanism exponential --range-epsilon 0.1 --steps 50 --delta 1e-6
      privctl account --mechanism banded --epsilon 8 --delta 1e-6 --sample-rate 0.05 --steps 200
      privctl account --mechanism blt --epsilon 8 --delta 1e-6 --sample-rate 0.05 --steps 100
      privctl account --batches balls-and-bins --noise-multiplier 1 --delta 1e-6 \\
          --sample-rate 0.05 --steps 100
      privctl account --batches shuffled --noise-multiplier 4 --delta 1e-6 --dataset-size 60000 \\
          --batch-size 256 --epochs 3
      privctl account --batches fixed-size --noise-multiplier 1 --delta 1e-6 --dataset-size 60000 \\
          --batch-size 256 --epochs 3
      privctl account --mechanism group-gaussian --group-size 4 --epsilon 8 --delta 1e-6 \\
          --sample-rate 0.01 --steps 100
      privctl account --mechanism replace-one-gaussian --noise-multiplier 1 --delta 1e-6 \\
          --sample-rate 0.01 --steps 100
      privctl account --mechanism truncated-poisson --largest-batch 340 --noise-multiplier 1 \\
          --delta 1e-6 --dataset-size 60000 --batch-size 256 --epochs 3
      privctl account --mechanism laplace --scale 2 --steps 10 --delta 1e-6
      privctl account --mechanism discrete-laplace --decay 0.5 --steps 10 --delta 1e-6
      privctl account --mechanism discrete-gaussian --stddev 4 --steps 10 --delta 1e-6
      privctl account --mechanism approximate-dp --step-epsilon 0.1 --step-delta 1e-9 --steps 50 \\
          --delta 1e-6
      privctl account --mechanism randomized-response --bits 10 --bit-epsilon 0.2 --delta 1e-6
      privctl account --mechanism k-ary-response --answers 4 --answer-epsilon 1 --delta 1e-6
      privctl account --mechanism zcdp --rho 0.01 --steps 10 --delta 1e-6
      privctl account --mechanism ferret --groups 16 --fire-probability 0.0625 --delta 1e-6 \\
          --sample-rate 0.01 --steps 100
      privctl account --mechanism secret --record 0.01x5 --steps 100 --posterior 0.5 --prior 0.01 \\
          --delta 1e-6
    """
    from privctl.api.accounting import CountedData, plan_budget
    from privctl.plan.request import report_for
    from privctl.reports.codec import encode
    from privctl.reports.files import require_not_weights_or_report
    from privctl.show.progress import note
    from privctl.storage.atomic import require_absent
    from privctl.storage.commit import write_together

    if to_standard_output(options["output"]):
        options.update(output=None, as_json=True)
    given_options = {name: value for name, value in options.items() if name not in _OF_OUTPUT}
    stated = set(given(options)) - {*_OF_DATA}
    plot, output = (Path(options[name]) if options[name] else None for name in ("plot", "output"))
    _check_files(plot, output)

    def ready() -> None:
        for path, option in ((plot, "--plot"), (output, "--output")):
            if path is not None:
                require_absent(path, options["force"], option=option)
                require_not_weights_or_report(path, but="account" if path == output else "")

    path, unit, column = (given_options.pop(name) for name in _OF_DATA)
    data = CountedData(path=path, unit=unit, text_column=column)
    plan = plan_budget(given_options, stated, data, ready=ready, notify=partial(note, quiet=options["quiet"]))
    try:
        drawn = _drawing(plan, plot) if plot is not None else b""
    except ValueError as error:
        raise CommandError(str(error)) from None
    text = encode(report_for(plan, given_options, stated, output or Path("plan.report.json")))
    show(text if options["as_json"] else _rendered(plan), as_json=options["as_json"])
    written = {path: content for path, content in ((plot, drawn), (output, text.encode())) if path is not None}
    write_together(written, replace=options["force"])
    for path in written:
        note(f"wrote {path}", quiet=options["quiet"])


#: Options about the data whose examples are counted.
_OF_DATA = ("data", "unit", "text_column")
#: Options that do not affect the plan.
_OF_OUTPUT = {"as_json", "quiet", "force", "plot", "output"}


def _check_files(plot: Path | None, output: Path | None) -> None:
    if plot is not None and plot.suffix.lower() not in (".svg", ".png"):
        raise CommandError(f"--plot {plot} ends neither in .svg nor in .png; choose one of these endings")
    if plot is not None and plot == output:
        raise CommandError(f"--plot and --output both name {plot}; name two different files")
    for flag, path in (("--plot", plot), ("--output", output)):
        if path is not None and not path.parent.is_dir():
            raise CommandError(f"{flag} {path} is in a folder that does not exist; create the folder first")


def _drawing(plan: BudgetPlan, path: Path) -> bytes:
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
    events = whole.events if whole is not None else (plan.mechanism,)
    heading = "\n".join([*map(_described, events), *(f"{remark}." for remark in plan.remarks)])
    if plan.solution is not None:
        goal = "posterior" if of_secret else "epsilon"
        heading += f"\nFound for {goal} {plan.target:g}: {plan.solved.replace('_', ' ')} {plan.solution:.9g}"
    if whole is None or of_secret:
        return notions_text(rows, heading=heading, verbose=verbose())
    by_noise = plan.solved == "noise multiplier" and plan.guarantee.noise_multiplier is not None
    column = "noise multiplier" if by_noise else "epsilon"
    return account_text(rows, plan.guarantee, column=column, heading=heading, verbose=verbose())


def _described(event: object) -> str:
    known = {f.name: getattr(event, f.name) for f in fields(event)}  # type: ignore[arg-type]
    facts = ", ".join(
        f"{name.replace('_', ' ')} {_short_name(value)}" for name, value in known.items() if value is not None
    )
    return f"{getattr(event, 'tag', type(event).__name__)}: {facts}"


def _short_name(value: object) -> str:
    if isinstance(value, tuple):
        return f"({len(value)} values, sum {math.fsum(value):g})"
    return f"{value:.9g}" if isinstance(value, float) else str(value)
