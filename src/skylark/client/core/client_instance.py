"""Client instance: the routes, heartbeats and connections that clients with one client id share.

An instance lives on the control loop (:mod:`skylark.client.core.control_loop`). There it refreshes
routes, sends heartbeats, serves the requests of brokers, and lets its consumers rebalance and save
their offsets. Its methods may be awaited on any loop unless their docstring names one; ``routes``,
``lookup`` and ``versions`` may be read from any thread. Sends and pulls use the
:class:`~skylark.client.core.broker_connections.BrokerConnections` of the loop on which they are
called (:meth:`open_link`).

:func:`skylark.client.core.instance_registry.acquire_instance` returns one, new or shared. ``start``
may be called any number of times; ``release`` must be called as often as it was acquired. After the
last release all tasks have ended and all connections are closed.

=====================================================  ========  ==========================
task                                                   first     then every
=====================================================  ========  ==========================
refresh the routes of all topics                       10 ms     ``route_interval``
drop addresses that are in no route, then heartbeats   1 s       ``heartbeat_interval``
persist the offsets of all consumers                   10 s      ``offset_interval``
rebalance                                              a wake-up 20 s, or 1 s if unbalanced
=====================================================  ========  ==========================

Counterpart of Java's ``MQClientInstance``.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar, TypeVarTuple

from skylark.auth.signature import Credentials
from skylark.client.core.broker_connections import BrokerConnections, ConnectionSettings
from skylark.client.core.broker_request_handlers import BrokerRequestHandlers, ReplyReceiver
from skylark.client.core.client_options import ClientOptions, seconds
from skylark.client.core.client_runtime import ClientRuntime
from skylark.client.core.heartbeat_sender import HeartbeatPlan, Heartbeats
from skylark.client.core.member_table import (
    ConsumerMember,
    MemberTable,
    ProducerMember,
    RebalanceLoop,
    add_member,
    remove_member,
)
from skylark.client.core.name_servers import NameServers
from skylark.client.core.namespace import Namespace
from skylark.client.core.request_signing import RequestChain
from skylark.client.core.route_cache import Lookup, Route, RouteTable
from skylark.client.core.route_refresh import RouteKeeper
from skylark.client.core.service_state import ServiceState, require_running
from skylark.client.metrics import NO_CONSUME_METER, ConsumeMeter, client_metrics
from skylark.core.errors import SkylarkError
from skylark.core.lifecycle import Tasks, join
from skylark.core.names import Endpoint
from skylark.net.dispatch import Dispatcher

logger = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

ROUTES_FIRST_S = 0.01
HEARTBEAT_FIRST_S = 1.0
OFFSETS_FIRST_S = 10.0
#: How long to wait for cancelled handlers of requests of brokers.
SERVED_GRACE_S = 1.0


class _Running:
    """The parts of an instance that run on the control loop, from start to stop."""

    def __init__(self, instance: ClientInstance) -> None:
        options, runtime = instance.options, instance.runtime
        members, routes = instance.members, instance.routes
        self.tasks = Tasks(f"client {instance.client_id}")
        self.rebalance = RebalanceLoop(lambda: members.consumers.values(), runtime.clock)
        self.heartbeats = Heartbeats(
            HeartbeatPlan(instance.client_id, use_v2=options.heartbeat_v2),
            members,
            routes,
            lambda: self.link,
            clock=runtime.clock,
            tasks=self.tasks,
            rebalance=self.rebalance.wake,
            metrics=instance.metrics,
        )
        self.request_handlers = BrokerRequestHandlers(
            members.producers.get, members.consumers.get, self.rebalance.wake, self.tasks
        )
        self.dispatcher = Dispatcher()
        self.request_handlers.add_to(self.dispatcher)
        self.link = BrokerConnections(
            instance.link_settings, dispatcher=self.dispatcher, watcher=self.heartbeats
        )
        self.name_servers = NameServers(
            self.link, instance.endpoint.namesrv, timeout_s=seconds(options.request_timeout)
        )
        self.routes = RouteKeeper(
            routes,
            self.name_servers,
            self.tasks,
            instance.route_changed,
            clock=runtime.clock,
            is_wanted=members.consumes,
            interval_s=seconds(options.route_interval),
        )

    async def stop(self) -> None:
        try:
            await self.tasks.cancel_and_wait()
        finally:
            await self._end_served()
            await self.link.close()

    async def _end_served(self) -> None:
        served = tuple(self.dispatcher.tasks)
        for task in served:
            task.cancel()
        if not served:
            return
        try:
            async with self.link.clock.timeout(SERVED_GRACE_S):
                await asyncio.wait(served)
        except TimeoutError:
            logger.warning("%d cancelled handlers of broker requests have not ended", len(served))


class ClientInstance:
    """See the module docstring."""

    def __init__(
        self,
        client_id: str,
        options: ClientOptions,
        endpoint: Endpoint,
        runtime: ClientRuntime,
        *,
        credentials: Credentials | None = None,
        stream: bool = False,
        zone: Mapping[str, str] | None = None,
        on_release: Callable[[ClientInstance], bool] = lambda _: True,
    ) -> None:
        """``stream`` marks requests as those of a pull consumer; ``zone`` has entries for name
        servers; ``on_release`` returns whether that was the last release."""
        self.client_id = client_id
        self.options = options
        self.endpoint = endpoint
        self.runtime = runtime
        self.namespace = Namespace(endpoint.namespace or None)
        self.routes = RouteTable()
        self.lookup = Lookup(self.routes, self)
        self.members = MemberTable()
        self.metrics = client_metrics(options.metrics)
        self.state = ServiceState.CREATE_JUST
        self.link_settings = ConnectionSettings(
            control=runtime.control,
            network=runtime.network,
            clock=runtime.clock,
            chain=RequestChain(
                namespace_v2=options.namespace_v2,
                stream=stream,
                hooks=options.rpc_hooks,
                credentials=credentials,
                zone=zone,
            ),
            lookup=self.lookup,
            vip=options.vip_channel,
            timeout_s=seconds(options.request_timeout),
            in_flight_max=options.in_flight_max,
            in_flight_bytes_max=options.in_flight_bytes_max,
            metrics=self.metrics,
        )
        self._on_release = on_release
        self._running: _Running | None = None
        self._replies: tuple[ReplyReceiver, ...] = ()
        self._links: dict[asyncio.AbstractEventLoop, BrokerConnections] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<ClientInstance {self.client_id} {self.state.value}>"

    # ---- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the tasks; does nothing if they run already."""
        await self.runtime.control.run(self._start())

    async def release(self) -> None:
        """Undo one acquire; the last release stops the instance.

        A cancellation ends the wait, not the stop.
        """
        self.runtime.control.check_process()
        if self._on_release(self):
            await join(self.runtime.control.run(self._stop()))

    async def _start(self) -> None:
        if self.state is ServiceState.RUNNING:
            return
        if self.state is not ServiceState.CREATE_JUST:
            require_running(self.state, f"client {self.client_id}")
        self.state = ServiceState.START_FAILED
        running = self._running = _Running(self)
        running.request_handlers.replies = self._replies
        options = self.options
        routes_s, brokers_s = seconds(options.route_interval), seconds(options.heartbeat_interval)
        self._every("routes", ROUTES_FIRST_S, routes_s, self._refresh_routes)
        self._every("brokers", HEARTBEAT_FIRST_S, brokers_s, self._send_heartbeats)
        offsets_s = seconds(options.offset_interval)
        self._every("offsets", OFFSETS_FIRST_S, offsets_s, self._persist_offsets)
        running.tasks.spawn(running.rebalance.run(), name="rebalance")
        self.state = ServiceState.RUNNING
        logger.info("client %s started, name servers %s", self.client_id, self.endpoint.namesrv)

    async def _stop(self) -> None:
        self.state = ServiceState.SHUTDOWN_ALREADY
        running, self._running = self._running, None
        try:
            if running is not None:
                await running.stop()
        finally:
            self._close_links()
        logger.info("client %s stopped", self.client_id)

    def _parts(self) -> _Running:
        if self._running is None:
            require_running(self.state, f"client {self.client_id}")
        assert self._running is not None
        return self._running

    # ---- members ---------------------------------------------------------------------------------

    async def register_producer(self, member: ProducerMember) -> None:
        """Raises ClientStateError if the group is registered here already."""
        await self._on_control(add_member, self.members.producers, member, "producer")

    async def register_consumer(self, member: ConsumerMember) -> None:
        """Raises ClientStateError if the group is registered here already."""
        await self._on_control(self._add_consumer, member)

    def _add_consumer(self, member: ConsumerMember) -> None:
        add_member(self.members.consumers, member, "consumer")
        if self._running is not None:
            self._running.routes.look_for(member.topics())

    async def unregister_producer(self, member: ProducerMember) -> None:
        """Unregister from every broker that is connected."""
        if await self._on_control(remove_member, self.members.producers, member):
            await self.runtime.control.run(self._leave(producer_group=member.group))

    async def unregister_consumer(self, member: ConsumerMember) -> None:
        """Unregister from every broker that is connected."""
        if await self._on_control(remove_member, self.members.consumers, member):
            await self.runtime.control.run(self._leave(consumer_group=member.group))

    async def _leave(
        self, *, producer_group: str | None = None, consumer_group: str | None = None
    ) -> None:
        running = self._running
        if running is None:
            return

        async def leave(address: str) -> None:
            try:
                await running.link.calls.unregister(
                    address,
                    self.client_id,
                    producer_group=producer_group,
                    consumer_group=consumer_group,
                )
            except SkylarkError as error:
                logger.info("%s cannot unregister from %s: %s", self.client_id, address, error)

        # A broker forgets a client with its connection: without one there is nothing to do.
        addresses = {a for group in self.routes.brokers.values() for a in group.values()}
        await asyncio.gather(*(leave(a) for a in sorted(addresses) if running.link.connected(a)))

    def add_reply_listener(self, listener: ReplyReceiver) -> None:
        """Call it for every reply to a request (326), on the control loop; from any thread."""
        with self._lock:
            self._set_reply_listeners((*self._replies, listener))

    def remove_reply_listener(self, listener: ReplyReceiver) -> None:
        """Undo :meth:`add_reply_listener`; from any thread."""
        with self._lock:
            self._set_reply_listeners(tuple(o for o in self._replies if o is not listener))

    def _set_reply_listeners(self, listeners: tuple[ReplyReceiver, ...]) -> None:
        self._replies = listeners
        running = self._running
        if running is not None:
            running.request_handlers.replies = listeners

    def consume_meter(self, group: str, topic: str) -> ConsumeMeter:
        """The meter of a group and a topic, by the names that brokers know."""
        if self.metrics is None:
            return NO_CONSUME_METER
        return self.metrics.consume_meter(
            self.namespace.unwrap(group), self.namespace.unwrap(topic)
        )

    # ---- heartbeats and rebalancing --------------------------------------------------------------

    @property
    def versions(self) -> Mapping[str, int]:
        """Frame version of each broker that answered a heartbeat, by address."""
        running = self._running
        return {} if running is None else running.heartbeats.versions

    def broker_version(self, address: str) -> int:
        """Frame version of the broker's last answer to a heartbeat, 0 if there was none."""
        return self.versions.get(address, 0)

    async def heartbeat_all(self, *, whole: bool = False) -> bool:
        """Send a heartbeat to all brokers; returns whether one accepted it.

        ``whole``: the subscriptions or the assignment have changed.
        """
        return await self._with_parts(lambda parts: parts.heartbeats.send_all(whole=whole))

    def rebalance_soon(self) -> None:
        """Wake the rebalance loop; from any thread."""
        self.runtime.control.post(self._wake_rebalance)

    def _wake_rebalance(self) -> None:
        if self._running is not None:
            self._running.rebalance.wake()

    # ---- routes ----------------------------------------------------------------------------------

    async def refresh_route(
        self, topic: str, queue_count: int = 0, model: str = ""
    ) -> Route | None:
        """Fetch a route; see :class:`skylark.client.core.route_cache.RouteSource`."""
        return await self._with_parts(lambda parts: parts.routes.refresh(topic, queue_count, model))

    def route_changed(self, route: Route) -> None:
        """Rebalance if a consumer reads the topic, which may have other queues now."""
        if self.members.consumes(route.topic):
            self._wake_rebalance()

    # ---- links -----------------------------------------------------------------------------------

    def open_link(self) -> BrokerConnections:
        """The link of the running loop, shared by all clients on it; ``await link.release()``."""
        self.runtime.control.check_process()
        require_running(self.state, f"client {self.client_id}")
        loop = asyncio.get_running_loop()
        with self._lock:
            for other in [known for known in self._links if known.is_closed()]:
                del self._links[other]
            link = self._links.get(loop)
            if link is not None:
                link.add_user()
                return link
            link = self._links[loop] = BrokerConnections(
                self.link_settings, on_close=self._link_closed
            )
            return link

    @property
    def control_link(self) -> BrokerConnections:
        """The link of the control loop; to be used there only."""
        return self._parts().link

    def _link_closed(self, link: BrokerConnections) -> None:
        with self._lock:
            if self._links.get(link.loop) is link:
                del self._links[link.loop]

    def _close_links(self) -> None:
        """Close links that were not released, each on its loop."""
        with self._lock:
            left = [link for loop, link in self._links.items() if loop.is_running()]
        for link in left:
            logger.warning("client %s stops although a link of it was not released", self.client_id)
            asyncio.run_coroutine_threadsafe(link.close(), link.loop)

    # ---- periodic tasks ------------------------------------------------------------

    async def add_periodic(
        self, name: str, first_s: float, period_s: float, work: Callable[[], Awaitable[object]]
    ) -> Callable[[], None]:
        """Repeat ``work`` on the control loop; returns a function that ends it, for any thread."""
        task = await self._on_control(self._every, name, first_s, period_s, work)
        return lambda: self.runtime.control.post(task.cancel)

    def _every(
        self, name: str, first_s: float, period_s: float, work: Callable[[], Awaitable[object]]
    ) -> asyncio.Task[None]:
        return self._parts().tasks.spawn(self._repeat(name, first_s, period_s, work), name=name)

    async def _repeat(
        self, name: str, first_s: float, period_s: float, work: Callable[[], Awaitable[object]]
    ) -> None:
        await self.runtime.clock.sleep(first_s)
        while True:
            try:
                await work()
            except Exception:
                logger.exception(
                    "client %s: periodic task %s failed, the next run follows", self.client_id, name
                )
            await self.runtime.clock.sleep(period_s)

    async def _refresh_routes(self) -> None:
        topics = dict.fromkeys((*self.members.topics(), *self.routes.topics))
        await self._parts().routes.refresh_all(topics)

    async def _send_heartbeats(self) -> None:
        running = self._parts()
        dropped = self.routes.drop_unrouted()
        for address in dropped:
            logger.info("broker %s is no longer in any route", address)
            running.link.disconnect(address)
        running.heartbeats.drop(dropped)
        await running.heartbeats.send_all()

    async def _persist_offsets(self) -> None:
        for member in tuple(self.members.consumers.values()):
            try:
                await member.persist_offsets()
            except SkylarkError as error:
                logger.warning("offsets of %s are not saved: %s", member.group, error)
            except Exception:  # such as an error of a hook; the other groups are saved anyway
                logger.exception("offsets of %s are not saved", member.group)

    async def _with_parts(self, call: Callable[[_Running], Awaitable[T]]) -> T:
        """Call a part of the running instance on the control loop; from any loop."""

        async def work() -> T:
            return await call(self._parts())

        return await self.runtime.control.run(work())

    async def _on_control(self, function: Callable[[*Ts], T], *args: *Ts) -> T:
        async def call() -> T:
            return function(*args)

        return await self.runtime.control.run(call())
