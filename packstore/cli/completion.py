"""``packstore completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class


@click.command(short_help="Print a completion script for a shell.")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script that lets SHELL complete packstore's commands, options, values and paths.

    Append it to the file that the shell reads at start, then open a new shell.

    \b
    Examples:
      packstore completion bash >> ~/.bashrc
      packstore completion zsh >> ~/.zshrc
      packstore completion fish > ~/.config/fish/completions/packstore.fish
    """
    complete = get_completion_class(shell)
    assert complete is not None
    click.echo(complete(context.find_root().command, {}, "packstore", "_PACKSTORE_COMPLETE").source())
