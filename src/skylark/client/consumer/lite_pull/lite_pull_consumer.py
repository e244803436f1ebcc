"""The lite pull consumer: the application polls, and the client fetches messages ahead.

::

    async with LitePullConsumer("group", options, auto_commit=False).subscribe("T", "A || B") as lp:
        async for batch in lp.batches():        # or: async for message in lp, or: await lp.poll()
            ...
            await lp.commit(batch)

Two ways to get queues, which exclude each other: :meth:`~LitePullConsumer.subscribe` shares the
queues of a topic with the other members of the group; :meth:`~LitePullConsumer.assign` sets them,
independent of the group. There are no retries and no dead letters: the application decides what to
do about a message that fails, by seeking or by sending it elsewhere.

**Commits.** :meth:`~LitePullConsumer.commit` returns when the brokers have stored the offsets (the
file, for a broadcasting consumer), and :meth:`~LitePullConsumer.committed` asks them: what was
committed does not come again, even if the process is killed the moment after. With ``auto_commit``
a poll marks what *earlier* polls returned as consumed, every five seconds, and always when no
message waits; such offsets are sent in
the background, when a queue is taken away, and at the end, so a crash repeats messages and loses
none. Leaving an iterator, or stopping, commits nothing by itself: the last messages handed out come
again unless they were committed. Committing some queues leaves the others as they are.

All methods belong to the loop on which the consumer was started; rebalancing and saving offsets
continue on the control loop even while that one is blocked. Names of queues and topics are those of
the application, without namespace.

Counterpart of Java's ``DefaultLitePullConsumer``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Mapping, Sequence
from typing import Self, TypeAlias, Unpack

from skylark.client.consumer.lite_pull.lite_pull_queues import LiteQueues, require_queue
from skylark.client.consumer.lite_pull.lite_pull_settings import LitePullKeywords, LitePullSettings
from skylark.client.consumer.process_queue import NOTHING_TO_COMMIT, ProcessQueue
from skylark.client.consumer.pull_consumer_base import (
    PullClient,
    PullConsumerSession,
    TopicListener,
)
from skylark.client.consumer.push.push_settings import QueueListener
from skylark.client.consumer.rebalance import Settled
from skylark.client.consumer.subscription import (
    Subscription,
    make_subscription,
    require_same_filter,
)
from skylark.client.core.argument_checks import checks_arguments
from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_options import ClientOptions, Duration, in_seconds, seconds
from skylark.client.core.client_runtime import ClientRuntime
from skylark.client.core.hooks import ConsumeHooks
from skylark.client.core.service_state import (
    ServiceState,
    require_new,
    require_not_stopped,
    require_running,
)
from skylark.client.core.validation import check_topic
from skylark.client.trace.trace_dispatcher import TraceDispatcher
from skylark.client.trace.trace_hooks import consumer_tracing
from skylark.core.clock import yield_once
from skylark.core.errors import ClientError
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)

#: What can be committed: offsets, queues (as far as they were handed out), or messages.
Commit: TypeAlias = Mapping[MessageQueue, int] | Collection[MessageQueue] | Collection[MessageExt]


@checks_arguments
class LitePullConsumer(PullClient):
    """See the module docstring; keywords are those of :class:`LitePullSettings`."""

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        hooks: Sequence[object] = (),
        runtime: ClientRuntime | None = None,
        **settings: Unpack[LitePullKeywords],
    ) -> None:
        """``hooks``: see ConsumeHook and FilterHook in :mod:`skylark.client.core.hooks`.

        Consume hooks and traces count messages as consumed when they are handed out, because the
        consumer does not know when they are consumed.
        """
        self.settings = LitePullSettings(**in_seconds(settings))
        super().__init__(group, options, hooks, runtime, self.settings.value_deserializer)
        self._tracer: TraceDispatcher | None = None
        self._mode: str | None = None
        self._subscriptions: dict[str, tuple[str | None, str | None]] = {}
        self._listeners: dict[str, QueueListener] = {}
        self._assigned: frozenset[MessageQueue] = frozenset()
        self._assign_tags: dict[str, str] = {}
        self._topic_listeners: dict[str, TopicListener] = {}
        self._commit_at = 0.0

    # ---- what to consume -------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        tags: str | None = None,
        *,
        sql: str | None = None,
        listener: QueueListener | None = None,
    ) -> Self:
        """Share the queues of a topic with the group; ``A || B`` for tags, or an SQL condition.

        ``listener(topic, all queues, ours)`` is called when our share changes.
        """
        check_topic(topic)
        subscription = make_subscription(topic, tags, sql=sql, now_ms=0)  # raises here, not later
        if (known := self._subscriptions.get(topic)) is not None:
            known_tags, known_sql = known
            require_same_filter(
                make_subscription(topic, known_tags, sql=known_sql, now_ms=0), subscription
            )
        self._choose("subscribe")
        self._subscriptions[topic] = (tags, sql)
        if listener is not None:
            self._listeners[topic] = listener
        if self.state is ServiceState.RUNNING:
            self._session.subscribe(self._make(topic))
        return self

    def unsubscribe(self, topic: str) -> None:
        """Give up the queues of a topic."""
        if self._subscriptions.pop(topic, None) is not None:
            self._listeners.pop(topic, None)
            if self.state is ServiceState.RUNNING:
                # At once, not with the next rebalance: the subscription is gone.
                self._queues.remove_topic(self._session.namespace.wrap(topic))
                self._session.unsubscribe(topic)

    def assign(self, queues: Collection[MessageQueue]) -> Self:
        """Consume exactly these queues, even if other consumers do too."""
        self._choose("assign")
        self._assigned = frozenset(queues)
        if self.state is ServiceState.RUNNING:
            self._apply_assigned()
        return self

    def set_assign_tags(self, topic: str, tags: str) -> Self:
        """Consume only messages with these tags from assigned queues; before the start."""
        require_new(self.state, f"consumer {self.group}")
        make_subscription(topic, tags, now_ms=0)
        self._assign_tags[topic] = tags
        return self

    def on_queues_changed(self, topic: str, listener: TopicListener) -> Self:
        """Call ``listener(topic, queues)`` when the queues of the topic change."""
        check_topic(topic)
        self._topic_listeners[topic] = listener
        if self.state is ServiceState.RUNNING:
            self._session.watch(topic, listener, self.settings.metadata_interval)
        return self

    def _choose(self, mode: str) -> None:
        if self._mode not in (None, mode):
            raise ClientError("Subscribe and assign are mutually exclusive.")
        if self.state in (ServiceState.START_FAILED, ServiceState.SHUTDOWN_ALREADY):
            require_running(self.state, f"consumer {self.group}")
        self._mode = mode

    def _make(self, topic: str) -> Subscription:
        tags, sql = self._subscriptions[topic]
        wire_topic = self._session.namespace.wrap(topic)
        return make_subscription(wire_topic, tags, sql=sql, now_ms=self._session.clock.now_ms())

    # ---- life ------------------------------------------------------------------------------------

    async def _start(self) -> None:
        settings = self.settings
        group = self._session = self._open_session(settings)
        async with group.starting():
            self._observe(group)
            self._queues = LiteQueues(group, settings, self._subscription_of, self._hooks)
            group.on_undo(self._stop_pulling)
            await group.join([self._make(topic) for topic in self._subscriptions])
            for topic, listener in self._topic_listeners.items():
                group.watch(topic, listener, settings.metadata_interval)
            self._commit_at = group.clock.monotonic() + settings.commit_interval_s
            if group.instance.metrics is not None:
                group.instance.metrics.add_source(self.group, self._queues)
            require_not_stopped(self.state, f"consumer {self.group}")
            self.state = ServiceState.RUNNING
        self._apply_assigned()

    def _observe(self, group: PullConsumerSession) -> None:
        """Start traces, if they are enabled."""
        if self.options.trace:
            self._tracer, hook = consumer_tracing(group.instance, self.options, self.group)
            self._consume_hooks = ConsumeHooks((*self._hooks, hook))

    async def _stop_pulling(self) -> None:
        try:
            if self._session.instance.metrics is not None:
                self._session.instance.metrics.remove_source(self._queues)
            await self._queues.stop()
        finally:
            if self._tracer is not None:
                await self._tracer.stop()

    # ---- queues ----------------------------------------------------------------------------------

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The assigned queues; none unless the consumer runs. From any thread."""
        if self.state is not ServiceState.RUNNING:
            return frozenset()
        unwrap = self._session.namespace.unwrap_queue
        return frozenset(
            unwrap(queue)
            for queue, found in tuple(self._queues.queues.items())
            if not found.process_queue.dropped
        )

    def queue_opened(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """See :class:`~skylark.client.consumer.pull_member.QueueEvents`."""
        if self.state is not ServiceState.SHUTDOWN_ALREADY:  # it may come before start() returns
            self._queues.add(queue, process_queue)

    def queue_released(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        """See :class:`~skylark.client.consumer.pull_member.QueueEvents`."""
        found = self._queues.queues.get(queue)
        if found is not None and found.process_queue is process_queue:
            self._queues.remove(queue)

    def queues_settled(self, settled: Settled) -> None:
        """See :class:`~skylark.client.consumer.pull_member.QueueEvents`."""
        namespace = self._session.namespace
        topic = namespace.unwrap(settled.topic)
        listener = self._listeners.get(topic)
        if listener is not None and self.state is not ServiceState.SHUTDOWN_ALREADY:
            listener(
                topic,
                frozenset(map(namespace.unwrap_queue, settled.all_queues)),
                frozenset(map(namespace.unwrap_queue, settled.my_queues)),
            )

    def _apply_assigned(self) -> None:
        if self._mode != "assign":
            return
        group, queues = self._session, self._queues
        wanted = set(map(group.namespace.wrap_queue, self._assigned))
        for queue in [queue for queue in queues.queues if queue not in wanted]:
            queues.remove(queue)
        for queue in sorted(wanted - queues.queues.keys()):
            group.offsets.forget(queue)
            queues.add(queue, ProcessQueue(group.clock.now_ms()))
        group.assigned({queue: found.process_queue for queue, found in queues.queues.items()})

    def _subscription_of(self, wire_topic: str) -> Subscription:
        found = self._session.subscription(wire_topic)
        if found is not None:
            return found
        tags = self._assign_tags.get(self._session.namespace.unwrap(wire_topic))
        return make_subscription(wire_topic, tags, now_ms=0)

    def _ours(self, queue: MessageQueue) -> MessageQueue:
        """A queue as brokers know it; raises ClientError if it is not ours."""
        wire_queue = self._require_running().namespace.wrap_queue(queue)
        require_queue(self._queues, wire_queue)
        return wire_queue

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at this offset; raises ClientError if we do not have the queue or the offset."""
        wire_queue = self._ours(queue)
        low, high = await asyncio.gather(
            self._session.access.min_offset(wire_queue),
            self._session.access.max_offset(wire_queue),
        )
        if not low <= offset <= high:
            raise ClientError(
                f"Seek offset illegal, seek offset = {offset}, min offset = {low},"
                f" max offset = {high}"
            )
        self._jump(wire_queue, offset)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue with the oldest message."""
        wire_queue = self._ours(queue)
        self._jump(wire_queue, await self._session.access.min_offset(wire_queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue with the next message to be stored."""
        wire_queue = self._ours(queue)
        self._jump(wire_queue, await self._session.access.max_offset(wire_queue))

    def _jump(self, wire_queue: MessageQueue, offset: int) -> None:
        self._ours(wire_queue)  # it may have been taken away during the request
        self._queues.seek(wire_queue, offset)

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Stop fetching these queues; fetched messages are still returned."""
        wrap = self._require_running().namespace.wrap_queue
        self._queues.pause([wrap(queue) for queue in queues], paused=True)

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Fetch again."""
        wrap = self._require_running().namespace.wrap_queue
        self._queues.pause([wrap(queue) for queue in queues], paused=False)

    def is_paused(self, queue: MessageQueue) -> bool:
        """Whether fetching of this queue is paused."""
        return self._queues.is_paused(self._require_running().namespace.wrap_queue(queue))

    # ---- messages --------------------------------------------------------------------------------

    async def poll(self, timeout: Duration | None = None) -> list[MessageExt]:  # noqa: ASYNC109
        """The next messages of some queue, in order; an empty list if none come in time."""
        return await self._next(None, timeout)

    def __aiter__(self) -> AsyncIterator[MessageExt]:
        """The messages one by one, without end; a message counts as polled when it is given out."""
        return self.messages()

    async def messages(self) -> AsyncGenerator[MessageExt, None]:
        """What ``async for`` over the consumer gives."""
        self._require_running()
        while self.state is ServiceState.RUNNING:
            for message in await self._next(1, None):
                yield message

    async def batches(self) -> AsyncGenerator[list[MessageExt], None]:
        """What :meth:`poll` returns, without end and without the empty ones."""
        self._require_running()
        while self.state is ServiceState.RUNNING:
            batch = await self._next(None, None)
            if batch:
                yield batch

    async def _next(self, count: int | None, timeout: Duration | None) -> list[MessageExt]:  # noqa: ASYNC109
        clock = self._require_running().clock
        is_due = clock.monotonic() >= self._commit_at or not self._queues.has_waiting
        if self.settings.auto_commit and is_due:
            self._commit_at = clock.monotonic() + self.settings.commit_interval_s
            for queue, offset in self._handed_out(self._queues.queues).items():
                self._session.offsets.update(queue, offset, increase_only=False)
        timeout_s = self.settings.poll_timeout if timeout is None else seconds(timeout)
        deadline = clock.monotonic() + timeout_s
        while True:
            found = self._queues.take(count)
            if found or self.state is not ServiceState.RUNNING or clock.monotonic() >= deadline:
                self._call_consume_hooks(found)
                if not found:
                    await yield_once()  # a caller that polls without waiting must let others run
                return found
            await self._queues.wait(deadline)

    def _put_back(self, messages: list[MessageExt]) -> None:
        """Hand out messages again whose poll was interrupted."""
        if messages and self.state is ServiceState.RUNNING:
            wire_queue = self._session.namespace.wrap_queue(messages[0].queue)
            self._queues.put_back(wire_queue, messages)

    # ---- commits ---------------------------------------------------------------------------------

    async def commit(self, what: Commit | None = None, *, persist: bool = False) -> None:
        """Commit what was handed out, or what is given, and wait until the brokers have stored it.

        Without an argument that is what was handed out of the queues that are ours now; other
        queues stay as they are. Raises ClientError for an offset below 0 or above the maximum
        of its queue, and then commits nothing; for a queue that is not ours (any more), after the
        others were committed; and BrokerError or TransportError: then the offset may or may not be
        stored, and is sent again with the periodic ones. ``persist`` has no effect any more,
        because every commit is stored now.
        """
        del persist
        group = self._require_running()
        offsets = self._handed_out(self._queues.queues) if what is None else self._given(what)
        for queue, offset in offsets.items():
            if offset < 0:
                raise ClientError(f"offset {offset} of {queue} cannot be committed")
        ours = {queue: offsets[queue] for queue in offsets if self._is_ours(queue)}
        await asyncio.gather(*(self._check_maximum(*each) for each in ours.items()))
        await group.commit({queue: ours[queue] for queue in ours if self._is_ours(queue)})
        for queue in offsets:
            # Also those that were taken away during the commit: the new owner may have begun before
            # the offset was stored.
            require_queue(self._queues, queue)

    def _is_ours(self, queue: MessageQueue) -> bool:
        found = self._queues.queues.get(queue)
        return found is not None and not found.process_queue.dropped

    async def _check_maximum(self, queue: MessageQueue, offset: int) -> None:
        """Raise ClientError if the queue ends before ``offset``."""
        found = self._queues.queues.get(queue)
        if found is not None and found.pull_offset is not None and offset <= found.pull_offset:
            return  # responses to pulls have shown it
        high = await self._session.access.max_offset(queue)
        if offset > high:
            raise ClientError(
                f"offset {offset} of {queue} cannot be committed: the queue ends at {high}"
            )

    def _given(self, what: Commit) -> dict[MessageQueue, int]:
        """The offsets for an argument of :meth:`commit`."""
        wrap = self._session.namespace.wrap_queue
        if isinstance(what, Mapping):
            return {wrap(queue): offset for queue, offset in what.items()}
        offsets: dict[MessageQueue, int] = {}
        queues: list[MessageQueue] = []
        for each in what:
            if isinstance(each, MessageQueue):
                queues.append(wrap(each))
            else:
                queue, offset = wrap(each.queue), each.queue_offset + 1
                offsets[queue] = max(offset, offsets.get(queue, offset))
        for queue in queues:
            require_queue(self._queues, queue)
        return {**offsets, **self._handed_out(queues)}

    def _handed_out(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """The consume offsets of those of these queues that handed out messages."""
        found = [self._queues.queues.get(queue) for queue in queues]
        return {
            each.queue: each.consume_offset
            for each in found
            if each is not None
            and not each.process_queue.dropped
            and each.consume_offset != NOTHING_TO_COMMIT
        }

    async def committed(self, queue: MessageQueue) -> int | None:
        """The committed offset as the broker (or the file) has it; None if there is none."""
        group = self._require_running()
        return await group.committed_offset(group.namespace.wrap_queue(queue))
