"""Renews the invisible time of popped messages while their handlers run.

When half of the invisible time has passed, the messages of a pop whose handlers run are hidden for
the whole time again, and so on, until an hour (``renew_limit``) after the pop. Then the broker
delivers them again, as it does for a consumer that has died. A message whose renewal the broker
refuses is *lost* here: the result of its handler does not count.

Messages whose handlers have not begun by then are given back, also without renewal: another
consumer may have a handler that is free.

Messages of one pop wait together, in one entry of a heap with one timer: handlers that are quick
cost nothing. Without a response, or if the broker is busy, the renewal is repeated until the
invisible time is over.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from skylark.client.consumer.pop.pop_queue import PopQueue
from skylark.client.consumer.pop.pop_receipts import SINGLE_ACKS_MAX, wait_for_change
from skylark.client.consumer.pop.pop_source import PopContext
from skylark.client.consumer.pop.popped_message import PoppedRecord
from skylark.client.errors import ReceiptExpiredError
from skylark.core.clock import TimerHandle
from skylark.core.errors import BrokerError, SkylarkError

logger = logging.getLogger(__name__)

#: Pause before a renewal is repeated.
REPEAT_MS: Final = 1_000


class _Watched(msgspec.Struct, frozen=True, eq=False):
    """Messages of one pop."""

    pop_queue: PopQueue
    popped_ms: int
    messages: Sequence[PoppedRecord]


class PopRenewal:
    """The messages of one consumer whose invisible time is renewed."""

    def __init__(
        self,
        context: PopContext,
        limit_ms: int,
        give_back: Callable[[PopQueue, Sequence[PoppedRecord]], Sequence[PoppedRecord]],
    ) -> None:
        """``limit_ms``: how long after its pop a message is renewed; 0: not at all.

        ``give_back`` gives back those messages whose handler has not begun, and returns the others.
        """
        self._context = context
        self._give_back = give_back
        self._clock = context.link.clock
        self._limit_ms = limit_ms
        self._period_ms = max(1, context.invisible_ms // 2)
        # due, number of the entry (which orders equal times), messages
        self._heap: list[tuple[int, int, _Watched]] = []
        self._count = 0
        self._timer: TimerHandle | None = None
        self._timer_ms = 0
        self.renewed = 0  #: renewals that brokers accepted

    @property
    def patience_ms(self) -> int:
        """How long a message may wait for its handler."""
        return self._period_ms

    def watch(self, pop_queue: PopQueue, messages: Sequence[PoppedRecord]) -> None:
        """Renew popped messages until they are settled."""
        now_ms = self._clock.steady_ms()
        receipt = messages[0].receipt
        popped_ms = receipt.visible_at_ms - receipt.invisible_ms
        due_ms = min(popped_ms, now_ms) + self._period_ms
        self._add(due_ms, _Watched(pop_queue, popped_ms, messages))

    def _add(self, due_ms: int, watched: _Watched) -> None:
        self._count += 1
        heapq.heappush(self._heap, (due_ms, self._count, watched))
        if self._timer is None or due_ms < self._timer_ms:
            self._schedule()

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._heap:
            self._timer_ms = self._heap[0][0]
            wait_s = max(0, self._timer_ms - self._clock.steady_ms()) / 1000
            self._timer = self._clock.call_later(wait_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        # A timer may fire a fraction of a millisecond early.
        now_ms = max(self._clock.steady_ms(), self._timer_ms)
        while self._heap and self._heap[0][0] <= now_ms:
            _, _, watched = heapq.heappop(self._heap)
            held: Sequence[PoppedRecord] = [
                each for each in watched.messages if not each.is_settled
            ]
            if held:
                held = self._give_back(watched.pop_queue, held)
            if held and now_ms - watched.popped_ms < self._limit_ms:
                self._context.spawn(self._renew(watched, held))
            elif held and self._limit_ms:
                logger.warning(
                    "handlers of %d messages take longer than renew_limit, the first is %s:"
                    " they are delivered again",
                    len(held),
                    held[0],
                )
        self._schedule()

    async def _renew(self, watched: _Watched, messages: Sequence[PoppedRecord]) -> None:
        again: list[PoppedRecord] = []
        held: list[PoppedRecord] = []
        for start in range(0, len(messages), SINGLE_ACKS_MAX):
            some = [each for each in messages[start : start + SINGLE_ACKS_MAX]
                    if not each.is_settled]  # fmt: skip
            results = await asyncio.gather(*map(self._renew_one, some))
            for message, is_renewed in zip(some, results, strict=True):
                if is_renewed is None:
                    again.append(message)
                elif is_renewed:
                    held.append(message)
        now_ms = self._clock.steady_ms()
        for wait_ms, some in ((self._period_ms, held), (REPEAT_MS, again)):
            if some:
                self._add(now_ms + wait_ms, msgspec.structs.replace(watched, messages=some))

    async def _renew_one(self, message: PoppedRecord) -> bool | None:
        """Renew a message; False if it is lost, None to try again."""
        await wait_for_change(message)
        if message.is_settled:  # meanwhile
            return False
        try:
            await self._context.receipts.change(message, self._context.invisible_ms)
        except ReceiptExpiredError:
            return False
        except SkylarkError as error:
            if isinstance(error, BrokerError) and not error.retriable:
                logger.warning(
                    "the broker does not renew %s, its result is dropped: %s", message, error
                )
                message.is_lost = True
                return False
            logger.info("%s is not renewed yet: %s", message, error)
            return None
        except Exception:  # such as an error of a hook
            logger.exception("%s is not renewed yet", message)
            return None
        self.renewed += 1
        return True

    def close(self) -> None:
        """Renew nothing any more."""
        self._heap.clear()
        self._schedule()
