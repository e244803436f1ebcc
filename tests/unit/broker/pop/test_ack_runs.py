"""Acks of one run: those of one pop become one record, and each request keeps its own answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylark.broker.api import AckResult, Pending
from skylark.broker.pop.pop_record_writer import PopRecord
from skylark.broker.send.put_pipeline import STORE_FIRST, Done, Drafted
from skylark.core.errors import ServiceNotAvailableError, SkylarkError
from skylark.core.names import TIMER_TOPIC
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
)
from skylark.wire.message import MessageRecord
from skylark.wire.pop_records import BITS, decode_ack
from tests.unit.broker.fake_endpoint import FakePeer
from tests.unit.broker.pop.pop_client import MERGING, PopClient, Popped, fill, popping
from tests.unit.broker.stored import await_flushes

SYSTEM_ERROR = int(ResponseCode.SYSTEM_ERROR)


def ack_of(client: PopClient, message: Popped, **changes: Any) -> AckMessageRequestHeader:
    ext = client.ack_request(message, **changes)
    return msgspec.convert(
        {**ext, "queueId": int(ext["queueId"]), "offset": int(ext["offset"])},
        AckMessageRequestHeader,
    )


def run(client: PopClient, *requests: AckMessageRequestHeader) -> list[Any]:
    return client.world.features.puts.pipeline.run(FakePeer(), requests)


def acks_in_log(client: PopClient) -> list[MessageRecord]:
    """The records of acks, on their way through the timer."""
    records = client.world.records(TIMER_TOPIC)
    return [record for record in records if record.properties["TAGS"] != "ck"]


def codes(outcomes: list[Any]) -> list[int]:
    """The codes of the answers to these outcomes."""
    for outcome in outcomes:
        assert isinstance(outcome, AckResult | SkylarkError), outcome
    return [
        0 if isinstance(outcome, AckResult) else int(getattr(outcome, "code", SYSTEM_ERROR))
        for outcome in outcomes
    ]


async def bodies_that_come_back(client: PopClient, seconds: int = 60) -> list[bytes]:
    await client.world.clock.advance(seconds)
    return sorted(message.body for message in await client.pop())


async def test_acks_of_one_pop_are_one_batch_ack(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 5)
        messages = await client.pop()
        outcomes = run(client, *(ack_of(client, message) for message in messages[:3]))
        assert codes(outcomes) == [0, 0, 0]
        (record,) = acks_in_log(client)
        assert record.properties["TAGS"] == "bAck"
        handle = messages[0].handle
        assert (
            record.properties["UNIQ_KEY"]
            == f"T@0@-1@{client.group}@{handle.pop_time_ms}@broker-a@ack"
        )
        ack = decode_ack(record.body, is_batch=True)
        assert list(ack.queue_offsets) == [0, 1, 2]
        assert await bodies_that_come_back(client) == [messages[3].body, messages[4].body]


async def test_an_ack_that_comes_alone_is_an_ack(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 2)
        first, second = await client.pop()
        for message in (first, second):
            assert codes(run(client, ack_of(client, message))) == [0]
        assert [record.properties["TAGS"] for record in acks_in_log(client)] == ["ack", "ack"]
        assert await bodies_that_come_back(client) == []


@MERGING
async def test_acks_of_several_pops_may_come_in_turns(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await client.world.clock.advance(10)
        await fill(client, 9)
        pops = [await client.pop(maxMsgNums=3) for _ in range(3)]
        requests = [ack_of(client, pop[place]) for place in range(2) for pop in pops]
        assert codes(run(client, *requests)) == [0] * 6
        if merge == "false":
            assert len(acks_in_log(client)) == 3
        assert await bodies_that_come_back(client) == sorted(pop[2].body for pop in pops)


@MERGING
async def test_a_wrong_ack_between_others_is_refused_alone(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await client.world.clock.advance(10)
        await fill(client, 4)
        first, second, third, fourth = await client.pop()
        handle = str(second.handle)
        outcomes = run(
            client,
            ack_of(client, first),
            ack_of(client, second, offset=99),
            ack_of(client, second, extraInfo=f"{handle}x"),
            ack_of(client, second, extraInfo=f"{handle.rpartition(' ')[0]} "),
            ack_of(client, second, topic="absent"),
            ack_of(client, second, queueId=7),
            ack_of(client, second, liteTopic="lite"),
            ack_of(client, third),
        )
        assert codes(outcomes) == [0, 208, 1, 1, 17, 13, 3, 0]
        assert await bodies_that_come_back(client) == [second.body, fourth.body]


async def test_an_ack_of_another_group_joins_nothing(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 3)
        first, second, third = await client.pop()
        outcomes = run(
            client,
            ack_of(client, first),
            ack_of(client, second, consumerGroup="other"),
            ack_of(client, third),
        )
        assert codes(outcomes) == [0, 0, 0]
        assert await bodies_that_come_back(client) == [second.body]


@pytest.mark.parametrize("offset", ["0", "007", "-5"])
async def test_the_offset_in_a_handle_does_not_matter(tmp_path: Path, offset: str) -> None:
    """The message is that of the header, as in Java."""
    async with popping(tmp_path) as client:
        await fill(client, 3)
        first, second, third = await client.pop()
        text = f"{str(second.handle).rpartition(' ')[0]} {offset}"
        outcomes = run(client, ack_of(client, first), ack_of(client, second, extraInfo=text))
        assert codes(outcomes) == [0, 0]
        assert await bodies_that_come_back(client) == [third.body]


async def test_an_ack_that_comes_twice_is_harmless(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 2)
        first, second = await client.pop()
        requests = [ack_of(client, message) for message in (first, first, second, first)]
        assert codes(run(client, *requests)) == [0] * 4
        assert await bodies_that_come_back(client) == []


async def test_an_ack_that_comes_often_crowds_out_no_other(tmp_path: Path) -> None:
    """The revive keeps only so many offsets of a batch ack that it reads before its check-point."""
    async with popping(tmp_path) as client:
        await fill(client, 2)
        first, second = await client.pop()
        requests = [ack_of(client, message) for message in [first] * BITS + [second]]
        assert codes(run(client, *requests)) == [0] * (BITS + 1)
        (record,) = acks_in_log(client)
        assert list(decode_ack(record.body, is_batch=True).queue_offsets) == [0, 1]


async def test_the_same_ack_twice_is_no_batch_ack(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 2)
        first, second = await client.pop()
        assert codes(run(client, ack_of(client, first), ack_of(client, first))) == [0, 0]
        (record,) = acks_in_log(client)
        assert record.properties["TAGS"] == "ack"
        assert record.properties["UNIQ_KEY"].startswith("T@0@0@")
        assert await bodies_that_come_back(client) == [second.body]


async def test_a_put_that_fails_is_the_outcome_of_all_its_acks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 3)
        messages = await client.pop()
        writer = client.world.features.puts.writer
        requests = [ack_of(client, message) for message in messages]

        def refuse(drafts: Sequence[Draft]) -> list[PutResult]:
            assert [type(draft) for draft in drafts] == [PopRecord]
            return [PutResult(PutStatus.SERVICE_NOT_AVAILABLE)]

        def fail(_drafts: Sequence[Draft]) -> list[PutResult]:
            raise RuntimeError("a defect")

        with monkeypatch.context() as patch:
            patch.setattr(writer, "put_run", refuse)
            outcomes = run(client, *requests)
            assert [type(outcome) for outcome in outcomes] == [ServiceNotAvailableError] * 3
            patch.setattr(writer, "put_run", fail)
            outcomes = run(client, *requests)
            assert [str(outcome) for outcome in outcomes] == ["a defect"] * 3
        # The records of the failed puts must not be joined.
        assert codes(run(client, *requests[:2])) == [0, 0]
        assert await bodies_that_come_back(client) == [messages[2].body]


async def test_acks_of_one_record_wait_for_the_same_flush(tmp_path: Path) -> None:
    async with popping(tmp_path, flushDiskType="SYNC_FLUSH") as client:
        await fill(client, 3)
        messages = await client.pop()
        outcomes = run(client, *(ack_of(client, message) for message in messages))
        assert [type(outcome) for outcome in outcomes] == [Pending] * 3
        results: list[Any] = []
        for outcome in outcomes:
            outcome.then(results.append)
        assert results == []
        await_flushes(client.world)
        await client.world.clock.advance(1)
        assert codes(results) == [0, 0, 0]


async def test_a_record_counts_once(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 3)
        messages = await client.pop()
        totals = client.world.features.pop.state.totals
        before = sum(totals.written.values())
        run(client, *(ack_of(client, message) for message in messages))
        assert sum(totals.written.values()) == before + 1
        assert client.world.features.pop.state.in_flight("T", client.group, 0) == 0


async def test_each_of_these_acks_is_refused_also_behind_a_good_one(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 3)
        first, second, third = await client.pop()
        text = str(second.handle).rpartition(" ")[0]
        old_text = text.rpartition(" ")[0]
        outcomes = run(
            client,
            ack_of(client, first),
            ack_of(client, second, offset=-1),
            ack_of(client, second, extraInfo=f"{text} {'1' * 19}"),
            ack_of(client, second, extraInfo=f"{text} \u0661"),  # a digit of another script
            ack_of(client, first, extraInfo=text),  # of an old client: the queue stands last
            ack_of(client, second, extraInfo=f"{old_text} 1234567890"),
            ack_of(client, third),
        )
        assert codes(outcomes) == [0, 208, 1, 1, 0, 1, 0]
        assert await bodies_that_come_back(client) == [second.body]


@MERGING
async def test_a_pop_of_another_put_is_checked_again(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await client.world.clock.advance(10)
        await fill(client, 2)
        first, second = await client.pop()
        assert codes(run(client, ack_of(client, first))) == [0]
        answer = await client.world.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
        assert answer.code == 0
        assert codes(run(client, ack_of(client, second))) == [17]


async def test_an_ack_with_another_revive_queue_is_a_record_of_its_own(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 2)
        first, second = await client.pop()
        revive_queue_id = first.handle.revive_queue_id
        other = msgspec.structs.replace(second.handle, revive_queue_id=revive_queue_id + 1)
        requests = [ack_of(client, first), ack_of(client, second, extraInfo=str(other))]
        assert codes(run(client, *requests)) == [0, 0]
        found = [record.properties["REAL_QID"] for record in acks_in_log(client)]
        assert found == [str(revive_queue_id), str(revive_queue_id + 1)]


class Split:
    """A request that needs the earlier ones in the log."""


class SplitStep:
    def __init__(self) -> None:
        self._is_split = False

    def draft(self, _peer: object, _request: object) -> Drafted:
        if self._is_split:
            return Done(AckResult())
        self._is_split = True
        return STORE_FIRST

    def finish(self, *_given: object, **_named: object) -> object:
        raise AssertionError("this step has no drafts")


async def test_a_record_is_not_joined_behind_its_put(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 5)
        messages = await client.pop()
        pipeline = client.world.features.puts.pipeline
        pipeline.add_step(Split, SplitStep())
        acks: list[Any] = [ack_of(client, message) for message in messages[:4]]
        acks.insert(2, Split())
        assert codes(run(client, *acks)) == [0] * 5
        bodies = [record.body for record in acks_in_log(client)]
        found = [list(decode_ack(body, is_batch=True).queue_offsets) for body in bodies]
        assert found == [[0, 1], [2, 3]]
        assert await bodies_that_come_back(client) == [messages[4].body]


async def test_each_ack_has_the_result_of_its_own_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 4)
        pops = [await client.pop(maxMsgNums=2) for _ in range(2)]
        results = [PutResult(PutStatus.PUT_OK), PutResult(PutStatus.SERVICE_NOT_AVAILABLE)]
        monkeypatch.setattr(client.world.features.puts.writer, "put_run", lambda _: results)
        outcomes = run(client, *(ack_of(client, pop[place]) for place in range(2) for pop in pops))
        kinds = [AckResult, ServiceNotAvailableError]
        assert [type(outcome) for outcome in outcomes] == kinds * 2
        monkeypatch.undo()


async def test_every_ack_counts_for_the_statistics(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 3)
        messages = await client.pop()
        stats = client.world.features.stats.broker_stats
        run(client, *(ack_of(client, message) for message in messages))
        assert (stats.ack_count, stats.group_acks["T", client.group].count) == (3, 3)


async def test_an_ack_finds_a_check_point_that_comes_into_memory(tmp_path: Path) -> None:
    """It must not join the ack before, which came too early to find it."""
    async with popping(tmp_path, enablePopBufferMerge="true") as client:
        await client.world.clock.advance(10)
        await fill(client, 1)
        (message,) = await client.pop()
        pop_time_ms = message.handle.pop_time_ms + 1
        handle = msgspec.structs.replace(
            message.handle,
            start_offset=message.offset,
            pop_time_ms=pop_time_ms,
            invisible_ms=1_000,
        )
        ack = ack_of(client, message, extraInfo=str(handle))
        change = msgspec.convert(
            {**msgspec.to_builtins(ack), "extraInfo": str(message.handle), "invisibleTime": 1_000},
            ChangeInvisibleTimeRequestHeader,
        )
        pipeline = client.world.features.puts.pipeline
        outcomes = pipeline.run(FakePeer(), [ack, change, ack])
        assert codes([outcomes[0], outcomes[2]]) == [0, 0]
        assert outcomes[1].pop_time == pop_time_ms
        assert await bodies_that_come_back(client) == []


async def test_a_record_names_no_more_messages_than_a_pop_has(tmp_path: Path) -> None:
    """Of an ack that is read before its check-point, the revive keeps so many offsets."""
    async with popping(tmp_path) as client:
        await fill(client, 40)
        first = (await client.pop(maxMsgNums=2))[0]
        outcomes = run(client, *(ack_of(client, first, offset=offset) for offset in range(40)))
        assert codes(outcomes) == [0] * 40
        found = [decode_ack(record.body, is_batch=True) for record in acks_in_log(client)]
        assert [list(ack.queue_offsets) for ack in found] == [list(range(32)), list(range(32, 40))]
