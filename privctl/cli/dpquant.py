"""``privctl retrain dpquant``: private training with layers in few bits, chosen anew each epoch."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from privctl.cli.options import common, force, show
from privctl.cli.running import STOPPING, on_epoch, rendered, request_of, secrets_of, told_before
from privctl.cli.training_options import clipping, data, schedule, training, unprotected
from privctl.domain.errors import UsageFault

if TYPE_CHECKING:
    from privctl.train.methods.dpquant.settings import QuantizedChoice
    from privctl.train.prepare import TrainingJob
    from privctl.train.request import DpquantRequest


@training
@data
@clipping
@schedule
@click.option("--epsilon", type=float, help="Budget of steps and measurements together: the noise follows from it.")
@click.option("--noise-multiplier", type=float, help="Noise standard deviation / clip norm, instead of --epsilon.")
@click.option("--delta", type=float, help="Delta of the guarantee.  [default: the lesser of 1e-5 and 1 / examples^1.1]")
@click.option("--secrets", type=click.Path(), help="Plan of protection; not with --layers dpquant, which measures.")
@click.option(
    "--format",
    "number_format",
    type=click.Choice(["luq-fp4", "fp8", "fp8-stochastic", "int4", "uniform4"]),
    required=True,
    help="What quantized layers compute in.",
)
@click.option("--luq-levels", type=int, help="luq-fp4: levels beside zero.  [default: 7]")
@click.option(
    "--layers",
    type=click.Choice(["dpquant", "random", "static", "all", "none"]),
    default="dpquant",
    show_default=True,
    help="Chosen by private measurements; each epoch at random; once; or no choice.",
)
@click.option("--quantized-fraction", type=float, help="Part of the layers that is quantized.  [default: 0.75]")
@click.option("--compute-target", type=float, help="Part of their multiply-adds, instead of --quantized-fraction.")
@click.option("--static-layers", multiple=True, help="static: layers matching this glob (repeatable), and no draw.")
@click.option("--full-precision", multiple=True, help="Never quantize layers matching this glob (repeatable).")
@click.option("--beta", type=float, default=10.0, show_default=True, help="How much scores decide.")
@click.option("--smoothing", type=float, default=0.5, show_default=True, help="Part of old scores that stays.")
@click.option("--measure-every", type=int, default=2, show_default=True, help="Epochs from measurement to measurement.")
@click.option(
    "--measure-repetitions", type=int, default=2, show_default=True, help="Releases a measurement; all count."
)
@click.option("--measure-rate", type=float, help="Their sampling rate.  [default: for 16 examples, or 1/16 of a batch]")
@click.option("--measure-noise", type=float, help="Their noise stddev / clip norm.  [default: the training's]")
@click.option("--measure-clip", type=float, default=0.01, show_default=True, help="Their clip norm, nats.")
@click.option("--public-seed", help="Hexadecimal seed of rounding and of layers' draws.  [default: a fresh one]")
@unprotected
@force
@common
def dpquant(**options: Any) -> None:
    """Train MODEL as dp-sgd does, with most layers computing in few bits (simulated, but for FP8 where a GPU has it).

    Every epoch some layers are drawn to be quantized: with --layers dpquant the more likely, the less it hurts (their
    scores). How much it hurts is measured every few epochs on few private examples: each one's loss differences are
    clipped, and their sum noised. Such releases are in the same ledger as the steps, and --epsilon is for all of them.
    The report says what they cost, and what the method's own paper would have claimed.

    \b
    Example:
      privctl retrain dpquant model/ --data train.jsonl --epsilon 8 --format luq-fp4 \\
          --quantized-fraction 0.75 --epochs 20 --batch-size 512 -o private/
      privctl retrain dpquant resnet/ --data images/ --task image-classification \\
          --labels dark,light --norm frozen --epsilon 8 --format fp8 --layers random \\
          --compute-target 0.9 -o private/
    """
    from privctl.models.language import choose_device
    from privctl.parallel import start_workers
    from privctl.reports.codec import encode
    from privctl.show.progress import note, progress
    from privctl.train.interrupts import held
    from privctl.train.methods.dpquant.run import run_training
    from privctl.train.methods.dpquant.settings import check
    from privctl.train.prepare import prepare

    request = request_of("dpquant", options, dpquant=_asked(options), secrets=secrets_of(options))
    check(request)
    job = prepare(request)
    with start_workers(choose_device(request.device)) as workers:
        quiet = options["quiet"] or not workers.is_main
        told_before(job, quiet=quiet)
        report = run_training(
            job,
            workers,
            partial(progress, quiet=quiet),
            partial(on_epoch, quiet=quiet),
            held(partial(note, STOPPING, quiet=quiet)),
            lambda bits: note(_announced(job, bits), quiet=quiet),
            notify=partial(note, quiet=quiet),
        )
    if report is not None:
        show(encode(report) if options["as_json"] else rendered(report), as_json=options["as_json"])
        note(f"wrote {request.output} and {request.output}.report.json", quiet=quiet)


def _asked(options: dict[str, Any]) -> DpquantRequest:
    from privctl.train.methods.dpquant.schedule import LayerMode
    from privctl.train.quantized import FormatName
    from privctl.train.request import DpquantRequest

    seed = options["public_seed"]
    try:
        public = None if seed is None else bytes.fromhex(seed)
    except ValueError:
        public = b""
    if public == b"":
        raise UsageFault(f"--public-seed is {seed!r}; it must be hexadecimal, such as 00ff")
    return DpquantRequest(
        format=FormatName(options["number_format"]),
        levels=options["luq_levels"],
        layers=LayerMode(options["layers"]),
        fraction=options["quantized_fraction"],
        compute_target=options["compute_target"],
        static=options["static_layers"],
        full_precision=options["full_precision"],
        beta=options["beta"],
        smoothing=options["smoothing"],
        every=options["measure_every"],
        repetitions=options["measure_repetitions"],
        rate=options["measure_rate"],
        noise=options["measure_noise"],
        clip=options["measure_clip"],
        public_seed=public,
    )


def _announced(job: TrainingJob, bits: QuantizedChoice) -> str:
    from privctl.train.methods.dpquant.run import measurements

    recipe, plan, schedule = job.recipe, measurements(job), bits.schedule
    said = f"{recipe.steps} steps, noise multiplier {recipe.noise_multiplier:.6g} at delta {job.delta:g}"
    amount = f"{schedule.compute_target:g} of the multiply-adds" if schedule.count is None else f"{schedule.count}"
    if schedule.static:
        amount = str(len(schedule.static))
    elif schedule.mode in ("all", "none"):
        amount = str(schedule.mode)
    said += f"; {amount} of {len(schedule.names)} layers in {job.request.dpquant.format}" if job.request.dpquant else ""
    if plan is not None:
        said += (
            f"; {plan.releases} measurements on {plan.size:.3g} examples expected, noise multiplier "
            f"{plan.noise(recipe.noise_multiplier):.6g}"
        )
    return said
