"""The clock of a pure state machine: what time it is, and a call when its deadline has come.

Both ends of replication name a deadline (``Master.deadline``, ``Slave.deadline``) that moves with
nearly every event. A timer for each would be made and cancelled all the time; so the one that is
set stays, unless the deadline is earlier. It may come too early: the machine then finds that
nothing is due, and names the next deadline.
"""

from __future__ import annotations

from collections.abc import Callable

from skylark.core.clock import Clock, TimerHandle


class DeadlineTimer:
    """Calls ``tick`` no later than the deadline, with the time for which it was set."""

    def __init__(self, clock: Clock, tick: Callable[[int], None]) -> None:
        self._clock = clock
        self._tick = tick
        self._handle: TimerHandle | None = None
        self._due_ms = 0

    def now_ms(self) -> int:
        """Milliseconds that never step back."""
        return int(self._clock.monotonic() * 1000)

    def set(self, deadline_ms: int | None) -> None:
        """Have the timer run by then; with None it need not run."""
        if deadline_ms is None:
            return
        if self._handle is not None:
            if self._due_ms <= deadline_ms:
                return
            self._handle.cancel()
        self._due_ms = deadline_ms
        self._handle = self._clock.call_at(deadline_ms / 1000, self._run)

    def cancel(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _run(self) -> None:
        self._handle = None
        self._tick(self._due_ms)
