"""The requests of pop consumers on real sockets, as Java's clients send them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark.core.clock import LoopClock
from skylark.net.client import RemotingClient
from skylark.wire.bodies.pop_body import BatchAck, BatchAckMessageRequestBody, encode_bit_set
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import encode_body
from skylark.wire.message import iter_records
from skylark.wire.pop_handle import decode_start_offsets
from tests.integration.broker.test_app import broker_of, running, send_request
from tests.support.broker_pairs import Pair, pair, until

OF_QUEUE = {"consumerGroup": "g", "topic": "T", "queueId": "-1"}


def pop_request(**changes: str) -> Command:
    ext = {
        **OF_QUEUE, "maxMsgNums": "32", "invisibleTime": "60000", "pollTime": "0", "bornTime": "0",
        "initMode": "0", "expType": "TAG", "exp": "*", "order": "false", **changes,
    }  # fmt: skip
    return Command(code=RequestCode.POP_MESSAGE, ext=ext)


async def fill(client: RemotingClient, address: str, count: int) -> None:
    for number in range(count):
        assert (await client.call(address, send_request(b"%d" % number))).code == 0


def bodies_of(answer: Command) -> list[bytes]:
    return [record.body for record in iter_records(answer.body or b"")]


@pytest.mark.spec("broker.13.19")
@pytest.mark.serves(
    RequestCode.POP_MESSAGE,
    RequestCode.PEEK_MESSAGE,
    RequestCode.NOTIFICATION,
    RequestCode.POLLING_INFO,
)
async def test_waiting_requests_are_counted_and_woken(tmp_path: Path) -> None:
    async with running(broker := broker_of(tmp_path)) as client:
        address = str(broker.address)
        await fill(client, address, 1)
        assert bodies_of(await client.call(address, pop_request())) == [b"0"]
        waiting = asyncio.create_task(client.call(address, pop_request(pollTime="15000"), 20.0))
        await asyncio.sleep(0)
        info = Command(code=RequestCode.POLLING_INFO, ext=dict(OF_QUEUE))
        answer = await client.call(address, info)
        assert (answer.code, answer.ext) == (0, {"pollingNum": "1"})
        await fill(client, address, 1)
        assert bodies_of(await waiting) == [b"0"]
        wanted = {**OF_QUEUE, "pollTime": "15000", "bornTime": "0"}
        notification = Command(code=RequestCode.NOTIFICATION, ext=wanted)
        notified = asyncio.create_task(client.call(address, notification, 20.0))
        await asyncio.sleep(0)
        await fill(client, address, 2)
        assert ((await notified).ext or {})["hasMsg"] == "true"
        peek = Command(code=RequestCode.PEEK_MESSAGE, ext={**OF_QUEUE, "maxMsgNums": "32"})
        assert bodies_of(await client.call(address, peek)) == [b"0", b"1"]
        assert bodies_of(await client.call(address, pop_request())) == [b"0", b"1"]
        assert (await client.call(address, pop_request())).code == 210
        refused = await client.call(str(broker.fast_address), pop_request())
        assert (refused.code, refused.remark) == (3, " request type 200050 not supported")


@pytest.mark.spec("remoting.10.26")
@pytest.mark.serves(RequestCode.BATCH_ACK_MESSAGE)
async def test_bits_name_the_messages_of_a_batch_ack(tmp_path: Path) -> None:
    async with running(broker := broker_of(tmp_path)) as client:
        address = str(broker.address)
        await fill(client, address, 12)
        popped = (await client.call(address, pop_request())).ext or {}
        assert decode_start_offsets(popped["startOffsetInfo"]) == {("0", 0): 0}
        ack = BatchAck(
            consumer_group="g",
            topic="T",
            start_offset=0,
            queue_id=0,
            revive_queue_id=int(popped["reviveQid"]),
            pop_time=int(popped["popTime"]),
            invisible_time=60_000,
            bit_set=encode_bit_set([0, 9]),
        )
        assert ack.bit_set == "AQI="
        body = BatchAckMessageRequestBody(broker_name="broker-a", acks=[ack])
        request = Command(code=RequestCode.BATCH_ACK_MESSAGE, body=encode_body(body))
        assert (await client.call(address, request)).code == 0
        assert broker.features.pop.state.in_flight("T", "g", 0) == 10


async def ack(place: Pair, popped: Command, queue_offset: int) -> None:
    """Acknowledge a message of a pop at the master."""
    ext = popped.ext or {}
    start = decode_start_offsets(ext["startOffsetInfo"])["0", 0]
    times = f"{ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']}"
    fields = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "0",
        "offset": str(queue_offset),
        "extraInfo": f"{start} {times} 0 broker-a 0 {queue_offset}",
    }
    assert (await place.call(place.master, RequestCode.ACK_MESSAGE, fields)).code == 0


@pytest.mark.parametrize(
    ("merge", "is_written", "expected"),
    [
        ("false", True, [b"1", b"3"]),
        ("true", True, [b"1", b"3"]),
        ("true", False, [b"0", b"1", b"2", b"3"]),  # check-point and acks were in memory only
    ],
    ids=["written", "merged", "in memory"],
)
async def test_a_slave_that_takes_over_delivers_what_was_not_acknowledged(
    tmp_path: Path, merge: str, is_written: bool, expected: list[bytes]
) -> None:
    async with pair(
        tmp_path,
        enablePopBufferMerge=merge,
        popCkStayBufferTime="10000" if is_written else "900000",
    ) as place:
        await place.start_master()
        await place.start_slave()
        for number in range(4):
            assert (await place.send(b"%d" % number)).code == 0
        request = pop_request(invisibleTime="6000" if is_written else "900000").ext
        popped = await place.call(place.master, RequestCode.POP_MESSAGE, request)
        assert bodies_of(popped) == [b"0", b"1", b"2", b"3"]
        for queue_offset in (0, 2):
            await ack(place, popped, queue_offset)
        state = place.master.features.pop.state
        await until(lambda: state.held_count == (0 if is_written else 1))
        await place.followed()
        for name in ("slave", "master"):
            await place.stop(name)
        (place.root / "master").rename(place.root / "old master")
        (place.root / "slave").rename(place.root / "master")
        await place.start_master()
        found: list[bytes] = []
        async with LoopClock().timeout(30.0):
            while len(found) < len(expected):
                request = pop_request(pollTime="5000", invisibleTime="60000").ext
                answer = await place.call(place.master, RequestCode.POP_MESSAGE, request)
                found += bodies_of(answer)
        assert found == expected
