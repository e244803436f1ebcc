"""Request-reply: the reply that a requester gets, what the replier hears, and what is stored."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.wire.bodies.heartbeat import HeartbeatData, ProducerData
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import encode_body
from skylark.wire.frame import decode_frame
from skylark.wire.properties import parse_properties
from tests.unit.broker.stored import CALL_TIMEOUT_S, Stored, stored

FRAMES: Final = Path(__file__).parents[3] / "golden" / "data" / "frames" / "request-reply.jsonl"
EXT: Final = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
TOPIC: Final = "DefaultCluster_REPLY_TOPIC"
REQUESTER: Final = "127.0.0.1@golden_request_pg"
PROPERTIES: Final = f"REPLY_TO_CLIENT\x01{REQUESTER}\x02CORRELATION_ID\x01c1\x02UNIQ_KEY\x01U\x02"


class Requester:
    """A client that waits for replies."""

    def __init__(self, world: Stored) -> None:
        self.replies: list[Command] = []
        self.code = ResponseCode.SUCCESS
        self.gate = asyncio.Event()
        self.gate.set()
        dispatcher = Dispatcher()
        dispatcher.add_cold(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, self._take)
        self.client = RemotingClient(world.network, world.clock, dispatcher=dispatcher)

    async def _take(self, _connection: Connection, request: Command) -> Command:
        self.replies.append(request)
        await self.gate.wait()
        return response_to(request, self.code, None if self.code == 0 else "no such request")


@asynccontextmanager
async def requester_of(world: Stored) -> AsyncIterator[Requester]:
    """A requester that has sent its heartbeat."""
    requester = Requester(world)
    heartbeat = HeartbeatData(
        client_id=REQUESTER, producer_data_set=[ProducerData(group_name="golden_request_pg")]
    )
    request = Command(code=RequestCode.HEART_BEAT, ext={}, body=encode_body(heartbeat))
    assert (await requester.client.call(world.address, request, CALL_TIMEOUT_S)).code == 0
    try:
        yield requester
    finally:
        await requester.client.close()


async def reply(world: Stored, body: bytes = b"answer", **changes: Any) -> Command:
    arguments: dict[str, Any] = {
        "properties": PROPERTIES,
        "code": RequestCode.SEND_REPLY_MESSAGE_V2,
        **changes,
    }
    return await world.send(TOPIC, body, **arguments)


def recorded(code: int, *, response: bool) -> Command:
    lines = map(json.loads, FRAMES.read_text().splitlines())
    (line,) = [
        line
        for line in lines
        if line.get("request_code" if response else "code") == code and line["response"] is response
    ]
    return decode_frame(base64.b64decode(line["raw"]))


async def test_the_recorded_reply_is_delivered_as_recorded(tmp_path: Path) -> None:
    async with stored(tmp_path) as world, requester_of(world) as requester:
        answer = await world.client.call(
            world.address, recorded(325, response=False), CALL_TIMEOUT_S
        )
        theirs = recorded(325, response=True)
        assert (answer.code, answer.remark) == (theirs.code, theirs.remark) == (0, None)
        assert (answer.ext or {}).keys() == (theirs.ext or {}).keys()
        (pushed,), expected = requester.replies, recorded(326, response=False)
        ours_ext, theirs_ext = dict(pushed.ext or {}), dict(expected.ext or {})
        assert parse_properties(ours_ext.pop("properties")).keys() == (
            parse_properties(theirs_ext.pop("properties")).keys()
        )
        for name in ("bornHost", "storeTimestamp"):  # the port of the client, the time
            ours_ext.pop(name)
            theirs_ext.pop(name)
        assert ours_ext == theirs_ext
        assert (pushed.code, pushed.body, pushed.version, pushed.language) == (
            expected.code, expected.body, expected.version, expected.language,
        )  # fmt: skip


@pytest.mark.spec("broker.13.24")
async def test_a_reply_reaches_the_client_that_waits(tmp_path: Path) -> None:
    async with stored(tmp_path) as world, requester_of(world) as requester:
        answer = await reply(world)
        (record,) = world.records(TOPIC)
        assert answer.ext == {**EXT, "msgId": record.offset_id, "queueId": "0", "queueOffset": "0"}
        assert (answer.code, answer.remark) == (0, None)
        (pushed,) = requester.replies
        assert pushed.ext is not None
        now = str(world.clock.now_ms())
        assert parse_properties(pushed.ext["properties"]) == {
            **parse_properties(PROPERTIES), **EXT, "PUSH_REPLY_TIME": now,
        }  # fmt: skip
        assert pushed.ext["storeTimestamp"] == now
        assert pushed.ext["storeHost"] == "127.0.0.2:20911"
        # What is stored is what was sent.
        assert record.properties == {**parse_properties(PROPERTIES), **EXT}
        assert (record.body, record.born_timestamp) == (b"answer", 1_794_710_000_000)
        assert world.features.stats.broker_stats.topic_puts[TOPIC].count == 1


@pytest.mark.spec("broker.13.24")
async def test_a_reply_to_nobody_is_stored(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        answer = await reply(world)
        (record,) = world.records(TOPIC)
        assert answer.code == 1
        assert answer.remark == (
            f"push reply message fail, channel of <{REQUESTER}> not found.: the requester is gone,"
            " or does not send heartbeats to this broker"
        )
        assert answer.ext == {**EXT, "msgId": record.offset_id, "queueId": "0", "queueOffset": "0"}
        nameless = await reply(world, properties="UNIQ_KEY\x01U\x02")
        assert nameless.code == 1
        assert (nameless.remark or "").startswith(
            "reply message properties[REPLY_TO_CLIENT] is null"
        )
        assert len(world.records(TOPIC)) == 2


async def test_the_long_names_do_the_same(tmp_path: Path) -> None:
    async with stored(tmp_path) as world, requester_of(world) as requester:
        ext = {
            "producerGroup": "pg", "topic": TOPIC, "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0",
            "bornTimestamp": "1", "flag": "0", "properties": PROPERTIES,
        }  # fmt: skip
        assert (await world.call(RequestCode.SEND_REPLY_MESSAGE, ext, b"x")).code == 0
        assert [pushed.body for pushed in requester.replies] == [b"x"]


async def test_replies_need_not_be_stored(tmp_path: Path) -> None:
    async with (
        stored(tmp_path, storeReplyMessageEnable="false") as world,
        requester_of(world) as requester,
    ):
        answer = await reply(world)
        assert answer.ext == {**EXT, "msgId": "0", "queueId": "0", "queueOffset": "0"}
        requester.code = ResponseCode.SYSTEM_ERROR
        refused = await reply(world)
        assert (refused.code, refused.ext) == (1, EXT)
        assert refused.remark == (
            f"push reply message to {REQUESTER}fail.: the requester answered 1 no such request"
        )
        assert world.records(TOPIC) == []


async def test_a_requester_that_does_not_answer_delays_nobody_else(tmp_path: Path) -> None:
    async with stored(tmp_path) as world, requester_of(world) as requester:
        requester.gate.clear()
        waiting = asyncio.create_task(reply(world))
        await world.clock.drain()
        assert len(requester.replies) == 1
        assert (await world.send()).code == 0  # on the same connection
        await world.clock.advance(9.9)
        assert not waiting.done()
        await world.clock.advance(0.2)
        answer = await waiting
        assert answer.code == 1
        assert (answer.remark or "").startswith(
            f"push reply message to {REQUESTER}fail.: no answer"
        )
        assert len(world.records(TOPIC)) == 1
        requester.gate.set()


async def test_a_requester_that_goes_away_meanwhile(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        async with requester_of(world) as requester:
            requester.gate.clear()
            waiting = asyncio.create_task(reply(world))
            await world.clock.drain()
        answer = await waiting
        assert answer.code == 1
        requester.gate.set()


async def test_the_checks_are_those_of_sends(tmp_path: Path) -> None:
    async with stored(tmp_path) as world, requester_of(world) as requester:
        for answer, code in (
            (await reply(world, queue_id=1), 29),
            (await reply(world, body=b""), 13),
        ):
            assert (answer.code, answer.ext) == (code, EXT)
        assert (await reply(world, h="abc")).ext is None
        assert requester.replies == []
        assert world.records(TOPIC) == []


async def test_only_flags_of_the_body_are_stored(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await reply(world, f=str(1 | 4 | 1 << 8))
        assert [record.sys_flag for record in world.records(TOPIC)] == [1 | 1 << 8]


async def test_a_delayed_reply_is_pushed_at_once_and_stored_later(tmp_path: Path) -> None:
    async with stored(tmp_path) as world, requester_of(world) as requester:
        for level, count in (("3", 1), ("soon", 1)):  # what cannot be stored is delivered
            answer = await reply(world, properties=f"{PROPERTIES}DELAY\x01{level}\x02")
            assert answer.code == 0
            assert len(world.records("SCHEDULE_TOPIC_XXXX", 2)) == count
        assert (answer.ext or {})["msgId"] == "0"
        assert len(requester.replies) == 2


async def test_with_sync_flush_the_answer_waits_for_the_disk(tmp_path: Path) -> None:
    async with stored(tmp_path, flushDiskType="SYNC_FLUSH") as world:
        assert (await reply(world)).code == 1
        log = world.features.store.log
        assert log.files.flushed_where == log.max_offset > 0
