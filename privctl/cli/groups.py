"""Click groups and commands with suggestions for mistyped names, rare options, and groups that are also commands."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from inspect import cleandoc
from typing import Any

import click
from click.shell_completion import CompletionItem

from privctl.cli.configured import apply_settings
from privctl.cli.options import OnceOption
from privctl.cli.unknown_options import options_of_files


class SuggestingGroup(click.Group):
    """A group whose error on an unknown command names commands with a similar spelling."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve the command, suggesting names for an unknown one, and apply its settings.

        click's own suggestions would cover only commands that are loaded already.
        """
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            close = [*self._inside(ctx, name)] or get_close_matches(name, self.list_commands(ctx))
            advice = (
                f"did you mean {' or '.join(close)}?" if close else f"choose from {', '.join(self.list_commands(ctx))}"
            )
            ctx.fail(f"{ctx.command_path} has no command {name!r}; {advice}")
        resolved, command, rest = super().resolve_command(ctx, args)
        if resolved is not None and command is not None and not ctx.resilient_parsing:
            apply_settings(ctx, resolved, command.called(rest) if isinstance(command, GroupWithCommand) else command)
        return resolved, command, rest

    def _inside(self, ctx: click.Context, name: str) -> Iterator[str]:
        """The full names of commands called ``name`` in the groups of this group."""
        for beside in self.list_commands(ctx):
            group = self.get_command(ctx, beside)
            if isinstance(group, click.Group) and name in group.list_commands(ctx):
                yield f"{ctx.command_path} {beside} {name}"


_ALL_SHOWN = "privctl.help-all"


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        ctx.meta[_ALL_SHOWN] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


def _in_brief(name: str, text: str) -> tuple[str, str]:
    """A row of the help, cut to the first sentence of its text and the default in brackets at its end."""
    sentence, end, rest = text.partition(". ")
    return name, sentence + end.strip() + (f"  [{rest.rpartition('[')[2]}" if rest.endswith("]") else "")


class WithRareOptions(click.Command):
    """A command with ``rare`` options, given by name, which ``--help-all`` lists and ``--help`` does not.

    Where ``shown`` is given, every other option is rare, ``--help`` lists the shown ones in that order, and it gives
    only the first sentence of each option's text. Shells complete rare options, unlike hidden ones. ``--help`` ends the
    command's text at its first form feed; ``--help-all`` shows the whole text.
    """

    rare_heading = "More options"

    def __init__(
        self, *args: Any, rare: Collection[str] = (), shown: Sequence[str] | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        options = [str(param.name) for param in self.params if isinstance(param, click.Option)]
        self.rare = frozenset(rare if shown is None else {*options} - {*shown})
        self._in_brief = shown is not None
        self._places = {name: index for index, name in enumerate(shown or options)}
        self._help_all = click.Option(
            ["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=_show_all,
            allow_from_autoenv=False, hidden=not self.rare, help="Show all options and details.",
        )  # fmt: skip

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``args``. The error for surplus arguments names the options that take files."""
        try:
            self._require_once(ctx, args)
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            options = options_of_files(self) if str(error.message).startswith("Got unexpected extra") else ""
            if not options:
                raise
            raise click.UsageError(f"{error.message}; files are given by options, such as {options}", ctx) from None

    def _require_once(self, ctx: click.Context, args: list[str]) -> None:
        if ctx.resilient_parsing or not any(isinstance(param, OnceOption) for param in self.params):
            return
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for param, count in Counter(given).items():
            if isinstance(param, OnceOption) and count > 1:
                raise click.UsageError(f"{param.opts[0]} was given {count} times; give it once", ctx)

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        """The command's parameters, then ``--help`` and ``--help-all``."""
        return [*super().get_params(ctx), self._help_all]

    def listed(self, params: Sequence[click.Parameter]) -> list[click.Option]:
        """The options among ``params`` in the order in which the help lists them: required ones first."""
        options = [param for param in params if isinstance(param, click.Option)]
        last = len(self._places)
        return sorted(options, key=lambda option: (not option.required, self._places.get(str(option.name), last)))

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the command's text; with ``--help-all`` also the part after the form feed."""
        super().format_help_text(ctx, formatter)
        details = cleandoc(self.help or "").partition("\f")[2].strip("\n")
        if details and ctx.meta.get(_ALL_SHOWN):
            formatter.write_paragraph()
            with formatter.indentation():
                formatter.write_text(details)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options; with ``--help-all`` also the rare ones, under a heading of their own."""
        options = self.listed(self.get_params(ctx))
        for heading, is_rare in (("Options", False), (self.rare_heading, True)):
            records = [option.get_help_record(ctx) for option in options if (option.name in self.rare) is is_rare]
            whole = ctx.meta.get(_ALL_SHOWN) or not self._in_brief
            rows = [record if whole else _in_brief(*record) for record in records if record is not None]
            if rows and (ctx.meta.get(_ALL_SHOWN) or not is_rare):
                with formatter.section(heading):
                    formatter.write_dl(rows)


class CommandAlone(WithRareOptions):
    """The command that a ``GroupWithCommand`` runs without a subcommand. Its help lists the subcommands."""

    rare_heading = "Options of the commands below"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.subcommands: Mapping[str, click.Command] = {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, then the subcommands."""
        super().format_options(ctx, formatter)
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, subcommand.get_short_help_str(60)) for name, subcommand in self.subcommands.items()]
            )


class Subcommand(WithRareOptions):
    """A subcommand of a ``GroupWithCommand``. Where a file has its name, errors say how to give that file."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse ``args``; an error explains how to give a file that is called like the subcommand."""
        name = str(ctx.info_name)
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            # A wrong value shows that the subcommand was meant.
            wrong_value = isinstance(error, click.BadParameter) and not isinstance(error, click.MissingParameter)
            if ctx.parent is None or wrong_value or not os.path.exists(name):
                raise
            raise click.UsageError(
                f"{error.format_message()} Here {name} is the subcommand; for the file or folder of that name write "
                f"{ctx.parent.command_path} ./{name}",
                ctx,
            ) from None


class GroupWithCommand(SuggestingGroup):
    """A group that runs the command ``alone`` unless the first word names a subcommand.

    All words are then arguments of ``alone``, with options before or after its argument.
    """

    def __init__(self, alone: CommandAlone, commands: Mapping[str, Subcommand]) -> None:
        super().__init__(alone.name, commands=dict(commands), help=alone.help)
        self.alone = alone
        alone.subcommands = self.commands

    def called(self, words: list[str]) -> click.Command:
        """The group where ``words`` begin with a subcommand, else the command ``alone``."""
        return self if words and words[0] in self.commands else self.alone

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of the group where ``args`` name a subcommand, else that of ``alone``."""
        if args and args[0] in self.commands:
            return super().make_context(info_name, args, parent, **extra)
        if args and not args[0].startswith("-") and not extra.get("resilient_parsing"):
            close = get_close_matches(args[0], self.commands, cutoff=0.75)
            if close and not os.path.exists(args[0]):
                context = click.Context(self, parent, info_name)
                raise click.UsageError(f"{args[0]} is no file and no command; did you mean {close[0]}?", context)
        return self.alone.make_context(info_name, args, parent, **extra)


def complete_subcommands(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Completions for the first argument of a ``CommandAlone``: a file, or a subcommand."""
    names = ctx.command.subcommands if isinstance(ctx.command, CommandAlone) else ()
    items = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return [*items, CompletionItem(incomplete, type="file")]
