"""``skylark completion``: prints the script by which a shell completes ``skylark`` commands.

It also completes names of topics and groups, if the cluster responds at once
(:mod:`skylark.cli.command_helpers`).
"""

from __future__ import annotations

import click

from skylark.cli.cli_context import CliContext

PROGRAM = "skylark"
VARIABLE = "_SKYLARK_COMPLETE"  # click's name for a program called skylark
#: How to install the script in each shell.
PLACES = {
    "bash": 'eval "$(skylark completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(skylark completion zsh)"   # in ~/.zshrc, after compinit',
    "fish": "skylark completion fish > ~/.config/fish/completions/skylark.fish",
}


@click.command("completion", epilog='Example: eval "$(skylark completion bash)"')
@click.argument("shell", type=click.Choice(sorted(PLACES)))
@click.pass_obj
def command(context: CliContext, shell: str) -> None:
    """Print the shell completion script."""
    import sys

    from click.shell_completion import get_completion_class

    from skylark.cli.main import cli

    found = get_completion_class(shell)
    assert found is not None, shell
    script = found(cli, {}, PROGRAM, VARIABLE)
    # Not source(): for bash it runs bash to find its version, and prints to stdout.
    click.echo(script.source_template % script.source_vars())
    if sys.stdout.isatty():
        context.output.info(f"To install it: {PLACES[shell]}")
