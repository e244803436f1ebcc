"""The metrics of a broker: one table of names, kinds and labels.

The names are those of Apache's native exporter, so its dashboards work. Every sample has the
labels ``cluster``, ``node_type`` and ``node_id`` first, and those of ``metricsLabel``. Names that
begin with ``skylark_`` are ours: limits, and the event loop where Java has thread pools.

The code that does the work adds to counters and histograms; gauges are read by callbacks at each
scrape (:meth:`BrokerMetrics.watch`)::

    metrics = BrokerMetrics(Registry(constant_labels(config)))
    metrics.watch("rocketmq_topic_number", lambda: len(topics))
    metrics.messages_in.labels("TopicTest", "normal", "false").value += 1

Code that runs per message keeps the child of a metric, not the label values: :class:`PutMetrics`.
A topic or group that is deleted gives its series back (:meth:`BrokerMetrics.forget`).
Messages of retry and dead-letter topics are not counted as in or out, as in Java.

A gauge without a callback has no samples. Counterpart of Java's ``BrokerMetricsManager``,
``DefaultStoreMetricsManager``, ``PopMetricsManager`` and ``RemotingMetricsManager``.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from typing import Final, Literal

import msgspec

from skylark.broker.config import BrokerConfig
from skylark.core.metrics import Counter, Gauge, Histogram, Metric, Registry, Samples

logger = logging.getLogger(__name__)

Kind = Literal["counter", "gauge", "histogram"]

MESSAGE_SIZE_BOUNDS: Final = (1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20)
RPC_LATENCY_BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1_000, 2_000, 3_000)
FINISH_LATENCY_BOUNDS_S: Final = (5, 60, 600, 3_600, 43_200, 86_400)
LOOP_TURN_BOUNDS_MS: Final = (1, 3, 10, 30, 100, 200, 500, 1_000, 3_000, 10_000)

_IN: Final = ("topic", "message_type", "is_system")
_OUT: Final = ("topic", "consumer_group", "is_system")
_LAG: Final = ("consumer_group", "topic", "is_retry", "is_system")
_STORAGE: Final = ("storage_type", "storage_medium")
#: The values of these labels: there is one kind of storage.
STORAGE_LABELS: Final = ("local", "disk")
PROTOCOL_TYPE: Final = "remoting"

_LABEL_NAME: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class Row(msgspec.Struct, frozen=True):
    """One metric."""

    name: str
    kind: Kind
    help_text: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


ROWS: Final = (
    # messages
    Row("rocketmq_messages_in_total", "counter", "Messages stored for producers.", _IN),
    Row("rocketmq_messages_out_total", "counter", "Messages read by consumers.", _OUT),
    Row("rocketmq_throughput_in_total", "counter", "Bytes stored for producers.", _IN),
    Row("rocketmq_throughput_out_total", "counter", "Bytes read by consumers.", _OUT),
    Row(
        "rocketmq_message_size",
        "histogram",
        "Bytes of a message in the log.",
        _IN,
        MESSAGE_SIZE_BOUNDS,
    ),
    Row(
        "rocketmq_send_to_dlq_messages_total",
        "counter",
        "Messages given up and stored as dead letters.",
        ("consumer_group", "topic", "is_system"),
    ),
    # the broker
    Row("rocketmq_processor_watermark", "gauge", "Requests that wait.", ("processor",)),
    Row("rocketmq_broker_permission", "gauge", "What the broker allows: 4 read, 2 write."),
    Row("rocketmq_topic_number", "gauge", "Topics, system topics included."),
    Row(
        "rocketmq_rpc_latency",
        "histogram",
        "Milliseconds from request to answer.",
        ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
        RPC_LATENCY_BOUNDS_MS,
    ),
    # clients
    Row(
        "rocketmq_producer_connections",
        "gauge",
        "Connections of producers.",
        ("language", "version", "protocol_type"),
    ),
    Row(
        "rocketmq_consumer_connections",
        "gauge",
        "Connections of consumers.",
        (
            "consumer_group",
            "language",
            "version",
            "consume_mode",
            "protocol_type",
            "is_system",
        ),
    ),
    Row("rocketmq_consumer_lag_messages", "gauge", "Messages not consumed yet.", _LAG),
    Row("rocketmq_consumer_lag_latency", "gauge", "Age of the first of them, in ms.", _LAG),
    Row("rocketmq_consumer_inflight_messages", "gauge", "Messages read, not consumed yet.", _LAG),
    Row("rocketmq_consumer_ready_messages", "gauge", "Messages not read yet.", _LAG),
    Row("rocketmq_consumer_queueing_latency", "gauge", "Age of the first of them, in ms.", _LAG),
    # transactions
    Row("rocketmq_commit_messages_total", "counter", "Transactions committed.", ("topic",)),
    Row("rocketmq_rollback_messages_total", "counter", "Transactions rolled back.", ("topic",)),
    Row(
        "rocketmq_finish_message_latency",
        "histogram",
        "Seconds from half message to commit.",
        ("topic",),
        FINISH_LATENCY_BOUNDS_S,
    ),
    Row("rocketmq_half_messages", "gauge", "Half messages not decided yet.", ("topic",)),
    # the store and its timer
    Row("rocketmq_storage_size", "gauge", "Bytes of all files of the log.", _STORAGE),
    Row("rocketmq_storage_flush_behind_bytes", "gauge", "Bytes not synced yet.", _STORAGE),
    Row("rocketmq_storage_dispatch_behind_bytes", "gauge", "Bytes not readable yet.", _STORAGE),
    Row("rocketmq_timer_enqueue_lag", "gauge", "Messages on their way into the timer.", _STORAGE),
    Row("rocketmq_timer_dequeue_lag", "gauge", "Messages due and not delivered.", _STORAGE),
    Row("rocketmq_timing_messages", "gauge", "Messages in the timer.", (*_STORAGE, "topic")),
    # replication
    Row("skylark_ha_slaves", "gauge", "Slaves that are connected."),
    Row("skylark_ha_slaves_in_sync", "gauge", "Of these, slaves that are near."),
    Row("skylark_ha_behind_bytes", "gauge", "Bytes of the log that the farthest slave lacks."),
    Row("skylark_ha_waiting_puts", "gauge", "Messages that wait for slaves."),
    Row("skylark_ha_timed_out_puts_total", "counter", "Messages that no slave had in time."),
    Row("skylark_ha_following", "gauge", "1 while this slave follows its master."),
    Row("skylark_ha_diverged", "gauge", "1 if this slave has other bytes than its master."),
    # POP
    Row("rocketmq_pop_revive_lag", "gauge", "Check-points not looked at yet.", ("queue_id",)),
    Row("rocketmq_pop_revive_latency", "gauge", "Age of the first, in ms.", ("queue_id",)),
    Row(
        "rocketmq_pop_revive_retry_messages_total",
        "counter",
        "Messages put back because nobody acknowledged them.",
        ("consumer_group", "topic", "put_status"),
    ),
    Row(
        "rocketmq_pop_revive_in_message_total",
        "counter",
        "Check-points and acks written to the revive topic.",
        ("consumer_group", "topic", "revive_message_type", "put_status"),
    ),
    Row(
        "rocketmq_pop_revive_out_message_total",
        "counter",
        "Check-points and acks read from the revive topic.",
        ("consumer_group", "topic", "queue_id", "revive_message_type"),
    ),
    Row("rocketmq_pop_checkpoint_buffer_size", "gauge", "Check-points in memory."),
    Row("rocketmq_pop_offset_buffer_size", "gauge", "Check-points that hold back an offset."),
    # ours
    Row(
        "skylark_loop_turn_ms",
        "histogram",
        "Milliseconds for which the event loop let others wait, per turn.",
        (),
        LOOP_TURN_BOUNDS_MS,
    ),
    Row("skylark_requests_refused_total", "counter", "Refused in self-defence.", ("reason",)),
    Row(
        "skylark_uncopied_messages_total",
        "counter",
        "Messages of which no copy could be made; they stay where they are.",
        ("kind",),
    ),
    Row(
        "skylark_pop_put_off_messages_total",
        "counter",
        "Expired messages that could not be read, or have no retry topic; they are tried again.",
    ),
    Row(
        "skylark_groups_in_conflict",
        "gauge",
        "Groups whose members subscribe to different things.",
        ("consumer_group",),
    ),
    Row(
        "skylark_retention_endangered_messages",
        "gauge",
        "Messages not consumed yet that are soon deleted.",
        ("consumer_group", "topic"),
    ),
    Row("skylark_connections", "gauge", "Open connections.", ("port",)),
    Row("skylark_connections_refused_total", "counter", "Beyond the limit.", ("port",)),
    Row("skylark_held_pulls", "gauge", "Pulls that wait for messages."),
    Row("skylark_held_pops", "gauge", "Pops that wait for messages."),
    Row("skylark_requests_at_work", "gauge", "Requests handled by tasks at the moment."),
    Row("skylark_outstanding_bytes", "gauge", "Bytes of requests at work and of unread answers."),
    Row("skylark_name_servers", "gauge", "1: registered there, 0: not.", ("address",)),
    Row(
        "skylark_stats_overflows_total", "counter", "Counted beyond the limit of keys.", ("table",)
    ),
)


class BrokerMetrics:
    """All metrics of one broker, registered."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry
        self._counters: dict[str, Metric[Counter]] = {}
        self._gauges: dict[str, Metric[Gauge]] = {}
        self._histograms: dict[str, Metric[Histogram]] = {}
        for row in ROWS:
            self._register(row)
        self.messages_in = self._counters["rocketmq_messages_in_total"]
        self.throughput_in = self._counters["rocketmq_throughput_in_total"]
        self.message_size = self._histograms["rocketmq_message_size"]
        self.send_to_dlq = self._counters["rocketmq_send_to_dlq_messages_total"]
        self.rpc_latency = self._histograms["rocketmq_rpc_latency"]
        self.finish_latency = self._histograms["rocketmq_finish_message_latency"]
        self.loop_turn = self._histograms["skylark_loop_turn_ms"].labels()

    def watch(self, name: str, callback: Callable[[], Samples]) -> None:
        """Read a gauge, or a counter that is kept elsewhere, from ``callback`` at each scrape.

        It returns a number or, for a metric with labels, pairs of label values and number.
        """
        watched = self._gauges if name in self._gauges else self._counters
        watched[name].set_callback(callback)

    def forget(self, label: str, value: str) -> None:
        """Give back the series of a topic or group that was deleted: the label, and its name."""
        for metrics in (self._counters, self._gauges, self._histograms):
            for metric in metrics.values():
                if label in metric.label_names:
                    metric.remove_labelled(label, value)

    def _register(self, row: Row) -> None:
        if row.kind == "counter":
            counter = self.registry.counter(row.name, row.help_text, row.labels)
            self._counters[row.name] = counter
        elif row.kind == "gauge":
            # Without a callback a gauge would show a zero that was not measured.
            self._gauges[row.name] = self.registry.gauge(
                row.name, row.help_text, row.labels, callback=_nothing
            )
        else:
            self._histograms[row.name] = self.registry.histogram(
                row.name, row.help_text, row.labels, bounds=row.bounds
            )


class PutMetrics:
    """The children of one topic and type of message, for the path of a send."""

    __slots__ = ("_bytes", "_count", "_size")

    def __init__(
        self, metrics: BrokerMetrics, topic: str, message_type: str, *, is_system: bool
    ) -> None:
        values = (topic, message_type, "true" if is_system else "false")
        self._count = metrics.messages_in.labels(*values)
        self._bytes = metrics.throughput_in.labels(*values)
        self._size = metrics.message_size.labels(*values)

    def add(self, count: int, size: int) -> None:
        """Count ``count`` stored messages, ``size`` bytes in all."""
        self._count.value += count
        self._bytes.value += size
        self._size.observe(size // count)


def constant_labels(config: BrokerConfig) -> dict[str, str]:
    """The labels of every sample; invalid parts of ``metricsLabel`` are left out."""
    labels = {
        "cluster": config.broker_cluster_name,
        "node_type": "broker",
        "node_id": config.broker_name,
    }
    taken = {*labels, "le"}.union(*(row.labels for row in ROWS))
    for item in filter(None, config.metrics_label.split(",")):
        name, colon, value = item.partition(":")
        if colon and ":" not in value and _LABEL_NAME.fullmatch(name) and name not in taken:
            labels[name] = value
        else:
            logger.warning("ignored %r in metricsLabel: it is no valid further label", item)
    return labels


def _nothing() -> Iterable[tuple[tuple[str, ...], float]]:
    return ()
