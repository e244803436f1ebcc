"""The address of a broker is given where a name server belongs: its answer tells them apart."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from skylark.cli.main import cli
from tests.unit.cli.shell import Shell

COMMANDS = ("topic list", "topic create x", "produce x y", "consume x --no-follow", "cluster list")


@pytest.fixture(scope="module")
def broker(shell: Shell) -> str:
    (found,) = shell.json("cluster", "list")
    return str(found["address"])


@pytest.mark.parametrize("command", COMMANDS)
def test_a_broker_is_named(shell: Shell, broker: str, command: str) -> None:
    asked = shell.error(*command.split(), "-n", broker, code=3)
    assert f"{broker} answers like a broker, not like a name server" in asked
    assert "-n HOST:PORT" in asked


def test_a_right_address_beside_it_serves(shell: Shell, broker: str) -> None:
    for addresses in (f"{broker};{shell.namesrv}", f"{shell.namesrv};{broker}"):
        assert shell.json("topic", "list", "-n", addresses) == shell.json("topic", "list")


@pytest.mark.parametrize(("command", "code"), [("ping", 3), ("doctor", 0)])
def test_checks_say_it_too(broker: str, command: str, code: int) -> None:
    result = CliRunner().invoke(cli, [command, "-n", broker])
    assert f"{broker} answers like a broker, not like a name server" in result.stdout
    assert result.exit_code in (code, 1)  # doctor finds the ports of the cluster in use, too
