"""Completion of half messages, at brokers with and without END_HALVES."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from skylark.core.clock import Clock
from skylark.core.errors import BrokerError, ConnectionClosedError
from skylark.spark.exactly_once.half_message_completion import (
    PORTION_COUNT,
    CompletionCounts,
    HalfLocation,
    HalfMessageCompleter,
)
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.end_halves_body import decode_places, encode_codes

COMMIT, ROLLBACK = 8, 12


class FakeBroker:
    """Completes half messages once each, with or without END_HALVES; ``code_of``: the replies."""

    def __init__(self, clock: Clock, *, batches: bool = True) -> None:
        self.clock = clock
        self.batches = batches
        self.code_of: Callable[[int], int] = lambda number: 0
        self.lost = 0  # answers that do not arrive
        self.ended: list[int] = []  # queue offsets, in order
        self.requests: list[int] = []
        self.under_way = 0
        self.most_under_way = 0

    async def call(self, address: str, request: Command, timeout_s: float) -> Command:
        del timeout_s
        self.requests.append(request.code)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await self.clock.sleep(0.01)
        self.under_way -= 1
        answer = self._answer(request)
        if self.lost:
            self.lost -= 1
            raise ConnectionClosedError(f"{address} is gone")
        return answer

    def _answer(self, request: Command) -> Command:
        ext = request.ext or {}
        assert ext["producerGroup"] == "SPARK_TXN"
        if request.code == RequestCode.END_TRANSACTION:
            code = self._end(int(ext["tranStateTableOffset"]))
            return Command(code=code, remark="half already decided" if code == 1 else "busy")
        if not self.batches:
            return Command(code=3, remark=f"request type {request.code} not supported")
        codes = []
        for place in decode_places(request.body or b""):
            codes.append(self._end(place.queue_offset))
            if codes[-1] not in (0, 604):
                break
        return Command(code=0, body=encode_codes(codes))

    def _end(self, number: int) -> int:
        code = self.code_of(number)
        if code == 0 and number not in self.ended:
            self.ended.append(number)
        return code


class FakeClient:
    """What Ends needs of a SinkClient."""

    def __init__(self, broker: FakeBroker) -> None:
        self.clock = broker.clock
        self.link = broker
        self.namespace = self

    def wrap(self, name: str) -> str:
        return name

    async def master(self, queue: MessageQueue) -> str:
        return f"{queue.broker_name}:1"


def places(count: int, queues: int = 2) -> list[HalfLocation]:
    return [
        HalfLocation(
            MessageQueue(topic="T", broker_name="b", queue_id=number % queues),
            1_000 + number,
            number,
            f"{number:032X}",
        )
        for number in range(count)
    ]


async def passing(clock: VirtualClock, work: Coroutine[Any, Any, Any]) -> Any:
    """Do the work while time goes by."""
    task = asyncio.get_running_loop().create_task(work)
    while not task.done():
        await clock.advance(0.05)
    return task.result()


def made(
    *, batches: bool = True, verify: bool = False
) -> tuple[VirtualClock, FakeBroker, HalfMessageCompleter]:
    clock = VirtualClock()
    broker = FakeBroker(clock, batches=batches)
    client: Any = FakeClient(broker)
    return clock, broker, HalfMessageCompleter(client, 30.0, 30.0, verify=verify)


@pytest.mark.parametrize("ordered", [False, True])
async def test_many_half_messages_are_completed_in_few_requests(ordered: bool) -> None:
    clock, broker, ends = made()
    count = 4 * PORTION_COUNT + 10
    ended = await passing(clock, ends.commit(places(count), ordered=ordered))
    assert ended == CompletionCounts(count=count)
    assert sorted(broker.ended) == list(range(count))
    assert broker.requests == [RequestCode.END_HALVES] * (6 if ordered else 5)
    assert 1 < broker.most_under_way <= 4


@pytest.mark.parametrize("batches", [False, True])
async def test_order_within_a_queue_holds_after_a_failed_completion(batches: bool) -> None:
    clock, broker, ends = made(batches=batches)
    busy = [21, 21, 40]

    def code_of(number: int) -> int:
        if number in busy:
            busy.remove(number)
            return 2
        return 0

    broker.code_of = code_of
    ended = await passing(clock, ends.commit(places(100), ordered=True))
    assert ended.count == 100
    for queue in range(2):
        lane = [number for number in broker.ended if number % 2 == queue]
        assert lane == sorted(lane)
        assert len(lane) == 50


async def test_a_request_without_an_answer_is_repeated() -> None:
    clock, broker, ends = made()
    broker.lost = 3
    ended = await passing(clock, ends.commit(places(50), ordered=False))
    assert ended.count == 50
    assert sorted(broker.ended) == list(range(50))
    assert broker.requests == [RequestCode.END_HALVES] * 4


async def test_a_broker_that_does_not_know_it_gets_one_request_each() -> None:
    clock, broker, ends = made(batches=False)
    ended = await passing(clock, ends.commit(places(30), ordered=False))
    assert ended.count == 30
    assert broker.requests == [RequestCode.END_HALVES] + [RequestCode.END_TRANSACTION] * 30
    await passing(clock, ends.commit(places(30), ordered=True))
    assert broker.requests.count(RequestCode.END_HALVES) == 1  # it is not asked again


async def test_half_messages_after_their_immunity_are_handed_over() -> None:
    clock, broker, ends = made()
    broker.code_of = lambda number: 604 if number in (3, 4) else 0
    ended = await passing(clock, ends.commit(places(10), ordered=True))
    assert ended == CompletionCounts(count=8, handed_over=2)


async def test_a_refusal_is_raised_for_its_half_message() -> None:
    clock, broker, ends = made()
    broker.code_of = lambda number: 1 if number == 5 else 0
    with pytest.raises(BrokerError, match="half already"):
        await passing(clock, ends.commit(places(10, queues=1), ordered=True))
    assert broker.ended == [0, 1, 2, 3, 4]


async def test_a_failed_rollback_is_not_an_error() -> None:
    clock, broker, ends = made()
    broker.code_of = lambda number: 1 if number == 5 else 0
    await passing(clock, ends.roll_back(places(10, queues=1)))
    assert broker.ended == [0, 1, 2, 3, 4]
    broker.code_of = lambda number: 0
    await passing(clock, ends.roll_back(places(10)))
    assert sorted(broker.ended) == list(range(10))
