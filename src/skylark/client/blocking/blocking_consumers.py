"""The blocking consumers: push, pop, lite pull, and the classic pull with its schedule.

::

    consumer = PushConsumer("orders", options, concurrency=20)

    @consumer.subscribe("Orders", tags="paid || shipped")
    def on_order(message: MessageExt) -> None: ...

    consumer.run()             # until SIGTERM or Ctrl-C, then drain
    # or: with consumer: ...   # or: start() and stop(), in a web application

    with PopConsumer("workers", options, invisible=60).subscribe("Jobs") as consumer:
        for message in consumer:                # or: consumer.receive(32, wait=10)
            message.ack()

    with LitePullConsumer("group", options, auto_commit=False).subscribe("T", "A || B") as lp:
        for batch in lp.batches():              # or: for message in lp, or: lp.poll()
            ...
            lp.commit(batch)

    with PullConsumer("group", options) as consumer:
        for queue in consumer.fetch_queues("T"):
            offset = consumer.fetch_consume_offset(queue) or 0
            result = consumer.pull(queue, offset, count=32)
            consumer.update_consume_offset(queue, result.next_offset)

Handlers are plain functions and run in threads: they may block and may call clients, even their
consumer, but cannot wait for the end of their consumer. Listeners are called in a thread too, one
at a time. The classes of :mod:`skylark.aio` describe the methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Self, TypeAlias, Unpack, cast

import msgspec

from skylark.client.blocking.blocking_client import (
    BlockingClient,
    BlockingConsumer,
    BlockingPullClient,
    calling,
    chaining,
    waiting,
)
from skylark.client.blocking.blocking_producer import refuse_coroutine
from skylark.client.blocking.caller_errors import ABOUT_SERVERS, without_frames
from skylark.client.blocking.event_loop_thread import shared_loop_thread
from skylark.client.consumer import classic_pull_consumer as classic
from skylark.client.consumer.lite_pull import lite_pull_consumer as lite
from skylark.client.consumer.lite_pull.lite_pull_settings import LitePullKeywords, LitePullSettings
from skylark.client.consumer.pop import pop_consumer as pop
from skylark.client.consumer.pop.pop_options import POLL_S, PopKeywords, PopSettings
from skylark.client.consumer.pop.popped_message import PoppedRecord
from skylark.client.consumer.pull_consumer_base import TopicListener
from skylark.client.consumer.push import push_consumer as push
from skylark.client.consumer.push.consumer_stats import ConsumerStats
from skylark.client.consumer.push.message_handlers import (
    Handler,
    HandlerSubscriptions,
    SubscribeKeywords,
)
from skylark.client.consumer.push.push_settings import PushKeywords, PushSettings, QueueListener
from skylark.client.core.argument_checks import refuse_generator, refused
from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_options import ClientOptions, Duration
from skylark.client.core.service_state import ServiceState, require_running
from skylark.client.core.shutdown_signals import on_signal
from skylark.client.core.threads import call_in_thread
from skylark.wire.bodies.common_body import MessageQueue


class PushConsumer(BlockingConsumer[push.PushConsumer], HandlerSubscriptions):
    """The blocking push consumer; see :class:`skylark.aio.PushConsumer`."""

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        hooks: Sequence[object] = (),
        **settings: Unpack[PushKeywords],
    ) -> None:
        """Nothing is sent before :meth:`start`; ``settings``: see PushSettings."""
        listener = settings.get("queue_listener")
        if listener is not None:
            settings["queue_listener"] = self._in_thread(listener)
        super().__init__(push.PushConsumer(group, options, hooks=hooks, **settings))

    @property
    def settings(self) -> PushSettings:
        return self._client.settings

    @property
    def client_id(self) -> str:
        return self._client.client_id

    def _adding(self, topic: str, **how: Unpack[SubscribeKeywords]) -> Callable[[Handler], None]:
        add_to_client = self._client._adding(topic, **how)

        def add(function: Handler) -> None:
            refuse_coroutine(function)
            self._do(add_to_client, function)

        return add

    unsubscribe = calling(push.PushConsumer.unsubscribe)
    suspend = calling(push.PushConsumer.suspend)
    resume = calling(push.PushConsumer.resume)
    reset_to = waiting(push.PushConsumer.reset_to)

    def stop(self) -> None:
        """Stop consuming, wait for running handlers, and leave the group.

        Raises ClientStateError in a handler, which would wait for itself.
        """
        self._client.refuse_in_handler()
        super().stop()

    def run(self) -> None:
        """Start unless that was done, consume until SIGTERM, Ctrl-C or :meth:`stop`, and stop.

        In another thread than the main one signals are left alone.
        """
        if self._started_on is None:
            self._started_on = shared_loop_thread()
        loop_thread, ended = self._started_on, asyncio.Event()
        try:
            with on_signal(partial(loop_thread.post, ended.set)):
                loop_thread.call(self._client.run_until(ended))
        except ABOUT_SERVERS as error:
            raise without_frames(error) from error.__cause__
        self._listeners.close()

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The assigned queues."""
        return self._client.assignment

    @property
    def in_flight(self) -> int:
        """Messages that were pulled and not settled."""
        return self._do(lambda: self._client.in_flight)

    @property
    def lag(self) -> int:
        """Messages that are not settled, here and at the brokers as of the last pulls."""
        return self._do(lambda: self._client.lag)

    @property
    def stats(self) -> ConsumerStats:
        """Rates and times of pulls and handlers, by topic."""
        return self._client.stats


class PoppedMessage(PoppedRecord):
    """A message of a blocking pop consumer; see :class:`skylark.aio.PoppedMessage`."""

    __slots__ = ()
    _owner: PopConsumer

    def ack(self) -> None:
        """The message is done; see :meth:`PopConsumer.ack <skylark.aio.PopConsumer.ack>`."""
        self._owner.ack(self)

    def nack(self, delay: Duration | None = None) -> None:
        """Get it again later; see :meth:`PopConsumer.nack <skylark.aio.PopConsumer.nack>`."""
        self._owner.nack(self, delay)

    def extend(self, seconds: Duration) -> None:
        """Hide it for longer; see :meth:`PopConsumer.extend <skylark.aio.PopConsumer.extend>`."""
        self._owner.extend(self, seconds)


class PopConsumer(BlockingClient[pop.PopConsumer]):
    """The blocking pop consumer; see :class:`skylark.aio.PopConsumer`."""

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        hooks: Sequence[object] = (),
        **settings: Unpack[PopKeywords],
    ) -> None:
        """Nothing is sent before :meth:`start`; ``settings``: see PopSettings."""
        super().__init__(pop.PopConsumer(group, options, hooks=hooks, **settings))
        self._client._message_type = PoppedMessage
        self._client._message_owner = self

    @property
    def settings(self) -> PopSettings:
        return self._client.settings

    subscribe = chaining(pop.PopConsumer.subscribe)
    unsubscribe = calling(pop.PopConsumer.unsubscribe)
    ack = waiting(pop.PopConsumer.ack)
    nack = waiting(pop.PopConsumer.nack)
    extend = waiting(pop.PopConsumer.extend)

    def receive(self, n: int | None = None, *, wait: Duration = POLL_S) -> list[PoppedMessage]:
        """The next messages, at most ``n``; see :meth:`skylark.aio.PopConsumer.receive`."""
        found = self._run(self._client.receive(n, wait=wait), self._client._put_back)
        return cast(list[PoppedMessage], found)

    def __iter__(self) -> Iterator[PoppedMessage]:
        """The messages one by one, without end; none is acknowledged by that."""
        require_running(self.state, f"consumer {self.group}")
        found = self._loop_thread.iterate(
            self._client.messages(), lambda message: self._client._put_back([message])
        )
        return cast(Iterator[PoppedMessage], found)


class LitePullConsumer(BlockingPullClient[lite.LitePullConsumer]):
    """The blocking lite pull consumer; see :class:`skylark.aio.LitePullConsumer`."""

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        hooks: Sequence[object] = (),
        **settings: Unpack[LitePullKeywords],
    ) -> None:
        """Nothing is sent before :meth:`start`; ``settings``: see LitePullSettings."""
        super().__init__(lite.LitePullConsumer(group, options, hooks=hooks, **settings))

    @property
    def settings(self) -> LitePullSettings:
        return self._client.settings

    def subscribe(
        self,
        topic: str,
        tags: str | None = None,
        *,
        sql: str | None = None,
        listener: QueueListener | None = None,
    ) -> Self:
        """Share the queues of a topic with the group; ``A || B`` for tags, or an SQL condition."""
        posting = None if listener is None else self._in_thread(listener)
        self._do(lambda: self._client.subscribe(topic, tags, sql=sql, listener=posting))
        return self

    def on_queues_changed(self, topic: str, listener: TopicListener) -> Self:
        """Call ``listener(topic, queues)`` when the queues of the topic change."""
        self._do(self._client.on_queues_changed, topic, self._in_thread(listener))
        return self

    unsubscribe = calling(lite.LitePullConsumer.unsubscribe)
    assign = chaining(lite.LitePullConsumer.assign)
    set_assign_tags = chaining(lite.LitePullConsumer.set_assign_tags)

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The assigned queues."""
        return self._client.assignment

    seek = waiting(lite.LitePullConsumer.seek)
    seek_to_begin = waiting(lite.LitePullConsumer.seek_to_begin)
    seek_to_end = waiting(lite.LitePullConsumer.seek_to_end)
    pause = calling(lite.LitePullConsumer.pause)
    resume = calling(lite.LitePullConsumer.resume)
    is_paused = calling(lite.LitePullConsumer.is_paused)
    commit = waiting(lite.LitePullConsumer.commit)
    committed = waiting(lite.LitePullConsumer.committed)

    def poll(self, timeout: Duration | None = None) -> list[MessageExt]:
        """The next messages of some queue, in order; an empty list if none come in time."""
        return self._run(self._client.poll(timeout), self._client._put_back)

    def __iter__(self) -> Iterator[MessageExt]:
        """The messages one by one, without end; a message counts as polled when it is given out."""
        require_running(self.state, f"consumer {self.group}")
        return self._loop_thread.iterate(
            self._client.messages(), lambda message: self._client._put_back([message])
        )

    def batches(self) -> Iterator[list[MessageExt]]:
        """What :meth:`poll` returns, without end and without the empty ones."""
        require_running(self.state, f"consumer {self.group}")
        return self._loop_thread.iterate(self._client.batches(), self._client._put_back)


class PullConsumer(BlockingPullClient[classic.PullConsumer]):
    """The blocking classic pull consumer; see :class:`skylark.aio.PullConsumer`."""

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        hooks: Sequence[object] = (),
        **settings: Unpack[classic.PullKeywords],
    ) -> None:
        """Nothing is sent before :meth:`start`; ``settings``: see PullSettings."""
        super().__init__(classic.PullConsumer(group, options, hooks=hooks, **settings))

    def register_queue_listener(self, topic: str, listener: QueueListener | None = None) -> Self:
        """Share the queues of a topic with the group; ``listener`` gets each new share."""
        posting = None if listener is None else self._in_thread(listener)
        self._do(self._client.register_queue_listener, topic, posting)
        return self

    queues_in_balance = calling(classic.PullConsumer.queues_in_balance)
    pull = waiting(classic.PullConsumer.pull)
    pull_block_if_not_found = waiting(classic.PullConsumer.pull_block_if_not_found)
    send_message_back = waiting(classic.PullConsumer.send_message_back)
    update_consume_offset = calling(classic.PullConsumer.update_consume_offset)
    update_consume_offset_to_broker = waiting(classic.PullConsumer.update_consume_offset_to_broker)
    fetch_consume_offset = waiting(classic.PullConsumer.fetch_consume_offset)


class PullTask(msgspec.Struct, eq=False):
    """The argument of a callback, which sets ``next_delay``, the seconds until its next call."""

    consumer: PullConsumer
    next_delay: float


#: Called for a queue repeatedly, in a thread.
PullCallback: TypeAlias = Callable[[MessageQueue, PullTask], object]


class _ScheduleClient(classic.PullSchedule):
    """A schedule with the attributes of its consumer, as blocking clients need them."""

    @property
    def group(self) -> str:
        return self.consumer.group

    @property
    def options(self) -> ClientOptions:
        return self.consumer.options

    @property
    def state(self) -> ServiceState:
        return self.consumer.state


class PullSchedule(BlockingClient[_ScheduleClient]):
    """Calls the application for each queue of its share repeatedly."""

    def __init__(self, consumer: PullConsumer, *, calls_max: int = classic.CALLS_MAX) -> None:
        """``consumer`` is not started yet; at most ``calls_max`` callbacks run at a time."""
        if not isinstance(consumer, PullConsumer):
            raise refused("consumer", consumer, "a PullConsumer")
        super().__init__(_ScheduleClient(consumer._client, calls_max=calls_max))
        self.consumer = consumer

    def start(self) -> None:
        """Start the consumer, and with it the calls; does nothing if they run already."""
        super().start()
        self.consumer.start()  # it runs already: this only sets the loop thread of its calls

    def stop(self) -> None:
        """End the calls, then the consumer; does nothing if they have ended."""
        super().stop()
        self.consumer.stop()  # it has stopped already: this only ends the thread of its listeners

    def register(self, topic: str, callback: PullCallback) -> Self:
        """Call ``callback(queue, task)`` for each queue of our share of the topic."""
        refuse_coroutine(callback)
        refuse_generator("callback", callback)

        async def call(queue: MessageQueue, task: classic.PullTask) -> None:
            given = PullTask(self.consumer, task.next_delay)
            try:
                await call_in_thread(callback, queue, given)
            finally:
                task.next_delay = given.next_delay

        self._do(self._client.register, topic, call)
        return self
