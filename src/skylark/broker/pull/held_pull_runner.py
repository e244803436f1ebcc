"""Runs held pulls again: when a message arrives, when their time is up, when the broker stops.

Which pull is woken when is decided by :class:`~skylark.broker.pull.long_polling.HeldPulls`; this is
the runner beside it, with the timer and the turns of the loop.

:meth:`HeldPullRunner.arrived` is called for each message that can be read. The pulls that wait for
it are woken in the next turn of the loop, when the producers of this turn have their answers, a
number of pulls per turn. The pull of a client that has not read what it got before is woken when
the client has: a message may wake hundreds of pulls of one client.

Pulls of a client that is gone end without a result.

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
from skylark.broker.pull.pull_filters import PullFilter
from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import SystemBusyError
from skylark.store.consume_queue import EntryQueue
from skylark.store.reput import Arrival

WAKES_PER_TURN: Final = 64


class HeldPull(NamedTuple):
    """What is needed to run a held pull again."""

    peer: Peer
    request: PullRequest
    pending: Pending[PullOutcome]


class HeldPullRunner:
    """Owns the pulls that wait."""

    def __init__(
        self,
        run: Callable[[Peer, PullRequest], PullResult],
        clock: Clock,
        *,
        at_work: Callable[[float], object],
        skips_turn: bool,
    ) -> None:
        """``run`` runs a pull again, and must have a result, or raise.

        ``at_work`` is called with the time when a turn of the loop begins to run pulls. With
        ``skips_turn`` pulls are woken one turn later, the turn after the one in which the answers
        of producers leave.
        """
        self._run = run
        self._clock = clock
        self._at_work = at_work
        self._skips_turn = skips_turn
        self.held: HeldPulls[HeldPull] = HeldPulls()
        #: The queues whose messages :meth:`arrived` needs, by topic and queue id.
        self.awaited = self.held.queues
        #: No pull may be held any more.
        self.is_stopping = False
        self._watched: set[Peer] = set()
        self._timer: TimerHandle | None = None
        self._timer_due_ms = 0
        self._arrivals: list[Arrival] = []
        self._woken: deque[HeldPull] = deque()

    def hold(
        self, peer: Peer, request: PullRequest, wanted: PullFilter, max_offset: int, wait_ms: int
    ) -> Pending[PullOutcome]:
        """Hold a pull that found the end of its queue, at ``max_offset``; raises BrokerError."""
        header, now_ms = request.header, self._now_ms()
        pending: Pending[PullOutcome] = Pending()
        parked = self.held.park(
            header.topic,
            header.queue_id,
            HeldPull(peer, request, pending),
            peer=peer,
            offset=header.queue_offset,
            max_offset=max_offset,
            now_ms=now_ms,
            deadline_ms=now_ms + wait_ms,
            tags=wanted.tags,
            sql=wanted.sql,
        )
        if not parked:
            raise SystemBusyError(
                "too many pulls are held", hint="repeat later, or raise heldPullCountMax"
            )
        if peer not in self._watched:
            self._watched.add(peer)
            peer.on_close(partial(self._peer_closed, peer))
        self._arm()
        return pending

    # --- what wakes pulls -------------------------------------------------------------------------

    def arrived(self, arrival: Arrival) -> None:
        """A message can be read from now on; hook for the store."""
        if (arrival.topic, arrival.queue_id) in self.awaited:
            if not self._arrivals:
                wake = self._wake_in_next_turn if self._skips_turn else self._wake
                asyncio.get_running_loop().call_soon(wake)
            self._arrivals.append(arrival)

    def grown(self, queues: Iterable[EntryQueue]) -> None:
        """Messages of a master can be read from now on; hook for the store of a slave."""
        now_ms = self._now_ms()
        for queue in queues:
            woken = self.held.arrived(queue.topic, queue.queue_id, queue.max_offset, now_ms)
            self._woken.extend(woken)
        if self._woken:
            self._run_woken()

    def wake_all(self) -> None:
        """Run all pulls again: a slave has found its master."""
        self._woken.extend(self.held.wake_all())
        if self._woken:
            self._run_woken()

    def stop(self) -> None:
        """Give all pulls a result, and hold none any more."""
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

    # --- running them -----------------------------------------------------------------------------

    def _run_woken(self) -> None:
        """Run woken pulls again: some now, the others in turns of their own."""
        self._at_work(self._clock.monotonic())
        for _ in range(min(len(self._woken), WAKES_PER_TURN)):
            self._run_again(self._woken.popleft())
        if self._woken:
            asyncio.get_running_loop().call_soon(self._run_woken)
        self._arm()

    def _run_again(self, pull: HeldPull) -> None:
        peer, request, pending = pull
        outcome: PullOutcome = None
        if not peer.is_closing:
            if not peer.is_reading:
                peer.call_when_writable(partial(self._run_again, pull))
                return
            try:
                outcome = self._run(peer, request)
            except Exception as error:  # noqa: BLE001 - the outcome; the others are woken as well
                outcome = error
        pending.set(outcome)

    def _arm(self) -> None:
        """Have one timer run at the first due time of all held pulls."""
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
        # A timer may fire a fraction of a millisecond early: what was due counts as due.
        self._woken.extend(self.held.take_due(max(self._now_ms(), self._timer_due_ms)))
        self._run_woken()

    def _now_ms(self) -> int:
        """Steady time: held pulls do not notice a step of the wall clock."""
        return round(self._clock.monotonic() * 1000)
