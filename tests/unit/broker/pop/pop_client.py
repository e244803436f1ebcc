"""A pop consumer of frames, on a whole broker in virtual time: pops, acks, handles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from skylark.testing.virtual_clock import START_MS
from skylark.wire.bodies.pop_body import BatchAckMessageRequestBody
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import encode_body
from skylark.wire.message import MessageRecord
from skylark.wire.pop_handle import (
    PopHandle,
    decode_handle,
    decode_message_offsets,
    decode_start_offsets,
    kind_of,
    real_topic,
)
from skylark.wire.properties import PROPERTY_POP_CK
from tests.unit.broker.stored import Stored, await_flushes, records_of, stored

GROUP = "g"
#: Runs a test with check-points that are written at once, and with check-points merged in memory.
MERGING = pytest.mark.parametrize("merge", ["false", "true"], ids=["written", "merged"])


class Popped(NamedTuple):
    """A message as a pop consumer has it."""

    record: MessageRecord
    handle: PopHandle

    @property
    def body(self) -> bytes:
        return self.record.body

    @property
    def offset(self) -> int:
        return self.record.queue_offset


class PopClient:
    """One group that pops a topic."""

    def __init__(self, world: Stored, topic: str = "T", group: str = GROUP) -> None:
        self.world = world
        self.topic = topic
        self.group = group

    def request(self, **changes: Any) -> dict[str, str]:
        fields: dict[str, Any] = {
            "consumerGroup": self.group,
            "topic": self.topic,
            "queueId": -1,
            "maxMsgNums": 32,
            "invisibleTime": 10_000,
            "pollTime": 0,
            "bornTime": self.world.clock.now_ms(),
            "initMode": 0,
            "expType": "TAG",
            "exp": "*",
            "order": "false",
        }
        fields.update(changes)
        return {name: str(value) for name, value in fields.items() if value is not None}

    async def answer(self, **changes: Any) -> Command:
        return await self.world.call(RequestCode.POP_MESSAGE, self.request(**changes))

    async def pop(self, **changes: Any) -> list[Popped]:
        """The messages of a pop that finds some, or none."""
        answer = await self.answer(**changes)
        assert answer.code in (0, 210), answer.remark
        return self.popped(answer)

    async def begin(self, **changes: Any) -> asyncio.Task[Command]:
        """A pop that is expected to wait; it is with the broker on return."""
        task = asyncio.create_task(self.answer(**{"pollTime": 15_000, **changes}))
        await self.world.clock.drain()
        return task

    def popped(self, answer: Command) -> list[Popped]:
        """Make receipt handles, as Java's client does."""
        ext = answer.ext or {}
        starts = decode_start_offsets(ext.get("startOffsetInfo"))
        offsets = decode_message_offsets(ext.get("msgOffsetInfo"))
        found = []
        for record in records_of(answer.body):
            text = record.properties.get(PROPERTY_POP_CK)
            if text is not None:
                found.append(Popped(record, decode_handle(text)))
                continue
            key = (kind_of(record.topic), record.queue_id)
            assert record.queue_offset in offsets[key]
            handle = PopHandle(
                starts[key],
                int(ext["popTime"]),
                int(ext["invisibleTime"]),
                int(ext["reviveQid"]),
                key[0],
                "broker-a",
                record.queue_id,
                record.queue_offset,
            )
            found.append(Popped(record, handle))
        return found

    def ack_request(self, message: Popped, **changes: Any) -> dict[str, str]:
        fields: dict[str, Any] = {
            "consumerGroup": self.group,
            "topic": real_topic(message.handle.kind, self.topic, self.group),
            "queueId": message.handle.queue_id,
            "extraInfo": str(message.handle),
            "offset": message.handle.queue_offset,
        }
        fields.update(changes)
        return {name: str(value) for name, value in fields.items() if value is not None}

    async def ack(self, message: Popped, **changes: Any) -> Command:
        return await self.world.call(RequestCode.ACK_MESSAGE, self.ack_request(message, **changes))

    async def ack_all(self, messages: list[Popped]) -> None:
        for message in messages:
            answer = await self.ack(message)
            assert (answer.code, answer.remark) == (0, None)

    async def batch_ack(self, body: BatchAckMessageRequestBody | None) -> Command:
        data = None if body is None else encode_body(body)
        return await self.world.call(RequestCode.BATCH_ACK_MESSAGE, None, data)

    async def change(self, message: Popped, invisible_ms: int, **changes: Any) -> Command:
        fields = self.ack_request(message, invisibleTime=invisible_ms, **changes)
        return await self.world.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, fields)

    def changed(self, message: Popped, answer: Command) -> Popped:
        """The message with its new handle."""
        ext = answer.ext or {}
        old = message.handle
        handle = PopHandle(
            old.queue_offset,
            int(ext["popTime"]),
            int(ext["invisibleTime"]),
            int(ext["reviveQid"]),
            old.kind,
            old.broker_name,
            old.queue_id,
            old.queue_offset,
        )
        return Popped(message.record, handle)

    def committed(self, queue_id: int = 0, topic: str | None = None) -> int:
        offsets = self.world.features.groups.offsets
        return offsets.get(self.group, topic or self.topic, queue_id)


@asynccontextmanager
async def popping(
    root: Path, queue_count: int = 1, *, start_ms: int = START_MS, **given: str
) -> AsyncIterator[PopClient]:
    """A broker with a topic T and a consumer of it; each pop reads the retries last."""
    settings = {"popFromRetryProbability": "0", **given}
    async with stored(root, None, (), start_ms, **settings) as world:
        await_flushes(world)  # tables are written when the log is on disk, and copies wait for them
        world.add_topic("T", queue_count)
        await world.clock.drain()  # merging begins when the offsets are saved
        yield PopClient(world)


async def fill(
    client: PopClient, count: int, queue_id: int = 0, properties: str = "", topic: str = "T"
) -> list[bytes]:
    """Send messages to a queue; their bodies."""
    bodies = [f"{queue_id}-{number}".encode() for number in range(count)]
    for body in bodies:
        answer = await client.world.send(topic, body, queue_id, properties)
        assert answer.code == 0
    return bodies
