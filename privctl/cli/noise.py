"""``privctl noise``: add noise to a finished checkpoint (DP-Weights)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privctl.cli.groups import WithRareOptions
from privctl.cli.noise_output import notes_on, print_json, print_plan, print_table
from privctl.cli.numbers import AMOUNT, AMOUNT_OR_ZERO, BELOW_ONE, COUNT, FRACTION, POSITIVE, SEED, Whole
from privctl.cli.options import MODEL, common, data_option, force
from privctl.domain.guarantee import Adjacency
from privctl.domain.mechanism import Calibration, Formula, Optimizer, Regime
from privctl.domain.ranges import Range

if TYPE_CHECKING:
    from privctl.noise.facts import MissingFactsError

#: Another name for ``Calibration.DP_WEIGHTS``.
_PUBLISHED = "published"


#: What ``--help`` lists; ``--help-all`` shows the other options too.
_SHOWN = (
    "epsilon", "delta", "output", "facts", "epochs", "learning_rate", "clip_norm", "dataset_size", "batch_size",
    "noise_stddev", "evaluate", "dry_run", "force", "as_json", "quiet",
)  # fmt: skip


@click.command(cls=WithRareOptions, shown=_SHOWN)
@click.argument("model", type=MODEL)
@click.option("--epsilon", type=POSITIVE, multiple=True, help="Target epsilon; repeatable.  [default: 1]")
@click.option("--delta", type=FRACTION, help="Target delta.  [default: 1 / dataset-size squared]")
@click.option(
    "--facts", type=click.Path(), help='JSON file of the facts below, such as {"epochs": 10, "batch_size": 5}.'
)
@click.option("--epochs", type=COUNT, help="Number of epochs of the training.")
@click.option("--learning-rate", type=AMOUNT, help="Learning rate, which must have been constant.")
@click.option("--clip-norm", type=AMOUNT, help="L2 norm that each example's gradient was clipped to.")
@click.option("--dataset-size", type=COUNT, help="Number of training examples.")
@click.option("--batch-size", type=COUNT, help="Examples per batch, by which the sum of gradients was divided.")
@click.option("--steps", type=COUNT, help="Optimizer steps.  [default: epochs * dataset-size / batch-size, rounded up]")
@click.option("--optimizer", type=click.Choice([str(o) for o in Optimizer]), help="Update rule.  [default: sgd]")
@click.option("--momentum", type=BELOW_ONE, help="Heavy-ball factor, with --optimizer momentum.")
@click.option("--beta1", type=BELOW_ONE, help="Adam's first decay rate.  [default: 0.9]")
@click.option("--beta2", type=BELOW_ONE, help="Adam's second decay rate.  [default: 0.999]")
@click.option("--weight-decay", type=AMOUNT_OR_ZERO, help="Decoupled weight decay.  [default: 0]")
@click.option(
    "--smoothness", type=POSITIVE, help="Lipschitz constant of the gradient of every example's loss, if known."
)
@click.option("--strong-convexity", type=POSITIVE, help="Strong convexity constant of every example's loss, if known.")
@click.option(
    "--noise-stddev",
    type=POSITIVE,
    multiple=True,
    help="Add noise of this standard deviation, which guarantees nothing; repeatable.",
)
@click.option(
    "--calibration",
    type=click.Choice([_PUBLISHED, str(Calibration.DP_WEIGHTS), str(Calibration.GAUSSIAN)]),
    help="gaussian: noise for which epsilon holds under --regime. published (or dp-weights): the paper's formula, for "
    "which it does not.  [default: gaussian]",
)
@click.option(
    "--formula",
    type=click.Choice([str(f) for f in Formula]),
    help="Version of the formula, with --calibration published.  [default: algorithm2]",
)
@click.option(
    "--regime",
    type=click.Choice([str(r) for r in Regime]),
    help="What is known about the loss; nonconvex means any loss.  [default: nonconvex]",
)
@click.option(
    "--adjacency",
    type=click.Choice([str(Adjacency.REPLACE_ONE), str(Adjacency.ZERO_OUT)]),
    help="Neighbouring data sets, with --calibration gaussian.  [default: replace-one]",
)
@click.option("--include", multiple=True, help="Add noise only to tensors matching this glob (repeatable).")
@click.option("--exclude", multiple=True, help="Add no noise to tensors matching this glob (repeatable).")
@click.option("--base", type=MODEL, help="Public model: tensors that are identical in it get no noise.")
@data_option("--evaluate", "Records to measure perplexity or accuracy on (repeatable).")
@click.option(
    "--dry-run", is_flag=True, help="Show the table and write nothing; without facts, show the noise for typical ones."
)
@click.option(
    "--threads", type=Whole(Range(low=1, high=64, whole=True)), default=2, show_default=True, help="Worker threads."
)
@click.option("--seed", type=SEED, help="For tests only: voids every guarantee.")
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    help="Where to write.  [default: NAME.private beside MODEL, or NAME.noised without a useful guarantee]",
)
@force
@common
def noise(model: str, **options: Any) -> None:
    """Add calibrated Gaussian noise to the weights of MODEL, once, after training.

    MODEL is a .safetensors file, a Hugging Face directory, or an adapter's directory as peft writes it. The training
    facts come from options, from --facts, or from the report of a model that privctl trained. Give --epsilon several
    times to make several candidates. The noise is as large as epsilon requires under --regime; the table shows the
    published formula's noise beside it. Without facts, --noise-stddev adds noise of that size, and its report
    guarantees nothing.

    \b
    Example:
      privctl noise model.safetensors --epsilon 1 --epsilon 10 --epochs 10 \\
          --learning-rate 5e-5 --clip-norm 1 --dataset-size 1000 --batch-size 5
    """
    from privctl.noise.facts import MissingFactsError

    try:
        _noise(Path(model), options)
    except MissingFactsError as error:
        if not options["dry_run"]:
            raise
        _show_outlook(Path(model), options, error)


def _noise(model: Path, options: dict[str, Any]) -> None:
    from privctl.api.noising import checked_plan, make_candidates, planned_candidates
    from privctl.noise.privatize import COARSE, measures_of
    from privctl.show.progress import note, progress

    quiet = options["quiet"]
    with planned_candidates(model, options, partial(note, quiet=quiet)) as (release, candidates):
        if options["dry_run"]:
            coarse = checked_plan(release, candidates, options)
            if options["as_json"]:
                print_plan(candidates, notes_on(release, candidates, coarse))
                return
            notes = notes_on(release, candidates, coarse, quiet=quiet)
            print_table(candidates, [{}] * len(candidates), {}, notes, dry_run=True)
            return
        shown, notify = partial(progress, quiet=quiet), partial(note, quiet=quiet)
        reports, original = make_candidates(release, candidates, options, progress=shown, notify=notify)
        if options["as_json"]:
            print_json(reports)
            for candidate in candidates:
                if candidate.shortfall is not None:
                    note(f"{candidate.path.name}: {candidate.shortfall.reason}", quiet=quiet)
        else:
            coarse = tuple(line for report in reports for line in report.warnings if line.startswith(COARSE))
            notes = notes_on(release, candidates, coarse, quiet=quiet)
            print_table(candidates, [measures_of(report) for report in reports], original, notes)
        _note_crowded_folders({candidate.path for candidate in candidates}, notify)


def _note_crowded_folders(written: set[Path], notify: Callable[[str], None]) -> None:
    """Warn of weights written into a model's folder, because some loaders read every file of weights in a folder."""
    for folder in sorted(
        {path.parent for path in written if path.is_file() and (path.parent / "config.json").is_file()}
    ):
        notify(
            f"{folder} holds a model, and what was written there is no part of it: move it to another folder before "
            f"that model is loaded or audited, or let privctl noise {folder} write a model of its own"
        )


def _show_outlook(model: Path, options: dict[str, Any], error: MissingFactsError) -> None:
    from privctl.api.noising import open_model_and_base
    from privctl.cli.noise_outlook import show_outlook
    from privctl.noise.request import target_of

    with open_model_and_base(model, options) as (checkpoint, base):
        show_outlook(checkpoint, base, options, error, target_of((options["epsilon"] or (1.0,))[0], 0.5, options))
