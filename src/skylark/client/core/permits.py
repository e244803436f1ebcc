"""Back-pressure: how many requests, and how many bytes of them, may be under way at once.

Takers wait in the order in which they came, within their time, and then give up with
TooManyRequestsError. A request larger than the limit of bytes is let through when it is alone, for
it would wait for ever otherwise. Belongs to one event loop. Answers to the semaphores of
``NettyRemotingAbstract`` and to ``backPressureForAsyncSendNum``/``Size`` of Java's producer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from skylark.core.clock import Clock
from skylark.core.errors import TooManyRequestsError


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
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self.count = 0  #: requests under way
        self.size = 0  #: their bytes

    def try_take(self, size: int) -> bool:
        """Take a permit if there is one and nobody waits for it."""
        count, sum_size = self.count, self.size + size
        if self._waiting or count >= self._count_max or (count and sum_size > self._size_max):
            return False
        self.count = count + 1
        self.size = sum_size
        return True

    async def take(self, size: int, timeout_s: float) -> None:
        """Take a permit, after those who came before; raises TooManyRequestsError."""
        if self.try_take(size):
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (size, turn)
        self._waiting.append(entry)
        try:
            await self._clock.wait_for(turn, timeout_s)
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.give(size)  # it came, but too late
            else:
                with contextlib.suppress(ValueError):  # passed over already
                    self._waiting.remove(entry)
                self._let_in()  # those behind may be smaller
            if isinstance(error, TimeoutError):
                raise TooManyRequestsError(
                    f"{self.count} requests of {self.size} bytes are under way, and none ended"
                    f" within {timeout_s:g} s",
                    hint=f"send more slowly, or raise {self._settings}",
                ) from error
            raise

    def give(self, size: int, count: int = 1) -> None:
        """Give back what was taken; ``count`` permits of ``size`` bytes together."""
        self.count -= count
        self.size -= size
        if self._waiting:
            self._let_in()

    def _fits(self, size: int) -> bool:
        if self.count >= self._count_max:
            return False
        return not self.count or self.size + size <= self._size_max

    def _let_in(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, turn = self._waiting.popleft()
            if not turn.done():
                self.count += 1
                self.size += size
                turn.set_result(None)
