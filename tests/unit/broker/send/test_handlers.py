"""Sends as producers see them, and what is in the log afterwards."""

from __future__ import annotations

import asyncio
import errno
import shutil
from pathlib import Path

import pytest

from skylark.broker.send.handlers import PutHandlers
from skylark.broker.send.send_step import SendStep
from skylark.core.hashing import encode_offset_id, java_hash
from skylark.net.dispatch import LATER
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.config import SubscriptionGroupConfig
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from tests.unit.broker.stored import stored

EXT = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
ADDED = {**EXT, "CLUSTER": "DefaultCluster"}
SCHEDULE = "SCHEDULE_TOPIC_XXXX"


async def test_a_message_is_stored_with_the_properties_of_the_broker(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        properties = "KEYS\x01k1\x02UNIQ_KEY\x01U1\x02WAIT\x01true\x02TAGS\x01A\x02"
        answer = await world.send(properties=properties, queue_id=1, f="8", h="5", j="2")
        assert (answer.code, answer.remark) == (0, None)
        assert answer.ext == {
            **EXT,
            "msgId": "7F000002000051AF0000000000000000",
            "queueId": "1",
            "queueOffset": "0",
            "transactionId": "U1",
        }
        (record,) = world.records("T", 1)
        own = {"KEYS": "k1", "UNIQ_KEY": "U1", "WAIT": "true", "TAGS": "A"}
        assert record.properties == {**own, **ADDED}
        assert (record.body, record.flag, record.sys_flag) == (b"hello", 5, 8)
        assert (record.reconsume_times, record.born_timestamp) == (2, 1_794_710_000_000)
        assert world.features.stats.broker_stats.topic_puts["T"].count == 1
        assert world.features.stats.store_stats.put_count == 1


@pytest.mark.parametrize(
    ("properties", "kept"),
    [
        ("", {}),
        ("a\x011", {"a": "1"}),  # no separator at the end
        ("a\x01\x02\x01x\x02\x02b\x012\x02", {"b": "2"}),  # no value, no name, nothing
        ("UNIQ_KEY\x01\x02a\x011\x02", {"a": "1"}),
        ("CLUSTER\x01other\x02TRACE_ON\x01no\x02MSG_REGION\x01mine\x02", {}),
        ("POP_CK\x01handle\x02a\x011\x02", {"a": "1"}),
    ],
)
async def test_malformed_properties_are_normalised(
    tmp_path: Path, properties: str, kept: dict[str, str]
) -> None:
    async with stored(tmp_path) as world:
        answer = await world.send(properties=properties)
        assert answer.ext is not None
        unique_id = answer.ext["transactionId"]
        assert len(unique_id) == 32
        assert unique_id.startswith("7F000002")
        (record,) = world.records("T")
        assert record.properties == {**kept, **ADDED, "UNIQ_KEY": unique_id}
        assert record.raw_properties.count(b"\x01") == len(record.properties)


ADDED_TEXT = "MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02CLUSTER\x01DefaultCluster\x02"


@pytest.mark.parametrize(
    ("properties", "kept"),
    [
        (
            "UNIQ_KEY\x01U\x02TRACE_ON\x01no\x02a\x011\x02",
            "UNIQ_KEY\x01U\x02TRACE_ON\x01true\x02a\x011\x02"
            "MSG_REGION\x01DefaultRegion\x02CLUSTER\x01DefaultCluster\x02",
        ),
        (
            "CLUSTER\x01mine\x02UNIQ_KEY\x01U\x02MSG_REGION\x01mine\x02TRACE_ON\x01true",
            "CLUSTER\x01DefaultCluster\x02UNIQ_KEY\x01U\x02"
            "MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02",
        ),
        ("UNIQ_KEY\x01U\x02POP_CK\x010 1\x02a\x011", f"UNIQ_KEY\x01U\x02a\x011\x02{ADDED_TEXT}"),
        ("a\x011\x02UNIQ_KEY\x01U\x02a\x012\x02", f"a\x012\x02UNIQ_KEY\x01U\x02{ADDED_TEXT}"),
        ("a\x01\x02UNIQ_KEY\x01U\x02word\x02\x01x", f"UNIQ_KEY\x01U\x02{ADDED_TEXT}"),
        (
            "UNIQ_KEY\x01U\x02TRAN_MSG\x01true\x02TRACE_ON\x01no\x02POP_CK\x01x\x02",
            "UNIQ_KEY\x01U\x02TRAN_MSG\x01true\x02TRACE_ON\x01true\x02"
            "MSG_REGION\x01DefaultRegion\x02CLUSTER\x01DefaultCluster\x02"
            "__transactionId__\x01U\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02",
        ),
    ],
)
async def test_names_that_the_broker_replaces_or_removes_stay_on_the_fast_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, properties: str, kept: str
) -> None:
    """Replaced values keep their place; what is missing is appended."""
    monkeypatch.setattr(SendStep, "_rewrite", None)
    async with stored(tmp_path) as world:
        assert (await world.send(properties=properties)).code == 0
        (record,) = world.records("RMQ_SYS_TRANS_HALF_TOPIC" if "TRAN_MSG" in kept else "T")
        assert record.raw_properties.decode() == kept


async def test_the_long_names_do_the_same(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        ext = {
            "producerGroup": "pg", "topic": "T", "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4", "queueId": "2", "sysFlag": "0",
            "bornTimestamp": "1", "flag": "0", "properties": "UNIQ_KEY\x01U\x02",
        }  # fmt: skip
        answer = await world.call(RequestCode.SEND_MESSAGE, ext, b"x")
        assert (answer.code, (answer.ext or {})["queueId"]) == (0, "2")
        assert [record.body for record in world.records("T", 2)] == [b"x"]


@pytest.mark.spec("broker.13.4")
async def test_a_send_creates_its_topic(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        assert (await world.send("Four", d="4")).code == 0
        assert (await world.send("Many", d="32")).code == 0
        four, many = (
            world.features.topics.table.get("Four"),
            world.features.topics.table.get("Many"),
        )
        assert four is not None
        assert many is not None
        assert (four.read_queue_nums, four.write_queue_nums, four.perm) == (4, 4, 6)
        assert (many.read_queue_nums, many.write_queue_nums, many.perm) == (8, 8, 6)
        # Acknowledged means that the topic is on disk, too.
        assert b"Four" in (tmp_path / "store/config/topics.json").read_bytes()
    async with stored(tmp_path / "off", autoCreateTopicEnable="false") as world:
        answer = await world.send("Four")
        assert (answer.code, answer.ext) == (17, EXT)
        assert answer.remark is not None
        assert answer.remark.startswith("topic[Four] not exist, apply first please!")


@pytest.mark.spec("broker.13.5")
async def test_checks_of_topic_and_queue(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T")
        world.add_topic("Ordered", order=True)
        for topic, queue_id, code, remark in [
            ("a.b", 0, 29, "The specified topic: a.b, contains illegal characters,"),
            ("T" * 128, 0, 29, f"The specified topic: {'T' * 128}, is longer than topic max"),
            (SCHEDULE, 0, 16, f"Sending message to topic[{SCHEDULE}] is forbidden."),
            ("T", 8, 29, "request queueId[8] is illegal, TopicConfig [topicName=T, readQueueNums"),
        ]:
            answer = await world.send(topic, queue_id=queue_id)
            assert (answer.code, answer.ext) == (code, EXT)
            assert (answer.remark or "").startswith(remark)
        answers = [await world.send(queue_id=-1) for _ in range(16)]
        assert {(answer.ext or {})["queueId"] for answer in answers} == set("01234567")
        changed = await world.call(RequestCode.UPDATE_BROKER_CONFIG, {}, b"brokerPermission=4\n")
        assert changed.code == 0
        assert (await world.send("T")).code == 0
        refused = await world.send("Ordered")
        assert refused.code == 16
        assert refused.remark == "the broker[127.0.0.2] sending message is forbidden"


async def test_a_bad_name_is_refused_even_if_the_topic_exists(tmp_path: Path) -> None:
    async with stored(tmp_path, brokerName="host.name") as world:
        assert "host.name" in world.features.topics.table
        assert (await world.send("host.name")).code == 29


@pytest.mark.spec("broker.13.6")
async def test_sizes(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        assert (await world.send(body=bytes(4_194_304))).code == 0
        large = await world.send(body=bytes(4_194_305))
        assert (large.code, large.ext) == (13, EXT)
        assert (large.remark or "").startswith(
            "the message is illegal, maybe msg body or properties length not matched."
            " msg body length limit 4194304B, msg properties length limit 32KB."
        )
        # The broker's own additions count, so the string is made to have 32768 bytes with them.
        added = len("UNIQ_KEY\x01U\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02"
                    "CLUSTER\x01DefaultCluster\x02p\x01\x02")  # fmt: skip
        for size, code in ((32_767, 0), (32_768, 13)):
            properties = f"UNIQ_KEY\x01U\x02p\x01{'y' * (size - added)}\x02"
            assert (await world.send(properties=properties)).code == code
        assert len(world.records("T")) == 2


async def test_the_response_to_an_unreadable_request_has_no_ext(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        for answer in (
            await world.send(h="abc"),
            await world.send(body=b"not a batch", m="true"),
        ):
            assert (answer.code, answer.ext) == (1, None)
        assert world.records("T") == []


async def test_a_message_without_a_body_is_illegal(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        for batch in ("false", "true"):
            answer = await world.send("New", body=b"", m=batch)
            assert (answer.code, answer.ext) == (13, EXT)
            assert answer.remark is not None
            assert answer.remark.startswith("the message is illegal, maybe msg body or properties")
            assert answer.remark.endswith("32KB.: the message has no body")
        assert "New" not in world.features.topics.table


async def test_the_error_of_a_full_disk_has_the_disk_usage(tmp_path: Path) -> None:
    disk = FaultyFileSystem(FaultPlan(1), capacity=32 << 20)
    async with stored(Path("/"), disk) as world:
        assert (await world.send()).code == 0
        disk.capacity = 1
        await world.clock.advance(20)  # the store looks every 10 s
        answer = await world.send()
        assert (answer.code, answer.ext) == (14, EXT)
        assert answer.remark == (
            "service not available now. It may be caused by one of the following reasons: the"
            " broker's disk is full [CL:  1.00 CQ:  1.00 INDEX:  1.00], messages are put to the"
            " slave, message store has been shut down, etc."
        )
        disk.capacity = 32 << 20
        await world.clock.advance(20)
        assert (await world.send()).code == 0


async def test_traces_have_a_topic_of_their_own(tmp_path: Path) -> None:
    async with stored(tmp_path, traceTopicEnable="true", traceOn="false") as world:
        answer = await world.send("RMQ_SYS_TRACE_TOPIC")
        assert (answer.code, (answer.ext or {})["TRACE_ON"]) == (0, "false")
        assert (await world.send("RMQ_SYS_TRACE_TOPIC", queue_id=1)).code == 29
        (record,) = world.records("RMQ_SYS_TRACE_TOPIC")
        assert record.properties["TRACE_ON"] == "false"
        assert world.features.stats.broker_stats.system_put_count == 1


@pytest.mark.spec("remoting.10.18")
async def test_codes_of_failed_sends_and_of_a_flush_timeout(tmp_path: Path) -> None:
    settings = {"autoCreateTopicEnable": "false", "flushDiskType": "SYNC_FLUSH"}
    plan = FaultPlan(1)
    async with stored(Path("/"), FaultyFileSystem(plan), **settings) as world:
        world.add_topic("T", 4)
        assert (await world.send("Missing")).code == 17
        assert (await world.send("T", queue_id=99)).code == 29
        assert (await world.send("a b")).code == 29
        assert (await world.send("T")).code == 0
        log = world.features.store.log
        log_end = log.max_offset
        plan.chance("files.sync", 1.0, error=errno.EIO)
        sending = asyncio.create_task(world.send("T", properties="UNIQ_KEY\x01U\x02"))
        await world.clock.advance(6)  # syncFlushTimeout is 5 s
        late = await sending
        plan.clear()
        assert (late.code, late.remark) == (10, None)
        assert late.ext == {
            **EXT,
            "msgId": encode_offset_id(log.store_host, log_end),
            "queueId": "0",
            "queueOffset": "1",
            "transactionId": "U",
        }


async def test_the_broker_refuses_sends_before_its_start_time(tmp_path: Path) -> None:
    async with stored(tmp_path, startAcceptSendRequestTimeStamp="9999999999999") as world:
        answer = await world.send()
        assert (answer.code, answer.ext) == (1, EXT)
        assert (answer.remark or "").startswith("broker unable to service, until 2286-11-2")
        never = 2**63 - 1
        changed = b"startAcceptSendRequestTimeStamp=%d" % never
        assert (await world.call(RequestCode.UPDATE_BROKER_CONFIG, {}, changed)).code == 0
        answer = await world.send()
        assert (answer.code, answer.ext) == (1, EXT)
        assert answer.remark == f"broker unable to service, until {never} ms"


# --- delay ---


async def test_a_delayed_message_waits_in_the_schedule_topic(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        properties = "UNIQ_KEY\x01U\x02DELAY\x013\x02TAGS\x01A\x02TIMER_DELAY_SEC\x015\x02"
        answer = await world.send(properties=properties, queue_id=1)
        assert (answer.code, (answer.ext or {})["queueId"]) == (0, "1")
        (record,) = world.records(SCHEDULE, 2)
        assert record.properties == {
            "UNIQ_KEY": "U", "DELAY": "3", "TAGS": "A", **ADDED, "REAL_TOPIC": "T",
            "REAL_QID": "1",
        }  # fmt: skip
        queue = world.features.store.queues.get(SCHEDULE, 2)
        assert queue is not None
        entry = queue.read_entry(0)
        assert entry is not None
        assert entry.tags_code == record.store_timestamp + 10_000
        assert world.records("T", 1) == []
        await world.send(properties="DELAY\x0199\x02")
        assert world.records(SCHEDULE, 17)[0].properties["DELAY"] == "18"


async def test_delay_0_means_no_delay_and_an_invalid_one_is_refused(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        assert (await world.send(properties="DELAY\x010\x02")).code == 0
        assert world.records("T")[0].properties["DELAY"] == "0"
        answer = await world.send(properties="DELAY\x01soon\x02")
        assert (answer.code, answer.ext) == (1, EXT)
        assert (answer.remark or "").startswith('For input string: "soon"')


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
async def test_timer_messages_without_a_timer(tmp_path: Path, name: str) -> None:
    async with stored(tmp_path, timerWheelEnable="false") as world:
        answer = await world.send(properties=f"{name}\x015\x02")
        assert (answer.code, answer.ext) == (1, EXT)
        assert (answer.remark or "").startswith("accurate timer message is not enabled")
        assert world.records("T") == []


async def test_transactional_messages_can_be_refused(tmp_path: Path) -> None:
    async with stored(tmp_path, rejectTransactionMessage="true") as world:
        answer = await world.send(properties="TRAN_MSG\x01true\x02PGROUP\x01pg\x02", f="4")
        assert (answer.code, answer.ext) == (16, EXT)
        assert answer.remark == "the broker[127.0.0.2] sending transaction message is forbidden"
        assert (await world.send(properties="TRAN_MSG\x01false\x02")).code == 0
        assert [r.properties["TRAN_MSG"] for r in world.records("T")] == ["false"]


# --- retry topics ---


async def test_a_retry_topic_stores_messages_with_retries_left(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.features.groups.table.update(
            SubscriptionGroupConfig(group_name="G", retry_max_times=2)
        )
        assert (await world.send("%RETRY%G", j="2")).code == 0
        assert (await world.send("%RETRY%G", j="5", l="5")).code == 0
        assert [r.reconsume_times for r in world.records("%RETRY%G")] == [2, 5]
        assert "%DLQ%G" not in world.features.topics.table


async def test_a_message_without_retries_left_becomes_a_dead_letter(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        told: list[tuple[str, str]] = []
        world.features.send.retries.on_dead_letter = lambda *who: told.append(who)
        world.features.groups.table.update(
            SubscriptionGroupConfig(group_name="G", retry_max_times=2)
        )
        answer = await world.send("%RETRY%G", j="3", properties="DELAY\x015\x02")
        assert (answer.code, (answer.ext or {})["queueId"]) == (0, "0")
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
        world.features.groups.locks.lock("G", "c1", [queue], world.clock.steady_ms())
        assert (await world.send("%RETRY%G", j="0", properties="RETRY_TOPIC\x01T\x02")).code == 0
        dead = world.records("%DLQ%G")
        assert [record.reconsume_times for record in dead] == [3, 0]
        assert dead[0].properties["DELAY"] == "-1"
        assert world.records("%RETRY%G") == []
        assert world.features.stats.broker_stats.topic_puts["%DLQ%G"].count == 2
        assert told == [("G", "%RETRY%G"), ("G", "T")]


@pytest.mark.parametrize("properties", ["", "UNIQ_KEY\x01U\x02", "_SYS_MSG_PRIORITY_\x010\x02"])
async def test_a_send_to_a_dead_letter_topic_is_not_counted_as_dead_letter(
    tmp_path: Path, properties: str
) -> None:
    async with stored(tmp_path) as world:
        told: list[tuple[str, str]] = []
        world.features.send.retries.on_dead_letter = lambda *who: told.append(who)
        assert (await world.send("%DLQ%G", properties=properties)).code == 0
        assert len(world.records("%DLQ%G")) == 1
        assert told == []


async def test_a_retry_topic_needs_its_group(tmp_path: Path) -> None:
    async with stored(tmp_path, autoCreateSubscriptionGroup="false") as world:
        answer = await world.send("%RETRY%nobody")
        assert (answer.code, answer.ext) == (26, EXT)
        assert (answer.remark or "").startswith("subscription group not exist, nobody")


# --- priorities ---


@pytest.mark.parametrize(
    ("properties", "queue_id", "is_kept"),
    [
        ("_SYS_MSG_PRIORITY_\x012\x02", 2, True),
        ("_SYS_MSG_PRIORITY_\x01+2\x02", 2, True),
        ("_SYS_MSG_PRIORITY_\x0199\x02", 3, True),  # the last queue
        ("_SYS_MSG_PRIORITY_\x01-1\x02", 1, True),
        ("_SYS_MSG_PRIORITY_\x01high\x02", 1, True),
        ("_SYS_MSG_PRIORITY_\x019999999999\x02", 1, True),
        ("_SYS_MSG_PRIORITY_\x012\x02__SHARDINGKEY\x01s\x02", 1, False),
    ],
)
async def test_a_priority_selects_the_queue(
    tmp_path: Path, properties: str, queue_id: int, is_kept: bool
) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 4)
        answer = await world.send(queue_id=1, properties=f"UNIQ_KEY\x01U\x02{properties}")
        assert (answer.code, (answer.ext or {})["queueId"]) == (0, str(queue_id))
        (record,) = world.records("T", queue_id)
        assert ("_SYS_MSG_PRIORITY_" in record.properties) is is_kept


@pytest.mark.parametrize("kind", ["DELAY\x011\x02", "TIMER_DELAY_SEC\x019\x02"])
async def test_a_delayed_message_has_no_priority(tmp_path: Path, kind: str) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 4)
        assert (await world.send(properties=f"_SYS_MSG_PRIORITY_\x012\x02{kind}")).code == 0
        await world.clock.advance(seconds=12)
        (record,) = world.records("T", 0)
        assert "_SYS_MSG_PRIORITY_" not in record.properties


# --- topics with attributes ---


async def test_a_compacted_topic_needs_keys(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.load_topic("C", attributes={"cleanup.policy": "COMPACTION"})
        refused = await world.send("C", properties="UNIQ_KEY\x01U\x02")
        assert (refused.code, refused.remark) == (13, "Required message key is missing")
        assert (await world.send("C", properties="UNIQ_KEY\x01U\x02KEYS\x01k\x02")).code == 0


# --- one-way, durable ---


async def test_a_one_way_send_is_stored_without_a_response(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.send()
        ext = {
            "a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
            "i": "TAGS\x01X\x02",
        }  # fmt: skip
        await world.client.oneway(world.address, Command(code=310, ext=ext, body=b"quiet"))
        await world.clock.drain()
        assert [record.body for record in world.records("T")] == [b"hello", b"quiet"]
        queue = world.features.store.queues.get("T", 0)
        assert queue is not None
        entry = queue.read_entry(1)
        assert entry is not None
        assert entry.tags_code == java_hash("X")


async def test_with_sync_flush_the_answer_waits_for_the_disk(tmp_path: Path) -> None:
    async with stored(tmp_path, flushDiskType="SYNC_FLUSH") as world:
        answer = await world.send(properties="UNIQ_KEY\x01U\x02WAIT\x01true\x02")
        assert (answer.code, (answer.ext or {})["queueOffset"]) == (0, "0")
        log = world.features.store.log
        assert log.files.flushed_where == log.max_offset > 0
        # The handler itself: it answers later, or at once if the message does not care.
        (connection,) = world.features.endpoint.server.connections
        for wait, at_once in (("true", False), ("false", True)):
            ext = {
                "a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1",
                "h": "0", "i": f"WAIT\x01{wait}\x02",
            }  # fmt: skip
            request = Command(code=310, ext=ext, body=b"x", opaque=-7)
            connection.hold(request)
            (answer_now,) = PutHandlers(world.broker.services.puts, world.features.puts.codecs).run(
                connection, [request]
            )
            assert (answer_now is not LATER) == at_once
        await world.features.puts.durability.wait_for_pending()
        assert log.files.flushed_where > 0


async def test_sends_do_not_wait_for_a_topic_that_cannot_be_saved(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        config = tmp_path / "store/config"
        shutil.rmtree(config)
        config.write_bytes(b"not a directory")
        sending = asyncio.create_task(world.send("New"))
        await world.clock.drain()
        seen = world.features.groups.saved.topics.failed, sending.done()
        config.unlink()
        config.mkdir()
        await world.clock.advance(1.1)  # the next attempt, which ends whatever still waits
        assert seen == (True, True)
        assert (await sending).code == 0
