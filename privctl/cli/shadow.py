"""``privctl shadow``: train shadow models for membership attacks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privctl.cli.groups import WithRareOptions
from privctl.cli.interrupted import explaining_interrupts_of_shadows
from privctl.cli.numbers import AMOUNT, AMOUNT_OR_ZERO, BELOW_ONE, COUNT, COUNT_OR_ZERO, SEED
from privctl.cli.options import LABEL_COLUMN, MODEL, PATH, TEXT_COLUMN, common, data_option, show
from privctl.domain.errors import CommandError
from privctl.domain.mechanism import Optimizer
from privctl.domain.shown import counted
from privctl.models.choices import TASKS, FloatFormat

if TYPE_CHECKING:
    from privctl.domain.report import PrivacyReport
    from privctl.shadow.pool import ShadowRequest

#: Options of ``privctl retrain`` whose names are those of fields of its request.
_SAME = (
    "epochs", "steps", "batch_size", "learning_rate", "momentum", "beta1", "beta2", "weight_decay", "warmup_steps",
    "micro_examples", "micro_tokens", "device", "bf16", "seed",
)  # fmt: skip


#: What ``--help`` lists; ``--help-all`` shows the other options too.
_SHOWN = (
    "data", "output", "count", "epochs", "batch_size", "learning_rate", "text_column", "max_length", "lora_rank",
    "device", "as_json", "quiet",
)  # fmt: skip


@click.command(cls=WithRareOptions, shown=_SHOWN)
@click.argument("model", type=MODEL)
@data_option("--data", "Members and non-members; each model trains on a random half (repeatable).", required=True)
@TEXT_COLUMN
@LABEL_COLUMN
@click.option("--count", type=COUNT, default=16, show_default=True, help="Number of shadow models.")
@click.option("--task", type=click.Choice(TASKS), metavar="TASK", help="As in privctl retrain.")
@click.option("--epochs", type=AMOUNT, help="Passes over a model's half of the records.  [default: 3]")
@click.option("--steps", type=COUNT, help="Optimizer steps, instead of --epochs.")
@click.option("--batch-size", type=COUNT, default=64, show_default=True, help="Average number of examples per step.")
@click.option("--learning-rate", type=AMOUNT, default=5e-4, show_default=True, help="Highest learning rate.")
@click.option(
    "--optimizer",
    type=click.Choice([str(optimizer) for optimizer in Optimizer]),
    default="adamw",
    show_default=True,
    help="Update rule.",
)
@click.option("--momentum", type=BELOW_ONE, default=0.0, help="Heavy-ball factor, with --optimizer momentum.")
@click.option("--beta1", type=BELOW_ONE, default=0.9, show_default=True, help="Adam's first decay rate.")
@click.option("--beta2", type=BELOW_ONE, default=0.999, show_default=True, help="Adam's second decay rate.")
@click.option("--weight-decay", type=AMOUNT_OR_ZERO, default=0.0, show_default=True, help="Decoupled weight decay.")
@click.option(
    "--warmup-steps",
    type=COUNT_OR_ZERO,
    default=0,
    show_default=True,
    help="Steps of rising learning rate, at the start.",
)
@click.option(
    "--schedule",
    type=click.Choice(["constant", "linear", "cosine"]),
    default="constant",
    show_default=True,
    help="Learning rate after the warm-up.",
)
@click.option("--from-scratch", is_flag=True, help="Start from random weights even if MODEL has weights.")
@click.option("--vocabulary", type=click.Path(), help="File of words to build a tokenizer from.")
@click.option(
    "--norm", type=click.Choice(["frozen"]), help="Keep batch normalisation's running statistics as they are."
)
@click.option(
    "--convert",
    type=click.Choice(["batch-norm"]),
    help="Move batch normalisation's running statistics into its scales and shifts, which are trained.",
)
@click.option("--train", multiple=True, help="Train only parameters matching this glob (repeatable).")
@click.option("--lora-rank", type=COUNT, help="Train only low-rank adapters of this rank (needs peft).")
@click.option("--base", type=MODEL, help="Base of MODEL, if that is an adapter.  [default: the folder that it names]")
@click.option("--save-adapter", is_flag=True, help="With --lora-rank: train like retrain --save-adapter.")
@click.option("--labels", help="Class names in order: a,b,c or a file with one per line.")
@click.option(
    "--long",
    type=click.Choice(["refuse", "truncate"]),
    help="What to do with texts longer than the model's context.  [default: truncate]",
)
@click.option("--max-length", type=COUNT, help="Most tokens of a text, or samples of a sound. Give the audit the same.")
@click.option("--response-only", is_flag=True, help="Train only on the response's tokens.")
@click.option("--resize", type=COUNT, nargs=2, help="Height and width to resize images to.")
@click.option("--dropout", is_flag=True, help="Keep the model's dropout active.")
@click.option("--micro-examples", type=COUNT, default=64, show_default=True, help="Most examples in one forward pass.")
@click.option("--micro-tokens", type=COUNT, default=16_384, show_default=True, help="Most tokens in one forward pass.")
@click.option("--vectorize", type=COUNT, help="Models trained at once.  [default: by their size]")
@click.option("--keep-models", is_flag=True, help="Keep the models' weights, not only their scores.")
@click.option("--device", help="Device, such as cpu or cuda.  [default: cuda if available]")
@click.option("--bf16", is_flag=True, help="Compute in bfloat16 if that is safe.")
@click.option(
    "--precision", type=click.Choice([str(float_format) for float_format in FloatFormat]), metavar="FORMAT",
    help="float32 or bfloat16: format of the passes that score. Give the audit the same.  [default: float32]",
)  # fmt: skip
@click.option(
    "--seed",
    type=SEED,
    default=0,
    show_default=True,
    help="Seed of halves, random weights and orders of records; not private.",
)
@click.option("-o", "--output", type=PATH, required=True, help="Folder to write to, or to continue in.")
@common
def shadow(**options: Any) -> None:
    """Train shadow models: like the audited model, each on a random half of the same records.

    MODEL is the model from which the audited model was trained, not the audited model: a checkpoint, a directory with a
    config.json and no weights, or an adapter's directory, of which only the adapter is trained. Give all records of the
    audit, members and non-members, and the settings of the audited model's training. Each model scores all records, and
    only the scores are kept. Run the command again to continue an interrupted run (models trained together are lost
    together), or with a larger --count to add models. Processes that torchrun starts share the models.

    \b
    Example:
      privctl shadow base/ --data train.jsonl --data held-out.jsonl --count 32 \\
          --epochs 3 --batch-size 32 -o shadows/
      privctl audit model/ --members train.jsonl --nonmembers held-out.jsonl --shadow shadows/
    """
    _refuse_early(options)

    from privctl.domain.progress import unseen
    from privctl.models.language import choose_device
    from privctl.models.precision import why_slow
    from privctl.parallel import start_workers
    from privctl.reports.codec import encode
    from privctl.shadow.run import run_shadows
    from privctl.show.progress import note, progress

    request = _request(options)
    quiet = options["quiet"]
    device = choose_device(request.training.device)
    if slow := why_slow(request.precision, device):
        note(slow, quiet=quiet)
    with explaining_interrupts_of_shadows(options["output"], options["count"]), start_workers(device) as workers:
        report = run_shadows(request, partial(progress, quiet=quiet) if workers.is_main else unseen, workers)
    if report is None:  # the main process of torchrun has it
        return
    show(encode(report) if options["as_json"] else _rendered(report), as_json=options["as_json"])
    for warning in report.warnings:
        note(warning, quiet=quiet)
    note(f"wrote {request.training.output}", quiet=quiet)


def _refuse_early(options: dict[str, Any]) -> None:
    """Raise for an existing output and for missing inputs, before torch is imported, which takes seconds."""
    from privctl.data.places import require_inputs
    from privctl.storage.atomic import require_folder
    from privctl.storage.reader import missing_model

    require_folder(options["output"])
    if not Path(options["model"]).exists():
        raise missing_model(Path(options["model"]))
    require_inputs(options["data"])


def _request(options: dict[str, Any]) -> ShadowRequest:
    from privctl.shadow.pool import ShadowRequest
    from privctl.show.progress import note
    from privctl.train.methods import method_named
    from privctl.train.settings.choices import Schedule
    from privctl.train.settings.options import data_of, model_of, task_of
    from privctl.train.settings.request import RetrainRequest

    model, data = model_of(options), options["data"]
    try:
        training = RetrainRequest(
            method=method_named("plain"),
            model=model,
            data=data_of(options, data),
            task=task_of(options, model, data, partial(note, quiet=options["quiet"])),
            output=options["output"],
            schedule=Schedule(options["schedule"]),
            optimizer=Optimizer(options["optimizer"]),
            **{name: options[name] for name in _SAME},
        )
    except ValueError as error:
        raise CommandError(str(error)) from None
    return ShadowRequest(
        training=training,
        count=options["count"],
        vectorize=options["vectorize"],
        keep_models=options["keep_models"],
        precision=None if options["precision"] is None else FloatFormat(options["precision"]),
    )


def _rendered(report: PrivacyReport) -> str:
    from privctl.reports.parameters import ShadowParameters, parameters_as

    settings = parameters_as(ShadowParameters, report)
    models = counted(settings.count, "shadow model")
    return f"{models}, each trained on a random half of {settings.records} records\n"
