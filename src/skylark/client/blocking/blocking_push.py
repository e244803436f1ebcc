"""The blocking push consumer: plain functions get the messages, in threads.

::

    consumer = PushConsumer("orders", options, concurrency=20)

    @consumer.subscribe("Orders", tags="paid || shipped")
    def on_order(message: MessageExt) -> None: ...

    consumer.run()             # until SIGTERM or Ctrl-C, then drain
    # or: with consumer: ...   # or: start() and stop(), in a web application

A handler may block and may call clients, this one included; only waiting for its own consumer's end
is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any, TypeVar, Unpack, overload

from skylark.client.blocking.blocking_client import BlockingClient
from skylark.client.blocking.blocking_producer import refuse_coroutine
from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.client.consumer.push import push_consumer as aio
from skylark.client.consumer.push.consumer_stats import ConsumerStats
from skylark.client.consumer.push.message_handlers import Handler
from skylark.client.consumer.push.push_settings import PushKeywords, PushSettings, QueueListener
from skylark.client.core.argument_checks import check_function
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.shutdown_signals import on_signal
from skylark.client.core.threads import SerialThread
from skylark.wire.bodies.common_body import MessageQueue

HandlerT = TypeVar("HandlerT", bound=Handler)


class PushConsumer(BlockingClient[aio.PushConsumer]):
    """See the module, and :class:`skylark.aio.PushConsumer` for what the methods do."""

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        hooks: Sequence[object] = (),
        **settings: Unpack[PushKeywords],
    ) -> None:
        """Nothing is sent before :meth:`start`; ``settings``: see PushSettings."""
        self._listeners = SerialThread(f"{group}-listener")
        listener = settings.get("queue_listener")
        if listener is not None:
            settings["queue_listener"] = in_thread(listener, self._listeners)
        super().__init__(aio.PushConsumer(group, options, hooks=hooks, **settings))

    @property
    def settings(self) -> PushSettings:
        return self._twin.settings

    @property
    def client_id(self) -> str:
        return self._twin.client_id

    @overload
    def subscribe(
        self,
        topic: str,
        handler: None = None,
        *,
        tags: str | None = None,
        sql: str | None = None,
        orderly: bool = False,
        batch: int = 1,
    ) -> Callable[[HandlerT], HandlerT]: ...

    @overload
    def subscribe(
        self,
        topic: str,
        handler: HandlerT,
        *,
        tags: str | None = None,
        sql: str | None = None,
        orderly: bool = False,
        batch: int = 1,
    ) -> HandlerT: ...

    def subscribe(
        self,
        topic: str,
        handler: Any = None,
        *,
        tags: str | None = None,
        sql: str | None = None,
        orderly: bool = False,
        batch: int = 1,
    ) -> Any:
        """Let ``handler`` have the messages of a topic; without one it is a decorator."""

        def add(function: HandlerT) -> HandlerT:
            refuse_coroutine(function)
            subscribe = partial(
                self._twin.subscribe, tags=tags, sql=sql, orderly=orderly, batch=batch
            )
            self._do(subscribe, topic, function)
            return function

        return add if handler is None else add(handler)

    def unsubscribe(self, topic: str) -> None:
        """Give up a topic; its queues go with the next rebalance, their offsets are saved."""
        self._do(self._twin.unsubscribe, topic)

    # ---- life ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop consuming, wait for running handlers, and leave the group.

        Raises ClientStateError in a handler, which would wait for itself.
        """
        self._twin.refuse_in_handler()
        super().stop()
        self._listeners.close()

    def run(self) -> None:
        """Start unless that was done, consume until SIGTERM, Ctrl-C or :meth:`stop`, and stop.

        In another thread than the main one signals are left alone.
        """
        if self._portal is None:
            self._portal = shared_portal()
        portal, ended = self._portal, asyncio.Event()
        with on_signal(partial(portal.post, ended.set)):
            portal.call(self._twin.run_until(ended))
        self._listeners.close()

    def suspend(self) -> None:
        """Pull nothing and share no queues anew until :meth:`resume`; running handlers finish."""
        self._do(self._twin.suspend)

    def resume(self) -> None:
        """Go on after :meth:`suspend`."""
        self._do(self._twin.resume)

    def reset_to(self, time: datetime) -> None:
        """Go on with what was stored at or after ``time``, on all queues that are ours now."""
        self._run(self._twin.reset_to(time))

    # ---- what it is doing ------------------------------------------------------------------------

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are ours now."""
        return self._twin.assignment

    @property
    def in_flight(self) -> int:
        """Messages that were pulled and are not done with."""
        return self._do(lambda: self._twin.in_flight)

    @property
    def lag(self) -> int:
        """Messages that are not done with, here and at the brokers as of the last pulls."""
        return self._do(lambda: self._twin.lag)

    @property
    def stats(self) -> ConsumerStats:
        """Rates and times of pulls and handlers, by topic."""
        return self._twin.stats


def in_thread(listener: QueueListener, thread: SerialThread) -> QueueListener:
    """A listener that leaves the loop alone: it is called in a thread, in order."""
    check_function("listener", listener)

    def post(
        topic: str, everything: frozenset[MessageQueue], ours: frozenset[MessageQueue]
    ) -> None:
        thread.post(listener, topic, everything, ours)

    return post
