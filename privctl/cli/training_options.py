"""The options of ``privctl retrain`` and its subcommands."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import click

from privctl.cli.numbers import (
    AMOUNT,
    AMOUNT_OR_ZERO,
    BELOW_ONE,
    CLIP_NORM,
    COUNT,
    COUNT_OR_ZERO,
    FRACTION,
    POSITIVE,
    SEED,
)
from privctl.cli.options import COLUMNS, DATA_PATHS, MODEL, Command, data_option
from privctl.domain.mechanism import Optimizer
from privctl.models.choices import TASKS, LongTextPolicy
from privctl.train.settings.choices import ClippingPasses, ClippingStyle, LogName, PublicOverlap, Schedule
from privctl.train.settings.method_settings import GROUPS

_OPTIMIZERS = click.Choice([str(optimizer) for optimizer in Optimizer])


def data(*, required: bool = True) -> Callable[[Command], Command]:
    """The option ``--data``, whose help mentions ``--replay`` where it is not ``required``."""
    help_text = "Private examples: files, folders, patterns or -. - is standard input (docs/data.md); repeatable."
    if not required:
        help_text += " Not with --replay."
    return data_option("--data", help_text, required=required)


def training(command: Command) -> Command:
    """Add the options that all methods share, except ``--data``."""
    for option in reversed(
        (
            click.argument("model", type=MODEL),
            data_option("--held-out", "Other examples to evaluate on (repeatable).", alias="--heldout"),
            click.option(
                "--task",
                type=click.Choice(TASKS),
                metavar="TASK",
                help=f"One of {', '.join(TASKS)}. By default it is read from MODEL's config.json.",
            ),
            *COLUMNS,
            click.option("--epochs", type=AMOUNT, help="Passes over the data.  [default: 3]"),
            click.option("--steps", type=COUNT, help="Optimizer steps, instead of --epochs."),
            click.option(
                "--batch-size",
                type=COUNT,
                default=64,
                show_default=True,
                help="Examples per step. For Poisson batches, the expected number.",
            ),
            click.option(
                "--learning-rate",
                type=AMOUNT,
                help="Highest learning rate.  [default: 5e-4]",
            ),
            click.option("--optimizer", type=_OPTIMIZERS, help="Update rule.  [default: adamw]"),
            click.option(
                "--momentum", type=BELOW_ONE, default=0.0, help="Heavy-ball factor, with --optimizer momentum."
            ),
            click.option("--beta1", type=BELOW_ONE, default=0.9, show_default=True, help="Adam's first decay rate."),
            click.option("--beta2", type=BELOW_ONE, default=0.999, show_default=True, help="Adam's second decay rate."),
            click.option(
                "--weight-decay", type=AMOUNT_OR_ZERO, default=0.0, show_default=True, help="Decoupled weight decay."
            ),
            click.option("--from-scratch", is_flag=True, help="Start from random weights even if MODEL has weights."),
            click.option(
                "--vocabulary",
                type=click.Path(),
                help="Public file of words to build a tokenizer from, or the word private to use those of the data.",
            ),
            click.option(
                "--norm",
                type=click.Choice(["frozen"]),
                help="Keep batch normalisation's running statistics as they are.",
            ),
            click.option("--train", multiple=True, help="Train only parameters matching this glob (repeatable)."),
            click.option("--lora-rank", type=COUNT, help="Train only low-rank adapters of this rank."),
            click.option("--labels", help="Class names in order: a,b,c, or a file of them."),
            click.option(
                "--unit",
                help="Field of owners, such as patients, to protect. All records of an owner are protected together. "
                "With 'fold(FIELD)', spellings of a name may differ in case, spaces and Unicode form.",
            ),
            click.option(
                "--long",
                type=click.Choice([str(choice) for choice in LongTextPolicy]),
                help="What to do with texts longer than the model's context.  [default: truncate]",
            ),
            click.option(
                "--max-length",
                type=COUNT,
                help="Most tokens of a text, if fewer than the model's context; for sounds, the samples of each one.",
            ),
            click.option(
                "--response-only", is_flag=True, help="Train only on the response's tokens (prompt/response)."
            ),
            click.option("--resize", type=COUNT, nargs=2, help="Height and width to resize images to."),
            click.option("--dropout", is_flag=True, help="Keep the model's dropout active."),
            click.option(
                "--micro-examples", type=COUNT, default=64, show_default=True, help="Most examples in one forward pass."
            ),
            click.option(
                "--micro-tokens",
                type=COUNT,
                help="Most tokens in one forward pass, padding included.  [default: 2048 on a CPU, else 16384]",
            ),
            click.option("--device", help="Device, such as cpu or cuda.  [default: cuda if available]"),
            click.option(
                "--bf16/--float32",
                default=None,
                help="Run the network in bfloat16 or in float32. Weights, norms and clipped sums are float32 in both "
                "cases.  [default: bfloat16 on a GPU that supports it, else float32]",
            ),
            click.option(
                "--checkpointing", is_flag=True, help="Recompute activations in the backward pass, to save memory."
            ),
            click.option(
                "--fsdp",
                is_flag=True,
                help="Under torchrun: each process holds a shard of parameters, gradients and optimizer state.",
            ),
            click.option(
                "--seed",
                type=SEED,
                default=0,
                show_default=True,
                help="Seed of random weights and of orders that are not secret.",
            ),
            click.option(
                "--resume",
                is_flag=True,
                help="Continue an interrupted run. Only --held-out, --show-unprotected, --log, "
                "--device and what changes speed or memory may differ.",
            ),
            click.option(
                "--log",
                multiple=True,
                type=click.Choice([str(name) for name in LogName]),
                help="Log the training to OUTPUT.log.csv, to OUTPUT.tensorboard, or to a service (repeatable).",
            ),
            click.option("-o", "--output", type=click.Path(), help="Directory to write; optional with --dry-run."),
        )
    ):
        command = option(command)
    return command


def unprotected(command: Command) -> Command:
    """Add ``--show-unprotected``, which private methods have."""
    return click.option(
        "--show-unprotected",
        is_flag=True,
        help="Write exact losses and norms of the private examples to OUTPUT.private-history.json, not for release.",
    )(command)


def _choices(kind: type[StrEnum]) -> click.Choice[str]:
    return click.Choice([str(member) for member in kind])


#: Options that several methods share, by parameter name: (flag, click's settings).
_SHARED: dict[str, tuple[str, dict[str, Any]]] = {
    "clip_norm": (
        "--clip-norm",
        {
            "type": CLIP_NORM,
            "default": 1.0,
            "show_default": True,
            "help": "L2 norm that gradients are clipped to.",
        },
    ),
    "clipping": (
        "--clipping",
        {
            "type": _choices(ClippingStyle),
            "default": "flat",
            "show_default": True,
            "help": "How gradients are clipped: flat, automatic, or per layer.",
        },
    ),
    "clipping_passes": (
        "--clipping-passes",
        {
            "type": _choices(ClippingPasses),
            "default": "1",
            "show_default": True,
            "help": "Backward passes of a micro-batch. With --checkpointing, 2 need less memory and more time; auto "
            "uses 2 if memory does not suffice for one record in one pass.",
        },
    ),
    "schedule": (
        "--schedule",
        {
            "type": _choices(Schedule),
            "default": "constant",
            "show_default": True,
            "help": "Learning rate after the warm-up.",
        },
    ),
    "warmup_steps": (
        "--warmup-steps",
        {
            "type": COUNT_OR_ZERO,
            "default": 0,
            "show_default": True,
            "help": "Steps of rising learning rate, at the start.",
        },
    ),
    "epsilon": ("--epsilon", {"type": POSITIVE, "help": "Privacy budget, from which the noise is computed."}),
    "noise_multiplier": (
        "--noise-multiplier",
        {"type": AMOUNT, "help": "Noise stddev / clip norm, instead of --epsilon."},
    ),
    "delta": (
        "--delta",
        {
            "type": FRACTION,
            "help": "Delta of the guarantee.  [default: the smaller of 1e-5 and 1 / examples^1.1]",
        },
    ),
    "secrets": (
        "--secrets",
        {
            "type": click.Path(),
            "help": "Plan from `privctl secrets plan`. It sets batches, steps and the least noise.",
        },
    ),
    "public": (
        "--public",
        {
            **DATA_PATHS,
            "help": "Public records, in the form of --data (repeatable). Each step adds their gradient to the private "
            "one, at no cost in epsilon.",
        },
    ),
    "public_weight": (
        "--public-weight",
        {"type": AMOUNT_OR_ZERO, "help": "Weight of the mean public gradient.  [default: 1]"},
    ),
    "public_batch_size": (
        "--public-batch-size",
        {"type": COUNT, "help": "Public records per step.  [default: --batch-size, or all if there are fewer]"},
    ),
    "public_overlap": (
        "--public-overlap",
        {
            "type": _choices(PublicOverlap),
            "help": "What to do if a public record is also in --data: refuse to train, or keep it in both.  [default: "
            "refuse]",
        },
    ),
    "convert": (
        "--convert",
        {
            "type": click.Choice(["batch-norm"]),
            "help": "Move batch normalisation's running statistics into its scales and shifts, which are trained.",
        },
    ),
    "base": (
        "--base",
        {"type": MODEL, "help": "Base of MODEL, if that is an adapter.  [default: the folder that it names]"},
    ),
    "save_adapter": (
        "--save-adapter",
        {"is_flag": True, "help": "With --lora-rank: write only the adapters, in peft's format, not merged weights."},
    ),
    "base_bits": (
        "--base-bits",
        {
            "type": click.Choice(["4"]),
            "help": "Hold an adapter's frozen base in 4 bits (NF4 of QLoRA; needs bitsandbytes).",
        },
    ),
}


def shared(group: str) -> list[Callable[[Any], Any]]:
    """Click options for the shared ``group`` of options."""
    options = []
    for name in GROUPS[group]:
        flag, settings = _SHARED[name]
        options.append(click.option(flag, name, **settings))
    return options
