"""Suggestions for an option that a command does not have, and for surplus arguments."""

from __future__ import annotations

import click

#: Name of an option in other tools -> its names in privctl, of which a command has at most a few.
_ELSEWHERE = {
    "lr": ("--learning-rate",), "eps": ("--epsilon",), "target-epsilon": ("--epsilon",),
    "sigma": ("--noise-multiplier", "--noise-stddev"), "noise": ("--noise-multiplier", "--noise-stddev"),
    "max-grad-norm": ("--clip-norm",), "l2-norm-clip": ("--clip-norm",), "clip": ("--clip-norm",),
    "target-delta": ("--delta",), "bs": ("--batch-size",), "train-batch-size": ("--batch-size",),
    "per-device-train-batch-size": ("--batch-size",), "num-train-epochs": ("--epochs",), "max-steps": ("--steps",),
    "gradient-accumulation-steps": ("--batch-size",), "gradient-checkpointing": ("--checkpointing",),
    "lr-scheduler-type": ("--schedule",), "warmup-ratio": ("--warmup-steps",), "optim": ("--optimizer",),
    "adam-beta1": ("--beta1",), "adam-beta2": ("--beta2",), "fp16": ("--bf16",), "output-dir": ("--output",),
    "resume-from-checkpoint": ("--resume",), "overwrite-output-dir": ("--force",), "max-seq-length": ("--max-length",),
    "lora-r": ("--lora-rank",), "load-in-4bit": ("--base-bits",), "dataset-name": ("--data",),
    "train-file": ("--data",), "train-data": ("--data",), "validation-file": ("--held-out",),
    "eval-file": ("--held-out",), "eval-data": ("--held-out",),
    **dict.fromkeys(("patient", "user", "users", "user-id", "person", "unit", "group"), ("--unit", "--group-by")),
    "group-by": ("--unit",), "sampling-rate": ("--sample-rate",), "sampling-probability": ("--sample-rate",),
}  # fmt: skip

#: Groups of options for files that users may give as arguments by mistake.
_OF_FILES = (("members", "nonmembers"), ("canaries",), ("secrets", "data"), ("data",), ("train", "held_out"))


def options_of_files(command: click.Command) -> str:
    """The options of ``command`` for files of records, as a user types them; empty where it has none."""
    names_here = {param.name for param in command.params if isinstance(param, click.Option)}
    meant = next((names for names in _OF_FILES if names_here.issuperset(names)), ())
    return " ".join(f"--{name.replace('_', '-')} FILE" for name in meant)


def known_by(error: click.NoSuchOption) -> list[str]:
    """The command's options that other tools call by the given name, or whose names differ only in hyphens."""
    if error.ctx is None:
        return []
    name = error.option_name.lstrip("-").lower().replace("_", "-")
    meant = _ELSEWHERE.get(name, ())
    options_here = [option for parameter in error.ctx.command.params for option in parameter.opts]
    alike = [option for option in options_here if option.replace("-", "") == name.replace("-", "")]
    return [option for option in meant if option in options_here] + alike


def taken_beside(error: click.NoSuchOption) -> list[str]:
    """The commands of the same group, such as other training methods, that have exactly this option."""
    group = error.ctx.parent if error.ctx is not None else None
    if group is None or group.parent is None or not isinstance(group.command, click.Group):
        return []
    beside = {name: group.command.get_command(group, name) for name in group.command.list_commands(group)}
    return [
        name
        for name, command in beside.items()
        if command is not None and any(error.option_name in parameter.opts for parameter in command.params)
    ]
