"""Back-pressure: limits the messages or requests in flight, by number and by bytes.

A send passes two of these and no more::

    producer memory     messages without an outcome       pending_max, pending_bytes_max
    connection window   requests without a response       in_flight_max, in_flight_bytes_max

The first belongs to the producer, whether tasks or threads send with it; the second to the
:class:`~skylark.client.core.broker_connections.BrokerConnections` of an event loop. Below it there
is only the buffer of the socket.

Takers get permits in the order of their calls, and fail with TooManyRequestsError when their time
is over. A request larger than the limit of bytes may pass when no other is in flight; otherwise it
would wait forever. All methods may be called from any thread; :meth:`Permits.take` needs a running
event loop. Counterpart of the semaphores of Java's ``NettyRemotingAbstract`` and of
``backPressureForAsyncSendNum``/``Size`` of its producer.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable

from skylark.core.clock import Clock
from skylark.core.errors import TooManyRequestsError


class _Waiter:
    """A taker that waits, and whether it has been granted its permit."""

    __slots__ = ("granted", "size", "wake")

    def __init__(self, size: int, wake: Callable[[], object]) -> None:
        self.size = size
        self.wake = wake
        self.granted = False


class Permits:
    """A limit of requests and of their bytes."""

    def __init__(
        self,
        clock: Clock,
        *,
        count_max: int,
        size_max: int,
        settings: str = "in_flight_max and in_flight_bytes_max",
    ) -> None:
        """``settings`` names the settings of the limits, for error messages."""
        self._clock = clock
        self._settings = settings
        self._count_max = count_max
        self._size_max = size_max
        self._lock = threading.Lock()
        self._waiting: deque[_Waiter] = deque()
        self.count = 0  #: requests in flight
        self.size = 0  #: their bytes

    def try_take(self, size: int) -> bool:
        """Take a permit if there is one and no other taker waits for it."""
        with self._lock:
            count, sum_size = self.count, self.size + size
            if self._waiting or count >= self._count_max or (count and sum_size > self._size_max):
                return False
            self.count = count + 1
            self.size = sum_size
            return True

    async def take(self, size: int, timeout_s: float) -> None:
        """Take a permit, in order of arrival; raises TooManyRequestsError."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        thread_id = threading.get_ident()

        def wake() -> None:
            if threading.get_ident() == thread_id:
                _settle(turn)
                return
            with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(_settle, turn)

        waiter = self._take_or_wait(size, wake)
        if waiter is None:
            return
        try:
            await self._clock.wait_for(turn, timeout_s)
        except BaseException as error:
            self._withdraw(waiter)
            if isinstance(error, TimeoutError):
                raise self._none_in_time(timeout_s) from error
            raise

    def take_blocking(self, size: int, timeout_s: float) -> None:
        """The same for a thread without an event loop, which it blocks; in real time."""
        arrived = threading.Event()
        waiter = self._take_or_wait(size, arrived.set)
        if waiter is None:
            return
        try:
            is_in_time = arrived.wait(max(0.0, timeout_s))
        except BaseException:
            self._withdraw(waiter)
            raise
        if not is_in_time:
            self._withdraw(waiter)
            raise self._none_in_time(timeout_s)

    def give(self, size: int, count: int = 1) -> None:
        """Give back what was taken; ``count`` permits of ``size`` bytes together."""
        with self._lock:
            self.count -= count
            self.size -= size
            if self._waiting:
                self._let_in()

    def _none_in_time(self, timeout_s: float) -> TooManyRequestsError:
        return TooManyRequestsError(
            f"{self.count} requests of {self.size} bytes are in flight, and none ended"
            f" within {timeout_s:g} s",
            hint=f"send more slowly, or raise {self._settings}",
        )

    def _take_or_wait(self, size: int, wake: Callable[[], object]) -> _Waiter | None:
        with self._lock:
            if not self._waiting and self._fits(size):
                self.count += 1
                self.size += size
                return None
            waiter = _Waiter(size, wake)
            self._waiting.append(waiter)
            return waiter

    def _withdraw(self, waiter: _Waiter) -> None:
        """Remove a taker that gave up; it may have been granted a permit too late."""
        with self._lock:
            if waiter.granted:
                self.count -= 1
                self.size -= waiter.size
            else:
                self._waiting.remove(waiter)
            self._let_in()  # the next ones may need fewer bytes

    # ---- under the lock --------------------------------------------------------------------------

    def _fits(self, size: int) -> bool:
        if self.count >= self._count_max:
            return False
        return not self.count or self.size + size <= self._size_max

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0].size):
            waiter = self._waiting.popleft()
            waiter.granted = True
            self.count += 1
            self.size += waiter.size
            waiter.wake()


def _settle(turn: asyncio.Future[None]) -> None:
    if not turn.done():
        turn.set_result(None)
