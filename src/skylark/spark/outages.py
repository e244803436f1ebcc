"""Outages: how source, sink and transaction log wait for servers that do not answer.

Brokers and name servers restart, and networks fail, for seconds or minutes. A query that is running
must not die of that: whatever fails because nothing answers is tried again, with pauses of 0.1 to
2 s, for as long as ``outageTimeout`` says (5 minutes). Then it raises :class:`OutageError`.

An *outage* is an error of the network, a name server that does not answer, or one that knows no
broker of a topic. Replies of a broker that refuses a request are none: they have retries of their
own.

All requests of a process that wait at the same time are one outage for those who look at it: one
warning in the log when it begins and one line when it ends, a line on standard error every ten
seconds (Spark passes the standard error of its Python processes on), and two metrics in the
registry of the process (:func:`skylark.client.metrics.default_registry`).
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable
from functools import cache
from typing import ClassVar, Final, Self, TypeVar

from skylark.client.metrics import default_registry
from skylark.core.backoff import Backoff, Outage
from skylark.core.clock import Clock
from skylark.core.errors import (
    NoNameServerError,
    NoRouteError,
    SkylarkError,
    TooManyRequestsError,
    TransportError,
)
from skylark.core.metrics import Counter, Gauge

T = TypeVar("T")

logger = logging.getLogger(__name__)

PROGRESS_S: Final = 10.0
#: After a shorter wait the error itself is raised: commands that wait a second say what is wrong.
LONG_WAIT_S: Final = 10.0
RETRY: Final = Backoff(first_s=0.1, most_s=2.0)


class OutageError(TransportError):
    """The cluster did not answer for as long as ``outageTimeout`` says."""

    retriable: ClassVar[bool] = False


def is_outage(error: BaseException) -> bool:
    """Whether an error says that servers cannot be reached now."""
    kinds = (TransportError, NoNameServerError, NoRouteError, TimeoutError)
    return isinstance(error, kinds) and not isinstance(error, (TooManyRequestsError, OutageError))


async def ride_out(clock: Clock, timeout_s: float, work: Callable[[], Awaitable[T]]) -> T:
    """Run ``work``, again after each outage and each error that may pass; raises OutageError."""
    with OutageWait(clock, timeout_s) as wait:
        while True:
            try:
                return await work()
            except TimeoutError as error:
                problem: Exception = error
            except SkylarkError as error:
                if not is_outage(error) and not error.retriable:
                    raise
                problem = error
            await wait.pause(problem)


class OutageDisplay:
    """Shows the outage of one operation, which waits by itself; a context manager."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._is_shown = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.over()

    def retrying(self, error: Exception) -> None:
        """An attempt got no answer, and another one follows."""
        now = self._clock.monotonic()
        if not self._is_shown:
            self._is_shown = True
            _monitor.begin(now, self._timeout_s, error)
        _monitor.progress(now, error)

    def over(self) -> None:
        """The servers answer again, or the operation has ended."""
        if self._is_shown:
            self._is_shown = False
            _monitor.end(self._clock.monotonic())

    def ended(self, error: Exception) -> OutageError | None:
        """The error to raise when the time is over; None: that of the last attempt."""
        if self._timeout_s < LONG_WAIT_S:
            return None
        return OutageError(
            f"the cluster did not answer for {self._timeout_s:.0f} s: {error}",
            hint="start its brokers and name servers; outageTimeout=30m waits longer",
        )


class OutageWait(OutageDisplay):
    """The pauses of one operation whose servers do not answer."""

    def __init__(self, clock: Clock, timeout_s: float) -> None:
        super().__init__(clock, timeout_s)
        self._outage: Outage | None = None

    async def pause(self, error: Exception) -> None:
        """Wait before the next attempt; raises OutageError if the time is over."""
        if self._outage is None:
            self._outage = Outage(RETRY, self._clock, self._timeout_s)
        pause_s = self._outage.next_pause_s()
        if pause_s is None:
            clear = self.ended(error)
            if clear is None:
                raise error
            raise clear from error
        self.retrying(error)
        await self._clock.sleep(pause_s)

    def over(self) -> None:
        super().over()
        self._outage = None


class _Monitor:
    """Shows the outage of this process, however many operations wait."""

    def __init__(self) -> None:
        self._waiting = 0
        self._timeout_s = 0.0
        self._since = 0.0
        self._shown_at = 0.0

    def begin(self, now: float, timeout_s: float, error: Exception) -> None:
        self._waiting += 1
        if self._waiting > 1:
            return
        self._since = self._shown_at = now
        self._timeout_s = timeout_s
        _metrics(os.getpid())[0].value += 1
        if timeout_s >= LONG_WAIT_S:
            logger.warning("waiting up to %.0f s for the cluster: %s", timeout_s, error)

    def progress(self, now: float, error: Exception) -> None:
        _metrics(os.getpid())[1].set(now - self._since)
        if now - self._shown_at >= PROGRESS_S:
            self._shown_at = now
            waited = f"{now - self._since:.0f} of {self._timeout_s:.0f} s"
            sys.stderr.write(f"skylark: waiting for the cluster, {waited}: {error}\n")
            sys.stderr.flush()

    def end(self, now: float) -> None:
        self._waiting -= 1
        if self._waiting:
            return
        _metrics(os.getpid())[1].set(0)
        if now - self._since >= LONG_WAIT_S:
            logger.warning("stopped waiting for the cluster after %.1f s", now - self._since)


_monitor: Final = _Monitor()


@cache
def _metrics(process_id: int) -> tuple[Counter, Gauge]:
    """The metrics of this process: a forked child has a new registry."""
    registry = default_registry()
    count = registry.counter(
        "skylark_spark_outages_total", "Times that a source or sink waited for the cluster."
    )
    seconds = registry.gauge(
        "skylark_spark_outage_seconds", "How long a source or sink has waited for the cluster."
    )
    return count.labels(), seconds.labels()
