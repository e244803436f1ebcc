"""The revive in a whole broker on virtual time: what comes back, when, with which attempt."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.broker.pop import revive
from skylark.broker.pop.revive_runner import ReviveRunner
from skylark.core.names import REVIVE_GROUP, revive_topic
from skylark.store.commit_log import Draft
from skylark.wire.bodies.config import SubscriptionGroupConfig
from tests.unit.broker.pop.pop_client import MERGING, PopClient, Popped, fill, popping

RETRY = "%RETRY%g_T"


def revive_of(client: PopClient) -> ReviveRunner:
    revive = client.world.features.pop.revive
    assert revive is not None
    return revive


async def pop_again(client: PopClient, **changes: object) -> list[Popped]:
    """Pop topic and retries until nothing is left."""
    found: list[Popped] = []
    while part := await client.pop(**changes):
        found += part
    return found


@pytest.mark.spec("broker.13.19")
@pytest.mark.parametrize("merge", ["false", "true"])
async def test_an_unacknowledged_message_comes_back_once(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 3)
        popped = await client.pop()
        pop_time_ms = client.world.clock.now_ms()
        await client.ack_all(popped[:2])
        await client.world.clock.advance(9.9)
        assert await pop_again(client) == []
        await client.world.clock.advance(6)
        (again,) = await pop_again(client)
        assert again.body == popped[2].body
        assert again.record.topic == "T"
        assert again.record.reconsume_times == 1
        assert again.record.properties["1ST_POP_TIME"] == str(pop_time_ms)
        assert again.record.properties["ORIGIN_GROUP"] == "g"
        assert client.committed() == 3
        await client.ack(again)
        await client.world.clock.advance(60)
        assert await pop_again(client) == []
        (copy,) = client.world.records(RETRY)
        assert copy.born_host == client.world.context.store_host
        topic = client.world.features.topics.table.get(RETRY)
        assert topic is not None
        assert (topic.read_queue_nums, topic.write_queue_nums, topic.perm) == (1, 1, 6)


@pytest.mark.parametrize("merge", ["false", "true"])
async def test_each_attempt_counts_one_more(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 1)
        (first,) = await client.pop()
        for attempt in range(1, 4):
            await client.world.clock.advance(20)
            (again,) = await pop_again(client)
            assert again.record.reconsume_times == attempt
            time = again.record.properties["1ST_POP_TIME"]
            assert time == str(first.handle.pop_time_ms)
        assert len(client.world.records(RETRY)) == 3


async def test_retries_of_version_2(tmp_path: Path) -> None:
    async with popping(
        tmp_path, enableRetryTopicV2="true", retrieveMessageFromPopRetryTopicV1="false"
    ) as client:
        await fill(client, 1)
        await client.pop()
        await client.world.clock.advance(16)
        assert len(client.world.records("%RETRY%g+T")) == 1
        (again,) = await pop_again(client)
        assert again.record.reconsume_times == 1


async def test_separate_retry_queues(tmp_path: Path) -> None:
    async with popping(tmp_path, 4, useSeparateRetryQueue="true") as client:
        await fill(client, 1, queue_id=2)
        await client.pop()
        await client.world.clock.advance(16)
        assert len(client.world.records(RETRY, 2)) == 1


@pytest.mark.spec("broker.13.20")
@pytest.mark.parametrize("merge", ["false", "true"])
async def test_only_the_new_handle_counts_after_a_change(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 2)
        first, second = await client.pop()
        answer = await client.change(first, 60_000)
        assert answer.code == 0
        changed = client.changed(first, answer)
        await client.ack(second)
        await client.world.clock.advance(50)
        assert await pop_again(client) == []
        await client.ack(changed)
        await client.world.clock.advance(100)
        assert await pop_again(client) == []


@MERGING
async def test_the_old_handle_does_not_stop_a_changed_message(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 1)
        (first,) = await client.pop()
        assert (await client.change(first, 30_000)).code == 0
        assert (await client.ack(first)).code == 0
        await client.world.clock.advance(29)
        assert await pop_again(client) == []
        await client.world.clock.advance(8)
        (again,) = await pop_again(client)
        assert again.record.reconsume_times == 1


@pytest.mark.parametrize(("merge", "within_s"), [("false", 6), ("true", 2)])
async def test_a_message_is_given_back(tmp_path: Path, merge: str, within_s: int) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await client.world.clock.advance(1)
        await fill(client, 1)
        (first,) = await client.pop(invisibleTime=60_000)
        assert (await client.change(first, 1_000, suspend="true")).code == 0
        await client.world.clock.advance(0.9)
        assert await pop_again(client) == []
        await client.world.clock.advance(within_s - 0.9)
        (again,) = await pop_again(client, invisibleTime=60_000)
        assert again.body == first.body
        assert again.record.reconsume_times == 0  # no attempt was counted
        assert (await client.ack(again)).code == 0
        await client.world.clock.advance(200)
        assert await pop_again(client) == []
        assert client.committed() == 1


async def test_nothing_is_written_of_what_is_acknowledged_in_time(tmp_path: Path) -> None:
    async with popping(tmp_path, enablePopBufferMerge="true") as client:
        await client.world.clock.advance(1)
        await fill(client, 40)
        store = client.world.features.store
        end = store.log.max_offset
        first = await client.pop()
        second = await client.pop()
        assert (len(first), len(second)) == (32, 8)
        assert client.committed() == 0
        await client.ack_all(second)
        assert client.committed() == 0  # the first pop comes first
        await client.ack_all(first)
        assert client.committed() == 40
        await client.world.clock.advance(30)
        assert store.log.max_offset == end


async def test_a_stop_writes_what_is_in_memory(tmp_path: Path) -> None:
    async with popping(tmp_path, enablePopBufferMerge="true") as client:
        await client.world.clock.advance(1)
        await fill(client, 3)
        popped = await client.pop()
        await client.ack(popped[1])
        now_ms = client.world.clock.now_ms()
    async with popping(tmp_path) as client:
        await client.world.clock.advance(ms=now_ms - client.world.clock.now_ms())
        assert client.committed() == 3
        await client.world.clock.advance(16)
        again = await pop_again(client)
        assert [message.body for message in again] == [popped[0].body, popped[2].body]


async def test_more_check_points_than_memory_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revive, "POINTS_MAX", 4)
    async with popping(tmp_path, reviveQueueNum="1") as client:
        bodies = await fill(client, 30)
        messages = await client.pop(maxMsgNums=1)
        while message := await client.pop(maxMsgNums=1):
            messages += message
        await client.ack_all(messages[::2])
        await client.world.clock.advance(60)
        assert [each.body for each in client.world.records(RETRY)] == bodies[1::2]
        assert len(revive_of(client).queues[0]) == 0


async def test_an_offset_behind_the_end_brings_back_the_last_seconds_only(tmp_path: Path) -> None:
    topic = revive_topic("DefaultCluster")
    async with popping(tmp_path, reviveQueueNum="1") as client:
        bodies = await fill(client, 3)
        for _ in range(2):
            await client.pop(maxMsgNums=1)
            await client.world.clock.advance(60)
            await client.ack_all(await client.pop(maxMsgNums=1, queueId=0))
        assert len(client.world.records(RETRY)) > 0
        before = [each.body for each in client.world.records(RETRY)]
        assert bodies[0] in before
        client.world.features.groups.offsets.commit(REVIVE_GROUP, topic, 0, 1_000)
        now_ms = client.world.clock.now_ms()
    async with popping(tmp_path, reviveQueueNum="1") as client:
        await client.world.clock.advance(ms=now_ms - client.world.clock.now_ms())
        await client.world.clock.advance(60)
        after = [each.body for each in client.world.records(RETRY)]
        assert after.count(bodies[0]) == 1
        committed = client.world.features.groups.offsets.get(REVIVE_GROUP, topic, 0)
        assert committed < len(client.world.records(topic))
        await fill(client, 1)
        (message,) = await client.pop(maxMsgNums=1, queueId=0)
        await client.world.clock.advance(20)
        assert message.body in [each.body for each in client.world.records(RETRY)][len(after) :]


async def test_a_record_that_repeats_an_old_one_gives_no_second_copy(tmp_path: Path) -> None:
    """The timer delivered it again after a crash; the first one is done, and the offset saved."""
    topic = revive_topic("DefaultCluster")
    async with popping(tmp_path, reviveQueueNum="1") as client:
        (body,) = await fill(client, 1)
        await client.pop()
        await client.world.clock.advance(20)
        assert [each.body for each in client.world.records(RETRY)] == [body]
        client.world.context.live.update("reviveInterval=1000000", 0)
        revive_of(client).wake()  # the last pass before the crash
        await client.world.clock.advance(60)
        await client.ack_all(await client.pop())  # the timer has more to do
        await client.world.clock.advance(15)
        first = client.world.records(topic)[0]
        again = Draft(topic, 0, first.body, properties=first.raw_properties)
        client.world.features.puts.writer.put_run([again])
        now_ms = client.world.clock.now_ms()
    async with popping(tmp_path, start_ms=now_ms, reviveQueueNum="1") as client:
        count = len(client.world.records(topic))
        await client.world.clock.advance(60)
        assert client.world.features.groups.offsets.get(REVIVE_GROUP, topic, 0) == count - 1
        assert [each.body for each in client.world.records(RETRY)] == [body]


async def test_a_queue_that_is_cut_while_it_is_read_goes_on_at_its_end(tmp_path: Path) -> None:
    async with popping(tmp_path, reviveQueueNum="1") as client:
        await fill(client, 2)
        await client.pop(maxMsgNums=1)
        await client.world.clock.advance(60)
        queue = revive_of(client).queues[0]
        assert queue.read_offset == 1
        queue.skip_to(500)
        await client.pop(maxMsgNums=1, queueId=0)
        await client.world.clock.advance(60)
        assert queue.read_offset == len(client.world.records(revive_of(client).topic))
        bodies = [each.body for each in client.world.records(RETRY)]
        assert bodies.count(b"0-0") >= 1


async def test_the_revive_offset_is_saved_after_the_log(tmp_path: Path) -> None:
    async with popping(
        tmp_path, reviveQueueNum="1", flushConsumerOffsetInterval="1000000"
    ) as client:
        offsets = client.world.features.groups.offsets
        await fill(client, 1)
        await client.ack_all(await client.pop())
        await client.world.clock.advance(10.5)
        assert not offsets.log_grown  # saved
        await client.world.clock.advance(10)
        assert offsets.get(REVIVE_GROUP, revive_of(client).topic, 0) == 0
        assert offsets.log_grown


async def test_missing_topics_and_groups_are_skipped(tmp_path: Path) -> None:
    async with popping(tmp_path, autoCreateSubscriptionGroup="false") as client:
        for group in ("g", "gone"):
            client.world.features.groups.table.update(SubscriptionGroupConfig(group_name=group))
        await fill(client, 1)
        await client.pop()
        other = PopClient(client.world, group="gone")
        await other.pop()
        assert client.world.features.groups.table.delete("gone")
        await client.world.clock.advance(16)
        assert revive_of(client).copies.lost_count == 1
        assert client.world.features.pop.state.in_flight("T", "gone", 0) == 0
        assert len(await pop_again(client)) == 1
        offsets = client.world.features.groups.offsets.committed(
            REVIVE_GROUP, revive_of(client).topic
        )
        assert sum(offset + 1 for offset in offsets.values()) == 2
