"""Helpers for transaction tests: a producer that sends, decides and gets check-backs; crashes."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.broker.transaction.half_message import Half, read_half
from skylark.broker.transaction.transaction_service import TransactionService
from skylark.core.hashing import decode_offset_id
from skylark.net.client import RemotingClient
from skylark.net.dispatch import Dispatcher
from skylark.net.limits import NetLimits
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import START_MS, VirtualClock
from skylark.wire.bodies.heartbeat import HeartbeatData, ProducerData
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import encode_body
from skylark.wire.message import MessageRecord, decode_record, encode_record
from skylark.wire.properties import encode_properties
from tests.unit.broker.stored import CALL_TIMEOUT_S, Stored, in_place, texts

HALF: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
GROUP: Final = "CID_RMQ_SYS_TRANS"
COMMIT, ROLLBACK, UNKNOWN = 8, 12, 0


def half_record(offset: int = 7, *, log_offset: int = 1_000, **changes: Any) -> MessageRecord:
    """A record of the half queue; changes of properties by their names, of the rest by field."""
    fields: dict[str, Any] = {"store_timestamp": START_MS, "born_timestamp": START_MS}
    properties = {
        "TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": f"U{offset}", "WAIT": "true",
        "REAL_TOPIC": "T", "REAL_QID": "3",
    }  # fmt: skip
    for name, value in changes.items():
        if name.isupper():
            properties[name] = value
        else:
            fields[name] = value
    properties = {name: value for name, value in properties.items() if value is not None}
    raw = encode_record(
        fields.pop("topic", HALF),
        fields.pop("body", b"half"),
        encode_properties(properties).encode(),
        queue_offset=offset,
        log_offset=log_offset,
        **fields,
    )
    return decode_record(raw)


def half_of(offset: int = 7, **changes: Any) -> Half:
    half = read_half(half_record(offset, **changes))
    assert half is not None
    return half


class Sent(msgspec.Struct, frozen=True):
    """What a producer knows about a half message: enough to decide about it."""

    log_offset: int
    queue_offset: int
    unique_id: str


class Producer:
    """A client of a producer group."""

    def __init__(self, world: Stored, group: str = "pg") -> None:
        self.world = world
        self.group = group
        self.check_backs: list[Command] = []
        dispatcher = Dispatcher()
        dispatcher.add_hot(RequestCode.CHECK_TRANSACTION_STATE, self._checked)
        limits = NetLimits(idle_timeout_s=1e9)
        self.client = RemotingClient(
            world.network, world.clock, dispatcher=dispatcher, limits=limits
        )

    def _checked(self, _connection: object, request: Command) -> None:
        self.check_backs.append(request)

    async def join(self) -> None:
        data = HeartbeatData(
            client_id=f"{self.group}@1", producer_data_set=[ProducerData(group_name=self.group)]
        )
        assert (await self._call(RequestCode.HEART_BEAT, {}, encode_body(data))).code == 0

    async def send(self, unique_id: str, topic: str = "T", body: bytes = b"x", **more: str) -> Sent:
        """Send a half message; further properties by name."""
        properties = {"TRAN_MSG": "true", "PGROUP": self.group, "UNIQ_KEY": unique_id, **more}
        ext = {
            "a": self.group, "b": topic, "c": "TBW102", "d": "4", "e": "1", "f": "4",
            "g": str(self.world.clock.now_ms()), "h": "0", "i": encode_properties(properties),
        }  # fmt: skip
        answer = await self._call(RequestCode.SEND_MESSAGE_V2, ext, body)
        assert (answer.code, answer.remark) == (0, None)
        assert answer.ext is not None
        assert answer.ext["transactionId"] == unique_id
        assert answer.ext["queueId"] == "1"
        log_offset = decode_offset_id(answer.ext["msgId"]).log_offset
        return Sent(log_offset, int(answer.ext["queueOffset"]), unique_id)

    async def end(
        self, sent: Sent, decision: int = COMMIT, *, check: bool = False, **changes: str
    ) -> Command:
        """Decide, and wait for the answer."""
        return await self._call(
            RequestCode.END_TRANSACTION, self.decision(sent, decision, check=check, **changes)
        )

    async def end_oneway(self, sent: Sent, decision: int = COMMIT) -> None:
        """Decide as Java's clients do."""
        request = Command(code=RequestCode.END_TRANSACTION, ext=self.decision(sent, decision))
        await self.client.oneway(self.world.address, request)
        await self.world.clock.drain()

    def decision(
        self, sent: Sent, decision: int, *, check: bool = False, **changes: str
    ) -> dict[str, str]:
        return {
            "producerGroup": self.group,
            "tranStateTableOffset": str(sent.queue_offset),
            "commitLogOffset": str(sent.log_offset),
            "commitOrRollback": str(decision),
            "fromTransactionCheck": str(check).lower(),
            "msgId": sent.unique_id,
            "transactionId": sent.unique_id,
            **changes,
        }

    def checked(self, index: int = -1) -> Sent:
        """The half message that a check-back names."""
        ext = self.check_backs[index].ext or {}
        return Sent(
            int(ext["commitLogOffset"]), int(ext["tranStateTableOffset"]), ext["transactionId"]
        )

    async def _call(self, code: int, ext: dict[str, str], body: bytes | None = None) -> Command:
        request = Command(code=code, ext=ext, body=body)
        return await self.client.call(self.world.address, request, CALL_TIMEOUT_S)


class Shop(Stored):
    """A broker, and a producer that has joined it."""

    producer: Producer

    @property
    def transactions(self) -> TransactionService:
        return self.features.transaction.service

    def bodies(self, topic: str = "T", queue_id: int = 1) -> list[bytes]:
        return [record.body for record in self.records(topic, queue_id)]

    def op_bodies(self) -> list[bytes]:
        return self.bodies(OP, 0)

    def position(self) -> tuple[int, int]:
        """What is committed: the place in the half queue, and in the op queue."""
        offsets = self.features.groups.offsets
        return offsets.get(GROUP, HALF, 0), offsets.get(GROUP, OP, 0)

    async def flushed(self) -> None:
        """Advance until the log is on disk; a thread does it, so real time passes."""
        files = self.features.store.log.files
        async with asyncio.timeout(10):
            while files.flushed_where < self.features.store.log.max_offset:
                await self.clock.advance(seconds=1)
                await asyncio.sleep(0.001)

    async def rounds(self, count: int = 1, seconds: float = 30) -> None:
        for _ in range(count):
            await self.clock.advance(seconds=seconds)


@asynccontextmanager
async def shop(root: Path, *, start_ms: int = START_MS, **given: str) -> AsyncIterator[Shop]:
    """A broker from start to stop, from some time on; settings by their Java names."""
    clock = VirtualClock(start_ms)
    network = MemoryNetwork(clock=clock)
    broker = Broker(
        load_broker_config(texts(root, **given)), network=network, clock=clock, in_thread=in_place
    )
    await broker.start()
    forget = clock.on_advance(broker.clock_advanced)
    world = Shop(broker, clock, network)
    world.producer = Producer(world)
    try:
        await world.producer.join()
        yield world
    finally:
        forget()
        await world.producer.client.close()
        await world.client.close()
        await broker.stop()


def killed(world: Shop, root: Path) -> Path:
    """What ``kill -9`` would leave at this moment, under another root."""
    source = world.features.store.config.store_path_root_dir
    shutil.copytree(source, root / "store")
    return root
