"""What requests of POP may cost: memory, puts and time of one turn, also if they are forged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from skylark.broker.pop import pop_queues
from skylark.broker.pop.acknowledge import BATCH_ENTRIES_MAX
from skylark.broker.pop.in_flight import InFlightCounts
from skylark.broker.pop.pop_checks import ATTEMPT_ID_MAX, FILTERS_SIZE_MAX
from skylark.broker.pop.pop_queues import BYTES_MAX
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult
from skylark.wire.bodies.pop_body import BatchAck, BatchAckMessageRequestBody, encode_bit_set
from skylark.wire.codes import RequestCode
from tests.unit.broker.pop.pop_client import PopClient, fill, popping
from tests.unit.broker.pop.test_pop_requests import batch
from tests.unit.broker.pop.test_revive_runner import pop_again, revive_of


def log_end(client: PopClient) -> int:
    return client.world.features.store.log.max_offset


async def test_a_batch_ack_with_too_many_entries_is_refused(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 1)
        (message,) = await client.pop()
        end = log_end(client)
        body = batch(message)
        body.acks *= BATCH_ENTRIES_MAX + 1
        answer = await client.batch_ack(body)
        assert (answer.code, str(BATCH_ENTRIES_MAX) in (answer.remark or "")) == (29, True)
        assert log_end(client) == end


async def test_a_batch_ack_of_too_many_messages_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 100)
        (message, *_) = await client.pop()
        end, unpacked = log_end(client), []
        offsets_of = BatchAck.offsets_of

        def counting(entry: BatchAck, mask: int) -> list[int]:
            found = offsets_of(entry, mask)
            unpacked.append(len(found))
            return found

        monkeypatch.setattr(BatchAck, "offsets_of", counting)
        body = batch(message, bit_set=encode_bit_set(range(65_536)))
        body.acks *= 400
        answer = await client.batch_ack(body)
        assert (answer.code, bool(answer.remark)) == (29, True)
        assert (unpacked, log_end(client)) == ([], end)
        body.acks = body.acks[:1]
        assert (await client.batch_ack(body)).code == 0
        assert unpacked == [100]  # those that the queue has


async def test_the_records_of_a_batch_ack_are_one_put(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with popping(tmp_path, 3) as client:
        for queue_id in range(3):
            await fill(client, 2, queue_id)
        messages = await client.pop()
        by_queue = [[each for each in messages if each.handle.queue_id == q] for q in range(3)]
        writer, runs = client.world.features.puts.writer, []
        put_run = writer.put_run

        def counting(drafts: Sequence[Draft]) -> list[PutResult]:
            runs.append(len(drafts))
            return put_run(drafts)

        monkeypatch.setattr(writer, "put_run", counting)
        acks = [ack for each in by_queue for ack in batch(*each).acks]
        body = BatchAckMessageRequestBody(broker_name="broker-a", acks=acks)
        answer = await client.batch_ack(body)
        assert (answer.code, answer.remark, runs) == (0, None, [3])
        await client.world.clock.advance(60)
        assert await pop_again(client) == []


async def test_an_ordered_message_that_never_becomes_visible_can_be_saved(tmp_path: Path) -> None:
    endless = (1 << 63) - 1
    async with popping(tmp_path) as client:
        await fill(client, 1)
        (message,) = await client.pop(order="true")
        answer = await client.change(message, endless)
        assert answer.code == 0
        changed = client.changed(message, answer)
        assert await client.pop(order="true") == []
    async with popping(tmp_path) as client:
        assert await client.pop(order="true") == []
        assert (await client.change(changed, -endless - 1)).code == 0
        assert len(await client.pop(order="true")) == 1


async def test_forged_groups_are_not_counted(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 1)
        (message,) = await client.pop()
        totals = client.world.features.pop.state.totals
        written = dict(totals.written)
        for number in range(20):
            group = f"forged-{number}"
            assert (await client.ack(message, consumerGroup=group)).code == 0
            assert (await client.batch_ack(batch(message, group=group))).code == 0
            assert (await client.change(message, 20_000, consumerGroup=group)).code == 0
        assert dict(totals.written) == written
        await client.world.clock.advance(30)
        assert {group for group, *_ in totals.read} == {"g"}
        assert sum(queue.counts.acks for queue in revive_of(client).queues.values()) > 20


async def test_a_record_that_is_refused_is_not_counted(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 1)
        (message,) = await client.pop()
        totals = client.world.features.pop.state.totals
        written = dict(totals.written)
        assert (await client.change(message, (1 << 63) - 1)).code == 1
        assert dict(totals.written) == written


async def test_names_that_are_too_long_for_a_group(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 1)
        (message,) = await client.pop()
        end, group = log_end(client), "g" * 256
        for answer in (
            await client.ack(message, consumerGroup=group),
            await client.change(message, 20_000, consumerGroup=group),
            await client.batch_ack(batch(message, group=group)),
        ):
            assert (answer.code, "does not exist" in (answer.remark or "")) == (26, True)
            assert len(answer.remark or "") < 600
        assert log_end(client) == end


def test_a_queue_opens_once_when_its_messages_fall_to_the_threshold() -> None:
    counts, opened = InFlightCounts(0), []
    counts.threshold = 2
    counts.on_room = lambda *queue: opened.append(queue)
    counts.add("T", "g", 0, 4)
    assert counts.is_closed("T", "g", 0)
    counts.subtract("T", "g", 0, 1, 1)
    assert opened == []
    counts.subtract("T", "g", 0, 1, 1)
    assert not counts.is_closed("T", "g", 0)
    counts.subtract("T", "g", 0, 1, 1)
    assert opened == [("T", "g", 0)]


@pytest.mark.parametrize("queue_id", [-1, 0])
async def test_acks_wake_one_pop_that_waits_for_room(tmp_path: Path, queue_id: int) -> None:
    async with popping(
        tmp_path, enablePopMessageThreshold="true", popInflightMessageThreshold="30"
    ) as client:
        await fill(client, 40)
        first = await client.pop()
        waiting = [await client.begin(queueId=queue_id) for _ in range(2)]
        await client.ack_all(first[:1])
        await client.world.clock.drain()
        assert not any(each.done() for each in waiting)
        await client.ack_all(first[1:2])
        await client.world.clock.drain()
        assert [each.done() for each in waiting] == [True, False]
        assert len(client.popped(await waiting[0])) == 8
        waiting[1].cancel()


async def test_acks_of_retries_wake_a_pop_that_waits_for_room(tmp_path: Path) -> None:
    async with popping(
        tmp_path, enablePopMessageThreshold="true", popInflightMessageThreshold="1"
    ) as client:
        bodies = await fill(client, 3)
        await client.pop()
        await client.world.clock.advance(16)
        first = await client.pop(maxMsgNums=2)
        assert [each.body for each in first] == bodies[:2]
        waiting = await client.begin()
        assert not waiting.done()
        await client.ack_all(first[:1])
        await client.world.clock.drain()
        assert [each.body for each in client.popped(await waiting)] == bodies[2:]


async def test_acks_after_there_are_fewer_revive_queues(tmp_path: Path) -> None:
    async with popping(tmp_path, reviveQueueNum="20") as client:
        await fill(client, 20)
        messages = [(await client.pop(maxMsgNums=1))[0] for _ in range(20)]
        assert {each.handle.revive_queue_id for each in messages} == set(range(20))
        now_ms = client.world.clock.now_ms()
    async with popping(tmp_path, reviveQueueNum="2") as client:
        await client.world.clock.advance(ms=now_ms - client.world.clock.now_ms())
        assert set(revive_of(client).queues) == {0, 1}  # the others are in the timer wheel
        await client.ack_all(messages[:15])
        await client.world.clock.advance(30)
        assert set(revive_of(client).queues) == set(range(20))
        again = await pop_again(client)
        assert sorted(each.body for each in again) == sorted(each.body for each in messages[15:])


ZEROS = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0", "restNum": "0"}


@pytest.mark.parametrize(
    ("code", "ext"),
    [
        (RequestCode.POP_MESSAGE, ZEROS),
        (RequestCode.PEEK_MESSAGE, ZEROS),
        (RequestCode.NOTIFICATION, {"hasMsg": "false", "pollingFull": "false"}),
        (RequestCode.POLLING_INFO, {"pollingNum": "0"}),
    ],
)
async def test_refusals_have_the_fields_of_their_header(
    tmp_path: Path, code: RequestCode, ext: dict[str, str]
) -> None:
    async with popping(tmp_path) as client:
        refused = await client.world.call(code, client.request(topic="x"))
        assert (refused.code, refused.ext) == (17, ext)


async def test_a_pop_that_is_refused_after_it_has_waited(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        waiting = await client.begin()
        deleted = await client.world.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert deleted.code == 0
        await client.world.clock.advance(15)
        answer = await waiting
        assert (answer.code, answer.ext) == (17, ZEROS)


async def test_a_pop_of_large_messages_fits_into_a_frame(tmp_path: Path) -> None:
    """Each queue gives one; together they would exceed what clients accept (16 MiB)."""
    count, size = 6, 3_500_000
    async with popping(tmp_path, count) as client:
        writer = client.world.features.puts.writer
        for queue_id in range(count):
            assert writer.put(Draft("T", queue_id, bytes([queue_id]) * size)).status.stored
        for queue_id in range(2):
            assert writer.put(Draft("T", queue_id, b"small")).status.stored
        peeked = await client.world.call(
            RequestCode.PEEK_MESSAGE,
            {"consumerGroup": "g", "topic": "T", "queueId": "-1", "maxMsgNums": "32"},
        )
        assert 0 < len(peeked.body or b"") <= BYTES_MAX
        assert (peeked.ext or {})["restNum"] == str(count + 2)
        found, left = [], count + 2
        for _ in range(count):
            answer = await client.answer()
            assert len(answer.body or b"") <= BYTES_MAX
            messages = client.popped(answer)
            left -= len(messages)
            assert (answer.code, (answer.ext or {})["restNum"]) == (0, str(left))
            found += [(each.record.queue_id, each.body[:1]) for each in messages]
            if not left:
                break
        large = [(queue_id, bytes([queue_id])) for queue_id in range(count)]
        assert sorted(found) == sorted([*large, (0, b"s"), (1, b"s")])


async def test_a_message_above_the_bound_of_a_pop_is_popped_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_queues, "BYTES_MAX", 1_000)
    async with popping(tmp_path, 2) as client:
        writer = client.world.features.puts.writer
        for queue_id in range(2):
            assert writer.put(Draft("T", queue_id, b"x" * 2_000)).status.stored
        for rest in ("1", "0"):
            answer = await client.answer()
            assert len(client.popped(answer)) == 1
            assert (answer.ext or {})["restNum"] == rest


@pytest.mark.parametrize("code", [RequestCode.POP_MESSAGE, RequestCode.NOTIFICATION])
async def test_an_attempt_id_that_is_too_long_is_refused(tmp_path: Path, code: int) -> None:
    """Ordered consumption keeps it, and writes it to a file."""
    async with popping(tmp_path) as client:
        await fill(client, 1)
        fields = client.request(order="true", attemptId="x" * (ATTEMPT_ID_MAX + 1))
        answer = await client.world.call(code, fields)
        assert (answer.code, str(ATTEMPT_ID_MAX) in (answer.remark or "")) == (29, True)
        assert not client.world.features.pop.order_pops.snapshot().table
        fields["attemptId"] = "x" * ATTEMPT_ID_MAX
        assert (await client.world.call(code, fields)).code == 0


async def test_the_filters_that_are_kept_have_a_bounded_size(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        checks = client.world.features.pop.service._messages._checks
        for number in range(40):
            tags = "||".join(f"{number}.{each}" for each in range(7_000))
            assert (await client.answer(exp=tags)).code == 210
        kept = [expression for _, expression in checks._filters]
        assert kept
        assert sum(map(len, kept)) <= FILTERS_SIZE_MAX
        assert checks._filters_size == sum(map(len, kept))
        assert all(len(str(key)) < 100 for key in checks._noted)
        consumers = client.world.features.groups.consumers
        assert consumers.subscription("g", "T") is None  # too long to be kept for reports
        assert (await client.answer(exp="a||b")).code == 210
        noted = consumers.subscription("g", "T")
        assert noted is not None
        assert noted.sub_string == "a||b"


async def test_waiting_pops_have_filters_of_a_bounded_size(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        held = client.world.features.pop.service.pops.held
        held.size_max = 100_000
        tags = "||".join(map(str, range(500)))
        waiting = [await client.begin(exp=f"{tags}||{number}x") for number in range(3)]
        assert [task.done() for task in waiting] == [False, True, True]
        assert (await waiting[1]).code == 209
        short = [await client.begin(exp="a") for _ in range(20)]
        assert not any(task.done() for task in short)
        await client.world.clock.advance(20)
        assert {(await task).code for task in (waiting[0], *short)} == {210}
        assert held.size == 0


async def test_a_waiting_notification_keeps_no_filter_that_it_does_not_use(tmp_path: Path) -> None:
    async with popping(tmp_path, useMessageFilterForNotification="false") as client:
        fields = client.request(exp="x" * 1_000_000, pollTime=15_000)
        answer = asyncio.create_task(client.world.call(RequestCode.NOTIFICATION, fields))
        await client.world.clock.drain()
        (waiting,) = client.world.features.pop.service.notifications.held._index
        assert waiting.held.request.exp is None
        await fill(client, 1)
        assert ((await answer).ext or {})["hasMsg"] == "true"
