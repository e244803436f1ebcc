"""The trace dispatcher: when traces go, in which messages, and what happens when they cannot."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skylark.client.consumer.lite_pull.lite_pull_consumer import LitePullConsumer
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.core.client_message import DeadLetter, Message, MessageExt, TxState
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.client_runtime import inline_runtime
from skylark.client.core.instance_registry import instance_count
from skylark.client.producer.producer import Producer
from skylark.client.trace.trace_dispatcher import (
    BODY_SIZE_MAX,
    KEYS_SIZE_MAX,
    QUEUE_MAX,
    TraceContext,
    TraceDispatcher,
    messages_of,
)
from skylark.client.trace.trace_records import (
    EndTransactionTrace,
    PubTrace,
    SubAfterTrace,
    SubBeforeTrace,
    Trace,
    decode_traces,
)
from skylark.core.clock import LoopClock
from skylark.core.errors import NoRouteError
from skylark.core.metrics import Registry
from skylark.core.names import TRACE_TOPIC
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import ConsumeFromWhere
from skylark.wire.message import MessageRecord
from tests.unit.client.consumer.pull_world import served
from tests.unit.client.producer_world import Cluster, cluster, scripted

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


def pub(msg_id: str, *, topic: str = "T", keys: str | None = None, tags: str = "") -> PubTrace:
    return PubTrace(
        time_ms=1,
        region_id="R",
        group="pg",
        topic=topic,
        msg_id=msg_id,
        tags=tags,
        keys=keys,
        store_host="h",
        body_size=1,
        cost_ms=1,
        message_type=0,
        offset_msg_id="o",
    )


def context(msg_id: str, **given: Any) -> TraceContext:
    record = pub(msg_id, **given)
    return TraceContext(record.topic, record.region_id, (record,))


def ids(message: Message) -> list[str]:
    return [record.msg_id for record in decode_traces(message.body.decode())]


# ---- messages ------------------------------------------------------------------------------------


def test_contexts_of_one_topic_go_together() -> None:
    contexts = [context("1", topic="A"), context("2", topic="B"), context("3", topic="A")]
    found = list(messages_of(contexts, lambda _: "trace"))
    assert [(message.topic, ids(message)) for message in found] == [
        ("trace", ["1", "3"]),
        ("trace", ["2"]),
    ]


def test_a_region_of_the_cloud_has_its_own_messages() -> None:
    contexts = [TraceContext("T", region, (pub(region),)) for region in ("x", "y", "x")]
    found = list(messages_of(contexts, lambda each: f"trace_{each.region_id}"))
    assert [(message.topic, ids(message)) for message in found] == [
        ("trace_x", ["x", "x"]),
        ("trace_y", ["y"]),
    ]


def test_a_message_is_found_by_all_ids_and_keys() -> None:
    contexts = [context("1", keys="k1 k2"), context("2", keys="k1"), context("1")]
    (message,) = messages_of(contexts, lambda _: "trace")
    assert message.keys == ("1", "k1", "k2", "2")


def test_messages_are_cut_before_they_are_too_large() -> None:
    contexts = [context(str(number), tags="ä" * 20_000) for number in range(10)]
    found = list(messages_of(contexts, lambda _: "trace"))
    assert [each for message in found for each in ids(message)] == list(map(str, range(10)))
    assert [len(ids(message)) for message in found] == [3, 3, 3, 1]
    assert all(len(message.body) <= BODY_SIZE_MAX for message in found)


def test_messages_are_cut_before_their_keys_are_too_large() -> None:
    contexts = [context(f"{number:032}") for number in range(2_000)]
    found = list(messages_of(contexts, lambda _: "trace"))
    assert sum(len(message.keys) for message in found) == 2_000
    assert len(found) == 5
    assert all(len(" ".join(message.keys)) <= KEYS_SIZE_MAX for message in found)


def test_keys_that_fill_the_properties_are_left_out() -> None:
    (message,) = messages_of([context("1", keys="k" * KEYS_SIZE_MAX)], lambda _: "trace")
    assert message.keys == ("1",)


# ---- when they go --------------------------------------------------------------------------------


def traces(c: Cluster, topic: str = TRACE_TOPIC) -> list[MessageRecord]:
    """What the broker has stored in a topic."""
    config = c.world.brokers["broker-a"].features.topics.table.get(topic)
    assert config is not None
    return c.records(topic, config.write_queue_nums)


@asynccontextmanager
async def dispatching(root: Path, **options: Any) -> AsyncIterator[tuple[Cluster, TraceDispatcher]]:
    async with cluster(root, broker={"traceTopicEnable": "true"}) as c:
        await c.clock.advance(seconds=31)
        runtime = inline_runtime(c.world.network, c.clock)
        dispatcher = TraceDispatcher(runtime, c.world.options(**options), "pg", "PRODUCE")
        dispatcher.start()
        await c.clock.drain()
        try:
            yield c, dispatcher
        finally:
            await c.world.finish(dispatcher.stop())


async def test_enough_of_them_go_at_once(tmp_path: Path) -> None:
    async with dispatching(tmp_path, trace_batch=3) as (c, dispatcher):
        for number in range(7):
            assert dispatcher.append(context(str(number)))
        await c.clock.advance(seconds=0.1)
        found = [ids(Message("", record.body)) for record in traces(c)]
        assert sorted(found) == [["0", "1", "2"], ["3", "4", "5"]]
        assert len(dispatcher) == 1
        await c.clock.advance(seconds=4.8)
        assert len(dispatcher) == 1
        await c.clock.advance(seconds=0.2)  # five seconds after the last
        assert len(dispatcher) == 0
        assert dispatcher.sent == 3


async def test_the_first_after_a_quiet_time_goes_at_once(tmp_path: Path) -> None:
    async with dispatching(tmp_path) as (c, dispatcher):
        await c.clock.advance(seconds=6)
        dispatcher.append(context("1"))
        await c.clock.drain()
        (record,) = traces(c)
        assert record.properties["KEYS"] == "1"


async def test_a_batch_is_never_more_than_20(tmp_path: Path) -> None:
    async with dispatching(tmp_path, trace_batch=500) as (c, dispatcher):
        for number in range(45):
            dispatcher.append(context(str(number)))
        await c.clock.advance(seconds=1)
        assert sorted(len(ids(Message("", r.body))) for r in traces(c)) == [20, 20]
        assert len(dispatcher) == 5


async def test_stop_sends_what_waits(tmp_path: Path) -> None:
    async with dispatching(tmp_path) as (c, dispatcher):
        dispatcher.append(context("1"))
        await c.clock.drain()
        assert traces(c) == []
        await c.world.finish(dispatcher.stop())
        assert [ids(Message("", record.body)) for record in traces(c)] == [["1"]]
        assert not dispatcher.append(context("2"))
        assert dispatcher.discarded == 1


async def test_it_is_known_to_brokers_as_java_names_it(tmp_path: Path) -> None:
    async with dispatching(tmp_path, namespace="ns") as (c, dispatcher):
        dispatcher.append(context("1"))
        await c.clock.advance(seconds=31)  # a heartbeat later
        head, _, number = dispatcher.group.rpartition("-")
        assert head == "_INNER_TRACE_PRODUCER-pg-PRODUCE"
        assert number.isdigit()
        known = c.world.brokers["broker-a"].features.groups.producers.connection_list(
            dispatcher.group
        )
        assert known is not None
        assert [each.client_id for each in known.connection_set] == [
            f"127.0.0.1@PID_CLIENT_INNER_TRACE_PRODUCER_{c.world.namesrv}"
        ]


async def test_another_topic_and_the_cloud(tmp_path: Path) -> None:
    async with dispatching(tmp_path / "1", trace_topic="mine", namespace="ns") as (c, dispatcher):
        dispatcher.append(context("1"))
        await c.world.finish(dispatcher.stop())
        assert [ids(Message("", record.body)) for record in traces(c, "mine")] == [["1"]]
    async with dispatching(tmp_path / "2", access_channel="CLOUD") as (c, dispatcher):
        dispatcher.append(context("1"))
        await c.world.finish(dispatcher.stop())
        found = traces(c, "rmq_sys_TRACE_DATA_R")
        assert [ids(Message("", record.body)) for record in found] == [["1"]]


# ---- when they cannot ----------------------------------------------------------------------------


async def test_a_full_queue_drops_and_counts(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry()
    async with cluster(tmp_path) as c:
        runtime = inline_runtime(c.world.network, c.clock)
        options = c.world.options(metrics=registry)
        dispatcher = TraceDispatcher(runtime, options, "pg", "CONSUME")
        taken = [dispatcher.append(context("1")) for _ in range(QUEUE_MAX + 3)]
        assert (taken.count(True), taken.count(False)) == (QUEUE_MAX, 3)
        assert dispatcher.discarded == 3
        assert caplog.text.count("are dropped") == 1
        assert 'skylark_client_traces_total{outcome="dropped"} 3\n' in registry.render()
        await dispatcher.stop()  # it was never started


async def test_appends_from_threads_are_all_counted(tmp_path: Path) -> None:
    async with cluster(tmp_path) as c:
        runtime = inline_runtime(c.world.network, c.clock)
        dispatcher = TraceDispatcher(runtime, c.world.options(), "pg", "CONSUME")
        threads = [
            threading.Thread(target=lambda: [dispatcher.append(context("1")) for _ in range(1000)])
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert (len(dispatcher), dispatcher.discarded) == (QUEUE_MAX, 4000 - QUEUE_MAX)


async def test_no_send_fails_or_waits_because_of_its_trace(tmp_path: Path) -> None:
    """The trace topic has no route, and the name server does not answer about it."""
    async with scripted(tmp_path, given={"trace": True}, batching=False) as s:
        for _ in range(25):
            result = await s.producer.send(Message("T", b"x"))
            assert result.queue_offset == 5
        await s.clock.advance(seconds=20)
        tracer = s.producer._tracer
        assert tracer is not None
        assert (tracer.sent, tracer.failed, len(tracer)) == (0, 3, 0)


async def test_a_broker_that_hangs_holds_up_the_stop_for_five_seconds(tmp_path: Path) -> None:
    given = {"trace": True, "trace_topic": "T", "trace_batch": 1}
    async with scripted(tmp_path, given=given) as s:
        tracer = s.producer._tracer
        assert tracer is not None
        await s.clock.advance(seconds=1)
        s.answer(None)
        tracer.append(context("1", topic="X"))
        began = s.clock.monotonic()
        await s.world.finish(s.producer.stop())
        assert 5 <= s.clock.monotonic() - began <= 6


async def test_two_credentials_for_one_name_server(tmp_path: Path) -> None:
    """They cannot share an instance, so the second gets its own."""
    async with dispatching(tmp_path) as (c, _):
        before = instance_count()
        runtime = inline_runtime(c.world.network, c.clock)
        options = c.world.options(acl=("ak", "sk"))
        other = TraceDispatcher(runtime, options, "pg", "PRODUCE")
        other.start()
        await c.clock.drain()
        assert instance_count() == before + 1
        other.append(context("1"))
        await c.world.finish(other.stop())
        assert other.sent == 1
        assert instance_count() == before


# ---- all of it -----------------------------------------------------------------------------------


async def queues_of(lite: LitePullConsumer, topic: str) -> frozenset[MessageQueue]:
    """The queues of a topic, once the name server knows of them."""

    async def ask() -> frozenset[MessageQueue]:
        while True:
            try:
                return await lite.fetch_queues(topic)
            except NoRouteError:
                await clock.sleep(0.02)

    clock = LoopClock()
    return await clock.wait_for(ask(), 20)


async def known(namesrv: str, topic: str) -> None:
    """Wait until the name server knows a topic."""
    async with LitePullConsumer("asks", ClientOptions(namesrv=namesrv)) as lite:
        assert await queues_of(lite, topic)


async def traced(namesrv: str, count: int) -> list[tuple[MessageExt, list[Trace]]]:
    """What the trace topic has, until there are ``count`` records."""
    found: list[tuple[MessageExt, list[Trace]]] = []
    options = ClientOptions(namesrv=namesrv)
    async with LitePullConsumer("reader", options, consume_from_where=FIRST) as reader:
        reader.assign(await queues_of(reader, TRACE_TOPIC))
        while sum(len(records) for _, records in found) < count:
            batch = await reader.poll(10)
            assert batch, found
            found += [(each, decode_traces(each.body.decode())) for each in batch]
    return found


@pytest.mark.spec("client.8.38")
async def test_a_message_leaves_its_trace_from_producer_to_consumer(tmp_path: Path) -> None:
    """Over TCP, with the control thread, against a real broker."""
    tried: list[str] = []
    done = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        tried.append(message.msg_id)
        if len(tried) == 2:
            done.set()
            raise DeadLetter

    with served(tmp_path) as site:
        options = ClientOptions(namesrv=site.namesrv, client_ip="127.0.0.1", trace=True)
        await known(site.namesrv, "TBW102")
        async with Producer("pg", options) as producer:
            plain = await producer.send(Message("T", b"12345"))
            tagged = await producer.send(Message("T", b"1", tag="A", keys=["k1", "k2"]))
        await known(site.namesrv, "T")
        consumer = PushConsumer("cg", options, consume_from_where=FIRST)
        consumer.subscribe("T", handle)
        async with consumer:
            await LoopClock().wait_for(done.wait(), 20)
        found = await traced(site.namesrv, 2 + 2 * 2)
        records = [record for _, of_message in found for record in of_message]

        pubs = {each.msg_id: each for each in records if isinstance(each, PubTrace)}
        assert set(pubs) == {plain.msg_id, tagged.msg_id}
        first = pubs[plain.msg_id]
        message = next(m for m, of_message in found if first in of_message)
        raw = next(r for r in message.body.decode().split("\x02") if plain.msg_id in r)
        assert raw.split("\x01") == [
            "Pub",
            str(first.time_ms),
            "DefaultRegion",
            "pg",
            "T",
            plain.msg_id,
            "null",
            "null",
            site.broker,
            "5",
            str(first.cost_ms),
            "0",
            plain.offset_msg_id,
            "true",
        ]
        assert 0 <= first.cost_ms < 10_000
        assert abs(message.born_time.timestamp() * 1000 - first.time_ms) < 60_000
        second = pubs[tagged.msg_id]
        assert (second.tags, second.keys, second.body_size) == ("A", "k1 k2", 1)
        assert {plain.msg_id, tagged.msg_id, "k1", "k2"} >= set(message.keys)

        before = [each for each in records if isinstance(each, SubBeforeTrace)]
        after = {
            (each.request_id, each.msg_id): each
            for each in records
            if isinstance(each, SubAfterTrace)
        }
        assert len(before) == len(after) == 2
        assert {(each.request_id, each.msg_id) for each in before} == set(after)
        assert {each.group for each in before} == {"cg"}
        assert [each.retry_times for each in before] == [0, 0]
        assert [each.success for each in after.values()].count(False) == 1
        assert sorted(each.context_code for each in after.values()) == [0, 4]
        assert {each.group for each in after.values()} == {"cg"}


async def test_a_transaction_is_traced(tmp_path: Path) -> None:
    with served(tmp_path) as site:
        options = ClientOptions(namesrv=site.namesrv, client_ip="127.0.0.1", trace=True)
        await known(site.namesrv, "TBW102")
        async with Producer("pg", options) as producer:
            producer.transaction_checker(lambda _: TxState.COMMIT)
            async with producer.transaction(Message("T", b"x", tag="A")) as transaction:
                pass
        found = await traced(site.namesrv, 2)
    records = [record for _, of_message in found for record in of_message]
    half = next(each for each in records if isinstance(each, PubTrace))
    assert (half.msg_id, half.message_type) == (transaction.id, 1)
    end = next(each for each in records if isinstance(each, EndTransactionTrace))
    assert (end.msg_id, end.topic, end.group, end.tags) == (transaction.id, "T", "pg", "A")
    assert (end.state, end.from_check, end.message_type) == ("COMMIT_MESSAGE", False, 2)
    assert end.transaction_id == transaction.id
    assert end.store_host == site.broker


async def test_lite_pull_traces_what_it_hands_out(tmp_path: Path) -> None:
    with served(tmp_path) as site:
        options = ClientOptions(namesrv=site.namesrv, trace=True)
        await known(site.namesrv, "TBW102")
        await asyncio.to_thread(site.send, b"a", b"b")
        async with LitePullConsumer("lg", options, consume_from_where=FIRST) as lite:
            lite.assign(await queues_of(lite, "T"))
            handed = await lite.poll(20)
        found = await traced(site.namesrv, 4)
    records = [record for _, of_message in found for record in of_message]
    assert [each.msg_id for each in handed] * 2 == [each.msg_id for each in records]
    requests = [e.request_id for e in records if isinstance(e, (SubBeforeTrace, SubAfterTrace))]
    assert len(requests) == 4
    assert len(set(requests)) == 1


async def test_each_message_of_a_batch_has_its_record(tmp_path: Path) -> None:
    async with cluster(tmp_path, broker={"traceTopicEnable": "true"}) as c:
        await c.clock.advance(seconds=31)
        runtime = inline_runtime(c.world.network, c.clock)
        producer = Producer("pg2", c.world.options(trace=True), runtime=runtime)
        await producer.start()
        results = await producer.send_batch([Message("T", b"1"), Message("T", b"22", tag="A")])
        await c.world.finish(producer.stop())
        (stored,) = traces(c)
        records = decode_traces(stored.body.decode())
        assert [each.msg_id for each in records] == [each.msg_id for each in results]
        assert [(each.body_size, each.tags) for each in records if isinstance(each, PubTrace)] == [
            (1, None),
            (2, "A"),
        ]
