"""The blocking classic pull consumer, and the schedule that goes round its queues.

::

    with PullConsumer("group", options) as consumer:
        for queue in consumer.fetch_queues("T"):
            offset = consumer.fetch_consume_offset(queue) or 0
            result = consumer.pull(queue, offset, count=32)
            consumer.update_consume_offset(queue, result.next_offset)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self, TypeAlias

from skylark.client.blocking.blocking_client import BlockingClient, BlockingPullClient
from skylark.client.blocking.blocking_producer import refuse_coroutine
from skylark.client.blocking.blocking_push import in_thread
from skylark.client.consumer import classic_pull_consumer as aio
from skylark.client.consumer.allocation import Allocation
from skylark.client.consumer.pull_api import PullResult
from skylark.client.consumer.push.push_settings import QueueListener
from skylark.client.core.argument_checks import refused
from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_options import ClientOptions, Duration
from skylark.client.core.service_state import ServiceState
from skylark.client.core.threads import SerialThread, call_in_thread
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import MessageModel


class PullConsumer(BlockingPullClient[aio.PullConsumer]):
    """See the module, and :class:`skylark.aio.PullConsumer` for what the methods do.

    Listeners are called in a thread, one at a time, and may call the consumer.
    """

    def __init__(
        self,
        group: str,
        options: ClientOptions | None = None,
        *,
        message_model: MessageModel = MessageModel.CLUSTERING,
        allocation: Allocation | None = None,
        max_reconsume_times: int = aio.RECONSUME_TIMES_MAX,
        offset_folder: Path | None = None,
        hooks: Sequence[object] = (),
    ) -> None:
        """``offset_folder``: where broadcasting consumers keep their offsets."""
        super().__init__(
            aio.PullConsumer(
                group,
                options,
                message_model=message_model,
                allocation=allocation,
                max_reconsume_times=max_reconsume_times,
                offset_folder=offset_folder,
                hooks=hooks,
            )
        )
        self._listeners = SerialThread(f"{group}-listener")

    def stop(self) -> None:
        """Save the offsets and leave the group; does nothing if it has ended."""
        super().stop()
        self._listeners.close()

    # ---- queues ----------------------------------------------------------------------------------

    def register_queue_listener(self, topic: str, listener: QueueListener | None = None) -> Self:
        """Share the queues of a topic with the group, and hear of it when they are shared anew."""
        told = None if listener is None else in_thread(listener, self._listeners)
        self._do(self._twin.register_queue_listener, topic, told)
        return self

    def queues_in_balance(self, topic: str) -> frozenset[MessageQueue]:
        """The queues of a topic that are ours; empty without :meth:`register_queue_listener`."""
        return self._do(self._twin.queues_in_balance, topic)

    # ---- messages --------------------------------------------------------------------------------

    def pull(
        self,
        queue: MessageQueue,
        offset: int,
        count: int = 32,
        *,
        tags: str | None = None,
        sql: str | None = None,
        size_max: int | None = None,
        timeout: Duration = aio.PULL_TIMEOUT_S,
    ) -> PullResult:
        """At most ``count`` messages from ``offset`` on, without waiting for any."""
        return self._run(
            self._twin.pull(
                queue, offset, count, tags=tags, sql=sql, size_max=size_max, timeout=timeout
            )
        )

    def pull_block_if_not_found(
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
        return self._run(
            self._twin.pull_block_if_not_found(
                queue, offset, count, tags=tags, sql=sql, size_max=size_max
            )
        )

    def send_message_back(self, message: MessageExt, delay_level: int = 0) -> None:
        """Have a message delivered to the group again; raises ClientError if nobody takes it."""
        self._run(self._twin.send_message_back(message, delay_level))

    # ---- offsets ---------------------------------------------------------------------------------

    def update_consume_offset(self, queue: MessageQueue, offset: int) -> None:
        """Count as consumed what is before ``offset``; saved within seconds."""
        self._do(self._twin.update_consume_offset, queue, offset)

    def update_consume_offset_to_broker(self, queue: MessageQueue, offset: int) -> None:
        """Save an offset at the broker now, whoever has the queue; raises what the broker says."""
        self._run(self._twin.update_consume_offset_to_broker(queue, offset))

    def fetch_consume_offset(self, queue: MessageQueue, *, from_store: bool = False) -> int | None:
        """The committed offset, from memory first unless told otherwise; None if there is none."""
        return self._run(self._twin.fetch_consume_offset(queue, from_store=from_store))


# ---- going round ---------------------------------------------------------------------------------


class PullTask:
    """What a callback works with; it sets ``next_delay``, in seconds, for its own next call."""

    __slots__ = ("_twin", "consumer")

    def __init__(self, consumer: PullConsumer, twin: aio.PullTask) -> None:
        self.consumer = consumer
        self._twin = twin

    @property
    def next_delay(self) -> float:
        return self._twin.next_delay

    @next_delay.setter
    def next_delay(self, delay_s: float) -> None:
        self._twin.next_delay = delay_s


#: Called for a queue again and again, in a thread.
PullCallback: TypeAlias = Callable[[MessageQueue, PullTask], object]


class _ScheduleTwin(aio.PullSchedule):
    """A schedule with the attributes that all clients have: those of its consumer."""

    @property
    def group(self) -> str:
        return self.consumer.group

    @property
    def options(self) -> ClientOptions:
        return self.consumer.options

    @property
    def state(self) -> ServiceState:
        return self.consumer.state


class PullSchedule(BlockingClient[_ScheduleTwin]):
    """Calls the application for each queue that is ours, as often as it wants."""

    def __init__(self, consumer: PullConsumer, *, calls_max: int = aio.CALLS_MAX) -> None:
        """``consumer`` is not started yet; at most ``calls_max`` callbacks run at a time."""
        if not isinstance(consumer, PullConsumer):
            raise refused("consumer", consumer, "a PullConsumer")
        super().__init__(_ScheduleTwin(consumer._twin, calls_max=calls_max))
        self.consumer = consumer

    def start(self) -> None:
        """Start the consumer, and with it the calls; does nothing if they run already."""
        super().start()
        self.consumer.start()  # it runs: from now on its calls go to the loop

    def stop(self) -> None:
        """End the calls, then the consumer; does nothing if they have ended."""
        super().stop()
        self.consumer.stop()  # nothing but the thread of its listeners is left to end

    def register(self, topic: str, callback: PullCallback) -> Self:
        """Call ``callback(queue, task)`` for each queue of the topic that is ours."""
        refuse_coroutine(callback)

        async def call(queue: MessageQueue, task: aio.PullTask) -> None:
            await call_in_thread(callback, queue, PullTask(self.consumer, task))

        self._do(self._twin.register, topic, call)
        return self
