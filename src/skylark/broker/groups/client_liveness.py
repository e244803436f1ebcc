"""Client liveness: sends notices of changed groups, expires silent clients, removes closed ones.

The rules are in :class:`~skylark.broker.groups.consumer_table.ConsumerTable` and
:class:`~skylark.broker.groups.producer_table.ProducerTable`, which do no I/O. This module does it
for them:

* it sends the notices (40, one-way) of changed groups, at once or when they are due;
* every 10 s it closes the connections of clients that have sent no heartbeat for too long;
* when a connection closes, it removes the client from its groups and notifies the other members;
* it marks the filters of groups without members as dead, and later removes them.

**Time.** Tables of clients and queue locks use :meth:`Clock.steady_ms
<skylark.core.clock.Clock.steady_ms>`. A step of the wall clock would otherwise expire all clients
and free all locks at once. Filters are kept in a file and use the wall clock.

Counterpart of Java's ``ClientHousekeepingService`` and ``DefaultConsumerIdsChangeListener``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from skylark.broker.api import Peer
from skylark.broker.groups.consumer_filters import ConsumerFilterTable
from skylark.broker.groups.consumer_table import ConsumerTable, GroupNotice, Removed
from skylark.broker.groups.producer_table import ProducerTable
from skylark.broker.groups.queue_locks import QueueLocks
from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import ConnectionClosedError
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fields import encode_ext
from skylark.wire.headers.admin import ConsumerGroupRequestHeader

logger = logging.getLogger(__name__)

SCAN_INTERVAL_S: Final = 10.0


@dataclass(eq=False)
class ClientLiveness:
    """Watches the clients of a broker, from ``start`` to ``stop``.

    Stop it before the servers, so that connections which the broker itself closes cause no notices.
    """

    _consumers: ConsumerTable
    _producers: ProducerTable
    _locks: QueueLocks
    _filters: ConsumerFilterTable
    _clock: Clock
    _is_running: bool = False
    _watched: set[Peer] = field(default_factory=set)
    _scan_timer: TimerHandle | None = None
    _notice_timer: TimerHandle | None = None
    _notice_due_ms: int = 0

    async def start(self) -> None:
        self._is_running = True
        self._scan_timer = self._clock.call_later(SCAN_INTERVAL_S, self._scan)

    async def stop(self) -> None:
        self._is_running = False
        for timer in (self._scan_timer, self._notice_timer):
            if timer is not None:
                timer.cancel()
        self._scan_timer = self._notice_timer = None

    # --- events -----------------------------------------------------------------------------------

    def notify(self, notices: Iterable[GroupNotice]) -> None:
        """Send these notices now, and set the timer for those that the table has collected.

        Call it after every event in the table of consumers, with or without notices.
        """
        if self._is_running:
            for notice in notices:
                _send(notice)
            self._arm()

    def left(self, removed: Removed) -> None:
        """A channel has left groups: notify the other members, and mark unused filters as dead."""
        self._mark_filters_dead(removed.groups_gone)
        self.notify(removed.notices)

    def watch(self, peer: Peer) -> None:
        """Remove the client from its groups when the peer is gone."""
        if peer not in self._watched:
            self._watched.add(peer)
            peer.on_close(partial(self._peer_closed, peer))

    def _peer_closed(self, peer: Peer) -> None:
        self._watched.discard(peer)
        self._producers.channel_closed(peer)
        self.left(self._consumers.channel_closed(peer, self._clock.steady_ms()))

    def clock_advanced(self, from_ms: int, to_ms: int, clients_alive: bool) -> None:
        """Hook for ``VirtualClock.on_advance``: moved time expires no connected client."""
        if clients_alive:
            now_ms = self._clock.steady_ms()
            self._consumers.refresh(now_ms)
            self._producers.refresh(now_ms)
            self._locks.refresh(now_ms - (to_ms - from_ms), now_ms, self._is_online)

    # --- inside -----------------------------------------------------------------------------------

    def _scan(self) -> None:
        self._scan_timer = self._clock.call_later(SCAN_INTERVAL_S, self._scan)
        now_ms = self._clock.steady_ms()
        expired = self._consumers.expire(now_ms)
        silent = dict.fromkeys([*expired.peers, *self._producers.expire(now_ms)])
        self._mark_filters_dead(expired.groups_gone)
        self._filters.clean(self._clock.now_ms())
        self._locks.sweep(now_ms)
        for peer in silent:
            peer.close()

    def _arm(self) -> None:
        now_ms = self._clock.steady_ms()
        due_ms = self._consumers.notices.next_due()
        if due_ms is None:
            return
        if self._notice_timer is not None:
            if self._notice_due_ms <= due_ms:
                return
            self._notice_timer.cancel()
        self._notice_due_ms = due_ms
        self._notice_timer = self._clock.call_later((due_ms - now_ms) / 1000, self._send_due)

    def _send_due(self) -> None:
        self._notice_timer = None
        # A timer may fire a fraction of a millisecond early: what was due counts as due.
        self.notify(self._consumers.due_notices(max(self._clock.steady_ms(), self._notice_due_ms)))

    def _mark_filters_dead(self, groups_gone: Iterable[str]) -> None:
        for group in groups_gone:
            self._filters.unregister(group, self._clock.now_ms())

    def _is_online(self, group: str, client_id: str) -> bool:
        channel = self._consumers.find(group, client_id)
        return channel is not None and not channel.peer.is_closing


def _send(notice: GroupNotice) -> None:
    header = ConsumerGroupRequestHeader(consumer_group=notice.group)
    request = Command(code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext=encode_ext(header))
    for peer in notice.peers:
        try:
            peer.oneway(request)  # encodes it at once: the next one can have the same object
        except ConnectionClosedError as error:
            logger.debug("consumer group %s: %s", notice.group, error)
