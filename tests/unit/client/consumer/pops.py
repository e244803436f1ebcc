"""A broker that pops in memory, on virtual time, and tells what it was asked; and consumers of it.

It is also the name server. Messages are given to it with :meth:`PopServer.put`; it answers as
Apache's broker does, delivers what was not acknowledged in time again, and keeps every request, so
that tests can see receipts, and can make it refuse or say nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from skylark.client.consumer.pop.pop_consumer import PopConsumer
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.client_runtime import inline_runtime
from skylark.client.core.service_state import ServiceState
from skylark.core.clock import Clock
from skylark.net.connection import Connection
from skylark.net.transport import Network
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.pop_body import (
    BatchAckMessageRequestBody,
    MessageQueueAssignment,
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.message import encode_record, pack_host
from skylark.wire.pop_handle import decode_handle, encode_message_offsets, encode_start_offsets
from skylark.wire.properties import encode_properties
from tests.unit.client.scripted import ScriptedServer
from tests.unit.client.worlds import World, world

BROKER = "broker-a"
POP = RequestCode.POP_MESSAGE
ACK = RequestCode.ACK_MESSAGE
BATCH_ACK = RequestCode.BATCH_ACK_MESSAGE
CHANGE = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
SEND_BACK = RequestCode.CONSUMER_SEND_MSG_BACK


@dataclass
class Held:
    """A message of the broker, and the receipt of its last delivery."""

    queue_id: int
    offset: int
    body: bytes
    tag: str
    times: int = 0
    handle: str = ""
    visible_at_ms: int = 0
    acked: bool = False
    suspended: bool = False
    handles: list[str] = field(default_factory=list)  # all receipts, old ones first


class PopServer(ScriptedServer):
    """See the module docstring."""

    def __init__(self, network: Network, clock: Clock, name: str = BROKER) -> None:
        super().__init__(network, clock)
        self.clock = clock
        self.name = name
        self.topic = "T"  # of all messages
        self.messages: list[Held] = []
        self.mode = MessageRequestMode.POP
        self.broker_names = [name]  # of topic T
        self.modes_set: list[SetMessageRequestModeRequestBody] = []
        self.refuses: dict[int, int] = {}  # request code -> response code
        self.silent: set[int] = set()  # request codes without a response
        self._arrived = asyncio.Event()
        self.clock_ahead_ms = 0

    # ---- messages --------------------------------------------------------------------------------

    def put(self, *bodies: bytes, queue_id: int = 0, tag: str = "", times: int = 0) -> None:
        for body in bodies:
            offset = sum(each.queue_id == queue_id for each in self.messages)
            self.messages.append(Held(queue_id, offset, body, tag, times))
        self._arrived.set()

    def of_body(self, body: bytes) -> Held:
        return next(each for each in self.messages if each.body == body)

    @property
    def acked(self) -> list[bytes]:
        return [each.body for each in self.messages if each.acked]

    def ext_of(self, code: int) -> list[dict[str, str]]:
        return [dict(request.ext or {}) for request in self.of(code)]

    # ---- requests --------------------------------------------------------------------------------

    async def _handle(self, connection: Connection, request: Command) -> Command | None:
        handlers: dict[int, Callable[[Command], Awaitable[Command | None]]] = {
            POP: partial(self._pop, connection),
            ACK: self._ack,
            BATCH_ACK: self._batch_ack,
            CHANGE: self._change,
            RequestCode.QUERY_ASSIGNMENT: self._assignment,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self._set_mode,
            SEND_BACK: self._ok,
        }
        serve = handlers.get(request.code)
        if serve is None:
            return await super()._handle(connection, request)
        self.requests.append(request)
        if request.code in self.silent:
            return None
        if request.code in self.refuses:
            return response_to(request, self.refuses[request.code], "refused by the test")
        return await serve(request)

    async def _ok(self, request: Command) -> Command:
        return response_to(request, 0)

    async def _pop(self, connection: Connection, request: Command) -> Command | None:
        ext = request.ext or {}
        deadline = self.clock.monotonic() + int(ext["pollTime"]) / 1000
        while not (found := self._ready(int(ext["maxMsgNums"]))):
            left_s = deadline - self.clock.monotonic()
            if left_s <= 0:
                return response_to(request, 210)
            self._arrived.clear()
            with suppress(TimeoutError):
                await self.clock.wait_for(self._arrived.wait(), min(left_s, 1.0))
            if connection.closed.done():
                return None  # a request whose client has gone takes nothing
        return self._popped(request, found, int(ext["invisibleTime"]))

    def _ready(self, count: int) -> list[Held]:
        now_ms = self._now_ms()
        return [each for each in self.messages if not each.acked and each.visible_at_ms <= now_ms][
            :count
        ]

    def _now_ms(self) -> int:
        return self.clock.now_ms() + self.clock_ahead_ms

    def _popped(self, request: Command, found: list[Held], invisible_ms: int) -> Command:
        now_ms = self._now_ms()
        offsets: dict[tuple[str, int], list[int]] = {}
        for each in found:
            offsets.setdefault(("0", each.queue_id), []).append(each.offset)
        starts = {key: min(of_queue) for key, of_queue in offsets.items()}
        records = []
        for each in found:
            if each.handle and not each.suspended:
                each.times += 1
            each.suspended = False
            start = starts["0", each.queue_id]
            self._hand_out(each, start, now_ms, invisible_ms)
            records.append(self._record(each))
        return response_to(
            request,
            0,
            ext={
                "popTime": str(now_ms),
                "invisibleTime": str(invisible_ms),
                "reviveQid": "3",
                "restNum": str(len(self._ready(1000))),
                "startOffsetInfo": encode_start_offsets(starts),
                "msgOffsetInfo": encode_message_offsets(offsets),
            },
            body=b"".join(records),
        )

    def _hand_out(self, each: Held, start: int, now_ms: int, invisible_ms: int) -> None:
        each.visible_at_ms = now_ms + invisible_ms
        each.handle = (
            f"{start} {now_ms} {invisible_ms} 3 0 {self.name} {each.queue_id} {each.offset}"
        )
        each.handles.append(each.handle)

    def _record(self, each: Held) -> bytes:
        properties = {"UNIQ_KEY": f"U{each.queue_id}-{each.offset}"}
        if each.tag:
            properties["TAGS"] = each.tag
        return encode_record(
            topic=self.topic,
            body=each.body,
            properties=encode_properties(properties).encode(),
            queue_id=each.queue_id,
            queue_offset=each.offset,
            log_offset=1000 * each.queue_id + each.offset,
            store_host=pack_host("127.0.0.1", 1),
            reconsume_times=each.times,
        )

    def _find(self, handle: str) -> Held | None:
        """The message that has this receipt now."""
        return next((each for each in self.messages if each.handle == handle), None)

    async def _ack(self, request: Command) -> Command:
        found = self._find((request.ext or {})["extraInfo"])
        if found is not None and self._now_ms() < found.visible_at_ms:
            found.acked = True
        return response_to(request, 0)

    async def _batch_ack(self, request: Command) -> Command:
        body = decode_body(BatchAckMessageRequestBody, request.body or b"{}")
        for ack in body.acks:
            for offset in ack.offsets():
                found = self._find(
                    f"{ack.start_offset} {ack.pop_time} {ack.invisible_time}"
                    f" {ack.revive_queue_id} {ack.retry} {body.broker_name} {ack.queue_id} {offset}"
                )
                if found is not None and self._now_ms() < found.visible_at_ms:
                    found.acked = True
        return response_to(request, 0)

    async def _change(self, request: Command) -> Command:
        ext = request.ext or {}
        found = self._find(ext["extraInfo"])
        invisible_ms, now_ms = int(ext["invisibleTime"]), self._now_ms()
        if found is not None:
            found.suspended = ext["suspend"] == "true"
            self._hand_out(found, found.offset, now_ms, invisible_ms)
        decode_handle(ext["extraInfo"])
        answer = {"popTime": str(now_ms), "invisibleTime": str(invisible_ms), "reviveQid": "3"}
        return response_to(request, 0, ext=answer)

    async def _assignment(self, request: Command) -> Command:
        asked = decode_body(QueryAssignmentRequestBody, request.body or b"{}")
        is_retry = asked.topic.startswith("%RETRY%")
        mode = MessageRequestMode.PULL if is_retry else self.mode
        queue_ids = [-1] if mode is MessageRequestMode.POP else [0]
        answer = QueryAssignmentResponseBody(
            message_queue_assignments=[
                MessageQueueAssignment(
                    message_queue=MessageQueue(
                        topic=asked.topic, broker_name=broker_name, queue_id=queue_id
                    ),
                    mode=mode,
                )
                for broker_name in self.broker_names
                for queue_id in queue_ids
            ]
        )
        return response_to(request, 0, body=encode_body(answer))

    async def _set_mode(self, request: Command) -> Command:
        wanted = decode_body(SetMessageRequestModeRequestBody, request.body or b"{}")
        self.modes_set.append(wanted)
        self.mode = wanted.mode or MessageRequestMode.PULL
        return response_to(request, 0)


class PopWorld:
    """One or more such brokers with topic T, and consumers, which are stopped in the end."""

    def __init__(self, of: World, servers: list[PopServer]) -> None:
        self.world = of
        self.clock = of.clock
        self.finish = of.finish
        self.servers = servers
        self.made: list[PopConsumer | PushConsumer] = []

    @property
    def server(self) -> PopServer:
        return self.servers[0]

    def serve_brokers(self, *servers: PopServer) -> None:
        """The topic is on these brokers."""
        for each in self.servers:
            each.broker_names = [server.name for server in servers]
        self.server.serve_route(self.server.topic, **{each.name: each.address for each in servers})

    def _options(self, given: dict[str, Any]) -> ClientOptions:
        names = ("namespace", "instance_name", "rpc_hooks")
        options = {name: given.pop(name) for name in names if name in given}
        return ClientOptions(namesrv=self.server.address, client_ip="127.0.0.1", **options)

    def pop_consumer(self, group: str = "g", **given: Any) -> PopConsumer:
        runtime = inline_runtime(self.world.network, self.clock)
        consumer = PopConsumer(group, self._options(given), runtime=runtime, **given)
        self.made.append(consumer)
        return consumer.subscribe("T")

    def push_consumer(self, group: str = "g", **given: Any) -> PushConsumer:
        runtime = inline_runtime(self.world.network, self.clock)
        given.setdefault("mode", "pop")
        consumer = PushConsumer(group, self._options(given), runtime=runtime, **given)
        self.made.append(consumer)
        return consumer

    async def start(self, consumer: PopConsumer | PushConsumer) -> None:
        await self.finish(consumer.start())
        await self.clock.advance(seconds=2)


@asynccontextmanager
async def pop_world(root: Path, broker_count: int = 1) -> AsyncIterator[PopWorld]:
    """At its end nothing may be left, see :func:`tests.unit.client.worlds.world`."""
    async with world(root) as made:
        names = [f"broker-{letter}" for letter in "abcdefgh"[:broker_count]]
        servers = [PopServer(made.network, made.clock, name) for name in names]
        for each in servers:
            await each.start()
        w = PopWorld(made, servers)
        w.serve_brokers(*servers)
        try:
            yield w
        finally:
            for consumer in w.made:
                if consumer.state is ServiceState.RUNNING:
                    await made.finish(consumer.stop())
            for server in servers:
                await made.finish(server.stop())
