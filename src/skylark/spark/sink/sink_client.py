"""Client of the sink: the producer connection that tasks, driver and resolver share per process.

A :class:`SinkClient` belongs to the event loop that opened it. Brokers see it as a producer of its
group (it sends heartbeats). It exposes parts of the client that the sink needs: the
:class:`~skylark.client.producer.sender.Sender` for all sends, the link for other requests, and
an admin session over the same connections. It never creates a topic by sending, so that a mistyped
name does not become a topic.

:func:`sink_client` returns the client of this process for a connection and group, on the private
event loop of the blocking clients. Spark keeps its workers between micro-batches, and so the
connections stay open until the process ends.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

from skylark.admin.admin_session import Session, no_topic
from skylark.admin.errors import NoBrokerError, NotFoundError
from skylark.admin.server_settings import Settings
from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.instance_registry import acquire_instance
from skylark.client.producer.producer_components import ProducerParts
from skylark.client.producer.producer_settings import ProducerSettings
from skylark.core.clock import Clock
from skylark.core.errors import ClientError, ConfigError, NoNameServerError, NoRouteError
from skylark.spark.cluster_client import SharedClients, client_options
from skylark.spark.option_table import Connection
from skylark.spark.sink.sink_options import SinkOptions
from skylark.wire.bodies.common_body import MessageQueue

#: Setting of a broker on which END_TRANSACTION may be repeated.
IDEMPOTENT_SETTING: Final = "transactionEndIdempotent"


class NotIdempotentError(ConfigError):
    """A broker that cannot deliver exactly once."""


class SinkClient:
    """A producer and an admin session over the same connections; see :func:`open_client`."""

    def __init__(self, instance: ClientInstance, parts: ProducerParts) -> None:
        self._instance = instance
        self._settings: dict[str, dict[str, str]] = {}
        self._found: set[str] = set()  # topics that had queues
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
        """The writable queues of a topic, with namespace.

        Raises NotFoundError, and NoBrokerError while no broker is there. Name servers forget the
        topics of brokers that are down, so that a topic that is not found may well exist: see
        :meth:`expected_queues`.
        """
        name = self.namespace.wrap(topic)
        route = self._instance.routes.get(name)
        if fresh or route is None or not route.publish:
            route = await self._instance.refresh_route(name)
        if route is None or not route.publish:
            if not (await self.session.cluster_info()).broker_addr_table:
                raise NoBrokerError("no broker has registered with the name servers")
            raise no_topic(topic)
        self._found.add(topic)
        return route.publish

    async def expected_queues(
        self, topic: str, *, existed: bool = False, fresh: bool = False
    ) -> Sequence[MessageQueue]:
        """The queues of a topic that may have existed before; without a route that is an outage.

        ``existed``: the caller knows that it did; otherwise it did if this client has found it.
        Raises NoRouteError for such a topic, and NotFoundError for others.
        """
        try:
            return await self.queues(topic, fresh=fresh)
        except NotFoundError as error:
            if not existed and topic not in self._found:
                raise
            raise route_missing(topic) from error

    async def queues_of_rows(
        self, topics: Collection[str], brokers: Collection[str], existed: Callable[[str], bool]
    ) -> dict[str, Sequence[MessageQueue]]:
        """The queues of the topics of rows that name ``brokers``; ``existed``: of each topic.

        Raises as :meth:`expected_queues`, and NoRouteError for a broker that is not registered: it
        may be down.
        """

        async def find(*, fresh: bool = False) -> dict[str, Sequence[MessageQueue]]:
            return {
                topic: await self.expected_queues(topic, existed=existed(topic), fresh=fresh)
                for topic in topics
            }

        found = await find()
        there = {queue.broker_name for queues in found.values() for queue in queues}
        if missing := set(brokers) - there:
            await self._require_registered(missing)
            found = await find(fresh=True)
        return found

    async def _require_registered(self, brokers: Collection[str]) -> None:
        """Raise NoRouteError for brokers that no name server knows: they may be down."""
        known = (await self.session.cluster_info()).broker_addr_table
        for broker in sorted(set(brokers) - known.keys()):
            raise NoRouteError(
                f"a row is for {broker}, and no such broker is there",
                hint="start it, or correct the column brokerName",
            )

    async def master(self, queue: MessageQueue) -> str:
        """The address of the master of a queue; raises NoRouteError, NoNameServerError."""
        try:
            return await self.link.lookup.master_of(queue)
        except NoNameServerError:
            raise
        except ClientError as error:  # it is in no route now
            raise NoRouteError(error.message, hint=error.hint) from error

    async def load_route(self, topic: str) -> None:
        """Load the route of a topic; heartbeats then go to its brokers as well."""
        await self._instance.refresh_route(topic)

    async def heartbeat(self) -> None:
        """Send a heartbeat to all known brokers now."""
        await self._instance.heartbeat_all()

    async def broker_settings(self, broker: str) -> dict[str, str]:
        """The settings of a master, cached after the first request; raises NoRouteError."""
        if broker not in self._settings:
            try:
                report = await Settings(self.session).brokers(broker=broker, slaves=False)
            except NotFoundError as error:  # a route named it: it is down, and forgotten
                raise NoRouteError(f"broker {broker} has no master now") from error
            self._settings[broker] = report.servers[0].settings
        return self._settings[broker]

    async def require_idempotent(self, brokers: Sequence[str]) -> None:
        """Raise NotIdempotentError for a broker that stores a row again on a repeated commit."""
        for broker in sorted(set(brokers)):
            settings = await self.broker_settings(broker)
            if settings.get(IDEMPOTENT_SETTING) != "true":
                raise NotIdempotentError(
                    f"{broker} cannot do delivery=exactly-once: it stores a message again when"
                    " END_TRANSACTION is repeated",
                    hint="use a Skylark broker, delivery=at-least-once with stampId=true, or"
                    " txnVerify=true for a best effort",
                )


def route_missing(topic: str) -> NoRouteError:
    """The error for a topic that existed before and that no name server knows now."""
    return NoRouteError(
        f"topic {topic} has no route: its brokers are down, or it was deleted",
        hint=f"start them, or create it with `skylark topic create {topic}`",
    )


async def open_client(options: ClientOptions, group: str) -> SinkClient:
    """Open a client on the running loop, without a request; raises ConfigError."""
    instance = acquire_instance(options, options.client_id())
    try:
        await instance.start()
        parts = ProducerParts(instance, group, ProducerSettings(), ())
        await parts.start(())
    except BaseException:
        await instance.release()
        raise
    return SinkClient(instance, parts)


def _open(key: tuple[Connection, str]) -> SinkClient:
    connection, group = key
    return shared_portal().call(open_client(client_options(connection), group))


_clients: Final = SharedClients(_open, lambda client: shared_portal().call(client.close()))
close_clients: Final = _clients.close


def sink_client(options: SinkOptions) -> SinkClient:
    """The client of this process for a sink, on the private loop of the blocking clients."""
    return _clients.get((options.connection, options.producer_group))
