"""Where a queue begins, when it is pulled, and what becomes of each answer."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from skylark.client.core.client_message import MessageExt
from skylark.filter.errors import FilterSyntaxError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import ConsumeFromWhere, GetConsumerListByGroupResponseBody
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import encode_body
from skylark.wire.layout import FLAG_INNER_BATCH, FLAG_NEED_UNWRAP
from skylark.wire.message import encode_record, iter_records
from tests.unit.client.consumer.pushes import (
    Script,
    Seen,
    consuming,
    push_world,
    records,
    scripted,
)

LAST = ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
TIMESTAMP = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP


@pytest.mark.spec("client.8.23")
@pytest.mark.parametrize(
    ("stored", "where", "begins_at"),
    [
        (0, LAST, 0),  # a young topic
        (None, LAST, 77),
        (5, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, 5),
        (None, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, 0),
        (None, TIMESTAMP, 33),
    ],
)
async def test_the_first_offset_of_a_queue(
    tmp_path: Path, stored: int | None, where: ConsumeFromWhere, begins_at: int
) -> None:
    async with scripted(tmp_path) as script:
        script.set_offset(stored)
        script.server.answer_ok(RequestCode.GET_MAX_OFFSET, {"offset": "77"})
        script.server.answer_ok(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, {"offset": "33"})
        consumer = script.consumer(consume_from_where=where, consume_timestamp="20230101000000")
        consumer.subscribe("T", Seen().handler)
        await script.start(consumer)
        assert script.pulls.offsets == [begins_at]


@pytest.mark.spec("client.8.23")
async def test_a_queue_is_not_consumed_while_its_offset_cannot_be_asked(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.server.answer(RequestCode.QUERY_CONSUMER_OFFSET, None)  # no answer
        consumer = script.consumer()
        consumer.subscribe("T", Seen().handler)
        await script.start(consumer)
        await script.clock.advance(seconds=20)
        assert script.pulls.offsets == []
        assert consumer.assignment == frozenset()
        script.set_offset(9)
        await script.clock.advance(seconds=8)
        assert script.pulls.offsets == [9]


async def test_what_a_pull_says(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.set_offset(7)
        script.pulls.found(7, records(7), 8)
        consumer = script.consumer(
            post_subscription_when_pull=True, pull_batch_size=16, pull_batch_size_in_bytes=1000
        )
        consumer.subscribe("T", Seen().handler, tags="A || B")
        await script.start(consumer)
        first, second = script.pulls.requests
        assert (first["commitOffset"], first["sysFlag"]) == ("7", "7")  # commit, suspend, its own
        assert (first["maxMsgNums"], first["maxMsgBytes"]) == ("16", "1000")
        assert (first["subscription"], first["expressionType"]) == ("A || B", "TAG")
        assert (first["suspendTimeoutMillis"], first["bname"]) == ("15000", "broker-a")
        assert (second["queueOffset"], second["commitOffset"]) == ("8", "8")  # it had no tag


async def test_much_is_asked_for_while_the_queue_is_far_behind(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        gate = asyncio.Event()
        script.set_offset(0)
        script.pulls.found(0, records(*range(32)), 32, max_offset=64)  # 32 behind: that is near
        script.pulls.found(32, records(*range(32, 64)), 64, max_offset=1500)
        script.pulls.found(64, records(*range(64, 900)), 900, max_offset=1500)
        script.pulls.found(900, records(*range(900, 990)), 990, max_offset=1500)
        script.pulls.found(990, records(*range(990, 1000)), 1000, max_offset=1010)
        consumer = script.consumer()

        @consumer.subscribe("T")
        async def wait(message: MessageExt) -> None:
            await gate.wait()

        await script.start(consumer)
        asked = [(each["maxMsgNums"], each.get("bulk")) for each in script.pulls.requests]
        assert asked == [
            ("32", None),
            ("32", None),
            ("256", "true"),
            ("100", "true"),  # so many may wait besides those that do
            ("32", None),  # Java asks for so many, whatever is left
            ("32", None),
        ]
        gate.set()


async def test_the_span_leaves_room_as_well(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        gate = asyncio.Event()
        script.set_offset(0)
        script.pulls.found(0, records(*range(9)), 9, max_offset=1500)
        consumer = script.consumer(consume_concurrently_max_span=100)

        @consumer.subscribe("T")
        async def wait(message: MessageExt) -> None:
            await gate.wait()

        await script.start(consumer)
        assert [each["maxMsgNums"] for each in script.pulls.requests] == ["32", "92"]
        gate.set()


async def test_what_the_application_sets_is_asked_for_however_far_behind(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.set_offset(0)
        script.pulls.found(0, records(*range(64)), 64, max_offset=5000)
        consumer = script.consumer(pull_batch_size=64)
        consumer.subscribe("T", Seen().handler)
        await script.start(consumer)
        asked = [(each["maxMsgNums"], each.get("bulk")) for each in script.pulls.requests]
        assert asked == [("64", None), ("64", None)]


async def test_held_pulls_are_not_repeated_early(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        consumer = w.consumer()
        consumer.subscribe("T", Seen().handler)
        async with consuming(w, consumer):
            before = consumer.stats.of("T").pulls
            await w.clock.advance(minutes=1)
            assert consumer.stats.of("T").pulls - before == 4  # every 15 s


@pytest.mark.spec("client.8.26")
async def test_flow_control_by_count(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        first, rest = asyncio.Event(), asyncio.Event()
        script.pulls.found(0, records(*range(1001)), 1001)
        script.pulls.found(1001, records(1001), 1002)
        consumer = script.consumer()

        @consumer.subscribe("T")
        async def wait(message: MessageExt) -> None:
            await (first if message.queue_offset < 10 else rest).wait()

        await script.start(consumer)
        assert script.pulls.offsets == [0]
        assert consumer.in_flight == 1001
        await script.clock.advance(seconds=1)
        assert script.pulls.offsets == [0]
        first.set()
        await script.clock.drain()
        assert (script.pulls.offsets, consumer.in_flight) == ([0], 991)
        await script.clock.advance(ms=50)
        assert script.pulls.offsets == [0, 1001, 1002]
        rest.set()


async def test_handlers_that_catch_up_need_not_wait_for_the_next_pull(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        gate = asyncio.Event()
        script.pulls.found(0, records(*range(1001)), 1001)
        script.pulls.found(1001, records(1001), 1002)
        consumer = script.consumer()

        @consumer.subscribe("T")
        async def wait(message: MessageExt) -> None:
            await gate.wait()

        await script.start(consumer)
        assert consumer.in_flight == 1001
        await script.clock.advance(seconds=1)
        assert script.pulls.offsets == [0]
        gate.set()
        await script.clock.drain()
        assert (script.pulls.offsets, consumer.in_flight) == ([0, 1001, 1002], 0)


async def test_flow_control_by_bytes(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        gate = asyncio.Event()
        big = encode_record(topic="T", body=bytes(2 << 20), queue_offset=0)
        script.pulls.found(0, big, 1)
        consumer = script.consumer(pull_threshold_size_for_queue=1)

        @consumer.subscribe("T")
        async def wait(message: MessageExt) -> None:
            await gate.wait()

        await script.start(consumer)
        await script.clock.advance(seconds=1)
        assert script.pulls.offsets == [0]
        gate.set()
        await script.clock.advance(ms=50)
        assert script.pulls.offsets == [0, 1]


@pytest.mark.spec("client.8.25")
async def test_a_stuck_message_stops_pulling_at_the_span(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        gate = asyncio.Event()
        for start in range(0, 2_600, 100):
            script.pulls.found(start, records(*range(start, start + 100)), start + 100)
        consumer = script.consumer()

        @consumer.subscribe("T")
        async def stick_at_0(message: MessageExt) -> None:
            if message.queue_offset == 0:
                await gate.wait()

        await script.start(consumer)
        await script.clock.advance(seconds=20)
        # 0..2000 spans 2000 and may be exceeded once: the last pull brought 2000..2099.
        assert script.pulls.offsets[-1] == 2_000
        assert set(script.committed) == {0}
        gate.set()
        await script.clock.advance(seconds=10)
        assert script.pulls.offsets[-1] == 2_600
        assert script.committed[-1] == 2_600


@pytest.mark.spec("client.8.26")
async def test_a_broker_that_wants_it_slower_gets_20_ms(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        consumer = script.consumer()
        consumer.subscribe("T", Seen().handler)
        await script.start(consumer)
        assert script.pulls.offsets == [0]
        pulled: list[int] = []

        def slower(request: Command) -> Command:
            pulled.append(script.clock.now_ms())
            return response_to(request, 215, "slower")

        script.pulls.by_offset[0] = slower
        await script.clock.advance(seconds=31)  # the held pull times out, and then
        assert len(pulled) > 2
        assert {b - a for a, b in pairwise(pulled)} == {20}


async def test_other_errors_wait_a_second(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.pulls.answer(0, 2, 0)
        consumer = script.consumer()
        consumer.subscribe("T", Seen().handler)
        await script.start(consumer)
        before = len(script.pulls.offsets)
        await script.clock.advance(seconds=10)
        assert len(script.pulls.offsets) - before == 10


@pytest.mark.parametrize("next_pull", ["finds nothing", "finds only other tags"])
async def test_the_offset_does_not_pass_messages_that_handlers_hold(
    tmp_path: Path, next_pull: str
) -> None:
    async with scripted(tmp_path) as script:
        gate = asyncio.Event()
        script.pulls.found(0, records(0, 1, TAGS="A"), 2)
        if next_pull == "finds nothing":
            script.pulls.answer(2, 20, 9)  # all up to 9 was filtered at the broker
        else:
            script.pulls.found(2, records(2, TAGS="B"), 9)
        consumer = script.consumer()

        @consumer.subscribe("T", tags="A")
        async def hold(message: MessageExt) -> None:
            await gate.wait()

        await script.start(consumer)
        await script.clock.advance(seconds=20)  # offsets are saved meanwhile
        assert script.pulls.offsets[:3] == [0, 2, 9]
        assert consumer.in_flight == 2
        assert {pull["commitOffset"] for pull in script.pulls.requests} == {"0"}
        assert set(script.committed) <= {0}
        gate.set()
        await script.finish(consumer.stop())
        assert script.committed[-1] == 2


@pytest.mark.spec("client.8.26")
async def test_an_illegal_offset_moves_the_queue_whatever_late_results_say(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        gate = asyncio.Event()
        script.set_offset(5)
        script.keep_offsets()
        script.pulls.found(5, records(5), 6)
        script.pulls.answer(6, 21, 100)
        consumer = script.consumer()

        @consumer.subscribe("T")
        async def wait(message: MessageExt) -> None:
            await gate.wait()

        await script.start(consumer)
        assert script.committed[-1] == 100
        gate.set()  # message 5 was consumed, too late
        await script.clock.advance(seconds=3)
        assert script.pulls.offsets == [5, 6, 100]
        assert script.committed[-1] == 100
        await script.clock.advance(seconds=15)
        assert script.committed[-1] == 100


async def move_during_a_round(script: Script) -> Command:
    """Send the queue from 6 to 2 while a round waits for the members; the question for them."""
    asked: list[Command] = []
    script.server.answer(RequestCode.GET_CONSUMER_LIST_BY_GROUP, asked.append)
    code = RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    script.control.oneway(Command(code=code, ext={"consumerGroup": "g"}))
    await script.clock.advance(seconds=1)
    (question,) = asked
    pulls = script.server.of(RequestCode.PULL_MESSAGE)
    (held,) = [pull for pull in pulls if (pull.ext or {})["queueOffset"] == "6"]
    script.pulls.answer(6, 21, 2)
    moved = script.pulls.by_offset.pop(6)(held)  # once: the broker forgets the reset with it
    assert moved is not None
    (pulling,) = script.server.connections - {script.control}
    pulling.send(moved)
    await script.clock.drain()
    return question


@pytest.mark.spec("client.8.26")
@pytest.mark.parametrize("then", ["the round goes on", "the consumer stops"])
async def test_an_illegal_offset_counts_whoever_saves_it_first(tmp_path: Path, then: str) -> None:
    async with scripted(tmp_path) as script:
        script.set_offset(5)
        script.keep_offsets()
        script.pulls.found(5, records(5), 6)
        consumer = script.consumer()
        consumer.subscribe("T", Seen().handler)
        await script.start(consumer)
        question = await move_during_a_round(script)
        if then == "the consumer stops":
            await script.finish(consumer.stop())
        else:
            body = GetConsumerListByGroupResponseBody(consumer_id_list=[consumer.client_id])
            script.server.answer_ok(RequestCode.GET_CONSUMER_LIST_BY_GROUP, body=body)
            script.control.send(response_to(question, 0, body=encode_body(body)))
            await script.clock.advance(seconds=3)
            assert script.pulls.offsets == [5, 6, 2]
        assert script.committed[-1] == 2


async def test_the_suggested_broker_is_asked_and_gets_no_commits(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        slave = script.server.address.replace("127.0.0.1", "localhost")
        script.route.broker_datas[0].broker_addrs[1] = slave
        script.set_offset(1)
        script.pulls.answer(1, 0, 2, body=records(1), suggested=1)
        script.pulls.answer(2, 0, 3, body=records(2), suggested=0)
        asked: list[tuple[str, str]] = []

        class Hook:
            def before_request(self, address: str, request: Any) -> None:
                if request.code == RequestCode.PULL_MESSAGE and request.ext["topic"] == "T":
                    asked.append((address, request.ext["sysFlag"]))

        consumer = script.consumer(rpc_hooks=[Hook()])
        consumer.subscribe("T", Seen().handler)
        await script.start(consumer)
        master = script.server.address
        assert asked == [(master, "3"), (slave, "2"), (master, "3")]


@pytest.mark.spec("client.8.27")
async def test_tags_of_equal_hash_are_told_apart(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        await w.send(b"wanted", tag="Aa")
        await w.send(b"same hash", tag="BB")
        seen = Seen()
        consumer = w.consumer()
        consumer.subscribe("T", seen.handler, tags="Aa")
        async with consuming(w, consumer):
            assert seen == [b"wanted"]
            await w.clock.advance(seconds=20)
            assert w.committed() == 2
            await w.send(b"same hash again", tag="BB")
            await w.clock.advance(seconds=20)
            assert (list(seen), w.committed()) == ([b"wanted"], 3)


async def test_filter_hooks_take_messages_out(tmp_path: Path) -> None:
    class Even:
        def filter_messages(self, queue: MessageQueue, messages: list[MessageExt]) -> None:
            messages[:] = [m for m in messages if m.queue_offset % 2 == 0]

    async with scripted(tmp_path) as script:
        script.pulls.found(0, records(0, 1, 2, 3), 4)
        seen = Seen()
        consumer = script.consumer(hooks=[Even()])
        consumer.subscribe("T", seen.handler)
        await script.start(consumer)
        assert seen == [b"0", b"2"]


async def test_messages_know_the_ends_of_their_queue(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        script.pulls.found(0, records(0, A="1"), 1, max_offset=40)
        seen = Seen()
        consumer = script.consumer()
        consumer.subscribe("T", seen.handler)
        await script.start(consumer)
        (message,) = seen.messages
        assert message.properties == {
            "UNIQ_KEY": "U0", "A": "1", "MIN_OFFSET": "0", "MAX_OFFSET": "40",
        }  # fmt: skip
        assert message.queue == MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
        assert consumer.lag == 39


async def test_inner_batches_are_taken_apart(tmp_path: Path) -> None:
    part = bytes.fromhex("00000017000000000000000000000000000000017800 00".replace(" ", ""))
    batch = encode_record(
        topic="T", body=part * 3, queue_offset=10, sys_flag=FLAG_INNER_BATCH | FLAG_NEED_UNWRAP
    )
    assert len(list(iter_records(batch))) == 1
    async with scripted(tmp_path) as script:
        script.set_offset(10)
        script.pulls.found(10, batch, 13)
        seen = Seen()
        consumer = script.consumer()
        consumer.subscribe("T", seen.handler)
        await script.start(consumer)
        assert [(m.queue_offset, m.body) for m in seen.messages] == [
            (10, b"x"), (11, b"x"), (12, b"x"),
        ]  # fmt: skip


async def test_a_message_that_cannot_be_decoded_is_passed_over_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted(tmp_path) as script:
        bad = records(1).replace(b"\xda\xa3\x20\xa7", b"\0\0\0\x07")
        assert bad != records(1)
        script.pulls.found(0, records(0) + bad + records(2), 3)
        script.pulls.found(1, bad + records(2), 3)
        script.pulls.found(2, records(2), 3)
        together = script.pulls.by_offset[1]
        script.pulls.found(1, bad, 2)
        alone = script.pulls.by_offset[1]
        script.pulls.by_offset[1] = lambda request: (
            alone if (request.ext or {})["maxMsgNums"] == "1" else together
        )(request)
        seen = Seen()
        consumer = script.consumer(pull_batch_size=32)
        consumer.subscribe("T", seen.handler)
        await script.start(consumer)
        assert seen == [b"0", b"2"]
        assert script.pulls.offsets == [0, 1, 1, 2, 3]
        assert [ext["maxMsgNums"] for ext in script.pulls.requests] == ["32", "32", "1", "32", "32"]
        assert consumer.stats.undecodable == 1
        assert "the message at offset 1 of" in caplog.text
        await script.clock.advance(seconds=15)
        assert script.committed[-1] == 3


@pytest.mark.spec("client.8.37")
async def test_sql_waits_for_the_word_of_the_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted(tmp_path) as script:
        script.server.answer(RequestCode.CHECK_CLIENT_CONFIG, 0)
        script.server.answer(RequestCode.HEART_BEAT, 1)  # not taken
        consumer = script.consumer()
        consumer.subscribe("T", Seen().handler, sql="a > 5")
        await script.start(consumer)
        await script.clock.advance(seconds=20)  # the first round without a wake-up
        assert script.pulls.offsets == []
        assert "does not upgrade to support for filter message by SQL92" in caplog.text
        script.server.answer(RequestCode.HEART_BEAT, 0)
        await script.clock.advance(seconds=38)
        assert script.pulls.offsets == [0]
        assert script.pulls.requests[0]["expressionType"] == "SQL92"


@pytest.mark.spec("client.8.37")
async def test_bad_sql_fails_the_start(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        await w.world.stop(w.broker)
        await w.world.add_broker(enablePropertyFilter="true")
        consumer = w.consumer()
        consumer.subscribe("T", Seen().handler, sql="a >")
        with pytest.raises(FilterSyntaxError) as raised:
            await w.finish(consumer.start())
        assert raised.value.code == 23
        assert w.broker.features.groups.consumers.client_ids("g") == []


async def test_sql_selects_at_the_broker(tmp_path: Path) -> None:
    async with push_world(tmp_path) as w:
        await w.world.stop(w.broker)
        await w.world.add_broker(enablePropertyFilter="true")
        await w.send(b"6", a="6")
        await w.send(b"4", a="4")
        seen = Seen()
        consumer = w.consumer()
        consumer.subscribe("T", seen.handler, sql="a > 5")
        async with consuming(w, consumer):
            assert seen == [b"6"]


async def test_a_pause_between_pulls(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        for offset in range(20):
            script.pulls.found(offset, records(offset), offset + 1)
        consumer = script.consumer(pull_interval=0.5)
        consumer.subscribe("T", Seen().handler)
        await script.start(consumer)
        before = len(script.pulls.offsets)
        await script.clock.advance(seconds=2)
        assert len(script.pulls.offsets) - before == 4


async def test_a_hook_that_raises_does_not_end_the_loop(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Hook:
        failures = 2

        def before_request(self, address: str, request: Any) -> None:
            if request.code == RequestCode.PULL_MESSAGE and self.failures:
                self.failures -= 1
                raise ZeroDivisionError

    async with scripted(tmp_path) as script:
        seen = Seen()
        script.pulls.found(0, records(0), 1)
        consumer = script.consumer(rpc_hooks=[Hook()])
        consumer.subscribe("T", seen.handler)
        await script.start(consumer)
        await script.clock.advance(seconds=3)
        assert seen == [b"0"]
        assert "ZeroDivisionError" in caplog.text


async def test_a_loop_that_is_dead_is_replaced(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        consumer = script.consumer()
        consumer.subscribe("T", Seen().handler)
        await script.start(consumer)
        assert consumer._parts is not None
        for queue, (_, _, task) in consumer._parts.pull_service._loops.items():
            if queue.topic == "T":
                task.cancel()
        await script.clock.advance(seconds=100)
        assert script.pulls.offsets == [0]
        await script.clock.advance(seconds=100)
        assert len(script.pulls.offsets) > 1


async def test_a_queue_of_a_static_topic_counts_from_elsewhere(tmp_path: Path) -> None:
    async with scripted(tmp_path) as script:
        ext = {
            "nextBeginOffset": "1001", "minOffset": "0", "maxOffset": "1001",
            "suggestWhichBrokerId": "0", "offsetDelta": "1000",
        }  # fmt: skip
        body = encode_record(topic="T", body=b"x", queue_offset=0, queue_id=9)
        script.pulls.by_offset[0] = lambda request: response_to(request, 0, ext=ext, body=body)
        seen = Seen()
        consumer = script.consumer()
        consumer.subscribe("T", seen.handler)
        await script.start(consumer)
        (message,) = seen.messages
        assert (message.queue_offset, message.queue_id) == (1000, 0)
