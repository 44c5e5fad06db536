"""``privctl noise``: add noise to a finished checkpoint (DP-Weights)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privctl.cli.noise_output import notes_on, print_json, print_plan, print_table
from privctl.cli.numbers import AMOUNT, AMOUNT_OR_ZERO, BELOW_ONE, COUNT, FRACTION, POSITIVE, SEED, Whole
from privctl.cli.options import MODEL, common, force
from privctl.domain.errors import CommandError
from privctl.domain.guarantee import Adjacency
from privctl.domain.mechanism import Calibration, Formula, Optimizer, Regime
from privctl.domain.ranges import Range
from privctl.domain.shown import counted

if TYPE_CHECKING:
    from privctl.noise.candidates import NoiseRelease
    from privctl.noise.dp_weights import PrivacyTarget
    from privctl.noise.facts import FactSource
    from privctl.storage.reader import Checkpoint


#: Another name for ``Calibration.DP_WEIGHTS``.
_PUBLISHED = "published"


@click.command()
@click.argument("model", type=MODEL)
@click.option("--epsilon", type=POSITIVE, multiple=True, help="Target epsilon; repeatable.  [default: 1]")
@click.option("--delta", type=FRACTION, help="Target delta.  [default: 1 / dataset-size squared]")
@click.option(
    "--facts", type=click.Path(), help='JSON object of the facts below, such as {"epochs": 10, "batch_size": 5}.'
)
@click.option("--epochs", type=COUNT, help="Epochs of training.")
@click.option("--learning-rate", type=AMOUNT, help="Constant learning rate.")
@click.option("--clip-norm", type=AMOUNT, help="L2 norm that each example's gradient was clipped to.")
@click.option("--dataset-size", type=COUNT, help="Number of training examples.")
@click.option("--batch-size", type=COUNT, help="Examples per batch; the divisor of the summed gradients.")
@click.option("--steps", type=COUNT, help="Optimizer steps.  [default: epochs * dataset-size / batch-size, rounded up]")
@click.option("--optimizer", type=click.Choice([str(o) for o in Optimizer]), help="Update rule.  [default: sgd]")
@click.option("--momentum", type=BELOW_ONE, help="Heavy-ball factor, with --optimizer momentum.")
@click.option("--beta1", type=BELOW_ONE, help="Adam's first decay rate.  [default: 0.9]")
@click.option("--beta2", type=BELOW_ONE, help="Adam's second decay rate.  [default: 0.999]")
@click.option("--weight-decay", type=AMOUNT_OR_ZERO, help="Decoupled weight decay.  [default: 0]")
@click.option("--smoothness", type=POSITIVE, help="Lipschitz constant of every example's gradient, if known.")
@click.option("--strong-convexity", type=POSITIVE, help="Strong convexity of every example's loss, if known.")
@click.option(
    "--noise-stddev",
    type=POSITIVE,
    multiple=True,
    help="Noise of this standard deviation, whatever the training; guarantees nothing.  Repeatable.",
)
@click.option(
    "--calibration",
    type=click.Choice([_PUBLISHED, str(Calibration.DP_WEIGHTS), str(Calibration.GAUSSIAN)]),
    help="gaussian: noise whose epsilon follows under --regime. published (or dp-weights): the paper's formula, whose "
    "epsilon does not follow.  [default: gaussian]",
)
@click.option(
    "--formula",
    type=click.Choice([str(f) for f in Formula]),
    help="Which version of the formula, with --calibration published.  [default: algorithm2]",
)
@click.option(
    "--regime",
    type=click.Choice([str(r) for r in Regime]),
    help="What is known about the loss; nonconvex is any loss.  [default: nonconvex]",
)
@click.option(
    "--adjacency",
    type=click.Choice([str(Adjacency.REPLACE_ONE), str(Adjacency.ZERO_OUT)]),
    help="Which neighbours the gaussian calibration protects.  [default: replace-one]",
)
@click.option("--include", multiple=True, help="Add noise only to tensors matching this glob (repeatable).")
@click.option("--exclude", multiple=True, help="Add no noise to tensors matching this glob (repeatable).")
@click.option("--base", type=MODEL, help="Public model: tensors identical to its own get no noise.")
@click.option("--evaluate", type=click.Path(), help="Texts to measure perplexity on.")
@click.option(
    "--dry-run", is_flag=True, help="Show the table, write nothing; without facts, what usual ones would give."
)
@click.option("--threads", type=Whole(Range(low=1, high=64)), default=2, show_default=True, help="Worker threads.")
@click.option("--seed", type=SEED, help="For tests only: voids every guarantee.")
@click.option(
    "-o",
    "--output",
    type=click.Path(),
    help="Where to write.  [default: NAME.private beside MODEL, or NAME.noised where nothing useful follows]",
)
@force
@common
def noise(model: str, **options: Any) -> None:
    """Add calibrated Gaussian noise to the weights of MODEL, once, after training.

    MODEL is a .safetensors file, a Hugging Face directory, or an adapter's directory as peft writes it. The training
    facts come from flags, from --facts, or from the report of a model that privctl trained. Give --epsilon several
    times for several candidates to choose from. The noise is as large as epsilon needs under --regime; the table shows
    the published formula's beside it. Without facts, --noise-stddev adds noise of that size; its report guarantees
    nothing.

    \b
    Example:
      privctl noise model.safetensors --epsilon 1 --epsilon 10 --epochs 10 \\
          --learning-rate 5e-5 --clip-norm 1 --dataset-size 1000 --batch-size 5
    """
    from privctl.accounting.guarantees import delta_warning
    from privctl.cli.noise_outlook import show_outlook
    from privctl.noise.candidates import plan_candidates
    from privctl.noise.facts import MissingFactsError
    from privctl.noise.privatize import COARSE, check_grain, perplexity_of, privatize, require_places
    from privctl.show.progress import note, progress
    from privctl.storage.reader import open_checkpoint

    quiet = options["quiet"]
    output = Path(options["output"]) if options["output"] else None
    with open_checkpoint(Path(model)) as checkpoint, _opened(_base(checkpoint, options)) as base:
        make = _given if options["noise_stddev"] else _release
        try:
            release = make(checkpoint, base, options)
        except MissingFactsError as error:
            if not options["dry_run"]:
                raise
            show_outlook(checkpoint, base, options, error, _target((options["epsilon"] or (1.0,))[0], 0.5, options))
            return
        candidates = plan_candidates(release, output)
        training = release.training
        if training and (sentence := delta_warning(release.targets[0].delta, training.dataset_size)):
            note(sentence, quiet=quiet)
        if options["dry_run"]:
            if options["evaluate"]:
                raise CommandError("--dry-run writes no candidates, so --evaluate has nothing to measure; remove one")
            coarse = check_grain(release, candidates)
            if options["as_json"]:
                print_plan(candidates, notes_on(release, candidates, coarse))
                return
            notes = notes_on(release, candidates, coarse, quiet=quiet)
            print_table(candidates, [None] * len(candidates), None, notes, dry_run=True)
            return
        require_places(release, candidates, force=options["force"])
        evaluate, original = _evaluation(checkpoint, options)
        total = sum(file.size for file in checkpoint.files)
        with progress("noise", total, quiet=quiet) as advance:
            reports = privatize(
                release,
                candidates,
                force=options["force"],
                threads=options["threads"],
                advance=advance,
                evaluate=evaluate,
            )
        if options["as_json"]:
            print_json(reports)
            for candidate in candidates:
                if candidate.shortfall is not None:
                    note(f"{candidate.path.name}: {candidate.shortfall.reason}", quiet=quiet)
        else:
            coarse = tuple(line for report in reports for line in report.warnings if line.startswith(COARSE))
            notes = notes_on(release, candidates, coarse, quiet=quiet)
            print_table(candidates, [perplexity_of(report) for report in reports], original, notes)


def _base(checkpoint: Checkpoint, options: dict[str, Any]) -> str | Path | None:
    """The public model that was given, or for an adapter the base that it names, where that is at hand."""
    from privctl.models.guard.adapters import base_at_hand

    return base_at_hand(checkpoint.root) if checkpoint.is_adapter and not options["base"] else options["base"]


@contextmanager
def _opened(base: str | Path | None) -> Iterator[Checkpoint | None]:
    from privctl.storage.reader import open_checkpoint

    if base is None:
        yield None
    else:
        with open_checkpoint(Path(base)) as checkpoint:
            yield checkpoint


def _release(checkpoint: Checkpoint, base: Checkpoint | None, options: dict[str, Any]) -> NoiseRelease:
    from privctl.noise.candidates import NoiseRelease, noise_premises
    from privctl.noise.dp_weights import Premises, default_delta
    from privctl.noise.facts import (
        REQUIRED,
        TRAINING_ROUNDING,
        collected_names,
        from_file,
        from_flags,
        from_report,
        training_facts,
    )
    from privctl.noise.own_report import own_report, require_bounded
    from privctl.noise.placement import companions
    from privctl.noise.selection import select

    found = own_report(checkpoint)
    require_bounded(found, checkpoint, facts=any(options[name] is not None for name in ("facts", *REQUIRED)))
    reported = from_report(found.path, found.report) if found else None
    from_facts = from_file(Path(options["facts"])) if options["facts"] else None
    sources = [source for source in (reported, from_facts, from_flags(options)) if source is not None]
    training, trust = training_facts(sources, str(checkpoint.root))
    delta = _delta(options, sources, default_delta(training.dataset_size))
    selection = select(checkpoint, include=options["include"], exclude=options["exclude"], base=base)
    try:
        targets = tuple(_target(epsilon, delta, options) for epsilon in options["epsilon"] or (1.0,))
    except ValueError as error:
        raise CommandError(f"{error}; give another --{str(error).split()[0]}") from None
    files = {"facts": options["facts"], "evaluation": options["evaluate"]}
    inputs = {role: Path(path) for role, path in files.items() if path}
    collected = collected_names(found.report) if found else ()
    inputs |= {f"base-{file.path.name}": file.path for file in base.files} if base else {}
    assumptions = (trust, TRAINING_ROUNDING, noise_premises(options["seed"]), *collected, *selection.assumptions)
    return NoiseRelease(
        checkpoint=checkpoint,
        training=training,
        selection=selection,
        premises=Premises(assumptions=assumptions),
        targets=targets,
        model_report=found if reported is not None else None,
        inputs=inputs,
        parameters={
            "include": list(options["include"]),
            "exclude": list(options["exclude"]),
        },
        collected=tuple(assumption.name for assumption in collected),
        seed=options["seed"],
        companions=companions(checkpoint),
    )


#: What goes with facts and a target, and so not with noise of a given size.
_OF_TARGETS = (
    "epsilon", "delta", "facts", "epochs", "learning_rate", "clip_norm", "dataset_size", "batch_size", "steps",
    "optimizer", "momentum", "beta1", "beta2", "weight_decay", "smoothness", "strong_convexity", "calibration",
    "formula", "regime", "adjacency",
)  # fmt: skip


def _given(checkpoint: Checkpoint, base: Checkpoint | None, options: dict[str, Any]) -> NoiseRelease:
    """Noise of given standard deviations, which claims nothing; raises CommandError where more is asked for."""
    from privctl.noise.candidates import NoiseRelease
    from privctl.noise.dp_weights import Premises
    from privctl.noise.facts import collected_names
    from privctl.noise.own_report import describes, own_report
    from privctl.noise.placement import companions
    from privctl.noise.selection import select

    others = [f"--{name.replace('_', '-')}" for name in _OF_TARGETS if options[name] not in (None, ())]
    if others:
        raise CommandError(
            f"--noise-stddev adds noise of that size and guarantees nothing, so {', '.join(others)} would change "
            "nothing; remove one or the other"
        )
    found = own_report(checkpoint)
    found = found if found and describes(found.report, checkpoint) else None
    inputs = {"evaluation": Path(options["evaluate"])} if options["evaluate"] else {}
    inputs |= {f"base-{file.path.name}": file.path for file in base.files} if base else {}
    return NoiseRelease(
        checkpoint=checkpoint,
        training=None,
        selection=select(checkpoint, include=options["include"], exclude=options["exclude"], base=base),
        premises=Premises(assumptions=()),
        targets=(),
        stddevs=options["noise_stddev"],
        model_report=found,
        inputs=inputs,
        parameters={"include": list(options["include"]), "exclude": list(options["exclude"])},
        collected=tuple(name.name for name in collected_names(found.report)) if found else (),
        seed=options["seed"],
        companions=companions(checkpoint),
    )


def _delta(options: dict[str, Any], sources: Sequence[FactSource], default: float) -> float:
    """The flag's delta, the facts file's or the default; raises CommandError where the first two disagree."""
    stated = {source.values["delta"] for source in sources if "delta" in source.values}
    flag = options["delta"]
    if flag is not None and stated - {flag}:
        raise CommandError(f"--delta {flag} contradicts delta {stated.pop()} of the facts file; remove one")
    return flag if flag is not None else next(iter(stated), default)


def _calibration(options: dict[str, Any]) -> Calibration:
    """The one asked for; by default the one whose epsilon follows."""
    chosen = options["calibration"] or Calibration.GAUSSIAN
    return Calibration.DP_WEIGHTS if chosen == _PUBLISHED else Calibration(chosen)


def _target(epsilon: float, delta: float, options: dict[str, Any]) -> PrivacyTarget:
    from privctl.noise.dp_weights import PrivacyTarget

    calibration = _calibration(options)
    if calibration is Calibration.DP_WEIGHTS and options["regime"] is not None:
        raise CommandError(
            "--regime applies to --calibration gaussian only; remove one: the published formula reports every regime"
        )
    if calibration is Calibration.DP_WEIGHTS and options["adjacency"] is not None:
        raise CommandError("--adjacency applies to --calibration gaussian only; remove it: the report has both")
    if calibration is Calibration.GAUSSIAN and options["formula"] is not None:
        raise CommandError("--formula applies to --calibration published only; add that or remove --formula")
    return PrivacyTarget(
        epsilon=epsilon,
        delta=delta,
        calibration=calibration,
        formula=Formula(options["formula"] or Formula.ALGORITHM_2),
        regime=Regime(options["regime"] or Regime.NONCONVEX),
        adjacency=Adjacency(options["adjacency"] or Adjacency.REPLACE_ONE),
    )


def _evaluation(checkpoint: Checkpoint, options: dict[str, Any]) -> Any:
    """A function that measures a candidate's perplexity, and the input's own; both None without ``--evaluate``."""
    if not options["evaluate"]:
        return None, None
    from audits.scores.perplexity import perplexity
    from privctl.data.records import read_records
    from privctl.models.language import load_model
    from privctl.show.progress import note

    texts = [record.text for record in read_records(Path(options["evaluate"]))]

    def evaluate(weights: Path) -> float:
        # a folder comes with its own configuration and tokenizer; a single file is read with the original's
        folder = None if weights.is_dir() else checkpoint.folder
        return perplexity(load_model(weights, folder=folder), texts)

    note(f"perplexity on {counted(len(texts), 'text')} of {options['evaluate']}", quiet=options["quiet"])
    return evaluate, evaluate(checkpoint.root)
