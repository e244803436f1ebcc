"""Waiting for servers that do not answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from skylark.client.metrics import default_registry
from skylark.core.errors import (
    ConfigError,
    ConnectError,
    NoNameServerError,
    NoRouteError,
    RequestTimeoutError,
    SkylarkError,
    SystemBusyError,
    TooManyRequestsError,
)
from skylark.spark.outages import OutageError, is_outage, ride_out
from skylark.testing.virtual_clock import VirtualClock


class Server:
    """Answers from a moment on."""

    def __init__(self, clock: VirtualClock, away_s: float, error: Exception) -> None:
        self._clock = clock
        self._until = clock.monotonic() + away_s
        self._error = error
        self.asked = 0

    async def ask(self) -> str:
        self.asked += 1
        if self._clock.monotonic() < self._until:
            raise self._error
        return "answer"


async def passing(clock: VirtualClock, *works: Awaitable[str]) -> list[str | BaseException]:
    """Do the work while time goes by."""
    task = asyncio.gather(*works, return_exceptions=True)
    while not task.done():
        await clock.advance(0.5)
    return task.result()


def value(name: str) -> float:
    lines = default_registry().render().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


async def test_an_outage_is_waited_out_and_shown_once(
    caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = VirtualClock()
    servers = [Server(clock, 65, NoNameServerError("no name server responds")) for _ in range(5)]
    with caplog.at_level(logging.WARNING):
        found = await passing(clock, *(ride_out(clock, 300, server.ask) for server in servers))
    assert found == ["answer"] * 5
    first, last = (record.getMessage() for record in caplog.records)
    assert first == "waiting up to 300 s for the cluster: no name server responds"
    assert last.startswith("stopped waiting for the cluster after 6")
    lines = capsys.readouterr().err.splitlines()
    assert 4 <= len(lines) <= 6
    assert lines[0].startswith("skylark: waiting for the cluster, 1")
    assert " of 300 s: no name server responds" in lines[0]
    assert value("skylark_spark_outages_total") >= 1
    assert value("skylark_spark_outage_seconds") == 0
    assert all(server.asked < 60 for server in servers)


async def test_a_longer_outage_is_one_clear_error() -> None:
    clock = VirtualClock()
    began = clock.monotonic()
    away = Server(clock, 1_000, ConnectError("nothing listens at h:1"))
    (error,) = await passing(clock, ride_out(clock, 300, away.ask))
    assert isinstance(error, OutageError)
    assert str(error).startswith("the cluster did not answer for 300 s: nothing listens at h:1")
    assert "outageTimeout=30m waits longer" in str(error)
    assert 290 < clock.monotonic() - began <= 301


async def test_a_short_wait_raises_the_error_itself() -> None:
    clock = VirtualClock()
    away = Server(clock, 9, error := ConnectError("nothing listens at h:1"))
    assert await passing(clock, ride_out(clock, 0, away.ask)) == [error]
    assert away.asked == 1


async def test_other_errors_are_not_waited_out() -> None:
    clock = VirtualClock()
    wrong = Server(clock, 1, ConfigError("wrong"))
    (error,) = await passing(clock, ride_out(clock, 300, wrong.ask))
    assert isinstance(error, ConfigError)
    assert wrong.asked == 1


@pytest.mark.parametrize(
    ("make", "is_one"),
    [
        (ConnectError, True),
        (RequestTimeoutError, True),
        (NoNameServerError, True),
        (NoRouteError, True),
        (TooManyRequestsError, False),  # this process is too fast
        (lambda text: SystemBusyError(text, code=2), False),
        (ConfigError, False),
    ],
)
def test_what_an_outage_is(make: Callable[[str], SkylarkError], is_one: bool) -> None:
    assert is_outage(make("x")) is is_one
