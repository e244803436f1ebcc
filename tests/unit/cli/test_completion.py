"""``skylark completion``, and what the shell is told while a person types."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete, ShellComplete

from skylark.cli.command_helpers import COMPLETION_S
from skylark.cli.main import cli
from skylark.core.clock import SystemClock
from tests.unit.cli.shell import NOWHERE, Shell, client_commands


def completed(*arguments: str, incomplete: str = "") -> list[str]:
    complete: ShellComplete = BashComplete(cli, {}, "skylark", "_SKYLARK_COMPLETE")
    return [item.value for item in complete.get_completions(list(arguments), incomplete)]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(shell: str, tmp_path: Path) -> None:
    script = Shell(NOWHERE).run("completion", shell).stdout
    assert f"_SKYLARK_COMPLETE={shell}_complete" in script
    if (program := shutil.which(shell)) is not None:
        path = tmp_path / "script"
        path.write_text(script)
        subprocess.run([program, "-n", str(path)], check=True, timeout=20)


def test_a_shell_that_is_not_known() -> None:
    result = Shell(NOWHERE).run("completion", "tcsh", code=2)
    assert "'tcsh' is not one of 'bash', 'fish', 'zsh'" in result.stderr


def test_the_program_answers_a_shell() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from skylark.cli.main import main; main()"],
        env={"_SKYLARK_COMPLETE": "bash_complete", "COMP_WORDS": "skylark to", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    assert (done.stdout, done.stderr) == ("plain,topic\n", "")


def test_commands_and_options() -> None:
    assert completed(incomplete="doc") == ["doctor"]
    assert "reset-offset" in completed("group")
    assert completed("topic", "set", "T", incomplete="--read") == ["--read-queues"]


def test_names_come_from_the_cluster(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("skylark.cli.command_helpers.COMPLETION_S", 10.0)  # of a busy machine
    shell.create("tab-orders", "tab-others")
    at = ("-n", shell.namesrv)
    assert completed("topic", "describe", *at, incomplete="tab-orde") == ["tab-orders"]
    assert completed("produce", *at, incomplete="tab") == ["tab-orders", "tab-others"]
    assert completed("consume", *at, incomplete="nosuch") == []
    shell.consume("tab-orders", "tab-billing")
    assert completed("group", "describe", *at, incomplete="tab") == ["tab-billing"]
    skip = ("group", "skip", "tab-billing")
    assert completed(*skip, *at, incomplete="tab-oth") == ["tab-others"]
    monkeypatch.setenv("SKYLARK_NAMESRV", shell.namesrv)
    assert completed("dlq", "show", incomplete="tab") == ["tab-billing"]


def test_a_cluster_that_does_not_answer_completes_nothing() -> None:
    assert completed("topic", "describe", "-n", NOWHERE) == []
    assert completed("topic", "describe", "-n", "nowhere:x") == []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        clock = SystemClock()
        begun = clock.monotonic()
        assert completed("group", "describe", "-n", f"127.0.0.1:{silent.getsockname()[1]}") == []
        assert clock.monotonic() - begun < COMPLETION_S + 5.0


def test_every_client_command_says_how_it_is_used() -> None:
    """Each has a line of help, options with help, and an example."""
    found = client_commands()
    assert len(found) == 30
    for name, command in found.items():
        assert command.get_short_help_str(200).endswith("."), name
        assert "Example" in (command.epilog or ""), name
        assert name in (command.epilog or ""), name
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (name, parameter.name)
        takes_namesrv = any("--namesrv" in parameter.opts for parameter in command.params)
        assert takes_namesrv or name == "completion"
