"""Calls to a peer that wait for their answer: futures and the timer over ``wire.exchange``.

Part of :class:`skylark.net.calls.Calls`. Every call ends exactly once: with its answer, with
RequestTimeoutError at its deadline, with the error that :meth:`ResponseFutures.fail` is given when
the connection ends, or given up by :meth:`ResponseFutures.forget`. One timer serves all calls of a
connection.

Counterpart of Java's ``ResponseFuture`` and ``scanResponseTable``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf

from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import RequestTimeoutError, TransportError
from skylark.wire.command import Command
from skylark.wire.exchange import OpaqueCounter, PendingCalls


class ResponseFutures:
    """The calls of one connection."""

    def __init__(
        self, clock: Clock, opaques: OpaqueCounter, on_expired: Callable[[], None]
    ) -> None:
        """``on_expired`` hears when calls ran out of time, after they have ended."""
        self._clock = clock
        self._opaques = opaques
        self._on_expired = on_expired
        self._loop = asyncio.get_running_loop()
        self._pending: PendingCalls[asyncio.Future[Command]] = PendingCalls()
        self._timer: TimerHandle | None = None
        self._timer_at = inf
        self.peer = ""  #: who is called, for errors

    def __len__(self) -> int:
        return len(self._pending)

    def new_opaque(self) -> int:
        """One that no call waits with."""
        opaque = self._opaques.take()
        while opaque in self._pending:
            opaque = self._opaques.take()
        return opaque

    def add(self, opaque: int, timeout_s: float) -> asyncio.Future[Command]:
        """A request was sent, and its answer is awaited."""
        future: asyncio.Future[Command] = self._loop.create_future()
        deadline = self._clock.monotonic() + timeout_s
        self._pending.add(opaque, deadline, future)
        if deadline < self._timer_at:
            self._arm(deadline)
        return future

    def settle(self, response: Command) -> bool:
        """End the call that this response answers; False if there is none."""
        call = self._pending.take(response.opaque)
        if call is None:
            return False
        if not call.done():
            call.set_result(response)
        return True

    def forget(self, opaque: int) -> bool:
        """Give up a call whose caller was cancelled; False if it has ended already."""
        return self._pending.take(opaque) is not None

    def fail(self, error: TransportError) -> None:
        """End all calls; there will be no further ones."""
        if self._timer is not None:
            self._timer.cancel()
        for call in self._pending.drain():
            if not call.done():
                call.set_exception(error)

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._clock.call_at(deadline, self._expire)

    def _expire(self) -> None:
        # Timers may fire a fraction of a millisecond early: what was due counts as due.
        now = max(self._clock.monotonic(), self._timer_at)
        self._timer = None
        self._timer_at = inf
        for call in self._pending.expire(now):
            if not call.done():
                call.set_exception(RequestTimeoutError(f"no answer from {self.peer} in time"))
        deadline = self._pending.next_deadline()
        if deadline is not None:
            self._arm(deadline)
        self._on_expired()
