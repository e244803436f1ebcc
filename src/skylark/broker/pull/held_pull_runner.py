"""Runs held pulls again: when a message arrives, at their deadline, and when the broker stops.

:class:`~skylark.broker.pull.held_pulls.HeldPulls` decides which pulls wake, and
:mod:`skylark.broker.pull.held_request_runner` runs them. The store calls
:meth:`HeldPullRunner.arrived` for each message that becomes readable. The pulls that wait for it
wake in the next turn of the loop, after the producers of this turn have their responses.

**Floods.** It takes time to find the pulls that a message wakes, most of all if many pulls with
filters wait in its queue. Per turn of the loop so many messages are looked at as
:data:`ARRIVALS_PER_TURN` and ``SECONDS_PER_TURN`` allow; the others wait for the next turn. Beyond
:data:`ARRIVALS_MAX` waiting messages only the queues are kept: such a message wakes the pulls of
its queue whatever their filters, and a pull that finds nothing then tells its client so.

Counterpart of Java's ``PullRequestHoldService``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from skylark.broker.api import Peer, Pending, PullOutcome, PullRequest, PullResult
from skylark.broker.pull.held_pulls import HeldPulls, QueueKey
from skylark.broker.pull.held_request_runner import (
    SECONDS_PER_TURN,
    HeldRequest,
    HeldRequestRunner,
)
from skylark.broker.pull.pull_checks import PullFilter
from skylark.core.clock import Clock
from skylark.core.errors import SystemBusyError
from skylark.net.inbound import Watch
from skylark.store.consume_queue import EntryQueue
from skylark.store.reput import Arrival

#: No message has this offset: a pull that waits for it wakes at its deadline.
OFFSET_MAX: Final = 2**63 - 1
#: Messages of one turn that are looked at; the others wait for the next turn.
ARRIVALS_PER_TURN: Final = 1_000
#: Messages that wait to be looked at.
ARRIVALS_MAX: Final = 10_000


class HeldPullRunner(HeldRequestRunner[HeldPulls[HeldRequest]]):
    """Holds pulls and runs them again."""

    def __init__(
        self,
        run: Callable[[Peer, PullRequest], PullResult],
        clock: Clock,
        *,
        watch: Watch,
        wakes_late: bool,
    ) -> None:
        """``run`` runs a pull again and returns a result, never a Pending.

        ``watch`` is told of the turns of the loop that run pulls. With ``wakes_late`` pulls wake
        one turn later: after the turn that sends the responses of producers.
        """
        super().__init__(HeldPulls(), clock, watch=watch)
        self._run = run
        self._wakes_late = wakes_late
        #: The queues whose messages :meth:`arrived` needs, by topic and queue id.
        self.awaited = self.held.queues
        self._arrivals: deque[Arrival] = deque()
        #: Offsets after the last of the messages of which only the queue is known.
        self._grown: dict[QueueKey, int] = {}
        self._wakes_soon = False

    def _outcome(self, held: HeldRequest) -> PullResult:
        return self._run(held.peer, held.request)

    def hold(
        self,
        peer: Peer,
        request: PullRequest,
        wanted: PullFilter,
        max_offset: int,
        wait_ms: int,
        *,
        offset: int | None = None,
    ) -> Pending[PullOutcome]:
        """Hold a pull that reached the end of its queue, ``max_offset``; raises BrokerError.

        ``offset``: the first message that wakes it, if not that which it asks for.
        """
        header, now_ms = request.header, self._now_ms()
        pending: Pending[PullOutcome] = Pending()
        held = self.held.park(
            header.topic,
            header.queue_id,
            HeldRequest(peer, request, pending),
            peer=peer,
            offset=header.queue_offset if offset is None else offset,
            max_offset=max_offset,
            now_ms=now_ms,
            deadline_ms=now_ms + wait_ms,
            tags=wanted.tags,
            sql=wanted.sql,
        )
        if held is None:
            raise SystemBusyError(
                "the broker holds too many pulls", hint="repeat later, or raise heldPullCountMax"
            )
        self._watch_peer(peer)
        pending.on_cancel = partial(self.held.cancel, held)
        self._arm()
        return pending

    # --- events that wake pulls -------------------------------------------------------------------

    def arrived(self, arrival: Arrival) -> None:
        """Wake the pulls that wait for a new message; called by the store."""
        key = arrival.topic, arrival.queue_id
        if key not in self.awaited:
            return
        if len(self._arrivals) < ARRIVALS_MAX:
            self._arrivals.append(arrival)
        else:
            self._grown[key] = arrival.next_offset
        if not self._wakes_soon:
            self._wakes_soon = True
            self._loop.call_soon(self._wake_in_next_turn if self._wakes_late else self._wake)

    def queues_grown(self, queues: Iterable[EntryQueue]) -> None:
        """Wake the pulls that wait for replicated messages; called by the store of a slave."""
        for queue in queues:
            key = queue.topic, queue.queue_id
            if key in self.awaited:
                self._grown[key] = queue.max_offset
        if self._grown and not self._wakes_soon:
            self._wake()

    def _wake_in_next_turn(self) -> None:
        self._loop.call_soon(self._wake)

    def _wake(self) -> None:
        """Wake the pulls of the messages that have arrived, as many as one turn allows."""
        self._wakes_soon = False
        began = self._clock.monotonic()
        now_ms = round(began * 1000)
        for _ in range(ARRIVALS_PER_TURN):
            self._woken.extend(self._woken_by_next(now_ms))
            if not (self._arrivals or self._grown):
                break
            if self._clock.monotonic() - began >= SECONDS_PER_TURN:
                break
        if self._arrivals or self._grown:
            self._wakes_soon = True
            self._loop.call_soon(self._wake)
        self._run_now()

    def _woken_by_next(self, now_ms: int) -> list[HeldRequest]:
        """The pulls that the next message wakes."""
        if self._arrivals:
            topic, queue_id, offset, tags_code, _, properties = self._arrivals.popleft()
            return self.held.arrived(topic, queue_id, offset, now_ms, tags_code, properties)
        if self._grown:
            (topic, queue_id), offset = self._grown.popitem()
            return self.held.arrived(topic, queue_id, offset, now_ms)
        return []
