"""A real name server and broker for tests of pull consumers, and a way to put messages there."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.client.consumer.classic_pull_consumer import PullConsumer
from skylark.client.consumer.lite_pull.lite_pull_consumer import LitePullConsumer
from skylark.client.core.broker_calls import open_caller
from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.client_runtime import ClientRuntime, inline_runtime
from skylark.client.core.instance_registry import instance_count
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from skylark.net.client import RemotingClient
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.batch import BatchMessage, encode_batch
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fields import encode_ext
from skylark.wire.headers.send import SendMessageRequestHeaderV2
from skylark.wire.properties import encode_properties
from tests.unit.client.worlds import SMALL_FILES, World, world

T = TypeVar("T")
BROKER = "broker-a"


def queue(queue_id: int = 0, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=BROKER, queue_id=queue_id)


def bodies(messages: list[MessageExt]) -> list[bytes]:
    return [message.body for message in messages]


class PullWorld:
    """One broker with topic T; consumers are made with :meth:`lite` and :meth:`classic`."""

    def __init__(self, w: World) -> None:
        self.world = w
        self._client = RemotingClient(w.network, w.clock)

    @property
    def clock(self) -> VirtualClock:
        return self.world.clock

    @property
    def runtime(self) -> ClientRuntime:
        return inline_runtime(self.world.network, self.clock)

    @property
    def address(self) -> str:
        return str(self.world.brokers[BROKER].address)

    def options(self, **given: Any) -> ClientOptions:
        return self.world.options(**given)

    async def finish(self, work: Awaitable[T]) -> T:
        return await self.world.finish(work)

    async def until(self, is_so: Callable[[], bool], step_s: float = 0.5) -> None:
        """Let time pass until something has happened."""
        for _ in range(200):
            await self.clock.drain()
            if is_so():
                return
            await self.clock.advance(seconds=step_s)
        raise AssertionError("it did not happen within 100 seconds")

    async def send(
        self,
        *contents: bytes,
        queue_id: int = 0,
        topic: str = "T",
        sys_flag: int = 0,
        flag: int = 0,
        batch: bool = False,
        **properties: str,
    ) -> None:
        """Put messages into a queue, one after the other."""
        for body in contents:
            header = SendMessageRequestHeaderV2(
                producer_group="p",
                topic=topic,
                default_topic="TBW102",
                default_topic_queue_nums=4,
                queue_id=queue_id,
                sys_flag=sys_flag,
                born_timestamp=self.clock.now_ms(),
                flag=flag,
                properties=encode_properties(properties),
                batch=batch,
            )
            request = Command(code=RequestCode.SEND_MESSAGE_V2, ext=encode_ext(header), body=body)
            answer = await self.finish(self._client.call(self.address, request))
            assert answer.code == 0, answer.remark

    async def ask(self, code: int, **ext: str) -> Command:
        """What the broker answers to a request."""
        return await self.finish(self._client.call(self.address, Command(code=code, ext=ext)))

    async def committed(self, group: str, queue_id: int = 0, topic: str = "T") -> int:
        """What the broker knows, -1 if nothing."""
        broker = self.world.brokers[BROKER]
        await self.clock.drain()
        return broker.features.groups.offsets.get(group, topic, queue_id)

    @asynccontextmanager
    async def lite(
        self, group: str = "g", options: ClientOptions | None = None, **settings: Any
    ) -> AsyncIterator[LitePullConsumer]:
        """A consumer that is stopped at the end, if it was started."""
        consumer = LitePullConsumer(
            group, options or self.options(), runtime=self.runtime, **settings
        )
        try:
            yield consumer
        finally:
            await self.finish(consumer.stop())

    @asynccontextmanager
    async def classic(
        self, group: str = "g", options: ClientOptions | None = None, **settings: Any
    ) -> AsyncIterator[PullConsumer]:
        """A consumer that is stopped at the end, if it was started."""
        consumer = PullConsumer(group, options or self.options(), runtime=self.runtime, **settings)
        try:
            yield consumer
        finally:
            await self.finish(consumer.stop())

    async def close(self) -> None:
        await self._client.close()


@asynccontextmanager
async def pull_world(
    root: Path, *, queue_count: int = 1, topic: str = "T", **broker: str
) -> AsyncIterator[PullWorld]:
    """A broker with one topic; at the end nothing may be left of any consumer."""
    async with world(root) as w:
        await w.add_name_server()
        await w.add_broker(BROKER, 20911, **broker)
        await w.add_topic(topic, queue_count)
        made = PullWorld(w)
        try:
            yield made
        finally:
            await made.close()
            await asyncio.sleep(0)
        assert instance_count() == 0


async def polled(w: PullWorld, consumer: LitePullConsumer, count: int) -> list[MessageExt]:
    """The next ``count`` messages."""
    found: list[MessageExt] = []
    while len(found) < count:
        batch = await w.finish(consumer.poll(10))
        assert batch, f"{len(found)} of {count} messages came"
        found += batch
    return found


# ---- servers on TCP, in a thread of their own ----------------------------------------------------


class ServerAddresses(msgspec.Struct):
    """Where they listen."""

    namesrv: str
    broker: str

    def send(self, *contents: bytes, queue_id: int = 0) -> None:
        """Put messages into a queue of topic T, which is made by the first; blocks."""
        ext = {"a": "p", "b": "T", "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0"}
        ext |= {"g": "1", "h": "0", "i": "", "m": "true"}
        batch = encode_batch([BatchMessage(body) for body in contents])

        async def work() -> None:
            async with open_caller() as caller:
                request = Command(code=RequestCode.SEND_BATCH_MESSAGE, ext=ext, body=batch)
                answer = await caller.call(self.broker, request, 10)
                assert answer.code == 0, answer.remark

        asyncio.run(work())


@contextmanager
def served(root: Path) -> Iterator[ServerAddresses]:
    """A name server and a broker that go on while the test blocks."""
    found: list[ServerAddresses] = []
    stops: list[Callable[[], object]] = []
    ready = threading.Event()

    async def serve() -> None:
        done, loop = asyncio.Event(), asyncio.get_running_loop()
        stops.append(lambda: loop.call_soon_threadsafe(done.set))
        name_server = NameServer(NamesrvConfig(listen_port=0))
        await name_server.start()
        config = {
            "brokerName": BROKER,
            "brokerIP1": "127.0.0.1",
            "listenPort": "0",
            "storePathRootDir": str(root / BROKER),
            "namesrvAddr": str(name_server.address),
            **SMALL_FILES,
        }
        broker = Broker(load_broker_config(config))
        await broker.start()
        found.append(ServerAddresses(str(name_server.address), str(broker.address)))
        ready.set()
        await done.wait()
        await broker.stop()
        await name_server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert ready.wait(20)
        yield found[0]
    finally:
        stops[0]()
        thread.join(20)
