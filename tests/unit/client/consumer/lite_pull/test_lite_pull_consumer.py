"""Lite pull: two ways to queues, seeks and pauses, and commits that lose nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import pytest

from skylark.client.consumer.lite_pull.lite_pull_consumer import LitePullConsumer
from skylark.client.consumer.lite_pull.lite_pull_settings import LitePullSettings
from skylark.client.consumer.offset_persistence import RemoteOffsets
from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_options import ClientOptions
from skylark.core.errors import (
    ClientError,
    ClientStateError,
    ConfigError,
)
from skylark.filter.errors import FilterSyntaxError
from skylark.wire.bodies.admin_body import ConsumerRunningInfo
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import ConsumeFromWhere, MessageModel
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import decode_body
from tests.support.loops import eventually
from tests.unit.client.consumer.pull_world import (
    bodies,
    polled,
    pull_world,
    queue,
    served,
)

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


# ---- ways to queues ------------------------------------------------------------------------------


def cached_count(consumer: LitePullConsumer) -> int:
    """Messages that were fetched and not handed out."""
    return sum(found.process_queue.count for found in consumer._queues.queues.values())


@pytest.mark.spec("client.8.36")
def test_subscribe_and_assign_exclude_each_other() -> None:
    with pytest.raises(ClientError, match="Subscribe and assign are mutually exclusive"):
        LitePullConsumer("g").subscribe("T").assign([queue()])
    with pytest.raises(ClientError, match="Subscribe and assign are mutually exclusive"):
        LitePullConsumer("g").assign([queue()]).subscribe("T")


async def test_a_subscriber_gets_all_queues_and_their_messages(tmp_path: Path) -> None:
    shared: list[tuple[str, int, int]] = []
    async with pull_world(tmp_path, queue_count=2) as w, w.lite() as consumer:
        await w.send(b"a0", b"a1")
        await w.send(b"b0", queue_id=1)
        consumer.subscribe("T", listener=lambda t, a, mine: shared.append((t, len(a), len(mine))))
        await w.finish(consumer.start())
        found = await polled(w, consumer, 3)
        assert sorted(bodies(found)) == [b"a0", b"a1", b"b0"]
        assert {(m.queue_id, m.queue_offset) for m in found} == {(0, 0), (0, 1), (1, 0)}
        assert consumer.assignment == {queue(0), queue(1)}
        assert shared == [("T", 2, 2)]
        assert await w.finish(consumer.poll(0)) == []


async def test_two_members_share_the_queues(tmp_path: Path) -> None:
    async with pull_world(tmp_path, queue_count=4) as w, w.lite() as one, w.lite() as other:
        one.subscribe("T")
        other.subscribe("T")
        await w.finish(one.start())
        await w.until(lambda: len(one.assignment) == 4)
        await w.finish(other.start())
        await w.until(lambda: len(one.assignment) == 2 == len(other.assignment))
        assert one.assignment | other.assignment == {queue(i) for i in range(4)}
        await w.finish(other.stop())
        await w.until(lambda: len(one.assignment) == 4)


class Failing:
    """A way to share queues that has a mistake in it."""

    name = "FAILING"

    def allocate(
        self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        if queues[0].topic == "T":
            raise ValueError("a mistake")
        return list(queues)


async def test_a_failing_strategy_stops_no_other_topic(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite(allocation=Failing()) as consumer:
        await w.world.add_topic("U", 1)
        consumer.subscribe("T").subscribe("U")
        await w.finish(consumer.start())
        await w.until(lambda: consumer.assignment == {queue(0, "U")})


async def test_assigned_queues_belong_to_whoever_names_them(tmp_path: Path) -> None:
    async with pull_world(tmp_path, queue_count=2) as w, w.lite() as one, w.lite() as other:
        await w.send(b"a")
        await w.send(b"b", queue_id=1)
        for consumer in (one, other):
            consumer.assign([queue(0)])
            await w.finish(consumer.start())
            assert bodies(await polled(w, consumer, 1)) == [b"a"]
        one.assign([queue(1)])
        assert bodies(await polled(w, one, 1)) == [b"b"]
        assert one.assignment == {queue(1)}


async def test_assigned_queues_with_tags(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite() as consumer:
        await w.send(b"no", TAGS="BB")  # the same hash as the wanted one
        await w.send(b"yes", TAGS="Aa")
        consumer.assign([queue()]).set_assign_tags("T", "Aa")
        await w.finish(consumer.start())
        assert bodies(await polled(w, consumer, 1)) == [b"yes"]
        with pytest.raises(ClientStateError):
            consumer.set_assign_tags("T", "B")


async def test_a_topic_may_be_added_and_left_while_running(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite() as consumer:
        await w.world.add_topic("U", 1)
        await w.send(b"u", topic="U")
        consumer.subscribe("T")
        await w.finish(consumer.start())
        await w.until(lambda: len(consumer.assignment) == 1)
        consumer.subscribe("U")
        assert bodies(await polled(w, consumer, 1)) == [b"u"]
        consumer.unsubscribe("T")
        await w.until(lambda: consumer.assignment == {queue(0, "U")})


async def test_a_listener_hears_of_new_queues(tmp_path: Path) -> None:
    heard: list[tuple[str, frozenset[MessageQueue]]] = []
    async with pull_world(tmp_path, queue_count=1) as w, w.lite() as consumer:
        consumer.on_queues_changed("T", lambda topic, queues: heard.append((topic, queues)))
        await w.finish(consumer.assign([queue()]).start())
        await w.clock.advance(seconds=41)
        assert heard == []
        await w.world.add_topic("T", 3)
        await w.until(lambda: bool(heard))
        assert heard == [("T", frozenset(queue(i) for i in range(3)))]
        assert await w.finish(consumer.fetch_queues("T")) == heard[0][1]


# ---- seeks and pauses ----------------------------------------------------------------------------


@pytest.mark.spec("client.8.36")
async def test_seeks_stay_between_the_first_and_the_last_offset(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite() as consumer:
        await w.send(*[b"%d" % i for i in range(5)])
        await w.finish(consumer.assign([queue()]).start())
        assert len(await polled(w, consumer, 5)) == 5
        for wrong in (-1, 6):
            with pytest.raises(ClientError, match=r"Seek offset illegal.*max offset = 5"):
                await w.finish(consumer.seek(queue(), wrong))
        with pytest.raises(ClientError, match="not in assigned list"):
            await w.finish(consumer.seek(queue(1), 0))
        await w.finish(consumer.seek(queue(), 3))
        assert bodies(await polled(w, consumer, 2)) == [b"3", b"4"]
        await w.finish(consumer.seek_to_begin(queue()))
        assert bodies(await polled(w, consumer, 5)) == [b"0", b"1", b"2", b"3", b"4"]
        await w.finish(consumer.seek_to_end(queue()))
        await w.send(b"5")
        assert bodies(await polled(w, consumer, 1)) == [b"5"]


async def test_a_seek_forgets_what_waits_and_can_be_committed(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite(pull_batch_size=2, auto_commit=False) as consumer:
        await w.send(*[b"%d" % i for i in range(6)])
        await w.finish(consumer.assign([queue()]).start())
        assert bodies(await polled(w, consumer, 2)) == [b"0", b"1"]
        await w.clock.advance(seconds=1)  # the rest waits here by now
        await w.finish(consumer.seek(queue(), 1))
        await consumer.commit(persist=True)
        assert await w.committed("g") == 1
        assert bodies(await polled(w, consumer, 5)) == [b"1", b"2", b"3", b"4", b"5"]


async def test_a_paused_queue_gives_only_what_was_fetched(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite() as consumer:
        await w.send(b"fetched")
        await w.finish(consumer.assign([queue()]).start())
        await w.clock.advance(seconds=1)
        consumer.pause([queue()])
        await w.send(b"later")
        assert bodies(await polled(w, consumer, 1)) == [b"fetched"]
        assert await w.finish(consumer.poll(3)) == []
        assert consumer.is_paused(queue())
        consumer.resume([queue()])
        assert bodies(await polled(w, consumer, 1)) == [b"later"]


async def test_fetching_stops_while_too_much_waits(tmp_path: Path) -> None:
    async with (
        pull_world(tmp_path) as w,
        w.lite(pull_batch_size=5, pull_threshold_for_queue=10) as consumer,
    ):
        await w.send(*[b"%d" % i for i in range(40)])
        await w.finish(consumer.assign([queue()]).start())
        await w.clock.advance(seconds=5)
        assert cached_count(consumer) == 15  # looked at before each pull of five
        assert bodies(await polled(w, consumer, 40)) == [b"%d" % i for i in range(40)]


async def test_offsets_by_time(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite() as consumer:
        await w.send(b"old")
        await w.clock.advance(seconds=100)
        between = w.clock.now_ms()
        await w.clock.advance(seconds=100)
        await w.send(b"new")
        await w.finish(consumer.assign([queue()]).start())
        assert await w.finish(consumer.offset_for_time(queue(), between)) == 1
        assert await w.finish(consumer.offset_for_time(queue(), 0)) == 0


# ---- where a queue begins ------------------------------------------------------------------------


async def test_a_new_group_begins_where_it_was_told(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w:
        await w.send(b"0", b"1")
        # A young topic is read from the beginning even by those who want the end; see the spec.
        async with w.lite("first", consume_from_where=FIRST) as consumer:
            await w.finish(consumer.assign([queue()]).start())
            assert bodies(await polled(w, consumer, 2)) == [b"0", b"1"]
            await consumer.commit({queue(): 1}, persist=True)
        async with w.lite("first", consume_from_where=FIRST) as consumer:
            await w.finish(consumer.subscribe("T").start())
            assert bodies(await polled(w, consumer, 1)) == [b"1"]


# ---- leaving ------------------------------------------------------------------------------------


async def test_leaving_an_iterator_commits_nothing_and_loses_nothing(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite() as consumer:
        await w.send(*[b"%d" % i for i in range(3)])
        await w.finish(consumer.subscribe("T").start())

        async def first() -> bytes:
            async for message in consumer:
                return message.body
            raise AssertionError

        assert await w.finish(first()) == b"0"
        await w.clock.advance(seconds=30)
        assert await w.committed("g") == 0  # as the broker had told it in the beginning
        assert await w.finish(first()) == b"1"  # the rest of the batch was kept
        await w.clock.advance(seconds=30)
        assert await w.committed("g") == 1  # 0 was handed out before; 1 may be under way
        assert bodies(await polled(w, consumer, 1)) == [b"2"]


async def test_batches_end_with_the_consumer(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite() as consumer:
        await w.send(b"a", b"b")
        await w.finish(consumer.assign([queue()]).start())

        async def all_batches() -> list[bytes]:
            return [body async for batch in consumer.batches() for body in bodies(batch)]

        reading = asyncio.ensure_future(all_batches())
        await w.clock.advance(seconds=7)
        assert not reading.done()
        await w.finish(consumer.stop())
        assert await w.finish(reading) == [b"a", b"b"]


async def test_a_queue_taken_away_is_not_handed_out(tmp_path: Path) -> None:
    async with pull_world(tmp_path, queue_count=2) as w, w.lite() as one, w.lite() as other:
        await w.send(b"a", b"b")
        await w.send(b"c", b"d", queue_id=1)
        await w.finish(one.subscribe("T").start())
        await w.until(lambda: len(one.assignment) == 2)
        await w.clock.advance(seconds=1)  # all four wait here
        await w.finish(other.subscribe("T").start())
        await w.until(lambda: len(one.assignment) == 1 == len(other.assignment))
        of_one, of_other = await polled(w, one, 2), await polled(w, other, 2)
        assert sorted(bodies(of_one + of_other)) == [b"a", b"b", b"c", b"d"]
        assert {m.queue for m in of_one} == one.assignment


async def test_broadcasting_consumers_keep_their_own_offsets(tmp_path: Path) -> None:
    settings = {
        "message_model": MessageModel.BROADCASTING,
        "offset_folder": tmp_path / "offsets",
        "consume_from_where": FIRST,
    }
    async with pull_world(tmp_path) as w:
        await w.send(b"a", b"b")
        for _ in range(2):
            async with w.lite("g", w.options(instance_name="one"), **settings) as one:
                await w.finish(one.subscribe("T").start())
                assert bodies(await polled(w, one, 2)) == [b"a", b"b"]
        async with w.lite("g", w.options(instance_name="one"), **settings) as one:
            await w.finish(one.subscribe("T").start())
            await polled(w, one, 2)
            await one.commit()
        assert await w.committed("g") == -1
        async with w.lite("g", w.options(instance_name="one"), **settings) as one:
            await w.finish(one.subscribe("T").start())
            await w.send(b"c")
            assert bodies(await polled(w, one, 1)) == [b"c"]


# ---- life and settings ---------------------------------------------------------------------------


async def test_use_before_the_start_and_after_the_end(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite() as consumer:
        with pytest.raises(ClientStateError, match="has not been started"):
            await consumer.poll()
        await w.finish(consumer.subscribe("T").start())
        with pytest.raises(ClientStateError, match="runs already"):
            await consumer.start()
        await w.finish(consumer.stop())
        with pytest.raises(ClientStateError, match="has been stopped"):
            await consumer.commit()
        with pytest.raises(ClientStateError, match="has been stopped"):
            consumer.subscribe("U")


async def test_a_group_twice_in_one_instance_is_refused(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w:
        options = w.options(instance_name="same")
        async with w.lite("g", options) as one, w.lite("g", options) as other:
            await w.finish(one.subscribe("T").start())
            with pytest.raises(ClientStateError, match="has been created before"):
                await w.finish(other.subscribe("T").start())
            assert one._session.instance.client_id == "127.0.0.1@same@STREAM"


async def test_tools_see_the_queues_and_their_offsets(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite() as consumer:
        await w.send(b"a", b"b", b"c")
        await w.finish(consumer.subscribe("T", "*").start())
        await w.until(lambda: cached_count(consumer) == 3)
        await consumer.commit({queue(): 2})
        client_id = consumer._session.instance.client_id
        answer = await w.ask(
            RequestCode.GET_CONSUMER_RUNNING_INFO, consumerGroup="g", clientId=client_id
        )
        info = decode_body(ConsumerRunningInfo, answer.body or b"")
        assert [each.topic for each in info.subscription_set] == ["T"]
        assert info.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
        assert info.mq_table[queue()].commit_offset == 2
        assert info.mq_table[queue()].cached_msg_count == 3
        answer = await w.ask(
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, topic="T", group="g", clientAddr=""
        )
        assert answer.code == 0
        assert b'"queueId":0' in (answer.body or b"")


async def test_bad_sql_fails_the_start(tmp_path: Path) -> None:
    async with (
        pull_world(tmp_path, enablePropertyFilter="true") as w,
        w.lite() as consumer,
        w.lite("other") as other,
    ):
        with pytest.raises(FilterSyntaxError, match="CODE: 23"):
            await w.finish(consumer.subscribe("T", sql="a >").start())
        await w.send(b"small", a="1")
        await w.send(b"large", a="9")
        await w.finish(other.subscribe("T", sql="a > 5").start())
        assert bodies(await polled(w, other, 1)) == [b"large"]


async def test_names_in_a_namespace(tmp_path: Path) -> None:
    async with (
        pull_world(tmp_path, topic="ns%T") as w,
        w.lite("g", w.options(namespace="ns"), auto_commit=False) as consumer,
    ):
        await w.send(b"x", topic="ns%T")
        await w.finish(consumer.subscribe("T").start())
        [message] = await polled(w, consumer, 1)
        assert message.topic == "T"
        assert consumer.assignment == {queue()}
        await consumer.commit([message], persist=True)
        assert await w.committed("ns%g", topic="ns%T") == 1
        assert await w.finish(consumer.committed(queue())) == 1


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="pull_batch_size must be positive"):
        LitePullConsumer("g", pull_batch_size=0)
    with pytest.raises(ConfigError, match="must not be less than suspend_max"):
        LitePullSettings(suspend_timeout=10)
    with pytest.raises(ConfigError, match="yyyyMMddHHmmss"):
        LitePullSettings(consume_timestamp="yesterday")
    assert LitePullSettings(auto_commit_interval=0.2).commit_interval_s == 1.0
    with pytest.raises(ClientError):
        LitePullConsumer("no group")


async def test_a_time_to_begin_at_is_half_an_hour_ago_unless_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing_stored(self: RemoteOffsets, queue: MessageQueue) -> None:
        """A young topic makes brokers answer 0 instead."""

    monkeypatch.setattr(RemoteOffsets, "read", nothing_stored)
    where = ConsumeFromWhere.CONSUME_FROM_TIMESTAMP
    async with pull_world(tmp_path) as w:
        await w.send(b"old")
        old = datetime.fromtimestamp(w.clock.now_ms() / 1000).astimezone()
        await w.clock.advance(seconds=40 * 60)
        await w.send(b"new")
        await w.clock.advance(seconds=20 * 60)
        for given, expected in ((None, [b"new"]), (old, [b"old", b"new"])):
            group = f"g{len(expected)}"
            async with w.lite(group, consume_from_where=where, consume_timestamp=given) as lite:
                await w.finish(lite.subscribe("T").start())
                assert bodies(await polled(w, lite, len(expected))) == expected


async def test_the_assignment_is_a_property_that_may_always_be_asked_for(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite() as consumer:
        assert consumer.assignment == frozenset()
        await w.finish(consumer.subscribe("T").start())
        await w.until(lambda: consumer.assignment == {queue()})
        await w.finish(consumer.stop())
        assert consumer.assignment == frozenset()


# ---- the two planes ------------------------------------------------------------------------------


async def test_a_blocked_application_keeps_no_queue(tmp_path: Path) -> None:
    """While this loop is blocked, another member takes its share; nothing of it is handed out."""
    shared, may_leave = threading.Event(), threading.Event()
    of_other: list[MessageExt] = []

    async def take_share(options: ClientOptions, given_up: Callable[[], bool]) -> None:
        other = LitePullConsumer("g", options, consume_from_where=FIRST).subscribe("T")
        async with other:
            while len(of_other) < 4:
                of_other.extend(await other.poll(20))
            await eventually(given_up)
            shared.set()
            await asyncio.to_thread(may_leave.wait, 60)

    with served(tmp_path) as at, ThreadPoolExecutor(1) as pool:
        for queue_id in range(4):
            body = b"%d" % queue_id
            await asyncio.to_thread(at.send, body, body, queue_id=queue_id)
        options = ClientOptions(namesrv=at.namesrv)
        async with LitePullConsumer("g", options, consume_from_where=FIRST).subscribe("T") as one:
            await eventually(lambda: cached_count(one) == 8)
            member = one._session._member
            taking = take_share(options, lambda: len(member.process_queues) == 2)
            other = pool.submit(lambda: asyncio.run(taking))
            try:
                assert shared.wait(60)  # this loop does not run meanwhile
                mine = await one.poll() + await one.poll()
            finally:
                may_leave.set()
            await asyncio.wrap_future(other)
            taken = {message.queue for message in of_other}
            assert len(taken) == 2
            assert not {message.queue for message in mine} & taken
            assert sorted(bodies(of_other + mine)) == sorted([b"0", b"1", b"2", b"3"] * 2)


def test_a_second_subscription_with_another_filter_is_refused() -> None:
    consumer = LitePullConsumer("g").subscribe("T", "A")
    with pytest.raises(ClientError, match="topic T is subscribed with tags 'A' already"):
        consumer.subscribe("T", "B")
    with pytest.raises(ClientError, match="topic T is subscribed with tags 'A' already"):
        consumer.subscribe("T")
    consumer.subscribe("T", "A")
    consumer.unsubscribe("T")
    consumer.subscribe("T", "B")
