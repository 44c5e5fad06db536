"""The reference of the command line, made from the commands themselves."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from inspect import cleandoc
from typing import TypeGuard

import click

from privctl.cli import COMMANDS, root
from privctl.cli.groups import GroupWithCommand, WithRareOptions
from tests.docs.pages import as_table

_EXAMPLES = re.compile(r"^(?:Example|More examples):$", re.MULTILINE)
_INTRODUCTION = """\
# Command line

<!-- Made from the commands by `python -m tests.docs.generate`; change their help instead. -->

Every command takes `--help` and ends with one of these [exit codes](reports.md#exit-codes). Results go to standard
output, progress and messages to standard error. `--json` prints the [report](reports.md) itself.

Every option can also be set by an environment variable named after command and option
(`PRIVCTL_RETRAIN_DP_SGD_BATCH_SIZE=512`), or in one file in the current folder: `privctl.toml`, or `[tool.privctl...]`
in `pyproject.toml`, with a table for each command:

```toml
[retrain.dp-sgd]
batch-size = 512
clip-norm = 0.5
```

The command line overrides variables, which override the file. Unknown tables and keys are refused, and the names of
the settings taken from a file are always shown. `gate`, `verify` and `sign` take nothing from a file. No file can set
`--force`, `--show-unprotected`, `--quiet`, `--debug`, `retrain --log`, where an audit is logged, what it keeps of
private records, or the seed of noise or canaries ([why](threat-model.md#settings-files)). The gate reads its own
variables together with its policy.
"""


def reference() -> str:
    """The whole page."""
    parts = [_INTRODUCTION]
    context = click.Context(root, info_name="privctl")
    rows = [[f"[`privctl {name}`](#privctl-{name})", line] for name, (_, line) in COMMANDS.items()]
    parts.append(as_table(["command", "what it does"], rows))
    for name in COMMANDS:
        command = root.get_command(context, name)
        assert command is not None
        parts += _described(command, f"privctl {name}", 2)
    return "\n".join(parts)


def _described(command: click.Command, name: str, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}\n"
    text, example = split_help(command.help or "")
    called = command.alone if isinstance(command, GroupWithCommand) else command
    yield f"```text\n{_usage(called, name)}\n```\n"
    yield _plain(text)
    if example:
        yield f"```sh\n{example}\n```\n"
    options = called.listed(called.params) if isinstance(called, WithRareOptions) else called.params
    options = [parameter for parameter in options if _is_shown(parameter)]
    rare = called.rare if isinstance(called, WithRareOptions) else frozenset()
    for heading, asked in (("option", False), ("option, with `--help-all`", True)):
        rows = [_option(option) for option in options if (option.name in rare) is asked]
        if rows:
            yield as_table([heading, "meaning"], rows)
    if isinstance(command, click.Group):
        for each in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), each)
            assert found is not None
            yield from _described(found, f"{name} {each}", min(level + 1, 4))


def _usage(command: click.Command, name: str) -> str:
    words = [name, "[OPTIONS]"]
    if isinstance(command, click.Group):
        words.append("COMMAND")
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            usage = parameter.metavar or _kind(parameter, str(parameter.name).upper())
            usage = usage if parameter.required or usage.startswith("[") else f"[{usage}]"
            words.append(usage if parameter.nargs == 1 or usage.endswith("...") else f"{usage}...")
    return " ".join(words)


def split_help(text: str) -> tuple[str, str]:
    """A help's prose, and its examples without their indentation: those of ``--help``, then those of ``--help-all``."""
    prose, examples = [], []
    for part in cleandoc(text).split("\f"):
        before, _, after = _EXAMPLES.sub("\0", part).partition("\0")
        lines, _, rest = after.partition("\n\n")
        prose += [before.strip(" \n\b"), rest.strip()]
        examples.append(textwrap.dedent(lines.strip("\n")).rstrip())
    return "\n\n".join(filter(None, prose)), "\n".join(filter(None, examples))


def _plain(text: str) -> str:
    """Paragraphs, each on one line, without click's marks and with nothing that Markdown would take for its own."""
    found = []
    for paragraph in text.replace("\b", "").split("\n\n"):
        joined = " ".join(paragraph.split())
        if joined:
            found.append(_escaped(joined))
    return "\n\n".join(found) + "\n"


def _is_shown(parameter: click.Parameter) -> TypeGuard[click.Option]:
    return isinstance(parameter, click.Option) and not parameter.hidden


def _option(option: click.Option) -> list[str]:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if not option.is_flag and not option.count:
        names += f" {_escaped(' '.join([option.metavar or _kind(option, option.type.name.upper())] * option.nargs))}"
    help_text, _, default = " ".join((option.help or "").replace("\b", "").split()).partition("[default: ")
    parts = [_escaped(help_text.strip())]
    if option.required:
        parts.append("Required.")
    if option.multiple and "repeatable" not in parts[0]:
        parts.append("Repeatable.")
    if option.show_default and option.default is not None and not callable(option.default):
        default = f"{option.default}]"
    if default:
        parts.append(f"Default: {_escaped(default.removesuffix(']'))}.")
    return [names, " ".join(parts)]


def _kind(parameter: click.Parameter, otherwise: str) -> str:
    if isinstance(parameter.type, click.Choice):
        return "|".join(str(getattr(choice, "value", choice)) for choice in parameter.type.choices)
    return {"DIRECTORY": "PATH", "FILE": "PATH"}.get(otherwise, otherwise)


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is; calls of privctl as code."""
    spans: list[str] = []

    def kept(match: re.Match[str]) -> str:
        spans.append(match.group(0))
        return f"\0{len(spans) - 1}\0"

    text = re.sub(r"`[^`]+`|(?<![\w`])--[a-z][a-z0-9-]*", kept, text)
    text = re.sub(r"([\\*_<>\[\]|])", r"\\\1", text)
    return re.sub(r"\0(\d+)\0", lambda found: f"`{spans[int(found[1])].strip('`')}`", text)
