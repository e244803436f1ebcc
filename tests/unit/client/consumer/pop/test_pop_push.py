"""The push consumer in pop mode, against a broker on virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from skylark import (
    ByConfig,
    ClientError,
    ConfigError,
    ConsumeFromWhere,
    DeadLetter,
    MessageModel,
    RetryLater,
)
from skylark.wire.bodies.pop_body import MessageRequestMode
from skylark.wire.codes import RequestCode
from tests.unit.client.consumer.pops import ACK, BATCH_ACK, CHANGE, POP, SEND_BACK, pop_world
from tests.unit.client.consumer.pushes import Seen


@pytest.mark.spec("client.8.35")
async def test_success_acknowledges_failure_hides_and_late_results_do_neither(
    tmp_path: Path,
) -> None:
    async with pop_world(tmp_path) as w:
        consumer, seen = w.push_consumer(renew=False, pop_invisible_time=5), Seen()

        async def act(message: Any) -> None:
            if message.body == b"bad":
                raise ValueError("failed")
            if message.body == b"slow":
                await w.clock.sleep(6)

        seen.on_message = act
        consumer.subscribe("T", seen.handler)
        await w.start(consumer)
        w.server.put(b"good")
        await w.clock.advance(seconds=1)
        good = w.server.of_body(b"good")
        assert w.server.ext_of(ACK)[0]["extraInfo"] == good.handle
        assert good.acked
        w.server.put(b"bad")
        await w.clock.advance(seconds=1)
        (change,) = w.server.ext_of(CHANGE)
        assert change["extraInfo"] == w.server.of_body(b"bad").handles[0]
        assert change["invisibleTime"] == "10000"
        w.server.put(b"slow")
        await w.clock.advance(seconds=4)
        assert w.server.of_body(b"slow").handles
        await w.clock.advance(seconds=3)
        assert not w.server.of_body(b"slow").acked
        assert consumer.stats.late == 1


async def test_long_handlers_are_renewed_with_the_newest_receipt(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.push_consumer(pop_invisible_time=6)
        ended = asyncio.Event()

        @consumer.subscribe("T")
        async def on_message(message: Any) -> None:
            await ended.wait()

        await w.start(consumer)
        w.server.put(b"a")
        await w.clock.advance(seconds=20)
        held = w.server.of_body(b"a")
        assert len(held.handles) >= 6
        assert held.times == 0  # never delivered again
        ended.set()
        await w.clock.advance(seconds=1)
        assert held.acked
        assert consumer.stats.late == 0
        renewals = len(w.server.of(CHANGE))
        await w.clock.advance(seconds=30)
        assert len(w.server.of(CHANGE)) == renewals  # settled: no more


async def test_renewals_end_at_their_limit(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer, calls = w.push_consumer(pop_invisible_time=6, renew_limit=12), []
        ended = asyncio.Event()

        @consumer.subscribe("T")
        async def on_message(message: Any) -> None:
            calls.append(message.attempt)
            if message.attempt == 1:
                await ended.wait()

        await w.start(consumer)
        w.server.put(b"a")
        await w.clock.advance(seconds=25)
        assert calls == [1, 2]  # the broker has delivered it again
        ended.set()
        await w.clock.advance(seconds=1)
        assert consumer.stats.late == 1


async def test_a_refused_renewal_drops_the_result(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.push_consumer(pop_invisible_time=10)
        ended = asyncio.Event()

        @consumer.subscribe("T")
        async def on_message(message: Any) -> None:
            await ended.wait()

        await w.start(consumer)
        w.server.refuses[CHANGE] = 208
        w.server.put(b"a")
        await w.clock.advance(seconds=7)
        ended.set()
        await w.clock.advance(seconds=1)
        assert consumer.stats.late == 1
        assert not w.server.of(ACK)


async def test_a_renewal_that_a_busy_broker_rejects_is_repeated(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.push_consumer(pop_invisible_time=20)
        ended = asyncio.Event()

        @consumer.subscribe("T")
        async def on_message(message: Any) -> None:
            await ended.wait()

        await w.start(consumer)
        w.server.refuses[CHANGE] = 2
        w.server.put(b"a")
        await w.clock.advance(seconds=14)
        w.server.refuses.clear()
        await w.clock.advance(seconds=10)
        ended.set()
        await w.clock.advance(seconds=1)
        assert w.server.acked == [b"a"]
        assert consumer.stats.late == 0


async def test_a_renewal_without_response_is_repeated(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.push_consumer(pop_invisible_time=20)
        ended = asyncio.Event()

        @consumer.subscribe("T")
        async def on_message(message: Any) -> None:
            await ended.wait()

        await w.start(consumer)
        w.server.silent.add(CHANGE)
        w.server.put(b"a")
        await w.clock.advance(seconds=12)
        w.server.silent.clear()
        await w.clock.advance(seconds=12)
        ended.set()
        await w.clock.advance(seconds=1)
        assert w.server.acked == [b"a"]


async def test_retries_and_dead_letters(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer, seen = w.push_consumer(max_reconsume_times=2), Seen()

        def act(message: Any) -> None:
            if message.body == b"later":
                raise RetryLater(level=3)
            if message.body == b"dead":
                raise DeadLetter()
            raise ValueError("failed")

        seen.on_message = act
        consumer.subscribe("T", seen.handler)
        await w.start(consumer)
        w.server.put(b"later", b"dead")
        w.server.put(b"again", times=1)
        w.server.put(b"last", times=2)
        w.server.put(b"over", times=3)
        await w.clock.advance(seconds=2)
        changes = {ext["offset"]: ext["invisibleTime"] for ext in w.server.ext_of(CHANGE)}
        assert changes == {"0": "120000", "2": "30000"}  # step 3; the second failure
        assert [ext["delayLevel"] for ext in w.server.ext_of(SEND_BACK)] == ["-1"] * 3
        assert w.server.acked == [b"dead", b"last", b"over"]
        assert b"over" not in seen


async def test_batches_and_plain_functions(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer, batches = w.push_consumer(), []

        @consumer.subscribe("T", batch=4)
        async def on_messages(messages: list[Any]) -> int:
            batches.append([each.body for each in messages])
            return 1  # the first two are accepted

        await w.start(consumer)
        w.server.put(b"a", b"b", b"c", b"d")
        await w.clock.advance(seconds=1)
        assert batches == [[b"a", b"b", b"c", b"d"]]
        assert w.server.acked == [b"a", b"b"]
        assert len(w.server.of(CHANGE)) == 2


async def test_a_result_is_called_a_success_only_if_it_is_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.push_consumer()
        results: list[object] = [iterate(), "later"]

        @consumer.subscribe("T")
        async def on_message(message: Any) -> object:
            return results.pop(0)

        await w.start(consumer)
        w.server.put(b"a")
        await w.clock.advance(seconds=1)
        assert "returned a generator, whose code was not run" in caplog.text
        assert "counts as success" not in caplog.text
        assert len(w.server.of(CHANGE)) == 1
        w.server.put(b"b")
        await w.clock.advance(seconds=1)
        assert "'later', which counts as success" in caplog.text
        assert w.server.acked == [b"b"]


def iterate() -> Iterator[int]:
    yield 1


async def test_acks_of_a_turn_share_a_request(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer, seen = w.push_consumer(), Seen()
        consumer.subscribe("T", seen.handler)
        await w.start(consumer)
        w.server.put(*(b"%d" % n for n in range(32)))
        await w.clock.advance(seconds=1)
        assert len(w.server.acked) == 32
        assert len(w.server.of(BATCH_ACK)) + len(w.server.of(ACK)) <= 3


async def test_too_many_unsettled_messages_hold_the_pops(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.push_consumer(pop_threshold_for_queue=40, concurrency=10)
        may_end = asyncio.Event()

        @consumer.subscribe("T")
        async def on_message(message: Any) -> None:
            await may_end.wait()

        await w.start(consumer)
        w.server.put(*(b"%d" % n for n in range(200)))
        await w.clock.advance(seconds=3)
        assert consumer.in_flight == 64  # two pops: the first one was below the threshold
        assert consumer.lag == 200
        may_end.set()
        await w.clock.advance(seconds=3)
        assert len(w.server.acked) == 200
        assert consumer.in_flight == 0


async def test_a_stop_gives_unhandled_messages_back(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.push_consumer(concurrency=2)
        may_end = asyncio.Event()

        @consumer.subscribe("T")
        async def on_message(message: Any) -> None:
            await may_end.wait()

        await w.start(consumer)
        w.server.put(*(b"%d" % n for n in range(10)))
        await w.clock.advance(seconds=1)
        stopping = asyncio.ensure_future(consumer.stop())
        await w.clock.advance(seconds=1)
        # At once, while the two handlers still run.
        assert [(ext["invisibleTime"], ext["suspend"]) for ext in w.server.ext_of(CHANGE)] == [
            ("1000", "true")
        ] * 8
        may_end.set()
        await w.finish(stopping)
        assert w.server.acked == [b"0", b"1"]
        other, seen = w.push_consumer(), Seen()
        other.subscribe("T", seen.handler)
        await w.start(other)
        await w.clock.advance(seconds=2)
        assert sorted(seen) == [b"%d" % n for n in range(2, 10)]
        assert {each.reconsume_times for each in seen.messages} == {0}


async def test_a_stop_waits_for_acks_behind_a_renewal(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.push_consumer(pop_invisible_time=10)
        may_end = asyncio.Event()

        @consumer.subscribe("T")
        async def on_message(message: Any) -> None:
            await may_end.wait()

        await w.start(consumer)
        w.server.put(b"a")
        w.server.silent.add(CHANGE)
        await w.clock.advance(seconds=6)
        assert w.server.of(CHANGE)  # a renewal is under way
        may_end.set()
        await w.finish(consumer.stop())
        assert w.server.acked == [b"a"]


async def test_the_start_fails_where_the_broker_says_pull(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        w.server.mode = MessageRequestMode.PULL
        consumer = w.push_consumer()
        consumer.subscribe("T", Seen().handler)
        with pytest.raises(ClientError, match="skylark group mode T g pop"):
            await w.finish(consumer.start())
        setting, seen = w.push_consumer(set_mode=True), Seen()
        setting.subscribe("T", seen.handler)
        await w.start(setting)
        assert [(each.topic, each.consumer_group) for each in w.server.modes_set] == [("T", "g")]
        w.server.put(b"a")
        await w.clock.advance(seconds=1)
        assert seen == [b"a"]


async def test_the_mode_is_set_for_topics_that_come_later(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        w.server.mode = MessageRequestMode.PULL
        w.server.answer(RequestCode.GET_ROUTEINFO_BY_TOPIC, 17)
        consumer, seen = w.push_consumer(set_mode=True), Seen()
        consumer.subscribe("T", seen.handler)
        await w.start(consumer)
        assert w.server.modes_set == []
        w.server.serve_route("T", **{w.server.name: w.server.address})
        await w.clock.advance(seconds=60)
        assert [(each.topic, each.consumer_group) for each in w.server.modes_set] == [("T", "g")]
        w.server.put(b"a")
        await w.clock.advance(seconds=1)
        assert seen == [b"a"]


async def test_the_mode_of_a_topic_that_comes_later_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pop_world(tmp_path) as w:
        w.server.mode = MessageRequestMode.PULL
        w.server.answer(RequestCode.GET_ROUTEINFO_BY_TOPIC, 17)
        consumer = w.push_consumer()
        consumer.subscribe("T", Seen().handler)
        await w.start(consumer)
        w.server.serve_route("T", **{w.server.name: w.server.address})
        with caplog.at_level(logging.ERROR):
            await w.clock.advance(seconds=60)
        assert "consumes nothing of it" in caplog.text


async def test_auto_follows_the_broker(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        w.server.mode = MessageRequestMode.PULL
        w.server.answer(14, 22)
        w.server.answer_ok(29, {"offset": "0"})
        w.server.answer_ok(30, {"offset": "0"})
        w.server.answer(11, None)  # pulls are held
        w.server.answer(15, 0)
        consumer, seen = w.push_consumer(mode="auto"), Seen()
        consumer.subscribe("T", seen.handler)
        await w.start(consumer)
        queues = {(each.topic, each.queue_id) for each in consumer.assignment}
        assert ("T", 0) in queues
        assert not w.server.of(POP)
        w.server.mode = MessageRequestMode.POP
        w.server.put(b"a")
        await w.clock.advance(seconds=25)
        queues = {(each.topic, each.queue_id) for each in consumer.assignment}
        assert ("T", -1) in queues
        assert ("T", 0) not in queues
        assert seen == [b"a"]


async def test_a_mode_that_changes_later_is_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with pop_world(tmp_path) as w:
        consumer, seen = w.push_consumer(), Seen()
        consumer.subscribe("T", seen.handler)
        await w.start(consumer)
        w.server.mode = MessageRequestMode.PULL
        with caplog.at_level(logging.ERROR):
            await w.clock.advance(seconds=40)
        assert "consumes nothing of it" in caplog.text
        w.server.mode = MessageRequestMode.POP
        w.server.put(b"a")
        await w.clock.advance(seconds=40)
        assert seen == [b"a"]


async def test_an_unsubscribed_topic_is_not_popped(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer, seen = w.push_consumer(), Seen()
        consumer.subscribe("T", seen.handler)
        await w.start(consumer)
        consumer.unsubscribe("T")
        await w.clock.advance(seconds=40)
        pops = len(w.server.of(POP))
        w.server.put(b"a")
        await w.clock.advance(seconds=20)
        assert len(w.server.of(POP)) == pops
        assert seen == []


async def test_what_cannot_be_popped_is_refused_by_name(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        for mode in ("pop", "auto"):
            with pytest.raises(ClientError, match="orderly handlers"):
                w.push_consumer(mode=mode).subscribe("T", Seen().handler, orderly=True)
        for wrong in (
            {"client_rebalance": True},
            {"message_model": MessageModel.BROADCASTING},
            {"allocation": ByConfig(())},
            {"consume_from_where": ConsumeFromWhere.CONSUME_FROM_TIMESTAMP},
            {"mode": "auto", "set_mode": True},
            {"mode": "pull", "set_mode": True},
            {"mode": "push"},
            {"pop_batch_nums": 33},
            {"pop_invisible_time": 1},
        ):
            with pytest.raises(ConfigError):
                w.push_consumer(**wrong)


async def test_running_info_shows_what_is_popped(tmp_path: Path) -> None:
    async with pop_world(tmp_path) as w:
        consumer = w.push_consumer()
        may_end = asyncio.Event()

        @consumer.subscribe("T")
        async def on_message(message: Any) -> None:
            await may_end.wait()

        await w.start(consumer)
        w.server.put(b"a", b"b")
        await w.clock.advance(seconds=1)
        assert consumer._parts is not None
        info = consumer._parts.member.running_info(with_stacks=False)
        (shown,) = info.mq_pop_table.values()
        assert shown.wait_ack_count == 2
        assert info.properties["clientRebalance"] == "false"
        may_end.set()
