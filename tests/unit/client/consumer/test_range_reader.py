"""Ranges of a queue: read to their end whatever the broker answers, nothing missed unnoticed."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skylark.client.arrow.arrow_reader import read_range
from skylark.client.consumer.range_reader import Find, RangeTerms
from skylark.client.core.broker_calls import BrokerCalls
from skylark.client.errors import Missing, MissingError
from skylark.core.errors import (
    ClientError,
    NoNameServerError,
    RemoteProtocolError,
    SubscriptionGroupNotExistError,
    TopicNotExistError,
)
from skylark.net.client import RemotingClient
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from skylark.wire.message import encode_record
from tests.unit.client.consumer.pull_world import queue
from tests.unit.client.scripted import ScriptedServer
from tests.unit.client.worlds import world


def pulled(
    body: bytes, next_offset: int, code: int = 0, max_offset: int = 100
) -> Callable[[Command], Command]:
    ext = {
        "suggestWhichBrokerId": "0",
        "nextBeginOffset": str(next_offset),
        "minOffset": "0",
        "maxOffset": str(max_offset),
    }
    return lambda request: response_to(request, code, ext=ext, body=body)


def records(*offsets: int) -> bytes:
    return b"".join(encode_record("T", b"%d" % each, queue_offset=each) for each in offsets)


class Scripted:
    """A range read from a broker that answers as told."""

    def __init__(self, server: ScriptedServer, finish: Callable[..., Any], clock: Any) -> None:
        self.server = server
        self.finish = finish
        self.clock = clock

    async def read(
        self,
        start: int,
        end: int,
        *given: Callable[[Command], Command] | int,
        find: Find | None = None,
        **more: Any,
    ) -> list[int]:
        self.server.answer(RequestCode.PULL_MESSAGE, *given)
        client = RemotingClient(self.server.server._network, self.clock)

        async def offsets() -> list[int]:
            batches = read_range(
                BrokerCalls(client),
                find or self.server.address,
                queue(),
                start,
                end,
                columns=["queueOffset"],
                clock=self.clock,
                **more,
            )
            return [row["queueOffset"] async for batch in batches for row in batch.to_pylist()]

        try:
            found: list[int] = await self.finish(offsets())
            return found
        finally:
            await client.close()

    def asked(self) -> list[int]:
        return [int((r.ext or {})["queueOffset"]) for r in self.server.of(RequestCode.PULL_MESSAGE)]


@asynccontextmanager
async def scripted(root: Path) -> AsyncIterator[Scripted]:
    async with world(root) as w:
        server = ScriptedServer(w.network, w.clock)
        await server.start()
        yield Scripted(server, w.finish, w.clock)
        await w.finish(server.stop())


async def test_a_range_ends_where_it_was_told(tmp_path: Path) -> None:
    async with scripted(tmp_path) as s:
        answers = (pulled(records(2, 3, 4), 5), pulled(records(5, 6, 7), 8))
        assert await s.read(3, 7, *answers) == [3, 4, 5, 6]
        assert s.asked() == [3, 5]
        ext = s.server.of(RequestCode.PULL_MESSAGE)[0].ext or {}
        assert (ext["sysFlag"], ext["bulk"], ext["maxMsgNums"]) == ("4", "true", "4")
        assert (ext["subscription"], ext["consumerGroup"]) == ("*", "TOOLS_CONSUMER")


async def test_what_matches_nothing_is_passed_over(tmp_path: Path) -> None:
    async with scripted(tmp_path) as s:
        assert await s.read(0, 9, pulled(b"", 8, code=20), pulled(records(8), 9)) == [8]


async def test_a_replica_that_lags_is_waited_for(tmp_path: Path) -> None:
    async with scripted(tmp_path) as s:
        lags = pulled(b"", 0, code=19, max_offset=0)
        assert await s.read(0, 1, lags, lags, 2, 14, pulled(records(0), 1)) == [0]
        assert s.asked() == [0] * 5
        with pytest.raises(ClientError, match="has no message at offset 0"):
            await s.read(0, 1, lags, terms=RangeTerms(patience_s=5))


async def test_a_replica_that_lags_by_more_than_one_is_waited_for(tmp_path: Path) -> None:
    """Such a slave answers that nothing matched, with the offset that it was asked for."""
    async with scripted(tmp_path) as s:
        lags = pulled(b"", 7, code=20, max_offset=3)
        assert await s.read(7, 8, *[lags] * 5, pulled(records(7), 8)) == [7]
        assert s.asked() == [7] * 6
        with pytest.raises(ClientError, match=r"has no message at offset 7.*its last is 2"):
            await s.read(7, 8, lags, terms=RangeTerms(patience_s=5))


async def test_a_pull_that_is_repeated_may_go_elsewhere(tmp_path: Path) -> None:
    async with scripted(tmp_path) as s:
        attempts: list[int] = []

        async def find(attempt: int) -> str:
            attempts.append(attempt)
            return s.server.address

        lags = pulled(b"", 0, code=20, max_offset=0)
        await s.read(0, 1, lags, lags, pulled(records(0), 1), find=find)
        assert attempts == [0, 1, 2]


async def test_messages_that_are_gone_are_reported(tmp_path: Path) -> None:
    async with scripted(tmp_path) as s:
        moved = (pulled(b"", 4, code=21), pulled(records(4, 5), 6))
        with pytest.raises(
            MissingError, match=r"4 messages of topic T.*0 was wanted.*on at 4"
        ) as e:
            await s.read(0, 6, *moved)
        assert e.value.missing == Missing(queue=queue(), wanted=0, available=4, count=4)
        told: list[Missing] = []
        assert await s.read(0, 6, *moved, on_missing=told.append) == [4, 5]
        assert told == [e.value.missing]


async def test_a_topic_made_anew_ends_the_range(tmp_path: Path) -> None:
    async with scripted(tmp_path) as s:
        told: list[Missing] = []
        back = pulled(b"", 2, code=21)
        assert await s.read(50, 60, back, on_missing=told.append) == []
        assert [(each.wanted, each.available, each.count) for each in told] == [(50, 2, 10)]
        with pytest.raises(MissingError):
            await s.read(50, 60, back)


async def test_answers_without_progress_are_an_error(tmp_path: Path) -> None:
    async with scripted(tmp_path) as s:
        with pytest.raises(ClientError, match="do not get past offset 0"):
            await s.read(0, 5, pulled(records(0), 0))
        assert len(s.asked()) == 3
        with pytest.raises(TopicNotExistError):
            await s.read(0, 5, 17)


async def test_a_group_that_does_not_exist_is_named(tmp_path: Path) -> None:
    async with scripted(tmp_path) as s:
        with pytest.raises(SubscriptionGroupNotExistError, match="create the group readers"):
            await s.read(0, 5, 26, terms=RangeTerms(group="readers"))


async def test_an_answer_that_is_no_message_is_an_error(tmp_path: Path) -> None:
    async with scripted(tmp_path) as s:
        with pytest.raises(RemoteProtocolError, match="no record at position"):
            await s.read(0, 5, pulled(records(0) + b"junk", 1), pulled(records(1), 5))


async def test_small_answers_are_joined_and_said_to_be_slow(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with scripted(tmp_path) as s:
        answers = [pulled(records(*range(at, at + 8)), at + 8) for at in range(0, 800, 8)]
        with caplog.at_level(logging.WARNING):
            assert await s.read(0, 800, *answers) == list(range(800))
        hints = [r for r in caplog.records if "maxTransferCountOnMessageInDisk" in r.getMessage()]
        assert len(hints) == 1


async def test_a_pull_waits_for_name_servers_and_brokers_that_are_away(tmp_path: Path) -> None:
    async with scripted(tmp_path) as s:
        began = s.clock.monotonic()
        shown: list[str] = []

        async def find(attempt: int) -> str:
            waited_s = s.clock.monotonic() - began
            if waited_s < 20:
                raise NoNameServerError("no name server responds")
            if waited_s < 40:
                return "127.0.0.1:9"  # nothing listens there
            assert attempt > 0
            return s.server.address

        terms = RangeTerms(patience_s=5, outage_s=60, on_outage=lambda e: shown.append(str(e)))
        assert await s.read(3, 5, pulled(records(3, 4), 5), find=find, terms=terms) == [3, 4]
        assert {"no name server responds"} < {*shown}

        async def never(attempt: int) -> str:
            raise NoNameServerError("no name server responds")

        began = s.clock.monotonic()
        with pytest.raises(NoNameServerError):
            await s.read(3, 5, find=never, terms=RangeTerms(patience_s=5))
        assert 3 < s.clock.monotonic() - began <= 6
