"""Connections and requests of the admin functions, and the namespace in their names.

A :class:`Session` belongs to one event loop, on which its connections were opened. All name servers
have the same data, so any of them can answer a query: they are tried in the order given, beginning
with the one that responded most recently. Changes are sent to each of them
(:meth:`Session.name_servers`).

Callers use names without a namespace: :meth:`wrap` adds the namespace to requests, and
:meth:`unwrap` removes it from results. A broker may be given by its name or by its address; only
masters are found by name. Every request has a timeout, ``timeout_s`` unless a function has its own.
A function that sends many requests should not wait for a dead server each time
(:meth:`Session.asking_once` tries a dead server once only).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from skylark.admin.errors import NoBrokerError, NotFoundError
from skylark.admin.fan_out import FannedOut, on_each
from skylark.client.core.broker_calls import BrokerCalls, Caller, checked, make_request
from skylark.client.core.broker_connections import BrokerConnections
from skylark.client.core.namespace import Namespace
from skylark.client.core.route_cache import MASTER_ID
from skylark.core.clock import Clock
from skylark.core.errors import (
    ClientStateError,
    ConfigError,
    ConnectError,
    NoNameServerError,
    RequestTimeoutError,
    TransportError,
)
from skylark.core.names import NAMESRV_VARIABLE_DOCUMENTED, parse_address
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.route_body import ClusterInfo, TopicRouteData
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body
from skylark.wire.fields import Header
from skylark.wire.headers.route import GetRouteInfoRequestHeader

logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Default timeouts of queries and of changes.
TIMEOUT_S: Final = 6.0


class Session:
    """Connections and names; see the module docstring."""

    def __init__(
        self,
        link: BrokerConnections,
        name_servers: Sequence[str],
        namespace: Namespace,
        *,
        timeout_s: float = TIMEOUT_S,
        caller: Caller | None = None,
    ) -> None:
        """``caller`` sends the requests to brokers; default: the link itself."""
        self._link = link
        self._caller = caller or link
        self._name_servers = list(name_servers)
        self.namespace = namespace
        self.timeout_s = timeout_s
        self.calls = BrokerCalls(self._caller, timeout_s)

    def asking_once(self) -> Session:
        """A session for one operation of many requests; it skips servers that did not respond."""
        return Session(
            self._link,
            self._name_servers,
            self.namespace,
            timeout_s=self.timeout_s,
            caller=AskingOnce(self._caller),
        )

    @property
    def clock(self) -> Clock:
        return self._link.clock

    # ---- names -----------------------------------------------------------------------------------

    def wrap(self, name: str) -> str:
        """A topic or group as servers know it."""
        return self.namespace.wrap(name)

    def unwrap(self, name: str) -> str:
        """A topic or group as the application knows it."""
        return self.namespace.unwrap(name)

    def is_ours(self, name: str) -> bool:
        """Whether a topic or group belongs to the namespace; without one, all do."""
        return not self.namespace.name or self.unwrap(name) != name

    def unwrap_queue(self, queue: MessageQueue) -> MessageQueue:
        return self.namespace.unwrap_queue(queue)

    # ---- requests --------------------------------------------------------------------------------

    async def call(
        self, address: str, request: Command, *also: int, timeout_s: float | None = None
    ) -> Command:
        """A broker's response if its code is success or one of ``also``; else raises its error."""
        self._check_loop()
        answer = await self._caller.call(address, request, timeout_s or self.timeout_s)
        return checked(answer, address, *also)

    async def ask(
        self,
        body_type: type[T],
        address: str,
        code: int,
        header: Header | None = None,
        *,
        timeout_s: float | None = None,
    ) -> T:
        """The body of a broker's response."""
        answer = await self.call(address, make_request(code, header), timeout_s=timeout_s)
        return decode_body(body_type, answer.body or b"{}")

    async def ask_each(
        self,
        body_type: type[T],
        brokers: Mapping[str, str],
        code: int,
        header: Header | None = None,
    ) -> FannedOut[T]:
        """The bodies of the responses of several brokers, given as name -> address."""
        return await on_each(brokers, lambda _, address: self.ask(body_type, address, code, header))

    async def call_name_server(self, address: str, request: Command, *also: int) -> Command:
        """The successful response of one name server; else raises its error."""
        self._check_loop()
        answer = await self._link.call_name_server(address, request, self.timeout_s)
        return checked(answer, address, *also)

    async def ask_name_servers(self, request: Command, *also: int) -> Command:
        """The response of the first name server that responds.

        Raises NoNameServerError if none does, and BrokerError if it refuses the request.
        """
        self._check_loop()
        problems: list[str] = []
        last: TransportError | None = None
        for address in tuple(self._name_servers):
            try:
                answer = await self._link.call_name_server(address, request, self.timeout_s)
            except TransportError as error:
                logger.info("name server %s does not respond: %s", address, error)
                problems.append(error.message)
                last = error
                self._name_servers.remove(address)
                self._name_servers.append(address)
            else:
                return checked(answer, address, *also)
        raise NoNameServerError(
            f"no name server responds: {'; '.join(dict.fromkeys(problems))}",
            hint="start one with `skylark up`, or give its address with -n HOST:PORT, in a program"
            f" by {NAMESRV_VARIABLE_DOCUMENTED}",
        ) from last

    def _check_loop(self) -> None:
        if asyncio.get_running_loop() is not self._link.loop:
            raise ClientStateError(
                "this admin client belongs to another event loop",
                hint="create one per loop, or use skylark.sync from threads",
            )

    @property
    def name_servers(self) -> dict[str, str]:
        """The addresses of all name servers, for changes that go to each of them."""
        return {address: address for address in sorted(self._name_servers)}

    async def call_all_name_servers(self, request: Command) -> list[str]:
        """Send a change to every name server; returns their addresses.

        Raises PartialFailureError if only some of them succeed.
        """
        done = await on_each(
            self.name_servers,
            lambda _, address: self.call_name_server(address, msgspec.structs.replace(request)),
        )
        return list(done.all())

    # ---- brokers and routes ----------------------------------------------------------------------

    async def cluster_info(self) -> ClusterInfo:
        """All clusters and brokers (106)."""
        answer = await self.ask_name_servers(make_request(RequestCode.GET_BROKER_CLUSTER_INFO))
        return decode_body(ClusterInfo, answer.body or b"{}")

    async def masters(
        self, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, str]:
        """Name -> address of every master, of those of one cluster, or of one broker.

        Raises NoBrokerError if there is none, NotFoundError for an unknown broker or cluster.
        """
        if broker is not None:
            return dict([await self.broker(broker)])
        info = await self.cluster_info()
        found = {
            name: data.broker_addrs[MASTER_ID]
            for name, data in sorted(info.broker_addr_table.items())
            if MASTER_ID in data.broker_addrs and cluster in (None, data.cluster)
        }
        if not found:
            where = "" if cluster is None else f" of cluster {cluster}"
            clusters = ", ".join(sorted(info.cluster_addr_table)) or "none"
            if cluster is not None and cluster not in info.cluster_addr_table:
                raise NotFoundError(
                    f"cluster {cluster} does not exist", hint=f"known clusters: {clusters}"
                )
            raise NoBrokerError(
                f"no broker{where} is registered with {';'.join(self.name_servers)}",
                hint=f"known clusters: {clusters}",
            )
        return found

    async def brokers(
        self, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, str]:
        """As :meth:`masters`, and their slaves as ``name#id``; a broker by address is alone."""
        info = await self.cluster_info()
        found = {
            name if broker_id == MASTER_ID else f"{name}#{broker_id}": address
            for name, data in sorted(info.broker_addr_table.items())
            if cluster in (None, data.cluster) and broker in (None, name)
            for broker_id, address in sorted(data.broker_addrs.items())
        }
        return found or await self.masters(cluster, broker)

    async def broker(self, broker: str) -> tuple[str, str]:
        """Name and address of a broker: of the master with this name, or of any at this address.

        Raises NotFoundError. An address need not be registered.
        """
        info = await self.cluster_info()
        data = info.broker_addr_table.get(broker)
        if data is not None and MASTER_ID in data.broker_addrs:
            return broker, data.broker_addrs[MASTER_ID]
        for name, other in info.broker_addr_table.items():
            if broker in other.broker_addrs.values():
                return name, broker
        known = ", ".join(sorted(info.broker_addr_table)) or "none"
        if data is not None:
            raise NotFoundError(f"broker {broker} has no master now", hint="is it running?")
        try:
            return broker, str(parse_address(broker))
        except ConfigError:
            raise NotFoundError(f"broker {broker} does not exist", hint=f"known: {known}") from None

    async def find_route(self, topic: str) -> TopicRouteData | None:
        """The route (105) of a topic as servers know it; None if it has none."""
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        request = make_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        answer = await self.ask_name_servers(request, ResponseCode.TOPIC_NOT_EXIST)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        return decode_body(TopicRouteData, answer.body or b"{}")

    async def route(self, topic: str) -> TopicRouteData:
        """The route of a topic as servers know it; raises NotFoundError."""
        route = await self.find_route(topic)
        if route is None:
            raise no_topic(self.unwrap(topic))
        return route

    async def topic_masters(self, topic: str) -> dict[str, str]:
        """Name -> address of the masters that have a topic; raises NotFoundError."""
        return masters_of(await self.route(topic))


class Operations:
    """Base of the groups of admin functions: they share the session of their client."""

    def __init__(self, session: Session) -> None:
        self._session = session


class AskingOnce:
    """Sends requests; fails at once for servers that did not respond to an earlier request."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._silent: dict[str, TransportError] = {}

    async def call(self, address: str, request: Command, timeout_s: float = TIMEOUT_S) -> Command:
        if address in self._silent:
            raise self._silent[address]
        try:
            return await self._caller.call(address, request, timeout_s)
        except (ConnectError, RequestTimeoutError) as error:
            self._silent[address] = error
            raise

    async def oneway(self, address: str, request: Command, timeout_s: float = TIMEOUT_S) -> None:
        await self._caller.oneway(address, request, timeout_s)


def masters_of(route: TopicRouteData) -> dict[str, str]:
    """Name -> address of the masters of a route; brokers without a master are left out."""
    return {
        data.broker_name: data.broker_addrs[MASTER_ID]
        for data in sorted(route.broker_datas, key=lambda data: data.broker_name)
        if MASTER_ID in data.broker_addrs
    }


def no_topic(topic: str) -> NotFoundError:
    """The error for a topic without a route."""
    return NotFoundError(
        f"topic {topic} does not exist",
        hint=f"create it with `skylark topic create {topic}`, or check that its brokers run",
    )
