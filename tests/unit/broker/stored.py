"""A whole broker with a real store, on a memory network and on virtual time, and a client of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from skylark.broker.api import ApiInterceptor
from skylark.broker.app import Broker, BrokerFeatures
from skylark.broker.base_features import BrokerContext
from skylark.broker.config import load_broker_config
from skylark.net.client import RemotingClient
from skylark.net.limits import NetLimits
from skylark.store.config_tables import TopicTable
from skylark.store.file_system import FileSystem
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import START_MS, VirtualClock
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import encode_body
from skylark.wire.message import MessageRecord, iter_records

CALL_TIMEOUT_S: Final = 1e6
SMALL_FILES: Final = {
    "mappedFileSizeCommitLog": str(8 << 20),
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
}
#: sysFlag of pulls: commit, may wait, brings its subscription
COMMIT, SUSPEND, OWN = 1, 2, 4


class Stored:
    """A broker that runs, and who talks to it."""

    def __init__(self, broker: Broker, clock: VirtualClock, network: MemoryNetwork) -> None:
        self.broker = broker
        self.clock = clock
        self.network = network
        limits = NetLimits(idle_timeout_s=1e9)
        self.client = RemotingClient(network, clock, limits=limits)

    @property
    def context(self) -> BrokerContext:
        return self.broker.context

    @property
    def features(self) -> BrokerFeatures:
        return self.broker.features

    @property
    def address(self) -> str:
        return str(self.broker.address)

    def add_topic(self, name: str, queue_count: int = 8, **fields: Any) -> None:
        config = TopicConfig(
            topic_name=name, read_queue_nums=queue_count, write_queue_nums=queue_count, **fields
        )
        self.features.topics.table.update(config)

    def load_topic(self, name: str, queue_count: int = 8, **fields: Any) -> None:
        """Have a topic as if it was in the table of another broker, with unsigned attributes."""
        config = TopicConfig(
            topic_name=name, read_queue_nums=queue_count, write_queue_nums=queue_count, **fields
        )
        self.features.topics.table.load(TopicTable(topic_config_table={name: config}))

    async def call(
        self, code: int, ext: dict[str, str] | None = None, body: bytes | None = None
    ) -> Command:
        request = Command(code=code, ext=ext, body=body)
        return await self.client.call(self.address, request, CALL_TIMEOUT_S)

    async def send(
        self,
        topic: str = "T",
        body: bytes = b"hello",
        queue_id: int = 0,
        properties: str = "",
        code: int = RequestCode.SEND_MESSAGE_V2,
        **ext: str,
    ) -> Command:
        fields = {
            "a": "pg", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0",
            "g": "1794710000000", "h": "0", "i": properties, **ext,
        }  # fmt: skip
        return await self.call(code, fields, body)

    def pull_request(self, offset: int = 0, **changes: Any) -> dict[str, str]:
        fields: dict[str, Any] = {
            "consumerGroup": "g",
            "topic": "T",
            "queueId": 0,
            "queueOffset": offset,
            "maxMsgNums": 32,
            "sysFlag": OWN,
            "commitOffset": 0,
            "suspendTimeoutMillis": 15_000,
            "subscription": "*",
            "subVersion": 0,
        }
        fields.update(changes)
        return {name: str(value) for name, value in fields.items()}

    async def pull(
        self, offset: int = 0, *, code: int = RequestCode.PULL_MESSAGE, **changes: Any
    ) -> Command:
        return await self.call(code, self.pull_request(offset, **changes))

    async def begin_pull(self, offset: int = 0, **changes: Any) -> asyncio.Task[Command]:
        """A pull that is expected to wait; it is with the broker on return."""
        task = asyncio.create_task(self.pull(offset, **{"sysFlag": OWN | SUSPEND, **changes}))
        await self.clock.drain()
        return task

    async def heartbeat(self, *subscriptions: SubscriptionData, group: str = "g") -> None:
        data = ConsumerData(
            group_name=group,
            consume_type=ConsumeType.CONSUME_PASSIVELY,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            subscription_data_set=list(subscriptions),
        )
        body = encode_body(HeartbeatData(client_id="c1", consumer_data_set=[data]))
        assert (await self.call(RequestCode.HEART_BEAT, {}, body)).code == 0

    def records(self, topic: str, queue_id: int = 0) -> list[MessageRecord]:
        """What a queue holds."""
        found: list[MessageRecord] = []
        offset = 0
        while True:
            result = self.features.store.reader.get(topic, queue_id, offset, 1_000, bulk=True)
            part = records_of(b"".join(result.views))
            result.release()
            if not part:
                return found
            found += part
            offset = result.next_offset


def await_flushes(world: Stored) -> None:
    """Let virtual time stand still while the log is being flushed, which takes real time."""
    flush = world.features.store._flush
    assert flush is not None
    world.clock.hold_while(lambda: flush._round is not None)


def records_of(body: bytes | None) -> list[MessageRecord]:
    return list(iter_records(body or b""))


def bodies_of(answer: Command) -> list[bytes]:
    return [record.body for record in records_of(answer.body)]


def texts(root: Path, **given: str) -> dict[str, str]:
    return {
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.2",
        "listenPort": "20911",
        "storePathRootDir": str(root / "store"),
        **SMALL_FILES,
        **given,
    }


async def in_place(function: Callable[..., None], /, *args: Any) -> None:
    function(*args)


@asynccontextmanager
async def stored(
    root: Path,
    files: FileSystem | None = None,
    api_interceptors: Iterable[ApiInterceptor] = (),
    start_ms: int = START_MS,
    /,
    **given: str,
) -> AsyncIterator[Stored]:
    """A broker from start to stop; settings by their Java names."""
    clock = VirtualClock(start_ms)
    network = MemoryNetwork(clock=clock)
    broker = Broker(
        load_broker_config(texts(root, **given)),
        network=network,
        clock=clock,
        files=files,
        in_thread=in_place,
        api_interceptors=api_interceptors,
    )
    await broker.start()
    forget = clock.on_advance(broker.clock_advanced)
    world = Stored(broker, clock, network)
    try:
        yield world
    finally:
        forget()
        await world.client.close()
        await broker.stop()
