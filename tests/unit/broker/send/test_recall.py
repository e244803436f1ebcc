"""Recall: the handle, the checks in Java's order, and that exactly one message stays away."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from skylark.broker.send.recall import RecallHandle, recall_handle
from skylark.core.errors import BrokerError
from skylark.core.names import TIMER_TOPIC
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.properties import encode_properties
from tests.unit.broker.stored import Stored, stored

ENABLED = {"recallMessageEnable": "true"}
PRINTED = (
    "djEgVG9waWNUZXN0IGJyb2tlci1hIDE3MDAwMDAwMDkwMDEgN0YwMDAwMDEwMDAxMThCNEFBQzIwMDAwMDAwMDAwMDA="
)


async def send(world: Stored, body: bytes, delay_s: int, unique_id: str) -> str:
    """Send a timed message; its handle."""
    properties = {"TIMER_DELAY_SEC": str(delay_s), "UNIQ_KEY": unique_id}
    answer = await world.send(body=body, properties=encode_properties(properties))
    assert answer.code == 0
    return (answer.ext or {})["recallHandle"]


async def recall(world: Stored, handle: str, topic: str = "T") -> Command:
    fields = {"topic": topic, "recallHandle": handle, "producerGroup": "pg"}
    return await world.call(RequestCode.RECALL_MESSAGE, fields)


def bodies(world: Stored) -> list[bytes]:
    return [record.body for record in world.records("T")]


# ---- handles -------------------------------------------------------------------------------------


@pytest.mark.spec("store.12.39")
def test_the_printed_handle() -> None:
    handle = RecallHandle(
        "TopicTest", "broker-a", "1700000009001", "7F000001000118B4AAC2000000000000"
    )
    assert handle.encode() == PRINTED
    assert RecallHandle.decode(PRINTED) == RecallHandle.decode(PRINTED.rstrip("=")) == handle
    properties = {
        "TIMER_OUT_MS": "1700000009000",
        "REAL_TOPIC": "TopicTest",
        "UNIQ_KEY": "7F000001000118B4AAC2000000000000",
    }
    assert recall_handle(properties, "broker-a") == PRINTED


@pytest.mark.parametrize(
    "changes",
    [{"REAL_TOPIC": "%RETRY%g"}, {"TIMER_OUT_MS": "x"}, {"TIMER_OUT_MS": "9" * 30}],
)
def test_no_handle(changes: dict[str, str]) -> None:
    properties = {"TIMER_OUT_MS": "1", "REAL_TOPIC": "T", "UNIQ_KEY": "U", **changes}
    assert recall_handle(properties, "b") is None
    for name in properties:
        rest = {key: value for key, value in properties.items() if key != name}
        assert recall_handle(rest, "b") is None


@pytest.mark.parametrize("text", ["", "v1 T b 1", "v2 T b 1 U", "v1", "\xff"], ids=range(5))
def test_bad_handles(text: str) -> None:
    with pytest.raises(BrokerError, match="recall handle is invalid") as raised:
        RecallHandle.decode(base64.urlsafe_b64encode(text.encode()).decode())
    assert raised.value.code == 604


@pytest.mark.parametrize("handle", ["", "not base64!", "=", "\u00e9", "A" * 5])
def test_handles_that_are_no_base64(handle: str) -> None:
    with pytest.raises(BrokerError, match="recall handle is invalid"):
        RecallHandle.decode(handle)


# ---- checks --------------------------------------------------------------------------------------


def handle_of(world: Stored, **changes: str) -> str:
    fields = {
        "topic": "T",
        "broker_name": "broker-a",
        "time_text": str(world.clock.now_ms() + 60_000),
        "unique_id": "U",
    }
    return RecallHandle(**{**fields, **changes}).encode()


async def test_it_is_off_by_default(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        handle = await send(world, b"x", 5, "U")  # handles are given out all the same
        answer = await recall(world, handle)
        assert answer.code == 16
        assert (answer.remark or "").startswith("recall failed, operation is forbidden")
        assert answer.ext == {"MSG_REGION": "DefaultRegion"}
        await world.clock.advance(6)
        assert bodies(world) == [b"x"]


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"startAcceptSendRequestTimeStamp": "9999999999999"}, 14),
        ({"brokerPermission": "4", "allowRecallWhenBrokerNotWriteable": "false"}, 14),
        ({"brokerPermission": "4"}, 0),
    ],
)
async def test_a_broker_that_takes_no_messages(
    tmp_path: Path, settings: dict[str, str], code: int
) -> None:
    async with stored(tmp_path, **ENABLED, **settings) as world:
        world.add_topic("T")
        answer = await recall(world, handle_of(world))
        assert answer.code == code
        if code:
            assert (answer.remark or "").startswith("recall failed, broker service not available")


async def test_refused_handles(tmp_path: Path) -> None:
    async with stored(tmp_path, **ENABLED) as world:
        answer = await recall(world, "whatever", topic="Unknown")
        assert answer.code == 17
        assert (answer.remark or "").startswith("recall failed, the topic[Unknown] not exist")
        world.add_topic("T")
        now_ms = world.clock.now_ms()
        for handle, remark in (
            ("whatever", "recall handle is invalid"),
            (handle_of(world, topic="U"), "recall failed, topic not match"),
            (
                handle_of(world, broker_name="broker-b"),
                "recall failed, broker service not available",
            ),
            (handle_of(world, time_text=str(now_ms)), "recall failed, timestamp invalid"),
            (handle_of(world, time_text="soon"), "recall failed, timestamp invalid"),
            (handle_of(world, time_text="9" * 30), "recall failed, timestamp invalid"),
            (
                handle_of(world, time_text=str(now_ms + 259_200_000)),
                "recall failed, timestamp invalid",
            ),
        ):
            answer = await recall(world, handle)
            assert answer.code == 604
            assert (answer.remark or "").startswith(remark)
            assert answer.ext == {"MSG_REGION": "DefaultRegion"}
        assert world.records(TIMER_TOPIC) == []
        assert (
            await recall(world, handle_of(world, time_text=str(now_ms + 259_199_999)))
        ).code == 0


async def test_what_cannot_stand_in_a_property_is_refused(tmp_path: Path) -> None:
    async with stored(tmp_path, **ENABLED) as world:
        world.add_topic("T")
        good = {"topic": "T", "recallHandle": handle_of(world), "producerGroup": "pg"}
        for changed in (
            {"recallHandle": handle_of(world, unique_id="a\x02b")},
            {"producerGroup": "p\x02g"},
        ):
            answer = await world.call(RequestCode.RECALL_MESSAGE, good | changed)
            assert answer.code == 1
            assert (answer.remark or "").startswith("recall failed, execute error")
        assert world.records(TIMER_TOPIC) == []


async def test_without_a_timer_nothing_can_be_recalled(tmp_path: Path) -> None:
    async with stored(tmp_path, **ENABLED, timerWheelEnable="false") as world:
        world.add_topic("T")
        answer = await recall(world, handle_of(world))
        assert answer.code == 1
        assert (answer.remark or "").startswith("recall failed, execute error")


# ---- what it does --------------------------------------------------------------------------------


@pytest.mark.spec("store.12.39")
@pytest.mark.spec("broker.13.8")
async def test_exactly_one_message_stays_away(tmp_path: Path) -> None:
    async with stored(tmp_path, **ENABLED) as world:
        await send(world, b"before", 5, "U1")
        handle = await send(world, b"recalled", 5, "U2")
        await send(world, b"behind", 5, "U3")
        answer = await recall(world, handle)
        assert (answer.code, answer.remark) == (0, None)
        assert answer.ext == {"MSG_REGION": "DefaultRegion", "msgId": "U2"}
        timer = world.features.delay.timer
        assert timer is not None
        await world.clock.drain()
        assert timer.timing_counts() == {"T": 2}
        await world.clock.advance(10)
        assert bodies(world) == [b"before", b"behind"]
        assert timer.timing_counts() == {"T": 0}
        late = await recall(world, handle)
        assert late.code == 604
        assert (late.remark or "").startswith("recall failed, timestamp invalid")


@pytest.mark.parametrize(("with_topic", "key"), [("false", "U"), ("true", "T+U")])
async def test_the_mark(tmp_path: Path, with_topic: str, key: str) -> None:
    """Whichever form its key has, it does its work."""
    settings = {**ENABLED, "appendTopicForTimerDeleteKey": with_topic}
    async with stored(tmp_path, **settings) as world:
        handle = await send(world, b"x", 5, "U")
        await recall(world, handle)
        message, mark = world.records(TIMER_TOPIC)
        assert mark.body == b"0"
        properties = mark.properties
        assert properties["TIMER_OUT_MS"] == message.properties["TIMER_OUT_MS"]
        assert properties["TIMER_DEL_UNIQKEY"] == key
        assert (properties["TAGS"], properties["UNIQ_KEY"]) == ("_RECALL_TAG_", "U")
        assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("T", "0")
        assert (properties["PGROUP"], mark.born_host[:4]) == ("pg", message.born_host[:4])
        await world.clock.advance(6)
        assert bodies(world) == []


async def test_a_mark_deletes_in_its_own_topic_only(tmp_path: Path) -> None:
    async with stored(tmp_path, **ENABLED) as world:
        handle = RecallHandle.decode(await send(world, b"x", 5, "U"))
        world.add_topic("Other")
        for unique_id in ("U", "T+U"):
            foreign = handle._replace(topic="Other", unique_id=unique_id).encode()
            assert (await recall(world, foreign, topic="Other")).code == 0
        await world.clock.advance(6)
        assert bodies(world) == [b"x"]


async def test_a_mark_for_nothing_does_nothing(tmp_path: Path) -> None:
    async with stored(tmp_path, **ENABLED) as world:
        await send(world, b"x", 5, "U")
        assert (await recall(world, handle_of(world, unique_id="other"))).code == 0
        await world.clock.advance(70)
        assert bodies(world) == [b"x"]
        timer = world.features.delay.timer
        assert timer is not None
        assert timer.timing_counts() == {"T": 0}


async def test_a_message_that_is_rolled_can_be_recalled(tmp_path: Path) -> None:
    async with stored(tmp_path, **ENABLED, timerRollWindowSlot="10") as world:
        handle = await send(world, b"x", 30, "U")
        await send(world, b"y", 30, "V")
        await world.clock.advance(15)  # rolled once; the mark is rolled by itself
        assert (await recall(world, handle)).code == 0
        await world.clock.advance(40)
        assert bodies(world) == [b"y"]
        assert world.records(TIMER_TOPIC)[-1].properties["TIMER_ROLL_TIMES"] in ("1", "2", "3")


async def test_all_messages_of_one_id_are_recalled(tmp_path: Path) -> None:
    async with stored(tmp_path, **ENABLED) as world:
        handle = await send(world, b"first try", 5, "U")
        await send(world, b"second try", 5, "U")  # a producer that got no answer
        await recall(world, handle)
        await world.clock.advance(6)
        assert bodies(world) == []


async def test_a_recall_waits_for_the_disk(tmp_path: Path) -> None:
    async with stored(tmp_path, **ENABLED, flushDiskType="SYNC_FLUSH") as world:
        world.add_topic("T")
        assert (await recall(world, handle_of(world))).code == 0
        files = world.features.store.log.files
        assert files.flushed_where == files.wrote_end > 0
