"""Base and session of both pull consumers: start, stop, hooks, group membership, offsets.

:class:`PullClient` is the base class. A started consumer has a :class:`PullConsumerSession`, which
belongs to the loop of the start: it acquires the client instance, registers a
:class:`~skylark.client.consumer.pull_member.PullMember` there and opens the link for pulls. At the
end it undoes this in an order that loses nothing: it saves the offsets before it unregisters.

Consume hooks are called when messages are handed out, because these consumers do not know when a
message is consumed.

Counterpart of what Java's ``DefaultMQPullConsumerImpl`` and ``DefaultLitePullConsumerImpl`` have in
common.
"""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol, TypeAlias

from skylark.client.consumer.allocation import Allocation
from skylark.client.consumer.consumer_start import ConsumerStart
from skylark.client.consumer.offset_persistence import open_offset_store
from skylark.client.consumer.offset_table import OffsetTable
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.pull_api import QueueAccess, check_sql
from skylark.client.consumer.pull_member import PullMember, QueueEvents
from skylark.client.consumer.rebalance_executor import announce
from skylark.client.consumer.subscription import Subscription
from skylark.client.core.argument_checks import checks_arguments, refused
from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_options import ClientOptions, given_options, seconds
from skylark.client.core.client_runtime import ClientRuntime, default_runtime, runtime_of
from skylark.client.core.control_loop import Handover
from skylark.client.core.hooks import ConsumeContext, ConsumeHooks
from skylark.client.core.instance_registry import acquire_instance
from skylark.client.core.route_cache import no_route
from skylark.client.core.serializers import Deserializer, deserializing_hooks
from skylark.client.core.service_state import (
    ServiceState,
    Startable,
    require_new,
    require_running,
)
from skylark.client.core.validation import check_group, check_hooks, check_topic
from skylark.core.errors import SkylarkError
from skylark.core.lifecycle import Tasks, join
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)

#: Called when the queues of a topic have changed.
TopicListener: TypeAlias = Callable[[str, frozenset[MessageQueue]], object]

WATCH_FIRST_S: Final = 10.0


class SessionSettings(Protocol):
    """The settings of a pull consumer that its session needs."""

    @property
    def allocation(self) -> Allocation: ...

    @property
    def clustering(self) -> bool: ...

    @property
    def offset_folder(self) -> Path | None: ...


class PullConsumerSession:
    """The session of one pull consumer; see the module docstring."""

    def __init__(
        self,
        group: str,
        options: ClientOptions,
        runtime: ClientRuntime,
        events: QueueEvents,
        settings: SessionSettings,
    ) -> None:
        """``group`` as the application knows it; raises ConfigError or ClientError."""
        client_id = options.client_id(keep_default=not settings.clustering, stream=True)
        self.instance = acquire_instance(options, client_id, runtime, stream=True)
        self.clock = runtime.clock
        self.namespace = self.instance.namespace
        self.group = self.namespace.wrap(group)
        self._events = events
        self._settings = settings
        self._tasks = Tasks(f"consumer {group}")
        self._opened = False
        self._stop_pulling: Callable[[], Awaitable[None]] | None = None

    # ---- life ------------------------------------------------------------------------------------

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Start the instance and open the link; undo both if the block raises."""
        try:
            await self.instance.start()
            self._store = open_offset_store(
                self.instance,
                self.group,
                clustering=self._settings.clustering,
                folder=self._settings.offset_folder,
            )
            self.access = QueueAccess(self.instance, self.instance.open_link(), self.group)
            self._member = PullMember(
                self.instance,
                self.group,
                self._settings.allocation,
                self._store,
                Handover(asyncio.get_running_loop()),
                self._events,
                clustering=self._settings.clustering,
            )
            self._opened = True
            yield
        except BaseException:
            await self._undo()
            raise

    async def join(self, subscriptions: Iterable[Subscription]) -> None:
        """Register in the group with these subscriptions, and start to share queues.

        Raises ClientStateError if the instance has the group already, and BrokerError for an
        invalid SQL condition.
        """
        wanted = {subscription.topic: subscription for subscription in subscriptions}
        starting = ConsumerStart(
            instance=self.instance,
            group=self.group,
            timeout_s=seconds(self.instance.options.start_timeout),
        )
        await starting.fetch_routes(wanted)
        if self._settings.clustering:
            await starting.require_free_id(wanted)
        for subscription in wanted.values():
            await check_sql(self.instance, self.access.link, self.group, subscription)
        self._member.subscriptions = wanted
        await self.instance.register_consumer(self._member)
        await self.instance.heartbeat_all(whole=True)
        self.instance.rebalance_soon()

    def check_loop(self) -> None:
        """Raise ClientStateError on another loop, or in another process, than that of the start."""
        self.access.link.check_loop(f"consumer {self.namespace.unwrap(self.group)}")

    def on_undo(self, stop_pulling: Callable[[], Awaitable[None]]) -> None:
        """Set what to do first at the end, or when the start fails."""
        self._stop_pulling = stop_pulling

    async def leave(self) -> None:
        """Stop pulling, save offsets, leave the group, release everything."""
        try:
            await self._tasks.cancel_and_wait()
        finally:
            await self._undo()

    async def _undo(self) -> None:
        try:
            if self._stop_pulling is not None:
                await self._stop_pulling()
        finally:
            await self._release()

    async def _release(self) -> None:
        try:
            if self._opened:
                await self._member.leave()
        finally:
            try:
                if self._opened:
                    await self.access.link.release()
            finally:
                await self.instance.release()

    # ---- subscriptions ---------------------------------------------------------------------------

    def subscription(self, wire_topic: str) -> Subscription | None:
        """The subscription to a topic."""
        return self._member.subscriptions.get(wire_topic)

    def subscribe(self, subscription: Subscription) -> None:
        """Add or replace a subscription; a heartbeat sends it to brokers soon."""
        known = self._member.subscriptions
        self._member.subscriptions = {**known, subscription.topic: subscription}
        self._tasks.spawn(announce(self.instance, subscription.topic), name="subscribe")

    def unsubscribe(self, topic: str) -> None:
        """Remove the subscription to a topic, by its name without namespace."""
        wire_topic = self.namespace.wrap(topic)
        known = self._member.subscriptions
        self._member.subscriptions = {t: s for t, s in known.items() if t != wire_topic}
        self._tasks.spawn(announce(self.instance, None), name="unsubscribe")

    def assigned(self, queues: Mapping[MessageQueue, ProcessQueue]) -> None:
        """Set the queues that the application assigned; saves the offsets of former ones soon."""
        left = self._member.assigned.keys() - queues.keys()
        self._member.assigned = queues
        if left:
            self._tasks.spawn(self._give_up(left), name="unassigned")

    async def _give_up(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            await self.instance.runtime.control.run(self._store.save([queue]))
            if queue not in self._member.assigned:
                self.offsets.forget(queue)

    def my_queues(self, wire_topic: str) -> frozenset[MessageQueue]:
        """Our share of the queues of a topic, from rebalancing."""
        found = self._member.process_queues
        return frozenset(queue for queue in found if queue.topic == wire_topic)

    # ---- offsets ---------------------------------------------------------------------------------

    @property
    def offsets(self) -> OffsetTable:
        """Committed offsets in memory."""
        return self._store.table

    async def stored_offset(self, queue: MessageQueue, *, from_store: bool = False) -> int | None:
        """The committed offset: from memory if it has one, else from the store."""
        offset = None if from_store else self._store.table.read(queue)
        if offset is None:
            offset = await self.instance.runtime.control.run(self._member.read_offset(queue))
        return offset

    async def committed_offset(self, queue: MessageQueue) -> int | None:
        """The committed offset in the store; does not change memory."""
        return await self.instance.runtime.control.run(self._store.read(queue))

    async def commit(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit these offsets and wait until they are stored; raises SkylarkError or OSError."""
        for queue, offset in offsets.items():
            self._store.table.update(queue, offset, increase_only=False)
        if offsets:
            await self.instance.runtime.control.run(self._store.commit(tuple(offsets)))

    # ---- topics ----------------------------------------------------------------------------------

    async def fetch_queues(self, topic: str) -> frozenset[MessageQueue]:
        """The current queues of a topic; raises NoRouteError."""
        wire_topic = self.namespace.wrap(topic)
        route = await self.instance.refresh_route(wire_topic)
        if route is None or not route.subscribe:
            raise no_route(wire_topic)
        return frozenset(map(self.namespace.unwrap_queue, route.subscribe))

    def watch(self, topic: str, listener: TopicListener, interval_s: float) -> None:
        """Call ``listener`` when the queues of the topic change."""
        self._tasks.spawn(self._watch(topic, listener, interval_s), name=f"watch {topic}")

    async def _watch(self, topic: str, listener: TopicListener, interval_s: float) -> None:
        known = await self._queues_if_any(topic)
        await self.clock.sleep(WATCH_FIRST_S)
        while True:
            found = await self._queues_if_any(topic)
            if found is not None and found != known:
                known = found
                try:
                    listener(topic, found)
                except Exception:
                    logger.exception("the listener of topic %s failed", topic)
            await self.clock.sleep(interval_s)

    async def _queues_if_any(self, topic: str) -> frozenset[MessageQueue] | None:
        try:
            return await self.fetch_queues(topic)
        except SkylarkError as error:
            logger.info("cannot get the queues of topic %s now: %s", topic, error)
            return None


@checks_arguments
class PullClient(Startable, QueueEvents):
    """Base class of pull consumers; ``start`` sets ``_session``.

    The methods of QueueEvents are not for applications.
    """

    _session: PullConsumerSession

    def __init__(
        self,
        group: str,
        options: ClientOptions | None,
        hooks: Sequence[object],
        runtime: ClientRuntime | None,
        value_deserializer: Deserializer | None,
    ) -> None:
        check_group(group)
        self.group = group
        self.options = given_options(options)
        self.state = ServiceState.CREATE_JUST
        self._hooks = (*deserializing_hooks(value_deserializer), *check_hooks(hooks))
        self._consume_hooks = ConsumeHooks(self._hooks)
        self._runtime = runtime_of(self.options, runtime)
        self._stopping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.group} {self.state.value}>"

    def _open_session(self, settings: SessionSettings) -> PullConsumerSession:
        runtime = self._runtime or default_runtime()
        return PullConsumerSession(self.group, self.options, runtime, self, settings)

    async def start(self) -> None:
        """Join the group; raises ClientError, also for invalid SQL.

        Waits for a name server, up to ``start_timeout`` of the options. A start that failed or was
        cancelled may be repeated.
        """
        require_new(self.state, f"consumer {self.group}")
        self.state = ServiceState.START_FAILED
        try:
            await self._start()
        except BaseException:
            if self.state is not ServiceState.SHUTDOWN_ALREADY:
                self.state = ServiceState.CREATE_JUST
            raise

    @abc.abstractmethod
    async def _start(self) -> None:
        """Open a session, join the group, and set the state to RUNNING."""

    async def stop(self) -> None:
        """Save the offsets that were committed and leave the group.

        A second call waits too. A cancellation ends the wait, not the stop.
        """
        if self._stopping is None:
            was_running = self.state is ServiceState.RUNNING
            if was_running:
                self._session.check_loop()
            self.state = ServiceState.SHUTDOWN_ALREADY
            if not was_running:
                return
            self._stopping = asyncio.get_running_loop().create_task(self._session.leave())
        await join(self._stopping)

    def _require_running(self) -> PullConsumerSession:
        require_running(self.state, f"consumer {self.group}")
        self._session.check_loop()
        return self._session

    def _call_consume_hooks(self, messages: list[MessageExt]) -> None:
        """Call the consume hooks for messages of one queue that are handed out."""
        if messages and self._consume_hooks.any:
            group = self._session
            context = ConsumeContext(
                group=self.group,
                messages=messages,
                queue=group.namespace.unwrap_queue(messages[0].queue),
                client_id=group.instance.client_id,
                namespace=group.namespace.name,
            )
            self._consume_hooks.before(context)
            context.success, context.status = True, "CONSUME_SUCCESS"
            context.return_type = "SUCCESS"
            self._consume_hooks.after(context)

    # ---- queues ----------------------------------------------------------------------------------

    async def fetch_queues(self, topic: str) -> frozenset[MessageQueue]:
        """All readable queues of a topic; raises NoRouteError."""
        check_topic(topic)
        return await self._require_running().fetch_queues(topic)

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the oldest message."""
        group = self._require_running()
        return await group.access.min_offset(group.namespace.wrap_queue(queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset of the next message to be stored."""
        group = self._require_running()
        return await group.access.max_offset(group.namespace.wrap_queue(queue))

    async def offset_for_time(self, queue: MessageQueue, time: datetime | int) -> int:
        """The offset of the first message stored at or after a time (or milliseconds)."""
        group = self._require_running()
        time_ms = time if isinstance(time, int) else round(time.timestamp() * 1000)
        if time_ms < 0:
            raise refused("time", time, "in 1970 or later")
        return await group.access.search_offset(group.namespace.wrap_queue(queue), time_ms)
