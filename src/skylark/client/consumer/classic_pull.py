"""The classic pull consumer: each pull is a call, and the application keeps the offsets.

::

    async with PullConsumer("group", options) as consumer:
        for queue in await consumer.fetch_queues("T"):
            offset = await consumer.fetch_consume_offset(queue) or 0
            result = await consumer.pull(queue, offset, count=32)
            consumer.update_consume_offset(queue, result.next_offset)

Nothing is fetched ahead and nothing is committed unless told. :meth:`PullConsumer.pull` returns at
once; :meth:`PullConsumer.pull_block_if_not_found` lets the broker wait for a message. After
:meth:`PullConsumer.register_queue_listener` the consumer shares the queues of a topic with its
group, and tells which are its.

:class:`PullSchedule` does the going round: for each queue that is ours it calls the application
again and again, after whatever delay the application asked for.

Java has deprecated this consumer; :mod:`skylark.client.consumer.lite_pull` is the one for new
programs. Queues and topics are named as the application knows them, without namespace. Answers to
``DefaultMQPullConsumer`` and ``MQPullConsumerScheduleService``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from pathlib import Path
from typing import Final, Self, TypeAlias

from skylark.client.consumer.allocate import Allocation, Averagely
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.pull_access import PullResult, PullTerms
from skylark.client.consumer.pull_group import PullGroup
from skylark.client.consumer.rebalance import Settled
from skylark.client.consumer.send_back import SendsBack
from skylark.client.consumer.settings import QueueListener, check_model
from skylark.client.consumer.subscription import make_subscription
from skylark.client.joining import join
from skylark.client.message import MessageExt
from skylark.client.options import ClientOptions, Duration, seconds
from skylark.client.routes import MASTER_ID
from skylark.client.runtime import ClientRuntime, default_runtime
from skylark.client.state import (
    ServiceState,
    Startable,
    require_new,
    require_not_stopped,
    require_running,
)
from skylark.client.validation import check_group, check_topic
from skylark.core.errors import ClientError
from skylark.core.lifecycle import Tasks
from skylark.wire.bodies.common import MessageQueue
from skylark.wire.bodies.heartbeat import MessageModel

log = logging.getLogger(__name__)

PULL_TIMEOUT_S: Final = 10.0  # consumerPullTimeoutMillis
SUSPEND_MAX_S: Final = 20.0  # brokerSuspendMaxTimeMillis
SUSPEND_TIMEOUT_S: Final = 30.0  # consumerTimeoutMillisWhenSuspend
RECONSUME_TIMES_MAX: Final = 16  # maxReconsumeTimes


class PullConsumer(Startable):
    """See the module."""

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        message_model: MessageModel = MessageModel.CLUSTERING,
        allocation: Allocation | None = None,
        max_reconsume_times: int = RECONSUME_TIMES_MAX,
        offset_folder: Path | None = None,
        runtime: ClientRuntime | None = None,
    ) -> None:
        """``offset_folder``: where broadcasting consumers keep their offsets."""
        check_group(group)
        check_model(message_model)
        self.group = group
        self.options = options or ClientOptions()
        self.state = ServiceState.CREATE_JUST
        self._clustering = message_model is MessageModel.CLUSTERING
        self._allocation = allocation or Averagely()
        self._max_reconsume_times = max_reconsume_times
        self._offset_folder = offset_folder
        self._runtime = runtime
        self._listeners: dict[str, list[QueueListener]] = {}
        self._stopping: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<PullConsumer {self.group} {self.state.value}>"

    # ---- life ------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group."""
        require_new(self.state, f"consumer {self.group}")
        self.state = ServiceState.START_FAILED
        group = self._group_access = PullGroup(
            self.group,
            self.options,
            self._runtime or default_runtime(),
            self,
            allocation=self._allocation,
            clustering=self._clustering,
            offset_folder=self._offset_folder,
        )
        async with group.starting():
            self._sends_back = SendsBack(
                group.access.link,
                group.group,
                reconsume_times_max=self._max_reconsume_times,
                unit_mode=self.options.unit_mode,
            )
            self._suggested: dict[MessageQueue, int] = {}
            now_ms = group.clock.now_ms()
            await group.join(
                make_subscription(group.namespace.wrap(topic), now_ms=now_ms)
                for topic in self._listeners
            )
            require_not_stopped(self.state, f"consumer {self.group}")
            self.state = ServiceState.RUNNING

    async def stop(self) -> None:
        """Save the offsets that were updated, and leave the group."""
        if self._stopping is None:
            was_running = self.state is ServiceState.RUNNING
            if was_running:
                self._group_access.check_loop()
            self.state = ServiceState.SHUTDOWN_ALREADY
            if not was_running:
                return
            self._stopping = asyncio.get_running_loop().create_task(self._group_access.leave())
        await join(self._stopping)

    def _running(self) -> PullGroup:
        require_running(self.state, f"consumer {self.group}")
        self._group_access.check_loop()
        return self._group_access

    # ---- queues ----------------------------------------------------------------------------------

    def register_queue_listener(self, topic: str, listener: QueueListener | None = None) -> Self:
        """Share the queues of a topic with the group, and hear of it when they are shared anew.

        ``listener(topic, all queues, ours)`` is called on the loop of the consumer.
        """
        check_topic(topic)
        listeners = self._listeners.setdefault(topic, [])
        if listener is not None:
            listeners.append(listener)
        if self.state is ServiceState.RUNNING:
            group = self._group_access
            wire_topic = group.namespace.wrap(topic)
            group.subscribe(make_subscription(wire_topic, now_ms=group.clock.now_ms()))
        return self

    def queue_opened(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """See :class:`~skylark.client.consumer.pull_member.QueueEvents`; not for applications."""

    def queue_released(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """See :class:`~skylark.client.consumer.pull_member.QueueEvents`; not for applications."""

    def queues_settled(self, settled: Settled) -> None:
        """See :class:`~skylark.client.consumer.pull_member.QueueEvents`; not for applications."""
        if self.state is ServiceState.SHUTDOWN_ALREADY:
            return
        namespace = self._group_access.namespace
        topic = namespace.unwrap(settled.topic)
        everything = frozenset(map(namespace.unwrap_queue, settled.all_queues))
        ours = frozenset(map(namespace.unwrap_queue, settled.my_queues))
        for listener in tuple(self._listeners.get(topic, ())):
            try:
                listener(topic, everything, ours)
            except Exception:
                log.exception("a listener of topic %s failed", topic)

    async def fetch_queues(self, topic: str) -> frozenset[MessageQueue]:
        """All queues of a topic that can be read, as of now; raises NoRouteError."""
        return await self._running().fetch_queues(topic)

    def queues_in_balance(self, topic: str) -> frozenset[MessageQueue]:
        """The queues of a topic that are ours; empty without :meth:`register_queue_listener`."""
        group = self._running()
        found = group.my_queues(group.namespace.wrap(topic))
        return frozenset(map(group.namespace.unwrap_queue, found))

    # ---- messages --------------------------------------------------------------------------------

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count: int = 32,
        *,
        tags: str | None = None,
        sql: str | None = None,
        size_max: int | None = None,
        timeout: Duration = PULL_TIMEOUT_S,  # noqa: ASYNC109 - of the request, not of the caller
    ) -> PullResult:
        """At most ``count`` messages from ``offset`` on, without waiting for any.

        Raises BrokerError, TransportError, and UndecodableError for a message that is none; that
        error has the offset to go on at.
        """
        terms = PullTerms(count_max=count, size_max=size_max, timeout_s=seconds(timeout))
        return await self._pull(queue, offset, terms, tags, sql)

    async def pull_block_if_not_found(
        self,
        queue: MessageQueue,
        offset: int,
        count: int = 32,
        *,
        tags: str | None = None,
        sql: str | None = None,
        size_max: int | None = None,
    ) -> PullResult:
        """The same, but the broker waits up to 20 seconds for a first message."""
        terms = PullTerms(
            count_max=count,
            size_max=size_max,
            suspend_s=SUSPEND_MAX_S,
            timeout_s=SUSPEND_TIMEOUT_S,
        )
        return await self._pull(queue, offset, terms, tags, sql)

    async def _pull(
        self, queue: MessageQueue, offset: int, terms: PullTerms, tags: str | None, sql: str | None
    ) -> PullResult:
        group = self._running()
        if offset < 0:
            raise ClientError(f"offset < 0: {offset}")
        if terms.count_max <= 0:
            raise ClientError(f"maxNums <= 0: {terms.count_max}")
        wire_queue = group.namespace.wrap_queue(queue)
        subscription = make_subscription(
            wire_queue.topic, tags, sql=sql, now_ms=group.clock.now_ms()
        )
        broker_id = self._suggested.get(wire_queue, MASTER_ID)
        result, self._suggested[wire_queue] = await group.access.pull(
            wire_queue, subscription, offset, terms, broker_id
        )
        return result

    async def send_message_back(self, message: MessageExt, delay_level: int = 0) -> None:
        """Have a message delivered to the group again; raises ClientError if nobody takes it.

        Level 0: after a delay that grows with each delivery; -1: to the dead letters.
        """
        self._running()
        if not await self._sends_back.give(message, delay_level):
            raise ClientError(f"{message} could not be sent back")

    # ---- offsets ---------------------------------------------------------------------------------

    def update_consume_offset(self, queue: MessageQueue, offset: int) -> None:
        """Count as consumed what is before ``offset``; saved within seconds."""
        group = self._running()
        group.offsets.update(group.namespace.wrap_queue(queue), offset, increase_only=False)

    async def update_consume_offset_to_broker(self, queue: MessageQueue, offset: int) -> None:
        """Save an offset at the broker now, whoever has the queue; raises what the broker says."""
        group = self._running()
        wire_queue = group.namespace.wrap_queue(queue)
        target = await group.access.link.lookup.reader_of(wire_queue)
        await group.access.link.calls.update_offset(target.address, group.group, wire_queue, offset)

    async def fetch_consume_offset(
        self, queue: MessageQueue, *, from_store: bool = False
    ) -> int | None:
        """The committed offset, from memory first unless told otherwise; None if there is none."""
        group = self._running()
        return await group.stored_offset(group.namespace.wrap_queue(queue), from_store=from_store)

    async def min_offset(self, queue: MessageQueue) -> int:
        """That of the oldest message still held."""
        group = self._running()
        return await group.access.min_offset(group.namespace.wrap_queue(queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """That of the next message to come."""
        group = self._running()
        return await group.access.max_offset(group.namespace.wrap_queue(queue))

    async def offset_for_time(self, queue: MessageQueue, time: datetime | int) -> int:
        """The offset of the first message stored at or after a time (or milliseconds)."""
        group = self._running()
        time_ms = time if isinstance(time, int) else round(time.timestamp() * 1000)
        return await group.access.search_offset(group.namespace.wrap_queue(queue), time_ms)


# ---- going round ---------------------------------------------------------------------------------

NEXT_DELAY_S: Final = 0.2
ERROR_DELAY_S: Final = 1.0
CALLS_MAX: Final = 20


class PullTask:
    """What a callback works with; it sets ``next_delay``, in seconds, for its own next call."""

    __slots__ = ("consumer", "next_delay")

    def __init__(self, consumer: PullConsumer) -> None:
        self.consumer = consumer
        self.next_delay = NEXT_DELAY_S


#: Called for a queue again and again; a coroutine function, or a function that does not block.
PullCallback: TypeAlias = Callable[[MessageQueue, PullTask], Awaitable[None] | None]


class PullSchedule(Startable):
    """Calls the application for each queue that is ours, as often as it wants; see the module."""

    def __init__(self, consumer: PullConsumer, *, calls_max: int = CALLS_MAX) -> None:
        """``consumer`` is not started yet; at most ``calls_max`` callbacks run at a time."""
        require_new(consumer.state, f"consumer {consumer.group}")
        self.consumer = consumer
        self._callbacks: dict[str, PullCallback] = {}
        self._running: dict[MessageQueue, asyncio.Task[None]] = {}
        self._tasks = Tasks(f"pull schedule of {consumer.group}")
        self._turns = asyncio.Semaphore(calls_max)

    def register(self, topic: str, callback: PullCallback) -> Self:
        """Call ``callback(queue, task)`` for each queue of the topic that is ours."""
        if topic not in self._callbacks:
            self.consumer.register_queue_listener(topic, self._shared)
        self._callbacks[topic] = callback
        return self

    async def start(self) -> None:
        """Start the consumer, and with it the calls."""
        await self.consumer.start()

    async def stop(self) -> None:
        """End all calls, then the consumer."""
        try:
            await self._tasks.cancel_and_wait()
        finally:
            await self.consumer.stop()

    def _shared(
        self, topic: str, everything: Collection[MessageQueue], ours: Collection[MessageQueue]
    ) -> None:
        del everything  # a broadcasting consumer has all of them, and ours says so
        for queue in [q for q in self._running if q.topic == topic and q not in ours]:
            self._running.pop(queue).cancel()
        for queue in ours:
            if queue not in self._running:
                work = self._go_round(queue, self._callbacks[topic])
                self._running[queue] = self._tasks.spawn(work, name=str(queue))

    async def _go_round(self, queue: MessageQueue, callback: PullCallback) -> None:
        clock = self.consumer._group_access.clock
        task = PullTask(self.consumer)
        while True:
            delay_s = ERROR_DELAY_S
            async with self._turns:
                try:
                    found = callback(queue, task)
                    if inspect.isawaitable(found):
                        await found
                    delay_s = task.next_delay
                except Exception:
                    log.exception("the callback of %s failed", queue)
            await clock.sleep(delay_s)
