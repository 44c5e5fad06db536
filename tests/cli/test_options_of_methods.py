"""``privctl retrain METHOD``: the help lists the options that the method has, and notes name the files that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest

from privctl.cli import root, run
from privctl.train.methods import METHODS, method_named
from tests.cli.short_runs import prepared

#: Options that some methods refuse, each as a user would give it.
GIVEN = {
    "optimizer": ["--optimizer", "adam"],
    "momentum": ["--momentum", "0.5"],
    "bf16": ["--bf16"],
    "dropout": ["--dropout"],
    "checkpointing": ["--checkpointing"],
    "fsdp": ["--fsdp"],
}
#: Decay rates of an optimizer that the method never has; they change nothing.
IDLE = {"beta1", "beta2"}
#: What each of these methods needs.
NEEDED = {"dp-zo": ["--epsilon", "8"], "ferret": ["--epsilon", "8", "--release", "gaussian"]}
REFUSED = [(name, option) for name in METHODS for option in method_named(name).without if option not in IDLE]


def shown_options(method: str) -> set[str]:
    """The names of the options in the method's ``--help-all``."""
    context = click.Context(root)
    group = root.get_command(context, "retrain")
    assert isinstance(group, click.Group)
    command = group.get_command(context, method)
    assert command is not None
    return {str(each.name) for each in command.params if isinstance(each, click.Option) and not each.hidden}


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("options"), 12)


@pytest.mark.parametrize(("method", "option"), REFUSED)
def test_an_option_that_the_help_leaves_out_is_refused(start: Path, tmp_path: Path, method: str, option: str) -> None:
    call = ["retrain", method, str(start / "start"), "--data", str(start / "train.jsonl"), "--steps", "1"]
    assert run([*call, *NEEDED[method], *GIVEN[option], "-o", str(tmp_path / "out"), "--device", "cpu"]) == 2
    assert not list(tmp_path.iterdir())
    assert option not in shown_options(method)


def test_only_methods_that_refuse_an_option_leave_it_out() -> None:
    left_out = {name: set(method_named(name).without) for name in METHODS if method_named(name).without}
    assert left_out == {"dp-zo": {*GIVEN, *IDLE}, "ferret": {"fsdp"}}
    assert {*GIVEN, *IDLE} <= shown_options("dp-sgd")
    assert all(("fsdp" in shown_options(name)) is method_named(name).shards for name in METHODS)


def test_an_output_with_a_slash_at_its_end(start: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As the pages write it: the notes name what was written, and the next command."""
    more = ["--noise-multiplier", "1", "--steps", "1", "--batch-size", "4", "--gradient-canaries", "11"]
    call = ["retrain", "dp-sgd", str(start / "start"), "--data", str(start / "train.jsonl"), *more]
    assert run([*call, "--device", "cpu", "-o", f"{tmp_path}/out/"]) == 0
    notes = capfd.readouterr().err
    (written,) = re.findall(r"wrote (.+)", notes)
    files = re.split(", | and ", written)
    assert [Path(name).name for name in files] == ["out", "out.report.json", "out.gradient-canaries.json"]
    assert all(Path(name).exists() for name in files)
    (advice,) = re.findall(r"audit it: privctl (.+)", notes)
    assert Path(shlex.split(advice)[-1]).is_file()


def test_a_command_is_made_once() -> None:
    context = click.Context(root)
    group = root.get_command(context, "retrain")
    assert isinstance(group, click.Group)
    assert all(group.get_command(context, name) is group.get_command(context, name) for name in METHODS)
    assert group.get_command(context, "no-method") is None
