"""What to tell which name server, and when: the pure half of registration.

Name servers know nothing of each other, so a broker tells each of them everything::

    start       the whole table of topics
    10 s        the whole table, then again every period (30 s, kept within 10 and 60 s)
    on change   the topics that were created or changed, alone, at once

The answers of a name server are signs of life in both directions. Rules, each per name server:

* One announcement at a time, so that none overtakes another. What changes meanwhile is collected
  and follows in one announcement of its own.
* Topics are announced alone only to a name server that has taken the whole table and is still
  connected; any other would refuse them, or take them for the whole.
* After a failure the whole table is due again soon, after a growing pause. A refusal of single
  topics (the name server was restarted and knows nothing) is followed by the whole table at once.
* A name server drops a broker as soon as its connection breaks. So a lost connection makes the
  whole table due at once; Java would leave the broker without routes until the next period.
* With ``forceRegister=false`` a periodic announcement is preceded by a question (322), and left out
  if the name server knows the version. Java asks all and then registers with all or none; here one
  name server never causes or delays work with another.

A slave that hears of no master registers again soon (:meth:`RegistrationPlan.seek`): when both
start together, the slave may be the first, and nobody is told when the other comes.

Times are milliseconds of a clock that never steps.
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


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """Instruction: tell one name server, then report how it went (``done``)."""

    address: str
    topics: tuple[TopicConfig, ...] | None = None  # None: the whole table
    ask_first: bool = False

    @property
    def is_whole(self) -> bool:
        return self.topics is None


class _NameServer:
    """What is known of one name server, and what it has yet to hear."""

    __slots__ = (
        "failure_count",
        "heard_count",
        "registered",
        "telling_count",
        "topics",
        "whole_due_ms",
    )

    def __init__(self, whole_due_ms: int) -> None:
        self.registered: bool | None = None  # None: not tried yet
        self.whole_due_ms = whole_due_ms
        self.topics: dict[str, TopicConfig] = {}
        self.failure_count = 0  # since the last success
        self.telling_count = 0  # changes that the last announcement covered
        self.heard_count = -1  # changes that the name server has taken


class RegistrationPlan:
    """Events go in with the time, announcements come out of :meth:`due`."""

    def __init__(self, *, period_ms: int) -> None:
        """The rounds are counted from the first call of :meth:`set_servers`."""
        self._period_ms = period_ms
        self._first_round_ms: int | None = None
        self._servers: dict[str, _NameServer] = {}
        self._in_flight: set[str] = set()  # also of name servers that were dropped meanwhile
        #: Changes so far; see :meth:`heard_by_all`.
        self.change_count = 0

    # --- events ---

    def set_servers(self, addresses: Iterable[str], now_ms: int) -> list[str]:
        """Follow the setting ``namesrvAddr``; the addresses that are no longer in it."""
        if self._first_round_ms is None:
            self._first_round_ms = now_ms + FIRST_ROUND_MS
        wanted = dict.fromkeys(addresses)
        gone = [address for address in self._servers if address not in wanted]
        self._servers = {
            address: self._servers.get(address) or _NameServer(now_ms) for address in wanted
        }
        return gone

    def topics_changed(self, topics: Iterable[TopicConfig]) -> None:
        """These topics were created or changed, and are to be announced alone."""
        self.change_count += 1
        changed = {topic.topic_name: topic for topic in topics}
        for server in self._servers.values():
            server.topics.update(changed)

    def topics_deleted(self, topics: Iterable[str]) -> None:
        """What has not been announced yet need not be any more."""
        for topic in topics:
            for server in self._servers.values():
                server.topics.pop(topic, None)

    def all_changed(self, now_ms: int) -> None:
        """The whole table is to be announced now, for example with other permissions."""
        self.change_count += 1
        for server in self._servers.values():
            server.whole_due_ms = min(server.whole_due_ms, now_ms)

    def connection_lost(self, address: str, now_ms: int) -> bool:
        """A name server has no connection to us; whether that is news."""
        server = self._servers.get(address)
        if server is None or not server.registered or address in self._in_flight:
            return False  # an announcement under way finds out by itself
        server.registered = False
        server.whole_due_ms = now_ms
        server.heard_count = -1
        return True

    def seek(self, address: str, now_ms: int) -> None:
        """The answer of a name server lacks something that will come: the master of a slave."""
        server = self._servers.get(address)
        if server is not None:
            server.whole_due_ms = min(server.whole_due_ms, now_ms + SEEK_MS)

    def done(self, announcement: Announcement, now_ms: int, *, succeeded: bool) -> bool:
        """How an announcement ended; whether this changes what we know of the name server."""
        self._in_flight.discard(announcement.address)
        server = self._servers.get(announcement.address)
        if server is None:
            return False
        if succeeded:
            server.failure_count = 0
            server.heard_count = server.telling_count
        else:
            server.failure_count += 1
            pause_ms = min(RETRY_MS_MOST, RETRY_MS_FIRST << min(server.failure_count - 1, 16))
            if server.failure_count == 1 and not announcement.is_whole:
                pause_ms = 0
            server.whole_due_ms = now_ms + pause_ms
        changed = server.registered is not succeeded
        server.registered = succeeded
        return changed

    # --- what follows ---

    def due(self, now_ms: int, *, ask_first: bool = False) -> list[Announcement]:
        """The announcements to make now; each stays under way until it is reported done."""
        announcements = []
        for address, server in self._servers.items():
            if address in self._in_flight:
                continue
            if server.whole_due_ms <= now_ms:
                # Who has no connection, or was told of a change only in part, is not asked.
                asks = ask_first and server.registered is True and not server.topics
                announcements.append(Announcement(address=address, ask_first=asks))
                server.whole_due_ms = self._round_after(now_ms)
            elif server.registered and server.topics:
                topics = tuple(server.topics.values())
                announcements.append(Announcement(address=address, topics=topics))
            else:
                continue
            server.topics.clear()
            server.telling_count = self.change_count
            self._in_flight.add(address)
        return announcements

    def next_due_ms(self) -> int | None:
        """When :meth:`due` will next have something without a further event."""
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

    # --- looking ---

    def heard_by_all(self, change_count: int) -> bool:
        """Whether so many changes have reached all name servers, as far as these answer."""
        return all(
            server.failure_count > 0 or server.heard_count >= change_count
            for server in self._servers.values()
        )

    @property
    def states(self) -> dict[str, bool | None]:
        """Each name server, and whether it knows this broker; None: not tried yet."""
        return {address: server.registered for address, server in self._servers.items()}

    @property
    def registered(self) -> list[str]:
        """The name servers that know this broker, in the order of the setting."""
        return [address for address, server in self._servers.items() if server.registered]
