"""Every call of privctl that the pages and the README show is one that the command line takes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click
import pytest

from privctl.cli import root
from privctl.cli.groups import GroupWithCommand
from tests.docs.pages import ROOT, called, mentioned, pages

TEXTS = {**pages(), "README.md": (ROOT / "README.md").read_text(encoding="utf-8")}


def command_of(words: Sequence[str]) -> tuple[click.Command, list[str]]:
    """The command that ``words`` call, and the words after its name. Raises UsageError for one that does not exist."""
    command: click.Command = root
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        found = command.get_command(click.Context(command), rest[0])
        if found is None and isinstance(command, GroupWithCommand):
            break
        if found is None:
            raise click.UsageError(f"no command {rest[0]}")
        command, rest = found, rest[1:]
    return (command.alone if isinstance(command, GroupWithCommand) else command), rest


def parse(words: Sequence[str], *, whole: bool) -> None:
    """Parse ``words`` as click would, with the types of values but for paths. Raises ClickException.

    What is not ``whole`` only names options, some of them without a value.
    """
    command, rest = command_of(words)
    context = click.Context(command, info_name="privctl")
    if not whole:
        known = {
            name for parameter in command.get_params(context) for name in (*parameter.opts, *parameter.secondary_opts)
        }
        for word in rest:
            if word.startswith("-") and word.split("=")[0] not in known:
                raise click.UsageError(f"no option {word}")
        return
    values, left, _ = command.make_parser(context).parse_args(rest)
    if left:
        raise click.UsageError(f"too many arguments: {left}")
    for parameter in command.get_params(context):
        value = values.get(str(parameter.name))
        set_by_user = value is not None and value != () and not repr(value).startswith("Sentinel")
        if not set_by_user and parameter.required and not {"--help", "--version"} & set(rest):
            raise click.MissingParameter(param=parameter)
        if set_by_user and not isinstance(parameter.type, click.Path):
            parameter.type_cast_value(context, value)


def words_of(found: Sequence[str]) -> str:
    """For a test's name."""
    return " ".join(found)[:60]


CALLS = [(name, words) for name, text in TEXTS.items() for words in called(text) if name != "cli.md"]
NAMED = [(name, words) for name, text in TEXTS.items() for words in mentioned(text)]


@pytest.mark.parametrize(("name", "words"), CALLS, ids=[f"{name} {words_of(words)}" for name, words in CALLS])
def test_shown_calls_parse(name: str, words: list[str]) -> None:
    parse(words, whole=True)


@pytest.mark.parametrize(("name", "words"), NAMED, ids=[f"{name} {words_of(words)}" for name, words in NAMED])
def test_calls_named_in_passing_parse(name: str, words: list[str]) -> None:
    parse([word for word in words if not re.fullmatch(r"[A-Z]+", word)], whole=False)


def test_there_is_something_to_parse() -> None:
    assert len(CALLS) > 30
    assert len(NAMED) > 40


@pytest.mark.parametrize(
    "line",
    [
        "noise model --epsilom 1",
        "noise",
        "noise model --regime bent",
        "noise model --steps many",
        "retrain dp-sdg m --data d -o o",
        "retrain dp-sgd m -o o",
        "report",
        "inspect one two",
    ],
)
def test_a_wrong_call_is_noticed(line: str) -> None:
    with pytest.raises(click.ClickException):
        parse(line.split(), whole=True)


def test_an_option_that_does_not_exist_is_noticed_in_passing() -> None:
    parse(["audit", "--members"], whole=False)
    with pytest.raises(click.ClickException):
        parse(["audit", "--member"], whole=False)
