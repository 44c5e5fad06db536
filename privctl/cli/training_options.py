"""Options of everything that trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import click

from privctl.cli.options import MODEL, Command
from privctl.domain.mechanism import Optimizer
from privctl.models.choices import Long, TaskName
from privctl.train.choices import ClippingStyle, Schedule

_TASKS = tuple(str(task) for task in TaskName)
_OPTIMIZERS = click.Choice([str(optimizer) for optimizer in Optimizer])


def data(*, required: bool = True) -> Callable[[Command], Command]:
    """``--data``."""
    said = "Private examples; see --task." if required else "Private examples; see --task. Not with --replay."
    return click.option("--data", type=click.Path(), required=required, help=said)


def training(command: Command) -> Command:
    """Options that all methods share, but ``--data``."""
    for option in reversed(
        (
            click.argument("model", type=MODEL),
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
            click.option(
                "--norm",
                type=click.Choice(["frozen"]),
                help="Keep batch normalisation's running statistics as they are.",
            ),
            click.option("--train", multiple=True, help="Only parameters matching this glob (repeatable)."),
            click.option("--lora-rank", type=int, help="Train low-rank adapters only (needs peft)."),
            click.option("--labels", help="Class names in order: a,b,c or a file with one a line."),
            click.option(
                "--unit", help="Field that says whom a record belongs to; all of one's records are protected."
            ),
            click.option(
                "--long",
                type=click.Choice([str(each) for each in Long]),
                default="refuse",
                show_default=True,
                help="What becomes of texts longer than the model reads.",
            ),
            click.option("--max-length", type=int, help="Tokens a text may have, if fewer than the model reads."),
            click.option("--response-only", is_flag=True, help="Only the response's tokens count (prompt/response)."),
            click.option("--resize", type=int, nargs=2, help="Height and width that images are brought to."),
            click.option("--dropout", is_flag=True, help="Leave the model's dropout on."),
            click.option("--micro-examples", type=int, default=64, show_default=True, help="Most examples at once."),
            click.option(
                "--micro-tokens",
                type=int,
                help="Most tokens at once, padding included.  [default: 2048 on a CPU, else 16384]",
            ),
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


def unprotected(command: Command) -> Command:
    """``--show-unprotected``, of trainings that protect their examples."""
    return click.option(
        "--show-unprotected",
        is_flag=True,
        help="Write exact losses and norms of the private examples to OUTPUT.private-history.json, for you alone.",
    )(command)


def _choices(kind: type[StrEnum]) -> click.Choice[str]:
    return click.Choice([str(member) for member in kind])


#: Options that several methods take, by their names: (flags, what click makes of them).
_SHARED: dict[str, tuple[str, dict[str, Any]]] = {
    "clip_norm": (
        "--clip-norm",
        {"type": float, "default": 1.0, "show_default": True, "help": "L2 norm of each clipped gradient."},
    ),
    "clipping": (
        "--clipping",
        {
            "type": _choices(ClippingStyle),
            "default": "flat",
            "show_default": True,
            "help": "How gradients are brought within the clip norm.",
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
        {"type": int, "default": 0, "show_default": True, "help": "Steps of rising learning rate."},
    ),
    "epsilon": ("--epsilon", {"type": float, "help": "Budget: the noise follows from it."}),
    "noise_multiplier": (
        "--noise-multiplier",
        {"type": float, "help": "Noise standard deviation / clip norm, instead of --epsilon."},
    ),
    "delta": (
        "--delta",
        {
            "type": float,
            "help": "Delta of the guarantee.  [default: the lesser of 1e-5 and 1 / examples^1.1]",
        },
    ),
    "secrets": (
        "--secrets",
        {
            "type": click.Path(),
            "help": "Plan of protection from `privctl secrets plan`: it sets batches, steps and the least noise.",
        },
    ),
}
_GROUPS = {
    "clipping": ("clip_norm", "clipping"),
    "clip-norm": ("clip_norm",),
    "schedule": ("schedule", "warmup_steps"),
    "budget": ("epsilon", "noise_multiplier", "delta"),
    "secrets": ("secrets",),
}


def shared(group: str, helps: Mapping[str, str] = MappingProxyType({})) -> list[Callable[[Any], Any]]:
    """The options of a ``group`` that methods share; ``helps`` are a method's own words for some of them."""
    found = []
    for name in _GROUPS[group]:
        flag, settings = _SHARED[name]
        found.append(click.option(flag, name, **{**settings, "help": helps.get(name, settings["help"])}))
    return found
