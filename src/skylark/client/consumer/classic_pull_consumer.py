"""The classic pull consumer: each pull is a call, and the application keeps the offsets.

::

    async with PullConsumer("group", options) as consumer:
        for queue in await consumer.fetch_queues("T"):
            offset = await consumer.fetch_consume_offset(queue) or 0
            result = await consumer.pull(queue, offset, count=32)
            consumer.update_consume_offset(queue, result.next_offset)

It fetches nothing ahead and commits only what the application commits. :meth:`PullConsumer.pull`
returns at once; with :meth:`PullConsumer.pull_block_if_not_found` the broker waits for a message.
After :meth:`PullConsumer.register_queue_listener` the consumer shares the queues of a topic with
its group, and passes its share to the listener.

:class:`PullSchedule` calls the application for each queue of its share repeatedly, after the delay
that the application sets.

Java has deprecated this consumer; :mod:`skylark.client.consumer.lite_pull.lite_pull_consumer` is
the one for new programs. Queues and topics are named as the application knows them, without
namespace. Counterpart of Java's ``DefaultMQPullConsumer`` and ``MQPullConsumerScheduleService``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Final, Self, TypeAlias, TypedDict, Unpack

import msgspec

from skylark.client.consumer.allocation import Allocation, Averagely
from skylark.client.consumer.consumer_send_back import RECONSUME_TIMES_MAX, SendBackClient
from skylark.client.consumer.pull_api import PullResult, PullTerms
from skylark.client.consumer.pull_consumer_base import PullClient
from skylark.client.consumer.push.push_settings import QueueListener
from skylark.client.consumer.rebalance import Settled
from skylark.client.consumer.subscription import make_subscription
from skylark.client.core.argument_checks import (
    check_fields,
    checks_arguments,
    fits,
    refuse_generator,
    refused,
)
from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_options import ClientOptions, Duration, in_seconds, seconds
from skylark.client.core.client_runtime import ClientRuntime
from skylark.client.core.hooks import call_hooks, hook_methods
from skylark.client.core.route_cache import MASTER_ID
from skylark.client.core.serializers import Deserializer
from skylark.client.core.service_state import (
    ServiceState,
    Startable,
    require_new,
    require_not_stopped,
)
from skylark.client.core.validation import check_topic
from skylark.core.errors import ClientError, ConfigError
from skylark.core.lifecycle import Tasks
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import MessageModel

logger = logging.getLogger(__name__)

PULL_TIMEOUT_S: Final = 10.0  # consumerPullTimeoutMillis
SUSPEND_MAX_S: Final = 20.0  # brokerSuspendMaxTimeMillis
SUSPEND_TIMEOUT_S: Final = 30.0  # consumerTimeoutMillisWhenSuspend


class PullSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a classic pull consumer."""

    #: CLUSTERING shares the queues among the members of the group, BROADCASTING gives all to each
    message_model: MessageModel = MessageModel.CLUSTERING
    #: how queues are shared; all members must use the same
    allocation: Allocation = Averagely()
    #: retries before a message that is sent back becomes a dead letter
    max_reconsume_times: int = RECONSUME_TIMES_MAX
    offset_folder: Path | None = None  #: where broadcasting consumers save their offsets
    #: makes ``message.value`` of a body, at its first use
    value_deserializer: Deserializer | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.max_reconsume_times < 0:
            raise ConfigError(
                f"max_reconsume_times must be 0 or more, not {self.max_reconsume_times}"
            )

    @property
    def clustering(self) -> bool:
        """Whether the members of the group share the messages."""
        return self.message_model is MessageModel.CLUSTERING


class PullKeywords(TypedDict, total=False):
    """The names and types of :class:`PullSettings`."""

    message_model: MessageModel
    allocation: Allocation | None
    max_reconsume_times: int
    offset_folder: Path | None
    value_deserializer: Deserializer | None


@checks_arguments
class PullConsumer(PullClient):
    """See the module docstring."""

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        hooks: Sequence[object] = (),
        runtime: ClientRuntime | None = None,
        **settings: Unpack[PullKeywords],
    ) -> None:
        """``settings`` are those of :class:`PullSettings`.

        ``hooks``: see ConsumeHook and FilterHook in :mod:`skylark.client.core.hooks`. As in Java
        there is no trace, because this consumer does not know when a message is consumed.
        """
        if settings.get("allocation") is None:
            settings["allocation"] = Averagely()
        self.settings = PullSettings(**in_seconds(settings))
        super().__init__(group, options, hooks, runtime, self.settings.value_deserializer)
        self._filters = hook_methods(self._hooks, "filter_messages")
        self._listeners: dict[str, list[QueueListener]] = {}

    # ---- life ------------------------------------------------------------------------------------

    async def _start(self) -> None:
        group = self._session = self._open_session(self.settings)
        async with group.starting():
            self._sends_back = SendBackClient(
                group.access.link,
                group.group,
                reconsume_times_max=self.settings.max_reconsume_times,
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

    # ---- queues ----------------------------------------------------------------------------------

    def register_queue_listener(self, topic: str, listener: QueueListener | None = None) -> Self:
        """Share the queues of a topic with the group; ``listener`` gets the share when it changes.

        ``listener(topic, all queues, ours)`` is called on the loop of the consumer.
        """
        check_topic(topic)
        listeners = self._listeners.setdefault(topic, [])
        if listener is not None:
            listeners.append(listener)
        if self.state is ServiceState.RUNNING:
            group = self._session
            wire_topic = group.namespace.wrap(topic)
            group.subscribe(make_subscription(wire_topic, now_ms=group.clock.now_ms()))
        return self

    def queues_settled(self, settled: Settled) -> None:
        """See :class:`~skylark.client.consumer.pull_member.QueueEvents`."""
        if self.state is ServiceState.SHUTDOWN_ALREADY:
            return
        namespace = self._session.namespace
        topic = namespace.unwrap(settled.topic)
        everything = frozenset(map(namespace.unwrap_queue, settled.all_queues))
        ours = frozenset(map(namespace.unwrap_queue, settled.my_queues))
        for listener in tuple(self._listeners.get(topic, ())):
            try:
                listener(topic, everything, ours)
            except Exception:
                logger.exception("a listener of topic %s failed", topic)

    def queues_in_balance(self, topic: str) -> frozenset[MessageQueue]:
        """The queues of a topic that are ours; empty without :meth:`register_queue_listener`."""
        group = self._require_running()
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
        """At most ``count`` messages from ``offset`` on, without waiting.

        Raises BrokerError, TransportError, and UndecodableError for bytes that are not a message;
        that error has the offset to continue at.
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
        group = self._require_running()
        if offset < 0:
            raise ClientError(f"offset must be 0 or more, not {offset}")
        if terms.count_max <= 0:
            raise ClientError(f"count must be 1 or more, not {terms.count_max}")
        wire_queue = group.namespace.wrap_queue(queue)
        subscription = make_subscription(
            wire_queue.topic, tags, sql=sql, now_ms=group.clock.now_ms()
        )
        broker_id = self._suggested.get(wire_queue, MASTER_ID)
        result, self._suggested[wire_queue] = await group.access.pull(
            wire_queue, subscription, offset, terms, broker_id
        )
        if result.messages:
            call_hooks(self._filters, wire_queue, result.messages)
            self._call_consume_hooks(result.messages)
        return result

    async def send_message_back(self, message: MessageExt, delay_level: int = 0) -> None:
        """Deliver a message to the group again later; raises ClientError if no broker accepts it.

        Level 0: after a delay that grows with each delivery; -1: dead letter.
        """
        self._require_running()
        if not await self._sends_back.give(message, delay_level):
            raise ClientError(f"{message} could not be sent back")

    # ---- offsets ---------------------------------------------------------------------------------

    def update_consume_offset(self, queue: MessageQueue, offset: int) -> None:
        """Commit an offset in memory; it is saved within seconds."""
        group = self._require_running()
        group.offsets.update(group.namespace.wrap_queue(queue), offset, increase_only=False)

    async def update_consume_offset_to_broker(self, queue: MessageQueue, offset: int) -> None:
        """Save an offset at the broker now, for any queue; raises the error of the broker."""
        group = self._require_running()
        wire_queue = group.namespace.wrap_queue(queue)
        before = group.offsets.read(wire_queue)
        target = await group.access.link.lookup.reader_of(wire_queue)
        await group.access.link.calls.update_offset(target.address, group.group, wire_queue, offset)
        is_ours = wire_queue in group.my_queues(wire_queue.topic)
        if is_ours and group.offsets.read(wire_queue) == before:
            # The offsets of our queues in memory are saved periodically.
            group.offsets.update(wire_queue, offset, increase_only=False)

    async def fetch_consume_offset(
        self, queue: MessageQueue, *, from_store: bool = False
    ) -> int | None:
        """The committed offset, from memory first unless ``from_store``; None if there is none."""
        group = self._require_running()
        return await group.stored_offset(group.namespace.wrap_queue(queue), from_store=from_store)


# ---- schedule ----------------------------------------------------------------------------------

NEXT_DELAY_S: Final = 0.2
ERROR_DELAY_S: Final = 1.0
CALLS_MAX: Final = 20


class PullTask(msgspec.Struct, eq=False):
    """The argument of a callback, which sets ``next_delay``, the seconds until its next call."""

    consumer: PullConsumer
    next_delay: float = NEXT_DELAY_S


#: Called for a queue repeatedly; a coroutine function, or a function that does not block.
PullCallback: TypeAlias = Callable[[MessageQueue, PullTask], Awaitable[None] | None]


@checks_arguments
class PullSchedule(Startable):
    """Calls the application for each queue of its share repeatedly; see the module docstring."""

    def __init__(self, consumer: PullConsumer, *, calls_max: int = CALLS_MAX) -> None:
        """``consumer`` is not started yet; at most ``calls_max`` callbacks run at a time."""
        if not isinstance(consumer, PullConsumer):
            raise refused("consumer", consumer, "a PullConsumer")
        if not fits(calls_max, int) or calls_max < 1:
            raise refused("calls_max", calls_max, "1 or more")
        require_new(consumer.state, f"consumer {consumer.group}")
        self.consumer = consumer
        self._callbacks: dict[str, PullCallback] = {}
        self._running: dict[MessageQueue, asyncio.Task[None]] = {}
        self._tasks = Tasks(f"pull schedule of {consumer.group}")
        self._turns = asyncio.Semaphore(calls_max)

    def register(self, topic: str, callback: PullCallback) -> Self:
        """Call ``callback(queue, task)`` for each queue of our share of the topic."""
        refuse_generator("callback", callback)
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
        del everything  # a broadcasting consumer has all of them in ``ours``
        for queue in [q for q in self._running if q.topic == topic and q not in ours]:
            self._running.pop(queue).cancel()
        for queue in ours:
            running = self._running.get(queue)
            if running is None or running.done():
                work = self._call_repeatedly(queue, self._callbacks[topic])
                self._running[queue] = self._tasks.spawn(work, name=str(queue))

    async def _call_repeatedly(self, queue: MessageQueue, callback: PullCallback) -> None:
        clock = self.consumer._session.clock
        task = PullTask(self.consumer)
        while True:
            delay_s = ERROR_DELAY_S
            async with self._turns:
                try:
                    found = callback(queue, task)
                    if inspect.isawaitable(found):
                        await found
                    delay_s = task.next_delay
                except asyncio.CancelledError:
                    running = asyncio.current_task()
                    if running is None or running.cancelling():
                        raise
                    logger.exception("the callback of %s was cancelled", queue)
                except Exception:
                    logger.exception("the callback of %s failed", queue)
            await clock.sleep(delay_s)
