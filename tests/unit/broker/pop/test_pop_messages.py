"""Pops, acks and changes of the invisible time, as frames on a whole broker."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from tests.unit.broker.pop.pop_client import MERGING, fill, popping
from tests.unit.broker.stored import await_flushes


@MERGING
async def test_messages_are_popped_once_and_acknowledged(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        bodies = await fill(client, 3)
        messages = await client.pop()
        assert [message.body for message in messages] == bodies
        assert await client.pop() == []
        await client.ack_all(messages)
        assert client.committed() == 3
        await client.world.clock.advance(60)
        assert await client.pop() == []


@pytest.mark.spec("broker.13.19")
async def test_what_is_not_acknowledged_comes_back(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 3)
        first, second, third = await client.pop()
        await client.ack_all([first, second])
        await client.world.clock.advance(9)
        assert await client.pop() == []
        waiting = await client.begin()
        popped_at = client.world.clock.now_ms()
        while not waiting.done():
            await client.world.clock.advance(0.5)
        waited_s = (client.world.clock.now_ms() - popped_at) / 1000 + 9
        assert 10 <= waited_s <= 16
        (again,) = client.popped(waiting.result())
        assert again.body == third.body
        assert (again.record.topic, again.record.reconsume_times) == ("T", 1)
        assert again.handle.kind == "1"
        assert client.committed() == 3
        await client.ack_all([again])
        await client.world.clock.advance(60)
        assert await client.pop() == []


@pytest.mark.spec("broker.13.19")
async def test_limits_of_a_pop(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        for count in (33, 10**9):
            answer = await client.answer(maxMsgNums=count)
            assert answer.code == 29
            assert "greater than 32" in (answer.remark or "")
        waiting = await client.begin(pollTime=3_000)
        await client.world.clock.advance(2.8)
        assert not waiting.done()
        await client.world.clock.advance(0.3)
        assert waiting.done()
        answer = waiting.result()
        assert (answer.code, answer.remark) == (210, "NO_MESSAGE_IN_QUEUE")


@pytest.mark.spec("broker.13.20")
@MERGING
async def test_only_the_new_handle_counts_after_a_change(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 1)
        (message,) = await client.pop()
        answer = await client.change(message, 60_000)
        assert (answer.code, answer.remark) == (0, "not set any response code")
        assert (answer.ext or {})["invisibleTime"] == "60000"
        changed = client.changed(message, answer)
        assert (await client.ack(message)).code == 0  # too late for the old handle
        await client.world.clock.advance(50)
        assert await client.pop() == []
        await client.world.clock.advance(30)
        (again,) = await client.pop(invisibleTime=10_000)
        assert again.body == message.body
        answer = await client.change(again, 60_000)
        await client.ack_all([client.changed(again, answer)])
        await client.world.clock.advance(200)
        assert await client.pop() == []
        assert changed.handle != message.handle


@pytest.mark.spec("remoting.10.8")
async def test_the_codes_of_pop_reach_the_broker_by_json_only(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        assert (await client.answer()).code == 210
        cut = await client.world.call(int(RequestCode.POP_MESSAGE) & 0xFFFF, client.request())
        assert cut.code == 3  # what a binary header makes of it


async def test_requests_that_may_wait_are_not_on_the_fast_port(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 1)
        (message,) = await client.pop()
        world = client.world
        address = str(world.broker.fast_address)
        for code, expected in ((RequestCode.POP_MESSAGE, 3), (RequestCode.ACK_MESSAGE, 0)):
            ext = client.request() if expected else client.ack_request(message)
            answer = await world.client.call(address, Command(code=code, ext=ext), 1e6)
            assert answer.code == expected


async def test_acks_that_come_together_are_one_put(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 8)
        messages = await client.pop()
        writer = client.world.features.puts.writer
        sizes: list[int] = []
        put_run = writer.put_run

        def counted(drafts: Sequence[Draft]) -> list[PutResult]:
            sizes.append(len(drafts))
            return put_run(drafts)

        writer.put_run = counted  # type: ignore[method-assign]
        answers = await asyncio.gather(*map(client.ack, messages))
        assert [answer.code for answer in answers] == [0] * 8
        # Those of one pop are one record; the first one may have been sent alone.
        assert (sum(sizes) <= 2, len(sizes) <= 2) == (True, True)
        await client.world.clock.advance(60)
        assert await client.pop() == []


async def test_what_is_acknowledged_in_time_is_not_written(tmp_path: Path) -> None:
    async with popping(tmp_path, enablePopBufferMerge="true") as client:
        await client.world.clock.advance(10)  # merging begins when the offsets are saved
        await fill(client, 8)
        await client.ack_all(await client.pop(invisibleTime=60_000))
        await fill(client, 8)
        end = client.world.features.store.log.max_offset
        messages = await client.pop(invisibleTime=60_000)
        assert len(messages) == 8
        await client.ack_all(messages)
        await client.world.clock.advance(30)
        assert client.world.features.store.log.max_offset == end
        assert client.committed() == 16


async def test_pops_with_synchronous_flush_wait_for_the_disk(tmp_path: Path) -> None:
    async with popping(tmp_path, flushDiskType="SYNC_FLUSH") as client:
        await_flushes(client.world)
        await fill(client, 3)
        messages = await client.pop()
        assert len(messages) == 3
        await client.ack_all(messages)
        assert client.committed() == 3
