"""Our admin functions on Apache's servers, and traces: ours read by mqadmin, Java's read by us."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from skylark.admin.admin_client import Admin
from skylark.admin.errors import NotFoundError
from skylark.admin.trace_query import MessageTrace
from skylark.client.core.client_options import ClientOptions
from skylark.wire.bodies.common_body import MessageQueue
from tests.interop.broker_scenarios.scene import QUEUES, TIMEOUT_S, keys
from tests.interop.client_scenarios.stage import Stage, wait_keys
from tests.interop.cluster import AdminError
from tests.interop.process import poll_until
from tests.interop.toolchain import CURRENT

pytestmark = pytest.mark.interop

COUNT = 20


@asynccontextmanager
async def admin_of(stage: Stage) -> AsyncIterator[Admin]:
    """Our admin client on the servers of a stage."""
    async with Admin(ClientOptions(namesrv=stage.site.namesrv.address), timeout=15.0) as admin:
        yield admin


async def eventually(check: Callable[[], Awaitable[object]], what: str) -> None:
    """Wait until an asynchronous check is true."""
    seen: object = None
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while not (seen := await check()):  # noqa: ASYNC110 - servers do not tell
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{what}: not within {TIMEOUT_S:g} s, last seen: {seen!r}") from None


def queue(stage: Stage, number: int) -> MessageQueue:
    name = stage.site.broker.broker_name
    return MessageQueue(topic=stage.topic, broker_name=name, queue_id=number)


async def test_topics(stage: Stage) -> None:
    topic = f"{stage.topic}_made"
    async with admin_of(stage) as admin:
        (made,) = await admin.topics.create(topic, queue_count=3)
        assert (made.broker, made.created, made.queue_count) == ("broker-a", True, 3)

        async def listed() -> bool:
            return topic in await admin.topics.names()

        await eventually(listed, "the new topic")
        await admin.topics.update(topic, read_queue_count=6, write_queue_count=6)

        async def grown() -> bool:
            route = await admin.topics.route(topic)
            return [each.write_queue_nums for each in route.queue_datas] == [6]

        await eventually(grown, "six queues")
        shown = stage.cluster.route(topic)
        assert [(each.read_queues, each.write_queues) for each in shown.queues] == [(6, 6)]
        await admin.topics.delete(topic)

        async def gone() -> bool:
            return topic not in await admin.topics.names()

        await eventually(gone, "the topic to be gone")


async def test_groups_and_offsets(stage: Stage) -> None:
    """A group of ours and Java's: members, progress, and a reset that reaches both."""
    stage.java.push("j")
    stage.ours.push("o")
    stage.wait_shares(QUEUES, 2, 2)
    stage.java.producer()
    stage.java.send(COUNT, prefix="m")

    def everyone() -> list[str]:
        return [each.keys for each in [*stage.java.got("j"), *stage.ours.got("o")]]

    poll_until(lambda: len(everyone()) == COUNT, timeout_s=TIMEOUT_S, what="20 messages")
    async with admin_of(stage) as admin:
        bounds = await admin.offsets.bounds(stage.topic)
        assert [(each.min_offset, each.max_offset) for each in bounds.queues] == [(0, 5)] * QUEUES
        members = await admin.groups.members(stage.group)
        assert sorted(member.language for member in members.members) == ["JAVA", "PYTHON"]
        for member in members.members:
            info = await admin.groups.running_info(stage.group, member.client_id)
            mine = [each for each in info.mq_table if each.topic == stage.topic]
            assert len(mine) == QUEUES // 2

        async def consumed() -> bool:
            progress = await admin.groups.progress(stage.group, stage.topic)
            return progress.lag == 0 and len(progress.queues) == QUEUES

        await eventually(consumed, "all committed")
        committed = await admin.offsets.committed(stage.group, stage.topic)
        assert committed == {queue(stage, number): 5 for number in range(QUEUES)}
        await admin.offsets.reset(stage.group, stage.topic, "earliest")

    def again() -> bool:
        return sorted(everyone()) == sorted([*keys("m", COUNT)] * 2)

    poll_until(again, timeout_s=TIMEOUT_S, what="everything once more")


async def test_messages(stage: Stage) -> None:
    stage.java.producer()
    sent = stage.java.send(COUNT, prefix="find", tags="A,B")
    key, queue_id, offset, msg_id = sent[7]
    async with admin_of(stage) as admin:

        async def indexed() -> bool:
            return len(await admin.messages.by_key(stage.topic, key)) == 1

        await eventually(indexed, "the index")
        (by_key,) = await admin.messages.by_key(stage.topic, key)
        (by_id,) = await admin.messages.by_unique_id(stage.topic, msg_id)
        by_place = await admin.messages.at(queue(stage, queue_id), offset)
        by_offset_id = await admin.messages.get(by_place.offset_msg_id)
        for found in (by_key, by_id, by_place, by_offset_id):
            assert (found.msg_id, found.queue_id, found.queue_offset) == (msg_id, queue_id, offset)
            assert found.body.decode() == key
        everything = [each async for each in admin.messages.between(stage.topic)]
        assert {(each.keys[0], each.msg_id) for each in everything} == {
            (key, msg_id) for key, _, _, msg_id in sent
        }
        with pytest.raises(NotFoundError):
            await admin.messages.get(msg_id[:-4] + "FFFF", stage.topic)


async def test_dead_letters_are_sent_again(stage: Stage) -> None:
    """What Java's consumer gave up comes to the topic again, once."""
    stage.java.push("j", fail_times=99, retries=0)
    stage.java.producer()
    stage.java.send(5, prefix="dead")
    stage.java.wait_got("j", count=5)
    async with admin_of(stage) as admin:

        async def dead() -> bool:
            letters = await admin.dlq.all()
            return {each.group: each.count for each in letters}.get(stage.group) == 5

        await eventually(dead, "five dead letters")
        stage.java.stop("j")
        stage.ours.push("o")
        dry = await admin.dlq.redrive(stage.group, dry_run=True)
        report = await admin.dlq.redrive(stage.group)
        assert (dry.counts.sent, report.counts.sent) == (5, 5)
    got = wait_keys(lambda: stage.ours.got("o"), keys("dead", 5))
    assert sorted(each.keys for each in got) == sorted(keys("dead", 5))
    assert {each.topic for each in got} == {stage.topic}


async def test_clusters_and_settings(stage: Stage) -> None:
    async with admin_of(stage) as admin:
        report = await admin.stats.clusters()
        (broker,) = report.brokers
        shown = stage.cluster.brokers()[0]
        assert (broker.broker, broker.address) == (shown.broker_name, shown.address)
        settings = (await admin.settings.brokers()).servers[0].settings
        assert settings["brokerName"] == "broker-a"
        await admin.settings.set_brokers({"maxMessageSize": "4194305"})
        settings = (await admin.settings.brokers()).servers[0].settings
        assert settings["maxMessageSize"] == "4194305"
        await admin.settings.set_brokers({"maxMessageSize": "4194304"})


# Traces


async def test_our_traces_are_read_by_mqadmin(stage: Stage) -> None:
    stage.ours.producer(trace="yes", alone="yes")
    stage.ours.push("c", trace="yes")
    ((_, _, _, msg_id),) = stage.ours.send(1, prefix="traced", tags="A")
    stage.ours.wait_got("c", count=1)
    shown: list[str] = []

    def traced() -> bool:
        with suppress(AdminError):  # it fails as long as there is no trace
            shown[:] = [stage.cluster.run("queryMsgTraceById", "-i", msg_id)]
        return bool(shown) and "Sub" in shown[0] and "Pub" in shown[0]

    poll_until(traced, timeout_s=TIMEOUT_S, what="the trace of one message")
    rows = [line.split() for line in shown[0].splitlines() if re.match(r"(Pub|Sub)", line)]
    # type, producer or consumer group, client host, time (two words), cost, status
    assert [(row[0], row[1], row[-1]) for row in sorted(rows)] == [
        ("Pub", f"{stage.topic}_p", "success"),
        ("Sub", stage.group, "success"),
    ]


@pytest.mark.parametrize("stage", [CURRENT], indirect=True)
async def test_java_traces_are_read_by_us(stage: Stage) -> None:
    stage.java.producer(trace="yes")
    stage.java.push("c", trace="yes")
    ((_, _, _, msg_id),) = stage.java.send(1, prefix="traced", tags="A")
    stage.java.wait_got("c", count=1)
    found: list[MessageTrace] = []
    async with admin_of(stage) as admin:

        async def traced() -> bool:
            try:
                found[:] = [await admin.messages.trace(msg_id)]
            except NotFoundError:
                return False
            return bool(found[0].sends and found[0].deliveries and found[0].deliveries[0].after)

        await eventually(traced, "the trace of one message")
    (sent,), (delivery,) = found[0].sends, found[0].deliveries
    assert (sent.topic, sent.group, sent.tags) == (stage.topic, f"{stage.topic}_p", "A")
    assert delivery.group == stage.group
