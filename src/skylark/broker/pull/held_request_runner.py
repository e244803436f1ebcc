"""Runs held requests again: when they wake, at their deadline, and when the broker stops.

:class:`HeldRequestRunner` has the timer and the callbacks of the event loop for requests of one
kind (pulls, pops, notifications); which of them wake is decided by what holds them
(:class:`HeldRequests`). Per turn of the loop so many requests run as :data:`WAKES_PER_TURN` and
:data:`SECONDS_PER_TURN` allow; the others wait for the next turn. The request of a client that does
not read its responses runs when the client reads again; those of a client that has disconnected end
without a result.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from skylark.broker.api import Peer, Pending
from skylark.core.clock import Clock, TimerHandle
from skylark.net.inbound import Watch
from skylark.net.limits import NetLimits

WAKES_PER_TURN: Final = 64
#: The same as for one connection; a request that was started is always finished.
SECONDS_PER_TURN: Final = NetLimits().seconds_per_turn_max


class HeldRequest(NamedTuple):
    """A held request: the data to run it again."""

    peer: Peer
    request: Any
    pending: Pending[Any]


class HeldRequests(Protocol):
    """What holds requests and decides which of them wake."""

    def next_due(self) -> int | None:
        """The first due time of all; None if there are none."""

    def take_due(self, now_ms: int) -> list[HeldRequest]:
        """Remove and return those whose time has come, or the first of very many."""

    def drop(self, peer: Peer) -> list[HeldRequest]:
        """Remove and return those of a peer that has disconnected."""

    def wake_all(self) -> list[HeldRequest]:
        """Remove and return all."""


HeldT = TypeVar("HeldT", bound=HeldRequests)


class HeldRequestRunner(Generic[HeldT]):
    """Base of the runners; a subclass holds requests, calls :meth:`_arm`, and runs them."""

    def __init__(self, held: HeldT, clock: Clock, *, watch: Watch) -> None:
        """``watch`` measures the turns of the loop that run requests."""
        self.held = held
        self._clock = clock
        self._watch = watch
        #: Whether requests are no longer held.
        self.is_stopping = False
        self._loop = asyncio.get_running_loop()
        self._watched: set[Peer] = set()
        self._answered: set[Peer] = set()  # in this turn, whose results are kept together
        self._timer: TimerHandle | None = None
        self._timer_due_ms = 0
        self._woken: deque[HeldRequest] = deque()
        self._is_scheduled = False  # a later turn runs what has woken

    def _outcome(self, held: HeldRequest) -> object:
        """The outcome of a request that runs again; a Pending if it comes later."""
        raise NotImplementedError

    def wake_all(self) -> None:
        """Run all requests again."""
        self._woken.extend(self.held.wake_all())
        if self._woken:
            self._run_now()

    def stop(self) -> None:
        """Run all held requests for a last time, and hold no more."""
        self.is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._woken.extend(self.held.wake_all())
        while self._woken:
            self._run_again(self._woken.popleft())

    def _watch_peer(self, peer: Peer) -> None:
        """Drop the requests of a client when it disconnects."""
        if peer not in self._watched:
            self._watched.add(peer)
            peer.on_close(partial(self._peer_closed, peer))

    def _peer_closed(self, peer: Peer) -> None:
        self._watched.discard(peer)
        for _, _, pending in self.held.drop(peer):
            pending.set(None)

    def _run_now(self) -> None:
        """Run woken requests in this turn, unless they have to wait for others that woke before."""
        if not self._is_scheduled:
            self._run_woken()

    def _run_soon(self) -> None:
        """Run woken requests in the next turn."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._run_woken)

    def _run_woken(self) -> None:
        """Run woken requests again: some now, the others in later turns."""
        self._is_scheduled = False
        began = self._clock.monotonic()
        self._watch.read(began)
        for _ in range(min(len(self._woken), WAKES_PER_TURN)):
            self._run_with_others(self._woken.popleft())
            if self._woken and self._clock.monotonic() - began >= SECONDS_PER_TURN:
                break
        self._send_results()
        if self._woken:
            self._run_soon()
        self._arm()
        self._watch.served(goes_on=False)

    def _run_with_others(self, held: HeldRequest) -> None:
        """Run a request again; the results of one client leave together (``_send_results``)."""
        if held.peer not in self._answered:
            self._answered.add(held.peer)
            held.peer.begin_results()
        self._run_again(held)

    def _send_results(self) -> None:
        for peer in self._answered:
            peer.end_results()
        self._answered.clear()

    def _run_again(self, held: HeldRequest) -> None:
        peer, _, pending = held
        if pending.is_cancelled:
            return
        outcome: object = None
        if not peer.is_closing:
            if not peer.is_reading:
                peer.call_when_writable(partial(self._run_again, held))
                return
            try:
                outcome = self._outcome(held)
            except Exception as error:  # noqa: BLE001 - the outcome; other requests must run too
                outcome = error
        if outcome is pending:
            return  # it waits again
        if type(outcome) is Pending:
            pending.on_cancel = outcome.cancel  # which releases its messages
            outcome.then(pending.set)
        else:
            pending.set(outcome)

    def _arm(self) -> None:
        """Set the timer to the first due time of all held requests.

        A timer that is set for an earlier time stays, even if its request has woken by now: it
        finds nothing due then, and is set again. A message of a quiet queue wakes the only held
        request, which soon comes again: to stop and start a timer each time costs more than to find
        the request.
        """
        due_ms = self.held.next_due()
        if due_ms is None or self.is_stopping:
            return
        if self._timer is not None:
            if self._timer_due_ms <= due_ms:
                return
            self._timer.cancel()
        self._timer_due_ms = due_ms
        self._timer = self._clock.call_at(due_ms / 1000, self._due)

    def _due(self) -> None:
        self._timer = None
        # A timer may fire a fraction of a millisecond early.
        self._woken.extend(self.held.take_due(max(self._now_ms(), self._timer_due_ms)))
        self._run_now()

    def _now_ms(self) -> int:
        """Steady time: a step of the wall clock does not affect held requests."""
        return round(self._clock.monotonic() * 1000)
