"""Progress and rates by request, on a broker with a real store."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark.broker.admin.stats_handlers import local_time
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.stats import (
    BrokerStatsData,
    ConsumeStats,
    ConsumeStatsList,
    QueryConsumeTimeSpanBody,
    QueryCorrectionOffsetBody,
    TopicStatsTable,
)
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body
from tests.unit.broker.members import Member, silent
from tests.unit.broker.recorded import exchanges
from tests.unit.broker.stored import Stored, stored


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Stored]:
    async with stored(tmp_path) as running:
        yield running


def queue(topic: str, queue_id: int = 0) -> MessageQueue:
    return MessageQueue(topic=topic, broker_name="broker-a", queue_id=queue_id)


async def send(world: Stored, topic: str, queue_id: int, count: int) -> None:
    for _ in range(count):
        assert (await world.send(topic, queue_id=queue_id)).code == 0
        await world.clock.advance(0.001)


async def topic_stats(world: Stored, topic: str) -> TopicStatsTable:
    answer = await world.call(RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic})
    assert (answer.code, answer.remark, answer.ext) == (0, None, None)
    return decode_body(TopicStatsTable, answer.body or b"")


async def consume_stats(world: Stored, group: str, **ext: str) -> ConsumeStats:
    answer = await world.call(RequestCode.GET_CONSUME_STATS, {"consumerGroup": group, **ext})
    assert (answer.code, answer.remark, answer.ext) == (0, None, None)
    return decode_body(ConsumeStats, answer.body or b"")


# --- 202 ---


@pytest.mark.spec("remoting.10.12")
async def test_every_queue_of_a_topic_is_shown(world: Stored) -> None:
    world.add_topic("T", 2)
    began_ms = world.clock.now_ms()
    await send(world, "T", 1, 3)
    table = (await topic_stats(world, "T")).offset_table
    assert list(table) == [queue("T", 0), queue("T", 1)]
    empty, full = table.values()
    assert (empty.min_offset, empty.max_offset, empty.last_update_timestamp) == (0, 0, 0)
    assert (full.min_offset, full.max_offset) == (0, 3)
    assert full.last_update_timestamp == began_ms + 2


async def test_write_queues_beyond_the_read_queues_are_shown_as_well(world: Stored) -> None:
    world.add_topic("T", 1)
    answer = await world.call(
        RequestCode.UPDATE_AND_CREATE_TOPIC,
        {
            "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "3",
            "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false",
        },
    )  # fmt: skip
    assert answer.code == 0
    assert len((await topic_stats(world, "T")).offset_table) == 3


async def test_stats_of_an_unknown_topic_are_refused_as_recorded(world: Stored) -> None:
    ((request, recorded),) = exchanges("errors", RequestCode.GET_TOPIC_STATS_INFO)
    answer = await world.call(request.code, request.ext)
    assert (answer.code, answer.remark) == (recorded.code, recorded.remark)
    assert (answer.code, answer.remark) == (17, "topic[NoSuchTopic] not exist")


async def test_recorded_topic_stats(world: Stored) -> None:
    world.add_topic("FrameA", 2)
    ((request, recorded),) = exchanges("admin-topicStatus", RequestCode.GET_TOPIC_STATS_INFO)
    await send(world, "FrameA", 0, 15)
    await send(world, "FrameA", 1, 12)
    answer = await world.call(request.code, request.ext)
    assert without_times(answer) == without_times(recorded)


def without_times(answer: Command) -> bytes:
    return re.sub(rb"\d{12,}", b"<time>", answer.body or b"")


# --- 208 ---


async def test_recorded_progress(world: Stored) -> None:
    world.add_topic("FrameA", 2)
    world.add_topic("%RETRY%golden_push_cg", 1)
    await send(world, "FrameA", 0, 15)
    await send(world, "FrameA", 1, 12)
    await send(world, "%RETRY%golden_push_cg", 0, 2)
    offsets = world.features.groups.offsets
    for queue_id, committed in enumerate((15, 12)):
        offsets.commit("golden_push_cg", "FrameA", queue_id, committed)
    offsets.commit("golden_push_cg", "%RETRY%golden_push_cg", 0, 2)
    offsets.commit("golden_sql_cg", "FrameA", 0, 13)
    offsets.commit("golden_sql_cg", "FrameA", 1, 9)
    offsets.commit_pulled("golden_sql_cg", "FrameA", 0, 15)
    offsets.commit_pulled("golden_sql_cg", "FrameA", 1, 12)
    offsets.commit("golden_pull_cg", "FrameA", 0, 13)
    known = ("golden_push_cg", "golden_sql_cg", "golden_pull_cg")
    compared = 0
    for name in ("admin-consumerProgress", "admin-statsAll"):
        for request, recorded in exchanges(name, RequestCode.GET_CONSUME_STATS):
            assert request.ext is not None
            if request.ext["consumerGroup"] in known:
                answer = await world.call(request.code, request.ext)
                assert (answer.code, answer.remark, answer.ext) == (0, None, None)
                ours = decode_body(ConsumeStats, without_times(answer).replace(b"<time>", b"1"))
                theirs = decode_body(ConsumeStats, without_times(recorded).replace(b"<time>", b"1"))
                assert ours == theirs
                compared += 1
    assert compared == 4


async def test_the_last_consumed_message_gives_the_time(world: Stored) -> None:
    world.add_topic("T", 1)
    began_ms = world.clock.now_ms()
    await send(world, "T", 0, 5)
    world.features.groups.offsets.commit("g", "T", 0, 3)
    (report,) = (await consume_stats(world, "g")).offset_table.values()
    assert (report.broker_offset, report.consumer_offset, report.pull_offset) == (5, 3, 3)
    assert report.last_timestamp == began_ms + 2


async def test_topics_that_an_online_group_does_not_subscribe_are_left_out(world: Stored) -> None:
    for topic in ("T", "U"):
        world.add_topic(topic, 1)
        world.features.groups.offsets.commit("g", topic, 0, 0)
    assert {q.topic for q in (await consume_stats(world, "g")).offset_table} == {"T", "U"}
    member = Member(world, "c1", silent)
    await member.join("g", "T")
    assert {q.topic for q in (await consume_stats(world, "g")).offset_table} == {"T"}
    assert (await consume_stats(world, "g", topic="U")).offset_table == {}
    # A list of topics is taken as it is.
    named = await consume_stats(world, "g", topicList="U;;NoSuchTopic;U;")
    assert list(named.offset_table) == [queue("U")]
    await member.leave()


async def test_an_unknown_group_has_no_progress(world: Stored) -> None:
    assert (await consume_stats(world, "nobody")).offset_table == {}
    world.add_topic("T", 1)
    (report,) = (await consume_stats(world, "nobody", topic="T")).offset_table.values()
    assert (report.consumer_offset, report.last_timestamp) == (0, 0)


async def test_rates_are_those_of_the_last_minute(world: Stored) -> None:
    world.add_topic("T", 1)
    await world.clock.advance(60)
    for _ in range(6):
        await world.send("T")
        pulled = await world.pull(0)
        assert pulled.code == 0
        await world.clock.advance(10)
    stats = await topic_stats(world, "T")
    assert stats.topic_put_tps == pytest.approx(0.1, rel=0.05)
    world.features.groups.offsets.commit("g", "T", 0, 0)
    assert (await consume_stats(world, "g")).consume_tps == pytest.approx(21 / 60, rel=0.05)


# --- 317 ---


async def test_all_groups_at_once(world: Stored) -> None:
    world.add_topic("T", 2)
    world.add_topic("O", 1, order=True)
    await send(world, "T", 0, 5)
    await send(world, "O", 0, 4)
    for group in ("g", "h"):
        world.features.groups.table.find(group)
    offsets = world.features.groups.offsets
    offsets.commit("g", "T", 0, 2)
    offsets.commit_pulled("g", "T", 0, 4)
    offsets.commit("g", "O", 0, 1)
    offsets.commit("g", "gone", 0, 1)  # no such topic
    answer = await world.call(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    report = decode_body(ConsumeStatsList, answer.body or b"")
    assert (answer.code, report.broker_addr) == (0, "127.0.0.2:20911")
    assert (report.total_diff, report.total_inflight_diff) == (3 + 3, 2)
    by_group = {group: stats for row in report.consume_stats_list for group, stats in row.items()}
    assert by_group["h"] == []
    assert [{q.topic for q in stats.offset_table} for stats in by_group["g"]] == [{"T"}, {"O"}]
    answer = await world.call(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "true"})
    report = decode_body(ConsumeStatsList, answer.body or b"")
    assert (report.total_diff, report.total_inflight_diff) == (3, 0)


async def test_many_topics_do_not_stall_the_loop(world: Stored) -> None:
    world.features.groups.table.find("g")
    for number in range(500):
        world.add_topic(f"T{number}", 8)
        world.features.groups.offsets.commit("g", f"T{number}", 0, 0)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await world.clock.sleep(0)

    other = asyncio.create_task(count_turns())
    single = await consume_stats(world, "g")
    assert len(single.offset_table) == 4_000
    assert turns >= 4_000 // 256
    turns = 0
    answer = await world.call(RequestCode.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})
    report = decode_body(ConsumeStatsList, answer.body or b"")
    assert turns >= 500
    assert sum(len(row["g"]) for row in report.consume_stats_list if "g" in row) == 500
    other.cancel()


# --- 303, 308, 315 ---


async def test_time_span(world: Stored) -> None:
    world.add_topic("T", 2)
    began_ms = world.clock.now_ms()
    for _ in range(4):
        await world.send("T", queue_id=0)
        await world.clock.advance(1)
    world.features.groups.offsets.commit("g", "T", 0, 2)
    answer = await world.call(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "g"})
    full, empty = decode_body(QueryConsumeTimeSpanBody, answer.body or b"").consume_time_span_set
    assert full.message_queue == queue("T", 0)
    assert (full.min_time_stamp, full.max_time_stamp) == (began_ms, began_ms + 3_000)
    assert full.consume_time_stamp == began_ms + 1_000
    assert full.delay_time == 2_000  # since the third message
    assert full.min_time_stamp_str == local_time(began_ms)
    assert (empty.min_time_stamp, empty.max_time_stamp, empty.delay_time) == (-1, -1, 0)
    # Without an offset the first message counts.
    answer = await world.call(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "T", "group": "new"})
    full = decode_body(QueryConsumeTimeSpanBody, answer.body or b"").consume_time_span_set[0]
    assert (full.consume_time_stamp, full.delay_time) == (began_ms, 4_000)
    answer = await world.call(RequestCode.QUERY_CONSUME_TIME_SPAN, {"topic": "x", "group": "g"})
    assert (answer.code, answer.remark) == (17, "topic[x] not exist")


def test_times_for_people() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d#\d\d:\d\d:52:007", local_time(1_794_710_572_007))


async def test_correction_offsets(world: Stored) -> None:
    offsets = world.features.groups.offsets
    for group, offset in (("g", 7), ("h", 5), ("left_out", 1), ("behind", 3)):
        offsets.commit(group, "T", 0, offset)
    ext = {"topic": "T", "compareGroup": "g", "filterGroups": "left_out,behind"}
    answer = await world.call(RequestCode.QUERY_CORRECTION_OFFSET, ext)
    assert answer.body == b'{"correctionOffsets":{0:5}}'
    ext = {"topic": "T", "compareGroup": "behind", "filterGroups": "left_out,behind"}
    answer = await world.call(RequestCode.QUERY_CORRECTION_OFFSET, ext)
    body = decode_body(QueryCorrectionOffsetBody, answer.body or b"")
    assert body.correction_offsets == {0: 2**63 - 1}


async def test_one_statistic(world: Stored) -> None:
    world.add_topic("FrameA", 1)
    await world.send("FrameA")
    requests = exchanges("admin-statsAll", RequestCode.VIEW_BROKER_STATS_DATA)
    request, recorded = requests[0]
    answer = await world.call(request.code, request.ext)
    assert (answer.code, answer.remark, answer.ext) == (0, None, None)
    assert answer.body == recorded.body  # not sampled yet, as there
    await world.clock.advance(10)
    answer = await world.call(request.code, request.ext)
    data = decode_body(BrokerStatsData, answer.body or b"")
    assert data.stats_minute is not None
    assert data.stats_minute.sum == 1
    answer = await world.call(
        request.code, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "NoSuchTopic"}
    )
    assert answer.code == 1
    assert answer.remark == "The stats <TOPIC_PUT_NUMS> <NoSuchTopic> not exist"


async def test_statistics_of_queues(world: Stored) -> None:
    world.add_topic("T", 4)
    for _ in range(2):
        await world.send("T", queue_id=3)
    await world.send("T", queue_id=3, properties="DELAY\x011\x02")
    await world.clock.advance(10)

    async def total(name: str, key: str) -> int | None:
        ext = {"statsName": name, "statsKey": key}
        answer = await world.call(RequestCode.VIEW_BROKER_STATS_DATA, ext)
        if answer.code:
            assert answer.remark == f"The stats <{name}> <{key}> not exist"
            return None
        minute = decode_body(BrokerStatsData, answer.body or b"").stats_minute
        assert minute is not None
        return minute.sum

    assert await total("QUEUE_PUT_NUMS", "SCHEDULE_TOPIC_XXXX@0") == 1
    assert (await total("QUEUE_PUT_SIZE", "SCHEDULE_TOPIC_XXXX@0") or 0) > 50
    for queue in ("T", "SCHEDULE_TOPIC_XXXX"):  # the queue that was asked for
        key = f"3@{queue}"
        assert await total("TOPIC_PUT_LATENCY", key) == 0, "no time passes on this clock"
    assert await total("TOPIC_PUT_LATENCY", "0@SCHEDULE_TOPIC_XXXX") is None
    assert await total("TOPIC_PUT_LATENCY", "T@3") is None
    level = "SCHEDULE_TOPIC_XXXX@0@SCHEDULE_CONSUMER"
    assert await total("QUEUE_GET_NUMS", level) == 1
    assert (await total("QUEUE_GET_SIZE", level) or 0) > 50
    for name, key in (
        ("QUEUE_PUT_NUMS", "T@3"),
        ("QUEUE_PUT_SIZE", "T@3"),
        ("DLQ_PUT_NUMS", "T"),
        ("GROUP_CK_NUMS", "T@g"),
    ):
        assert await total(name, key) is None, "Java does not count them either"
    meters = world.features.stats.broker_stats
    meters.topic_deleted("T")
    assert ("T", 3) not in meters.put_latencies
