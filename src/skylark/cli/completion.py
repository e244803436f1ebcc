"""``skylark completion``: the script that lets a shell complete commands, options, topics, groups.

Names of topics and groups come from the cluster if it answers at once
(:mod:`skylark.cli.command_helpers`).
"""

from __future__ import annotations

import click

from skylark.cli.cli_context import CliContext

PROGRAM = "skylark"
VARIABLE = "_SKYLARK_COMPLETE"  # click's name for a program called skylark
#: Where each shell looks.
PLACES = {
    "bash": 'eval "$(skylark completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(skylark completion zsh)"   # in ~/.zshrc, after compinit',
    "fish": "skylark completion fish > ~/.config/fish/completions/skylark.fish",
}


@click.command("completion", epilog='Example: eval "$(skylark completion bash)"')
@click.argument("shell", type=click.Choice(sorted(PLACES)))
@click.pass_obj
def command(context: CliContext, shell: str) -> None:
    """Print the script that completes commands in a shell."""
    import sys

    from click.shell_completion import get_completion_class

    from skylark.cli.main import cli

    found = get_completion_class(shell)
    assert found is not None, shell
    script = found(cli, {}, PROGRAM, VARIABLE)
    # Not source(): that of bash runs bash to see how old it is, and says so on stdout.
    click.echo(script.source_template % script.source_vars())
    if sys.stdout.isatty():
        context.output.note(f"Use it so: {PLACES[shell]}")
