"""Groups of commands that suggest the nearest name for a mistyped one, with every click that privctl runs on."""

from __future__ import annotations

from difflib import get_close_matches

import click

from privctl.cli.configured import apply_settings


class SuggestingGroup(click.Group):
    """A group whose error on an unknown command names those that are spelled much like it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does. click itself suggests from 8.4 on, and only commands that are loaded."""
        name = args[0]
        if not name.startswith("-") and not ctx.resilient_parsing and self.get_command(ctx, name) is None:
            close = get_close_matches(name, self.list_commands(ctx))
            advice = (
                f"did you mean {' or '.join(close)}?" if close else f"choose from {', '.join(self.list_commands(ctx))}"
            )
            ctx.fail(f"{ctx.command_path} has no command {name!r}; {advice}")
        found, command, rest = super().resolve_command(ctx, args)
        if found is not None and command is not None and not ctx.resilient_parsing:
            apply_settings(ctx, found, command)
        return found, command, rest
