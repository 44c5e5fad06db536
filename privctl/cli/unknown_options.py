"""Which option was meant, when a command does not have the one that was given."""

from __future__ import annotations

import click

#: What other tools call an option -> its names here, of which a command has at most a few.
_ELSEWHERE = {
    "lr": ("--learning-rate",), "eps": ("--epsilon",), "target-epsilon": ("--epsilon",),
    "sigma": ("--noise-multiplier", "--noise-stddev"), "noise": ("--noise-multiplier", "--noise-stddev"),
    "max-grad-norm": ("--clip-norm",), "l2-norm-clip": ("--clip-norm",), "clip": ("--clip-norm",),
    "target-delta": ("--delta",), "bs": ("--batch-size",), "train-batch-size": ("--batch-size",),
    "per-device-train-batch-size": ("--batch-size",), "num-train-epochs": ("--epochs",), "max-steps": ("--steps",),
    "sampling-rate": ("--sample-rate",), "sampling-probability": ("--sample-rate",),
}  # fmt: skip


def known_by(error: click.NoSuchOption) -> list[str]:
    """The command's options that go elsewhere by the name that was given, or that differ in hyphens alone."""
    if error.ctx is None:
        return []
    name = error.option_name.lstrip("-").lower().replace("_", "-")
    meant = (*_ELSEWHERE.get(name, ()), f"--{name}")
    here = {option for parameter in error.ctx.command.params for option in parameter.opts}
    return [option for option in meant if option in here]


def taken_beside(error: click.NoSuchOption) -> list[str]:
    """The commands of the same group, such as other ways to train, that have exactly this option."""
    group = error.ctx.parent if error.ctx is not None else None
    if group is None or group.parent is None or not isinstance(group.command, click.Group):
        return []
    beside = {name: group.command.get_command(group, name) for name in group.command.list_commands(group)}
    return [
        name
        for name, command in beside.items()
        if command is not None and any(error.option_name in parameter.opts for parameter in command.params)
    ]
