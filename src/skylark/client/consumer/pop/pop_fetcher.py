"""Receives messages for a :class:`~skylark.aio.PopConsumer`: which broker to ask, how long to wait.

A consumer pops from every broker of every topic that it subscribes to; a pop for any queue leaves
the choice of the queue to the broker. With one broker a receive is one request, which the broker
holds until there is a message. With more of them it asks all at once what they have now, and
returns a moment (:data:`GRACE_S`) after the first messages: a broker that hangs delays nothing.
Where none has a message it waits at all of them for the first.

**Nothing is lost here.** A request that the broker holds cannot be taken back: it may bring
messages after its receive has ended, because it was cancelled or because another broker was
quicker. Such a request is *pending*: the next receive takes it over. The messages that it brings,
and those that an iteration has not handed out yet, are *kept*: a receive that waits takes them at
once, otherwise the next one. At the end of the consumer they are given back, which counts no
attempt.

**Messages are handed out fresh**, with at least two thirds of their invisible time left: the
application is to have the time that it asked for. What is kept for longer than the other third, or
what took so long to come here, is given back, and new messages are popped. An iteration whose
application is so slow asks for fewer messages the next time, so that it does not hide messages from
other consumers that it will not hand out.

**The end.** A receive that waits ends with nothing. :mod:`~skylark.client.consumer.pop.pop_stop`
ends the requests that still wait at brokers; then what is kept is given back.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Generic

from skylark.client.consumer.pop.pop_options import POLL_S, POP_BATCH_MAX
from skylark.client.consumer.pop.pop_source import ANY_QUEUE, PopContext, PopSource
from skylark.client.consumer.pop.pop_stop import end_waiting_pops
from skylark.client.consumer.pop.popped_message import (
    MakeMessage,
    MessageT,
    PoppedRecord,
    PopReceipt,
)
from skylark.client.consumer.subscription import Subscription
from skylark.client.core.route_cache import Route, no_route
from skylark.client.metrics import ConsumeMeter
from skylark.core.clock import TimerHandle
from skylark.core.errors import ClientError, SkylarkError
from skylark.wire.bodies.common_body import MessageQueue

logger = logging.getLogger(__name__)

#: Pause of a receive that waits, after an error or without room at the broker.
RETRY_PAUSE_S: Final = 1.0
#: A broker that answers sooner, with nothing, did not hold the request: pause for as long.
QUICK_ANSWER_S: Final = 0.02
#: How long a receive waits for the other brokers, once one has answered.
GRACE_S: Final = 0.02
#: How long a receive waits for the first answer, when it asks several brokers what they have now.
ANSWER_S: Final = 1.0
#: Part of the invisible time after which messages are not handed out any more.
_FRESH_PART: Final = 3


class PopFetcher(Generic[MessageT]):
    """The sources of one consumer; see the module docstring."""

    def __init__(
        self,
        context: PopContext,
        subscriptions: Callable[[], Mapping[str, Subscription]],
        make: MakeMessage[MessageT],
        meter: Callable[[str], ConsumeMeter],
        batch: int = POP_BATCH_MAX,
    ) -> None:
        """``subscriptions`` are by topic, as brokers know it; ``meter`` returns that of a topic."""
        self._context = context
        self._subscriptions = subscriptions
        self._make = make
        self._meter = meter
        self._batch = batch
        self._clock = context.link.clock
        self._routes: dict[str, tuple[Route, Subscription, list[PopSource[MessageT]]]] = {}
        self._polls: dict[asyncio.Task[list[MessageT]], PopSource[MessageT]] = {}  # all requests
        self._pending: dict[PopSource[MessageT], deque[asyncio.Task[list[MessageT]]]] = {}
        self._kept: deque[MessageT] = deque()
        self._give_back_timer: TimerHandle | None = None
        self._give_back_ms = 0  # when that timer fires
        self._ahead = batch  # messages that an iteration asks for at once
        self._ahead_taken = 0  # of these: what it has handed out,
        self._ahead_ms = 0  # and when they came
        self._waiting: dict[asyncio.Future[None], None] = {}  # of receives, the oldest first
        self._fetches = 0  # receives that may hold messages
        self._closed = False  # nothing is handed out any more
        self._ended = False  # and close() has taken what was kept
        self._fetches_ended: asyncio.Future[None] | None = None

    # ---- receiving -------------------------------------------------------------------------------

    async def receive(self, count: int, wait_s: float) -> list[MessageT]:
        """Up to ``count`` messages, as soon as there is one; none if none comes in time.

        Raises SkylarkError if no broker could be asked.
        """
        deadline = self._clock.monotonic() + wait_s
        while not self._closed:
            if self._kept and (found := self._take_kept(count)):
                return found
            began = self._clock.monotonic()
            sources = await self._sources()
            found = [] if self._closed else await self._fetch(sources, count, deadline)
            if found:
                return found
            left_s = deadline - self._clock.monotonic()
            if self._kept:
                continue
            if left_s <= 0:
                break
            pause_s = 0.0
            if any(source.is_full for source in sources):
                pause_s = RETRY_PAUSE_S
            elif self._clock.monotonic() - began < QUICK_ANSWER_S:
                pause_s = QUICK_ANSWER_S
            if pause_s:
                await self._first_ended((), min(pause_s, left_s))
        return []

    async def receive_one(self, wait_s: float) -> list[MessageT]:
        """At most one message; the rest of what the brokers gave is kept, for the next call."""
        found = self._take_kept(1)
        if found:
            self._ahead_taken += 1
            return found
        self._raise_ahead()
        found = await self.receive(self._ahead, wait_s)
        self._ahead_taken, self._ahead_ms = len(found[:1]), self._clock.steady_ms()
        self.keep(found[1:])
        return found[:1]

    def _raise_ahead(self) -> None:
        """Let an iteration ask for more, if it would have handed out twice as many in time."""
        took_ms = self._clock.steady_ms() - self._ahead_ms
        if (
            self._ahead_taken >= self._ahead
            and 2 * took_ms * _FRESH_PART < self._context.invisible_ms
        ):
            self._ahead = min(2 * self._ahead, self._batch)

    async def _fetch(
        self, sources: Sequence[PopSource[MessageT]], count: int, deadline: float
    ) -> list[MessageT]:
        """Messages of the brokers; none as soon as messages are kept, or the consumer ends."""
        self._fetches += 1
        try:
            if len(sources) == 1:
                found = await self._from_one(sources[0], count, deadline)
            else:
                found = await self._from_any(sources, count, deadline)
            if self._closed:
                self.keep(found)
                return []
            found = self._only_fresh(found, self._clock.steady_ms())
        finally:
            self._fetches -= 1
            if self._fetches_ended is not None and not self._fetches:
                _wake(self._fetches_ended)
        if found and self._kept:  # this receive may have been woken for these
            self._wake_waiting()
        return found

    def _poll_s(self, deadline: float) -> float:
        return min(POLL_S, max(0.0, deadline - self._clock.monotonic()))

    async def _from_one(
        self, source: PopSource[MessageT], count: int, deadline: float
    ) -> list[MessageT]:
        if self._poll_s(deadline) > 0:
            found = await self._first_of((source,), min(count, self._batch), deadline)
        else:
            found = await self._pop(source, min(count, self._batch))
        size = len(found)
        while size == self._batch and len(found) < count and not self._closed:
            more = await self._pop_more(source, min(count - len(found), self._batch), found)
            size = len(more)
            found += more
        return self._limit(found, count)

    async def _pop(self, source: PopSource[MessageT], count: int) -> list[MessageT]:
        """The messages that are there now."""
        poll = self._spawn(source, count, 0.0)
        found, failures = await self._collect({poll: source}, self._first_ended((poll,), None))
        if failures:
            raise failures[0]
        return found

    async def _pop_more(
        self, source: PopSource[MessageT], count: int, found: list[MessageT]
    ) -> list[MessageT]:
        """A further pop, which may fail: ``found`` is returned anyway, or kept on cancellation."""
        try:
            return await self._pop(source, count)
        except asyncio.CancelledError:
            self.keep(found)
            raise
        except SkylarkError as error:
            logger.info("a further pop from %s failed: %s", source.queue, error)
            return []

    async def _from_any(
        self, sources: Sequence[PopSource[MessageT]], count: int, deadline: float
    ) -> list[MessageT]:
        """Ask all brokers at once what they have; where none has a message, wait at all of them."""
        polls = {
            self._spawn(source, min(count, self._batch), 0.0): source
            for source in sources
            if not self._pending.get(source)  # else a request is there already
        }
        found, failures = await self._collect(polls, self._answers(polls, deadline))
        if failures:
            if len(failures) == len(sources):
                raise failures[0]
            logger.info("cannot pop from %d brokers now: %s", len(failures), failures[0])
        if found or self._closed or self._poll_s(deadline) <= 0:
            return self._limit(found, count)
        return await self._first_of(sources, count, deadline)

    async def _answers(
        self, polls: Collection[asyncio.Task[list[MessageT]]], deadline: float
    ) -> set[asyncio.Task[list[MessageT]]]:
        """Wait for all requests, but not for long once that need not be; returns the ended ones.

        It need not be when one has brought messages, or if the receive may wait for messages: it
        goes on to wait for the others together with new requests.
        """
        ended: set[asyncio.Task[list[MessageT]]] = set()
        end = self._clock.monotonic() + ANSWER_S
        while len(ended) < len(polls) and not self._kept and not self._closed:
            left_s = end - self._clock.monotonic()
            if left_s <= 0:
                break
            new = await self._first_ended([each for each in polls if each not in ended], left_s)
            ended |= new
            now = self._clock.monotonic()
            if new and (now < deadline or any(_has_messages(each) for each in new)):
                end = min(end, now + GRACE_S)
        return ended

    async def _first_of(
        self, sources: Sequence[PopSource[MessageT]], count: int, deadline: float
    ) -> list[MessageT]:
        """Wait at all sources; what the others bring later is for the next receive."""
        if self._kept:
            return []
        begun_before = any(self._pending.get(each) for each in sources)
        polls = {self._poll(each, min(count, self._batch), deadline): each for each in sources}
        wait_s = self._poll_s(deadline) if begun_before else None
        found, failures = await self._collect(polls, self._first_ended(polls, wait_s))
        if failures and not found:
            if len(failures) == len(polls):
                raise failures[0]
            logger.info("cannot pop from %d brokers now: %s", len(failures), failures[0])
            pause_s = min(RETRY_PAUSE_S, max(0.0, deadline - self._clock.monotonic()))
            await self._first_ended((), pause_s)
        return self._limit(found, count)

    async def _collect(
        self,
        polls: Mapping[asyncio.Task[list[MessageT]], PopSource[MessageT]],
        ending: Awaitable[set[asyncio.Task[list[MessageT]]]],
    ) -> tuple[list[MessageT], list[BaseException]]:
        """What the requests that have ended brought, and their errors; the others are pending."""
        try:
            ended = await ending
        except asyncio.CancelledError:
            for poll, source in polls.items():
                self._add_pending(source, poll)
            raise
        found: list[MessageT] = []
        failures: list[BaseException] = []
        for poll, source in polls.items():
            if poll not in ended:
                self._add_pending(source, poll)
            elif poll.cancelled():
                continue
            elif (error := poll.exception()) is None:
                found += poll.result()
            else:
                failures.append(error)
        return found, failures

    def _limit(self, found: list[MessageT], count: int) -> list[MessageT]:
        """Several requests, or a pending one, may bring more than this receive asked for."""
        if len(found) > count:
            self.keep(found[count:])
            del found[count:]
        return found

    # ---- requests --------------------------------------------------------------------------------

    def _poll(
        self, source: PopSource[MessageT], count: int, deadline: float
    ) -> asyncio.Task[list[MessageT]]:
        """A pending request of the source, or a new one."""
        pending = self._pending.get(source)
        if pending:
            return pending.popleft()
        return self._spawn(source, count, self._poll_s(deadline))

    async def _first_ended(
        self, polls: Collection[asyncio.Task[list[MessageT]]], wait_s: float | None
    ) -> set[asyncio.Task[list[MessageT]]]:
        """Wait for one of the requests, or for kept messages.

        ``wait_s`` is for requests that another receive began, which may last longer than this one.
        """
        woken: asyncio.Future[None] = self._context.link.loop.create_future()
        self._waiting[woken] = None
        timer = None if wait_s is None else self._clock.call_later(wait_s, _wake, woken)

        def ended(_: object) -> None:
            _wake(woken)

        for poll in polls:
            poll.add_done_callback(ended)
        try:
            await woken
        except asyncio.CancelledError:
            if self._kept:  # it may have been woken for these
                self._waiting.pop(woken)
                self._wake_waiting()
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting.pop(woken, None)
            for poll in polls:
                poll.remove_done_callback(ended)
        return {poll for poll in polls if poll.done()}

    def _spawn(
        self, source: PopSource[MessageT], count: int, poll_s: float
    ) -> asyncio.Task[list[MessageT]]:
        work = self._request(source, count, poll_s)
        poll = self._context.link.loop.create_task(work, name=f"pop {source.queue}")
        self._polls[poll] = source
        poll.add_done_callback(self._polls.pop)
        return poll

    async def _request(
        self, source: PopSource[MessageT], count: int, poll_s: float
    ) -> list[MessageT]:
        started_ms = self._clock.steady_ms()
        found = await source.pop(count, poll_s)
        if found:
            took_ms = self._clock.steady_ms() - started_ms
            self._meter(source.queue.topic).pulled("found", took_ms, len(found))
        return found

    def _add_pending(self, source: PopSource[MessageT], poll: asyncio.Task[list[MessageT]]) -> None:
        self._pending.setdefault(source, deque()).append(poll)
        poll.add_done_callback(lambda ended: self._pending_ended(source, ended))

    def _pending_ended(
        self, source: PopSource[MessageT], poll: asyncio.Task[list[MessageT]]
    ) -> None:
        pending = self._pending.get(source)
        if pending is None or poll not in pending:
            return  # a receive has taken it over
        pending.remove(poll)
        if poll.cancelled():
            return
        error = poll.exception()
        if error is None:
            self.keep(poll.result())
        else:
            logger.info("a pop from %s failed: %s", source.queue, error)

    # ---- kept messages ---------------------------------------------------------------------------

    def keep(self, messages: Sequence[MessageT]) -> None:
        """Keep messages that were not handed out, for the next receive."""
        if not messages:
            return
        if self._ended:
            self._context.give_back_soon(messages)
            return
        self._kept.extend(messages)
        if self._closed:
            return  # close() gives them back
        self._wake_waiting()
        self._schedule_give_back()

    def _wake_waiting(self) -> None:
        """Let the receive that has waited longest take the kept messages."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)
                return

    def _take_kept(self, count: int) -> list[MessageT]:
        found: list[MessageT] = []
        old: list[MessageT] = []
        now_ms = self._clock.steady_ms()
        while self._kept and len(found) < count:
            message = self._kept.popleft()
            (found if now_ms < _fresh_until_ms(message) else old).append(message)
        self._give_back_kept(old)
        if self._kept:
            self._wake_waiting()  # the next one may have the rest
        elif self._give_back_timer is not None:
            self._give_back_timer.cancel()
            self._give_back_timer = None
        return found

    def _only_fresh(self, found: list[MessageT], now_ms: int) -> list[MessageT]:
        """The messages that may be handed out; the others are given back."""
        last: PopReceipt | None = None
        for message in found:
            if message.receipt is not last:  # most messages share theirs
                last = message.receipt
                if now_ms >= _fresh_until_ms(message):
                    break
        else:
            return found
        old = [each for each in found if now_ms >= _fresh_until_ms(each)]
        self._context.give_back_soon(old)
        return [each for each in found if now_ms < _fresh_until_ms(each)]

    def _schedule_give_back(self) -> None:
        """Give kept messages back as soon as the first of them may not be handed out any more."""
        if self._give_back_timer is not None:
            self._give_back_timer.cancel()
            self._give_back_timer = None
        if self._kept:
            self._give_back_ms = min(map(_fresh_until_ms, self._kept))
            wait_s = max(0, self._give_back_ms - self._clock.steady_ms()) / 1000
            self._give_back_timer = self._clock.call_later(wait_s, self._give_back_old)

    def _give_back_old(self) -> None:
        self._give_back_timer = None
        # A timer may fire a fraction of a millisecond early.
        now_ms = max(self._clock.steady_ms(), self._give_back_ms)
        kept, self._kept = self._kept, deque()
        old: list[MessageT] = []
        for message in kept:
            (self._kept if now_ms < _fresh_until_ms(message) else old).append(message)
        self._give_back_kept(old)
        self._schedule_give_back()

    def _give_back_kept(self, old: Sequence[MessageT]) -> None:
        if old:
            self._context.give_back_soon(old)
            self._ahead = max(1, min(self._ahead_taken, self._ahead))

    # ---- sources ---------------------------------------------------------------------------------

    async def _sources(self) -> list[PopSource[MessageT]]:
        """One source for each topic and broker, by the routes of now; raises NoRouteError."""
        found: list[PopSource[MessageT]] = []
        subscriptions = self._subscriptions()
        if not subscriptions:
            raise ClientError(
                f"{self._context.namespace.unwrap(self._context.group)} subscribes nothing",
                hint="call subscribe()",
            )
        missing = ""
        for topic, subscription in subscriptions.items():
            route = self._context.link.lookup.routes.get(topic)
            if route is None or not route.subscribe:
                missing = topic
                continue
            known = self._routes.get(topic)
            if known is None or known[0] is not route or known[1] is not subscription:
                sources = self._make_sources(route, subscription)
                known = self._routes[topic] = (route, subscription, sources)
            found += known[2]
        if not found:
            if missing:
                await self._context.link.lookup.subscribe_route(missing)
                return await self._sources()
            raise no_route("")
        return found

    def _make_sources(self, route: Route, subscription: Subscription) -> list[PopSource[MessageT]]:
        old = self._routes.get(route.topic)
        kept = {
            source.queue: source
            for source in (() if old is None else old[2])
            if source.subscription is subscription
        }
        queues = [
            MessageQueue(topic=route.topic, broker_name=name, queue_id=ANY_QUEUE)
            for name in dict.fromkeys(queue.broker_name for queue in route.subscribe)
        ]
        return [
            kept.get(queue) or PopSource(self._context, queue, subscription, self._make)
            for queue in queues
        ]

    # ---- the end ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Let receives end with nothing, end the requests that wait, and give back what is kept."""
        self._closed = True
        if self._give_back_timer is not None:
            self._give_back_timer.cancel()
            self._give_back_timer = None
        for waiter in self._waiting:
            _wake(waiter)
        if self._fetches:
            self._fetches_ended = self._context.link.loop.create_future()
            await self._fetches_ended
        # What a request brings from here on is kept, by _pending_ended.
        await end_waiting_pops(
            self._context,
            {poll: source.queue.broker_name for poll, source in self._polls.items()},
        )
        self._ended = True
        kept, self._kept = tuple(self._kept), deque()
        await self._context.receipts.give_back(kept)


def _fresh_until_ms(message: PoppedRecord) -> int:
    """When less than two thirds of the invisible time are left."""
    receipt = message.receipt
    return receipt.visible_at_ms - receipt.invisible_ms + receipt.invisible_ms // _FRESH_PART


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def _has_messages(poll: asyncio.Task[list[MessageT]]) -> bool:
    return not poll.cancelled() and poll.exception() is None and bool(poll.result())
