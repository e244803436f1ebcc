"""Interface and shared parts of the two runners: concurrent and orderly.

A *runner* gets the pulled messages of a queue (:meth:`Runner.submit`), calls handlers with them,
sends failed messages back, and updates offsets. :mod:`concurrent_runner
<skylark.client.consumer.push.concurrent_runner>` calls handlers in any order,
:mod:`orderly_runner <skylark.client.consumer.push.orderly_runner>` one after the other for each
queue.

All of it runs on the application's loop, except :meth:`Runner.is_busy` and the threads of plain
functions.
"""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from skylark.client.consumer.consumer_send_back import SendBackClient
from skylark.client.consumer.offset_table import OffsetTable
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.push.concurrent_settlement import return_type
from skylark.client.consumer.push.consumer_stats import ConsumerStats, TopicCounters
from skylark.client.consumer.push.handler_threads import ThreadWorkers
from skylark.client.consumer.push.message_handlers import Binding, Job, LoopWorkers
from skylark.client.consumer.push.push_settings import PushSettings
from skylark.client.consumer.subscription import Subscription
from skylark.client.core.broker_connections import BrokerConnections
from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_message import DeadLetter, MessageExt, RetryLater
from skylark.client.core.hooks import ConsumeContext, ConsumeHooks
from skylark.client.metrics import NO_CONSUME_METER, ConsumeMeter
from skylark.core.clock import Clock
from skylark.core.lifecycle import Tasks
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)


class AssignedQueue(msgspec.Struct, eq=False, gc=False):
    """A queue that is assigned to this consumer."""

    queue: MessageQueue
    process_queue: ProcessQueue
    counters: TopicCounters
    meter: ConsumeMeter = NO_CONSUME_METER
    # Messages accepted in this turn of the loop, settled together; see concurrent_runner.
    accepted: list[MessageExt] = msgspec.field(default_factory=list)
    quick_count: int = 0  # calls that took less than a millisecond
    quick_messages: int = 0
    accepted_since_ms: int = 0


class PushSetup(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """A push consumer as its parts see it: its settings, handlers, subscriptions and state."""

    group: str  #: as the application knows it
    settings: PushSettings
    hooks: Sequence[object]
    bindings: Mapping[str, Binding]  #: by topic, as the application knows it
    stats: ConsumerStats
    is_orderly: bool
    start_timestamp: str  #: where CONSUME_FROM_TIMESTAMP begins
    subscriptions: Callable[[], Mapping[str, Subscription]]  #: by topic, as brokers know it
    is_running: Callable[[], bool]
    is_suspended: Callable[[], bool]
    #: subscriptions to pop retries, which are added to the others while a topic is pulled
    pop_retries: dict[str, Subscription] = msgspec.field(default_factory=dict)


class ConsumerServices(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The objects that the pull loops and the runner of one consumer share."""

    setup: PushSetup
    instance: ClientInstance
    link: BrokerConnections
    offsets: OffsetTable
    sends_back: SendBackClient
    clock: Clock
    tasks: Tasks
    ran_dry: Callable[[MessageQueue], None]  #: all messages of the queue are settled


class Pools:
    """The two worker pools of a consumer: coroutines and threads."""

    def __init__(self, services: ConsumerServices) -> None:
        name, count = services.setup.group, services.setup.settings.concurrency
        self._now_ms = services.clock.steady_ms
        self._loop_workers = LoopWorkers(name, count, services.clock, services.tasks)
        self._thread_workers = ThreadWorkers(name, count, services.clock, services.tasks)

    def submit(self, binding: Binding, jobs: list[Job]) -> None:
        """Run jobs in the pool for their handler."""
        (self._loop_workers if binding.is_async else self._thread_workers).submit(jobs)

    async def call(
        self, binding: Binding, argument: Any, may_call: Callable[[], bool] | None = None
    ) -> Any:
        """Call a handler after the jobs that wait; returns or raises its result.

        ``may_call`` is called in the thread of the handler just before; if it returns False, this
        raises NotCalled.
        """
        job = CallJob(binding, argument, self._now_ms, may_call)
        self.submit(binding, [job])
        return await job.outcome

    def cancel(self, is_wanted: Callable[[Job], bool]) -> list[Job]:
        """Cancel handlers that hang, and return their jobs; only coroutines can be cancelled."""
        return self._loop_workers.cancel(is_wanted)

    @property
    def is_current(self) -> bool:
        """Whether the calling code is a handler."""
        return self._loop_workers.is_current or self._thread_workers.is_current

    async def close(self, wait_s: float) -> bool:
        ended = await asyncio.gather(
            self._loop_workers.close(wait_s), self._thread_workers.close(wait_s)
        )
        return all(ended)


class NotCalled(Exception):
    """The handler was not called, because the queue is no longer ours."""


class CallJob:
    """A call of a handler whose result is awaited; see :meth:`Pools.call`."""

    def __init__(
        self,
        binding: Binding,
        argument: Any,
        now_ms: Callable[[], int],
        may_call: Callable[[], bool] | None = None,
    ) -> None:
        self._binding = binding
        self._argument = argument
        self._may_call = may_call
        self._now_ms = now_ms
        self.started_ms: int | None = None
        self.outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def begin(self) -> bool:
        self.started_ms = self._now_ms()
        return not self.outcome.cancelled()

    def call(self) -> Any:
        if self._may_call is not None and not self._may_call():
            raise NotCalled
        return self._binding.handler(self._argument)

    def finish(self, result: Any, error: BaseException | None) -> None:
        if self.outcome.done():
            return
        if error is None:
            self.outcome.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            self.outcome.set_exception(error)
        else:  # a future cannot hold StopIteration; what is no Exception would end the waiting task
            failure = RuntimeError(f"the handler ended with {error!r}")
            failure.__cause__ = error
            self.outcome.set_exception(failure)

    def discard(self) -> None:
        self.outcome.cancel()


class HookCalls:
    """Calls the consume hooks before and after handlers."""

    def __init__(self, services: ConsumerServices) -> None:
        self._services = services
        self._hooks = ConsumeHooks(services.setup.hooks)
        self.any = self._hooks.any

    def before(self, queue: MessageQueue, messages: Sequence[MessageExt]) -> ConsumeContext:
        instance = self._services.instance
        context = ConsumeContext(
            group=self._services.setup.group,
            messages=messages,
            queue=instance.namespace.unwrap_queue(queue),
            client_id=instance.client_id,
            namespace=instance.namespace.name,
        )
        self._hooks.before(context)
        return context

    def after(
        self, context: ConsumeContext, status: str, error: BaseException | None, *, took_ms: int
    ) -> None:
        context.success = status in ("CONSUME_SUCCESS", "SUCCESS", "COMMIT")
        context.status = status
        context.return_type = return_type(
            failed=not context.success,
            raised=error is not None and not isinstance(error, (RetryLater, DeadLetter)),
            took_ms=took_ms,
            timeout_ms=self._services.setup.settings.consume_timeout_ms,
        ).name
        self._hooks.after(context)


class Runner(abc.ABC):
    """See the module docstring."""

    def __init__(self, services: ConsumerServices) -> None:
        self.services = services
        self.hooks = HookCalls(services)
        self.pools = Pools(services)
        self._warned: set[Binding] = set()

    def warn_of_result(self, binding: Binding, result: object) -> None:
        """Log once that a result of a handler has no meaning, as the status values of Java have."""
        if binding not in self._warned:
            self._warned.add(binding)
            logger.warning(
                "handler %s of topic %s returned %r, which counts as success: raise RetryLater to"
                " get a message again, and return nothing%s otherwise",
                binding.name,
                binding.topic,
                result,
                " or the index of the last message that was accepted" if binding.batch > 1 else "",
            )

    @abc.abstractmethod
    def submit(self, assigned: AssignedQueue, messages: list[MessageExt]) -> None:
        """Add pulled messages to their queue, and process them."""

    @abc.abstractmethod
    def is_busy(self, process_queue: ProcessQueue) -> bool:
        """Whether a handler runs on the queue; from any thread."""

    def commit(self, assigned: AssignedQueue, offset: int, *, increase_only: bool = True) -> None:
        """Update the committed offset; it is saved soon if the queue has run dry."""
        self.services.offsets.update(assigned.queue, offset, increase_only=increase_only)
        if not assigned.process_queue.count:
            self.services.ran_dry(assigned.queue)

    @abc.abstractmethod
    async def expire(self, assigned: AssignedQueue) -> None:
        """Send back messages whose handlers hang."""

    async def call(self, binding: Binding, message: MessageExt) -> Any:
        """Call a handler on demand; returns or raises its result."""
        return await self.pools.call(binding, [message] if binding.batch > 1 else message)

    async def close(self, wait_s: float) -> bool:
        """Start no more handlers, and wait for running ones; whether all ended in time."""
        return await self.pools.close(wait_s)


def report(group: str, binding: Binding, message: MessageExt, error: BaseException) -> None:
    """Log the error of a handler, except RetryLater and DeadLetter."""
    if not isinstance(error, (RetryLater, DeadLetter)):
        logger.error("handler %s of %s failed on %s", binding.name, group, message, exc_info=error)
