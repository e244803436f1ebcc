"""How sinks, their drivers and the resolver reach a cluster: one sender and one link.

A :class:`SinkClient` belongs to the event loop that it was opened on. It is a producer of its group
to the brokers (it sends heartbeats), and gives what the sink needs of the client's inside: the
:class:`~skylark.client.producer.sender.Sender` with which every frame is sent, the link for other
requests, and the functions of an admin client over the same connections. Topics are never made by a
send: a mistyped name must not become a topic.

:func:`shared_client` is the one of this process for a connection and group, on the private loop of
the blocking clients. Spark's workers live on between micro-batches, so connections do as well; they
are never closed, they end with the process.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import Final

from skylark.admin.admin_session import Session, no_topic
from skylark.admin.server_settings import Settings
from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.instance_registry import acquire_instance
from skylark.client.producer.producer_components import ProducerParts
from skylark.client.producer.producer_settings import ProducerSettings
from skylark.core.clock import Clock
from skylark.core.errors import ConfigError
from skylark.wire.bodies.common_body import MessageQueue

#: What a broker says about itself if END_TRANSACTION may be repeated there.
IDEMPOTENT_SETTING: Final = "transactionEndIdempotent"


class NotIdempotentError(ConfigError):
    """A broker on which exactly-once does not hold."""


class SinkClient:
    """See the module; made by :func:`open_client`."""

    def __init__(self, instance: ClientInstance, parts: ProducerParts) -> None:
        self._instance = instance
        self._settings: dict[str, dict[str, str]] = {}
        self.parts = parts
        self.sender = parts.sender
        self.link = parts.link
        self.clock: Clock = parts.clock
        self.namespace = instance.namespace
        self.session = Session(
            parts.link, [str(address) for address in instance.endpoint.namesrv], instance.namespace
        )

    async def close(self) -> None:
        """Leave the group and close the connections."""
        try:
            await self.parts.stop(1.0)
        finally:
            await self._instance.release()

    async def queues(self, topic: str, *, fresh: bool = False) -> Sequence[MessageQueue]:
        """The queues that one may send to, as brokers know them; raises NotFoundError."""
        name = self.namespace.wrap(topic)
        route = self._instance.routes.get(name)
        if fresh or route is None or not route.publish:
            route = await self._instance.refresh_route(name)
        if route is None or not route.publish:
            raise no_topic(topic)
        return route.publish

    async def master(self, queue: MessageQueue) -> str:
        """The address of the master of a queue; raises ClientError."""
        return await self.link.lookup.master_of(queue)

    async def load_route(self, topic: str) -> None:
        """Know the brokers of a topic, and have heartbeats sent to them."""
        await self._instance.refresh_route(topic)

    async def heartbeat(self) -> None:
        """Tell all known brokers now that we are here."""
        await self._instance.heartbeat_all()

    async def broker_settings(self, broker: str) -> dict[str, str]:
        """The settings of a master, as of the first time they were asked for."""
        if broker not in self._settings:
            report = await Settings(self.session).brokers(broker=broker)
            self._settings[broker] = report.servers[0].settings
        return self._settings[broker]

    async def require_idempotent(self, brokers: Sequence[str]) -> None:
        """Raise NotIdempotentError for a broker that commits a half as often as it is told to."""
        for broker in sorted(set(brokers)):
            settings = await self.broker_settings(broker)
            if settings.get(IDEMPOTENT_SETTING) != "true":
                raise NotIdempotentError(
                    f"{broker} cannot do delivery=exactly-once: it stores a message again when"
                    " END_TRANSACTION is repeated",
                    hint="use a Skylark broker, delivery=at-least-once with stampId=true, or"
                    " txnVerify=true for a best effort",
                )


async def open_client(options: ClientOptions, group: str) -> SinkClient:
    """A client on the running loop; raises ConfigError. Asks nobody yet."""
    instance = acquire_instance(options, options.client_id())
    try:
        await instance.start()
        parts = ProducerParts(instance, group, ProducerSettings(), ())
        await parts.start(())
    except BaseException:
        await instance.release()
        raise
    return SinkClient(instance, parts)


_lock = threading.Lock()
_clients: dict[tuple[int, str, str], SinkClient] = {}


def shared_client(options: ClientOptions, group: str) -> SinkClient:
    """The client of this process; to be used on the private loop of the blocking clients."""
    key = (os.getpid(), f"{options.namesrv}|{options.acl}", group)
    with _lock:
        client = _clients.get(key)
        if client is None:
            client = _clients[key] = shared_portal().call(open_client(options, group))
        return client


def close_clients() -> None:
    """Let go of the clients that this process shares; the next use makes new ones."""
    with _lock:
        while _clients:
            (process_id, _, _), client = _clients.popitem()
            if process_id == os.getpid():
                shared_portal().call(client.close())
