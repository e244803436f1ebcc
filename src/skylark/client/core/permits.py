"""Back-pressure: how many requests or messages, and how many bytes of them, may be under way.

A send passes two of these and no more::

    producer memory     messages that have no outcome yet     pending_max, pending_bytes_max
    connection window   requests that have no answer yet      in_flight_max, in_flight_bytes_max

The first belongs to the producer, whether tasks or threads send with it; the second to the
:class:`~skylark.client.core.broker_connections.BrokerConnections` of an event loop. (Below it there
is only the socket, which takes no more than its buffer.)

Takers wait in the order in which they came, within their time, and then give up with
TooManyRequestsError. A request larger than the limit of bytes is let through when it is alone, for
it would wait for ever otherwise. All methods may be called from any thread; :meth:`Permits.take`
needs a running event loop. Counterpart of the semaphores of Java's ``NettyRemotingAbstract`` and of
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
    """Who waits, and whether a permit was given to it."""

    __slots__ = ("granted", "size", "wake")

    def __init__(self, size: int, wake: Callable[[], object]) -> None:
        self.size = size
        self.wake = wake
        self.granted = False


class Permits:
    """A number of requests and a number of bytes."""

    def __init__(
        self,
        clock: Clock,
        *,
        count_max: int,
        size_max: int,
        settings: str = "in_flight_max and in_flight_bytes_max",
    ) -> None:
        """``settings`` names those that the limits come from."""
        self._clock = clock
        self._settings = settings
        self._count_max = count_max
        self._size_max = size_max
        self._lock = threading.Lock()
        self._waiting: deque[_Waiter] = deque()
        self.count = 0  #: requests under way
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
        """Take a permit, after those who came before; raises TooManyRequestsError."""
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
            f"{self.count} requests of {self.size} bytes are under way, and none ended"
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
        """A taker gives up, perhaps with a permit that came too late."""
        with self._lock:
            if waiter.granted:
                self.count -= 1
                self.size -= waiter.size
            else:
                self._waiting.remove(waiter)
            self._let_in()  # those behind may be smaller

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
