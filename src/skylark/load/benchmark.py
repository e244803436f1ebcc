"""The three kinds of benchmark runs: send, consume, end to end.

A run uses an existing topic, or creates one if asked to (:func:`bench_topic`). It ends at its
message count, after its duration, or when the caller ends it; each way it returns figures.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from skylark.admin.admin_client import Admin
from skylark.admin.errors import NotFoundError
from skylark.client.core.client_options import ClientOptions
from skylark.core.clock import Clock
from skylark.load.consume_load import ConsumeLoad, Start, bench_group
from skylark.load.run_statistics import Tally
from skylark.load.send_load import Ending, SendLoad, SendOptions
from skylark.net.event_loop import new_event_loop

#: How long an end-to-end run waits for its last messages.
DRAIN_S: Final = 10.0
#: How long the route of a new topic may take to appear.
TOPIC_WITHIN_S: Final = 10.0
_POLL_S: Final = 0.01


def quick_runner() -> asyncio.Runner:
    """A runner with uvloop if it is installed, else asyncio's loop."""
    return asyncio.Runner(loop_factory=new_event_loop)


@asynccontextmanager
async def bench_topic(
    admin: Admin, topic: str, clock: Clock, *, create: int | None = None, cleanup: bool = False
) -> AsyncIterator[bool]:
    """Provide the topic; creates it with ``create`` queues; yields whether it was created.

    Raises NotFoundError if it does not exist and ``create`` is None. ``cleanup`` deletes it at the
    end if it was created here.
    """
    made = False
    try:
        await admin.topics.route(topic)
    except NotFoundError:
        if create is None:
            raise
        await admin.topics.create(topic, queue_count=create)
        made = True
        await _wait_for_route(admin, topic, clock)
    try:
        yield made
    finally:
        if made and cleanup:
            await admin.topics.delete(topic)


async def _wait_for_route(admin: Admin, topic: str, clock: Clock) -> None:
    """Wait until name servers have the route of the new topic; raises NotFoundError."""
    deadline = clock.monotonic() + TOPIC_WITHIN_S
    while True:
        try:
            await admin.topics.route(topic)
        except NotFoundError:
            if clock.monotonic() > deadline:
                raise
            await clock.sleep(_POLL_S)
        else:
            return


class Bench:
    """One run; ``tallies`` can be read during the run."""

    def __init__(self, client: ClientOptions, clock: Clock, duration_s: float | None) -> None:
        """``duration_s``: maximum duration of the run."""
        self.ending = Ending(clock)
        self.tallies: list[Tally] = []
        self._client = client
        self._clock = clock
        self._duration_s = duration_s

    def _tally(self, what: str) -> Tally:
        tally = Tally(what, self._clock)
        self.tallies.append(tally)
        return tally

    def _end_in_time(self) -> None:
        if self._duration_s is not None:
            self._clock.call_later(self._duration_s, self.ending.set)

    async def send(self, options: SendOptions) -> None:
        """Send only."""
        load = SendLoad(options, self._tally("send"), self.ending, self._clock)
        await load.run(self._client, self._end_in_time)

    async def consume(
        self,
        admin: Admin,
        topic: str,
        *,
        count: int | None,
        concurrency: int,
        group: str | None = None,
        start: Start | None = None,
    ) -> None:
        """Consume only: stored and new messages."""
        load = ConsumeLoad(
            topic,
            self._tally("consume"),
            self.ending,
            self._clock,
            count=count,
            concurrency=concurrency,
        )
        async with (
            bench_group(admin, topic, group, start) as name,
            load.running(name, self._client),
        ):
            self._end_in_time()
            await self.ending.within(None)

    async def end_to_end(self, admin: Admin, options: SendOptions, *, concurrency: int) -> int:
        """Send and consume the sent messages; returns how many did not arrive."""
        sent, received = self._tally("send"), self._tally("e2e")
        sending = SendLoad(options, sent, self.ending, self._clock)
        consuming = ConsumeLoad(
            options.topic,
            received,
            Ending(self._clock),  # consuming ends with the last message, not with the sending
            self._clock,
            concurrency=concurrency,
            run_id=sending.run_id,
        )
        async with (
            bench_group(admin, options.topic, None, "latest") as group,
            consuming.running(group, self._client),
        ):
            self._end_in_time()
            await sending.run(self._client)
            await self._drain(sent, received)
        return max(0, sent.messages - received.messages)

    async def _drain(self, sent: Tally, received: Tally) -> None:
        """Wait for the messages in flight, as long as some arrive."""
        before, deadline = -1, 0.0
        while received.messages < sent.messages:
            now = self._clock.monotonic()
            if received.messages > before:
                before, deadline = received.messages, now + DRAIN_S
            elif now > deadline:
                return
            await self._clock.sleep(_POLL_S)
