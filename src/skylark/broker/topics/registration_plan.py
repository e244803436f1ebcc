"""Registration plan: decides what to announce to which name server, and when; does no I/O.

Name servers do not know each other, so a broker announces everything to each of them::

    start       the whole table of topics
    10 s        the whole table, then again every period (30 s, kept within 10 and 60 s)
    on change   the topics that were created or changed, alone, at once

Announcements also are the heartbeats of the broker. Rules, each per name server:

* One announcement at a time, so that none overtakes another. Changes meanwhile are collected and
  follow in one further announcement.
* Single topics are announced only to a name server that has the whole table and is still connected;
  any other would refuse them, or take them for the whole table.
* After a failure the whole table is announced again after a growing pause. If a name server refuses
  single topics (it was restarted and is empty), the whole table follows at once.
* A name server drops a broker as soon as its connection breaks. So the whole table is announced at
  once after a lost connection; Java would leave the broker without routes until the next period.
* With ``forceRegister=false`` the broker asks before a periodic announcement (322), and skips it if
  the name server has the version. Java asks all and then registers with all or none; here one name
  server never causes or delays announcements to another.

A slave that gets no master in the answer registers again soon (:meth:`RegistrationPlan.seek`): when
both start together, the slave may be the first, and name servers do not notify it of its master.

Times are those of :meth:`Clock.steady_ms <skylark.core.clock.Clock.steady_ms>`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from skylark.wire.bodies.config import TopicConfig

FIRST_ROUND_MS: Final = 10_000
RETRY_MS_FIRST: Final = 1_000
RETRY_MS_MOST: Final = 10_000
SEEK_MS: Final = 3_000
#: After so long without an answer, nothing waits for a name server any more.
ANSWER_MS: Final = 3_000


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """Instruction: register with one name server, then report the result (``done``)."""

    address: str
    topics: tuple[TopicConfig, ...] | None = None  # None: the whole table
    ask_first: bool = False

    @property
    def is_whole(self) -> bool:
        return self.topics is None


class _NameServer(msgspec.Struct, eq=False):
    """The state of one name server, and the changes that it does not have yet."""

    whole_due_ms: int
    registered: bool | None = None  # None: not tried yet
    topics: dict[str, TopicConfig] = {}
    failure_count: int = 0  # since the last success
    sent_ms: int = 0  # when the last announcement was sent
    sent_count: int = 0  # changes that it covered
    acknowledged_count: int = -1  # changes that the name server has taken


class RegistrationPlan:
    """Events go in with the time, announcements come out of :meth:`due`."""

    def __init__(self, *, period_ms: int) -> None:
        """The rounds are counted from the first call of :meth:`set_servers`."""
        self._period_ms = period_ms
        self._first_round_ms: int | None = None
        self._servers: dict[str, _NameServer] = {}
        self._in_flight: set[str] = set()  # also of name servers that were dropped meanwhile
        #: Changes so far; see :meth:`announced_to_all`.
        self.change_count = 0

    # --- events ---

    def set_servers(self, addresses: Iterable[str], now_ms: int) -> list[str]:
        """Apply the setting ``namesrvAddr``; returns the addresses that are no longer in it."""
        if self._first_round_ms is None:
            self._first_round_ms = now_ms + FIRST_ROUND_MS
        wanted = dict.fromkeys(addresses)
        gone = [address for address in self._servers if address not in wanted]
        self._servers = {
            address: self._servers.get(address) or _NameServer(now_ms) for address in wanted
        }
        return gone

    def topics_changed(self, topics: Iterable[TopicConfig]) -> None:
        """Announce these topics, which were created or changed, alone."""
        self.change_count += 1
        changed = {topic.topic_name: topic for topic in topics}
        for server in self._servers.values():
            server.topics.update(changed)

    def topics_deleted(self, topics: Iterable[str]) -> None:
        """Drop deleted topics that have not been announced yet."""
        for topic in topics:
            for server in self._servers.values():
                server.topics.pop(topic, None)

    def all_changed(self, now_ms: int) -> None:
        """Announce the whole table now, for example with other permissions."""
        self.change_count += 1
        for server in self._servers.values():
            server.whole_due_ms = min(server.whole_due_ms, now_ms)

    def connection_lost(self, address: str, now_ms: int) -> bool:
        """Record that a name server has no connection to us; whether it had one until now."""
        server = self._servers.get(address)
        if server is None or not server.registered or address in self._in_flight:
            return False  # an announcement in flight will fail
        server.registered = False
        server.whole_due_ms = now_ms
        server.acknowledged_count = -1
        return True

    def seek(self, address: str, now_ms: int) -> None:
        """Announce again soon: the answer of a name server did not have the master of a slave."""
        server = self._servers.get(address)
        if server is not None:
            server.whole_due_ms = min(server.whole_due_ms, now_ms + SEEK_MS)

    def done(self, announcement: Announcement, now_ms: int, *, succeeded: bool) -> bool:
        """Record the end of an announcement; whether the state of the name server changed."""
        self._in_flight.discard(announcement.address)
        server = self._servers.get(announcement.address)
        if server is None:
            return False
        if succeeded:
            server.failure_count = 0
            server.acknowledged_count = server.sent_count
        else:
            server.failure_count += 1
            pause_ms = min(RETRY_MS_MOST, RETRY_MS_FIRST << min(server.failure_count - 1, 16))
            if server.failure_count == 1 and not announcement.is_whole:
                pause_ms = 0
            server.whole_due_ms = now_ms + pause_ms
        changed = server.registered is not succeeded
        server.registered = succeeded
        return changed

    # --- announcements ---

    def due(self, now_ms: int, *, ask_first: bool = False) -> list[Announcement]:
        """The announcements to send now; each is in flight until :meth:`done`."""
        announcements = []
        for address, server in self._servers.items():
            if address in self._in_flight:
                continue
            if server.whole_due_ms <= now_ms:
                # Ask only a registered name server that lacks no single topic.
                asks = ask_first and server.registered is True and not server.topics
                announcements.append(Announcement(address=address, ask_first=asks))
                server.whole_due_ms = self._round_after(now_ms)
            elif server.registered and server.topics:
                topics = tuple(server.topics.values())
                announcements.append(Announcement(address=address, topics=topics))
            else:
                continue
            server.topics.clear()
            server.sent_ms, server.sent_count = now_ms, self.change_count
            self._in_flight.add(address)
        return announcements

    def next_due_ms(self) -> int | None:
        """When :meth:`due` will next return something without a further event."""
        return min(
            (
                server.whole_due_ms
                for address, server in self._servers.items()
                if address not in self._in_flight
            ),
            default=None,
        )

    def _round_after(self, now_ms: int) -> int:
        assert self._first_round_ms is not None, "there are name servers"
        late_ms = now_ms - self._first_round_ms
        if late_ms < 0:
            return self._first_round_ms
        return self._first_round_ms + (late_ms // self._period_ms + 1) * self._period_ms

    # --- reading ---

    def announced_to_all(self, change_count: int, now_ms: int) -> bool:
        """Whether so many changes have reached all name servers that answer in time."""
        return all(
            server.failure_count > 0
            or server.acknowledged_count >= change_count
            or (address in self._in_flight and now_ms >= server.sent_ms + ANSWER_MS)
            for address, server in self._servers.items()
        )

    def overdue_ms(self, now_ms: int) -> int | None:
        """When the next of the outstanding answers that are in time will not be any more."""
        limits = [
            server.sent_ms + ANSWER_MS
            for address, server in self._servers.items()
            if address in self._in_flight
        ]
        return min((limit for limit in limits if limit > now_ms), default=None)

    @property
    def states(self) -> dict[str, bool | None]:
        """Each name server, and whether it knows this broker; None: not tried yet."""
        return {address: server.registered for address, server in self._servers.items()}

    @property
    def registered(self) -> list[str]:
        """The name servers that know this broker, in the order of the setting."""
        return [address for address, server in self._servers.items() if server.registered]
