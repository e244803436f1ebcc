"""Broker registrations: their fields, the entries kept in memory, and which of two wins.

A broker sends REGISTER_BROKER with its *whole* table of topics when it starts and every 30 s, and
with a *single* topic (sometimes a few) after that topic was created or changed. Each contains the
broker's :class:`DataVersion`, which grows by one with every change. The broker sends from several
threads, so registrations may arrive out of order, and its table is encoded while it changes, so a
table may have a version without the change of that version.

Apache's rules lose a topic in such cases: a single topic that arrives before the first whole table
is refused; a change with a version already known is ignored; a late table reverts a newer change.
The topic then has no route, or an old one, until the broker registers it again. Here the outcome
does not depend on the order. Five rules in addition to Java's:

1. **Early.** A refused single topic is kept for its connection and registered once the broker is
   known, unless the whole table that made it known is newer.
2. **Late.** Each topic has the version of its registration. For :data:`IN_FLIGHT_MS` an older
   version on the same connection neither changes nor deletes it, nor does a whole table of the same
   version if the topic came alone. After that time an older version is accepted: its store was
   restored.
3. **Same version.** A topic with other content is stored even if its version is known; Java
   ignores it. A wiped write permission stays: it is stored apart from the registered one.
4. **Gap.** A single topic advances the known version by one change at most, n topics by n.
   Otherwise the known version stays, so that the next whole table, or QUERY_DATA_VERSION, shows
   what is missing.
5. **Part.** Only a whole table may delete topics (``deleteTopicWithBrokerRegistration``). A table
   of one topic is not whole; nor is one without the topic that has the broker's name, which every
   broker has, once that topic is known.

Versions are compared componentwise: a broker whose store was deleted restarts its counter, with a
later time stamp, and is not "older".
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.config import TopicConfig, TopicQueueMappingInfo
from skylark.wire.bodies.route_body import QueueData

MASTER_ID: Final = 0
#: Default time without a heartbeat after which a broker is removed.
HEARTBEAT_TIMEOUT_MS: Final = 120_000
#: How long a registration can be in flight: brokers give up after 24 s.
IN_FLIGHT_MS: Final = 30_000


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """One decoded REGISTER_BROKER. ``connection`` is only compared by identity."""

    cluster: str
    broker_name: str
    broker_addr: str
    broker_id: int
    ha_server_addr: str
    connection: object
    version: DataVersion = DataVersion()
    topics: dict[str, TopicConfig] = {}
    mappings: dict[str, TopicQueueMappingInfo] = {}
    filter_servers: list[str] = []
    zone_name: str | None = None
    heartbeat_timeout_ms: int = HEARTBEAT_TIMEOUT_MS
    #: None: a broker that is too old for acting masters.
    enable_acting_master: bool | None = None

    @property
    def live_key(self) -> tuple[str, str]:
        return self.cluster, self.broker_addr

    @property
    def identity(self) -> tuple[str, str, int, str]:
        return self.cluster, self.broker_name, self.broker_id, self.broker_addr


class Registered(msgspec.Struct, kw_only=True):
    """The result of a registration, with notices to send."""

    master_addr: str | None = None
    ha_server_addr: str | None = None
    notices: list[MinBrokerChanged] = []
    #: New topics beyond the limit.
    topics_left_out: int = 0


class MinBrokerChanged(msgspec.Struct, frozen=True, kw_only=True):
    """Instruction: send NOTIFY_MIN_BROKER_ID_CHANGE (905) one-way to each of ``recipients``."""

    recipients: list[str]
    min_broker_id: int
    min_broker_addr: str
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class Queues(NamedTuple):
    """The registered fields of one topic that routes need."""

    read_count: int
    write_count: int
    perm: int
    sys_flag: int


def queues_of(config: TopicConfig | QueueData) -> Queues:
    return Queues(
        config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag
    )


class TopicOnBroker(msgspec.Struct, kw_only=True):
    """A topic on one broker group: the registered fields and the permission in routes."""

    announced: Queues
    #: Permission in routes: differs from the registered one after a wipe, or with an acting master.
    perm: int
    #: None after REGISTER_TOPIC_IN_NAMESRV, which has no version and counts as newest.
    version: DataVersion | None = None
    #: Registered by a partial table, which is encoded after its change.
    alone: bool = True
    connection: object = None
    announced_ms: int = 0

    def overtook(self, registration: Registration, now_ms: int, *, whole: bool) -> bool:
        """Whether the registration was in flight when this newer one arrived (rule 2)."""
        if (
            self.connection is not registration.connection
            or now_ms - self.announced_ms >= IN_FLIGHT_MS
        ):
            return False
        if self.version is None or is_older(registration.version, self.version):
            return True
        return whole and self.alone and self.version == registration.version

    def confirm(self, registration: Registration, now_ms: int, *, whole: bool) -> None:
        """Record connection, time and version of the last registration."""
        self.version = registration.version
        self.alone = not whole
        self.connection = registration.connection
        self.announced_ms = now_ms


class LiveBroker(msgspec.Struct, kw_only=True, eq=False):
    """A registered, live broker. Every registration creates a new object."""

    broker_name: str
    broker_id: int
    connection: object
    ha_server_addr: str
    filter_servers: list[str]
    heartbeat_timeout_ms: int
    last_update_ms: int
    #: All changes up to this version are known.
    version: DataVersion
    version_ms: int


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """A broker to remove. ``live`` is its entry when queued: a later registration wins."""

    cluster: str
    broker_name: str
    broker_addr: str
    broker_id: int
    live: LiveBroker | None

    @property
    def live_key(self) -> tuple[str, str]:
        return self.cluster, self.broker_addr


def is_older(version: DataVersion, other: DataVersion) -> bool:
    """Whether ``version`` is before ``other``, without a reset of the broker in between."""
    return (
        version != other
        and version.state_version <= other.state_version
        and version.counter <= other.counter
        and version.timestamp <= other.timestamp
    )


def known_version(
    live: LiveBroker | None, registration: Registration, *, whole: bool, now_ms: int
) -> tuple[DataVersion, int]:
    """The version up to which all changes are known, and since when (rules 2 and 4)."""
    new = registration.version
    if live is None:
        return (new if whole else DataVersion()), now_ms
    overtaken = (
        live.connection is registration.connection
        and now_ms - live.version_ms < IN_FLIGHT_MS
        and is_older(new, live.version)
    )
    if overtaken or not (whole or _is_next(live.version, registration)):
        return live.version, live.version_ms
    return new, now_ms


def _is_next(known: DataVersion, registration: Registration) -> bool:
    """Whether the topics of a partial table are all that changed since ``known``."""
    new = registration.version
    changes = new.counter - known.counter
    return new.state_version == known.state_version and 0 <= changes <= len(registration.topics)
