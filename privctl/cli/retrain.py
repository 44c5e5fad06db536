"""``privctl retrain``: private, clipped or plain training of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privctl.cli.options import MODEL, Command, common, force
from privctl.domain.errors import UsageFault
from privctl.domain.mechanism import Optimizer

if TYPE_CHECKING:
    from privctl.domain.report import PrivacyReport
    from privctl.retrain.request import RetrainRequest

_TASKS = ("causal-lm", "masked-lm", "text-classification", "image-classification")
_STOPPING = "stopping after this step, to save it; interrupt again to stop at once, and lose what was not saved"
_OPTIMIZERS = click.Choice([str(optimizer) for optimizer in Optimizer])


@click.group()
def retrain() -> None:
    """Train MODEL on your own data: with a guarantee, with clipped gradients only, or plainly.

    \b
    Example:
      privctl retrain dp-sgd model/ --data train.jsonl --epsilon 8 --epochs 3 -o private/
      privctl retrain clipped model/ --data train.jsonl --epochs 1 -o clipped/
      privctl retrain plain model/ --data train.jsonl --epochs 3 -o plain/
    """


def _training(command: Command) -> Command:
    """Options that all methods share."""
    for option in reversed(
        (
            click.argument("model", type=MODEL),
            click.option("--data", type=click.Path(), required=True, help="Private examples; see --task."),
            click.option("--held-out", type=click.Path(), help="Other examples to measure on after each epoch."),
            click.option(
                "--task",
                type=click.Choice(_TASKS),
                default=_TASKS[0],
                show_default=True,
                help="Texts: JSONL, CSV, TSV (text, or prompt and response; label). Images: class folders, .npz.",
            ),
            click.option("--epochs", type=float, help="Passes over the data.  [default: 3]"),
            click.option("--steps", type=int, help="Optimizer steps, instead of --epochs."),
            click.option(
                "--batch-size", type=int, default=64, show_default=True, help="Examples a step, expected or exact."
            ),
            click.option("--learning-rate", type=float, default=5e-4, show_default=True, help="Highest learning rate."),
            click.option("--optimizer", type=_OPTIMIZERS, default="adamw", show_default=True, help="Update rule."),
            click.option("--momentum", type=float, default=0.0, help="Heavy-ball factor, with --optimizer momentum."),
            click.option("--beta1", type=float, default=0.9, show_default=True, help="Adam's first decay rate."),
            click.option("--beta2", type=float, default=0.999, show_default=True, help="Adam's second decay rate."),
            click.option("--weight-decay", type=float, default=0.0, show_default=True, help="Decoupled weight decay."),
            click.option("--from-scratch", is_flag=True, help="Random weights, even where MODEL has some."),
            click.option(
                "--vocabulary", type=click.Path(), help="Public file of words to tokenize by, or the word: private."
            ),
            click.option("--norm", type=click.Choice(["group"]), help="Replace batch normalisation by this."),
            click.option("--train", multiple=True, help="Only parameters matching this glob (repeatable)."),
            click.option("--lora-rank", type=int, help="Train low-rank adapters only (needs peft)."),
            click.option("--labels", help="Class names, separated by commas, in order."),
            click.option(
                "--unit", help="Field that says whom a record belongs to; all of one's records are protected."
            ),
            click.option(
                "--long",
                type=click.Choice(["refuse", "truncate", "split"]),
                default="refuse",
                show_default=True,
                help="What becomes of texts longer than the model reads.",
            ),
            click.option("--max-length", type=int, help="Tokens a text may have, if fewer than the model reads."),
            click.option("--response-only", is_flag=True, help="Only the response's tokens count (prompt/response)."),
            click.option("--resize", type=int, nargs=2, help="Height and width that images are brought to."),
            click.option("--dropout", is_flag=True, help="Leave the model's dropout on."),
            click.option("--micro-examples", type=int, default=64, show_default=True, help="Most examples at once."),
            click.option("--micro-tokens", type=int, default=16_384, show_default=True, help="Most tokens at once."),
            click.option("--device", help="Such as cpu or cuda.  [default: cuda where there is one]"),
            click.option("--bf16", is_flag=True, help="Compute in bfloat16 where that is safe."),
            click.option("--compile", "compiled", is_flag=True, help="Compile the network with torch.compile."),
            click.option("--checkpointing", is_flag=True, help="Recompute activations to save memory."),
            click.option("--seed", type=int, default=0, show_default=True, help="Of random weights and public orders."),
            click.option("--resume", is_flag=True, help="Go on with an interrupted run of the same settings."),
            click.option("-o", "--output", type=click.Path(), required=True, help="Directory to write."),
        )
    ):
        command = option(command)
    return command


def _clipping(command: Command) -> Command:
    for option in (
        click.option(
            "--clipping",
            type=click.Choice(["flat", "automatic", "per-layer"]),
            default="flat",
            show_default=True,
            help="How gradients are brought within the clip norm.",
        ),
        click.option(
            "--clip-norm", type=float, default=1.0, show_default=True, help="L2 norm of each clipped gradient."
        ),
    ):
        command = option(command)
    return command


def _schedule(command: Command) -> Command:
    for option in (
        click.option("--warmup-steps", type=int, default=0, show_default=True, help="Steps of rising learning rate."),
        click.option(
            "--schedule",
            type=click.Choice(["constant", "linear", "cosine"]),
            default="constant",
            show_default=True,
            help="Learning rate after the warm-up.",
        ),
    ):
        command = option(command)
    return command


@retrain.command("dp-sgd")
@_training
@_clipping
@_schedule
@click.option("--epsilon", type=float, help="Budget: the noise follows from it.")
@click.option("--noise-multiplier", type=float, help="Noise standard deviation / clip norm, instead of --epsilon.")
@click.option("--delta", type=float, help="Delta of the guarantee.  [default: the lesser of 1e-5 and 1 / examples^1.1]")
@force
@common
def dp_sgd(**options: Any) -> None:
    """Train MODEL with an (epsilon, delta) guarantee: clipped gradients, Poisson batches, noise.

    MODEL is a Hugging Face directory or a .safetensors file in one; a directory with a config.json and no weights is
    trained from scratch. Ctrl-C saves the state after the step in progress, and --resume goes on from there; the state
    lies in OUTPUT.run until the run is done.

    \b
    Example:
      privctl retrain dp-sgd model/ --data train.jsonl --held-out test.jsonl --epsilon 8 \\
          --epochs 3 --batch-size 512 -o private/
      torchrun --nproc-per-node 2 -m privctl retrain dp-sgd model/ --data train.jsonl \\
          --epsilon 8 -o private/
    """
    _run("dp-sgd", options)


@retrain.command("clipped")
@_training
@_clipping
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
@_training
@_schedule
@force
@common
def plain(**options: Any) -> None:
    """Train MODEL without any protection, to compare with.

    \b
    Example:
      privctl retrain plain model/ --data train.jsonl --held-out test.jsonl -o plain/
    """
    _run("plain", options)


def _run(method: str, options: dict[str, Any]) -> None:
    from privctl.codec import encode
    from privctl.models import choose_device
    from privctl.parallel import crew
    from privctl.progress import note, progress
    from privctl.retrain.prepare import prepare
    from privctl.retrain.run import carry_out
    from privctl.training.interrupts import held

    request = _request(method, options)
    quiet = options["quiet"]
    job = prepare(request)
    with crew(choose_device(request.device)) as team:
        quiet = quiet or not team.leads
        note(_announced(job.recipe.noise_multiplier, job.recipe.steps, job.delta), quiet=quiet)
        if job.delta is not None and job.delta >= 1 / len(job.task):
            note(f"delta {job.delta:g} is no less than 1 / examples: one may be published whole", quiet=quiet)
        interrupts = held(partial(note, _STOPPING, quiet=quiet))
        report = carry_out(job, team, partial(progress, quiet=quiet), partial(_heard, quiet=quiet), interrupts)
    if report is not None:
        click.echo(encode(report) if options["as_json"] else _rendered(report), nl=False)
        note(f"wrote {request.output} and {request.output}.report.json", quiet=quiet)


def _announced(noise: float, steps: int, delta: float | None) -> str:
    return f"{steps} steps" + (f", noise multiplier {noise:.6g} at delta {delta:g}" if delta is not None else "")


def _heard(measures: Mapping[str, float], *, quiet: bool) -> None:
    from privctl.progress import note

    if measures:
        note(", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in measures.items()), quiet=quiet)


def _request(method: str, options: dict[str, Any]) -> RetrainRequest:
    from privctl.retrain.request import BudgetRequest, DataRequest, ModelRequest, RetrainRequest
    from privctl.training.perexample.clipping import ClippingStyle
    from privctl.training.recipe import Method, Schedule
    from privctl.training.tasks.base import TaskName
    from privctl.training.tasks.encoding import Long

    given: Callable[[str], Any] = options.get
    try:
        return RetrainRequest(
            method=Method(method),
            model=ModelRequest(
                path=Path(options["model"]),
                from_scratch=options["from_scratch"],
                vocabulary=options["vocabulary"],
                norm=options["norm"],
                dropout=options["dropout"],
                train=options["train"],
                lora_rank=options["lora_rank"],
                checkpointing=options["checkpointing"],
            ),
            data=DataRequest(
                train=Path(options["data"]),
                held_out=Path(options["held_out"]) if options["held_out"] else None,
                unit=options["unit"],
                labels=tuple(options["labels"].split(",")) if options["labels"] else (),
                long=Long(options["long"]),
                max_length=options["max_length"],
                response_only=options["response_only"],
                resize=options["resize"],
            ),
            task=TaskName(options["task"]),
            budget=BudgetRequest(
                epsilon=given("epsilon"), noise_multiplier=given("noise_multiplier"), delta=given("delta")
            ),
            output=Path(options["output"]),
            clipping=ClippingStyle(options.get("clipping", "flat")),
            clip_norm=options.get("clip_norm", 1.0),
            schedule=Schedule(options.get("schedule", "constant")),
            warmup_steps=options.get("warmup_steps", 0),
            optimizer=Optimizer(options["optimizer"]),
            **{name: options[name] for name in _SAME},
        )
    except ValueError as error:
        raise UsageFault(str(error)) from None


#: Options that go into the request under their own names.
_SAME = (
    "epochs", "steps", "batch_size", "learning_rate", "momentum", "beta1", "beta2", "weight_decay", "micro_examples",
    "micro_tokens", "device", "bf16", "compiled", "seed", "resume", "force",
)  # fmt: skip


def _rendered(report: PrivacyReport) -> str:
    from privctl.render.retrain import retrain_text

    return retrain_text(report)
