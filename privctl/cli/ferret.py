"""``privctl retrain ferret``: training by signs of directional derivatives, and replaying what they did."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privctl.cli.options import common, force, show
from privctl.cli.running import STOPPING, on_epoch, rendered, request_of, told_before
from privctl.cli.training_options import schedule, training, unprotected
from privctl.domain.errors import UsageFault

if TYPE_CHECKING:
    from privctl.train.methods.ferret.settings import FerretPlan
    from privctl.train.request import FerretRequest

#: Options that a replay heeds; with others it would not be one.
_REPLAYED = {"model", "replay", "output", "vocabulary", "device", "quiet", "as_json", "force"}


@training
@click.option("--data", type=click.Path(), help="Private examples; see --task. Not with --replay.")
@schedule
@click.option("--epsilon", type=float, help="Budget: nats for published signs, epsilon at --delta for the releases.")
@click.option(
    "--delta",
    type=float,
    help="Delta of the guarantee, of releases.  [default: the lesser of 1e-5 and 1 / examples^1.1]",
)
@click.option("--groups", default="max", show_default=True, help="max: each tensor one; eighth: eight tensors; or N.")
@click.option(
    "--release",
    type=click.Choice(["published", "gaussian", "randomized-response"]),
    default="published",
    show_default=True,
    help="What is done to derivatives; published signs have no (epsilon, delta) guarantee.",
)
@click.option("--fire-probability", type=float, help="Chance that a group publishes in a step.  [default: see above]")
@click.option("--dither", type=float, help="published: noise standard deviation / clip norm, before the sign is taken.")
@click.option("--noise-multiplier", type=float, help="gaussian: noise stddev / clip norm, instead of --epsilon.")
@click.option("--bit-epsilon", type=float, help="randomized-response: log-odds of a true sign, not --epsilon.")
@click.option("--clip-norm", type=float, default=1.0, show_default=True, help="Bound of derivatives, where noise is.")
@click.option(
    "--publish",
    type=click.Choice(["sign", "value"]),
    default="sign",
    show_default=True,
    help="gaussian: what is shown.",
)
@click.option(
    "--silent",
    type=click.Choice(["coast", "hold"]),
    default="coast",
    show_default=True,
    help="What a group's momentum does while it does not publish.",
)
@click.option(
    "--update-scale",
    type=click.Choice(["unit", "root-dimension"]),
    default="unit",
    show_default=True,
    help="L2 norm of a group's update before the optimizer.",
)
@click.option(
    "--derivatives",
    type=click.Choice(["auto", "backward", "partial", "forward", "difference"]),
    default="auto",
    show_default=True,
    help="How they are found; difference needs hardly more memory than inference.",
)
@click.option("--public-seed", help="Hexadecimal seed of masks and directions.  [default: a fresh one]")
@click.option("--replay", type=click.Path(), help="Stream of updates to repeat on MODEL, without any data.")
@unprotected
@force
@common
def ferret(**options: Any) -> None:
    """Train MODEL by one bit a group: the sign of a derivative along a public random direction, mostly not even asked.

    Each group of tensors publishes in each step with the fire probability, by coins that never look at the data. Steps
    in which none does cost nothing. With --release published it is the method as its paper has it: --epsilon is then
    in nats of mutual information, an average that bounds no worst case, and sets the fire probability. With --release
    gaussian or randomized-response, --epsilon at --delta is a guarantee and sets the noise; the fire probability is
    then 1 / groups unless given.

    OUTPUT.updates.safetensors is all that the training let out, a bit a sign: with MODEL it makes the same weights
    again, to the last bit.

    \b
    Example:
      privctl retrain ferret model/ --data train.jsonl --release gaussian --epsilon 2 -o private/
      privctl retrain ferret model/ --data train.jsonl --epsilon 0.5 --groups eighth -o signs/
      privctl retrain ferret model/ --replay private.updates.safetensors -o again/
    """
    if options["replay"] is not None:
        _replay(options)
    else:
        _train(options)


def _train(options: dict[str, Any]) -> None:
    from privctl.models.language import choose_device
    from privctl.parallel import start_workers
    from privctl.reports.codec import encode
    from privctl.show.progress import note, progress
    from privctl.train.interrupts import held
    from privctl.train.methods.ferret.run import run_training, stream_path
    from privctl.train.methods.ferret.settings import check
    from privctl.train.prepare import prepare

    if options["data"] is None:
        raise UsageFault("ferret needs --data to train on, or --replay with a stream of updates")
    request = request_of("ferret", options, ferret=_asked(options))
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
            lambda plan: note(_announced(plan, job.delta, len(job.task)), quiet=quiet),
            notify=partial(note, quiet=quiet),
        )
    if report is not None:
        show(encode(report) if options["as_json"] else rendered(report), as_json=options["as_json"])
        output = request.output
        note(f"wrote {output}, {output}.report.json and {stream_path(output)}", quiet=quiet)


def _replay(options: dict[str, Any]) -> None:
    from privctl.reports.codec import encode
    from privctl.show.progress import note, progress
    from privctl.train.methods.ferret.replay import replay
    from privctl.train.request import ReplayRequest

    context = click.get_current_context()
    for name in options:
        source = context.get_parameter_source(name)
        if name not in _REPLAYED and source is not click.core.ParameterSource.DEFAULT:
            flag = "--" + name.replace("_", "-")
            raise UsageFault(f"{flag} says nothing to --replay, which repeats what the stream holds; leave it out")
    request = ReplayRequest(
        model=Path(options["model"]),
        stream=Path(options["replay"]),
        output=Path(options["output"]),
        vocabulary=None if options["vocabulary"] is None else Path(options["vocabulary"]),
        device=options["device"],
        force=options["force"],
    )
    report = replay(request, partial(progress, quiet=options["quiet"]))
    show(encode(report) if options["as_json"] else rendered(report), as_json=options["as_json"])
    note(f"wrote {request.output} and {request.output}.report.json", quiet=options["quiet"])


def _asked(options: dict[str, Any]) -> FerretRequest:
    from privctl.train.directional import DerivativeMethod
    from privctl.train.methods.ferret.publish import Publish, ReleaseKind
    from privctl.train.methods.ferret.update import SilentMomentum, UpdateScale
    from privctl.train.request import FerretRequest

    release, dither, seed = ReleaseKind(options["release"]), options["dither"], options["public_seed"]
    if dither is not None and release is not ReleaseKind.PUBLISHED:
        raise UsageFault(f"--dither says nothing to --release {release}, which has noise of its own; leave it out")
    try:
        public = None if seed is None else bytes.fromhex(seed)
    except ValueError:
        public = b""
    if public == b"":
        raise UsageFault(f"--public-seed is {seed!r}; it must be hexadecimal, such as 00ff")
    return FerretRequest(
        groups=options["groups"],
        release=release if dither is None else ReleaseKind.DITHERED,
        fire_probability=options["fire_probability"],
        dither=dither,
        bit_epsilon=options["bit_epsilon"],
        publish=Publish(options["publish"]),
        silent=SilentMomentum(options["silent"]),
        update_scale=UpdateScale(options["update_scale"]),
        derivatives=DerivativeMethod(options["derivatives"]),
        public_seed=public,
    )


def _announced(plan: FerretPlan, delta: float | None, examples: int) -> str:
    masks = plan.masks
    said = (
        f"{masks.steps} steps, of which {masks.speaking} publish {masks.total} numbers from {len(plan.groups)} groups, "
        f"fire probability {masks.fire_probability:.6g}"
    )
    if not masks.total:
        said += "; the model stays as it is: raise --epsilon, --fire-probability or --epochs"
    if plan.noise_multiplier is not None:
        said += f", noise multiplier {plan.noise_multiplier:.6g} at delta {delta:g}"
    if plan.bit_epsilon is not None:
        said += f", log-odds of a sign {plan.bit_epsilon:.6g} at delta {delta:g}"
    if plan.ledger is not None and delta is not None and delta >= 1 / examples:
        said += f"; delta {delta:g} is no less than 1 / examples: one may be published whole"
    return said
