"""Commits of the lite pull consumer: stored when they return, refused when they make no sense."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark.core.errors import ClientError, TransportError
from skylark.wire.bodies.heartbeat import ConsumeFromWhere
from tests.unit.client.consumer.pull_world import bodies, polled, pull_world, queue

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET


@pytest.mark.spec("client.8.36")
async def test_a_crash_after_a_poll_loses_nothing(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w:
        await w.send(*[b"%d" % i for i in range(4)])
        async with w.lite(pull_batch_size=2) as consumer:
            await w.finish(consumer.subscribe("T").start())
            assert bodies(await polled(w, consumer, 2)) == [b"0", b"1"]
            await w.clock.advance(seconds=6)  # the automatic commit is due
            assert bodies(await polled(w, consumer, 2)) == [b"2", b"3"]
            await w.clock.advance(seconds=20)  # offsets are saved meanwhile
            assert await w.committed("g") == 2  # what the poll before had returned, no more
        # It stops without having polled again: the second batch was never committed.
        assert await w.committed("g") == 2
        async with w.lite() as consumer:
            await w.finish(consumer.subscribe("T").start())
            assert bodies(await polled(w, consumer, 2)) == [b"2", b"3"]


@pytest.mark.spec("client.8.36")
async def test_committing_one_queue_keeps_the_others(tmp_path: Path) -> None:
    async with pull_world(tmp_path, queue_count=2) as w, w.lite(auto_commit=False) as consumer:
        for queue_id in (0, 1):
            await w.send(b"x", b"y", queue_id=queue_id)
        await w.finish(consumer.assign([queue(0), queue(1)]).start())
        await polled(w, consumer, 4)
        await w.finish(consumer.commit({queue(1): 2}))
        await w.finish(consumer.commit({queue(0): 1}, persist=True))
        assert (await w.committed("g", 0), await w.committed("g", 1)) == (1, 2)
        await w.finish(consumer.stop())
        assert (await w.committed("g", 0), await w.committed("g", 1)) == (1, 2)


async def test_forms_of_a_commit(tmp_path: Path) -> None:
    async with (
        pull_world(tmp_path, queue_count=2) as w,
        w.lite(auto_commit=False, pull_batch_size=2) as consumer,
    ):
        await w.send(*[b"%d" % i for i in range(4)])
        await w.finish(consumer.assign([queue(0)]).start())
        assert await w.finish(consumer.committed(queue(1))) is None
        batch = await polled(w, consumer, 2)
        await consumer.commit(batch[:1])
        assert await w.finish(consumer.committed(queue())) == 1
        await consumer.commit({queue()})
        assert await w.finish(consumer.committed(queue())) == 2
        await polled(w, consumer, 2)
        await consumer.commit()
        assert await w.finish(consumer.committed(queue())) == 4


async def test_a_commit_is_stored_by_the_broker_when_it_returns(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite(auto_commit=False) as consumer:
        await w.send(*[b"%d" % i for i in range(4)])
        await w.finish(consumer.subscribe("T").start())
        batch = await polled(w, consumer, 4)
        await w.finish(consumer.commit(batch[:3]))
        # Read without giving any background task a chance: as after kill -9.
        assert w.world.brokers["broker-a"].features.groups.offsets.get("g", "T", 0) == 3


async def test_a_commit_without_an_answer_raises_and_is_sent_again(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite(auto_commit=False) as consumer:
        await w.send(b"0", b"1")
        await w.finish(consumer.subscribe("T").start())
        batch = await polled(w, consumer, 2)
        await w.world.stop(w.world.brokers["broker-a"])
        with pytest.raises(TransportError):
            await w.finish(consumer.commit(batch))
        await w.world.add_broker("broker-a", 20911)
        await w.clock.advance(seconds=60)
        assert await w.committed("g") == 2


async def test_committed_asks_the_broker(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite() as consumer, w.classic() as other:
        await w.send(*[b"%d" % i for i in range(4)])
        for each in (consumer.assign([queue()]), other):
            await w.finish(each.start())
        await polled(w, consumer, 4)
        await w.clock.advance(seconds=6)
        await w.finish(consumer.poll(0))  # the automatic commit: in memory, not sent yet
        assert await w.finish(consumer.committed(queue())) == 0  # a young queue; memory says 4
        await w.finish(other.update_consume_offset_to_broker(queue(), 1))
        assert await w.finish(consumer.committed(queue())) == 1
        await w.finish(consumer.stop())
        assert await w.committed("g") == 4  # to have asked has taken nothing back


async def test_a_commit_for_a_queue_of_others_raises_after_the_rest(tmp_path: Path) -> None:
    async with pull_world(tmp_path, queue_count=2) as w, w.lite(auto_commit=False) as consumer:
        for queue_id in (0, 1):
            await w.send(b"x", b"y", queue_id=queue_id)
        await w.finish(consumer.assign([queue(0), queue(1)]).start())
        messages = await polled(w, consumer, 4)
        consumer.assign([queue(0)])
        for given in ({queue(1): 1, queue(0): 1}, [m for m in messages if m.queue_offset == 0]):
            with pytest.raises(ClientError, match=r"not in assigned list.*queue_id=1"):
                await w.finish(consumer.commit(given))
            assert (await w.committed("g", 0), await w.committed("g", 1)) == (1, -1)
            await w.finish(consumer.commit({queue(0): 0}))
        with pytest.raises(ClientError, match="not in assigned list"):
            await w.finish(consumer.commit([queue(1)]))


async def test_a_queue_that_is_lost_during_a_commit_raises(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w, w.lite(auto_commit=False) as consumer:
        await w.send(b"x")
        await w.finish(consumer.assign([queue()]).start())
        messages = await polled(w, consumer, 1)
        committing = asyncio.ensure_future(consumer.commit(messages))
        await asyncio.sleep(0)
        consumer.assign([])
        with pytest.raises(ClientError, match="not in assigned list"):
            await w.finish(committing)


async def test_an_offset_above_the_maximum_is_not_committed(tmp_path: Path) -> None:
    async with pull_world(tmp_path, queue_count=2) as w, w.lite(auto_commit=False) as consumer:
        await w.send(b"0", b"1")
        await w.finish(consumer.assign([queue(0), queue(1)]).start())
        await polled(w, consumer, 2)
        with pytest.raises(ClientError, match=r"offset 3 of .* the queue ends at 2"):
            await w.finish(consumer.commit({queue(1): 0, queue(0): 3}))
        assert (await w.committed("g", 0), await w.committed("g", 1)) == (-1, -1)
        await w.send(b"2")
        await w.finish(consumer.commit({queue(0): 3}))  # not pulled yet, but there
        assert await w.committed("g") == 3


async def test_a_queue_given_up_is_saved_and_left_to_others(tmp_path: Path) -> None:
    async with pull_world(tmp_path, queue_count=2) as w, w.lite() as one, w.classic() as other:
        await w.send(b"a", b"b")
        for consumer in (one.assign([queue(0)]), other):
            await w.finish(consumer.start())
        await polled(w, one, 2)
        await one.commit()
        one.assign([queue(1)])
        await w.clock.drain()
        assert await w.committed("g") == 2
        await w.finish(other.update_consume_offset_to_broker(queue(0), 9))
        await w.clock.advance(seconds=20)
        await w.finish(one.stop())
        assert await w.committed("g") == 9  # not taken back


async def test_a_look_at_the_queue_of_another_takes_nothing_back(tmp_path: Path) -> None:
    async with pull_world(tmp_path, queue_count=2) as w, w.lite() as one, w.classic() as other:
        for consumer in (one.assign([queue(0)]), other):
            await w.finish(consumer.start())
        await w.clock.advance(seconds=1)  # the broker hears of the group
        await w.finish(other.update_consume_offset_to_broker(queue(1), 1))
        assert await w.finish(one.committed(queue(1))) == 1
        await w.finish(other.update_consume_offset_to_broker(queue(1), 9))
        await w.clock.advance(seconds=20)
        await w.finish(one.stop())
        assert await w.committed("g", 1) == 9


async def test_what_two_assign_to_themselves_is_not_taken_back(tmp_path: Path) -> None:
    async with (
        pull_world(tmp_path) as w,
        w.lite(auto_commit=False) as one,
        w.classic() as other,
    ):
        await w.send(*[b"%d" % i for i in range(3)])
        for consumer in (one.assign([queue()]), other):
            await w.finish(consumer.start())
        await w.clock.advance(seconds=1)  # the broker hears of the group
        await w.finish(other.update_consume_offset_to_broker(queue(), 1))
        assert await w.finish(one.committed(queue())) == 1
        await w.finish(other.update_consume_offset_to_broker(queue(), 3))
        await w.clock.advance(seconds=20)
        await w.finish(one.stop())
        assert await w.committed("g") == 3


async def test_a_member_that_joins_an_idle_group_repeats_nothing(tmp_path: Path) -> None:
    async with pull_world(tmp_path, queue_count=2) as w, w.lite(consume_from_where=FIRST) as one:
        for number in range(2):
            await w.send(*(b"%d" % n for n in range(20)), queue_id=number)
        await w.finish(one.subscribe("T").start())
        assert len(await polled(w, one, 40)) == 40
        assert await w.finish(one.poll(0.5)) == []  # so everything before is consumed
        options = w.options(instance_name="other")
        async with w.lite("g", options, consume_from_where=FIRST) as other:
            await w.finish(other.subscribe("T").start())
            await w.until(lambda: len(other.assignment) == 1)
            assert await w.finish(other.poll(3)) == []
