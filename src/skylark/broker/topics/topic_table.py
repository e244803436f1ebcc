"""Topic table: the topics of this broker and their configuration.

A topic is a :class:`TopicConfig`; the objects in the table are never changed, only replaced, so a
caller may keep one for as long as it handles a request.

**Created at start**: the system topics (:func:`system_topics`), unless the file has them.

**Created by use.** A send names the topic from which an unknown one inherits, normally TBW102: if
that exists and allows it, the new topic gets its permissions and as many queues as the client asks
for, but not more than it has. Retry and dead-letter topics are created when they are needed.

**Changed by administrators** (17, 18, 215). A request that equals the table changes nothing. The
comparison uses the attributes *of the request*, that is with their signs, so a request that names
an attribute always is a change, and so is one that names none for a topic that has some.

**Version.** Every change raises the version of the table by one; a request for several topics
raises it by as many. Then the listeners are called: one writes the table to disk, one registers the
changed topics with the name servers at once. As in Java, deleted topics and changed order flags
wait for the next registration.

The table is bounded by ``topicCountMax``. Counterpart of Java's ``TopicConfigManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from skylark.broker.config import BrokerConfig
from skylark.broker.live_settings import LiveSettings
from skylark.broker.table_pages import PageRequest, page_of
from skylark.broker.topics.attributes import (
    CLEANUP_POLICY,
    COMPACTION,
    MESSAGE_TYPE,
    MIXED,
    TOPIC_ATTRIBUTES,
    altered,
    parse_changes,
)
from skylark.core import names
from skylark.core.clock import TimeSource
from skylark.core.errors import BrokerError, InvalidParameterError
from skylark.core.subscribers import Subscribers
from skylark.store import config_tables
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.config import TopicConfig, TopicFilterType
from skylark.wire.bodies.slave_sync_body import TopicConfigAndMappingSerializeWrapper
from skylark.wire.codes import Perm, TopicSysFlag

logger = logging.getLogger(__name__)

READ_WRITE: Final = Perm.READ | Perm.WRITE
#: Most queues of a topic. Java has no limit, but some answers grow with them.
QUEUE_COUNT_MAX: Final = 65_536
SCHEDULE_QUEUE_COUNT: Final = 18
_QUEUE_DIGITS_MAX: Final = 9


class TopicChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change of the table; published after it was made."""

    register: tuple[TopicConfig, ...] = ()  # to register with the name servers at once
    deleted: tuple[str, ...] = ()


class TopicTable:
    """The topics of one broker."""

    def __init__(self, live: LiveSettings, clock: TimeSource) -> None:
        self._live = live
        self._clock = clock
        self._topics = {topic.topic_name: topic for topic in system_topics(live.current)}
        self._system_names = names.SYSTEM_TOPICS | self._topics.keys()
        self.changes: Subscribers[TopicChange] = Subscribers()
        self.version = DataVersion(timestamp=clock.now_ms())
        self._mapping_version = self.version  # of static topics, which do not exist
        #: Whether ``topics.json`` or its backup named any topic; see :mod:`config_rebuild`.
        self.has_file = False

    # --- reading ---

    def __len__(self) -> int:
        return len(self._topics)

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(self._topics.values())

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    def get(self, topic: str) -> TopicConfig | None:
        return self._topics.get(topic)

    def has_queue(self, topic: str, queue_id: str) -> bool:
        """Whether a topic has this queue, for reads or writes; the id is text from a request."""
        config = self._topics.get(topic)
        if config is None or not queue_id.isdecimal() or len(queue_id) > _QUEUE_DIGITS_MAX:
            return False
        return int(queue_id) < max(config.read_queue_nums, config.write_queue_nums)

    def is_order(self, topic: str) -> bool:
        config = self._topics.get(topic)
        return config is not None and config.order

    @property
    def is_full(self) -> bool:
        """Whether no further topic can be created: there are ``topicCountMax``."""
        return len(self._topics) >= self._config.topic_count_max

    @property
    def system_names(self) -> frozenset[str]:
        """Names of system topics, also of those that do not exist yet (305)."""
        return frozenset(self._system_names)

    def is_system(self, topic: str) -> bool:
        return names.is_system_topic(topic, self._system_names)

    # --- created by use ---

    def create_on_send(
        self, topic: str, *, default_topic: str, queue_count: int, unit_mode: bool = False
    ) -> TopicConfig | None:
        """The topic of a send, created if unknown and settings allow; None: it does not exist.

        The caller has checked the name. ``default_topic`` and ``queue_count`` come from the client.
        """
        if (found := self._topics.get(topic)) is not None:
            return found
        sys_flag = _sys_flag(topic, unit_mode)
        created = self._inherited(topic, default_topic, queue_count, sys_flag)
        if created is not None:
            return self._create(created)
        if names.is_retry_topic(topic):
            return self.ensure(topic, queue_count=1, sys_flag=sys_flag)
        return None

    def ensure(
        self,
        topic: str,
        *,
        queue_count: int,
        perm: int = READ_WRITE,
        sys_flag: int = 0,
        order: bool = False,
    ) -> TopicConfig | None:
        """A retry, dead-letter or internal topic, created if it is unknown; None at the limit.

        An existing topic stays as it is, except that ``order`` is corrected.
        """
        if (found := self._topics.get(topic)) is not None:
            return found if found.order == order else self._with_order(found, order)
        return self._create(
            TopicConfig(
                topic_name=topic,
                read_queue_nums=queue_count,
                write_queue_nums=queue_count,
                perm=perm,
                topic_sys_flag=sys_flag,
                order=order,
            )
        )

    def grow(self, topic: str, queue_count: int) -> None:
        """Give a topic of the broker more queues; none is taken away."""
        config = self._topics[topic]
        grown = msgspec.structs.replace(
            config,
            read_queue_nums=max(queue_count, config.read_queue_nums),
            write_queue_nums=max(queue_count, config.write_queue_nums),
        )
        logger.info("more queues for topic: %s", describe(grown))
        self._put([grown], register=True)

    def _inherited(
        self, topic: str, default_topic: str, queue_count: int, sys_flag: int
    ) -> TopicConfig | None:
        default = self._topics.get(default_topic)
        if default is None:
            logger.warning(
                "cannot create topic %s: there is no topic %s to inherit from", topic, default_topic
            )
            return None
        perm = default.perm
        if default_topic == names.AUTO_CREATE_TOPIC and not self._config.auto_create_topic_enable:
            perm = READ_WRITE  # the file may be from a time when this was on
        if not perm & Perm.INHERIT:
            logger.warning(
                "cannot create topic %s: %s does not allow to inherit", topic, default_topic
            )
            return None
        queue_count = max(0, min(queue_count, default.write_queue_nums))
        return TopicConfig(
            topic_name=topic,
            read_queue_nums=queue_count,
            write_queue_nums=queue_count,
            perm=perm & ~Perm.INHERIT,
            topic_sys_flag=sys_flag,
            topic_filter_type=default.topic_filter_type,
        )

    def _create(self, config: TopicConfig) -> TopicConfig | None:
        if self.is_full:
            logger.warning("cannot create topic %s: %s", config.topic_name, self._limit_text)
            return None
        logger.info("created topic: %s", describe(config))
        self._put([config], register=True)
        return config

    def _with_order(self, config: TopicConfig, order: bool) -> TopicConfig:
        changed = msgspec.structs.replace(config, order=order)
        self._put([changed], register=False)
        return changed

    # --- changed by administrators and name servers ---

    def update(self, requested: TopicConfig, attributes: str | None = None) -> bool:
        """UPDATE_AND_CREATE_TOPIC (17): create or replace the topic; whether anything changed.

        Changes of attributes are given as text, or as signed keys in ``requested``.
        """
        self._check_name(requested.topic_name)
        if attributes is not None:
            requested = msgspec.structs.replace(requested, attributes=parse_changes(attributes))
        self._check_request(requested)
        if requested == self._topics.get(requested.topic_name):
            return False
        self._update([requested])
        return True

    def update_all(self, requested: list[TopicConfig]) -> bool:
        """UPDATE_AND_CREATE_TOPIC_LIST (18): all of them or none.

        As in Java nothing at all happens if one of them is in the table as requested.
        """
        for config in requested:
            self._check_name(config.topic_name)
            self._check_request(config)
            if config == self._topics.get(config.topic_name):
                return False
        if requested:
            self._update(requested)
        return bool(requested)

    def delete(self, topic: str, groups: Iterable[str]) -> list[str]:
        """DELETE_TOPIC_IN_BROKER (215); returns the deleted topics, whose data the caller deletes.

        ``groups`` are those that have offsets for the topic: their POP retry topics for it are
        deleted as well. The topic itself is returned even if it is unknown.
        """
        if not topic.strip():
            raise InvalidParameterError("The specified topic is blank.")
        self._check_not_system(topic)
        gone = [topic]
        if self._config.clear_retry_topic_when_delete_topic:
            for group in groups:
                retries = (names.pop_retry_topic(topic, group, v2=v2) for v2 in (True, False))
                gone += [name for name in retries if name in self._topics]
        for name in gone:
            if self._topics.pop(name, None) is not None:
                logger.info("deleted topic %s", name)
                self._changed(1, TopicChange(deleted=(name,)))
        return gone

    def apply_order_table(self, table: Mapping[str, str]) -> bool:
        """Mark the topics that name servers list as ordered; whether any was not."""
        listed = [self._topics[topic] for topic in table if topic in self._topics]
        changed = [msgspec.structs.replace(t, order=True) for t in listed if not t.order]
        if changed:
            logger.info("marked topics as ordered: %s", ", ".join(t.topic_name for t in changed))
            self._put(changed, register=False)
        return bool(changed)

    def renew_version(self) -> None:
        """Raise the version although no topic changed: ``brokerPermission`` did (25)."""
        self._changed(1, TopicChange())

    def _update(self, requested: list[TopicConfig]) -> None:
        staged: dict[str, TopicConfig] = {}
        for config in requested:
            name = config.topic_name
            current = staged.get(name) or self._topics.get(name)
            attributes = altered(
                TOPIC_ATTRIBUTES, None if current is None else current.attributes, config.attributes
            )
            staged[name] = msgspec.structs.replace(config, attributes=attributes)
        if len(self._topics.keys() | staged.keys()) > self._config.topic_count_max:
            raise BrokerError(f"too many topics: {self._limit_text}")
        for config in staged.values():
            logger.info("set topic: %s", describe(config))
        self._put(staged.values(), register=True, steps=len(requested))

    def _check_name(self, topic: str) -> None:
        if (problem := names.topic_problem(topic)) is not None:
            raise InvalidParameterError(problem)
        self._check_not_system(topic)

    def _check_not_system(self, topic: str) -> None:
        if self._config.validate_system_topic_when_update_topic:
            problem = names.system_topic_problem(topic, self._system_names)
            if problem is not None:
                raise InvalidParameterError(problem)

    def _check_request(self, config: TopicConfig) -> None:
        if (
            not self._config.enable_mixed_message_type
            and config.attributes.get(f"+{MESSAGE_TYPE}") == MIXED
        ):
            raise InvalidParameterError("MIXED message type is not supported.")
        if config.attributes.get(f"+{CLEANUP_POLICY}") == COMPACTION:
            raise InvalidParameterError(
                f"topic {config.topic_name} cannot have {CLEANUP_POLICY}={COMPACTION}: this broker"
                " has no compaction and would keep all messages",
                hint=f"leave {CLEANUP_POLICY} out, or create the topic on an Apache broker",
            )
        for count in (config.read_queue_nums, config.write_queue_nums):
            if not 0 <= count <= QUEUE_COUNT_MAX:
                raise InvalidParameterError(
                    f"{count} queues for topic {config.topic_name}: 0 to {QUEUE_COUNT_MAX} are"
                    " possible"
                )

    # --- for name servers, slaves and the disk ---

    def registration(
        self, topics: Iterable[TopicConfig] | None = None
    ) -> TopicConfigAndMappingSerializeWrapper:
        """The body of a registration (103): these topics or all, limited to brokerPermission."""
        allowed = self._config.broker_permission
        registered = self._topics.values() if topics is None else topics
        if allowed & READ_WRITE != READ_WRITE:
            registered = [
                msgspec.structs.replace(topic, perm=topic.perm & allowed) for topic in registered
            ]
        return TopicConfigAndMappingSerializeWrapper(
            topic_config_table={topic.topic_name: topic for topic in registered},
            data_version=self.version,
            mapping_data_version=DataVersion(timestamp=self._clock.now_ms()),
        )

    def page(self, request: PageRequest) -> TopicConfigAndMappingSerializeWrapper:
        """The body of a response to 21 (GET_ALL_TOPIC_CONFIG): a page of the topics, or all."""
        config = self._config
        table = self._topics
        if config.enable_split_metadata and not request.is_whole:
            count_max = config.split_metadata_size
            chosen = page_of(table.keys(), self.version, request, count_max=count_max)
            table = {name: table[name] for name in chosen}
        return TopicConfigAndMappingSerializeWrapper(
            topic_config_table=table,
            data_version=self.version,
            mapping_data_version=self._mapping_version,
        )

    def snapshot(self) -> config_tables.TopicTable:
        """The content of ``topics.json``, independent of later changes."""
        return config_tables.TopicTable(
            topic_config_table=dict(self._topics), data_version=self.version
        )

    def load(self, table: config_tables.TopicTable) -> None:
        """Load ``topics.json``; system topics that it lacks stay."""
        self._topics.update(table.topic_config_table)
        self.has_file = bool(table.topic_config_table)
        if table.data_version != DataVersion():
            self.version = table.data_version

    def copy_from(self, table: Mapping[str, TopicConfig], version: DataVersion) -> TopicChange:
        """Copy the topics of a master, and its version; own system topics stay."""
        gone = [name for name in self._topics if name not in table and not self.is_system(name)]
        changed = [config for name, config in table.items() if self._topics.get(name) != config]
        for name in gone:
            del self._topics[name]
        self._topics.update((config.topic_name, config) for config in changed)
        self.version = version
        change = TopicChange(register=tuple(changed), deleted=tuple(gone))
        self.changes.publish(change)
        return change

    # --- inside ---

    @property
    def _config(self) -> BrokerConfig:
        return self._live.current

    @property
    def _limit_text(self) -> str:
        return f"there are {len(self._topics)}, the limit: raise topicCountMax"

    def _put(self, topics: Collection[TopicConfig], *, register: bool, steps: int = 1) -> None:
        self._topics.update((topic.topic_name, topic) for topic in topics)
        self._changed(steps, TopicChange(register=tuple(topics) if register else ()))

    def _changed(self, steps: int, change: TopicChange) -> None:
        for _ in range(steps):
            self.version = self.version.next(self._clock.now_ms())
        self.changes.publish(change)


def system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """The topics that a broker with these settings creates at start."""
    cluster, broker = config.broker_cluster_name, config.broker_name
    open_perm = READ_WRITE | Perm.INHERIT
    topics = [
        _system_topic(names.SELF_TEST_TOPIC),
        _system_topic(names.BENCHMARK_TOPIC, 1024),
        _system_topic(cluster, 16, open_perm if config.cluster_topic_enable else Perm.INHERIT),
        _system_topic(broker, 1, open_perm if config.broker_topic_enable else Perm.INHERIT),
        _system_topic(names.OFFSET_MOVED_TOPIC),
        _system_topic(names.SCHEDULE_TOPIC, SCHEDULE_QUEUE_COUNT),
        _system_topic(names.reply_topic(cluster)),
        _system_topic(names.revive_topic(cluster), config.pop.revive_queue_num),
        _system_topic(names.sync_broker_member_topic(broker), 1, Perm.INHERIT),
        _system_topic(names.HALF_TOPIC),
        _system_topic(names.OP_HALF_TOPIC),
        _system_topic(names.ROCKSDB_HALF_TOPIC),
        _system_topic(names.ROCKSDB_OP_HALF_TOPIC),
    ]
    if config.auto_create_topic_enable:
        count = config.default_topic_queue_nums
        topics.append(_system_topic(names.AUTO_CREATE_TOPIC, count, open_perm))
    if config.trace_topic_enable:
        topics.append(_system_topic(config.msg_trace_topic_name))
    if config.timer_wheel_enable:
        topics.append(_system_topic(names.TIMER_TOPIC))
    return topics


def describe(config: TopicConfig) -> str:
    """The topic in the form of Java's ``toString``, which remarks contain."""
    letters = ((Perm.READ, "R"), (Perm.WRITE, "W"), (Perm.INHERIT, "X"))
    perm = "".join(letter if config.perm & bit else "-" for bit, letter in letters)
    attributes = ", ".join(f"{key}={value}" for key, value in config.attributes.items())
    return (
        f"TopicConfig [topicName={config.topic_name}, readQueueNums={config.read_queue_nums},"
        f" writeQueueNums={config.write_queue_nums}, perm={perm},"
        f" topicFilterType={config.topic_filter_type or TopicFilterType.SINGLE_TAG},"
        f" topicSysFlag={config.topic_sys_flag}, order={'true' if config.order else 'false'},"
        f" attributes={{{attributes}}}]"
    )


def _system_topic(name: str, queue_count: int = 1, perm: int = READ_WRITE) -> TopicConfig:
    return TopicConfig(
        topic_name=name, read_queue_nums=queue_count, write_queue_nums=queue_count, perm=perm
    )


def _sys_flag(topic: str, unit_mode: bool) -> int:
    if not unit_mode:
        return 0
    return TopicSysFlag.UNIT_SUB if names.is_retry_topic(topic) else TopicSysFlag.UNIT
