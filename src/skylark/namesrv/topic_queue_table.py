"""The topic queue table: topic -> broker name -> queues, permission and registered version.

It also has the mappings of static topics. Registrations of brokers change it
(:meth:`TopicTable.announce`), and requests of operators (permissions, deletion).
:mod:`skylark.namesrv.broker_registration` decides which of two registrations wins.

``version`` counts every change that a query could show. A topic without brokers does not exist.
Counterpart of ``topicQueueTable`` in Java's ``RouteInfoManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from skylark.core.errors import BrokerError
from skylark.namesrv.broker_registration import Registration, TopicOnBroker, queues_of
from skylark.wire.bodies.config import TopicQueueMappingInfo
from skylark.wire.bodies.route_body import QueueData
from skylark.wire.codes import Perm

logger = logging.getLogger(__name__)


class TopicTable:
    """Topics and their brokers."""

    def __init__(self) -> None:
        self.version = 0
        self._topics: dict[str, dict[str, TopicOnBroker]] = {}
        self._mappings: dict[str, dict[str, TopicQueueMappingInfo]] = {}

    def __len__(self) -> int:
        return len(self._topics)

    # --- announcements --------------------------------------------------------------------------

    def is_whole(self, registration: Registration) -> bool:
        """Whether a registration has the broker's whole table (rule 5)."""
        name = registration.broker_name
        own_topic_known = name in self._topics.get(name, ())
        return len(registration.topics) != 1 and (
            name in registration.topics or not own_topic_known
        )

    def announce(
        self,
        registration: Registration,
        now_ms: int,
        *,
        whole: bool,
        changed: bool,
        perm_mask: int,
        topic_count_max: int,
    ) -> int:
        """Merge the registered topics; returns how many were beyond the limit.

        ``changed``: the registration is the first one, or has another version than the known one.
        """
        name = registration.broker_name
        left_out = 0
        for key, config in registration.topics.items():
            topic = config.topic_name or key
            known = self._topics.get(topic, {}).get(name)
            if known is not None and known.overtook(registration, now_ms, whole=whole):
                continue
            queues = queues_of(config)
            perm = queues.perm & perm_mask
            if known is None:
                if topic not in self._topics and len(self._topics) >= topic_count_max:
                    left_out += 1
                    continue
                known = TopicOnBroker(announced=queues, perm=perm)
                self._topics.setdefault(topic, {})[name] = known
                self.version += 1
            elif (known.announced, known.perm) != (queues, perm) and (
                changed or known.announced != queues
            ):
                known.announced, known.perm = queues, perm
                self.version += 1
            known.confirm(registration, now_ms, whole=whole)
        if changed:
            self._map(registration.mappings)
        return left_out

    def _map(self, mappings: dict[str, TopicQueueMappingInfo]) -> None:
        for topic, mapping in mappings.items():
            on_brokers = self._mappings.setdefault(topic, {})
            if on_brokers.get(mapping.bname) != mapping:
                on_brokers[mapping.bname] = mapping
                self.version += 1

    def delete_missing(self, registration: Registration, now_ms: int) -> None:
        """Delete the broker's topics that its whole table lacks, unless it has static topics."""
        if not registration.topics or registration.mappings:
            return
        name = registration.broker_name
        missing = [
            topic
            for topic, on_brokers in self._topics.items()
            if topic not in registration.topics
            and name in on_brokers
            and not on_brokers[name].overtook(registration, now_ms, whole=True)
        ]
        for topic in missing:
            logger.info("deleting topic %s of broker %s: its table lacks it", topic, name)
            self.delete(topic, (name,))

    def announce_one(
        self,
        topic: str,
        queue_datas: list[QueueData],
        connection: object,
        now_ms: int,
        *,
        topic_count_max: int,
    ) -> None:
        """Merge one topic without a version (REGISTER_TOPIC_IN_NAMESRV)."""
        if topic not in self._topics and len(self._topics) >= topic_count_max:
            raise BrokerError(
                f"the name server knows {len(self._topics)} topics, the limit",
                hint="raise topicCountMax",
            )
        on_brokers = self._topics.setdefault(topic, {})
        for data in queue_datas:
            on_brokers[data.broker_name] = TopicOnBroker(
                announced=queues_of(data),
                perm=data.perm,
                connection=connection,
                announced_ms=now_ms,
            )
        self.version += 1

    # --- permissions and deletion ---------------------------------------------------------------

    def set_writable(self, broker_name: str, writable: bool) -> int:
        """Set or clear the write permission of all topics of a broker; returns how many."""
        count = 0
        for on_brokers in self._topics.values():
            known = on_brokers.get(broker_name)
            if known is not None:
                known.perm = Perm.READ | Perm.WRITE if writable else known.perm & ~Perm.WRITE
                count += 1
        self.version += 1
        return count

    def delete(self, topic: str, broker_names: Iterable[str] | None = None) -> None:
        """Delete a topic on some brokers, or on all."""
        if broker_names is None:
            self._topics.pop(topic, None)
            self._mappings.pop(topic, None)
        else:
            _delete_from(self._topics, topic, broker_names)
            _delete_from(self._mappings, topic, broker_names)
        self.version += 1

    def lose(self, gone: set[str], masterless: set[str]) -> None:
        """In one pass, delete topics of ``gone`` brokers and make ``masterless`` ones read-only."""
        emptied = []
        for topic, on_brokers in self._topics.items():
            for name in gone:
                on_brokers.pop(name, None)
            if not on_brokers:
                emptied.append(topic)
            for name in masterless:
                known = on_brokers.get(name)
                if known is not None:
                    known.perm &= ~Perm.WRITE
        for topic in emptied:
            del self._topics[topic]
        for topic in tuple(self._mappings):
            _delete_from(self._mappings, topic, gone)
        self.version += 1

    # --- queries --------------------------------------------------------------------------------

    def brokers_of(self, topic: str) -> list[str]:
        """Names of the brokers that have a topic, sorted."""
        return sorted(self._topics.get(topic, ()))

    def is_writable(self, topic: str, broker_name: str) -> bool:
        return self._topics[topic][broker_name].perm & Perm.WRITE != 0

    def queue_datas(self, topic: str) -> list[QueueData]:
        return [
            QueueData(
                broker_name=name,
                read_queue_nums=known.announced.read_count,
                write_queue_nums=known.announced.write_count,
                perm=known.perm,
                topic_sys_flag=known.announced.sys_flag,
            )
            for name, known in sorted(self._topics.get(topic, {}).items())
        ]

    def mappings(self, topic: str) -> dict[str, TopicQueueMappingInfo] | None:
        found = self._mappings.get(topic)
        return None if found is None else dict(found)

    def names(self) -> list[str]:
        return sorted(self._topics)

    def names_on(self, broker_names: set[str]) -> list[str]:
        """Topics that any of these brokers has."""
        return sorted(
            topic
            for topic, on_brokers in self._topics.items()
            if not broker_names.isdisjoint(on_brokers)
        )

    def names_by_flag(self, wanted: Callable[[int], bool]) -> list[str]:
        """Topics whose system flag, on the first of their brokers, is ``wanted``."""
        return sorted(
            topic
            for topic, on_brokers in self._topics.items()
            if wanted(next(iter(on_brokers.values())).announced.sys_flag)
        )


def _delete_from(
    table: dict[str, dict[str, TopicOnBroker]] | dict[str, dict[str, TopicQueueMappingInfo]],
    topic: str,
    broker_names: Iterable[str],
) -> None:
    on_brokers = table.get(topic)
    if on_brokers is None:
        return
    for name in broker_names:
        on_brokers.pop(name, None)
    if not on_brokers:
        del table[topic]
