"""A producer between a scripted name server and scripted brokers, or in a real cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from skylark.client.core.client_message import Message
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.client_runtime import ClientRuntime, inline_runtime
from skylark.client.producer.producer import Producer
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from skylark.wire.message import MessageRecord, iter_records
from skylark.wire.properties import parse_properties
from tests.unit.client.scripted import Answer, ScriptedServer
from tests.unit.client.worlds import World, world

T = TypeVar("T")

SENDS = (
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)
OFFSET_ID = "7F00000100002A9F000000000000007B"  # 127.0.0.1:10911, at 123 of the log
MESSAGE = Message("T", b"x")


def letters(request: Command) -> dict[str, str]:
    """The header of a send."""
    return request.ext or {}


def properties(request: Command) -> dict[str, str]:
    """The properties of the message, or of the batch, in a send."""
    return parse_properties(letters(request)["i"])


def stored(code: int = 0, **more: str) -> Callable[[Command], Command]:
    """An answer that says where a message is; one id for each message of a batch."""

    def answer(request: Command) -> Command:
        ext = letters(request)
        count = (request.body or b"").count(b"UNIQ_KEY") if ext["m"] == "true" else 1
        place = {
            "msgId": ",".join([OFFSET_ID] * count),
            "queueId": ext["e"],
            "queueOffset": "5",
            **more,
        }
        return response_to(request, code, ext=place)

    return answer


class Script:
    """Brokers ``a`` and ``b`` with four queues of topic T each; they say what they are told."""

    def __init__(self, w: World, brokers: dict[str, ScriptedServer], namesrv: str) -> None:
        self.world = w
        self.brokers = brokers
        self.namesrv = namesrv
        self.producer: Producer
        self.answer(stored())

    @property
    def clock(self) -> VirtualClock:
        return self.world.clock

    @property
    def runtime(self) -> ClientRuntime:
        return inline_runtime(self.world.network, self.clock)

    def options(self, **given: Any) -> ClientOptions:
        return self.world.options(**{"namesrv": self.namesrv, **given})

    def answer(self, *answers: Answer, broker: str = "") -> None:
        """What all brokers, or one of them, say to sends."""
        for name, server in self.brokers.items():
            if broker in ("", name):
                for code in SENDS:
                    server.answer(code, *answers)

    def sent(self, broker: str = "") -> list[Command]:
        """The sends that all brokers, or one of them, have got."""
        return [
            request
            for name, server in self.brokers.items()
            for request in server.requests
            if request.code in SENDS and broker in ("", name)
        ]

    async def later(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something that will wait."""
        task = asyncio.ensure_future(work)
        await self.clock.drain()
        return task


@asynccontextmanager
async def scripted(
    root: Path,
    brokers: str = "ab",
    *,
    hooks: tuple[object, ...] = (),
    listener: Any = None,
    given: dict[str, Any] | None = None,
    **settings: Any,
) -> AsyncIterator[Script]:
    """A started producer of group ``pg``; ``given`` are options of the client."""
    async with world(root) as w:
        servers = {name: ScriptedServer(w.network, w.clock) for name in brokers}
        addresses = {name: await server.start() for name, server in servers.items()}
        name_server = ScriptedServer(w.network, w.clock)
        name_server.serve_route("T", **addresses)
        script = Script(w, servers, await name_server.start())
        script.producer = Producer(
            "pg",
            script.options(**(given or {})),
            hooks=hooks,
            transaction_listener=listener,
            runtime=script.runtime,
            **settings,
        )
        await script.producer.start()
        try:
            yield script
        finally:
            await w.finish(script.producer.stop())
            for server in (*servers.values(), name_server):
                await w.finish(server.stop())


class Cluster:
    """A real name server and broker ``broker-a``, and a producer of group ``pg``."""

    def __init__(self, w: World, producer: Producer) -> None:
        self.world = w
        self.producer = producer

    @property
    def clock(self) -> VirtualClock:
        return self.world.clock

    def bodies(self, topic: str, queue_count: int = 4) -> list[bytes]:
        """What the queues of a topic hold."""
        return [record.body for record in self.records(topic, queue_count)]

    def records(self, topic: str, queue_count: int = 4) -> list[MessageRecord]:
        reader = self.world.brokers["broker-a"].features.store.reader
        found: list[MessageRecord] = []
        for queue_id in range(queue_count):
            result = reader.get(topic, queue_id, 0, 1_000, bulk=True)
            found += iter_records(b"".join(result.views))
            result.release()
        return found


@asynccontextmanager
async def cluster(
    root: Path, *, broker: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[Cluster]:
    """A cluster with topic T of four queues."""
    async with world(root) as w:
        await w.add_name_server()
        await w.add_broker("broker-a", 20911, **(broker or {}))
        await w.add_topic("T")
        producer = Producer(
            "pg", w.options(), runtime=inline_runtime(w.network, w.clock), **settings
        )
        await producer.start()
        try:
            yield Cluster(w, producer)
        finally:
            await w.finish(producer.stop())
