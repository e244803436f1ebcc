"""What a broker announces, what is kept of it, and which of two announcements wins.

A broker sends REGISTER_BROKER with its *whole* table of topics when it starts and every 30 s, and
with a *single* topic (sometimes a few) right after that topic was made or changed. Each carries
the broker's :class:`DataVersion`, which grows by one with every change. The broker sends from
several threads, so the two kinds overtake each other, and its table is written while it is being
changed, so a table may claim a version whose change it lacks.

Apache's rules alone lose a topic in such cases: a single topic that comes before the first whole
table is refused and forgotten; a change that is announced under a version already known is taken
for known; a table that was overtaken on its way undoes the change that overtook it. The topic then
has no route, or an old one, until the broker happens to announce it again. Here the outcome does
not depend on the order. Five rules beside Java's:

1. **Early.** A refused single topic leaves nothing visible behind. It is remembered for its
   connection and announced again by ourselves once the broker is known, unless the whole table
   that made it known is newer.
2. **Late.** Each topic remembers the version that it was announced with. For
   :data:`IN_FLIGHT_MS` an older version on the same connection neither changes nor deletes it, nor
   does a whole table of the same version if the topic came alone. The time limit makes the rule
   harmless: a broker that really went back is believed after that.
3. **Silent.** Where Java compares versions only, what the broker says of a topic is compared as
   well. Wiped permissions survive this, because they change what we serve, not what was said.
4. **Gap.** A single topic moves the known version on only if it is the next change. Otherwise the
   known version stays, so that the next whole table, or QUERY_DATA_VERSION, reveals what is
   missing.
5. **Part.** Only a whole table may delete topics (``deleteTopicWithBrokerRegistration``). A table
   without the topic that every broker has under its own name is not whole.

Version order is componentwise: a broker whose store was wiped starts counting anew, with a younger
time stamp, and is not "older".
"""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec

from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.config import TopicConfig, TopicQueueMappingInfo
from skylark.wire.bodies.route_body import QueueData

MASTER_ID: Final = 0
#: A broker that does not say otherwise is given up after this silence.
HEARTBEAT_TIMEOUT_MS: Final = 120_000
#: How long an announcement can be on its way: brokers give up on one after 24 s.
IN_FLIGHT_MS: Final = 30_000


class Registration(msgspec.Struct, frozen=True, kw_only=True):
    """One REGISTER_BROKER, decoded. ``connection`` is only ever compared by identity."""

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
    #: None: a broker too old to know of acting masters.
    enable_acting_master: bool | None = None

    @property
    def live_key(self) -> tuple[str, str]:
        return self.cluster, self.broker_addr

    @property
    def identity(self) -> tuple[str, str, int, str]:
        return self.cluster, self.broker_name, self.broker_id, self.broker_addr


class Registered(msgspec.Struct, kw_only=True):
    """The answer to a registration, and who else has to know."""

    master_addr: str | None = None
    ha_server_addr: str | None = None
    notices: list[MinBrokerChanged] = []
    #: New topics that found no room.
    topics_left_out: int = 0


class MinBrokerChanged(msgspec.Struct, frozen=True, kw_only=True):
    """Instruction: send NOTIFY_MIN_BROKER_ID_CHANGE (905) one-way to each of ``recipients``."""

    recipients: list[str]
    min_broker_id: int
    min_broker_addr: str
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


class Queues(NamedTuple):
    """What a broker says of one topic, as far as routes go."""

    read_count: int
    write_count: int
    perm: int
    sys_flag: int


def queues_of(config: TopicConfig | QueueData) -> Queues:
    return Queues(
        config.read_queue_nums, config.write_queue_nums, config.perm, config.topic_sys_flag
    )


class TopicOnBroker(msgspec.Struct, kw_only=True):
    """A topic on one broker group: what was said of it, and what is served."""

    announced: Queues
    #: As served: differs from what was announced after a wipe, or while a slave acts as master.
    perm: int
    #: None after REGISTER_TOPIC_IN_NAMESRV, which has no version and counts as newest.
    version: DataVersion | None = None
    #: Announced by a part of the table, which is written after the change that it is about.
    alone: bool = True
    connection: object = None
    announced_ms: int = 0

    def overtook(self, registration: Registration, now_ms: int, *, whole: bool) -> bool:
        """Whether the registration was under way when this newer announcement came (rule 2)."""
        if (
            self.connection is not registration.connection
            or now_ms - self.announced_ms >= IN_FLIGHT_MS
        ):
            return False
        if self.version is None or is_older(registration.version, self.version):
            return True
        return whole and self.alone and self.version == registration.version

    def confirm(self, registration: Registration, now_ms: int, *, whole: bool) -> None:
        """Note by whom, when and under which version this was last announced."""
        self.version = registration.version
        self.alone = not whole
        self.connection = registration.connection
        self.announced_ms = now_ms


class LiveBroker(msgspec.Struct, kw_only=True, eq=False):
    """A broker that is registered and not silent. A new object with every registration."""

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
    """A broker to remove. ``live`` is its entry at the time: a later registration wins."""

    cluster: str
    broker_name: str
    broker_addr: str
    broker_id: int
    live: LiveBroker | None

    @property
    def live_key(self) -> tuple[str, str]:
        return self.cluster, self.broker_addr


def is_older(version: DataVersion, other: DataVersion) -> bool:
    """Whether ``version`` came before ``other`` in one life of a broker."""
    return (
        version != other
        and version.state_version <= other.state_version
        and version.counter <= other.counter
        and version.timestamp <= other.timestamp
    )


def known_version(
    live: LiveBroker | None, registration: Registration, *, whole: bool, now_ms: int
) -> tuple[DataVersion, int]:
    """Up to which version all is known after this registration, and since when (rules 2 and 4)."""
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
