"""``privctl retrain``: private, clipped or plain training of a model."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from privctl.cli.dpquant import dpquant
from privctl.cli.ferret import ferret
from privctl.cli.options import common, force, show
from privctl.cli.running import STOPPING, on_epoch, rendered, request_of, secrets_of, told_before
from privctl.cli.training_options import clipping, data, schedule, training, unprotected

if TYPE_CHECKING:
    from privctl.train.prepare import TrainingJob


@click.group()
def retrain() -> None:
    """Train MODEL on your own data: with a guarantee, with clipped gradients only, or plainly.

    \b
    Example:
      privctl retrain dp-sgd model/ --data train.jsonl --epsilon 8 --epochs 3 -o private/
      privctl retrain dp-sgd model/ --data train.jsonl --secrets plan.safetensors -o private/
      privctl retrain dpquant model/ --data train.jsonl --format luq-fp4 --epsilon 8 -o private/
      privctl retrain ferret model/ --data train.jsonl --release gaussian --epsilon 8 -o private/
      privctl retrain clipped model/ --data train.jsonl --epochs 1 -o clipped/
      privctl retrain plain model/ --data train.jsonl --epochs 3 -o plain/
    """


@retrain.command("dp-sgd")
@training
@data
@clipping
@schedule
@click.option("--epsilon", type=float, help="Budget: the noise follows from it.")
@click.option("--noise-multiplier", type=float, help="Noise standard deviation / clip norm, instead of --epsilon.")
@click.option("--delta", type=float, help="Delta of the guarantee.  [default: the lesser of 1e-5 and 1 / examples^1.1]")
@click.option(
    "--secrets",
    type=click.Path(),
    help="Plan of protection from `privctl secrets plan`: it sets batches, steps and the least noise.",
)
@unprotected
@force
@common
def dp_sgd(**options: Any) -> None:
    """Train MODEL with an (epsilon, delta) guarantee: clipped gradients, Poisson batches, noise.

    MODEL is a Hugging Face directory or a .safetensors file in one; a directory with a config.json and no weights is
    trained from scratch. Ctrl-C saves the state after the step in progress, and --resume goes on from there; the state
    lies in OUTPUT.run until the run is done.

    What is written is loaded by transformers alone and compared with the network that was measured, before it gets its
    name. Name the classes of a classifier with --labels: names collected from the private data void the guarantee.
    Batch normalisation mixes examples and is refused; with --norm frozen it keeps its running statistics, which must be
    public like the weights that the training begins with.

    With --secrets, every record is drawn with the probability that the plan gives it, and the report says what an
    attacker may still learn of each secret, beside the guarantee for one record. Steps, expected batch size and noise
    are the plan's; --noise-multiplier or --epsilon may ask for more noise.

    \b
    Example:
      privctl retrain dp-sgd model/ --data train.jsonl --held-out test.jsonl --epsilon 8 \\
          --epochs 3 --batch-size 512 -o private/
      privctl retrain dp-sgd model/ --data train.jsonl --task text-classification \\
          --labels 0,1 --epsilon 8 -o private/
      torchrun --nproc-per-node 2 -m privctl retrain dp-sgd model/ --data train.jsonl \\
          --epsilon 8 -o private/
      privctl secrets plan train.jsonl --secrets secrets.jsonl --steps 1000 --batch-size 64 \\
          -o plan.safetensors
      privctl retrain dp-sgd model/ --data train.jsonl --secrets plan.safetensors -o private/
    """
    _run("dp-sgd", options, secrets=secrets_of(options))


@retrain.command("clipped")
@training
@data
@clipping
@force
@common
def clipped(**options: Any) -> None:
    """Train MODEL with clipped gradients and no noise, and record the facts that `privctl noise` needs.

    Each example is visited once an epoch, in an order that does not depend on the data, at a constant learning rate.

    \b
    Example:
      privctl retrain clipped model/ --data train.jsonl --epochs 2 --batch-size 32 \\
          --optimizer sgd --learning-rate 0.1 -o clipped/
      privctl noise clipped/ --epsilon 1
    """
    _run("clipped", options)


@retrain.command("plain")
@training
@data
@schedule
@force
@common
def plain(**options: Any) -> None:
    """Train MODEL without any protection, to compare with.

    \b
    Example:
      privctl retrain plain model/ --data train.jsonl --held-out test.jsonl -o plain/
    """
    _run("plain", options)


def _run(method: str, options: dict[str, Any], **more: Any) -> None:
    from privctl.models.language import choose_device
    from privctl.parallel import start_workers
    from privctl.reports.codec import encode
    from privctl.show.progress import note, progress
    from privctl.train.interrupts import held
    from privctl.train.prepare import prepare
    from privctl.train.run import run_training

    request = request_of(method, options, **more)
    quiet = options["quiet"]
    job = prepare(request)
    with start_workers(choose_device(request.device)) as workers:
        quiet = quiet or not workers.is_main
        note(_announced(job), quiet=quiet)
        told_before(job, quiet=quiet)
        if job.delta is not None and job.delta >= 1 / len(job.task):
            note(f"delta {job.delta:g} is no less than 1 / examples: one may be published whole", quiet=quiet)
        interrupts = held(partial(note, STOPPING, quiet=quiet))
        report = run_training(
            job,
            workers,
            partial(progress, quiet=quiet),
            partial(on_epoch, quiet=quiet),
            interrupts,
            notify=partial(note, quiet=quiet),
        )
    if report is not None:
        show(encode(report) if options["as_json"] else rendered(report), as_json=options["as_json"])
        note(f"wrote {request.output} and {request.output}.report.json", quiet=quiet)


def _announced(job: TrainingJob) -> str:
    recipe = job.recipe
    said = f"{recipe.steps} steps"
    if job.delta is not None:
        said += f", noise multiplier {recipe.noise_multiplier:.6g} at delta {job.delta:g}"
    if job.plan is not None:
        held = job.plan.protection
        said += (
            f"; {len(held.ids)} secrets, {recipe.batch_size:g} records a step expected, which makes "
            f"{recipe.steps * recipe.sample_rate:.3g} epochs; each is drawn with probability "
            f"{held.largest_probability:.3g} at most"
        )
    return said


retrain.command("ferret")(ferret)
retrain.command("dpquant")(dpquant)
