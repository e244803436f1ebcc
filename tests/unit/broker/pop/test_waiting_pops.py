"""Pops that wait: who wakes, the limits, and what the waiting of many costs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from skylark.broker.api import Pending
from skylark.broker.pop.waiting_pops import WaitingPops
from skylark.broker.pull.held_request_runner import HeldRequest
from skylark.wire.codes import RequestCode
from tests.unit.broker.pop.pop_client import PopClient, fill, popping


async def test_a_message_wakes_one_pop_of_each_group(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        other = PopClient(client.world, group="h")
        waiting = [await client.begin(), await client.begin(), await other.begin()]
        await fill(client, 1)
        await client.world.clock.drain()
        assert [task.done() for task in waiting] == [True, False, True]
        await fill(client, 1)
        await client.world.clock.drain()
        assert waiting[1].done()
        for task in waiting:
            answer = await task
            assert (answer.code, answer.remark) == (0, "FOUND")


async def test_messages_that_come_together_are_taken_by_the_first(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        waiting = [await client.begin(maxMsgNums=2, invisibleTime=60_000) for _ in range(3)]
        await asyncio.gather(*(client.world.send(body=b"%d" % index) for index in range(4)))
        await client.world.clock.drain()
        done = [task for task in waiting if task.done()]
        assert len(done) <= 3
        assert sum(len(client.popped(task.result())) for task in done) == 4
        for task in waiting:
            if not task.done():
                await client.world.clock.advance(16)
                assert (await task).code == 210


async def test_what_is_left_over_wakes_the_next(tmp_path: Path) -> None:
    async with popping(tmp_path, 2) as client:
        first = await client.begin(queueId=0, maxMsgNums=1, invisibleTime=60_000)
        second = await client.begin(queueId=0, maxMsgNums=1, invisibleTime=60_000)
        elsewhere = await client.begin(queueId=1, maxMsgNums=1)
        await fill(client, 2)
        await client.world.clock.drain()
        assert (first.done(), second.done(), elsewhere.done()) == (True, True, False)
        await client.world.clock.advance(16)
        assert (await elsewhere).code == 210


async def test_only_a_message_that_passes_the_filter_wakes(tmp_path: Path) -> None:
    async with popping(tmp_path, popLongPollingForceNotifyInterval="0") as client:
        waiting = await client.begin(exp="A")
        await fill(client, 1, properties="TAGS\x01B\x02")
        await client.world.clock.drain()
        assert not waiting.done()
        await fill(client, 1, properties="TAGS\x01A\x02")
        (message,) = client.popped(await waiting)
        assert message.offset == 1
        await client.ack_all([message])
        assert client.committed() == 2


async def test_now_and_then_a_message_wakes_whatever_the_filter(tmp_path: Path) -> None:
    async with popping(tmp_path, popLongPollingForceNotifyInterval="2") as client:
        waiting = await client.begin(exp="A")
        await fill(client, 3, properties="TAGS\x01B\x02")
        await client.world.clock.drain()
        assert not waiting.done()
        assert client.committed() == 3  # the group has passed them over
        await client.world.clock.advance(16)
        assert (await waiting).code == 210


async def test_too_many_waiting_pops(tmp_path: Path) -> None:
    async with popping(tmp_path, popPollingSize="1", maxPopPollingSize="3") as client:
        waiting = [await client.begin(), await client.begin()]
        answer = await client.answer(pollTime=15_000)
        assert (answer.code, answer.remark) == (209, "NO_MESSAGE_IN_QUEUE")
        waiting.append(await PopClient(client.world, group="h").begin())
        assert (await PopClient(client.world, group="i").answer(pollTime=15_000)).code == 209
        count = await client.world.call(
            RequestCode.POLLING_INFO, {"consumerGroup": "g", "topic": "T", "queueId": "-1"}
        )
        assert (count.ext or {}) == {"pollingNum": "2"}
        await client.world.clock.advance(16)
        assert [(await task).code for task in waiting] == [210, 210, 210]
        assert len(client.world.features.pop.service.pops.held) == 0
        assert client.world.features.storage.awaited_topics == {}


async def test_a_pop_that_comes_too_late_is_answered_at_once(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 1)
        born = client.world.clock.now_ms() - 2_000
        answer = await client.answer(bornTime=born, pollTime=1_000)
        assert (answer.code, answer.body) == (210, None)
        assert "timeout too much" in (answer.remark or "")
        assert len(await client.pop(bornTime=None)) == 1


async def test_pops_of_a_client_that_is_gone_take_nothing(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        waiting = await client.begin()
        await client.world.client.close()
        await client.world.clock.drain()
        assert isinstance(waiting.exception(), Exception)
        assert len(client.world.features.pop.service.pops.held) == 0


async def test_waiting_pops_are_answered_at_a_stop(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        waiting = await client.begin()
        await client.world.broker.stop()
        assert (await waiting).code == 210


def test_the_order_and_the_removal_of_waiting_pops() -> None:
    awaited: dict[str, int] = {}
    waiting = WaitingPops(awaited)
    waiting.count_max, waiting.per_key_max = 10, 10
    held = [_held(name) for name in "abc"]
    first, second, third = (
        waiting.add("T", "g", queue_id, each, due_ms=due_ms)
        for each, queue_id, due_ms in zip(held, (-1, -1, 3), (30, 20, 10), strict=True)
    )
    assert first is not None
    assert second is not None
    assert third is not None
    assert sorted(awaited) == ["%RETRY%g+T", "%RETRY%g_T", "T"]
    assert waiting.consumers("%RETRY%g_T") == [("T", "g")]
    assert list(waiting.queues("T", "g")) == [-1, 3]
    assert waiting.next_due() == 10
    woken: object = waiting.wake_one("T", "g", -1)
    assert woken is held[0]
    assert waiting.remove(second)
    assert not waiting.remove(second)
    assert waiting.take_due(10) == [held[2]]
    assert (len(waiting), awaited, waiting.next_due()) == (0, {}, None)


def _held(name: str) -> HeldRequest:
    peer: Any = name
    pending: Pending[Any] = Pending()
    return HeldRequest(peer, None, pending)
