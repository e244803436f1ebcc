"""Runs held pulls again: when a message arrives, at their deadline, and when the broker stops.

:class:`~skylark.broker.pull.held_pulls.HeldPulls` decides which pulls wake, and
:mod:`skylark.broker.pull.held_request_runner` runs them. The store calls
:meth:`HeldPullRunner.arrived` for each message that becomes readable. The pulls that wait for it
wake in the next turn of the loop, after the producers of this turn have their responses.

Counterpart of Java's ``PullRequestHoldService``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from skylark.broker.api import Peer, Pending, PullOutcome, PullRequest, PullResult
from skylark.broker.pull.held_pulls import HeldPulls
from skylark.broker.pull.held_request_runner import HeldRequest, HeldRequestRunner
from skylark.broker.pull.pull_checks import PullFilter
from skylark.core.clock import Clock
from skylark.core.errors import SystemBusyError
from skylark.net.inbound import Watch
from skylark.store.consume_queue import EntryQueue
from skylark.store.reput import Arrival

#: No message has this offset: a pull that waits for it wakes at its deadline.
OFFSET_MAX: Final = 2**63 - 1


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
        self._arrivals: list[Arrival] = []

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
            self._run_now()

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
        self._run_now()
