"""Copies that the broker makes itself: not limited by settings, never lost, never in the way."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from skylark.broker.send.own_copies import UncopiedMessages, copy_growth, without_optional
from skylark.core.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC
from skylark.store.commit_log import Draft, PutLimits
from skylark.store.put_message import COPY_GROWTH_MAX
from skylark.store.store_results import PutStatus
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.testing.virtual_clock import START_MS
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.layout import PROPERTIES_SIZE_MAX
from skylark.wire.message import decode_record
from skylark.wire.properties import encode_properties, parse_properties
from tests.unit.broker.delay.schedule_world import on_disk
from tests.unit.broker.stored import Stored, stored
from tests.unit.broker.transaction.halves import (
    COMMIT,
    GIVEN_UP,
    HALF,
    ROLLBACK,
    Sent,
    Shop,
    shop,
)
from tests.unit.broker.transaction.test_half_batches import end, part, sent

RETRY, DEAD = "%RETRY%G", "%DLQ%G"
LARGE, SMALL_LIMIT = b"x" * 5_000, "1000"


def filled(size: int, **properties: str) -> bytes:
    """A property string of exactly that many bytes, the last value as long as it takes."""
    start = encode_properties({**properties, "fill": ""}).encode()
    return start[:-1] + b"f" * (size - len(start)) + b"\x02"


def put_full(world: Stored, topic: str, properties: bytes, body: bytes = b"full") -> int:
    """Store what an older broker, or none of ours, may have left; its log offset."""
    draft = Draft(topic, 0, body, properties, born_timestamp=world.clock.now_ms())
    draft.limits = PutLimits.RECORD_FORMAT_ONLY
    result = world.features.store.put(draft)
    assert result.status.stored
    return result.log_offset


async def lower_limit(world: Stored) -> None:
    answer = await world.call(25, {}, f"maxMessageSize={SMALL_LIMIT}".encode())
    assert answer.code == 0
    assert (await world.send("Other", LARGE)).code == 13  # clients are held to it


def bodies(world: Stored, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [record.body for record in world.records(topic, queue_id)]


# --- what copies add ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "properties", "added"),
    [
        ("T", {"a": "b"}, ()),
        (SCHEDULE_TOPIC, {"DELAY": "3", "REAL_TOPIC": "T"}, ()),
        (
            TIMER_TOPIC,
            {"TIMER_OUT_MS": "1"},
            ("TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES"),
        ),
        (
            HALF_TOPIC,
            {"a": "b"},
            ("TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES", "WAIT"),
        ),
        (
            HALF_TOPIC,
            {"TIMER_DELAY_SEC": "1"},
            (
                "TRAN_PREPARED_QUEUE_OFFSET", "TRANSACTION_CHECK_TIMES", "WAIT", "TIMER_OUT_MS",
                "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES",
            ),
        ),
    ],
)  # fmt: skip
def test_properties_that_copies_add(
    topic: str, properties: dict[str, str], added: tuple[str, ...]
) -> None:
    growth = copy_growth(topic, encode_properties(properties).encode())
    names_size = sum(len(name) + 2 for name in added)
    assert names_size <= growth <= names_size + 19 * len(added)
    assert growth <= COPY_GROWTH_MAX


def test_an_existing_property_adds_only_the_difference_of_its_values() -> None:
    before = {"TRAN_PREPARED_QUEUE_OFFSET": "0" * 19, "TRANSACTION_CHECK_TIMES": "1" * 10}
    assert copy_growth(HALF_TOPIC, encode_properties({**before, "WAIT": "true"}).encode()) == 1
    longer = encode_properties({**before, "WAIT": "w" * 100}).encode()
    assert copy_growth(HALF_TOPIC, longer) == 0


# --- what copies can do without -------------------------------------------------------------------


def test_optional_properties_are_dropped_one_by_one() -> None:
    given = {
        "TAGS": "A", "CLUSTER": "c", "TRACE_ON": "true", "MSG_REGION": "r", "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": "id", "WAIT": "false", "DELAY": "0", "REAL_TOPIC": "T",
        "REAL_QID": "1", "UNIQ_KEY": "U", "__transactionId__": "U", "user": "WAIT",
    }  # fmt: skip
    raw = encode_properties(given).encode()
    left = [raw]
    while True:
        size_max = len(left[-1]) - 1
        shorter = without_optional("%DLQ%G", raw, lambda each: len(each) <= size_max)  # noqa: B023
        if shorter == left[-1]:
            break
        left.append(shorter)
    kept = parse_properties(left[-1])
    assert kept == {"TAGS": "A", "RETRY_TOPIC": "T", "UNIQ_KEY": "U", "user": "WAIT"}
    assert len(left) == len(given) - len(kept) + 1


@pytest.mark.parametrize(
    ("topic", "name", "value"),
    [
        (SCHEDULE_TOPIC, "REAL_TOPIC", "T"),
        (TIMER_TOPIC, "REAL_QID", "1"),
        (HALF_TOPIC, "REAL_TOPIC", "T"),
        ("T", "DELAY", "3"),
        ("T", "__transactionId__", "of the producer"),
        ("T", "TIMER_OUT_MS", "1"),
    ],
)
def test_needed_properties_stay(topic: str, name: str, value: str) -> None:
    raw = encode_properties({"UNIQ_KEY": "U", "CLUSTER": "c", name: value}).encode()
    left = parse_properties(without_optional(topic, raw, lambda _: False))
    assert left == {"UNIQ_KEY": "U", name: value}


def test_an_uncopied_message_is_counted_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    uncopied = UncopiedMessages()
    for log_offset in (7, 7, 8, 7):
        uncopied.add("retry", log_offset, "%DLQ%G", PutStatus.PROPERTIES_SIZE_EXCEEDED)
    uncopied.add("check", 7, "H", PutStatus.MESSAGE_ILLEGAL)
    assert uncopied.counts == {"retry": 2, "check": 1}
    assert len(caplog.messages) == 3
    assert caplog.messages[0] == (
        "the broker cannot copy the message at log offset 7 to %DLQ%G:"
        " PROPERTIES_SIZE_EXCEEDED (retry)"
    )


# --- settings that were changed -------------------------------------------------------------------


@pytest.mark.parametrize(
    "properties", [{"DELAY": "3"}, {"TIMER_DELAY_SEC": "10"}, {"TIMER_DELAY_SEC": "25"}]
)
@pytest.mark.parametrize("restarts", [False, True])
async def test_acknowledged_messages_are_delivered_after_the_limit_is_lowered(
    properties: dict[str, str], restarts: bool
) -> None:
    disk = FaultyFileSystem()
    given = {"timerRollWindowSlot": "10"}
    async with on_disk(disk, given=given) as world:
        text = encode_properties(properties)
        assert (await world.send("T", LARGE, 0, text)).code == 0
        assert (await world.send("T", b"short", 0, text)).code == 0
        if not restarts:
            await lower_limit(world)
            await world.clock.advance(40)
            assert bodies(world) == [LARGE, b"short"]
            return
    given["maxMessageSize"] = SMALL_LIMIT
    async with on_disk(disk, START_MS + 1_000, given) as world:
        await world.clock.advance(40)
        assert bodies(world) == [LARGE, b"short"]


@pytest.mark.parametrize("run", [False, True])
async def test_a_transaction_is_committed_after_the_limit_is_lowered(
    tmp_path: Path, run: bool
) -> None:
    async with shop(tmp_path, transactionOpMsgMaxSize="1") as world:
        sent = await world.producer.send("U1", body=LARGE)
        other = await world.producer.send("U2", body=LARGE)
        await lower_limit(world)
        if run:
            await world.producer.end_oneway(sent)
        else:
            assert (await world.producer.end(sent)).code == 0
        assert world.bodies() == [LARGE]
        assert world.op_bodies() == [b"0,"]
        await world.rounds()
        assert world.producer.checked().unique_id == "U2"
        assert [len(body) for body in world.bodies(HALF, 0)] == [5_000] * 3
        assert (await world.producer.end(other, check=True)).code == 0
        assert world.bodies() == [LARGE] * 2
    # And of half messages that are not at hand any more.
    async with shop(tmp_path, start_ms=START_MS + 100_000, maxMessageSize="10") as world:
        old = await _send_with_limit(world, "U3")
        assert world.bodies(HALF, 0)[-1] == LARGE
        assert (await world.producer.end(old)).code == 0
        assert world.bodies()[-1] == LARGE


async def test_transactions_committed_in_a_run_are_not_limited_either(
    tmp_path: Path,
) -> None:
    async with shop(tmp_path) as world:
        places = await sent(world, part(1), part(2), part(3))
        assert (await world.call(25, {}, b"maxMessageSize=1")).code == 0
        assert await end(world, places) == [0, 0, 0]
        assert len(world.bodies()) == 3


async def _send_with_limit(world: Shop, unique_id: str) -> Sent:
    """A half message that was sent while it was not too large."""
    assert (await world.call(25, {}, b"maxMessageSize=10000")).code == 0
    sent = await world.producer.send(unique_id, body=LARGE)
    assert (await world.call(25, {}, b"maxMessageSize=10")).code == 0
    world.transactions.recent._halves.clear()
    return sent


async def test_retries_and_dead_letters_are_made_after_the_limit_is_lowered(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        assert (await world.send("T", LARGE)).code == 0
        await lower_limit(world)
        (record,) = world.records("T")
        assert (await send_back(world, record.log_offset)).code == 0
        await world.clock.advance(10)
        (retried,) = world.records(RETRY)
        assert (await send_back(world, retried.log_offset, level=-1)).code == 0
        assert (bodies(world, RETRY), bodies(world, DEAD)) == ([LARGE], [LARGE])


# --- properties that fill the record: before the message is acknowledged --------------------------


@pytest.mark.spec("store.12.7")
async def test_an_ordinary_message_may_fill_the_record(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        own_size = len(encode_properties(world_added(await one_record(world))))
        full = filled(PROPERTIES_SIZE_MAX - own_size, UNIQ_KEY="U").decode()
        assert (await world.send("T", b"x", 0, full)).code == 0
        assert len(world.records("T")[-1].raw_properties) == PROPERTIES_SIZE_MAX
        assert (await world.send("T", b"x", 0, full[:-1] + "f\x02")).code == 13


async def one_record(world: Stored) -> dict[str, str]:
    await world.send("T", b"x", 0, "UNIQ_KEY\x01U\x02")
    return dict(world.records("T")[0].properties)


def world_added(properties: dict[str, str]) -> dict[str, str]:
    """What the broker adds to each message."""
    return {name: value for name, value in properties.items() if name != "UNIQ_KEY"}


@pytest.mark.parametrize("crc", ["false", "true"])
@pytest.mark.parametrize("delay_s", ["2", "25"])
async def test_a_timed_message_is_refused_or_delivered(
    tmp_path: Path, crc: str, delay_s: str
) -> None:
    """Of 31 sizes each is one or the other; before, many were acknowledged and then dropped."""
    given = {"timerRollWindowSlot": "10", "enabledAppendPropCRC": crc}
    async with stored(tmp_path, **given) as world:
        acknowledged, codes = [], []
        for size in range(PROPERTIES_SIZE_MAX - 300, PROPERTIES_SIZE_MAX, 10):
            text = filled(size, UNIQ_KEY="U" * 32, TIMER_DELAY_SEC=delay_s).decode()
            answer = await world.send("T", b"%d" % size, 0, text)
            codes.append(answer.code)
            if answer.code == 0:
                acknowledged.append(b"%d" % size)
        assert set(codes) == {0, 13}
        assert codes == sorted(codes)
        await world.clock.advance(60)
        assert bodies(world) == acknowledged
        assert all("TIMER_DEQUEUE_MS" in record.properties for record in world.records("T"))
        assert world.features.puts.writer.uncopied.counts == {}


@pytest.mark.parametrize("more", [{}, {"DELAY": "1"}, {"TIMER_DELAY_SEC": "25"}])
@pytest.mark.parametrize("in_run", [False, True])
async def test_a_half_message_is_refused_or_checked_and_committed(
    tmp_path: Path, more: dict[str, str], in_run: bool
) -> None:
    async with shop(tmp_path, timerRollWindowSlot="10", transactionCheckMax="100") as world:
        sent, codes = [], []
        for size in range(PROPERTIES_SIZE_MAX - 500, PROPERTIES_SIZE_MAX, 16):
            properties = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": f"U{size}", **more}
            text = filled(size, **properties).decode()
            if not in_run:  # an item without a value takes the longer way
                text = text.replace("\x02", "\x02empty\x01\x02", 1)
            answer = await world.send("T", b"%d" % size, 1, text)
            codes.append(answer.code)
            if answer.code == 0:
                sent.append(b"%d" % size)
        assert set(codes) == {0, 13}
        assert codes == sorted(codes)
        await world.rounds(2)
        assert len(world.producer.check_backs) == 2 * len(sent)
        for index in range(-len(sent), 0):
            assert (await world.producer.end(world.producer.checked(index), check=True)).code == 0
        await world.clock.advance(60)
        assert world.bodies() == sent
        assert world.features.puts.writer.uncopied.counts == {}


# --- properties that fill the record: messages that are stored already ----------------------------


async def send_back(world: Stored, log_offset: int, level: int = 0) -> Command:
    fields = {"offset": str(log_offset), "group": "G", "delayLevel": str(level)}
    return await world.call(RequestCode.CONSUMER_SEND_MSG_BACK, fields)


async def test_a_retry_drops_optional_properties(tmp_path: Path) -> None:
    """Before: every copy was refused, and the consumer tried the message every 5 s for ever."""
    async with stored(tmp_path) as world:
        own = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "DefaultCluster"}
        put_full(world, "T", filled(PROPERTIES_SIZE_MAX, UNIQ_KEY="U", **own))
        (record,) = world.records("T")
        for times, delay_s in enumerate((10, 30, 60), 1):
            assert (await send_back(world, record.log_offset)).code == 0
            await world.clock.advance(delay_s)
            record = world.records(RETRY)[-1]
            assert (record.reconsume_times, len(world.records(RETRY))) == (times, times)
            assert record.properties["RETRY_TOPIC"] == "T"
            assert record.properties["fill"] == world.records("T")[0].properties["fill"]
            assert "CLUSTER" not in record.properties
        assert (await send_back(world, record.log_offset, level=-1)).code == 0
        (dead,) = world.records(DEAD)
        assert dead.properties["RETRY_TOPIC"] == "T"
        assert world.features.puts.writer.uncopied.counts == {}


async def test_a_retry_without_room_for_its_delay_is_a_dead_letter(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        offset = put_full(world, "T", filled(PROPERTIES_SIZE_MAX - 20, UNIQ_KEY="U"))
        assert (await send_back(world, offset)).code == 0
        assert (bodies(world, SCHEDULE_TOPIC, 2), bodies(world, DEAD)) == ([], [b"full"])
        assert world.features.puts.writer.uncopied.counts == {}
        assert world.features.stats.broker_stats.send_backs["T", "G"].count == 1


async def test_a_send_back_of_a_message_that_cannot_be_copied_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stored(tmp_path) as world:
        offset = put_full(world, "T", filled(PROPERTIES_SIZE_MAX, UNIQ_KEY="U"))
        for _ in range(3):
            assert (await send_back(world, offset)).code == 0
        assert (bodies(world, RETRY), bodies(world, DEAD)) == ([], [])
        assert bodies(world) == [b"full"]
        assert world.features.puts.writer.uncopied.counts == {"retry": 1}
        lines = [line for line in caplog.messages if "cannot copy" in line]
        assert lines == [
            f"the broker cannot copy the message at log offset {offset} to {DEAD}:"
            " PROPERTIES_SIZE_EXCEEDED (retry)"
        ]
        # Others come and go.
        await world.send("T", b"other")
        assert (await send_back(world, world.records("T")[-1].log_offset, level=-1)).code == 0
        assert bodies(world, DEAD) == [b"other"]


async def test_a_timed_message_of_an_older_store_is_delivered(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        now_ms = world.clock.now_ms()
        names = {"REAL_TOPIC": "T", "REAL_QID": "0", "TIMER_OUT_MS": str(now_ms + 2_000)}
        put_full(world, TIMER_TOPIC, filled(PROPERTIES_SIZE_MAX, UNIQ_KEY="U", **names))
        await world.clock.advance(5)
        (record,) = world.records("T")
        assert "TIMER_DEQUEUE_MS" not in record.properties
        assert len(record.raw_properties) == PROPERTIES_SIZE_MAX


async def test_a_checksum_that_was_switched_on_later_takes_the_place_of_optional_properties() -> (
    None
):
    disk = FaultyFileSystem()
    size = PROPERTIES_SIZE_MAX - 300
    async with on_disk(disk) as world:
        base = await world.send("T", b"x", 0, filled(size, UNIQ_KEY="U", DELAY="3").decode())
        assert base.code == 0
        room = PROPERTIES_SIZE_MAX - len(world.records(SCHEDULE_TOPIC, 2)[0].raw_properties)
        text = filled(size + room, UNIQ_KEY="U", DELAY="3").decode()
        assert (await world.send("T", b"full", 0, text)).code == 0
    given = {"enabledAppendPropCRC": "true"}
    async with on_disk(disk, START_MS + 60_000, given) as world:
        await world.clock.drain()
        assert bodies(world) == [b"x", b"full"]
        assert "CLUSTER" not in world.records("T")[1].properties
        assert "REAL_TOPIC" in world.records("T")[1].properties


@pytest.mark.parametrize("properties", [{"DELAY": "1"}, {"TIMER_DELAY_SEC": "1"}])
async def test_a_delayed_message_that_cannot_be_copied_is_skipped(
    tmp_path: Path, properties: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    async with stored(tmp_path) as world:
        waiting_topic = SCHEDULE_TOPIC if "DELAY" in properties else TIMER_TOPIC
        names = {**properties, "REAL_TOPIC": "T" * 300, "REAL_QID": "0"}
        names["TIMER_OUT_MS"] = str(world.clock.now_ms())
        put_full(world, waiting_topic, encode_properties(names).encode())
        await world.send("T", b"next", 0, encode_properties(properties))
        await world.clock.advance(5)
        assert bodies(world) == [b"next"]
        assert world.features.puts.writer.uncopied.counts.total() == 1
        assert len([line for line in caplog.messages if "cannot copy" in line]) == 1
        assert bodies(world, waiting_topic)[0] == b"full"  # where it was


# --- half messages that cannot be copied ----------------------------------------------------------


def put_full_half(world: Shop, unique_id: str = "full") -> Sent:
    names = {"REAL_TOPIC": "T", "REAL_QID": "1", "UNIQ_KEY": unique_id}
    raw = filled(PROPERTIES_SIZE_MAX, TRAN_MSG="true", PGROUP="pg", **names)
    log_offset = put_full(world, HALF, raw)
    world.transactions.count_halves("T", 1)
    queue_offset = world.features.store.reader.max_offset(HALF, 0) - 1
    return Sent(log_offset, queue_offset, unique_id)


@pytest.mark.parametrize("decision", [COMMIT, ROLLBACK])
async def test_a_half_message_that_cannot_be_copied_does_not_stop_the_check_backs_of_others(
    tmp_path: Path, decision: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with shop(tmp_path) as world:
        full = put_full_half(world)
        await world.producer.send("U1")
        await world.rounds(2)
        asked = [question.ext or {} for question in world.producer.check_backs]
        assert [ext["transactionId"] for ext in asked] == ["full", "U1"] * 2
        assert world.producer.checked(0) == world.producer.checked(2) == full
        question = decode_record(world.producer.check_backs[0].body or b"")
        assert (question.topic, question.body) == ("T", b"full")
        assert world.features.puts.writer.uncopied.counts == {"check": 1}
        assert len([line for line in caplog.messages if "cannot copy" in line]) == 1
        answer = await world.producer.end(full, decision, check=True)
        assert answer.code == 0  # the final message has no destination among its properties
        assert world.bodies() == ([b"full"] if decision == COMMIT else [])
        assert world.transactions.rounds._uncopied_checks == {full.queue_offset: 2}
        await world.rounds()
        assert len(world.producer.check_backs) == 5
        await world.flushed()
        await world.rounds()
        assert world.position()[0] > full.queue_offset


async def test_a_half_message_that_cannot_be_copied_is_given_up_in_time(tmp_path: Path) -> None:
    async with shop(tmp_path, transactionCheckMax="3") as world:
        full = put_full_half(world)
        await world.rounds(8)
        assert len(world.producer.check_backs) == 3
        assert world.bodies(GIVEN_UP, 0) == []
        assert world.bodies(HALF, 0) == [b"full"]
        assert world.transactions.counts.given_up_count == 1
        await world.flushed()
        await world.rounds()
        assert world.position()[0] == full.queue_offset + 1
        assert world.transactions.rounds._uncopied_checks == {}
        # A decision still counts.
        assert (await world.producer.end(full)).code == 0
        assert world.bodies() == [b"full"]


async def test_check_rounds_continue_at_the_limit_of_topics(tmp_path: Path) -> None:
    async with shop(tmp_path, transactionCheckMax="1") as world:
        await world.producer.send("U1")
        count = len(world.features.topics.table)
        assert (await world.call(25, {}, f"topicCountMax={count}".encode())).code == 0
        await world.rounds(3)
        assert world.features.topics.table.get(GIVEN_UP) is None
        assert world.bodies(GIVEN_UP, 0) == [b"x"]
