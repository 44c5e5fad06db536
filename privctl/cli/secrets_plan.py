"""``privctl secrets plan``: weights, sampling probabilities and noise that protect every secret to a chosen degree."""

from __future__ import annotations

import math
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from privctl.cli.numbers import COUNT, FRACTION
from privctl.cli.options import DATA, PATH, TEXT_COLUMN, common, force, show, verbose
from privctl.domain.errors import CommandError

if TYPE_CHECKING:
    from privctl.data.several import DataPath
    from privctl.secrets.plan.targets import PosteriorTargets

_SWEEP = "sweep"
#: Floats cannot hold the weights that far smaller caps leave.
_LEAST_CAP = 1e-100


@DATA
@click.option(
    "--secrets", type=PATH, required=True, help="The book of secrets, made by privctl secrets scan or by you."
)
@click.option("--steps", type=COUNT, required=True, help="Steps of the training: epochs x records / batch size.")
@click.option("--batch-size", type=COUNT, required=True, help="Expected records per batch.")
@click.option(
    "--cap",
    help="Largest total weight of a secret's records, per nat of its budget. To compare caps, give several numbers "
    "separated by commas, or the word sweep.  [default: none]",
)
@click.option(
    "--prior", type=FRACTION, default=0.001, show_default=True, help="Probability of guessing a secret before training."
)
@click.option(
    "--posterior",
    type=FRACTION,
    default=0.1,
    show_default=True,
    help="Largest probability of guessing it after training.",
)
@click.option(
    "--target", "targets", multiple=True, help="Prior and posterior of one kind, KIND=PRIOR:POSTERIOR; repeatable."
)
@click.option(
    "--form",
    type=click.Choice(["reference", "pairwise"]),
    default="reference",
    show_default=True,
    help="What a secret is compared with: its absence, or its opposite (needs more noise).",
)
@click.option(
    "--calibration",
    type=click.Choice(["curve", "fano"]),
    help="Bound that chooses the noise: the trade-off curve, or Fano's inequality (more noise).  "
    "[default: curve; fano with --form pairwise]",
)
@click.option(
    "--solver",
    type=click.Choice(["auto", "interior", "first-order"]),
    default="auto",
    show_default=True,
    help="Solver for the weights: interior point, or first-order (PDLP); auto chooses by problem size.",
)
@click.option(
    "--gap",
    type=FRACTION,
    help="Relative duality gap at which the first-order solver stops.  "
    "[default: 1e-4; 1e-3 for more than a million memberships]",
)
@click.option(
    "--delta",
    type=FRACTION,
    help="Delta of the guarantee for records.  [default: the smaller of 1e-5 and 1 / records^1.1]",
)
@click.option("-o", "--output", type=PATH, help="Plan to write (.safetensors); its report is written beside it.")
@TEXT_COLUMN
@force
@common
def plan(
    data: DataPath,
    text_column: str | None,
    secrets: Path,
    steps: int,
    batch_size: int,
    cap: str | None,
    prior: float,
    posterior: float,
    targets: tuple[str, ...],
    form: str,
    calibration: str | None,
    solver: str,
    gap: float | None,
    delta: float | None,
    output: Path | None,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Plan the protection of the secrets in DATA.

    The prior of a secret is the largest probability that an adversary who knows everything else gives to any value of
    it. Its posterior is the largest that this probability may become for someone who sees the model. A linear program
    lowers the weight of records that hold many or strongly protected secrets, and keeps as much total weight as it can.
    The noise is the least with which every secret stays within its posterior. Train with the plan by `privctl retrain
    dp-sgd --secrets plan.safetensors`.

    \b
    Example:
      privctl secrets scan train.jsonl -o secrets.jsonl
      privctl secrets plan train.jsonl --secrets secrets.jsonl --steps 1000 \\
          --batch-size 64 --cap sweep
    \f
    In other words: without the secret's records, a guess of its value is right with probability at most the prior.
    After training on them, no guess by any method is right with probability above the posterior, over the randomness of
    the training. The trade-off curve derives this bound from the best test between the two trainings. Fano's inequality
    derives it from the information released, which is looser and so requires more noise.

    \b
    More examples:
      privctl secrets plan train.jsonl --secrets secrets.jsonl --steps 1000 --batch-size 64 \\
          --cap 5 --target email=1e-4:0.05 -o plan.safetensors
    """
    from privctl.data.columns import Columns
    from privctl.data.several import paths_of
    from privctl.reports.codec import encode
    from privctl.reports.files import report_beside
    from privctl.secrets.plan.run import plan as run
    from privctl.secrets.plan.sweep import PlanRequest
    from privctl.secrets.plan.weights import Solver
    from privctl.secrets.protection import Form, ProtectionCalibration
    from privctl.show.progress import note, progress
    from privctl.show.text.secrets_plan import secrets_plan_text

    caps = None if cap == _SWEEP else _caps(cap)
    request = PlanRequest(
        data=data,
        columns=Columns(text=text_column),
        secrets=secrets,
        steps=steps,
        batch_size=batch_size,
        delta=delta,
        targets=_targets(prior, posterior, targets),
        form=Form(form),
        calibration=None if calibration is None else ProtectionCalibration(calibration),
        solver=Solver(solver),
        gap=gap,
    )
    say = partial(note, quiet=quiet)
    report = run(request, caps, output, partial(progress, quiet=quiet), force=force, notify=say)
    show(encode(report) if as_json else secrets_plan_text(report, verbose=verbose(), quiet=quiet), as_json=as_json)
    if output is None:
        say("nothing is written; privctl retrain dp-sgd --secrets needs the plan, which --output writes for one --cap")
        return
    say(f"wrote {output} and {report_beside(output)}")
    words = [word for path in paths_of(data) for word in ("--data", str(path))]
    words += [] if text_column is None else ["--text-column", text_column]
    say(f"train with it: privctl retrain dp-sgd MODEL {shlex.join([*words, '--secrets', str(output)])} -o private")


def _caps(text: str | None) -> tuple[float | None, ...]:
    """The caps that ``--cap`` lists, separated by commas; None where it has the word none, or was not given."""
    if text is None:
        return (None,)
    caps: list[float | None] = []
    for part in text.split(","):
        try:
            caps.append(None if part.strip() == "none" else float(part))
        except ValueError:
            raise CommandError(
                f"--cap is {text!r}; expected numbers such as 5 or 2,5,10, or the word {_SWEEP}"
            ) from None
    for value in caps:
        if value is not None and not (math.isfinite(value) and value >= _LEAST_CAP):
            raise CommandError(f"--cap is {value:g}; it must be a finite number of at least {_LEAST_CAP:g}")
    return tuple(dict.fromkeys(caps))


def _targets(prior: float, posterior: float, own: tuple[str, ...]) -> PosteriorTargets:
    """The targets of ``--prior``, ``--posterior`` and ``--target``."""
    from privctl.secrets.plan.targets import PosteriorTarget, PosteriorTargets

    by_kind = {}
    try:
        default = PosteriorTarget(prior=prior, posterior=posterior)
    except ValueError as error:
        raise CommandError(f"--{error}") from None
    for text in own:
        kind, _, numbers = text.rpartition("=")
        before, _, after = numbers.partition(":")
        try:
            pair = float(before), float(after)
        except ValueError:
            raise CommandError(
                f"--target is {text!r}; expected KIND=PRIOR:POSTERIOR, such as email=1e-4:0.05"
            ) from None
        if kind in by_kind:
            raise CommandError(f"--target names the kind {kind!r} twice; give one target for each kind")
        try:
            by_kind[kind] = PosteriorTarget(prior=pair[0], posterior=pair[1])
        except ValueError as error:
            raise CommandError(f"--target {text}: {error}") from None
    return PosteriorTargets(default=default, by_kind=by_kind)
