"""Runs held pulls again: when a message arrives, at their deadline, and when the broker stops.

:class:`~skylark.broker.pull.long_polling.HeldPulls` decides which pulls wake; this runner has the
timer and the callbacks of the event loop.

The store calls :meth:`HeldPullRunner.arrived` for each message that becomes readable. The pulls
that wait for it wake in the next turn of the loop, after the producers of this turn have their
responses, :data:`WAKES_PER_TURN` per turn. A message may wake hundreds of pulls of one client, so
the pull of a client that does not read its responses is run when the client reads again.

Pulls of a client that has disconnected end without a result.

Counterpart of Java's ``PullRequestHoldService``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, NamedTuple

from skylark.broker.api import Peer, Pending, PullOutcome, PullRequest, PullResult
from skylark.broker.pull.long_polling import HeldPulls
from skylark.broker.pull.pull_checks import PullFilter
from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import SystemBusyError
from skylark.net.inbound import Watch
from skylark.store.consume_queue import EntryQueue
from skylark.store.reput import Arrival

WAKES_PER_TURN: Final = 64
#: No message has this offset: a pull that waits for it wakes at its deadline.
OFFSET_MAX: Final = 2**63 - 1


class HeldPull(NamedTuple):
    """A held pull: the data to run it again."""

    peer: Peer
    request: PullRequest
    pending: Pending[PullOutcome]


class HeldPullRunner:
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
        self._run = run
        self._clock = clock
        self._watch = watch
        self._wakes_late = wakes_late
        self.held: HeldPulls[HeldPull] = HeldPulls()
        #: The queues whose messages :meth:`arrived` needs, by topic and queue id.
        self.awaited = self.held.queues
        #: Whether pulls are no longer held.
        self.is_stopping = False
        self._watched: set[Peer] = set()
        self._timer: TimerHandle | None = None
        self._timer_due_ms = 0
        self._arrivals: list[Arrival] = []
        self._woken: deque[HeldPull] = deque()

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
            HeldPull(peer, request, pending),
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
        if peer not in self._watched:
            self._watched.add(peer)
            peer.on_close(partial(self._peer_closed, peer))
        pending.on_cancel = partial(self.held.cancel, held)
        self._arm()
        return pending

    # --- events that wake pulls -------------------------------------------------------------------

    def arrived(self, arrival: Arrival) -> None:
        """Wake the pulls that wait for a new message; called by the store."""
        if (arrival.topic, arrival.queue_id) in self.awaited:
            if not self._arrivals:
                wake = self._wake_in_next_turn if self._wakes_late else self._wake
                asyncio.get_running_loop().call_soon(wake)
            self._arrivals.append(arrival)

    def queues_grown(self, queues: Iterable[EntryQueue]) -> None:
        """Wake the pulls that wait for replicated messages; called by the store of a slave."""
        now_ms = self._now_ms()
        for queue in queues:
            woken = self.held.arrived(queue.topic, queue.queue_id, queue.max_offset, now_ms)
            self._woken.extend(woken)
        if self._woken:
            self._run_woken()

    def wake_all(self) -> None:
        """Run all pulls again; called when a slave has reconnected to its master."""
        self._woken.extend(self.held.wake_all())
        if self._woken:
            self._run_woken()

    def stop(self) -> None:
        """Run all held pulls for a last time, and hold no more."""
        self.is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._woken.extend(self.held.wake_all())
        while self._woken:
            self._run_again(self._woken.popleft())

    def _peer_closed(self, peer: Peer) -> None:
        self._watched.discard(peer)
        for _, _, pending in self.held.drop(peer):
            pending.set(None)

    def _wake_in_next_turn(self) -> None:
        asyncio.get_running_loop().call_soon(self._wake)

    def _wake(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        now_ms = self._now_ms()
        for arrival in arrivals:
            woken = self.held.arrived(
                arrival.topic,
                arrival.queue_id,
                arrival.next_offset,
                now_ms,
                arrival.tags_code,
                arrival.properties,
            )
            self._woken.extend(woken)
        self._run_woken()

    # --- running pulls ----------------------------------------------------------------------------

    def _run_woken(self) -> None:
        """Run woken pulls again: some now, the others in later turns."""
        self._watch.read(self._clock.monotonic())
        peers: set[Peer] = set()
        for _ in range(min(len(self._woken), WAKES_PER_TURN)):
            pull = self._woken.popleft()
            if pull.peer not in peers:
                peers.add(pull.peer)
                pull.peer.begin_results()
            self._run_again(pull)
        for peer in peers:
            peer.end_results()
        if self._woken:
            asyncio.get_running_loop().call_soon(self._run_woken)
        self._arm()
        self._watch.served(goes_on=False)

    def _run_again(self, pull: HeldPull) -> None:
        peer, request, pending = pull
        if pending.is_cancelled:
            return
        outcome: PullOutcome = None
        if not peer.is_closing:
            if not peer.is_reading:
                peer.call_when_writable(partial(self._run_again, pull))
                return
            try:
                outcome = self._run(peer, request)
            except Exception as error:  # noqa: BLE001 - the outcome; other pulls must run too
                outcome = error
        pending.set(outcome)

    def _arm(self) -> None:
        """Set the timer to the first due time of all held pulls."""
        due_ms = self.held.next_due()
        if self._timer is not None:
            if due_ms is not None and self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
            self._timer = None
        if due_ms is not None:
            self._timer_due_ms = due_ms
            self._timer = self._clock.call_at(due_ms / 1000, self._due)

    def _due(self) -> None:
        self._timer = None
        # A timer may fire a fraction of a millisecond early.
        self._woken.extend(self.held.take_due(max(self._now_ms(), self._timer_due_ms)))
        self._run_woken()

    def _now_ms(self) -> int:
        """Steady time: a step of the wall clock does not affect held pulls."""
        return round(self._clock.monotonic() * 1000)
