"""Ordered pops: the machine, its file, and pops of a whole broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.broker.pop.order_pop import IGNORED, ILLEGAL, OrderPops
from skylark.store.config_tables import OrderInfo
from skylark.wire.bodies.pop_body import encode_bit_set
from skylark.wire.codes import RequestCode
from skylark.wire.pop_handle import decode_order_counts
from tests.unit.broker.pop.pop_client import fill, popping
from tests.unit.broker.pop.test_pop_requests import batch

QUEUE = ("T", "g", 0)


def popped(
    pops: OrderPops, *offsets: int, at_ms: int = 1_000, attempt: str | None = None
) -> object:
    return pops.popped(
        *QUEUE, offsets, pop_time_ms=at_ms, invisible_ms=500, attempt_id=attempt, now_ms=at_ms
    )


def test_a_queue_is_blocked_until_all_is_done_or_visible() -> None:
    pops = OrderPops()
    assert not pops.is_blocked(*QUEUE, 0)
    assert popped(pops, 5, 6, 8) == ({}, 0)
    assert pops.is_blocked(*QUEUE, 1_400)
    assert pops.free_at_ms(*QUEUE, 1_400) == 1_500
    assert not pops.is_blocked(*QUEUE, 1_500)
    assert pops.ack(*QUEUE, 6, 1_000, -1) == 5
    assert pops.ack(*QUEUE, 5, 1_000, -1) == 8
    assert pops.in_hand(*QUEUE) == 1
    assert pops.ack(*QUEUE, 8, 1_000, -1) == 9
    assert not pops.is_blocked(*QUEUE, 1_001)
    assert pops.free_at_ms(*QUEUE, 1_001) is None


def test_acks_that_do_not_fit() -> None:
    pops = OrderPops()
    # Nothing is known, a crash may have lost it: only the message at the committed offset is done.
    assert pops.ack(*QUEUE, 7, 1_000, 7) == 8
    assert pops.ack(*QUEUE, 7, 1_000, 5) == IGNORED
    assert pops.ack(*QUEUE, 7, 1_000, -1) == IGNORED
    popped(pops, 5)
    assert pops.ack(*QUEUE, 5, 999, -1) == IGNORED
    assert pops.ack(*QUEUE, 7, 1_000, -1) == ILLEGAL
    assert not pops.change_visible_time(*QUEUE, 7, 1_000, 2_000)
    assert not pops.change_visible_time(*QUEUE, 5, 999, 2_000)
    assert not pops.change_visible_time("U", "g", 0, 5, 1_000, 2_000)


def test_the_same_attempt_is_not_blocked_and_counts_once() -> None:
    pops = OrderPops()
    popped(pops, 5, 6, attempt="a")
    assert pops.is_blocked(*QUEUE, 1_100, attempt_id="b")
    assert not pops.is_blocked(*QUEUE, 1_100, attempt_id="a")
    assert popped(pops, 5, 6, at_ms=1_100, attempt="a") == ({}, 0)
    assert popped(pops, 5, 6, 7, at_ms=2_000, attempt="b") == ({5: 1, 6: 1}, 0)
    assert popped(pops, 5, 6, 7, at_ms=3_000, attempt="b") == ({5: 1, 6: 1}, 0)
    assert popped(pops, 5, 6, 7, at_ms=4_000) == ({5: 2, 6: 2, 7: 1}, 1)


def test_a_changed_time_holds_for_one_message() -> None:
    pops = OrderPops()
    popped(pops, 5, 6)
    assert pops.change_visible_time(*QUEUE, 5, 1_000, 9_000)
    assert pops.is_blocked(*QUEUE, 2_000)
    assert pops.free_at_ms(*QUEUE, 2_000) == 9_000
    assert pops.ack(*QUEUE, 5, 1_000, -1) == 6
    assert not pops.is_blocked(*QUEUE, 2_000)


def test_the_file_is_that_of_java() -> None:
    pops = OrderPops()
    popped(pops, 5, 6, 8, attempt="a")
    pops.ack(*QUEUE, 6, 1_000, -1)
    pops.change_visible_time(*QUEUE, 8, 1_000, 9_000)
    table = pops.snapshot()
    assert table.table == {
        "T@g": {
            0: OrderInfo(
                pop_time=1_000,
                invisible_time=500,
                offset_list=[5, 1, 3],
                offset_next_visible_time={8: 9_000},
                last_consume_timestamp=1_000,
                commit_offset_bit=2,
                attempt_id="a",
            )
        }
    }
    again = OrderPops()
    again.load(table)
    assert again.queues() == [QUEUE]
    assert again.snapshot() == table
    assert again.ack(*QUEUE, 5, 1_000, -1) == 8


def test_what_is_of_no_use_is_dropped() -> None:
    pops = OrderPops()
    for topic, group, queue_id in (("T", "g", 0), ("T", "g", 4), ("T", "x", 0), ("U", "g", 0)):
        pops.popped(
            topic, group, queue_id, [1], pop_time_ms=1, invisible_ms=1, attempt_id=None, now_ms=1
        )
    pops.clean(lambda topic: 4 if topic == "T" else 0, lambda group: group == "g", 1_000)
    assert pops.queues() == [QUEUE]
    pops.clean(lambda _topic: 4, lambda _group: True, 25 * 3600 * 1000)
    assert pops.queues() == []


@pytest.mark.spec("broker.13.20")
async def test_the_next_pop_in_order_waits_for_the_ack(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 3)
        first = await client.pop(order="true", maxMsgNums=1, attemptId="a1")
        assert [message.offset for message in first] == [0]
        assert first[0].handle.is_ordered
        assert await client.pop(order="true", maxMsgNums=1, attemptId="a2") == []
        again = await client.pop(order="true", maxMsgNums=1, attemptId="a1")
        assert [message.offset for message in again] == [0]
        waiting = await client.begin(order="true", maxMsgNums=1)
        await client.ack_all(again)
        (second,) = client.popped(await waiting)
        assert (second.offset, client.committed()) == (1, 1)


async def test_a_pop_in_order_wakes_when_messages_become_visible(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 2)
        messages = await client.pop(order="true")
        waiting = await client.begin(order="true")
        await client.world.clock.advance(9.5)
        assert not waiting.done()
        await client.world.clock.advance(0.6)
        answer = await waiting
        again = client.popped(answer)
        assert [message.offset for message in again] == [0, 1]
        counts = decode_order_counts((answer.ext or {})["orderCountInfo"])
        assert counts == {("0", 0, 0): 1, ("0", 0, 1): 1, ("0", 0): 1}
        late = await client.ack(messages[0])  # of the first pop: ignored
        assert (late.code, client.committed()) == (0, 0)
        unknown = await client.ack(again[0], offset=2)
        assert unknown.code == 13
        answer = await client.change(again[0], 20_000)
        assert (answer.ext or {})["popTime"] == str(again[0].handle.pop_time_ms)
        await client.ack_all([again[1]])
        await client.world.clock.advance(11)
        assert await client.pop(order="true") == []  # the first one has more time
        await client.ack_all([client.changed(again[0], answer)])
        assert client.committed() == 2


async def test_a_message_in_order_that_is_given_back_is_popped_at_once(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 2)
        first, second = await client.pop(order="true")
        waiting = await client.begin(order="true")
        assert (await client.change(first, 0)).code == 0
        await client.world.clock.drain()
        assert not waiting.done()  # the other one is still invisible
        assert (await client.change(second, -1)).code == 0
        await client.world.clock.drain()
        assert waiting.done()
        assert [message.offset for message in client.popped(await waiting)] == [0, 1]


async def test_a_change_below_the_committed_offset_has_no_effect(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 2)
        first, _ = await client.pop(order="true")
        await client.ack_all([first])
        answer = await client.change(first, 60_000)
        assert answer.code == 0
        assert answer.ext == {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}


async def test_a_batch_ack_in_order_acknowledges_all_it_can(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        for tag in "BAA":
            await fill(client, 1, properties=f"TAGS\x01{tag}\x02")
        messages = await client.pop(order="true", exp="A")
        assert [message.offset for message in messages] == [1, 2]
        answer = await client.batch_ack(batch(*messages, bit_set=encode_bit_set((0, 1, 2))))
        assert answer.code == 13  # offset 0 was not popped
        assert "offset is illegal" in (answer.remark or "")
        assert client.committed() == 3


async def test_messages_in_hand_are_in_flight(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 3)
        lags = client.world.features.stats.lags
        messages = await client.pop(order="true", maxMsgNums=2)
        assert lags.popped_count("T", "g", 0) == 2
        await client.ack_all(messages[1:])
        assert lags.popped_count("T", "g", 0) == 1
        await client.ack_all(messages[:1])
        assert lags.popped_count("T", "g", 0) == 0


async def test_a_topic_that_is_made_anew_is_not_blocked(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 1)
        assert len(await client.pop(order="true", invisibleTime=10**9)) == 1
        answer = await client.world.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert answer.code == 0
        client.world.add_topic("T", 1)
        assert client.world.features.pop.order_pops.queues() == []


async def test_what_is_in_hand_survives_a_restart(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 1)
        (message,) = await client.pop(order="true", invisibleTime=10**9)
    async with popping(tmp_path) as client:
        assert await client.pop(order="true") == []
        await client.ack_all([message])
        assert client.committed() == 1


async def test_an_old_ack_after_a_crash_skips_no_message(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 3)
        messages = await client.pop(order="true")
        client.world.features.pop.order_pops.clear("T", "g", 0)  # a crash has lost it
        assert (await client.ack(messages[2])).code == 0
        assert client.committed() == 0
        assert (await client.ack(messages[0])).code == 0
        assert client.committed() == 1
        again = await client.pop(order="true")
        assert [message.offset for message in again] == [1, 2]
