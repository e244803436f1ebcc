"""The pull loops of a push consumer, and how the control loop starts and stops them.

The control loop calls :meth:`PullService.start_pull` and :meth:`PullService.stop_pull`, which hand
over to the application's loop and return. If that loop is blocked, it acts late; then it finds the
queue dropped and ignores it.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from functools import partial
from typing import Final

from skylark.client.consumer.process_queue import MIB, ProcessQueue, queue_level
from skylark.client.consumer.push.consume_runner import AssignedQueue
from skylark.client.consumer.push.pull_loop import PullContext, PullLoop
from skylark.client.consumer.rebalance import Settled
from skylark.client.core.control_loop import Handover
from skylark.client.metrics import QueueLevel
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)

#: A queue without messages to settle has its offset saved after this time.
DRY_SAVE_S: Final = 0.1


class PullService:
    """Runs on the loop that consumes; the ``DataPlane`` of the rebalance executor."""

    def __init__(self, context: PullContext) -> None:
        self._context = context
        self._instance = context.services.instance
        self._handover = Handover(asyncio.get_running_loop())
        self._loops: dict[MessageQueue, tuple[AssignedQueue, PullLoop, asyncio.Task[None]]] = {}
        self._meter = functools.cache(partial(self._instance.consume_meter, context.group))
        self._dry: set[MessageQueue] = set()  # their offsets are saved soon
        self._closed = False
        self._asked = False  # a call of _answer is pending
        self._answered_ms = self._alive_ms = context.services.clock.steady_ms()

    # ---- from the control loop -------------------------------------------------------------------

    def start_pull(
        self, queue: MessageQueue, process_queue: ProcessQueue, offset: int, delay_ms: int
    ) -> bool:
        """Start to pull a queue; False if the loop is closed."""
        counters = self._context.services.setup.stats.of(queue.topic)
        assigned = AssignedQueue(queue, process_queue, counters, self._meter(queue.topic))
        return self._handover.post(self._start, assigned, offset, delay_ms)

    def stop_pull(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        self._handover.post(self._stop, queue, process_queue)

    def ran_dry(self, queue: MessageQueue) -> None:
        """Save the offset of the queue soon, with those of others; on the loop that consumes."""
        if not self._dry:
            clock = self._context.services.clock
            clock.call_later(DRY_SAVE_S, self._save_dry)
        self._dry.add(queue)

    def _save_dry(self) -> None:
        queues, self._dry = self._dry, set()
        if not self._closed:
            self._context.save_soon(queues)

    def forget_messages(self, process_queue: ProcessQueue) -> None:
        self._handover.post(process_queue.clear)

    def is_busy(self, process_queue: ProcessQueue) -> bool:
        return self._context.runner.is_busy(process_queue)

    def alive_ms(self) -> int | None:
        """When the loop responded the last time but one; sends the next probe. None: it is closed.

        Not the last time, because a loop that was blocked responds before it pulls.
        """
        if self._handover.loop.is_closed():
            return None
        if not self._asked:
            self._asked = True
            self._handover.post(self._answer)
        return self._alive_ms

    def queues_changed(self, settled: Settled) -> None:
        flow = self._context.flow
        if settled.count_max is not None:
            flow.count_max = settled.count_max
        if settled.size_max is not None:
            flow.size_max = settled.size_max * MIB
        listener = self._context.services.setup.settings.queue_listener
        if listener is not None:
            shown = self._instance.namespace.unwrap_queue
            self._handover.post(
                listener,
                self._instance.namespace.unwrap(settled.topic),
                frozenset(map(shown, settled.all_queues)),
                frozenset(map(shown, settled.my_queues)),
            )

    # ---- on the loop that consumes ---------------------------------------------------------------

    def _answer(self) -> None:
        self._alive_ms, self._answered_ms = (
            self._answered_ms,
            self._context.services.clock.steady_ms(),
        )
        self._asked = False

    def _start(self, assigned: AssignedQueue, offset: int, delay_ms: int) -> None:
        if self._closed or assigned.process_queue.dropped:
            return
        known = self._loops.get(assigned.queue)
        if known is not None:
            known[2].cancel()
        loop = PullLoop(self._context, assigned, offset)
        task = self._context.services.tasks.spawn(loop.run(delay_ms), name=f"pull {assigned.queue}")
        self._loops[assigned.queue] = (assigned, loop, task)

    def _stop(self, queue: MessageQueue, process_queue: ProcessQueue) -> None:
        known = self._loops.get(queue)
        if known is not None and known[0].process_queue is process_queue:
            del self._loops[queue]
            known[2].cancel()

    @property
    def assigned(self) -> list[AssignedQueue]:
        return [assigned for assigned, _, _ in self._loops.values()]

    @property
    def in_flight(self) -> int:
        """Messages that were pulled and not settled."""
        return sum(assigned.process_queue.count for assigned in self.assigned)

    @property
    def lag(self) -> int:
        """Messages that are not settled, here and at the brokers as of the last pulls."""
        return self.in_flight + sum(loop.behind for _, loop, _ in self._loops.values())

    def levels(self) -> list[QueueLevel]:
        """The level of each queue; for any thread."""
        shown = self._instance.namespace.unwrap
        return [
            queue_level(shown, assigned.queue, assigned.process_queue, loop.behind)
            for assigned, loop, _ in tuple(self._loops.values())
            if not assigned.process_queue.dropped
        ]

    async def expire_forever(self) -> None:
        """Check periodically for handlers that hang."""
        services = self._context.services
        while True:
            await services.clock.sleep(services.setup.settings.consume_timeout_ms / 1000)
            for assigned in self.assigned:
                try:
                    await self._context.runner.expire(assigned)
                except Exception:
                    logger.exception("the check for hanging handlers of %s failed", assigned.queue)

    def close(self) -> None:
        """Stop all pull loops."""
        self._closed = True
        for _, _, task in self._loops.values():
            task.cancel()
