"""Wakes waiting pops and notifications, and runs them again.

The store calls :meth:`WaitingPopRunner.arrived` for each message that becomes readable. In the next
turn of the loop, when the producers of this turn have their responses, it wakes one request of each
group (:mod:`skylark.broker.pop.waiting_pops`) and runs it at once. Of many messages that arrive
together the first request takes as many as it wants; messages that are taken already wake none
(``is_taken``). What is left over is reported by the request itself, which wakes the next one
(:meth:`WaitingPopRunner.wake_one`). A request whose client is gone or does not read its responses
takes nothing now: the next one wakes in its place.

A request that runs and finds nothing, because another consumer was faster, waits again with its old
deadline. At the deadline it runs for a last time.

Every message whose offset is a multiple of ``popLongPollingForceNotifyInterval`` (800) wakes a
request whatever its filter, so that the offset of a group with a narrow filter moves on. So does
every message in a retry topic.

Floods are bounded as those of held pulls (:mod:`skylark.broker.pull.held_pull_runner`): per turn of
the loop so many messages are looked at as :data:`ARRIVALS_PER_TURN` and ``SECONDS_PER_TURN`` allow.
Beyond :data:`ARRIVALS_MAX` waiting messages only the last of each queue is kept, which wakes a
request whatever its filter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

from skylark.broker.api import Peer, Pending
from skylark.broker.pop.queue_order import ANY_QUEUE
from skylark.broker.pop.waiting_pops import WaitingPops
from skylark.broker.pull.held_request_runner import (
    SECONDS_PER_TURN,
    WAKES_PER_TURN,
    HeldRequest,
    HeldRequestRunner,
)
from skylark.core.clock import Clock
from skylark.filter.sql_eval import SqlFilter
from skylark.filter.tag import TagFilter
from skylark.net.inbound import Watch
from skylark.store.reput import Arrival

#: Messages of one turn that are looked at; the others wait for the next turn.
ARRIVALS_PER_TURN: Final = 1_000
#: Messages that wait to be looked at.
ARRIVALS_MAX: Final = 10_000
#: Waiting ends so long before the deadline, as in Java: the answer has to travel.
EARLY_MS: Final = 50


def wait_time_ms(born_ms: int, poll_ms: int, now_ms: int) -> int:
    """How long a request that finds nothing may wait, by its own clock and ours."""
    # A client whose clock is fast does not wait for longer than it asks for.
    return min(born_ms + poll_ms - EARLY_MS - now_ms, poll_ms)


class WaitingPopRunner(HeldRequestRunner[WaitingPops]):
    """Holds the requests of one kind, and runs them again."""

    def __init__(
        self,
        run: Callable[[HeldRequest], object],
        clock: Clock,
        *,
        awaited: dict[str, int],
        is_taken: Callable[[str, str, int, int], bool],
        watch: Watch,
    ) -> None:
        """``run`` returns the outcome of a request, or its Pending if it waits again.

        ``awaited``: see :class:`WaitingPops`.
        ``is_taken``: whether a group (topic, group, queue, offset) has popped a message already.
        """
        super().__init__(WaitingPops(awaited), clock, watch=watch)
        self._run = run
        self._is_taken = is_taken
        #: Every message whose offset is a multiple of this wakes a request; 0: none does.
        self.force_interval = 0
        self._arrivals: deque[Arrival] = deque()
        #: By topic and queue: the last of the messages that :attr:`_arrivals` has no room for.
        self._grown: dict[tuple[str, int], Arrival] = {}
        self._wakes_soon = False
        self._wakes_left = 0  # in this turn
        self._turn_end = 0.0

    def _outcome(self, held: HeldRequest) -> object:
        return self._run(held)

    def hold(
        self,
        topic: str,
        group: str,
        queue_id: int,
        held: HeldRequest,
        *,
        wait_ms: int,
        tags: TagFilter | None = None,
        sql: SqlFilter | None = None,
    ) -> bool:
        """Let a request wait, perhaps again; False if too many wait already."""
        waiting = self.held.add(
            topic, group, queue_id, held, due_ms=self._now_ms() + wait_ms, tags=tags, sql=sql
        )
        if waiting is None:
            return False
        self._watch_peer(held.peer)
        held.pending.on_cancel = partial(self.held.remove, waiting)
        self._arm()
        return True

    def new(self, peer: Peer, request: object) -> HeldRequest:
        """A request that has not waited yet."""
        pending: Pending[Any] = Pending()
        return HeldRequest(peer, request, pending)

    def wake_one(self, topic: str, group: str, queue_id: int) -> None:
        """Run one more request of a group: there are messages that no request has taken.

        It runs in the next turn, when the request that has found them is answered.
        """
        held = self.held.wake_one(topic, group, queue_id)
        if held is not None:
            self._woken.append(held)
            self._run_soon()

    def wake_of_queue(self, topic: str, group: str, queue_id: int) -> None:
        """The same for messages of one queue, which requests for any queue may take, too."""
        if self.held.count(topic, group, ANY_QUEUE):
            self.wake_one(topic, group, ANY_QUEUE)
        else:
            self.wake_one(topic, group, queue_id)

    def arrived(self, arrival: Arrival) -> None:
        """Wake the requests that wait for a new message; called by the store."""
        if not self.held.has_consumers(arrival.topic):
            return
        if len(self._arrivals) < ARRIVALS_MAX:
            self._arrivals.append(arrival)
        else:
            self._grown[arrival.topic, arrival.queue_id] = arrival
        self._wake_soon()

    def _wake_soon(self) -> None:
        if not self._wakes_soon:
            self._wakes_soon = True
            self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        """Wake the requests of the messages that have arrived, as many as one turn allows."""
        self._wakes_soon = False
        began = self._clock.monotonic()
        self._watch.read(began)
        self._wakes_left, self._turn_end = WAKES_PER_TURN, began + SECONDS_PER_TURN
        for _ in range(ARRIVALS_PER_TURN):
            self._wake_for_next()
            if not (self._arrivals or self._grown) or not self._may_wake():
                break
        self._send_results()
        if self._arrivals or self._grown:
            self._wake_soon()
        self._arm()
        self._watch.served(goes_on=False)

    def _may_wake(self) -> bool:
        """Whether this turn may look at one more message, and run one more request."""
        return self._wakes_left > 0 and self._clock.monotonic() < self._turn_end

    def _wake_for_next(self) -> None:
        if self._arrivals:
            arrival = self._arrivals.popleft()
            offset = arrival.next_offset - 1
            is_forced = self.force_interval > 0 and offset % self.force_interval == 0
            self._wake_for(arrival, passes_filters=is_forced)
        elif self._grown:
            # Whether the messages before it pass the filters is unknown: the requests find out.
            self._wake_for(self._grown.popitem()[1], passes_filters=True)

    def _wake_for(self, arrival: Arrival, *, passes_filters: bool) -> None:
        """Wake one request of each group for a message: some run now, the others soon."""
        offset = arrival.next_offset - 1
        for topic, group in self.held.consumers(arrival.topic):
            is_retry = topic != arrival.topic
            queues: Iterable[int] = (ANY_QUEUE, arrival.queue_id)
            if is_retry:  # pops of every queue read it
                queues = self.held.queues(topic, group)
            known: tuple[int | None, bytes | None] = (None, None)  # passes every filter
            if not passes_filters and not is_retry:
                known = (arrival.tags_code, arrival.properties)
            for queue_id in queues:
                if self._is_taken(arrival.topic, group, arrival.queue_id, offset):
                    break
                held = self.held.wake_one(topic, group, queue_id, *known)
                if held is None:
                    continue
                if self._may_wake():
                    self._wakes_left -= 1
                    self._run_with_others(held)
                else:
                    self._woken.append(held)
                    self._run_soon()

    def _run_again(self, held: HeldRequest) -> None:
        peer, request, pending = held
        if pending.is_cancelled or peer.is_closing or not peer.is_reading:
            queue_id = max(ANY_QUEUE, request.queue_id)
            self.wake_one(request.topic, request.consumer_group, queue_id)
        super()._run_again(held)
