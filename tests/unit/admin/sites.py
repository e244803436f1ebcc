"""A name server and brokers on loopback, and an admin client of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from skylark.admin.admin_client import Admin
from skylark.admin.errors import NoBrokerError, NotFoundError
from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.client.core.client_message import Message, MessageExt, SendResult
from skylark.client.core.client_options import ClientOptions
from skylark.client.producer.producer import Producer
from skylark.core.clock import LoopClock
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from skylark.wire.headers.send import ConsumerSendMsgBackRequestHeader
from tests.unit.broker.stored import texts


class Site:
    """What runs."""

    def __init__(self, name_server: NameServer, brokers: dict[str, Broker]) -> None:
        self.name_server = name_server
        self.brokers = brokers

    @property
    def namesrv(self) -> str:
        return str(self.name_server.address)

    def options(self, **given: Any) -> ClientOptions:
        return ClientOptions(**{"namesrv": self.namesrv, **given})

    def admin(self, **given: Any) -> Admin:
        return Admin(self.options(**given))

    async def fall_silent(self, name: str) -> None:
        """The broker answers nobody any more, and the name server does not know yet."""
        for server in self.brokers[name].features.endpoint.servers:
            await server.stop(0.1)

    async def send(self, *messages: Message, **given: Any) -> list[SendResult]:
        async with Producer("pg", self.options(**given), batching=False) as producer:
            return [await producer.send(message) for message in messages]

    async def send_to_queue(self, topic: str, queue: int, *bodies: bytes) -> list[SendResult]:
        async with Producer("pg", self.options(), batching=False) as producer:
            queues = sorted(await producer.queues(topic))
            return [
                await producer.send(Message(topic, body), queue=queues[queue]) for body in bodies
            ]


@asynccontextmanager
async def running_site(
    root: Path, *, broker_count: int = 1, **settings: str
) -> AsyncIterator[tuple[Site, Admin]]:
    """Both kinds of servers and an admin client, stopped at the end."""
    name_server = NameServer(
        NamesrvConfig(listen_port=0, kv_config_path=root / "kv.json", order_message_enable=True)
    )
    await name_server.start()
    brokers: dict[str, Broker] = {}
    try:
        for letter in "abc"[:broker_count]:
            name = f"broker-{letter}"
            given = {
                "brokerName": name,
                "brokerIP1": "127.0.0.1",
                "listenPort": "0",
                "namesrvAddr": str(name_server.address),
                "traceTopicEnable": "true",
                **settings,
            }
            brokers[name] = Broker(load_broker_config(texts(root / name, **given)))
            await brokers[name].start()
        site = Site(name_server, brokers)
        async with site.admin() as admin:
            await eventually(lambda: _all_are_registered(admin, broker_count))
            yield site, admin
    finally:
        for broker in brokers.values():
            await broker.stop()
        await name_server.stop()


async def _all_are_registered(admin: Admin, broker_count: int) -> bool:
    try:
        return len(await admin.session.masters()) == broker_count
    except NoBrokerError:
        return False


async def eventually(condition: Callable[[], Awaitable[bool]], limit_s: float = 10.0) -> None:
    """Wait until something holds, looking again and again."""
    async with LoopClock().timeout(limit_s):
        while not await condition():  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.02)


async def bury(admin: Admin, group: str, message: MessageExt) -> None:
    """Give a message back as its group does when it gives up."""
    session = admin.session
    _, address = await session.broker(message.broker_name)
    header = ConsumerSendMsgBackRequestHeader(
        offset=message.record.log_offset, group=session.wrap(group), delay_level=-1
    )
    await session.calls.send_back(address, header, message.broker_name)


async def indexed(admin: Admin, topic: str, *ids: str) -> None:
    """Wait until the index has all of these."""

    async def found() -> bool:
        try:
            for message_id in ids:
                await admin.messages.by_unique_id(topic, message_id)
        except NotFoundError:
            return False
        return True

    await eventually(found)
