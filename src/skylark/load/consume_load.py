"""The consuming side of a benchmark: a member of a consumer group that counts messages.

Its group is created for the run and deleted at the end, unless one is given. The start offsets are
committed before the member joins, so that it misses no message that is sent afterwards.

The latency of a message is its age since its born time, by the producer's clock, in whole
milliseconds. In an end-to-end run, where both sides are in this process, it is computed from the
stamp (:mod:`skylark.load.send_load`), and messages of other runs are not counted.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal

from skylark.admin.admin_client import Admin
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.consumer.rebalance import FIRST_PULL_DELAY_MS
from skylark.client.core.client_message import MessageExt
from skylark.client.core.client_options import ClientOptions
from skylark.core.clock import Clock
from skylark.core.errors import SkylarkError
from skylark.load.run_statistics import Tally
from skylark.load.send_load import STAMP, Ending

Start = Literal["earliest", "latest"]

#: Maximum messages per call of a handler.
BATCH: Final = 32
#: How long a member waits for its first queues; other members may have all of them.
JOINED_WITHIN_S: Final = 5.0
#: Delay between the assignment of a queue and its first pull, as in Java.
FIRST_PULL_S: Final = FIRST_PULL_DELAY_MS / 1000 + 0.1


@asynccontextmanager
async def bench_group(
    admin: Admin, topic: str, given: str | None, start: Start | None
) -> AsyncIterator[str]:
    """Provide the consumer group, with its start offsets; deletes a group created here."""
    group = given or f"skylark-bench-{uuid.uuid4().hex[:12]}"
    try:
        if given is None or start is not None:
            await admin.groups.create(group)
            ends = (await admin.offsets.bounds(topic)).queues
            offsets = {
                each.queue: each.max_offset if start == "latest" else each.min_offset
                for each in ends
            }
            await admin.offsets.commit(group, offsets)
        yield group
    finally:
        if given is None:
            with suppress(SkylarkError):  # the run has ended, and its result matters more
                await admin.groups.delete(group)


class ConsumeLoad:
    """Consumes until the count is reached or the run is ended."""

    def __init__(
        self,
        topic: str,
        tally: Tally,
        ending: Ending,
        clock: Clock,
        *,
        count: int | None = None,
        concurrency: int = 20,
        run_id: bytes | None = None,
    ) -> None:
        """``run_id``: count only messages with this run in their stamp."""
        self._topic = topic
        self._tally = tally
        self._ending = ending
        self._clock = clock
        self._count = count
        self._concurrency = concurrency
        self._run_id = run_id

    @asynccontextmanager
    async def running(self, group: str, client: ClientOptions) -> AsyncIterator[None]:
        """Consume inside the block, which is entered when the member has queues.

        The measured time ends when the count is reached or the block is left.
        """
        joined, loop = asyncio.Event(), asyncio.get_running_loop()
        consumer = PushConsumer(
            group,
            client,
            concurrency=self._concurrency,
            queue_listener=lambda *shared: loop.call_soon_threadsafe(joined.set),
        )
        take = self._take_aged if self._run_id is None else self._take_stamped

        @consumer.subscribe(self._topic, batch=BATCH)
        async def on_messages(messages: list[MessageExt]) -> None:
            self._tally.begin()
            for message in messages:
                if self._count is None or self._tally.messages < self._count:
                    take(message)
            reached = self._count is not None and self._tally.messages >= self._count
            if reached and not self._ending.is_set:  # prefetched messages still arrive
                self._tally.finish()
                self._ending.set()

        async with consumer:
            with suppress(TimeoutError):
                await self._clock.wait_for(joined.wait(), JOINED_WITHIN_S)
                await self._ending.within(FIRST_PULL_S)
            self._tally.begin()
            try:
                yield
            finally:
                if self._count is None or self._tally.messages < self._count:
                    self._tally.finish()

    def _take_aged(self, message: MessageExt) -> None:
        age_ms = self._clock.now_ms() - message.record.born_timestamp
        self._tally.done(1, len(message.body), age_ms / 1000)

    def _take_stamped(self, message: MessageExt) -> None:
        body = message.body
        if len(body) < STAMP.size:
            return
        run_id, due = STAMP.unpack_from(body)
        if run_id == self._run_id:
            self._tally.done(1, len(body), self._clock.monotonic() - due)
