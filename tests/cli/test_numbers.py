"""Numeric options: a value that makes no sense is refused by the name of its option, before any file is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from privctl.cli import root, run
from privctl.cli.groups import GroupWithCommand
from privctl.train.methods.dpquant.settings import DpquantSettings
from privctl.train.methods.ferret.settings import FerretSettings
from tests.few import few

NUMBERS = {"integer", "float", "number"}


def commands(command: click.Command, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, GroupWithCommand):
        yield name, command.alone
    if isinstance(command, click.Group):
        context = click.Context(command)
        for each in command.list_commands(context):
            found = command.get_command(context, each)
            assert found is not None
            yield from commands(found, (*name, each))
    else:
        yield name, command


def flag(parameter: click.Parameter) -> str:
    return max(parameter.opts, key=len)


def required(command: click.Command, but: click.Parameter) -> list[str]:
    """A value for everything that ``command`` needs beside ``but``; no file of the name exists."""
    call = []
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            call.append("nowhere")
        elif (
            parameter.required or "optional with --dry-run" in (getattr(parameter, "help", "") or "")
        ) and parameter is not but:
            value = str(next(iter(parameter.type.choices))) if isinstance(parameter.type, click.Choice) else "1"
            call += [flag(parameter), getattr(value, "value", value)]
    return call


OPTIONS = {
    " ".join((*name, flag(parameter))): (name, command, parameter)
    for name, command in commands(root)
    for parameter in command.params
    if isinstance(parameter, click.Option) and parameter.type.name in NUMBERS
}
#: Options that are 0 where nothing of the kind is wanted, and seeds.
MAY_BE_ZERO = {
    "--seed", "--momentum", "--beta1", "--beta2", "--weight-decay", "--warmup-steps", "--beta", "--smoothing",
    "--public-weight",
    "audit --delta", "audit canaries --delta", "audit scores --delta", "canary plant --delta",
    "account --delta", "audit split --delta", "audit --prefix-tokens", "audit extraction --prefix-tokens",
}  # fmt: skip


def refused(option: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    name, command, each = OPTIONS[option]
    assert run([*name, *required(command, each), flag(each), *[value] * each.nargs]) == 2, value
    error = capsys.readouterr().err
    assert flag(each) in error.splitlines()[-1].replace("'", " ").split(), error
    assert len(error) < 400
    assert "Traceback" not in error


def test_every_option_is_found() -> None:
    assert len(OPTIONS) > 150
    assert {"noise --epsilon", "retrain dpquant --beta", "secrets plan --gap", "audit --top-p"} <= OPTIONS.keys()


@pytest.mark.parametrize("option", few(sorted(OPTIONS), *range(0, len(OPTIONS), 4)))
def test_nonsense_is_refused_by_the_name_of_its_option(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    whole = OPTIONS[option][2].type.name == "integer"
    for value in ("-1", "nan", "inf", "1" + 300 * "0" if whole else "-inf"):
        refused(option, value, capsys)
    if flag(OPTIONS[option][2]) not in MAY_BE_ZERO and option not in MAY_BE_ZERO and not option.startswith("claims"):
        refused(option, "0", capsys)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("retrain dp-sgd --steps", "0", "privctl: --steps is 0; it must be at least 1 and at most 1e+12\n"),
        (
            "retrain plain --learning-rate",
            "-1",
            "privctl: --learning-rate is -1; it must be above 0 and at most 1e+12\n",
        ),
        ("noise --delta", "1", "privctl: --delta is 1; it must be above 0 and below 1\n"),
        (
            "account --noise-multiplier",
            "inf",
            "privctl: --noise-multiplier is inf; it must be a finite number above 0\n",
        ),
        ("retrain dpquant --luq-levels", "65", "privctl: --luq-levels is 65; it must be at least 1 and at most 64\n"),
        ("retrain ferret --bit-epsilon", "44.5", "privctl: --bit-epsilon is 44.5; it must be above 0 and at most 44\n"),
    ],
)
def test_numbers_out_of_range_are_refused_with_a_reason(
    option: str, value: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, command, each = OPTIONS[option]
    assert run([*name, *required(command, each), flag(each), value]) == 2
    assert capsys.readouterr().err == words


def test_settings_check_their_numbers_without_a_command_line() -> None:
    with pytest.raises(ValueError, match="--measure-clip is 0; it must be above 0"):
        DpquantSettings(format="fp8", clip=0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="--fire-probability is 2; it must be above 0 and at most 1"):
        FerretSettings(fire_probability=2)
