"""The acknowledgement wait: puts that wait until enough slaves have acknowledged them.

With ``brokerRole=SYNC_MASTER`` and ``inSyncReplicas`` of 2 or more, a put completes when it is
flushed, as the flush setting demands, and when enough slaves have acknowledged its end
(:class:`skylark.replication.master.Confirmed`). After ``slaveTimeout`` its status is
FLUSH_SLAVE_TIMEOUT; the message is stored all the same. The status of the replicas takes precedence
over that of the disk, as in Java. With ``haCompatible4x`` a put does not wait if no slave is near:
its status is SLAVE_NOT_AVAILABLE.

Puts arrive in order of offset and have the same timeout, so one queue and one timer are enough. A
shorter ``slaveTimeout`` also applies to waiting puts, which keeps them in order.

Counterpart of Java's ``GroupTransferService``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

import msgspec

from skylark.core.clock import TimerHandle
from skylark.replication.config import ReplicationConfig
from skylark.store.owner_thread import Scheduler
from skylark.store.store_results import PutStatus, PutWaiter

logger = logging.getLogger(__name__)


class _Pending(msgspec.Struct):
    """A put that waits for the disk, for slaves, or for both."""

    end_offset: int
    deadline: float
    _answer: PutWaiter
    status: PutStatus | None = None  # of the replicas
    _disk: PutStatus | None = None

    def flushed(self, status: PutStatus) -> None:
        """The put is flushed, or need not be."""
        self._disk = status
        self._answer_if_done()

    def replicated(self, status: PutStatus) -> None:
        """The slaves have acknowledged the put, or it does not wait for them."""
        self.status = status
        self._answer_if_done()

    def _answer_if_done(self) -> None:
        if self._disk is None or self.status is None:
            return
        status = self._disk if self.status is PutStatus.PUT_OK else self.status
        try:
            self._answer(status)
        except Exception:
            logger.exception("a waiter failed on %s", status.name)


class AckWaiters:
    """Delays the results of puts until enough slaves have the message."""

    def __init__(
        self,
        config: ReplicationConfig,
        scheduler: Scheduler,
        *,
        is_slave_near: Callable[[], bool],
    ) -> None:
        """``is_slave_near`` is used with ``haCompatible4x`` only, which does not change later."""
        self._timeout_s = config.slave_timeout / 1000
        self._is_slave_near = is_slave_near if config.ha_compatible4x else None
        self._scheduler = scheduler
        self._waiting: deque[_Pending] = deque()  # in order of offset and so of deadline
        self._timer: TimerHandle | None = None
        self._confirmed_offset = -1
        self._stopped = False
        #: Puts that no slave acknowledged in time.
        self.timeout_count = 0

    @property
    def waiting_count(self) -> int:
        """Puts that wait for slaves."""
        return len(self._waiting)

    def join(self, end_offset: int, answer: PutWaiter) -> PutWaiter:
        """Wait for slaves; returns the waiter to call with the status of the disk."""
        deadline = self._scheduler.monotonic() + self._timeout_s
        pending = _Pending(end_offset, deadline, answer)
        if end_offset <= self._confirmed_offset:
            pending.status = PutStatus.PUT_OK
        elif self._stopped:
            pending.status = PutStatus.FLUSH_SLAVE_TIMEOUT
        elif self._is_slave_near is not None and not self._is_slave_near():
            pending.status = PutStatus.SLAVE_NOT_AVAILABLE
        else:
            self._waiting.append(pending)
            if self._timer is None:
                self._set_timer()
        return pending.flushed

    def confirm(self, log_offset: int) -> None:
        """Complete all puts before this offset: enough slaves have them."""
        self._confirmed_offset = max(self._confirmed_offset, log_offset)
        waiting = self._waiting
        while waiting and waiting[0].end_offset <= log_offset:
            waiting.popleft().replicated(PutStatus.PUT_OK)

    def follow(self, config: ReplicationConfig) -> None:
        """Apply changed settings; releases all puts if no slave is needed."""
        self._timeout_s = config.slave_timeout / 1000
        if not config.acks_needed:
            while self._waiting:
                self._waiting.popleft().replicated(PutStatus.PUT_OK)
        latest = self._scheduler.monotonic() + self._timeout_s
        for pending in self._waiting:
            pending.deadline = min(pending.deadline, latest)
        self._set_timer()

    def stop(self) -> None:
        """Release all puts, with FLUSH_SLAVE_TIMEOUT."""
        self._stopped = True
        while self._waiting:
            self._time_out()
        self._set_timer()

    def _expire(self, due: float) -> None:
        now = max(due, self._scheduler.monotonic())  # a timer may fire a little early
        while self._waiting and self._waiting[0].deadline <= now:
            self._time_out()
        self._set_timer()

    def _set_timer(self) -> None:
        """Set the timer for the first put of the queue."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            deadline = self._waiting[0].deadline
            self._timer = self._scheduler.call_at(deadline, self._expire, deadline)

    def _time_out(self) -> None:
        self.timeout_count += 1
        self._waiting.popleft().replicated(PutStatus.FLUSH_SLAVE_TIMEOUT)
