"""Wakes waiting pops when messages that were popped in order become visible again.

Each queue that has messages in hand (:mod:`skylark.broker.pop.order_pop`) has a timer for the time
when the first of them becomes visible. Off with ``enableNotifyAfterPopOrderLockRelease=false``:
then a waiting pop gets them when another message arrives, or with its next request. Counterpart of
Java's ``ConsumerOrderInfoLockManager``.
"""

from __future__ import annotations

from collections.abc import Callable

from skylark.broker.live_settings import LiveSettings
from skylark.broker.pop.order_pop import OrderPops, QueueOfGroup
from skylark.core.clock import Clock, TimerHandle


class OrderLocks:
    """The timers of all queues that have messages in hand."""

    def __init__(
        self,
        live: LiveSettings,
        order_pops: OrderPops,
        clock: Clock,
        wake: Callable[[str, str, int], object],
    ) -> None:
        """``wake`` is called with topic, group and queue."""
        self._live = live
        self._order_pops = order_pops
        self._clock = clock
        self._wake = wake
        self._timers: dict[QueueOfGroup, TimerHandle] = {}

    def start(self) -> None:
        """Set the timers of what was loaded."""
        for queue in self._order_pops.queues():
            self.changed(*queue)

    def stop(self) -> None:
        """Cancel all timers."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def changed(self, topic: str, group: str, queue_id: int) -> None:
        """Set the timer of a queue again: messages were popped, or their time was changed."""
        queue = (topic, group, queue_id)
        timer = self._timers.pop(queue, None)
        if timer is not None:
            timer.cancel()
        if not self._live.current.pop.enable_notify_after_pop_order_lock_release:
            return
        now_ms = self._clock.now_ms()
        free_at_ms = self._order_pops.free_at_ms(topic, group, queue_id, now_ms)
        if free_at_ms is not None:
            wait_s = (free_at_ms - now_ms) / 1000
            self._timers[queue] = self._clock.call_later(wait_s, self._free, queue)

    def _free(self, queue: QueueOfGroup) -> None:
        del self._timers[queue]
        self._wake(*queue)
        self.changed(*queue)  # further messages may become visible later
