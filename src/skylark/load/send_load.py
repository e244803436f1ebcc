"""The sending side of a benchmark: a number of senders, each with one request in flight.

A request has one message, or ``batch`` messages. Bodies are random, so that they cannot be
compressed; they begin with a *stamp*, by which the consuming side recognises them::

    8 bytes   run     id of this run, to ignore messages of other runs
    8 bytes   due     monotonic time at which the message was due, a big-endian double

After a failed send its sender pauses, so that errors that return at once do not become the load.

All senders share one schedule (:class:`Pacer`). With a rate, message number k is scheduled
``k / rate`` seconds after the first. A late sender sends at once, and the schedule does not shift,
except that it never lags more than :data:`CATCH_UP_S`, so that a long pause is not followed by a
burst. Latency is measured from the scheduled time: the delay of messages that could not be sent
because the broker stalled counts too.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections.abc import Callable
from typing import Final

import msgspec

from skylark.client.core.client_message import Message
from skylark.client.core.client_options import ClientOptions
from skylark.client.producer.producer import Producer
from skylark.core.clock import Clock
from skylark.core.errors import ConfigError, SkylarkError
from skylark.load.run_statistics import Tally

GROUP: Final = "skylark-bench"
STAMP: Final = struct.Struct(">8sd")  # run, due
assert STAMP.size == 16
IN_FLIGHT_MAX: Final = 8_192
ERROR_PAUSE_S: Final = 0.1
CATCH_UP_S: Final = 0.1


class Ending:
    """The end of a run, set once: by the count, the duration, or a signal."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = asyncio.Event()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def set(self) -> None:
        self._event.set()

    async def within(self, seconds: float | None) -> bool:
        """Wait for the end, with a timeout or without; returns whether it has come."""
        try:
            await self._clock.wait_for(self._event.wait(), seconds)
        except TimeoutError:
            return False
        return True


class Pacer:
    """Schedules the senders; without a rate, they never wait."""

    def __init__(self, clock: Clock, rate: float | None, ending: Ending) -> None:
        self._clock = clock
        self._rate = rate
        self._ending = ending
        self._next: float | None = None

    async def turn(self, count: int = 1) -> float | None:
        """Wait until the next ``count`` messages are due.

        Returns the time at which they were due, None if the run has ended.
        """
        now = self._clock.monotonic()
        if self._rate is None:
            return None if self._ending.is_set else now
        due = now if self._next is None else max(self._next, now - CATCH_UP_S)
        self._next = due + count / self._rate
        if due > now and await self._ending.within(due - now):
            return None
        return None if self._ending.is_set else due


class SendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How much is sent, and how; raises ConfigError for invalid values."""

    topic: str
    size: int = 1024  #: bytes of a body
    count: int | None = None  #: None: until the run is ended
    in_flight: int = 64  #: concurrent requests
    batch: int = 1  #: messages per request
    batching: bool = True  #: let the producer combine concurrent messages
    rate: float | None = None  #: maximum messages per second

    def __post_init__(self) -> None:
        if self.size < STAMP.size:
            raise ConfigError(f"size must be at least {STAMP.size}, not {self.size}")
        if not 1 <= self.in_flight <= IN_FLIGHT_MAX:
            raise ConfigError(f"in_flight must be 1 to {IN_FLIGHT_MAX}, not {self.in_flight}")


class SendLoad:
    """Sends until the count is reached or the run is ended."""

    def __init__(self, options: SendOptions, tally: Tally, ending: Ending, clock: Clock) -> None:
        self._options = options
        self._tally = tally
        self._ending = ending
        self._clock = clock
        self._pacer = Pacer(clock, options.rate, ending)
        self._left = options.count
        self._filling = os.urandom(options.size - STAMP.size)
        self.run_id = os.urandom(8)

    async def run(self, client: ClientOptions, on_begin: Callable[[], None] | None = None) -> None:
        """Send all messages, and wait for requests in flight at the end. Raises SkylarkError."""
        options = self._options
        async with Producer(GROUP, client, batching=options.batching) as producer:
            await producer.queues(options.topic)  # raises at once if the topic does not exist
            self._tally.begin()
            if on_begin is not None:
                on_begin()
            async with asyncio.TaskGroup() as group:
                for _ in range(options.in_flight):
                    group.create_task(self._send_on(producer))
            self._tally.finish()

    async def _send_on(self, producer: Producer) -> None:
        """One sender."""
        while count := self._take():
            due = await self._pacer.turn(count)
            if due is None:
                return
            try:
                await self._send(producer, count, due)
            except SkylarkError as error:
                self._tally.failed(count, error)
                await self._ending.within(ERROR_PAUSE_S)
            else:
                latency_s = self._clock.monotonic() - due
                self._tally.done(count, count * self._options.size, latency_s)

    def _take(self) -> int:
        """The number of messages of the next request; 0 if none are left."""
        if self._left is None:
            return self._options.batch
        count = min(self._options.batch, self._left)
        self._left -= count
        return count

    async def _send(self, producer: Producer, count: int, due: float) -> None:
        body = STAMP.pack(self.run_id, due) + self._filling
        if count == 1:
            await producer.send(Message(self._options.topic, body))
        else:
            await producer.send_batch([Message(self._options.topic, body)] * count)
