"""Real clients that do what a test says: the Java programs and the one for the C++ client.

    with java_client(CURRENT) as client:
        client.call("producer", name="p", group="G", namesrv=address)
        client.call("send", name="p", topic="T", how="sync", count=100)

A client is one process with any number of producers and consumers, each known by its name. The
commands are those of ``java/ClientDriver.java``; ``cpp_driver.py`` has the same ones. What happens
in the process by itself, above all deliveries, is collected here while anybody waits for it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from tests.interop.java import JavaProgram, Record
from tests.interop.process import ManagedProcess, ProcessError, poll_until
from tests.interop.toolchain import CURRENT

T = TypeVar("T")

#: How long a count must stay what it is to be the final one.
SETTLE_S: Final = 0.3
_CALL_TIMEOUT_S: Final = 60.0


class ClientError(Exception):
    """A command failed inside the client; the text is the client's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """One message as a consumer was given it; times in milliseconds."""

    consumer: str
    topic: str
    queue: int
    offset: int
    keys: str
    tags: str | None
    body: str  # up to its first space, which is its key
    size: int
    times: int  # deliveries before this one
    born: int
    at: int
    id: str
    properties: dict[str, str]

    @property
    def number(self) -> int:
        return int(self.keys.rpartition("-")[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One message that was acknowledged to a sender in the background."""

    producer: str
    number: int
    queue: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One question about a transaction, and its answer."""

    keys: str
    topic: str
    times: str | None
    answer: str
    id: str | None


class Client:
    """One process with a real client, and what it has reported."""

    def __init__(self, process: ManagedProcess) -> None:
        self.process = process
        self.deliveries: list[Delivery] = []
        self.sent: list[Sent] = []
        self.checked: list[Checked] = []

    def call(self, command: str, **options: str | int) -> Any:
        """Carry out one command; its result. Raises :class:`ClientError` if it fails."""
        words = [command, *(f"{name}={value}" for name, value in options.items())]
        if any("\t" in word or "\n" in word for word in words):
            raise ValueError(f"a word may not hold a tab or a line break: {words}")
        self.process.write_line("\t".join(words))
        deadline = time.monotonic() + _CALL_TIMEOUT_S
        while (line := self.process.next_line(deadline - time.monotonic())) is not None:
            record = json.loads(line)
            if record["event"] == "done":
                return record["result"]
            if record["event"] == "failed":
                raise ClientError(record["cause"])
            self._note(record)
        raise self.process.failure(f"ended in {words}")

    def collect(self) -> None:
        """Take what has been reported up to now."""
        for line in self.process.waiting_lines():
            self._note(json.loads(line))

    def crash(self) -> None:
        """Kill the process and take what it had reported until then."""
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(_CALL_TIMEOUT_S)
        self.collect()

    def got(self, *consumers: str) -> list[Delivery]:
        """What these consumers were given up to now, in order of arrival."""
        self.collect()
        return [each for each in self.deliveries if each.consumer in consumers]

    def wait(self, check: Callable[[], object], *, timeout_s: float, what: str) -> None:
        """Wait until ``check`` is true; the process's logs are in the error."""
        try:
            poll_until(check, timeout_s=timeout_s, what=what)
        except TimeoutError as error:
            raise self.process.failure(str(error)) from None

    def wait_got(
        self, consumers: Collection[str], count: int, *, timeout_s: float
    ) -> list[Delivery]:
        """Wait until these consumers were given ``count`` messages together, and then no more."""
        seen = -1

        def complete() -> bool:
            nonlocal seen
            seen = len(self.got(*consumers))
            return seen >= count

        try:
            poll_until(complete, timeout_s=timeout_s, what=f"{count} deliveries")
        except TimeoutError:
            raise self.process.failure(f"{consumers}: {seen} deliveries of {count}") from None
        settled = time.monotonic() + SETTLE_S
        while True:
            found = self.got(*consumers)
            assert len(found) == count, f"{len(found)} deliveries instead of {count}"
            if time.monotonic() >= settled:
                return found
            time.sleep(SETTLE_S / 10)

    def _note(self, record: Record) -> None:
        kind = str(record.pop("event"))
        if kind == "got":
            self.deliveries.append(_built(Delivery, record))
        elif kind == "sent":
            self.sent.append(_built(Sent, record))
        elif kind == "checked":
            self.checked.append(_built(Checked, record))
        else:
            raise ProcessError(f"{self.process.name} reported {kind}: {record}")


def _built(kind: type[T], record: Record) -> T:
    return kind(**{each.name: record[each.name] for each in fields(kind)})  # type: ignore[arg-type]


class _JavaDriver(JavaProgram):
    def wait_ready(self) -> None:
        self.wait_for_line("ready")


@contextmanager
def java_client(
    version: str, *, serialize: str = "JSON", folder: Path | None = None
) -> Iterator[Client]:
    """A Java client of one release; ``serialize`` is its rocketmq.serialize.type."""
    program = "ClientDriver5" if version == CURRENT else "ClientDriver"
    process = _JavaDriver(program, {"serialize": serialize}, version=version, folder=folder)
    with process:
        yield Client(process)
