"""Contents of the configuration files of a store directory: one struct per file.

Where a file holds the same as a request body, its struct is that of the body with a larger size
limit; the others are defined here. The defaults are Java's, so files of a 4.x broker, which lack
``dataVersion``, ``attributes`` and whole tables, load like files of 5.5 that are empty there.

Unknown members are dropped with the next save, as Java does.

Some members only repeat others, for people who read the file: the topics of each group, whether a
filter is dead, how many entries an order table has. No program reads them back.
:meth:`ConfigTable.derive` updates them before a save.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from skylark.store.file_system import READ_FILE_SIZE_MAX
from skylark.wire.bodies.common_body import Body, DataVersion
from skylark.wire.bodies.config import TopicQueueMappingDetail
from skylark.wire.bodies.slave_sync_body import (
    MessageRequestModeSerializeWrapper,
    SubscriptionGroupWrapper,
    TimerMetric,
    TimerMetrics,
    TopicConfigSerializeWrapper,
)
from skylark.wire.fields import Int32, Int64

#: Between topic and group in the keys of offsets.
TOPIC_GROUP_SEPARATOR = "@"

#: Offsets by ``topic@group`` and queue.
OffsetTable = dict[str, dict[int, Int64]]


class ConfigTable(Body, kw_only=True):
    """The content of one configuration file."""

    dialect_size_max: ClassVar[int] = READ_FILE_SIZE_MAX

    def derive(self) -> None:
        """Update the members that follow from others."""


class TopicTable(TopicConfigSerializeWrapper, ConfigTable, kw_only=True):
    """``topics.json``: the topics of this broker."""


class SubscriptionGroupTable(SubscriptionGroupWrapper, ConfigTable, kw_only=True):
    """``subscriptionGroup.json``: the groups of this broker, and the topics they must not read."""


class MessageRequestModeTable(MessageRequestModeSerializeWrapper, ConfigTable, kw_only=True):
    """``messageRequestMode.json``: pull or pop, by topic and group."""


class TimerMetricsTable(TimerMetrics, ConfigTable, kw_only=True):
    """``timermetrics``: how many timed messages of each topic are waiting."""


class TransactionMetricsTable(ConfigTable, kw_only=True):
    """``transactionMetrics``: how many half messages of each topic are waiting."""

    data_version: DataVersion = DataVersion()
    transaction_count: dict[str, TimerMetric] = msgspec.field(default_factory=dict)


class ConsumerOffsetTable(ConfigTable, kw_only=True):
    """``consumerOffset.json``: the offsets of each group.

    ``offset_table`` has the committed offsets, ``pull_offset_table`` the pulled ones. The last
    four members are Skylark's; :mod:`skylark.broker.pop.pop_recovery` describes them.
    """

    data_version: DataVersion = DataVersion()
    offset_table: OffsetTable = msgspec.field(default_factory=dict)
    pull_offset_table: OffsetTable = msgspec.field(default_factory=dict)
    #: Of light message queues, which have one queue each.
    lmq_offset_table: dict[str, Int64] | None = None
    group_topic_map: dict[str, list[str]] = msgspec.field(default_factory=dict)  # derived
    log_offset: Int64 | None = None
    pop_merged: bool | None = None
    copies_from: Int64 | None = None
    copies_left: list[Int64] | None = None

    def derive(self) -> None:
        topics: dict[str, list[str]] = {}
        for key in self.offset_table:
            topic, separator, group = key.partition(TOPIC_GROUP_SEPARATOR)
            if separator and topic and group and TOPIC_GROUP_SEPARATOR not in group:
                topics.setdefault(group, []).append(topic)
        if not _same_topics(self.group_topic_map, topics):
            self.group_topic_map = topics


def _same_topics(left: dict[str, list[str]], right: dict[str, list[str]]) -> bool:
    """Whether two maps are equal but for the order of topics, as after a Java hash table."""
    return left.keys() == right.keys() and all(
        len(topics) == len(right[group]) and set(topics) == set(right[group])
        for group, topics in left.items()
    )


class DelayOffsetTable(ConfigTable, kw_only=True):
    """``delayOffset.json``: for each delay level, the offset of the next message to deliver.

    ``log_offset`` and ``runs`` are Skylark's: see :mod:`skylark.broker.delay.delay_progress`.
    """

    data_version: DataVersion = DataVersion()
    offset_table: dict[int, Int64] = msgspec.field(default_factory=dict)
    log_offset: Int64 | None = None
    runs: dict[int, list[tuple[Int64, Int64]]] | None = None


class TopicQueueMappingTable(ConfigTable, kw_only=True):
    """``topicQueueMapping.json``: the static topics of which this broker has a part."""

    data_version: DataVersion = DataVersion()
    topic_queue_mapping_info_map: dict[str, TopicQueueMappingDetail] = msgspec.field(
        default_factory=dict
    )


# ---- filters -----------------------------------------------------------------------------------


class BloomFilterData(Body, kw_only=True):
    """The bits of one subscription, and the number of bits in all."""

    bit_num: Int32 = 0
    bit_pos: list[Int32] = msgspec.field(default_factory=list)


class ConsumerFilterData(Body, kw_only=True):
    """The expression by which one group filters one topic."""

    topic: str = ""
    consumer_group: str = ""
    expression: str | None = None
    expression_type: str | None = None
    bloom_filter_data: BloomFilterData | None = None
    client_version: Int64 = 0  # the newest wins
    born_time: Int64 = 0  # ms
    dead_time: Int64 = 0  # ms; less than born_time while the group exists
    dead: bool = False  # derived


class TopicFilterTable(Body, kw_only=True):
    """The filters of one topic, by group."""

    topic: str = ""
    group_filter_data: dict[str, ConsumerFilterData] = msgspec.field(default_factory=dict)


class ConsumerFilterTable(ConfigTable, kw_only=True):
    """``consumerFilter.json``: the SQL92 subscriptions of each topic."""

    filter_data_by_topic: dict[str, TopicFilterTable] = msgspec.field(default_factory=dict)

    def derive(self) -> None:
        for topic in self.filter_data_by_topic.values():
            for data in topic.group_filter_data.values():
                data.dead = data.dead_time >= data.born_time


# ---- order of pop consumption ------------------------------------------------------------------


class OrderInfo(Body, kw_only=True):
    """The messages of one queue that an ordered group has popped and not yet acknowledged."""

    pop_time: Int64 = 0
    invisible_time: Int64 | None = msgspec.field(default=None, name="i")
    # the first queue offset, then the distance of each further one from it
    offset_list: list[Int64] | None = msgspec.field(default=None, name="o")
    offset_next_visible_time: dict[int, Int64] | None = msgspec.field(default=None, name="ot")
    offset_consumed_count: dict[int, Int32] | None = msgspec.field(default=None, name="oc")
    last_consume_timestamp: Int64 = msgspec.field(default=0, name="l")
    commit_offset_bit: Int64 = msgspec.field(default=0, name="cm")  # bit i: message i is done
    attempt_id: str | None = msgspec.field(default=None, name="a")


class ConsumerOrderInfoTable(ConfigTable, kw_only=True):
    """``consumerOrderInfo.json``: order information by ``topic@group`` and queue."""

    table: dict[str, dict[int, OrderInfo]] = msgspec.field(default_factory=dict)
    ordered_consumption_level: str = "QUEUE"
    order_info_count: Int32 = 0  # derived

    def derive(self) -> None:
        self.order_info_count = len(self.table)
