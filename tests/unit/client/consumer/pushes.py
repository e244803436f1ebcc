"""Push consumers in a world of real brokers, and the messages that they get."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from skylark.broker.app import Broker
from skylark.client.consumer import rebalance_executor
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.core.client_message import Message, MessageExt
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.client_runtime import inline_runtime
from skylark.client.core.instance_registry import instance_count
from skylark.client.core.service_state import ServiceState
from skylark.client.producer.send_request import Parcel, SendTemplate, property_text
from skylark.core.clock import LoopClock
from skylark.core.names import retry_topic
from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import ConsumeFromWhere, GetConsumerListByGroupResponseBody
from skylark.wire.bodies.route_body import BrokerData, QueueData, TopicRouteData
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import encode_body
from skylark.wire.message import MessageRecord, encode_record, iter_records, pack_host
from skylark.wire.properties import encode_properties
from tests.unit.client.scripted import ScriptedServer
from tests.unit.client.worlds import World, world

FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
BROKER = "broker-a"


class PushWorld:
    """A world with one name server, one broker, and topic ``T`` unless told otherwise."""

    def __init__(self, of: World) -> None:
        self.world = of
        self.clock = of.clock
        self.network = of.network
        self.finish = of.finish
        self.made: list[PushConsumer] = []

    @property
    def broker(self) -> Broker:
        return self.world.brokers[BROKER]

    def consumer(self, group: str = "g", **given: Any) -> PushConsumer:
        options = {
            name: given.pop(name)
            for name in ("namespace", "instance_name", "rpc_hooks", "metrics", "telemetry", "trace")
            if name in given
        }
        given.setdefault("consume_from_where", FIRST)
        runtime = inline_runtime(self.network, self.clock)
        consumer = PushConsumer(group, self.world.options(**options), runtime=runtime, **given)
        self.made.append(consumer)
        return consumer

    async def start(self, consumer: PushConsumer) -> None:
        """Start it and wait until it pulls."""
        await self.finish(consumer.start())
        await self.clock.advance(seconds=2)

    async def send(
        self,
        body: bytes,
        *,
        topic: str = "T",
        queue_id: int = 0,
        tag: str | None = None,
        broker: str = BROKER,
        **properties: str,
    ) -> None:
        """Store a message."""
        message = Message(topic, body, tag=tag)
        parcel = Parcel(
            messages=[message],
            properties=property_text(message, f"ID-{body.decode('latin-1')}", properties),
            body=body,
        )
        template = SendTemplate("p", topic, model="TBW102", queue_count=4, unit_mode=False)
        queue = MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)
        request = template.request(parcel, queue, self.clock.now_ms())
        client = RemotingClient(self.network, self.clock)
        answer = await self.finish(client.call(self.address(broker), request))
        await self.finish(client.close())
        assert answer.code == 0, answer.remark

    async def send_many(self, count: int, **given: Any) -> None:
        for index in range(count):
            await self.send(b"%d" % index, **given)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Let threads work, in real time and bounded, until the condition holds."""
        await until(condition)

    def address(self, broker: str = BROKER) -> str:
        return str(self.world.brokers[broker].address)

    def committed(self, queue_id: int = 0, *, group: str = "g", topic: str = "T") -> int:
        """What the broker knows; -1 if nothing."""
        return self.broker.features.groups.offsets.get(group, topic, queue_id)

    def stored(self, topic: str, queue_id: int = 0) -> list[MessageRecord]:
        """The messages of a queue, as the broker has them."""
        found = self.broker.features.store.reader.get(topic, queue_id, 0, 1000, bytes_max=1 << 20)
        try:
            return [record for view in found.views for record in iter_records(bytes(view))]
        finally:
            found.release()

    def retries(self, group: str = "g") -> list[MessageRecord]:
        return self.stored(retry_topic(group))


@asynccontextmanager
async def push_world(root: Path, queue_count: int = 1, *topics: str) -> AsyncIterator[PushWorld]:
    """At its end nothing may be left, see :func:`tests.unit.client.worlds.world`."""
    async with world(root) as made:
        await made.add_name_server()
        await made.add_broker()
        for topic in topics or ("T",):
            await made.add_topic(topic, queue_count)
        w = PushWorld(made)
        with none_left():
            try:
                yield w
            finally:
                await stop_all(w.made, made)


@contextmanager
def none_left() -> Iterator[None]:
    """No client of the block is left at its end."""
    before = instance_count()
    yield
    assert instance_count() == before


async def stop_all(consumers: list[PushConsumer], of: World) -> None:
    """Those that run still."""
    for consumer in consumers:
        if consumer.state is ServiceState.RUNNING:
            await of.finish(consumer.stop())


@asynccontextmanager
async def consuming(w: PushWorld, consumer: PushConsumer) -> AsyncIterator[PushConsumer]:
    """Started, and stopped at the end."""
    await w.start(consumer)
    try:
        yield consumer
    finally:
        if consumer.state is ServiceState.RUNNING:
            await w.finish(consumer.stop())


async def until(condition: Callable[[], object]) -> None:
    """Wait in real time, bounded: for threads."""

    async def turn() -> None:
        while not condition():
            await clock.sleep(0.002)

    clock = LoopClock()
    await clock.wait_for(turn(), 10.0)


def said_to_differ(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What clients logged of members that subscribe differently; brokers log it too."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == rebalance_executor.__name__
        and "subscribe differently" in record.getMessage()
    ]


class Seen(list[bytes]):
    """Bodies that a handler got, in their order; ``handler`` and ``plain`` collect them."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[MessageExt] = []
        self.on_message: Callable[[MessageExt], Any] | None = None

    async def handler(self, message: MessageExt) -> Any:
        self.append(message.body)
        self.messages.append(message)
        if self.on_message is not None:
            result = self.on_message(message)
            return await result if asyncio.iscoroutine(result) else result
        return None


# ---- a broker whose answers a test gives ---------------------------------------------------------


def records(*offsets: int, topic: str = "T", **properties: str) -> bytes:
    """The body of a pull that found these messages."""
    return b"".join(
        encode_record(
            topic=topic,
            body=b"%d" % offset,
            properties=encode_properties({"UNIQ_KEY": f"U{offset}", **properties}).encode(),
            queue_id=0,
            queue_offset=offset,
            log_offset=1000 + offset,
            store_host=pack_host("127.0.0.1", 1),
        )
        for offset in offsets
    )


class ScriptedPulls:
    """Answers pulls of queue 0; those that :meth:`found` was not told of are held for ever."""

    def __init__(self, server: ScriptedServer) -> None:
        self.server = server
        self.by_offset: dict[int, Callable[[Command], Command | None]] = {}
        server.answer(RequestCode.PULL_MESSAGE, self._answer)

    def found(self, offset: int, body: bytes, next_offset: int, max_offset: int = 5000) -> None:
        self.answer(offset, 0, next_offset, body=body, max_offset=max_offset)

    def answer(
        self, offset: int, code: int, next_offset: int, *, body: bytes | None = None, **numbers: int
    ) -> None:
        ext = {
            "nextBeginOffset": str(next_offset),
            "minOffset": "0",
            "maxOffset": str(numbers.get("max_offset", next_offset)),
            "suggestWhichBrokerId": str(numbers.get("suggested", 0)),
        }
        self.by_offset[offset] = lambda request: response_to(request, code, ext=ext, body=body)

    def _answer(self, request: Command) -> Command | None:
        ext = request.ext or {}
        if ext["topic"] != "T":
            return None
        answer = self.by_offset.get(int(ext["queueOffset"]))
        return None if answer is None else answer(request)

    @property
    def offsets(self) -> list[int]:
        """Where the topic was pulled, in order."""
        return [int(ext["queueOffset"]) for ext in self.requests]

    @property
    def requests(self) -> list[dict[str, str]]:
        pulls = [request.ext or {} for request in self.server.of(RequestCode.PULL_MESSAGE)]
        return [ext for ext in pulls if ext["topic"] == "T"]


class Script:
    """A name server and a broker in one, with one queue of ``T``, and a consumer of it."""

    def __init__(self, of: World, server: ScriptedServer, route: TopicRouteData) -> None:
        self.world = of
        self.clock = of.clock
        self.finish = of.finish
        self.server = server
        self.route = route
        self.pulls = ScriptedPulls(server)
        self.made: list[PushConsumer] = []

    def consumer(self, group: str = "g", **given: Any) -> PushConsumer:
        options = {
            name: given.pop(name)
            for name in ("rpc_hooks", "instance_name", "namespace_v2")
            if name in given
        }
        given.setdefault("consume_from_where", FIRST)
        consumer = PushConsumer(
            group,
            ClientOptions(namesrv=self.server.address, client_ip="127.0.0.1", **options),
            runtime=inline_runtime(self.world.network, self.world.clock),
            **given,
        )
        self.made.append(consumer)
        self.server.answer_ok(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            body=GetConsumerListByGroupResponseBody(consumer_id_list=[consumer.client_id]),
        )
        return consumer

    async def start(self, consumer: PushConsumer) -> None:
        await self.finish(consumer.start())
        await self.clock.advance(seconds=2)

    @property
    def control(self) -> Connection:
        """The connection of heartbeats, which is the first that a client makes."""
        return min(self.server.connections, key=lambda each: each.remote_address[1])

    def set_offset(self, offset: int | None) -> None:
        """What the broker says is committed."""
        if offset is None:
            self.server.answer(RequestCode.QUERY_CONSUMER_OFFSET, 22)
        else:
            self.server.answer_ok(RequestCode.QUERY_CONSUMER_OFFSET, {"offset": str(offset)})

    def keep_offsets(self) -> None:
        """Be a broker that remembers what is committed."""

        def update(request: Command) -> Command:
            ext = request.ext or {}
            if ext["topic"] == "T":
                self.set_offset(int(ext["commitOffset"]))
            return response_to(request, 0)

        self.server.answer(RequestCode.UPDATE_CONSUMER_OFFSET, update)

    @property
    def committed(self) -> list[int]:
        """Offsets that were saved, in order."""
        updates = self.server.of(RequestCode.UPDATE_CONSUMER_OFFSET)
        return [
            int(ext["commitOffset"])
            for ext in (u.ext or {} for u in updates)
            if ext["topic"] == "T"
        ]


@asynccontextmanager
async def scripted(root: Path) -> AsyncIterator[Script]:
    async with world(root) as made:
        server = ScriptedServer(made.network, made.clock)
        address = await server.start()
        route = TopicRouteData(
            queue_datas=[
                QueueData(broker_name=BROKER, read_queue_nums=1, write_queue_nums=1, perm=6)
            ],
            broker_datas=[BrokerData(cluster="c", broker_name=BROKER, broker_addrs={0: address})],
        )
        server.answer(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            lambda request: response_to(request, 0, body=encode_body(route)),
        )
        server.answer(RequestCode.UPDATE_CONSUMER_OFFSET, 0)
        server.answer(RequestCode.UNLOCK_BATCH_MQ, 0)
        script = Script(made, server, route)
        script.set_offset(0)
        with none_left():
            try:
                yield script
            finally:
                await stop_all(script.made, made)
                await made.finish(server.stop())
