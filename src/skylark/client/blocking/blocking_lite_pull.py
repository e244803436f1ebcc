"""The blocking lite pull consumer: the application asks for messages, the client fetches ahead.

::

    with LitePullConsumer("group", options, auto_commit=False).subscribe("T", "A || B") as lp:
        for batch in lp.batches():              # or: for message in lp, or: lp.poll()
            ...
            lp.commit(batch)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Self, Unpack

from skylark.client.blocking.blocking_client import BlockingPullClient
from skylark.client.blocking.blocking_push import in_thread
from skylark.client.consumer.lite_pull import lite_pull_consumer as aio
from skylark.client.consumer.lite_pull.lite_pull_settings import LitePullKeywords, LitePullSettings
from skylark.client.consumer.pull_consumer_session import TopicListener
from skylark.client.consumer.push.push_settings import QueueListener
from skylark.client.core.argument_checks import check_function
from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_options import ClientOptions, Duration
from skylark.client.core.service_state import require_running
from skylark.client.core.threads import SerialThread
from skylark.wire.bodies.common_body import MessageQueue


class LitePullConsumer(BlockingPullClient[aio.LitePullConsumer]):
    """See the module, and :class:`skylark.aio.LitePullConsumer` for what the methods do.

    Listeners are called in a thread, one at a time, and may call the consumer.
    """

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        hooks: Sequence[object] = (),
        **settings: Unpack[LitePullKeywords],
    ) -> None:
        """Nothing is sent before :meth:`start`; ``settings``: see LitePullSettings."""
        super().__init__(aio.LitePullConsumer(group, options, hooks=hooks, **settings))
        self._listeners = SerialThread(f"{group}-listener")

    @property
    def settings(self) -> LitePullSettings:
        return self._twin.settings

    def stop(self) -> None:
        """Save what was committed and leave the group; does nothing if it has ended."""
        super().stop()
        self._listeners.close()

    # ---- what to consume -------------------------------------------------------------------------

    def subscribe(
        self,
        topic: str,
        tags: str | None = None,
        *,
        sql: str | None = None,
        listener: QueueListener | None = None,
    ) -> Self:
        """Share the queues of a topic with the group; ``A || B`` for tags, or an SQL condition."""
        told = None if listener is None else in_thread(listener, self._listeners)
        self._do(lambda: self._twin.subscribe(topic, tags, sql=sql, listener=told))
        return self

    def unsubscribe(self, topic: str) -> None:
        """Give up the queues of a topic."""
        self._do(self._twin.unsubscribe, topic)

    def assign(self, queues: Collection[MessageQueue]) -> Self:
        """Consume exactly these queues, whoever else does."""
        self._do(self._twin.assign, queues)
        return self

    def set_assign_tags(self, topic: str, tags: str) -> Self:
        """Want only messages with these tags from assigned queues of a topic; before the start."""
        self._do(self._twin.set_assign_tags, topic, tags)
        return self

    def on_queues_changed(self, topic: str, listener: TopicListener) -> Self:
        """Call ``listener(topic, queues)`` when the topic has got other queues."""
        check_function("listener", listener)

        def told(topic: str, queues: frozenset[MessageQueue]) -> None:
            self._listeners.post(listener, topic, queues)

        self._do(self._twin.on_queues_changed, topic, told)
        return self

    # ---- queues ----------------------------------------------------------------------------------

    @property
    def assignment(self) -> frozenset[MessageQueue]:
        """The queues that are ours now."""
        return self._twin.assignment

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at this offset; raises ClientError if the queue is not ours, or has none such."""
        self._run(self._twin.seek(queue, offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on with the oldest message."""
        self._run(self._twin.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with the next message to come."""
        self._run(self._twin.seek_to_end(queue))

    def pause(self, queues: Collection[MessageQueue]) -> None:
        """Fetch no more of these queues; what was fetched is still returned."""
        self._do(self._twin.pause, queues)

    def resume(self, queues: Collection[MessageQueue]) -> None:
        """Fetch again."""
        self._do(self._twin.resume, queues)

    def is_paused(self, queue: MessageQueue) -> bool:
        """Whether nothing more is fetched of it."""
        return self._do(self._twin.is_paused, queue)

    # ---- messages --------------------------------------------------------------------------------

    def poll(self, timeout: Duration | None = None) -> list[MessageExt]:
        """The next messages of some queue, in order; an empty list if none come in time."""
        return self._run(self._twin.poll(timeout), self._twin._put_back)

    def __iter__(self) -> Iterator[MessageExt]:
        """The messages one by one, without end; a message counts as polled when it is given out."""
        require_running(self.state, f"consumer {self.group}")
        assert self._portal is not None
        return self._portal.iterate(
            self._twin.messages(), lambda message: self._twin._put_back([message])
        )

    def batches(self) -> Iterator[list[MessageExt]]:
        """What :meth:`poll` returns, without end and without the empty ones."""
        require_running(self.state, f"consumer {self.group}")
        assert self._portal is not None
        return self._portal.iterate(self._twin.batches(), self._twin._put_back)

    # ---- commits ---------------------------------------------------------------------------------

    def commit(self, what: aio.Commit | None = None, *, persist: bool = False) -> None:
        """Commit what was handed out, or what is given; returns when brokers have stored it."""
        self._run(self._twin.commit(what, persist=persist))

    def committed(self, queue: MessageQueue) -> int | None:
        """The committed offset as the broker has it; None if there is none."""
        return self._run(self._twin.committed(queue))
