"""Timed messages in a whole broker on virtual time: never early, never lost, never twice."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.delay import timer_service as timer_module
from skylark.broker.delay.timer_service import TimerFacts, TimerService
from skylark.broker.send.message_policy import NO_DESTINATIONS
from skylark.core.names import TIMER_TOPIC
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult, PutStatus
from skylark.store.timer.timer_layout import SLOT, SLOT_SIZE
from skylark.wire.batch import BatchMessage, encode_batch
from skylark.wire.command import Command
from skylark.wire.properties import encode_properties
from tests.unit.broker.stored import Stored, await_flushes, stored

DAY_S = 86_400


def service(world: Stored) -> TimerService:
    timer = world.features.delay.timer
    assert timer is not None
    return timer


async def send(
    world: Stored, body: bytes = b"hello", topic: str = "T", **properties: Any
) -> Command:
    texts = {name: str(value) for name, value in properties.items()}
    return await world.send(topic, body, properties=encode_properties(texts))


def put_raw(world: Stored, **properties: str) -> None:
    """A record that the broker would not take from a client, but may find in the log."""
    text = encode_properties(properties).encode()
    assert world.features.puts.writer.put(Draft(TIMER_TOPIC, 0, b"hello", text)).status.stored


def bodies(world: Stored, topic: str = "T") -> list[bytes]:
    return [record.body for record in world.records(topic)]


async def to_phase(world: Stored, ms: int) -> int:
    """Move the clock to a point within a second; returns the time."""
    await world.clock.advance(ms=(ms - world.clock.now_ms()) % 1_000)
    return world.clock.now_ms()


def jump(world: Stored, seconds: int) -> None:
    """Set the wall clock forward; nothing runs."""
    world.clock._start_ms += seconds * 1_000


# ---- when ----------------------------------------------------------------------------------------


@pytest.mark.spec("store.12.38")
@pytest.mark.parametrize(
    ("deliver", "slot", "arrives"),
    [(10_000, 9_000, 10_000), (10_001, 10_000, 11_000), (10_999, 10_000, 11_000)],
)
async def test_rounding_and_the_moment(
    tmp_path: Path, deliver: int, slot: int, arrives: int
) -> None:
    async with stored(tmp_path) as world:
        now_ms = await to_phase(world, 0)
        assert (await send(world, TIMER_DELIVER_MS=now_ms + deliver)).code == 0
        record = world.records(TIMER_TOPIC)[0]
        assert record.properties["TIMER_OUT_MS"] == str(now_ms + slot)
        await world.clock.advance(ms=arrives - 1)
        assert bodies(world) == []
        await world.clock.advance(ms=1)
        assert bodies(world) == [b"hello"]
        assert world.records("T")[0].store_timestamp == now_ms + arrives


@pytest.mark.parametrize(
    ("name", "value"),
    [("TIMER_DELAY_SEC", "3"), ("TIMER_DELAY_MS", "3000"), ("TIMER_DELAY_MS", "+3000")],
)
async def test_delays(tmp_path: Path, name: str, value: str) -> None:
    async with stored(tmp_path) as world:
        now_ms = await to_phase(world, 400)
        assert (await send(world, b"hello", "T", **{name: value})).code == 0
        await world.clock.advance(ms=3_599)
        assert bodies(world) == []
        await world.clock.advance(ms=1)
        assert bodies(world) == [b"hello"]
        properties = world.records("T")[0].properties
        assert properties["TIMER_ENQUEUE_MS"] == str(now_ms - 400)
        assert properties["TIMER_DEQUEUE_MS"] == str(now_ms + 3_600)
        assert properties["TIMER_OUT_MS"] == str(now_ms + 2_600)
        assert (properties["REAL_TOPIC"], properties["REAL_QID"]) == ("T", "0")


@pytest.mark.spec("broker.13.8")
@pytest.mark.spec("store.12.38")
async def test_past_near_and_far(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        now_ms = world.clock.now_ms()
        assert (await send(world, b"past", TIMER_DELIVER_MS=now_ms)).code == 0
        assert (await send(world, b"zero", TIMER_DELAY_SEC=0)).code == 0
        assert bodies(world) == [b"past", b"zero"]
        assert "TIMER_OUT_MS" not in world.records("T")[0].properties
        far = await send(world, TIMER_DELAY_SEC=4 * DAY_S)
        assert far.code == 13
        assert (far.remark or "").startswith(
            "timer message illegal, the delay time should not be bigger than the max delay"
            " 259200000ms; or if set del msg, the delay time should be bigger than the current time"
        )
        assert (await send(world, TIMER_DELAY_SEC="soon")).code == 13
        assert (await send(world, TIMER_DELAY_SEC=1 << 70)).code == 13
        assert (await send(world, TIMER_DELIVER_MS=1, TIMER_DEL_UNIQKEY="T+x")).code == 13
        assert (await send(world, b"five", TIMER_DELIVER_MS=now_ms + 5_000)).code == 0
        await world.clock.advance(3)
        assert bodies(world) == [b"past", b"zero"]
        await world.clock.advance(4)
        assert bodies(world) == [b"past", b"zero", b"five"]


async def test_what_is_delivered_is_what_was_sent(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        answer = await send(
            world, b"x" * 300, TIMER_DELAY_SEC=2, TAGS="A", KEYS="k", UNIQ_KEY="U1", WAIT="true"
        )
        assert answer.ext is not None
        assert (answer.ext["queueId"], answer.ext["queueOffset"]) == ("0", "0")
        await world.clock.advance(3)
        (sent,), (delivered,) = world.records(TIMER_TOPIC), world.records("T")
        assert sent.topic == TIMER_TOPIC
        assert (delivered.body, delivered.flag, delivered.sys_flag) == (b"x" * 300, 0, 0)
        assert delivered.born_host == sent.born_host
        assert delivered.born_timestamp == sent.born_timestamp
        added = delivered.properties.keys() - sent.properties.keys()
        assert added == {"TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS"}
        assert sent.properties.items() <= delivered.properties.items()
        assert delivered.store_timestamp > sent.store_timestamp


async def test_order_within_a_slot_and_between_slots(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        for number in range(6):
            delay_s = 5 if number % 2 else 3
            await send(world, b"%d" % number, TIMER_DELAY_SEC=delay_s)
        await world.clock.advance(6)
        assert bodies(world) == [b"0", b"2", b"4", b"1", b"3", b"5"]


@pytest.mark.parametrize(("precision", "slot_ms"), [("100", 100), ("130", 100), ("999", 500)])
async def test_a_finer_timer(tmp_path: Path, precision: str, slot_ms: int) -> None:
    async with stored(tmp_path, timerPrecisionMs=precision) as world:
        now_ms = await to_phase(world, 0)
        await send(world, TIMER_DELIVER_MS=now_ms + slot_ms)
        await world.clock.advance(ms=slot_ms - 1)
        assert bodies(world) == []
        await world.clock.advance(ms=1)
        assert bodies(world) == [b"hello"]


# ---- rolling -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("delay_s", "rolled_at"),
    [(9, []), (10, [5]), (12, [5]), (13, [10]), (25, [10, 21])],
)
async def test_a_long_delay_is_rolled(tmp_path: Path, delay_s: int, rolled_at: list[int]) -> None:
    async with stored(tmp_path, timerRollWindowSlot="10") as world:
        now_ms = await to_phase(world, 0)
        # Slots start at whole seconds: one more than the delay, less one for the rounding.
        await send(world, TIMER_DELIVER_MS=now_ms + delay_s * 1_000 + 1_000)
        await world.clock.advance(delay_s)
        assert bodies(world) == []
        await world.clock.advance(1)
        assert bodies(world) == [b"hello"]
        records = world.records(TIMER_TOPIC)
        times = [record.properties.get("TIMER_ROLL_TIMES") for record in records]
        assert times == [None, *(str(n + 1) for n in range(len(rolled_at)))]
        moments = [(record.store_timestamp - now_ms) // 1_000 for record in records[1:]]
        assert moments == [at + 1 for at in rolled_at]
        assert world.records("T")[0].properties["TIMER_OUT_MS"] == str(now_ms + delay_s * 1_000)
        assert service(world).timing_counts() == {"T": 0}


async def test_the_longest_delay(tmp_path: Path) -> None:
    """Three days: rolled once on the way, delivered to the second."""
    async with stored(tmp_path) as world:
        now_ms = await to_phase(world, 0)
        assert (await send(world, TIMER_DELAY_SEC=3 * DAY_S)).code == 0
        await world.clock.drain()
        jump(world, 2 * DAY_S - 200)
        await world.clock.advance(300)
        (_, rolled) = world.records(TIMER_TOPIC)
        assert rolled.store_timestamp == now_ms + 2 * DAY_S * 1_000 + 1_000
        jump(world, DAY_S - 300)
        await world.clock.advance(199)
        assert bodies(world) == []
        await world.clock.advance(1)
        assert world.records("T")[0].store_timestamp == now_ms + 3 * DAY_S * 1_000
        assert world.records("T")[0].properties["TIMER_ROLL_TIMES"] == "1"


# ---- many, few, none -----------------------------------------------------------------------------


async def test_thousands_in_one_slot_come_in_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with stored(tmp_path) as world:
        deliver_ms = await to_phase(world, 0) + 60_000
        for number in range(3_000):
            await send(world, b"%d" % number, TIMER_DELIVER_MS=deliver_ms)
        timer = service(world)
        assert timer.facts().congest_count == 3_000
        turns: list[int] = []
        deliver = timer._deliver_some

        def counted() -> bool:
            before = world.features.store.reader.max_offset("T", 0)
            more = deliver()
            turns.append(world.features.store.reader.max_offset("T", 0) - before)
            return more

        monkeypatch.setattr(timer, "_deliver_some", counted)
        await world.clock.advance(60)
        assert bodies(world)[:1_000] == [b"%d" % number for number in range(1_000)]
        assert world.features.store.reader.max_offset("T", 0) == 3_000
        assert max(turns) == timer_module.DELIVERED_PER_TURN
        assert timer.facts().congest_count == 0


async def test_an_idle_timer_does_nothing(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await_flushes(world)
        timer = service(world)
        await world.clock.advance(30)
        assert (timer._wake_timer, timer._flush_timer, timer._expiry_timer) == (None, None, None)
        store = tmp_path / "store"
        assert not (store / "timerwheel").exists()
        assert not (store / "timerlog").exists()
        await send(world, TIMER_DELAY_SEC=3_600)
        await world.clock.advance(30)  # the log is on disk, and so is the checkpoint
        assert timer._flush_timer is None
        turns = 0
        take_turn = timer._take_turn

        def counted() -> None:
            nonlocal turns
            turns += 1
            take_turn()

        timer._take_turn = counted  # type: ignore[method-assign]
        await world.clock.advance(minutes=50)
        assert turns <= 50 * 60 / timer_module.WALL_CHECK_S + 1  # checks of the wall clock only
        await world.clock.advance(minutes=10)
        assert bodies(world) == [b"hello"]


async def test_a_full_slot_refuses_more(tmp_path: Path) -> None:
    async with stored(tmp_path, timerCongestNumEachSlot="2") as world:
        deliver_ms = world.clock.now_ms() + 5_000
        codes = [(await send(world, TIMER_DELIVER_MS=deliver_ms)).code for _ in range(3)]
        assert codes == [0, 0, 0]
        refused = await send(world, TIMER_DELIVER_MS=deliver_ms)
        assert refused.code == 1
        assert (refused.remark or "").startswith(
            "timer message is under flow control, max num limit is 4 or the current value is"
            " greater than 2 and less than 4, trigger random flow control"
        )
        assert (await send(world, TIMER_DELIVER_MS=deliver_ms + 1_000)).code == 0
        await world.clock.advance(10)
        assert len(bodies(world)) == 4


async def test_late_messages_are_delivered_at_once(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.call(25, {}, b"timerStopEnqueue=true")
        await send(world, b"late", TIMER_DELAY_SEC=1)
        await send(world, b"not late", TIMER_DELAY_SEC=60)
        await world.clock.advance(20)
        timer = service(world)
        assert (bodies(world), timer.enqueue_lag()) == ([], 2)
        await world.call(25, {}, b"timerStopEnqueue=false")
        await world.clock.advance(2)
        assert (bodies(world), timer.enqueue_lag()) == ([b"late"], 0)
        properties = world.records("T")[0].properties
        assert properties["TIMER_ENQUEUE_MS"] == "9223372036854775807"
        assert timer.timing_counts() == {"T": 1}
        await world.clock.advance(60)
        assert bodies(world) == [b"late", b"not late"]


async def test_messages_of_the_wheel_are_on_time_while_none_are_taken_in(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        now_ms = await to_phase(world, 300)
        await send(world, TIMER_DELAY_MS=4_200)  # in the slot that ends with the fifth second
        await world.clock.drain()
        await world.call(25, {}, b"timerStopEnqueue=true")
        await send(world, b"kept back", TIMER_DELAY_SEC=1)
        await world.clock.advance(6)
        assert [record.store_timestamp for record in world.records("T")] == [now_ms + 4_700]


async def test_state_is_saved_while_there_is_always_more_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timer_module, "PLACED_PER_TURN", 1)
    async with stored(tmp_path) as world:
        timer = service(world)
        await world.call(25, {}, b"timerStopEnqueue=true")
        for _ in range(5):
            await send(world, TIMER_DELAY_SEC=60)
        await world.clock.advance(2)
        assert timer._flush_timer is None
        world.context.live.update("timerStopEnqueue=false", 0)
        timer._take_turn()
        assert (timer.enqueue_lag(), timer._turn is None) == (4, False)
        assert timer._flush_timer is not None


async def test_delivery_can_be_stopped(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.call(25, {}, b"timerStopDequeue=true")
        await send(world, TIMER_DELAY_SEC=1)
        await world.clock.advance(20)
        assert (bodies(world), service(world).dequeue_lag()) == ([], 1)
        assert service(world).facts().read_behind >= 18
        await world.call(25, {}, b"timerStopDequeue=false")
        await world.clock.advance(2)
        assert (bodies(world), service(world).dequeue_lag()) == ([b"hello"], 0)


async def test_the_wall_clock_is_set_forward(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await send(world, TIMER_DELAY_SEC=3_600)
        await world.clock.drain()
        jump(world, 3_600)
        await world.clock.advance(1)
        assert bodies(world) == [b"hello"]


async def test_the_wall_clock_is_set_back(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await to_phase(world, 0)
        await send(world, b"before", TIMER_DELAY_SEC=1)
        await send(world, b"old", TIMER_DELAY_SEC=60)
        await world.clock.advance(30)
        assert bodies(world) == [b"before"]
        jump(world, -600)
        await send(world, b"new", TIMER_DELAY_SEC=15)
        await world.clock.advance(ms=14_999)
        assert bodies(world) == [b"before"]
        await world.clock.advance(1)
        assert bodies(world) == [b"before", b"new"]
        await world.clock.advance(540 + 60 - 16 - 3)
        await send(world, b"same slot", TIMER_DELAY_SEC=33)
        await world.clock.advance(33)
        assert bodies(world) == [b"before", b"new"]
        await world.clock.advance(1)
        assert bodies(world) == [b"before", b"new", b"old", b"same slot"]
        assert service(world).timing_counts() == {"T": 0}
        assert service(world).facts().congest_count == 0


async def test_the_wall_clock_is_set_back_within_a_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest of the slot waits until the clock shows its time again."""
    monkeypatch.setattr(timer_module, "DELIVERED_PER_TURN", 1)
    async with stored(tmp_path) as world:
        await to_phase(world, 0)
        for number in range(6):
            await send(world, b"%d" % number, TIMER_DELAY_SEC=10)
        real_due, calls = service(world)._delivery.due, []

        def due(*args: Any) -> Any:
            calls.append(args)
            if len(calls) == 3:
                jump(world, -100)
            return real_due(*args)

        monkeypatch.setattr(service(world)._delivery, "due", due)
        await world.clock.advance(11)
        assert bodies(world) == [b"0", b"1", b"2"]
        await send(world, b"early", TIMER_DELAY_SEC=5)
        await world.clock.advance(20)
        assert bodies(world) == [b"0", b"1", b"2", b"early"]
        await world.clock.advance(80)
        assert bodies(world) == [b"0", b"1", b"2", b"early", b"3", b"4", b"5"]
        assert service(world).facts().congest_count == 0


# ---- puts that fail ------------------------------------------------------------------------------


def failing(world: Stored, statuses: list[PutStatus]) -> Callable[..., PutResult]:
    """Let the next puts to T end with these; the moments of all puts are in ``tries``."""
    writer = world.features.puts.writer
    put = writer.put

    def put_or_fail(draft: Any) -> PutResult:
        if draft.topic == "T" and statuses:
            return PutResult(statuses.pop(0))
        return put(draft)

    return put_or_fail


@pytest.mark.parametrize(
    ("settings", "statuses", "arrives_ms"),
    [
        ({}, [PutStatus.CREATE_MAPPED_FILE_FAILED] * 2, 1_000),
        ({}, [PutStatus.CREATE_MAPPED_FILE_FAILED] * 3, None),
        ({"timerEnableRetryUntilSuccess": "true"}, [PutStatus.OS_PAGE_CACHE_BUSY] * 9, 4_500),
        ({}, [PutStatus.SERVICE_NOT_AVAILABLE] * 20, 10_000),  # a full disk is waited for
        ({}, [PutStatus.MESSAGE_ILLEGAL], None),
        ({"timerSkipUnknownError": "true"}, [PutStatus.UNKNOWN_ERROR], None),
        ({}, [PutStatus.UNKNOWN_ERROR], 500),
    ],
)
async def test_retries(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, str],
    statuses: list[PutStatus],
    arrives_ms: int | None,
) -> None:
    async with stored(tmp_path, **settings) as world:
        now_ms = await to_phase(world, 0)
        await send(world, b"first", TIMER_DELAY_SEC=2)
        await send(world, b"second", TIMER_DELAY_SEC=2)
        monkeypatch.setattr(world.features.puts.writer, "put", failing(world, statuses))
        await world.clock.advance(30)
        expected = [b"second"] if arrives_ms is None else [b"first", b"second"]
        assert (bodies(world), statuses) == (expected, [])
        if arrives_ms is not None:
            first = world.records("T")[0]
            assert first.store_timestamp == now_ms + 2_000 + arrives_ms
        assert service(world).timing_counts() == {"T": 0}


# ---- what others ask -----------------------------------------------------------------------------


async def test_facts(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        timer = service(world)
        assert timer.facts() == TimerFacts()
        for delay_s in (5, 5, 9):
            await send(world, TIMER_DELAY_SEC=delay_s)
        await send(world, topic="U", TIMER_DELAY_SEC=5)
        await world.clock.advance(1)
        facts = timer.facts()
        assert (facts.congest_count, facts.enqueue_tps, facts.offset_behind) == (4, 0.4, 0)
        assert timer.timing_counts() == {"T": 3, "U": 1}
        await world.clock.advance(5)
        facts = timer.facts()
        assert (facts.congest_count, facts.dequeue_tps, facts.read_behind) == (1, 0.3, 0)
        assert timer.timing_counts() == {"T": 1, "U": 0}
        timer.topic_deleted("U")
        assert timer.timing_counts() == {"T": 1}
        answer = await world.call(28)
        assert b'"timerCongestNum":"1"' in (answer.body or b"")


async def test_slots_on_disk(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await_flushes(world)
        now_ms = await to_phase(world, 0)
        for _ in range(2):
            await send(world, TIMER_DELIVER_MS=now_ms + 8_000)
        await world.clock.advance(20)
        second = now_ms // 1_000 + 7
        wheel = (tmp_path / "store" / "timerwheel").read_bytes()
        assert len(wheel) == 38_707_200
        start = second % 1_209_600 * SLOT_SIZE
        assert SLOT.unpack_from(wheel, start) == (second, 0, 52, 2, 0)
        assert wheel.count(b"\0") > len(wheel) - SLOT_SIZE
        checkpoint = (tmp_path / "store" / "config" / "timercheck").read_bytes()
        assert len(checkpoint) == 4_096
        assert checkpoint[8:32] == b"".join(n.to_bytes(8, "big") for n in (104, 2, 2))
        assert service(world).checkpoint_body() == checkpoint[:56]


async def test_garbage_in_the_timer_topic_is_skipped(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        for properties in ({}, {"TIMER_OUT_MS": "x", "REAL_TOPIC": "T"}, {"TIMER_OUT_MS": "1"}):
            put_raw(world, **properties)
        put_raw(world, TIMER_OUT_MS="1", REAL_TOPIC="T", REAL_QID="many")
        await send(world, b"good", TIMER_DELAY_SEC=1)
        await world.clock.advance(2)
        assert bodies(world) == [b"good"]
        assert service(world).enqueue_lag() == 0


@pytest.mark.parametrize("topic", sorted(NO_DESTINATIONS))
async def test_nothing_is_delivered_to_a_forbidden_topic(tmp_path: Path, topic: str) -> None:
    """To the topics of delayed messages it would be delivered again, without an end."""
    async with stored(tmp_path) as world:
        put_raw(world, TIMER_OUT_MS="1", REAL_TOPIC=topic, REAL_QID="0")
        await send(world, b"good", TIMER_DELAY_SEC=1)
        await world.clock.advance(2)
        assert bodies(world) == [b"good"]
        assert len(world.records(topic)) == (2 if topic == TIMER_TOPIC else 0)


@pytest.mark.parametrize(
    ("topic", "queue_id", "code"),
    [("T", "7", 0), ("T", "8", 13), ("T", "-1", 13), ("T", "9" * 20, 13), ("Unknown", "0", 13)],
)
async def test_who_sends_to_the_timer_itself_makes_no_queues(
    tmp_path: Path, topic: str, queue_id: str, code: int
) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 8)
        properties = {"TIMER_OUT_MS": "1", "REAL_TOPIC": topic, "REAL_QID": queue_id}
        answer = await send(world, b"hello", TIMER_TOPIC, **properties)
        assert answer.code == code
        one = encode_batch([BatchMessage(b"hello", encode_properties(properties).encode(), 0)])
        batch = await world.send(TIMER_TOPIC, one, m="true")
        assert batch.code == code
        await world.clock.advance(2)
        queues = world.features.store.queues.by_topic.get(topic, {})
        assert list(queues) == ([7] if code == 0 else [])
        assert len(world.records(topic, 7)) == (2 if code == 0 else 0)


async def test_a_recall_handle_names_message_and_time(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        now_ms = await to_phase(world, 0)
        answer = await send(world, TIMER_DELIVER_MS=now_ms + 8_000, UNIQ_KEY="U1")
        assert answer.ext is not None
        text = base64.urlsafe_b64decode(answer.ext["recallHandle"]).decode()
        assert text == f"v1 T broker-a {now_ms + 7_001} U1"
        plain = await send(world, UNIQ_KEY="U2")
        assert "recallHandle" not in (plain.ext or {})
        level = await send(world, DELAY=1, TIMER_DELAY_SEC=5)
        assert "recallHandle" not in (level.ext or {})
