"""Acks of one run: those of one pop become one record, and each request keeps its own answer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from skylark.broker.api import AckResult, Pending
from skylark.broker.pop.pop_record_writer import PopRecord
from skylark.core.errors import ServiceNotAvailableError, SkylarkError
from skylark.core.names import TIMER_TOPIC
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.codes import ResponseCode
from skylark.wire.headers.pop import AckMessageRequestHeader
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
