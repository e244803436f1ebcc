"""Messages that consumers send back (36), and what becomes of them."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path

import pytest

from skylark.broker.api import SendBackRequest
from skylark.broker.send.put_pipeline import PutPipeline
from skylark.broker.send.send_back import SendBackHandlers, SendBackStep
from skylark.broker.send.send_checks import OnDeadLetter
from skylark.core.errors import BrokerError
from skylark.core.hashing import java_hash
from skylark.store.running_flags import StoreFlag
from skylark.store.store_results import PutStatus, PutWaiter
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.config import SubscriptionGroupConfig, TopicConfig
from skylark.wire.codes import V3_4_9, RequestCode
from skylark.wire.command import Command
from skylark.wire.frame import decode_frame
from skylark.wire.message import MessageRecord
from tests.unit.broker.stored import CALL_TIMEOUT_S, Stored, stored

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
RETRY, DEAD = "%RETRY%G", "%DLQ%G"
#: What the broker does by the clock, seldom: hours pass more quickly then.
RARELY = {
    "flushIntervalCommitLog": "1000000",
    "flushIntervalConsumeQueue": "1000000",
    "cleanResourceInterval": "1000000",
}
FRAMES = Path(__file__).parents[3] / "golden" / "data" / "frames"


async def send_back(
    world: Stored, offset: int = 0, level: int = 0, group: str = "G", **ext: str
) -> Command:
    fields = {"offset": str(offset), "group": group, "delayLevel": str(level), **ext}
    return await world.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields)


async def failing(world: Stored, record: MessageRecord, level: int = 0, **ext: str) -> None:
    answer = await send_back(world, record.log_offset, level, **ext)
    assert (answer.code, answer.remark, answer.ext, answer.body) == (0, None, None, None)


def handlers_of(world: Stored, on_dead_letter: OnDeadLetter | None = None) -> SendBackHandlers:
    features = world.features
    step = SendBackStep(
        world.context.live,
        features.puts.writer,
        features.topics.table,
        features.groups.table,
        features.stats.broker_stats,
        features.puts.durability,
        on_dead_letter=on_dead_letter,
    )
    pipeline = PutPipeline(features.puts.writer, features.puts.durability)
    pipeline.add_step(SendBackRequest, step)
    return SendBackHandlers(pipeline)


def config_of(world: Stored, topic: str) -> TopicConfig:
    config = world.features.topics.table.get(topic)
    assert config is not None
    return config


@pytest.mark.spec("broker.13.17")
async def test_the_first_retry_comes_after_ten_seconds(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.send(
            body=b"body",
            properties="TAGS\x01A\x02KEYS\x01k\x02UNIQ_KEY\x01U\x02WAIT\x01true\x02",
            f="8",
            h="5",
        )
        (sent,) = world.records("T")
        await failing(world, sent)
        assert [len(world.records(SCHEDULE, queue_id)) for queue_id in (1, 2, 3)] == [0, 1, 0]
        await world.clock.advance(ms=9_999)
        assert world.records(RETRY) == []
        await world.clock.advance(ms=1)
        (retried,) = world.records(RETRY)
        assert retried.properties == {
            **sent.properties,
            "RETRY_TOPIC": "T",
            "ORIGIN_MESSAGE_ID": "7F000002000051AF0000000000000000",
            "WAIT": "false",
            "DELAY": "3",
            "REAL_TOPIC": RETRY,
            "REAL_QID": "0",
        }
        assert (retried.body, retried.flag, retried.sys_flag) == (b"body", 5, 8)
        assert retried.reconsume_times == 1
        assert retried.born_timestamp == sent.born_timestamp
        assert retried.born_host == sent.born_host
        assert retried.prepared_transaction_offset == 0
        queue = world.features.store.queues.get(RETRY, 0)
        assert queue is not None
        entry = queue.read_entry(0)
        assert entry is not None
        assert entry.tags_code == java_hash("A")
        topic = config_of(world, RETRY)
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)
        # Acknowledged means that the topic is on disk, too.
        assert RETRY.encode() in (tmp_path / "store/config/topics.json").read_bytes()


@pytest.mark.spec("broker.13.17")
async def test_what_failed_too_often_is_a_dead_letter(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.send()
        (record,) = world.records("T")
        for times, delay_s in ((1, 10), (2, 30)):
            await failing(world, record, maxReconsumeTimes="2")
            await world.clock.advance(delay_s)
            record = world.records(RETRY)[-1]
            assert (record.reconsume_times, len(world.records(RETRY))) == (times, times)
        assert world.records(DEAD) == []
        await failing(world, record, maxReconsumeTimes="2")
        (dead,) = world.records(DEAD)
        assert (dead.reconsume_times, dead.queue_id) == (3, 0)
        assert dead.properties["DELAY"] == "0"
        assert dead.properties["RETRY_TOPIC"] == "T"
        first_id = world.records("T")[0].offset_id
        assert dead.properties["ORIGIN_MESSAGE_ID"] == first_id
        topic = config_of(world, DEAD)
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)
        await world.clock.advance(minutes=5)
        assert (len(world.records(RETRY)), len(world.records(DEAD))) == (2, 1)


@pytest.mark.spec("broker.13.17")
async def test_a_level_below_zero_is_a_dead_letter_at_once(tmp_path: Path) -> None:
    dead: list[tuple[str, str]] = []
    async with stored(tmp_path) as world:
        await world.send()
        handlers = handlers_of(world, lambda group, topic: dead.append((group, topic)))
        (connection,) = world.features.endpoint.server.connections
        ext = {"offset": "0", "group": "G", "delayLevel": "-1"}
        answer = await handlers.send_back(connection, Command(code=36, ext=ext))
        assert answer.code == 0
        assert [record.reconsume_times for record in world.records(DEAD)] == [1]
        assert (world.records(SCHEDULE, 2), world.records(RETRY)) == ([], [])
        assert dead == [("G", "T")]


@pytest.mark.spec("broker.13.17")
async def test_a_plain_send_to_the_retry_topic_may_be_tried_once_more_often(tmp_path: Path) -> None:
    """What a consumer does if it cannot send back; DELAY works as there."""
    async with stored(tmp_path) as world:
        world.features.groups.table.update(
            SubscriptionGroupConfig(group_name="G", retry_max_times=2)
        )
        for times in ("2", "3"):
            answer = await world.send(RETRY, properties="DELAY\x014\x02", j=times)
            assert answer.code == 0
        await world.clock.advance(30)
        assert [record.reconsume_times for record in world.records(RETRY)] == [2]
        assert [record.reconsume_times for record in world.records(DEAD)] == [3]
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
        world.features.groups.locks.lock("G", "c1", [queue], world.clock.steady_ms())
        assert (await world.send(RETRY, j="0")).code == 0  # consumed in order right now
        assert [record.reconsume_times for record in world.records(DEAD)] == [3, 0]


async def test_the_whole_life_of_a_message_that_never_succeeds(tmp_path: Path) -> None:
    minutes = [1 / 6, 1 / 2, *range(1, 11), 20, 30, 60, 120]
    async with stored(tmp_path, **RARELY) as world:
        await world.send()
        (record,) = world.records("T")
        for times, delay_minutes in enumerate(minutes, start=1):
            await failing(world, record)
            await world.clock.advance(minutes=delay_minutes, ms=-1)
            assert len(world.records(RETRY)) == times - 1
            await world.clock.advance(ms=1)
            record = world.records(RETRY)[-1]
            assert record.reconsume_times == times
        assert len(minutes) == 16
        await failing(world, record)
        (dead,) = world.records(DEAD)
        assert dead.reconsume_times == 17


async def test_the_level_may_be_asked_for(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.send()
        await failing(world, world.records("T")[0], 5)
        await failing(world, world.records("T")[0], 99)
        assert [len(world.records(SCHEDULE, queue_id)) for queue_id in (4, 17)] == [1, 1]
        assert world.records(SCHEDULE, 17)[0].properties["DELAY"] == "18"


@pytest.mark.parametrize(
    ("version", "ext", "is_dead"),
    [
        (V3_4_9, {"maxReconsumeTimes": "0"}, True),
        (V3_4_9 - 1, {"maxReconsumeTimes": "0"}, False),  # too old to mean it
        (V3_4_9, {}, False),
    ],
)
async def test_who_says_how_often(
    tmp_path: Path, version: int, ext: dict[str, str], is_dead: bool
) -> None:
    async with stored(tmp_path) as world:
        await world.send()
        fields = {"offset": "0", "group": "G", "delayLevel": "0", **ext}
        (connection,) = world.features.endpoint.server.connections
        request = Command(code=36, ext=fields, version=version)
        assert (await handlers_of(world).send_back(connection, request)).code == 0
        assert len(world.records(DEAD)) == is_dead


async def test_settings_of_the_group(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.send()
        groups = world.features.groups.table
        groups.update(SubscriptionGroupConfig(group_name="never", retry_max_times=0))
        groups.update(SubscriptionGroupConfig(group_name="none", retry_queue_nums=0))
        groups.update(SubscriptionGroupConfig(group_name="wide", retry_queue_nums=3))
        for group in ("never", "none"):
            assert (await send_back(world, group=group)).code == 0
        assert len(world.records("%DLQ%never")) == 1
        assert world.features.topics.table.get("%RETRY%none") is None
        for _ in range(3):
            assert (await send_back(world, group="wide", level=1, unitMode="true")).code == 0
        await world.clock.advance(1)
        assert [len(world.records("%RETRY%wide", queue_id)) for queue_id in range(3)] == [1, 1, 1]
        topic = config_of(world, "%RETRY%wide")
        assert (topic.read_queue_nums, topic.topic_sys_flag) == (3, 2)


async def test_what_was_sent_back_may_come_back_compressed_or_committed(tmp_path: Path) -> None:
    """Bits of the message stay: the body is as it was."""
    async with stored(tmp_path) as world:
        await world.send(body=b"not really zlib", f="1", properties="TRAN_MSG\x01false\x02")
        await failing(world, world.records("T")[0])
        await world.clock.advance(10)
        (retried,) = world.records(RETRY)
        assert (retried.sys_flag, retried.body) == (1, b"not really zlib")
        assert retried.properties["TRAN_MSG"] == "false"


@pytest.mark.parametrize("offset", [-1, 7, 999_999_999, (1 << 63) - 1])
async def test_there_must_be_a_message(tmp_path: Path, offset: int) -> None:
    async with stored(tmp_path) as world:
        await world.send()
        answer = await send_back(world, offset)
        assert (answer.code, answer.ext) == (1, None)
        assert answer.remark == f"look message by offset failed, {offset}"


async def test_refusals(tmp_path: Path) -> None:
    async with stored(tmp_path, autoCreateSubscriptionGroup="false") as world:
        await world.send()
        unknown = await send_back(world, group="unknown")
        assert unknown.code == 26
        assert (unknown.remark or "").startswith("subscription group not exist, unknown \nSee ")
        world.features.groups.table.update(SubscriptionGroupConfig(group_name="G"))
        world.add_topic(RETRY, 1, perm=4)
        answer = await send_back(world)
        assert (answer.code, answer.remark) == (
            16,
            f"the topic[{RETRY}] sending message is forbidden",
        )
        world.add_topic(RETRY, 1, perm=6)
        assert (
            await world.call(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=4\n")
        ).code == 0
        answer = await send_back(world)
        assert (answer.code, answer.remark) == (
            16,
            "the broker[127.0.0.2] sending message is forbidden",
        )
        for missing in ("offset", "group", "delayLevel"):
            fields = {"offset": "0", "group": "G", "delayLevel": "0"}
            del fields[missing]
            answer = await world.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields)
            assert answer.code == 1
            assert missing in (answer.remark or "")


async def test_a_message_that_cannot_be_stored_is_refused_by_the_name_of_the_status(
    tmp_path: Path,
) -> None:
    async with stored(tmp_path) as world:
        await world.send()
        world.features.store.flags.set(StoreFlag.DISK_FULL)
        answer = await send_back(world)
        assert (answer.code, answer.remark) == (1, "SERVICE_NOT_AVAILABLE")
        assert ("T", "G") not in world.features.stats.broker_stats.send_backs


class LateSlaves:
    """No slave has what it should in time."""

    def join(self, end_offset: int, answer: PutWaiter) -> PutWaiter:
        del end_offset
        return lambda _status: answer(PutStatus.FLUSH_SLAVE_TIMEOUT)


async def test_what_is_less_safe_than_wanted_is_a_success_all_the_same(tmp_path: Path) -> None:
    """Told of an error, the consumer would send a second copy."""
    async with stored(tmp_path) as world:
        await world.send()
        world.features.store.replicas = LateSlaves()
        assert (await send_back(world)).code == 0
        assert len(world.records(SCHEDULE, 2)) == 1
        assert world.features.stats.broker_stats.send_backs["T", "G"].count == 1


async def test_a_slave_takes_nothing(tmp_path: Path) -> None:
    async with stored(tmp_path, brokerRole="SLAVE", brokerId="1") as world:
        answer = await send_back(world)
        assert answer.code != 0
        handlers = handlers_of(world)
        (connection,) = world.features.endpoint.server.connections
        ext = {"offset": "0", "group": "G", "delayLevel": "0"}
        with pytest.raises(BrokerError, match=r"no master available along with 127\.0\.0\.2"):
            await handlers.send_back(connection, Command(code=36, ext=ext))


async def test_statistics(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.send()
        await failing(world, world.records("T")[0])
        await world.clock.advance(10)
        await failing(world, world.records(RETRY)[0])
        await failing(world, world.records(RETRY)[0], -1)
        stats = world.features.stats.broker_stats
        assert set(stats.send_backs) == {("T", "G")}  # never the retry topic
        assert (stats.send_backs["T", "G"].count, stats.send_backs["T", "G"].times) == (3, 3)
        waiting = [*world.records(SCHEDULE, 2), *world.records(SCHEDULE, 3)]
        assert stats.topic_puts[SCHEDULE].count == 2
        assert stats.topic_puts[SCHEDULE].size == sum(record.total_size for record in waiting)


async def test_with_sync_flush_the_answer_waits_for_the_disk(tmp_path: Path) -> None:
    async with stored(tmp_path, flushDiskType="SYNC_FLUSH") as world:
        await world.send()
        answer = await send_back(world)
        assert answer.code == 0
        log = world.features.store.log
        assert log.files.flushed_where == log.max_offset
        assert len(world.records(SCHEDULE, 2)) == 1
        handlers = handlers_of(world)
        (connection,) = world.features.endpoint.server.connections
        ext = {"offset": "0", "group": "G", "delayLevel": "0"}
        request = Command(code=36, ext=ext)
        waiting = asyncio.ensure_future(handlers.send_back(connection, request))
        await asyncio.sleep(0)
        assert not waiting.done()
        assert log.files.flushed_where < log.max_offset
        assert (await waiting).code == 0
        assert log.files.flushed_where == log.max_offset
        # Who goes away meanwhile leaves nothing behind but the message.
        waiting = asyncio.ensure_future(handlers.send_back(connection, request))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await send_back(world)).code == 0
        assert len(world.records(SCHEDULE, 2)) == 4


async def test_recorded_requests_get_the_recorded_answers(tmp_path: Path) -> None:
    """Of a real broker (5.5.0): two messages sent back, and one that does not exist."""
    exchanges = [*recorded("push-consumer"), *recorded("errors")]
    assert [answer.code for _, answer in exchanges] == [0, 0, 1]
    async with stored(tmp_path) as world:
        world.add_topic("FrameA", 2)
        for request, answer in exchanges:
            if answer.code == 0:
                await world.send("FrameA")
                record = world.records("FrameA")[-1]
                request.ext = {**(request.ext or {}), "offset": str(record.log_offset)}
            ours = await world.client.call(world.address, request, CALL_TIMEOUT_S)
            assert (ours.code, ours.remark, ours.ext, ours.body) == (
                answer.code,
                answer.remark,
                answer.ext,
                answer.body,
            )
        await world.clock.advance(1)  # level 1 was asked for
        assert len(world.records("%RETRY%golden_push_cg")) == 2


def recorded(scenario: str) -> list[tuple[Command, Command]]:
    lines = [json.loads(line) for line in (FRAMES / f"{scenario}.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["link"].startswith("client-broker")]
    commands = {
        (line["conn"], line["opaque"], line["response"]): decode_frame(
            base64.b64decode(line["raw"])
        )
        for line in lines
    }
    return [
        (command, commands[conn, opaque, True])
        for (conn, opaque, is_response), command in commands.items()
        if not is_response and command.code == 36
    ]
