"""Commands run in this process, at a cluster in a process of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click
from click.testing import CliRunner, Result

from skylark.admin.admin_client import Admin
from skylark.cli.main import cli
from skylark.client.core.client_options import ClientOptions
from skylark.core.clock import SystemClock
from skylark.sync import Producer
from tests.unit.admin.sites import bury

T = TypeVar("T")

#: Nobody listens there.
NOWHERE = "127.0.0.1:1"
WAIT_S = 20.0


class Shell:
    """Runs ``skylark`` with the name server of one cluster in its environment."""

    def __init__(self, namesrv: str) -> None:
        self.namesrv = namesrv
        self.options = ClientOptions(namesrv=namesrv)

    def run(self, *arguments: str, code: int = 0, answer: str | None = None) -> Result:
        """Run a command that ends with ``code``; ``answer`` is what a person types."""
        result = CliRunner().invoke(
            cli, arguments, input=answer, prog_name="skylark", env={"SKYLARK_NAMESRV": self.namesrv}
        )
        assert result.exit_code == code, (arguments, result.output, result.exception)
        assert "Traceback" not in result.output
        return result

    def lines(self, *arguments: str) -> list[str]:
        """What a person sees."""
        return self.run(*arguments).stdout.splitlines()

    def json(self, *arguments: str, code: int = 0) -> Any:
        """What a program gets."""
        return json.loads(self.run("--output", "json", *arguments, code=code).stdout)

    def error(self, *arguments: str, code: int) -> str:
        """The one sentence with which a command fails."""
        result = self.run(*arguments, code=code)
        assert result.stdout == ""
        assert result.stderr.startswith("Error: ")
        assert len(result.stderr.splitlines()) == 1
        return result.stderr.removeprefix("Error: ").rstrip()

    def produce(self, topic: str, *arguments: str) -> list[dict[str, Any]]:
        done = self.run("--output", "json", "produce", topic, *arguments)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def consume(self, topic: str, group: str, *arguments: str) -> list[str]:
        """Bodies that a member of a group gets until nothing comes any more."""
        given = ("--group", group, "--no-follow", "--format", "body", *arguments)
        return self.lines("consume", topic, *given)

    def ask(self, operation: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
        """What an admin client says."""

        async def run() -> T:
            async with Admin(self.options) as admin:
                return await operation(admin)

        return asyncio.run(run())

    def bury(self, topic: str, group: str, *ids: str) -> None:
        """Let a group give messages up."""

        async def give_up(admin: Admin) -> None:
            for message_id in ids:
                await bury(admin, group, await admin.messages.get(message_id, topic))

        self.ask(give_up)

    def producer(self) -> Producer:
        return Producer("pg", self.options, batching=False)

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Wait until something holds, looking again and again."""
        clock = SystemClock()
        deadline = clock.monotonic() + WAIT_S
        while not is_so():
            assert clock.monotonic() < deadline, what

    def create(self, *topics: str, queue_count: int = 1) -> None:
        """Make topics."""
        for topic in topics:
            self.run("topic", "create", topic, "--queues", str(queue_count))


def client_commands() -> dict[str, click.Command]:
    """The commands that talk to a cluster as its clients do, by name: ``topic create``, ..."""

    def leaves(name: str, command: click.Command) -> dict[str, click.Command]:
        if not isinstance(command, click.Group):
            return {name: command}
        context = click.Context(command)
        found: dict[str, click.Command] = {}
        for below in command.list_commands(context):
            if (leaf := command.get_command(context, below)) is not None:
                found |= leaves(f"{name} {below}", leaf)
        return found

    families = (
        "apply", "cluster", "completion", "consume", "dlq", "doctor", "group", "message", "ping",
        "produce", "topic",
    )  # fmt: skip
    found: dict[str, click.Command] = {}
    for family in families:
        command = cli.get_command(click.Context(cli), family)
        assert command is not None
        found |= leaves(family, command)
    return found
