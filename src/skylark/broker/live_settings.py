"""The settings in force, as requests 25 and 26 change and show them.

A :class:`BrokerConfig` never changes; a change makes another one. Code that uses a setting now and
then reads ``live.current.some_setting`` each time. Code that derives something from settings, or
that cannot know this class (the store, replication), subscribes::

    live.changes.subscribe(self._apply)     # called with the new BrokerConfig, after each change

There is no other way by which changed settings reach a part of the broker.

**Some settings wait for the next start** (:data:`READ_AT_START`): files, threads, ports or the
broker's identity depend on them. Request 25 takes them, shows them and saves them, as Java does,
and logs that they wait; in ``current`` they stay what they were, so no part of the broker sees half
a change. All others hold at once.

The version goes up by one with every change that was accepted, also if it named only unknown keys,
as in Java. Unknown keys of the settings file are never shown, since they may be secrets of another
program, but they are written back when the file is.

Counterpart of Java's ``Configuration``.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Final

import msgspec

from skylark.broker.config import BrokerConfig
from skylark.core.config import (
    Scalar,
    edit_properties,
    format_properties,
    parse_properties,
    settings,
    to_mapping,
    unknown_keys,
    with_changes,
)
from skylark.core.subscribers import Subscribers
from skylark.wire.bodies.common_body import DataVersion

logger = logging.getLogger(__name__)

#: Entries of request 26 besides the settings: abilities of our brokers that clients look for.
FACTS: Final = {"transactionEndIdempotent": "true"}
#: Reason -> keys of the settings that are read at start and never again.
START_REASONS: Final[dict[str, str]] = {
    "who the broker is, and where it listens": """
        bindAddress brokerClusterName brokerIP1 brokerIP2 brokerId brokerName brokerRole
        haListenPort listenPort
        """,
    "the servers are made with them": """
        busyPollMicros connectionCountMax requestCountMax rocketmq.serialize.type
        serverChannelMaxIdleTimeSeconds writeBufferSizeMax
        """,
    "the exporter of metrics is made with them": """
        metricsExporterType metricsLabel metricsPromExporterHost metricsPromExporterPort
        """,
    "the rhythm of registrations is set once": "registerNameServerPeriod",
    "what master and slave are to each other is decided when they meet": """
        haCompatible4x haMasterAddress haTruncateAhead
        """,
    "topics of the system are made with them": """
        brokerTopicEnable clusterTopicEnable defaultTopicQueueNums msgTraceTopicName reviveQueueNum
        traceTopicEnable
        """,
    "the Bloom filters in the queues are made with them": """
        expectConsumerNumUseFilter maxErrorRateOfBloomFilter
        """,
    "files on disk have this shape": """
        enabledAppendPropCRC mappedFileSizeCommitLog mappedFileSizeConsumeQueue
        mappedFileSizeTimerLog mapperFileSizeBatchConsumeQueue maxHashSlotNum maxIndexNum
        messageIndexEnable timerPrecisionMs timerRollWindowSlot timerWheelEnable
        """,
    "tags codes of stored messages follow from it": "messageDelayLevel",
    "how messages reach the disk, and when readers see them, is decided once": """
        flushDiskType readUnCommitted transientStorePoolEnable transientStorePoolSize
        """,
    "memory and descriptors are planned with them": """
        commitLogAllocateAhead commitLogOpenFilesMax consumeQueueOpenFilesMax
        consumeQueueRecentSize consumeQueueTailSizeMax dataReadAheadEnable
        flushLeastPagesWhenWarmMapedFile indexOpenFilesMax warmMapedFileEnable
        """,
    "recovery reads them": """
        checkCRCOnRecover commitLogRecoverMaxNum forceVerifyPropCRC messageIndexSafe
        """,
}
READ_AT_START: Final = frozenset(key for keys in START_REASONS.values() for key in keys.split())


class LiveSettings:
    """Holds the settings of one broker."""

    def __init__(
        self, config: BrokerConfig, *, now_ms: int, given: Mapping[str, str] | None = None
    ) -> None:
        """``given`` are the properties that the broker was started with, known or not."""
        self.current = config  # what is in force
        self._stated = config  # what is shown and saved: the next start has it in force
        #: Publishes the settings in force, after each change.
        self.changes: Subscribers[BrokerConfig] = Subscribers()
        self.version = DataVersion(timestamp=now_ms)
        self._given = dict(given or {})
        # Keys that requests have changed; replaced as a whole, because a thread saves them.
        self._changed: frozenset[str] = frozenset()

    def update(self, changes: str | bytes, now_ms: int) -> frozenset[str]:
        """Apply the properties text of request 25, all of it or nothing; returns its keys.

        Raises ReadOnlySettingError (answered with 16) for a key on the black list, and another
        ConfigError (answered with 1) for text or values that are wrong. Unknown keys are ignored.
        """
        texts = parse_properties(changes)
        stated = with_changes(self._stated, texts, black_list=self.current.black_list)
        current = _with_start_values(stated, self.current)
        waiting = _changed_keys(current, stated) & texts.keys()
        self._stated, self.current = stated, current
        self._changed |= texts.keys() - set(unknown_keys(BrokerConfig, texts))
        self.version = self.version.next(now_ms)
        logger.info("settings changed: %s", ", ".join(sorted(texts)))
        if waiting:
            logger.warning("these settings wait for a restart: %s", ", ".join(sorted(waiting)))
        self.changes.publish(current)
        return frozenset(texts)

    def text(self) -> str:
        """The body of request 26: ``key=value`` lines, sorted and not escaped."""
        lines = sorted((to_mapping(self._stated) | FACTS).items())
        return "".join(f"{key}={value}\n" for key, value in lines)

    def edited(self, content: bytes | None) -> bytes:
        """The content of the settings file with the changes; the rest of it stays as it is.

        None: there is no file any more, then it gets what the broker was started with, too. Raises
        ConfigError for a file that was made unreadable meanwhile.
        """
        text = format_properties(self._given) if content is None else content.decode("iso-8859-1")
        stated = to_mapping(self._stated)
        changes = {key: stated.get(key, "") for key in self._changed}  # empty: no value
        return edit_properties(text, changes).encode("iso-8859-1")


def _with_start_values(stated: BrokerConfig, started: BrokerConfig) -> BrokerConfig:
    """The settings as stated, but those that are read at start as they were then."""
    kept: dict[tuple[str, ...], dict[str, Scalar]] = defaultdict(dict)
    for info in settings(BrokerConfig):
        if info.java in READ_AT_START:
            source: object = getattr(started, info.section[0]) if info.section else started
            kept[info.section][info.name] = getattr(source, info.name)
    replace = msgspec.structs.replace
    return replace(
        stated,
        store=replace(stated.store, **kept["store",]),
        pop=replace(stated.pop, **kept["pop",]),
        replication=replace(stated.replication, **kept["replication",]),
        **kept[()],
    )


def _changed_keys(one: BrokerConfig, other: BrokerConfig) -> frozenset[str]:
    texts, others = to_mapping(one), to_mapping(other)
    return frozenset(
        key for key in texts.keys() | others.keys() if texts.get(key) != others.get(key)
    )
