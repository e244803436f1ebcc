"""A start after a crash: what the log has that the saved offsets lack.

A *crash* is a copy of the store's files while the broker runs; a second broker starts on it.
"""

from __future__ import annotations

import asyncio
import re
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.broker.pop.pop_recovery import FoundPoint
from skylark.store.message_store import MessageStore
from skylark.store.store_results import PutStatus, PutWaiter
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.pop_records import CheckPoint, decode_ack
from tests.unit.broker.pop.pop_client import PopClient, Popped, fill, popping
from tests.unit.broker.stored import Stored, await_flushes, in_place, texts

OFFSETS_FILE: Final = "store/config/consumerOffset.json"


@asynccontextmanager
async def after_crash(
    client: PopClient, root: Path, name: str = "copy"
) -> AsyncIterator[PopClient]:
    """A second broker, on what the first one has in its files now."""
    source, copy = root / "store", root / name
    shutil.copytree(source, copy / "store")
    clock = VirtualClock(client.world.clock.now_ms())
    network = MemoryNetwork(clock=clock)
    broker = Broker(
        load_broker_config(texts(copy)), network=network, clock=clock, in_thread=in_place
    )
    await broker.start()
    world = Stored(broker, clock, network)
    await_flushes(world)  # pops and copies wait for the disk
    try:
        yield PopClient(world)
    finally:
        await world.client.close()
        await broker.stop()


async def all_messages(client: PopClient) -> list[Popped]:
    found: list[Popped] = []
    while part := await client.pop():
        found += part
    return found


async def test_offsets_are_read_from_the_log(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        bodies = await fill(client, 40)
        popped = await client.pop()
        await client.ack_all(popped[:30])
        async with after_crash(client, tmp_path) as again:
            assert again.committed() == 32
            rest = await again.pop()
            assert [message.body for message in rest] == bodies[32:]
            await again.ack_all(rest)
            await again.world.clock.advance(16)
            back = await all_messages(again)
            assert [message.body for message in back] == bodies[30:32]
            assert {message.record.reconsume_times for message in back} == {1}


async def test_filtered_messages_leave_a_gap(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 5, properties="TAGS\x01other\x02")
        await fill(client, 2, properties="TAGS\x01mine\x02")
        popped = await client.pop(exp="mine")
        while not popped:
            popped = await client.pop(exp="mine")
        await client.ack_all(popped)
        async with after_crash(client, tmp_path) as again:
            assert again.committed() == 7
            await again.world.clock.advance(30)
            assert await again.pop(exp="mine") == []


async def test_a_message_that_came_back_is_not_copied_twice(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 3)
        await client.pop()
        await client.world.clock.advance(14.5)  # copied, and the offsets are not saved yet
        back = await all_messages(client)
        assert len(back) == 3
        await client.ack_all(back)
        async with after_crash(client, tmp_path) as again:
            await again.world.clock.advance(60)
            assert await all_messages(again) == []


async def test_a_second_crash_at_once_copies_nothing_twice(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 3)
        await client.pop()
        await client.world.clock.advance(14.5)
        back = await all_messages(client)
        assert len(back) == 3
        await client.ack_all(back)
        async with after_crash(client, tmp_path) as second:
            await second.world.clock.drain()  # its offsets are saved, nothing is revived yet
            async with after_crash(second, tmp_path / "copy", "copy2") as third:
                await third.world.clock.advance(60)
                assert await all_messages(third) == []


@pytest.mark.parametrize("settled_s", [0, 1, 6])
async def test_a_change_does_not_move_an_offset_that_was_reset(
    tmp_path: Path, settled_s: int
) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 10)
        popped = await client.pop(invisibleTime=60_000)
        offsets = client.world.features.groups.offsets
        offsets.reset("g", "T", {0: 2})
        offsets.take_reset("g", "T", 0)
        client.world.features.pop.state.forget("T", "g", 0)
        await client.world.clock.advance(settled_s)
        await client.world.clock.drain()
        assert (await client.change(popped[8], 30_000)).code == 0
        assert (await client.ack(popped[9])).code == 0
        async with after_crash(client, tmp_path) as again:
            assert again.committed() == 2


@pytest.mark.parametrize("acked", [0, 16, 32])
async def test_with_merging_what_was_in_memory_is_popped_again(tmp_path: Path, acked: int) -> None:
    async with popping(tmp_path, enablePopBufferMerge="true") as client:
        await client.world.clock.advance(1)
        bodies = await fill(client, 40)
        first = await client.pop()
        await client.ack_all(first[:acked])
        async with after_crash(client, tmp_path) as again:
            popped = await all_messages(again)
            assert [message.body for message in popped] == bodies
            await again.ack_all(popped)
            await again.world.clock.advance(60)
            assert await all_messages(again) == []


async def test_with_merging_a_check_point_behind_a_lost_one_is_void(tmp_path: Path) -> None:
    async with popping(tmp_path, enablePopBufferMerge="true") as client:
        await client.world.clock.advance(1)
        bodies = await fill(client, 40)
        await client.pop(invisibleTime=60_000)  # in memory
        await client.pop(invisibleTime=3_000)  # written at once
        async with after_crash(client, tmp_path) as again:
            popped = await all_messages(again)
            assert [message.body for message in popped] == bodies
            await again.ack_all(popped)
            await again.world.clock.advance(60)
            assert await all_messages(again) == []


async def test_a_copy_that_is_counted_does_not_stand_for_the_next_one(tmp_path: Path) -> None:
    """A message that is given back twice without an attempt has two copies that look the same."""
    async with popping(tmp_path, 2, enablePopBufferMerge="true", reviveInterval="100") as client:
        clock, state = client.world.clock, client.world.features.pop.state
        await clock.advance(1)
        (body,) = await fill(client, 1, queue_id=1)
        await fill(client, 1, queue_id=0)
        await client.pop(queueId=1, invisibleTime=1_000)  # written at once
        await clock.advance(1)
        await client.pop(queueId=0, invisibleTime=60_000)  # holds back the position in the log
        await clock.advance(2.4)
        (copy,) = await client.pop(queueId=1, invisibleTime=1_000)
        assert copy.record.reconsume_times == 1
        assert (await client.change(copy, 1_000, suspend="true")).code == 0
        client.world.features.groups.saved.offsets.mark()
        await client.world.features.groups.saved.offsets.written()
        assert state.held_count == 1
        await clock.advance(1)  # the second check-point is in its revive queue, and not due
        async with after_crash(client, tmp_path) as again:
            await again.world.clock.advance(10)
            assert body in [message.body for message in await all_messages(again)]


@pytest.mark.parametrize(("invisible_ms", "found"), [(60_000, 0), (1_000, 1)])
async def test_a_copy_from_memory_does_not_stand_for_that_of_a_check_point(
    tmp_path: Path, invisible_ms: int, found: int
) -> None:
    async with popping(tmp_path, enablePopBufferMerge="true", reviveInterval="100") as client:
        await client.world.clock.advance(0.1)
        await fill(client, 1)
        (popped,) = await client.pop(invisibleTime=invisible_ms)  # in memory, or written at once
        if not found:
            assert (await client.change(popped, 1_000)).code == 0
        await client.world.clock.advance(4)
        (copy,) = await client.pop()
        assert copy.record.reconsume_times == 1
        async with after_crash(client, tmp_path) as again:
            revive = again.world.features.pop.revive
            assert revive is not None
            assert len(revive.copies.revived) == found


async def test_a_start_saves_what_it_has_recovered_before_it_serves_pops(tmp_path: Path) -> None:
    """Otherwise a second crash finds check-points of before the first one between later ones."""
    async with popping(tmp_path, enablePopBufferMerge="true") as client:
        await client.world.clock.advance(1)
        await fill(client, 40)
        await client.pop(invisibleTime=60_000)  # in memory
        await client.pop(invisibleTime=3_000)  # written at once
        shutil.copytree(tmp_path / "store", tmp_path / "copy" / "store")
    may_write = asyncio.Event()

    async def gated(function: Callable[..., None], /, *args: Any) -> None:
        if args and getattr(args[0], "name", "") == "consumerOffset.json":
            await may_write.wait()
        function(*args)

    clock = VirtualClock(client.world.clock.now_ms())
    broker = Broker(
        load_broker_config(texts(tmp_path / "copy")),
        network=MemoryNetwork(clock=clock),
        clock=clock,
        in_thread=gated,
    )
    starting = asyncio.create_task(broker.start())
    await clock.drain()
    assert not starting.done()
    may_write.set()
    await starting
    saved = re.search(r'"logOffset":(\d+)', (tmp_path / "copy" / OFFSETS_FILE).read_text())
    assert saved is not None
    assert int(saved[1]) == broker.features.store.log.max_offset
    await broker.stop()


async def test_with_merging_a_check_point_at_the_head_is_kept(tmp_path: Path) -> None:
    async with popping(tmp_path, enablePopBufferMerge="true") as client:
        await client.world.clock.advance(1)
        bodies = await fill(client, 40)
        popped = await client.pop(invisibleTime=60_000)
        await client.ack(popped[0])
        await client.world.clock.advance(4)  # it was written, with its ack
        async with after_crash(client, tmp_path) as again:
            assert again.committed() == 32
            rest = await all_messages(again)
            assert [message.body for message in rest] == bodies[32:]
            await again.ack_all(rest)
            await again.world.clock.advance(65)
            assert [message.body for message in await all_messages(again)] == bodies[1:32]


async def test_with_merging_a_change_of_the_first_message_does_not_hide_its_pop(
    tmp_path: Path,
) -> None:
    """Its check-point begins at the same offset, and stands before that of the pop."""
    async with popping(tmp_path, enablePopBufferMerge="true") as client:
        await client.world.clock.advance(1)
        bodies = await fill(client, 32)
        popped = await client.pop(invisibleTime=60_000)
        assert (await client.change(popped[0], 30_000)).code == 0
        await client.world.clock.advance(4)  # the check-point of the pop was written
        async with after_crash(client, tmp_path) as again:
            assert again.committed() == 32
            assert await all_messages(again) == []
            await again.world.clock.advance(90)
            back = await all_messages(again)
            assert sorted(message.body for message in back) == sorted(bodies)


async def test_a_check_point_across_the_offset_is_void_from_there_on(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 10)
        revive = client.world.features.pop.revive
        assert revive is not None
        offsets = client.world.features.groups.offsets
        offsets.commit("g", "T", 0, 4)
        point = CheckPoint(
            topic="T",
            group="g",
            queue_id=0,
            start_offset=0,
            pop_time_ms=client.world.clock.now_ms(),
            invisible_ms=10_000,
            broker_name="broker-a",
            offset_diffs=range(10),
        )
        revive._recovery._move_merged([FoundPoint(point, 0)])
        assert [found.point for found in revive._recovery.void] == [point]
        revive.acknowledge_void()
        await client.world.clock.advance(20)
        (record,) = client.world.records(revive.topic)
        ack = decode_ack(record.body, is_batch=True)
        assert list(ack.queue_offsets) == [4, 5, 6, 7, 8, 9]  # 0 to 3 are not popped again


async def test_each_first_pop_waits_for_a_write_of_its_own_offset(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 1)
        saver, other = client.world.context.saver, PopClient(client.world, group="h")
        writes: asyncio.Queue[asyncio.Event] = asyncio.Queue()

        async def gated(function: Callable[..., None], /, *args: Any) -> None:
            if getattr(args[0], "name", "") == "consumerOffset.json":
                may_write = asyncio.Event()
                writes.put_nowait(may_write)
                await may_write.wait()
            function(*args)

        saver._in_thread = gated
        first = asyncio.create_task(client.answer())
        write = await writes.get()
        second = asyncio.create_task(other.answer())
        await client.world.clock.drain()
        were_done = [first.done(), second.done()]
        write.set()
        await first
        write = await writes.get()
        await client.world.clock.drain()
        were_done.append(second.done())
        saver._in_thread = in_place
        write.set()
        await second
        assert were_done == [False, False, False]
        assert '"T@h"' in (tmp_path / OFFSETS_FILE).read_text()
        assert (await client.answer()).code == 210  # nothing is unsaved any more


@pytest.mark.parametrize("merge", ["false", "true"])
async def test_pops_of_other_groups_and_queues_do_not_wait_for_a_first_offset(
    tmp_path: Path, merge: str
) -> None:
    async with popping(tmp_path, 2, enablePopBufferMerge=merge) as client:
        for queue_id in (0, 1):
            await fill(client, 2, queue_id)
        assert len(await client.pop(queueId=0, maxMsgNums=1)) == 1
        saver, may_write = client.world.context.saver, asyncio.Event()

        async def gated(function: Callable[..., None], /, *args: Any) -> None:
            if getattr(args[0], "name", "") == "consumerOffset.json":
                await may_write.wait()
            function(*args)

        saver._in_thread = gated
        first = [
            asyncio.create_task(client.answer(queueId=1, maxMsgNums=1)) for _ in range(2)
        ]  # both of the queue whose first offset is being saved
        await client.world.clock.drain()
        other = asyncio.create_task(client.pop(queueId=0))
        await client.world.clock.drain()
        were_done = [task.done() for task in (other, *first)]
        saver._in_thread = in_place
        may_write.set()
        assert [message.offset for message in await other] == [1]
        assert were_done == [True, False, False]
        answers = await asyncio.gather(*first)
        offsets = [message.offset for each in answers for message in client.popped(each)]
        assert sorted(offsets) == [0, 1]


def _saved_offset(root: Path) -> int:
    """The pop offset of queue 0 in ``consumerOffset.json``."""
    table = (root / OFFSETS_FILE).read_text()
    found = re.search(r'"T@g":{\s*0:(\d+)', table)
    return -1 if found is None else int(found[1])


async def test_offsets_wait_for_a_slow_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 40)
        store, late = client.world.features.store, [PutStatus.FLUSH_DISK_TIMEOUT] * 3
        sync = store.when_all_on_disk
        monkeypatch.setattr(
            store, "when_all_on_disk", lambda answer: answer(late.pop()) if late else sync(answer)
        )
        await client.pop()
        await client.world.clock.advance(6)
        assert (late, _saved_offset(tmp_path)) == ([], 32)
        assert "cannot be saved" not in caplog.text


async def test_offsets_are_not_saved_while_the_log_cannot_be_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 40)
        world, failed = client.world, []
        await client.pop(maxMsgNums=8)
        await world.clock.advance(6)

        def fail(answer: PutWaiter) -> None:
            failed.append(1)
            answer(PutStatus.FLUSH_DISK_TIMEOUT)

        with monkeypatch.context() as broken:
            broken.setattr(world.features.store, "when_all_on_disk", fail)
            counted = property(lambda _store: len(failed))
            broken.setattr(MessageStore, "failed_sync_count", counted)
            await client.pop()
            await world.clock.advance(6)
            assert failed
            assert _saved_offset(tmp_path) == 8
            assert "consumerOffset.json cannot be saved" in caplog.text
        await world.clock.advance(60)
        assert _saved_offset(tmp_path) == 40
