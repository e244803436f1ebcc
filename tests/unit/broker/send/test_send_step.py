"""Sends that came together: answered, stored and counted as if they had come one by one.

Runs go the whole way: one chunk of bytes for a connection of the broker. Requests are told apart by
their opaque, which is also in their unique id.
"""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skylark.broker.send.message_writer import MessageWriter
from skylark.broker.stats.store_stats import StoreStats
from skylark.core.errors import StoreError
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult
from skylark.testing.fault_plan import FaultPlan, Gate
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.frame import encode_frame
from tests.unit.broker.send.send_runs import (
    BODY_SIZE_MAX,
    KINDS,
    OTHERS,
    PLAIN,
    connect,
    prepare,
    request,
    run_sizes,
    send_one_by_one,
    send_together,
    with_properties,
)
from tests.unit.broker.stored import Stored, await_flushes, stored

EXT: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


def left_behind(world: Stored) -> dict[str, Any]:
    """Everything that sends leave in a broker."""
    features = world.features
    stats, store_stats = features.stats.broker_stats, features.stats.store_stats
    queues = {
        (topic, queue_id): (queue.next_offset, world.records(topic, queue_id), entries_of(queue))
        for topic, by_id in features.store.queues.by_topic.items()
        for queue_id, queue in by_id.items()
    }
    return {
        "log end": features.store.log.max_offset,
        "queues": queues,
        "topics": {name for name in ("T", "New", "Nowhere") if name in features.topics.table},
        "puts": {
            topic: (meter.count, meter.size, meter.times)
            for topic, meter in stats.topic_puts.items()
        },
        "counts": (stats.user_put_count, stats.system_put_count),
        "store": (store_stats.put_count, store_stats.put_size, store_stats.put_failed_count),
        "times": (store_stats._put_times, store_stats.put_ms_max),
    }


def entries_of(queue: Any) -> list[Any]:
    return [queue.read_entry(offset) for offset in range(queue.min_offset, queue.max_offset)]


async def outcome(
    kinds: Sequence[str],
    send: Callable[[Stored, Sequence[Command]], Any],
    **given: str,
) -> tuple[dict[int, Command], dict[str, Any]]:
    disk = FaultyFileSystem()
    options = {"maxMessageSize": str(BODY_SIZE_MAX), "traceTopicEnable": "true", **given}
    async with stored(Path("/"), disk, **options) as world:
        prepare(world)
        await world.clock.drain()
        producer = await send(world, [KINDS[kind](n) for n, kind in enumerate(kinds)])
        assert len(producer.answers) == len({answer.opaque for answer in producer.answers})
        return {answer.opaque: answer for answer in producer.answers}, left_behind(world)


# ---- the same as one by one ----------------------------------------------------------------------

mixes = st.lists(
    st.sampled_from(["plain", "plain", *KINDS]) | st.sampled_from(sorted(PLAIN)),
    min_size=2,
    max_size=14,
)


@settings(max_examples=8, deadline=None)
@given(mixes)
@example(["plain"] * 14)
@example(list(KINDS))
@example([kind for other in OTHERS for kind in ("plain", other)])
@example(["to a topic that is not there yet", "plain", "delayed", "to any queue", "to any queue"])
@example(["too large", "plain", "too large", "too many properties"])
def test_a_run_stores_the_same_as_its_requests_one_by_one(kinds: list[str]) -> None:
    """Answers, records, queue entries and statistics."""

    async def compare() -> None:
        together = await outcome(kinds, send_together)
        one_by_one = await outcome(kinds, send_one_by_one)
        assert together[0] == one_by_one[0]
        for what, value in one_by_one[1].items():
            assert together[1][what] == value, what
        expected = {n for n, kind in enumerate(kinds) if kind != "one-way"}
        assert together[0].keys() == expected

    asyncio.run(compare())


@pytest.mark.parametrize(
    "given",
    [
        {"autoCreateTopicEnable": "false"},
        {"rejectTransactionMessage": "true", "timerWheelEnable": "false"},
        {"brokerPermission": "4", "traceOn": "false"},
        {"startAcceptSendRequestTimeStamp": "9999999999999"},
        {"enabledAppendPropCRC": "true"},
        {"regionId": "50%s<key>"},
    ],
)
async def test_the_same_with_other_settings(given: dict[str, str]) -> None:
    kinds = ["plain", *KINDS, "plain"]
    together = await outcome(kinds, send_together, **given)
    assert together == await outcome(kinds, send_one_by_one, **given)


async def test_the_batch_code_may_carry_a_single_message() -> None:
    """320 has no runs: what is plain takes the way of all others, and is stored the same."""

    async def send_as_batches(world: Stored, requests: Sequence[Command]) -> Any:
        for each in requests:
            each.code = RequestCode.SEND_BATCH_MESSAGE
        return await send_together(world, requests)

    kinds = [*PLAIN, "half", "half without a flag"]
    assert await outcome(kinds, send_as_batches) == await outcome(kinds, send_together)


@pytest.mark.parametrize("send", [send_together, send_one_by_one])
async def test_the_last_item_of_a_repeated_name_stays(
    tmp_path: Path, send: Callable[[Stored, Sequence[Command]], Any]
) -> None:
    async with stored(tmp_path) as world:
        prepare(world)
        await world.clock.drain()
        text = "TAGS\x01A\x02UNIQ_KEY\x01U1\x02TAGS\x01B\x02"
        producer = await send(world, [request(1, properties=text)])
        assert producer.codes == {1: 0}
        (record,) = world.records("T")
        items = [item.partition(b"\x01") for item in record.raw_properties.split(b"\x02")]
        assert [value for name, _, value in items if name == b"TAGS"] == [b"B"]


@pytest.mark.parametrize("text", ["KEYS\x01k\x02UNIQ_KEY\x01U1\x02", ""])
async def test_the_last_separator_may_be_missing(tmp_path: Path, text: str) -> None:
    """Java clients 4.9.2 to 5.1.4 leave it out; the broker writes it."""
    async with stored(tmp_path) as world:
        prepare(world)
        await world.clock.drain()
        whole, short = request(1, properties=text), request(2, properties=text.rstrip("\x02"))
        producer = await send_together(world, [whole, short])
        assert producer.codes == {1: 0, 2: 0}
        first, second = world.records("T")
        assert second.raw_properties.endswith(b"\x02")
        if text:
            assert first.raw_properties == second.raw_properties


async def test_refused_kinds_have_their_codes() -> None:
    """What the tests above compare is not all the same."""
    answers, _ = await outcome(list(KINDS), send_together)
    found = {kind: answers[n].code for n, kind in enumerate(KINDS) if n in answers}
    refused = {kind: code for kind, code in found.items() if code}
    assert refused == {
        "inner batch by its flag": 13,
        "too large": 13,
        "too many properties": 13,
        "delayed by nonsense": 1,
        "into the timer for nobody": 13,
        "no batch": 1,
        "empty": 13,
        "to no topic": 17,
        "to an illegal topic": 29,
        "to a forbidden topic": 16,
        "to an illegal queue": 29,
        "to a compacted topic": 13,
        "to a topic of batches": 13,
        "no number": 1,
        "no group": 1,
    }


# ---- together, in order --------------------------------------------------------------------------


async def test_the_messages_of_a_run_are_stored_in_one_put(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        prepare(world)
        await world.clock.drain()
        sizes = run_sizes(world)
        producer = await send_together(world, [request(n, e=str(n % 2)) for n in range(5)])
        assert sizes == [5]
        assert [answer.opaque for answer in producer.answers] == [0, 1, 2, 3, 4]
        size = world.features.store.log.max_offset // 5
        for n, answer in enumerate(producer.answers):
            assert (answer.code, answer.remark) == (0, None)
            assert answer.ext == {
                **EXT,
                "msgId": f"7F000002000051AF{n * size:016X}",
                "queueId": str(n % 2),
                "queueOffset": str(n // 2),
                "transactionId": f"U{n}",
            }
        assert [record.body for record in world.records("T", 0)] == [
            b"body 0",
            b"body 2",
            b"body 4",
        ]
        assert [record.body for record in world.records("T", 1)] == [b"body 1", b"body 3"]
        meter = world.features.stats.broker_stats.topic_puts["T"]
        assert (meter.count, meter.times, meter.size) == (5, 5, 5 * size)


async def test_answers_follow_the_settings(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        prepare(world)
        await world.clock.drain()
        first = await send_together(world, [request(n) for n in range(2)])
        changed = await world.call(RequestCode.UPDATE_BROKER_CONFIG, {}, b"traceOn=false")
        assert changed.code == 0
        second = await send_together(world, [request(n) for n in range(2)])
        assert [first.ext(n)["TRACE_ON"] for n in range(2)] == ["true", "true"]
        assert [second.ext(n)["TRACE_ON"] for n in range(2)] == ["false", "false"]
        assert [record.properties["TRACE_ON"] for record in world.records("T")] == [
            "true",
            "true",
            "false",
            "false",
        ]


async def test_the_length_of_a_response_is_in_bytes(tmp_path: Path) -> None:
    async with stored(tmp_path, regionId="Zürich") as world:
        prepare(world)
        await world.clock.drain()
        producer = await send_together(world, [request(n) for n in range(3)])
        assert [producer.ext(n)["MSG_REGION"] for n in range(3)] == ["Zürich"] * 3


async def test_the_long_names_do_the_same(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        prepare(world)
        await world.clock.drain()
        sizes = run_sizes(world)
        requests = [
            Command(
                code=10,
                opaque=n,
                ext={
                    "producerGroup": "pg", "topic": "T", "defaultTopic": "TBW102",
                    "defaultTopicQueueNums": "4", "queueId": "2", "sysFlag": "0",
                    "bornTimestamp": "1", "flag": "0", "properties": f"UNIQ_KEY\x01U{n}\x02",
                },
                body=b"%d" % n,
            )
            for n in range(3)
        ]  # fmt: skip
        producer = await send_together(world, requests)
        assert producer.codes == {0: 0, 1: 0, 2: 0}
        assert sizes == [3]
        assert [record.body for record in world.records("T", 2)] == [b"0", b"1", b"2"]


async def test_mixed_kinds_of_messages_keep_their_order(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        prepare(world)
        await world.clock.drain()
        sizes = run_sizes(world)
        kinds = ["plain", "plain", "without a unique id", "plain", "no number"]
        kinds += ["without properties", "plain", "plain", "plain"]
        requests = [KINDS[kind](n) for n, kind in enumerate(kinds)]
        producer = await send_together(world, requests)
        assert sizes == [8]
        assert [answer.opaque for answer in producer.answers] == list(range(9))
        stored_ones = [n for n in range(9) if n != 4]
        assert [record.body for record in world.records("T")] == [
            b"body %d" % n for n in stored_ones
        ]
        offsets = [producer.ext(n)["queueOffset"] for n in stored_ones]
        assert offsets == list("01234567")


async def test_a_bad_request_does_not_affect_the_others(tmp_path: Path) -> None:
    async with stored(tmp_path, maxMessageSize=str(BODY_SIZE_MAX)) as world:
        prepare(world)
        await world.clock.drain()
        kinds = [
            "plain",
            "no number",
            "plain",
            "no group",
            "too large",
            "plain",
            "to an illegal queue",
        ]
        producer = await send_together(world, [KINDS[kind](n) for n, kind in enumerate(kinds)])
        assert producer.codes == {0: 0, 1: 1, 2: 0, 3: 1, 4: 13, 5: 0, 6: 29}
        assert [record.body for record in world.records("T")] == [b"body 0", b"body 2", b"body 5"]
        assert world.features.stats.store_stats.put_failed_count == 1
        refused = producer.ext(4)
        assert refused == EXT


# ---- when answers leave --------------------------------------------------------------------------


async def test_with_sync_flush_answers_wait_for_the_disk() -> None:
    plan = FaultPlan(1)
    async with stored(Path("/"), FaultyFileSystem(plan), flushDiskType="SYNC_FLUSH") as world:
        prepare(world)
        assert (await world.send("Other")).code == 0  # the log has its file
        sizes = run_sizes(world)
        gate = Gate()
        plan.at("files.sync", gate=gate)
        quick = with_properties("WAIT=false")
        connection, producer = await connect(world)
        requests = [request(0), quick(1), request(2), quick(3)]
        connection.data_received(b"".join(map(encode_frame, requests)))
        await world.clock.drain()
        assert sizes == [4]
        assert gate.wait_reached()
        assert producer.codes == {1: 0, 3: 0}
        assert world.records("T") == [], "nobody reads what a power cut could take back"
        assert connection.held_size > 0
        await_flushes(world)
        gate.open()
        await world.clock.drain()
        assert producer.codes == {0: 0, 1: 0, 2: 0, 3: 0}
        assert [producer.ext(n)["queueOffset"] for n in range(4)] == list("0123")
        assert connection.held_size == 0
        assert len(world.records("T")) == 4


async def test_each_send_gets_the_flush_timeout() -> None:
    plan = FaultPlan(1)
    async with stored(Path("/"), FaultyFileSystem(plan), flushDiskType="SYNC_FLUSH") as world:
        prepare(world)
        assert (await world.send("Other")).code == 0  # the log has its file
        plan.chance("files.sync", 1.0, error=errno.EIO)
        producer = await send_together(world, [request(n) for n in range(3)])
        assert producer.answers == []
        await world.clock.advance(6)  # syncFlushTimeout is 5 s
        plan.clear()
        assert producer.codes == {0: 10, 1: 10, 2: 10}
        assert [producer.ext(n)["transactionId"] for n in range(3)] == ["U0", "U1", "U2"]


async def test_responses_wait_until_a_new_topic_is_saved(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        saved = world.features.groups.saved.topics
        config = tmp_path / "store/config/topics.json"
        connection, producer = await connect(world)
        found: list[bool] = []
        producer.on_answers = lambda: found.append(b"New" in config.read_bytes())
        requests = [request(n, "New") for n in range(3)]
        connection.data_received(b"".join(map(encode_frame, requests)))
        assert saved.is_dirty
        assert world.features.stats.store_stats.put_count == 3
        await world.clock.drain()
        assert producer.codes == {0: 0, 1: 0, 2: 0}
        assert found
        assert all(found)
        assert connection.held_size == 0


async def test_sends_do_not_wait_for_a_topic_that_cannot_be_saved(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        config = tmp_path / "store/config"
        shutil.rmtree(config)
        config.write_bytes(b"not a directory")
        producer = await send_together(world, [request(n, "New") for n in range(3)])
        failed, codes = world.features.groups.saved.topics.failed, producer.codes
        config.unlink()
        config.mkdir()
        await world.clock.advance(1.1)  # the next attempt, which ends whatever still waits
        assert (failed, codes) == (True, {0: 0, 1: 0, 2: 0})


async def test_only_the_failed_message_of_a_run_gets_an_error(tmp_path: Path) -> None:
    """Those before it wait for the disk already: they must not be answered twice."""
    async with stored(tmp_path, flushDiskType="SYNC_FLUSH") as world:
        prepare(world)
        await world.clock.drain()
        await_flushes(world)
        connection, producer = await connect(world)
        stats = world.features.stats.broker_stats
        put, calls = stats.put, iter(range(4))

        def put_but_one(*args: Any, **kwargs: Any) -> None:
            if next(calls) == 1:
                raise ZeroDivisionError
            put(*args, **kwargs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(stats, "put", put_but_one)
            connection.data_received(b"".join(encode_frame(request(n)) for n in range(4)))
        await world.features.puts.durability.wait_for_pending()
        await world.clock.drain()
        assert sorted(answer.opaque for answer in producer.answers) == [0, 1, 2, 3]
        assert producer.codes == {0: 0, 1: 1, 2: 0, 3: 0}
        assert connection.held_size == 0


# ---- refusals ------------------------------------------------------------------------------------


async def test_each_send_gets_the_error_of_a_full_disk() -> None:
    disk = FaultyFileSystem(FaultPlan(1), capacity=32 << 20)
    async with stored(Path("/"), disk) as world:
        prepare(world)
        assert (await world.send("Other")).code == 0  # the log has its file
        disk.capacity = 1
        await world.clock.advance(20)  # the store looks every 10 s
        producer = await send_together(world, [request(n) for n in range(3)])
        assert producer.codes == {0: 14, 1: 14, 2: 14}
        for answer in producer.answers:
            assert answer.ext == EXT
            assert (answer.remark or "").startswith("service not available now. It may be caused")
            assert "[CL:  1.00 CQ:  1.00 INDEX:  1.00]" in (answer.remark or "")
        assert world.records("T") == []
        stats = world.features.stats.store_stats
        assert (stats.put_count, stats.put_failed_count) == (1, 3)
        assert "T" not in world.features.stats.broker_stats.topic_puts
        disk.capacity = 32 << 20
        await world.clock.advance(20)
        producer = await send_together(world, [request(n) for n in range(3)])
        assert producer.codes == {0: 0, 1: 0, 2: 0}


async def test_a_slave_takes_nothing(tmp_path: Path) -> None:
    async with stored(tmp_path, brokerRole="SLAVE", brokerId="1") as world:
        prepare(world)
        await world.clock.drain()
        producer = await send_together(world, [request(n) for n in range(3)])
        assert producer.codes == {0: 2, 1: 2, 2: 2}
        for answer in producer.answers:
            assert (answer.remark or "").startswith("[REJECTREQUEST]system busy")
        # What gets past the guard, the store refuses.
        connection, _ = await connect(world)
        run = world.features.endpoint.server.dispatcher.runs[310]
        answers = run(connection, [request(n) for n in range(3)])
        assert [isinstance(answer, Command) and answer.code for answer in answers] == [14] * 3
        assert world.features.store.log.max_offset == 0


async def test_a_message_that_cannot_be_written_leaves_no_gap(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        prepare(world)
        await world.clock.drain()
        log = world.features.store.log
        append = log.append

        def append_but_one(draft: Draft, *args: Any) -> PutResult:
            if draft.body == b"body 2":
                raise StoreError("no luck")
            return append(draft, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(log, "append", append_but_one)
            producer = await send_together(world, [request(n) for n in range(4)])
        assert producer.codes == {0: 0, 1: 0, 2: 1, 3: 0}
        assert [producer.ext(n)["queueOffset"] for n in (0, 1, 3)] == ["0", "1", "2"]
        assert [record.body for record in world.records("T")] == [b"body 0", b"body 1", b"body 3"]


# ---- counting ------------------------------------------------------------------------------------


class Ticking:
    """A clock that shows the given times, one after the other."""

    def __init__(self, *times: float) -> None:
        self._times = iter(times)

    def monotonic(self) -> float:
        return next(self._times)

    def now_ms(self) -> int:
        return 0


async def test_the_time_of_a_run_is_shared_by_its_messages(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        stats = StoreStats(0)
        appended: list[tuple[float, float]] = []
        writer = MessageWriter(
            world.features.store,
            world.features.puts.writer.diverter,
            stats,
            Ticking(1.0, 1.032),
            appended=lambda began, ended: appended.append((began, ended)),
        )
        drafts = [Draft("T", 0, b"x", born_host=bytes(8)) for _ in range(3)]
        drafts.append(Draft("T", 0, b"", born_host=bytes(8)))
        results = writer.put_run(drafts)
        assert [result.status.stored for result in results] == [True, True, True, False]
        assert appended == [(1.0, 1.032)]
        assert stats.put_ms_max == 8
        assert (stats._put_times[8], sum(stats._put_times)) == (4, 4)
        assert (stats.put_count, stats.put_failed_count) == (3, 1)
        assert stats.put_size == world.features.store.log.max_offset


async def test_replication_is_woken_by_a_run(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        prepare(world)
        await world.clock.drain()
        told: list[int] = []
        store = world.features.store
        store.on_growth = lambda: told.append(store.log.max_offset)
        await send_together(world, [request(n) for n in range(3)])
        assert told[-1:] == [store.log.max_offset]


async def test_replication_is_woken_by_a_run_whose_last_message_is_refused(
    tmp_path: Path,
) -> None:
    async with stored(tmp_path, maxMessageSize=str(BODY_SIZE_MAX)) as world:
        prepare(world)
        await world.clock.drain()
        told: list[int] = []
        store = world.features.store
        store.on_growth = lambda: told.append(store.log.max_offset)
        producer = await send_together(world, [request(0), KINDS["too large"](1)])
        assert producer.codes == {0: 0, 1: 13}
        assert told == [store.log.max_offset]


async def test_an_unexpected_error_is_answered(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        prepare(world)
        await world.clock.drain()
        connection, producer = await connect(world)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(world.features.puts.writer, "_appended", None)
            connection.data_received(b"".join(encode_frame(request(n)) for n in range(2)))
        await world.clock.drain()
        assert producer.codes == {0: 1, 1: 1}


async def test_the_size_of_each_message_is_measured(tmp_path: Path) -> None:
    async with stored(tmp_path, metricsExporterType="PROM") as world:
        prepare(world)
        await world.clock.drain()
        await send_together(world, [request(n) for n in range(3)])
        lines = world.features.stats.exporter.metrics.registry.render().splitlines()
        for name in ("rocketmq_messages_in_total", "rocketmq_message_size_count"):
            (value,) = (line.split()[-1] for line in lines if line.startswith(name))
            assert float(value) == 3, name
