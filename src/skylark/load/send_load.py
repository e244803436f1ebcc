"""The sending side: so many senders, each with one request under way.

A request is one message, or ``batch`` of them. Bodies are random, so that nothing on the way can
compress them; they begin with a *stamp*, by which the other side of an end-to-end run knows them::

    8 bytes   run     tells this run from others that used the topic
    8 bytes   due     monotonic time since when the message was due, as a big-endian double

A failed send is counted, and its sender pauses: errors that come back at once must not become the
load.
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
from skylark.load.send_rate import Ending, Pacer

GROUP: Final = "skylark-bench"
STAMP: Final = struct.Struct(">8sd")  # run, due
assert STAMP.size == 16
IN_FLIGHT_MAX: Final = 8_192
ERROR_PAUSE_S: Final = 0.1


class SendOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How much is sent, and how; raises ConfigError for what cannot be."""

    topic: str
    size: int = 1024  #: bytes of a body
    count: int | None = None  #: None: until the end is set
    in_flight: int = 64  #: requests under way at a time
    batch: int = 1  #: messages of one request
    batching: bool = True  #: single messages that are sent at the same time may travel together
    rate: float | None = None  #: messages a second

    def __post_init__(self) -> None:
        if self.size < STAMP.size:
            raise ConfigError(f"a size of {self.size}: messages have {STAMP.size} bytes at least")
        if not 1 <= self.in_flight <= IN_FLIGHT_MAX:
            raise ConfigError(f"in_flight must be 1 to {IN_FLIGHT_MAX}, not {self.in_flight}")


class SendLoad:
    """Sends until the count is reached or the end is set."""

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
        """Send it all; what was under way at the end gets its outcome. Raises SkylarkError."""
        options = self._options
        async with Producer(GROUP, client, batching=options.batching) as producer:
            await producer.queues(options.topic)  # a topic that does not exist is told at once
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
        """How many messages the next request has; 0 if all were taken."""
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
