"""``--output`` and ``-n`` may stand before a command, between its words, and after it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner, Result

from skylark.cli.main import cli
from skylark.cli.output import FORMATS
from tests.unit.cli.shell import NOWHERE, Shell


def invoke(*arguments: str) -> Result:
    """A command that finds a cluster only by ``-n``."""
    return CliRunner().invoke(cli, arguments, prog_name="skylark", env={"SKYLARK_NAMESRV": NOWHERE})


@pytest.mark.parametrize("place", [0, 1, 2])
def test_before_between_and_after(shell: Shell, place: int) -> None:
    words = ["topic", "list"]
    words[place:place] = ["--output", "json", "-n", shell.namesrv]
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    assert isinstance(json.loads(result.stdout), list)


def test_the_last_one_counts(shell: Shell) -> None:
    result = invoke(
        *("--output", "json", "-n", NOWHERE),
        *("ping", "--output", "table", "-n", shell.namesrv),
    )
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("SERVER ")


def test_a_usage_error_after_the_command() -> None:
    result = invoke("topic", "list", "--output", "xml")
    assert result.exit_code == 2
    assert "'xml' is not one of 'table', 'json'" in result.stderr


@pytest.mark.parametrize("words", [("down",), ("completion", "bash"), ("store", "check", ".")])
def test_a_name_server_for_a_command_that_asks_none(words: tuple[str, ...]) -> None:
    result = invoke("-n", NOWHERE, *words)
    assert (result.exit_code, result.stdout) == (2, "")
    path = " ".join(word for word in words if word not in ("bash", "."))
    assert f"skylark {path} uses no name server: leave out -n" in result.stderr


def test_a_broker_takes_the_name_server_from_before(shell: Shell) -> None:
    shown = invoke("-n", "10.1.2.3:9876", "broker", "-p")
    assert "namesrvAddr=10.1.2.3:9876\n" in shown.stdout
    shown = invoke("-n", "10.1.2.3:9876", "broker", "-p", "-n", "10.1.2.4:9876")
    assert "namesrvAddr=10.1.2.4:9876\n" in shown.stdout


def leaves(group: click.Group, *words: str) -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with the words that call it."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from leaves(command, *words, name)
        else:
            yield " ".join([*words, name]), command


def test_every_command_takes_them_after_its_words() -> None:
    without_namesrv = set()
    for path, command in leaves(cli):
        options = {name: each for each in command.params for name in each.opts}
        output = options["--output"].type
        assert isinstance(output, click.Choice), path
        assert tuple(output.choices) == FORMATS, path
        if "-n" not in options:
            without_namesrv.add(path)
    assert without_namesrv == {
        *("completion", "demo", "down", "up"),
        *(
            f"pipeline {name}" for name in ("check", "plan", "reset", "run", "status")
        ),  # in the file
        *(f"store {name}" for name in ("check", "dump", "rebuild-config")),
    }
