"""A timer for a deadline that changes often, for the state machines of replication.

``Master.deadline`` and ``Slave.deadline`` change with nearly every event. To avoid setting and
cancelling a timer each time, the timer that is set stays, unless the new deadline is earlier. It
may fire too early: the machine then finds nothing due, and the next deadline is set.
"""

from __future__ import annotations

from collections.abc import Callable

from skylark.core.clock import Clock, TimerHandle


class DeadlineTimer:
    """Calls ``tick`` no later than the deadline, with the time for which it was set.

    Times are those of ``Clock.steady_ms``.
    """

    def __init__(self, clock: Clock, tick: Callable[[int], None]) -> None:
        self._clock = clock
        self._tick = tick
        self._handle: TimerHandle | None = None
        self._due_ms = 0

    def set(self, deadline_ms: int | None) -> None:
        """Run the timer by then; None: there is no deadline."""
        if deadline_ms is None:
            return
        if self._handle is not None:
            if self._due_ms <= deadline_ms:
                return
            self._handle.cancel()
        self._due_ms = deadline_ms
        delay_s = (deadline_ms - self._clock.steady_ms()) / 1000
        self._handle = self._clock.call_later(delay_s, self._run)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run(self) -> None:
        self._handle = None
        self._tick(self._due_ms)
