"""``privctl completion``: the script by which a shell completes commands and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the script by which SHELL completes the commands and options of privctl.

    \b
    Example:
      privctl completion bash >> ~/.bashrc
      privctl completion zsh >> ~/.zshrc
      privctl completion fish > ~/.config/fish/completions/privctl.fish
    """
    completer = get_completion_class(shell)
    assert completer is not None  # click supports all three choices
    root = click.get_current_context().find_root().command
    click.echo(completer(root, {}, "privctl", "_PRIVCTL_COMPLETE").source())
