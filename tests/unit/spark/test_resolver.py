"""The resolver: its answers, how often it reads the log, and that it needs no Spark."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from skylark import ClientOptions, TxState
from skylark.admin.errors import NotFoundError
from skylark.core.errors import ConnectError
from skylark.spark.exactly_once.commit_protocol import StatusView
from skylark.spark.exactly_once.txn_log_records import BatchStatus, Decision, Winner
from skylark.spark.resolver import UNDECIDED_S, OutcomeLookup, Resolver
from skylark.testing.virtual_clock import VirtualClock

ATTEMPT = "00000000000000aa"
DECIDED = BatchStatus(
    decision=Decision(
        sink="s",
        batch=1,
        winners=(Winner(partition=0, attempt=ATTEMPT, count=1),),
        seen=0,
    )
)


class FakeLog:
    """A log with a given status of batches."""

    def __init__(self) -> None:
        self.status = BatchStatus()
        self.error: Exception | None = None
        self.looks: list[tuple[str, int]] = []

    async def read_status(self, sink: str, batch: int) -> StatusView:
        self.looks.append((sink, batch))
        if self.error is not None:
            raise self.error
        return StatusView(self.status, 0)


def lookup_over(log: Any, clock: VirtualClock) -> OutcomeLookup:
    return OutcomeLookup(log, clock)


async def test_the_status_of_a_decided_batch_is_cached() -> None:
    log, clock = FakeLog(), VirtualClock()
    log.status = DECIDED
    lookup = lookup_over(log, clock)
    for seq in range(100):
        assert await lookup.outcome(f"s:1:0:{ATTEMPT}:{seq}") is TxState.COMMIT
    assert await lookup.outcome("s:1:0:00000000000000bb:0") is TxState.ROLLBACK
    assert log.looks == [("s", 1)]


async def test_the_status_of_an_undecided_batch_is_read_again() -> None:
    log, clock = FakeLog(), VirtualClock()
    lookup = lookup_over(log, clock)
    for _ in range(100):
        assert await lookup.outcome(f"s:1:0:{ATTEMPT}:0") is TxState.UNKNOWN
    assert len(log.looks) == 1
    log.status = DECIDED
    await clock.advance(UNDECIDED_S)
    assert await lookup.outcome(f"s:1:0:{ATTEMPT}:0") is TxState.COMMIT
    assert len(log.looks) == 2


@pytest.mark.spec("spark.9.33")
async def test_the_log_is_not_read_for_foreign_half_messages() -> None:
    log = FakeLog()
    lookup = lookup_over(log, VirtualClock())
    for text in (None, "", "order-1", "s:1:0:nothex:0"):
        assert await lookup.outcome(text) is TxState.UNKNOWN
    assert log.looks == []


async def test_the_outcome_is_unknown_if_the_log_cannot_be_read() -> None:
    log, clock = FakeLog(), VirtualClock()
    resolver = Resolver(ClientOptions(namesrv="127.0.0.1:1"), clock)
    resolver._outcomes = lookup_over(log, clock)
    half: Any = SimpleNamespace(properties={"_SPARK_TX": f"s:1:0:{ATTEMPT}:0"})
    for error in (NotFoundError("there is no log"), ConnectError("the broker is down")):
        log.error = error
        assert await resolver.check(half) is TxState.UNKNOWN
    log.error, log.status = None, DECIDED
    assert await resolver.check(half) is TxState.COMMIT
    assert resolver.answers == {TxState.COMMIT: 1, TxState.ROLLBACK: 0, TxState.UNKNOWN: 2}


def test_it_runs_where_spark_and_arrow_are_not_installed() -> None:
    program = (
        "import sys\n"
        "for name in ('pyspark', 'pyarrow', 'numpy', 'pandas'):\n"
        "    sys.modules[name] = None\n"
        "import skylark.spark.resolver, skylark.spark.exactly_once.txn_admin\n"
        "import skylark.cli.txn_commands\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
