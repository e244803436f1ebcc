"""``skylark ping``: exit codes for containers, and who does not answer."""

from __future__ import annotations

import asyncio
import signal
import socket
from pathlib import Path

from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from tests.unit.cli.shell import NOWHERE, Shell
from tests.unit.cli.ups import run, up


def test_all_answer(shell: Shell) -> None:
    namesrv, broker = shell.json("ping", "-n", shell.namesrv)
    assert (namesrv["role"], namesrv["address"]) == ("namesrv", shell.namesrv)
    assert (broker["server"], broker["role"], broker["problem"]) == ("broker-a", "master", None)
    assert broker["answer_ms"] > 0
    assert [line.split()[1] for line in shell.lines("ping")] == ["ROLE", "namesrv", "master"]
    assert [row["role"] for row in shell.json("ping", "--namesrv-only")] == ["namesrv"]
    assert shell.run("ping", "--quiet").output == ""
    one_of_two = ("ping", "-n", f"{shell.namesrv};{NOWHERE}", "--timeout", "500ms")
    rows = shell.json(*one_of_two, code=3)
    assert [row["answer_ms"] is None for row in rows] == [True, False, False]
    assert "nothing listens there" in rows[0]["problem"]


def test_nobody_answers() -> None:
    result = Shell(NOWHERE).run("ping", code=3)
    assert result.stdout.splitlines()[1].split()[:3] == [NOWHERE, "namesrv", NOWHERE]
    assert Shell(NOWHERE).run("ping", "-q", code=3).output == ""


def test_one_broker_is_asked_without_a_name_server(shell: Shell) -> None:
    address = shell.json("ping")[1]["address"]
    (row,) = Shell(NOWHERE).json("ping", "--broker", address)
    assert (row["server"], row["role"], row["problem"]) == (address, "broker", None)
    (row,) = shell.json("ping", "--broker", NOWHERE, code=3)
    assert "nothing listens there" in row["problem"]
    assert shell.run("ping", "--quiet", "--broker", NOWHERE, code=3).output == ""
    shell.run("ping", "--broker", address, "-n", shell.namesrv, code=2)
    shell.run("ping", "--broker", "nowhere", code=2)


def test_a_server_that_hangs_is_given_up(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        (row,) = Shell(address).json("ping", "--timeout", "0.2", code=3)
        assert row["answer_ms"] is None
    with up(tmp_path, "--ephemeral") as running:
        running.process.send_signal(signal.SIGSTOP)
        try:
            done = run(tmp_path, "ping", "-n", running.namesrv, "--timeout", "300ms")
        finally:
            running.process.send_signal(signal.SIGCONT)
        assert done.returncode == 3


async def test_a_name_server_without_brokers(tmp_path: Path) -> None:
    server = NameServer(NamesrvConfig(listen_port=0, kv_config_path=tmp_path / "kv.json"))
    await server.start()
    try:
        shell = Shell(str(server.address))
        alone = await asyncio.to_thread(shell.run, "ping", code=3)
        assert alone.stderr == "no broker is registered\n"
        await asyncio.to_thread(shell.run, "ping", "--namesrv-only")
    finally:
        await server.stop()


def test_wrong_usage() -> None:
    for timeout in ("soon", "0", "0ms"):
        assert "--timeout" in Shell(NOWHERE).run("ping", "--timeout", timeout, code=2).stderr
    assert "nowhere:x" in Shell(NOWHERE).error("ping", "-n", "nowhere:x", code=2)
