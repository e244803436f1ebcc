"""The remoting endpoint: the two ports on which a broker serves the clients of RocketMQ.

Both ports serve all requests, except that the fast port, two below the main port, takes no
request that the broker may hold (pulls): a client finds it responsive when the main port is not.

**Interceptors.** The services call the interceptors of the broker for their operations
(:mod:`skylark.broker.service_interception`). :class:`RemotingInterception` calls them for the other
request codes: what administrators, tools and slaves ask. It takes the name of the operation and the
ext fields that name topics and groups from the catalogue (``Row.access``); where the body names
them, :data:`IN_BODY` finds them. A body that cannot be read is refused as by its handler. It is the
first interceptor of the dispatchers: then it reports each request that it has admitted, and no
other, as finished, with the code that the client gets. A broker without interceptors does not have
it, and its requests pay nothing for it.

**Stop.** New requests are refused, then every feature answers what waits (``Feature.drain``), then
the connections are closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from skylark.broker.api import BrokerServices, Call, InterceptorChain, Operation, Resource
from skylark.broker.base_features import BrokerContext, Feature, Handlers
from skylark.broker.service_interception import INTERCEPTED_CODES
from skylark.net.busy_poller import BusyPoller
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher, Interceptor
from skylark.net.server import RemotingServer
from skylark.net.transport import TcpNetwork
from skylark.wire.catalogue import CATALOGUE, name_of
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body

STOP_GRACE_S: Final = 3.0


class RemotingEndpoint:
    """The main port and the fast port; a component with ``start`` and ``stop``."""

    def __init__(
        self,
        context: BrokerContext,
        features: Sequence[Feature],
        services: BrokerServices,
        interceptors: Iterable[Interceptor],
    ) -> None:
        """Serves the handlers of these features; ``services`` are for other endpoints."""
        config = context.live.current
        self._context = context
        self._features = features
        self.services = services
        window_s = config.busy_poll_micros / 1e6
        polls = window_s > 0 and isinstance(context.network, TcpNetwork)
        self._poller = BusyPoller(window_s) if polls else None
        if services.interceptors:
            interceptors = (RemotingInterception(services.interceptors), *interceptors)
        fast = [handlers for feature in features for handlers in feature.handlers(services)]
        main = [
            handlers for feature in features for handlers in feature.main_port_handlers(services)
        ]
        self.server = self._make_server([*fast, *main], interceptors)
        self.fast_server = self._make_server(fast, interceptors)
        self.servers = self.server, self.fast_server
        self.by_port = {config.listen_port: self.server, config.fast_port: self.fast_server}

    def _make_server(
        self, handlers: Iterable[Handlers], interceptors: Iterable[Interceptor]
    ) -> RemotingServer:
        context, config = self._context, self._context.live.current
        dispatcher = Dispatcher(interceptors, tasks_max=config.request_count_max)
        for each in handlers:
            each.add_to(dispatcher)
        if self._poller is not None:
            dispatcher.after_runs = self._poller.handled
        return RemotingServer(
            dispatcher,
            context.network,
            context.clock,
            limits=context.net_limits,
            serialize_type=config.serialize_type.value,
            watch=context.loop_watch,
        )

    def held_size(self) -> int:
        """Bytes held for all clients."""
        return sum(server.held_size() for server in self.servers)

    @property
    def connections(self) -> list[Connection]:
        return [connection for server in self.servers for connection in server.connections]

    async def start(self) -> None:
        config = self._context.live.current
        try:
            await self.server.start(config.bind_address, config.listen_port)
            await self.fast_server.start(config.bind_address, config.fast_port)
        except BaseException:
            await self._close()
            raise

    async def stop(self) -> None:
        for server in self.servers:
            server.dispatcher.shutting_down = True
        try:
            for feature in reversed(self._features):
                await feature.drain()
        finally:
            await self._close()

    async def _close(self) -> None:
        await asyncio.gather(*(server.stop(STOP_GRACE_S) for server in self.servers))


def _topic_and_group(body: Any) -> list[Resource]:
    return [Resource("topic", body.topic), Resource("group", body.consumer_group)]


#: Finds the resources in a body, which has the type that the catalogue says.
IN_BODY: Final[dict[int, Callable[[Any], list[Resource]]]] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: lambda body: [
        Resource("topic", each.topic_name) for each in body.topic_config_list
    ],
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: lambda body: [
        Resource("group", body.group_name)
    ],
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: lambda body: [
        Resource("group", each.group_name) for each in body.group_config_list
    ],
    RequestCode.QUERY_ASSIGNMENT: _topic_and_group,
    RequestCode.SET_MESSAGE_REQUEST_MODE: _topic_and_group,
}


class RemotingInterception:
    """Has each request admitted before it is handled, and reports how it ended."""

    def __init__(self, interceptors: InterceptorChain) -> None:
        self._interceptors = interceptors
        self._calls: dict[int, Call] = {}  # by the identity of the request

    def before(self, connection: Connection, request: Command) -> None:
        """Raises BrokerError if an interceptor refuses the request."""
        if request.code in INTERCEPTED_CODES:
            return
        call = Call(connection, operation_of(request.code), resources_of(request))
        self._interceptors.admit(call)
        self._calls[id(request)] = call

    def after(
        self, _connection: Connection, request: Command, response: Command | None
    ) -> Command | None:
        call = self._calls.pop(id(request), None)
        if call is not None:
            self._interceptors.finish(call, None if response is None else response.code)
        return response


def operation_of(code: int) -> Operation:
    """The operation of a request code that no service handles."""
    return Operation(name=name_of(code), code=code)


def resources_of(request: Command) -> list[Resource]:
    """The resources that a request names; raises RemoteProtocolError."""
    row = CATALOGUE.get(request.code)
    resources: list[Resource] = []
    for access in () if row is None else row.access:
        if access.resource == "Cluster":
            resources.append(Resource("cluster", ""))
        elif access.field and (text := (request.ext or {}).get(access.field)):
            names = [text] if access.separator is None else text.split(access.separator)
            resources += [Resource(access.resource.lower(), name) for name in names]
    if row is not None and (find := IN_BODY.get(request.code)) is not None:
        assert row.request_body_type is not None, "the body names resources"
        resources += find(decode_body(row.request_body_type, request.body or b""))
    return resources
