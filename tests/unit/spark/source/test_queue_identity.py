"""Checks of queue identities; the messages of the cluster are a table."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from skylark.client.errors import Missing, MissingError
from skylark.core.errors import BrokerError, ConnectError
from skylark.spark.source import queue_identity
from skylark.spark.source.queue_bounds import Bounds, ClusterSnapshot
from skylark.spark.source.queue_identity import COUNT_MAX, IdentityChecker
from skylark.spark.source.source_options import source_options
from skylark.spark.source.start_offsets import Sample
from skylark.spark.source.stream_offset import QueueIdentity, StreamOffset
from skylark.wire.bodies.common_body import MessageQueue
from tests.unit.spark.source.fake_cluster import FakeSession, queue

OPTIONS = source_options({"nameserver": "h:1", "topic": "T"}, streaming=True, environ={})
OLD_MS, NEW_MS = 1000, 2000


class Messages:
    """The time of all messages of each queue, or the error of a pull from it."""

    def __init__(self) -> None:
        self.times: dict[MessageQueue, int | Exception] = {}
        self.pulls: Counter[MessageQueue] = Counter()

    async def sample(
        self, _: object, __: str, queue: MessageQueue, start: int, end: int, group: str
    ) -> Sample:
        assert (start, end, group) == (9, 10, OPTIONS.group)
        self.pulls[queue] += 1
        found = self.times.get(queue, OLD_MS)
        if isinstance(found, Exception):
            raise found
        return Sample([start], [found], [100])


@pytest.fixture
def messages(monkeypatch: pytest.MonkeyPatch) -> Messages:
    messages = Messages()
    monkeypatch.setattr(queue_identity, "sample", messages.sample)
    return messages


def checker() -> IdentityChecker:
    return IdentityChecker(FakeSession(), OPTIONS)  # type: ignore[arg-type]


def state(count: int, high: int = 30) -> tuple[StreamOffset, ClusterSnapshot]:
    """So many queues that were read up to offset 10, and that end at ``high`` now."""
    queues = [queue(number) for number in range(count)]
    snapshot = ClusterSnapshot(
        bounds={each: Bounds(0, high, NEW_MS) for each in queues},
        addresses={"broker-a": {0: "a:1"}},
    )
    identities = dict.fromkeys(queues, QueueIdentity(10, OLD_MS))
    return StreamOffset(dict.fromkeys(queues, 10), identities=identities), snapshot


def test_queues_are_compared(messages: Messages) -> None:
    messages.times[queue(1)] = NEW_MS
    report = asyncio.run(checker().check(*state(3)))
    assert (set(report.recreated), set(report.unchecked)) == ({queue(1)}, set())


@pytest.mark.parametrize("error", [ConnectError("no"), TimeoutError(), BrokerError("busy", code=2)])
def test_a_queue_that_cannot_be_read_now_keeps_its_witness(
    messages: Messages, error: Exception
) -> None:
    """A new one would be that of a recreated topic, which nobody would notice any more."""
    messages.times[queue(0)] = error
    report = asyncio.run(checker().check(*state(2)))
    assert (set(report.recreated), set(report.unchecked)) == (set(), {queue(0)})


def test_a_witness_that_has_expired_says_nothing(messages: Messages) -> None:
    messages.times[queue(0)] = MissingError(
        Missing(queue=queue(0), wanted=9, available=20, count=11)
    )
    report = asyncio.run(checker().check(*state(2)))
    assert (set(report.recreated), set(report.unchecked)) == (set(), set())


def test_a_queue_is_read_once_in_a_check_and_in_turn(messages: Messages) -> None:
    many = checker()
    begin, snapshot = state(3 * COUNT_MAX)
    asyncio.run(many.check(begin, snapshot))
    assert set(messages.pulls.values()) == {1}
    assert len(messages.pulls) == 3 * COUNT_MAX  # the first check of a run
    for turn in range(3):
        messages.pulls.clear()
        report = asyncio.run(many.check(begin, snapshot))
        first = turn * COUNT_MAX
        assert messages.pulls == {queue(first + n): 1 for n in range(COUNT_MAX)}
        assert len(report.unchecked) == 2 * COUNT_MAX


def test_planned_batches_are_checked_in_all_their_queues(messages: Messages) -> None:
    end, snapshot = state(3 * COUNT_MAX)
    snapshot.bounds[queue(5)] = Bounds(0, 9, NEW_MS)
    messages.times[queue(70)] = NEW_MS
    messages.times[queue(71)] = BrokerError("refused", code=16)
    found = asyncio.run(checker().recreated_since(end, list(end.queues), snapshot))
    assert set(found) == {queue(5), queue(70)}
    assert set(messages.pulls) == set(end.queues) - {queue(5)}


def test_planned_batches_wait_for_a_broker(messages: Messages) -> None:
    end, snapshot = state(1)
    messages.times[queue(0)] = ConnectError("no")
    with pytest.raises(ConnectError):  # the caller tries again
        asyncio.run(checker().recreated_since(end, list(end.queues), snapshot))
