"""Bad input to a whole broker, on real sockets and both loops.

Whatever comes, it is answered with a code and a remark, or its connection is closed; no answer and
no log line shows an exception of ours. Through all of it another client sends and pulls, and finds
every message it sent.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.core.clock import LoopClock
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.bodies.heartbeat import HeartbeatData, ProducerData
from skylark.wire.codes import CURRENT_VERSION, RequestCode
from skylark.wire.command import Command
from skylark.wire.command_codec import FRAME_SIZE_MAX
from skylark.wire.fastjson import encode_body
from skylark.wire.frame import encode_frame
from skylark.wire.message import iter_records
from tests.support.bad_requests import (
    bad_requests,
    binary_frame,
    is_left_undecided,
    json_frame,
    rows,
    send_fields,
)
from tests.support.loops import on_both_loops
from tests.support.namesrv_peers import RawPeer, open_peer, raw_peer
from tests.unit.broker.stored import texts

#: How an exception of Python would look at the start of a remark.
PYTHON_ERROR: Final = re.compile(r"\w*(Error|Exception|Iteration|Interrupt|Exit)\b")
WITNESSED: Final = "Witnessed"
#: Slower than this is not served.
SERVED_WITHIN_S: Final = 10.0


class Witness:
    """A client that is served all the time: sends, and pulls what it sent."""

    def __init__(self, peer: RawPeer) -> None:
        self._peer = peer
        self.round_count = 0

    async def run(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            await self.round()
            await LoopClock().sleep(0.002)

    async def round(self) -> None:
        body = b"%d" % self.round_count
        async with LoopClock().timeout(SERVED_WITHIN_S):
            sent = await self._peer.call(send(body=body, b=WITNESSED))
            assert sent.code == 0, sent
            assert (sent.ext or {})["queueOffset"] == body.decode()
            found = await self._peer.call(pull(self.round_count, topic=WITNESSED))
        assert [record.body for record in iter_records(found.body or b"")] == [body]
        self.round_count += 1


def send(*, body: bytes = b"x", **fields: str) -> Command:
    return Command(
        code=RequestCode.SEND_MESSAGE_V2,
        ext=send_fields(**fields),
        body=body,
        version=CURRENT_VERSION,
    )


def pull(offset: int = 0, **fields: str) -> Command:
    ext = {
        "consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "100",
        "subscription": "*", "subVersion": "0", **fields,
    }  # fmt: skip
    return Command(code=RequestCode.PULL_MESSAGE, ext=ext, version=CURRENT_VERSION)


@asynccontextmanager
async def attacked(root: Path, **given: str) -> AsyncIterator[Broker]:
    """A broker with a witness, who must have been served, and no error in the log."""
    errors = ErrorLog()
    logging.getLogger().addHandler(errors)
    settings = {"brokerIP1": "127.0.0.1", "listenPort": "0", **given}
    # A busy machine is no bad input.
    settings["brokerFastFailureEnable"] = "false"
    broker = Broker(load_broker_config(texts(root, **settings)))
    await broker.start()
    try:
        for name in ("T", WITNESSED):
            broker.features.topics.table.update(TopicConfig(topic_name=name))
        stop = asyncio.Event()
        async with raw_peer(broker.address) as peer:
            witness = Witness(peer)
            task = asyncio.create_task(witness.run(stop))
            try:
                yield broker
            finally:
                stop.set()
                await task
            await witness.round()
        assert witness.round_count > 1
    finally:
        await broker.stop()
        logging.getLogger().removeHandler(errors)
    assert errors.messages == []


class ErrorLog(logging.Handler):
    """Keeps what should not be there: errors, and whatever shows a stack."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.ERROR:
            self.messages.append(f"{record.getMessage()} {record.exc_info}")


async def exchange(peer: RawPeer, requests: list[Command]) -> dict[int, Command]:
    """Send all at once and collect the answers, until one more request is answered."""
    for opaque, request in enumerate(requests):
        request.opaque = opaque
    last = Command(code=RequestCode.GET_BROKER_RUNTIME_INFO, opaque=len(requests))
    answers: dict[int, Command] = {}

    async def collect() -> None:
        waited_for = {each.opaque for each in requests if not is_left_undecided(each)}
        while not (waited_for | {last.opaque}) <= answers.keys():
            command = await peer.receive()
            if command.is_response:
                answers[command.opaque] = command

    async with asyncio.TaskGroup() as group:  # who does not read is not read from
        group.create_task(collect())
        await peer.send_bytes(b"".join(map(encode_frame, [*requests, last])))
    return answers


def assert_plain(answer: Command, request: Command) -> None:
    remark = answer.remark or ""
    assert answer.code == 0 or remark, (request, answer)
    assert not PYTHON_ERROR.match(remark), (request, answer)


@on_both_loops
async def test_every_request_with_bad_fields_and_bodies(tmp_path: Path) -> None:
    rng = random.Random(5)
    refused = request_count = 0
    async with attacked(tmp_path) as broker:
        handled = broker.features.endpoint.server.dispatcher.codes
        for row in rows():
            assert row.code in handled
            broker.features.topics.table.update(TopicConfig(topic_name="T"))
            requests = list(bad_requests(row, rng))
            async with raw_peer(broker.address) as peer:
                answers = await exchange(peer, requests)
            for opaque, request in enumerate(requests):
                if opaque in answers:
                    assert_plain(answers[opaque], request)
                    refused += answers[opaque].code != 0
            request_count += len(requests)
    assert request_count > 5_000
    assert refused > request_count // 2


@on_both_loops
async def test_unknown_codes(tmp_path: Path) -> None:
    async with attacked(tmp_path) as broker, raw_peer(broker.address) as peer:
        for code in (-1, 0, 9, 9999, 2**31 - 1, -(2**31)):
            answer = await peer.call(Command(code=code, ext={"topic": "T"}, body=b"x"))
            assert (answer.code, answer.remark) == (3, f" request type {code} not supported")


ODD_HEADERS: Final[dict[str, tuple[Any, int | None]]] = {
    # name: (header, code of the answer or None where the connection is closed)
    "no object": (b"[]", None),
    "no JSON": (b"\xff\xfe{}", None),
    "nothing": (b"", None),
    "empty": ({}, 3),
    "code is text": ({"code": "x"}, None),
    "code is huge": ({"code": 10**30}, None),
    "flag out of range": ({"code": 310, "flag": 2**40}, None),
    "opaque is text": ({"code": 310, "opaque": "x"}, None),
    "fields are a list": ({"code": 310, "extFields": [1]}, None),
    "a field is a number": ({"code": 310, "extFields": send_fields(e=0)}, 0),
    "a field is null": ({"code": 310, "extFields": send_fields(e=None)}, 1),
    "half a character": ({"code": 310, "extFields": send_fields(b="\ud800")}, 13),
    "half a character in a property": ({"code": 310, "extFields": send_fields(i="\ud800")}, 0),
    "remark is an object": ({"code": 310, "remark": {}, "extFields": send_fields()}, 0),
    "language is a list": ({"code": 310, "language": [1], "extFields": send_fields()}, 0),
    "version is negative": ({"code": 310, "version": -1, "extFields": send_fields()}, 0),
}  # fmt: skip
BINARY_HEADERS: Final[dict[str, tuple[bytes, int | None]]] = {
    "topic is no UTF-8": (binary_frame(310, send_fields(b=b"\xff\xfe")), 29),
    "properties are no UTF-8": (binary_frame(310, send_fields(i=b"k\x01\xff\x02")), 0),
    "half a character": (binary_frame(310, send_fields(i=b"k\x01\xed\xa0\x80\x02")), 0),
    "a topic of a megabyte": (binary_frame(310, send_fields(b="x" * (1 << 20))), 29),
    "a topic that would grow": (binary_frame(310, send_fields(b=b"\0" * 4_000_000)), 29),
    "a group of a megabyte": (binary_frame(38, {"consumerGroup": "g" * (1 << 20)}), 1),
    "a key of a megabyte": (
        binary_frame(
            12,
            {"topic": "T", "key": "k" * (1 << 20), "maxNum": "9", "beginTimestamp": "0",
             "endTimestamp": "9999999999999"},
        ),
        22,
    ),
    "a filter of a megabyte": (
        binary_frame(11, {**(pull().ext or {}), "subscription": "a||" * (1 << 19)}), 23,
    ),
}  # fmt: skip


@on_both_loops
async def test_odd_headers_and_names(tmp_path: Path) -> None:
    cases = {name: (json_frame(header), code) for name, (header, code) in ODD_HEADERS.items()}
    async with attacked(tmp_path) as broker:
        for name, (frame, code) in (cases | BINARY_HEADERS).items():
            async with raw_peer(broker.address) as peer:
                await peer.send_bytes(frame)
                if code is None:
                    assert await peer.is_at_end(), name
                    continue
                answer = await peer.receive()
                assert answer.code == code, (name, answer)
                assert len(answer.remark or "") < 20_000


@on_both_loops
async def test_half_a_character_is_answered_and_the_other_requests_too(tmp_path: Path) -> None:
    async with attacked(tmp_path) as broker, raw_peer(broker.address) as peer:
        texts = ["fine", "\ud800", "fine again", "k\x01\udc00\x02"]
        headers = [
            {"code": 310, "opaque": number, "extFields": send_fields(i=text)}
            for number, text in enumerate(texts)
        ]
        await peer.send_bytes(b"".join(map(json_frame, headers)))
        answers = [await peer.receive() for _ in headers]
        assert [(answer.opaque, answer.code) for answer in answers] == [
            (number, 0) for number in range(4)
        ]
        found = await peer.call(pull())
        records = [record.properties for record in iter_records(found.body or b"")]
        assert records[3]["k"] == "?", "as Java stores it"


PROPERTIES: Final[dict[str, tuple[str, int]]] = {
    "separators only": ("\x01\x02\x01\x02\x02\x01", 0),
    "no value": ("k\x01\x02novalue\x02\x01x\x02", 0),
    "NUL": ("\0\x01\0\x02", 0),
    "one name many times": ("k\x01v\x02" * 5_000, 0),
    "too long": ("k\x01" + "v" * 32_766, 13),
    "a megabyte": ("k\x01" + "v" * (1 << 20), 13),
    "many keys": ("KEYS\x01" + "k " * 5_000 + "\x02", 0),
    "a long tag": ("TAGS\x01" + "t" * 20_000 + "\x02", 0),
    "a long id": ("UNIQ_KEY\x01" + "u" * 20_000 + "\x02", 0),
    "delay is no number": ("DELAY\x01abc\x02", 1),
    "delay is negative": ("DELAY\x01-5\x02", 0),
    "delay is huge": ("DELAY\x01" + "9" * 30 + "\x02", 1),
    "time is no number": ("TIMER_DELIVER_MS\x01abc\x02", 13),
    "time is long ago": ("TIMER_DELIVER_MS\x01-1\x02", 0),
    "time is never": ("TIMER_DELAY_SEC\x01" + "9" * 30 + "\x02", 13),
    "half message of nobody": ("TRAN_MSG\x01true\x02PGROUP\x01\x02", 0),
    "names of the broker": ("REAL_TOPIC\x01../x\x02REAL_QID\x01z\x02", 0),
    "inner batch": ("INNER_NUM\x01z\x02INNER_BASE\x01z\x02", 13),
    "counts are no numbers": ("RECONSUME_TIME\x01x\x02MAX_RECONSUME_TIMES\x01y\x02", 0),
    "a checksum of ours": ("__CRC32#\x010\x02", 0),
}


@on_both_loops
async def test_hostile_properties(tmp_path: Path) -> None:
    async with attacked(tmp_path) as broker, raw_peer(broker.address) as peer:
        for name, (properties, code) in PROPERTIES.items():
            answer = await peer.call(send(i=properties, body=name.encode()))
            assert answer.code == code, (name, answer)
            assert_plain(answer, Command())
            batch = Command(code=320, ext=send_fields(i=properties, m="true"), body=b"\0" * 20)
            assert (await peer.call(batch)).code == 1
        found: list[str] = []
        while True:
            answer = await peer.call(pull(len(found)))
            if answer.code != 0:
                break
            found += [record.body.decode() for record in iter_records(answer.body or b"")]
    elsewhere = {"half message of nobody"}
    taken = {name for name, (_, code) in PROPERTIES.items() if code == 0}
    assert found == [name for name in PROPERTIES if name in taken - elsewhere]


@on_both_loops
async def test_what_is_too_large(tmp_path: Path) -> None:
    async with attacked(tmp_path, maxMessageSize="1000000") as broker:
        async with raw_peer(broker.address) as peer:
            answer = await peer.call(send(body=b"x" * 1_000_001))
            assert answer.code == 13
            assert (await peer.call(send(body=b"x" * 1_000_000))).code == 0
        async with raw_peer(broker.address) as peer:
            await peer.send_bytes(struct.pack(">iI", FRAME_SIZE_MAX, 10))
            assert await peer.is_at_end()
        for length, header_size in ((-1, 0), (3, 0), (100, 200), (10, 0x0200_0000)):
            async with raw_peer(broker.address) as peer:
                await peer.send_bytes(struct.pack(">iI", length, header_size) + b"{}" * 50)
                assert await peer.is_at_end()


@on_both_loops
async def test_a_client_that_never_reads(tmp_path: Path) -> None:
    async with attacked(tmp_path, writeBufferSizeMax=str(4 << 20)) as broker:
        reader, writer = await asyncio.open_connection(*broker.address, limit=1)
        async with raw_peer(broker.address) as peer:
            for _ in range(4):
                assert (await peer.call(send(body=b"x" * 200_000))).code == 0
        deaf = encode_frame(pull())
        for _ in range(2_000):
            writer.write(deaf)
        # What it asked for is 1.6 GB; what is held for it stays within a few answers.
        async with LoopClock().timeout(10):
            while broker.features.endpoint.held_size() < 1_000_000:
                await LoopClock().sleep(0.01)
        for _ in range(20):
            await LoopClock().sleep(0.01)
            assert broker.features.endpoint.held_size() < 32 << 20
        assert not reader.at_eof()
        writer.transport.abort()


@on_both_loops
async def test_requests_that_are_held_are_counted_with_their_headers(tmp_path: Path) -> None:
    """A pull may be held for long, with fields that nobody reads."""
    waiting = pull(sysFlag="6", suspendTimeoutMillis="60000", unknown="x" * 1_000_000)
    async with attacked(tmp_path) as broker:
        _, writer = await asyncio.open_connection(*broker.address)
        for opaque in range(60):
            waiting.opaque = opaque
            writer.write(encode_frame(waiting))
        async with LoopClock().timeout(10):
            while broker.features.endpoint.held_size() < 30 << 20:
                await LoopClock().sleep(0.01)
        async with raw_peer(broker.address) as peer:
            for _ in range(20):  # so often did the broker look at its sockets again
                await peer.call(Command(code=28, ext={}))
        assert len(broker.features.pull.service.held) < 40, "the others stay with the client"
        writer.transport.abort()


@on_both_loops
async def test_heartbeats_with_hostile_names(tmp_path: Path) -> None:
    groups = ["", "p" * (1 << 20), "a b", "../x", "\0", "p"]
    async with attacked(tmp_path) as broker, raw_peer(broker.address) as peer:
        data = HeartbeatData(
            client_id="c" * 100_000,
            producer_data_set=[ProducerData(group_name=name) for name in groups],
        )
        answer = await peer.call(Command(code=34, ext={}, body=encode_body(data)))
        assert answer.code == 0
        assert broker.features.groups.producers.connection_list("p") is not None
        assert broker.features.groups.producers.connection_list("p" * (1 << 20)) is None


@on_both_loops
async def test_more_connections_than_allowed(tmp_path: Path) -> None:
    async with attacked(tmp_path, connectionCountMax="2000") as broker:
        allowed = [await open_peer(broker.address) for _ in range(1_999)]  # and the witness
        refused = [await open_peer(broker.address) for _ in range(100)]
        for peer in refused:
            assert await peer.is_at_end()
        for peer in allowed[::500]:
            assert (await peer.call(send())).code == 0
        await allowed.pop().close()
        async with LoopClock().timeout(10):
            while len(broker.features.endpoint.server.connections) == 2_000:
                await LoopClock().sleep(0.01)
        async with raw_peer(broker.address) as peer:
            assert (await peer.call(send())).code == 0
        for peer in allowed + refused:
            await peer.close()


def test_every_request_of_brokers_has_cases() -> None:
    names = {row.name for row in rows()}
    assert {"SEND_MESSAGE", "PULL_MESSAGE", "HEART_BEAT", "INVOKE_BROKER_TO_RESET_OFFSET"} <= names
    assert "REGISTER_BROKER" not in names
    assert len(names) == 114


@pytest.mark.parametrize("code", [310, 11])
def test_the_cases_are_what_they_say(code: int) -> None:
    row = next(row for row in rows() if row.code == code)
    requests = list(bad_requests(row, random.Random(1)))
    assert requests[0].ext is None
    assert sum(request.ext == {} for request in requests) > 10
    assert len({str(request.ext) for request in requests}) > 100
