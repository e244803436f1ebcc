"""Metrics exporter: the Prometheus endpoint of a broker, and where its numbers come from.

With ``metricsExporterType=PROM`` the broker serves its metrics on ``metricsPromExporterPort``
(5557), as the name server does on ``metricsPort``. Without it nothing is measured: the hooks in the
code that handles messages stay empty.

Most numbers are read at the time of a scrape. Messages in are counted when they are stored, by
topic and by the message type of the topic (``message.type``): "unspecified" if it has none. A
delayed or transactional message counts in the system topic where it waits, and again in its own
topic when it is delivered. Lags are worked out at the beginning of each scrape, a slice per turn of
the loop (:mod:`skylark.broker.stats.consumer_lag`), before the first metric is rendered.

Counterpart of Java's ``BrokerMetricsManager``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from skylark.broker.config import BrokerConfig, MetricsExporterType
from skylark.broker.stats.consumer_lag import Lag, LagReport
from skylark.broker.stats.metrics import (
    PROTOCOL_TYPE,
    STORAGE_LABELS,
    BrokerMetrics,
    PutMetrics,
    constant_labels,
    watch_protection,
)
from skylark.broker.topics.attributes import MESSAGE_TYPE
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import Clock, TimeSource
from skylark.core.metrics import Histogram, Registry
from skylark.core.names import is_dlq_topic, is_retry_topic, is_system_group
from skylark.net.connection import Connection
from skylark.net.metrics_http import MetricsServer
from skylark.net.transport import Network
from skylark.wire.bodies.heartbeat import ConsumeType
from skylark.wire.catalogue import name_of
from skylark.wire.codes import ResponseCode, version_name
from skylark.wire.command import Command

if TYPE_CHECKING:
    from skylark.broker.composition import BrokerGraph

UNSPECIFIED: Final = "unspecified"
#: Requests that are measured at a time; more than can be in flight.
OPEN_COUNT_MAX: Final = 100_000
_CONSUME_MODES: Final[Mapping[ConsumeType | None, str]] = {
    ConsumeType.CONSUME_ACTIVELY: "pull",
    ConsumeType.CONSUME_PASSIVELY: "push",
    ConsumeType.CONSUME_POP: "pop",
}
Labelled = list[tuple[tuple[str, ...], float]]


class PreparedRegistry(Registry):
    """A registry that works something out before it is rendered."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        super().__init__(labels)
        #: Work at the beginning of each scrape, one step per turn of the loop.
        self.prepare: Callable[[], Iterator[None]] = lambda: iter(())

    def render_parts(self) -> Iterator[str]:
        for _ in self.prepare():
            yield ""
        yield from super().render_parts()


class RpcTimes:
    """Measures how long requests take (``rocketmq_rpc_latency``); an interceptor.

    The time runs from the call of the handler until the answer is known, which may be later:
    messages that wait for the disk count with their wait, and so do held pulls, which have the
    label ``is_long_polling``. A request without an answer is not measured. This must be the last
    interceptor, next to the handler: a request that another interceptor answers took no time.

    Counterpart of Java's ``RemotingMetricsManager``, with its names in lower case.
    """

    def __init__(self, metrics: BrokerMetrics, clock: TimeSource) -> None:
        self._metric = metrics.rpc_latency
        self._monotonic = clock.monotonic
        self._began: dict[int, float] = {}  # by the identity of a request
        self._held: set[int] = set()  # of these, the held pulls
        self._children: dict[tuple[int, int, bool, bool], Histogram] = {}

    def before(self, _connection: Connection, request: Command) -> None:
        if len(self._began) >= OPEN_COUNT_MAX:  # some never ended
            self._began.clear()
            self._held.clear()
        self._began[id(request)] = self._monotonic()

    def held(self, request: Command) -> None:
        """This request is a pull that waits for messages."""
        self._held.add(id(request))

    def after(
        self, _connection: Connection, request: Command, response: Command | None
    ) -> Command | None:
        now = self._monotonic()
        identity = id(request)
        began = self._began.pop(identity, now)
        was_held = identity in self._held
        if was_held:
            self._held.discard(identity)
        if response is not None:
            key = (request.code, response.code, was_held, request.is_oneway)
            child = self._children.get(key)
            if child is None:
                child = self._children[key] = self._child(*key)
            child.observe((now - began) * 1000)
        return response

    def _child(self, code: int, response_code: int, was_held: bool, is_oneway: bool) -> Histogram:
        return self._metric.labels(
            PROTOCOL_TYPE,
            name_of(code).lower(),
            _response_name(response_code),
            "true" if was_held else "false",
            "oneway" if is_oneway else "success",
        )


class Exporter:
    """The metrics of one broker, and their endpoint if it is switched on."""

    def __init__(self, config: BrokerConfig, network: Network, clock: Clock) -> None:
        self._registry = PreparedRegistry(constant_labels(config))
        self.metrics = BrokerMetrics(self._registry)
        self.is_on = config.metrics_exporter_type is MetricsExporterType.PROM
        self.rpc_times = RpcTimes(self.metrics, clock)
        self._server: MetricsServer | None = None
        if self.is_on:
            self._server = MetricsServer(
                self._registry,
                network=network,
                clock=clock,
                host=config.metrics_prom_exporter_host or config.bind_address,
                port=config.metrics_prom_exporter_port,
            )

    @property
    def address(self) -> tuple[str, int] | None:
        """The address of the endpoint while it is open."""
        return None if self._server is None else self._server.address

    async def start(self) -> None:
        if self._server is not None:
            await self._server.start()

    async def stop(self) -> None:
        if self._server is not None:
            await self._server.stop()

    def dead_letter(self, group: str, topic: str) -> None:
        """Count a message that became a dead letter."""
        labels = (group, topic, _flag(is_system_group(group)))
        self.metrics.send_to_dlq.labels(*labels).value += 1

    def watch(self, graph: BrokerGraph) -> None:
        """Connect the metrics with the parts of the broker, if the endpoint is switched on."""
        if not self.is_on:
            return
        lags = LagReport(
            graph.topics, graph.offsets, graph.consumers, graph.store.reader, graph.clock
        )
        self._registry.prepare = lags.renew
        graph.pull_handlers.on_held = self.rpc_times.held
        graph.loop_watch.on_turn = self.metrics.loop_turn.observe
        graph.stats.on_put = _PutCounts(self.metrics, graph.topics).add
        watch_protection(self.metrics, graph.guard, graph.registration, graph.stats)
        _watch_broker(self.metrics, graph)
        _watch_clients(self.metrics, graph)
        _watch_store(self.metrics, graph)
        _watch_timer(self.metrics, graph)
        _watch_replication(self.metrics, graph)
        _watch_transactions(self.metrics, graph)
        _watch_lags(self.metrics, lags)


class _PutCounts:
    """Counts messages of producers by topic and message type."""

    def __init__(self, metrics: BrokerMetrics, topics: TopicTable) -> None:
        self._metrics = metrics
        self._topics = topics
        self._children: dict[tuple[str, str], PutMetrics] = {}

    def add(self, topic: str, count: int, size: int) -> None:
        if is_retry_topic(topic) or is_dlq_topic(topic):
            return
        config = self._topics.get(topic)
        kind = UNSPECIFIED if config is None else config.attributes.get(MESSAGE_TYPE, UNSPECIFIED)
        child = self._children.get((topic, kind))
        if child is None:
            if len(self._children) >= self._metrics.messages_in.child_count_max:
                self._children.clear()
            is_system = self._topics.is_system(topic)
            child = PutMetrics(self._metrics, topic, kind.lower(), is_system=is_system)
            self._children[topic, kind] = child
        child.add(count, size)


def _watch_broker(metrics: BrokerMetrics, graph: BrokerGraph) -> None:
    def tasks() -> int:
        return sum(len(server.dispatcher.tasks) for server in graph.servers)

    def ports() -> list[tuple[str, int, int]]:
        return [
            (str(server.address[1]), len(server.connections), server.connections_refused)
            for server in graph.servers
        ]

    metrics.watch("rocketmq_broker_permission", lambda: graph.live.current.broker_permission)
    metrics.watch("rocketmq_topic_number", lambda: len(graph.topics))
    metrics.watch("rocketmq_processor_watermark", lambda: [(("admin",), tasks())])
    metrics.watch("skylark_requests_at_work", tasks)
    metrics.watch("skylark_held_pulls", lambda: len(graph.pulls.held))
    metrics.watch("skylark_connections", lambda: [((port,), count) for port, count, _ in ports()])
    metrics.watch(
        "skylark_connections_refused_total",
        lambda: [((port,), count) for port, _, count in ports()],
    )
    metrics.watch(
        "skylark_outstanding_bytes", lambda: sum(server.held_size() for server in graph.servers)
    )
    metrics.watch(
        "skylark_uncopied_messages_total",
        lambda: [((kind,), count) for kind, count in graph.writer.uncopied.counts.items()],
    )
    metrics.watch("rocketmq_messages_out_total", lambda: _got(graph, "count"))
    metrics.watch("rocketmq_throughput_out_total", lambda: _got(graph, "size"))


def _got(graph: BrokerGraph, column: str) -> Labelled:
    return [
        ((topic, group, _flag(graph.topics.is_system(topic))), getattr(meter, column))
        for (topic, group), meter in graph.stats.group_gets.items()
        if not is_retry_topic(topic) and not is_dlq_topic(topic)
    ]


def _watch_clients(metrics: BrokerMetrics, graph: BrokerGraph) -> None:
    def producers() -> Labelled:
        infos = (info for group in graph.producers.table_info().data.values() for info in group)
        counts = Counter((_language(i.language), version_name(i.version).lower()) for i in infos)
        return [((*key, PROTOCOL_TYPE), count) for key, count in counts.items()]

    def consumers() -> Labelled:
        counts = Counter(
            (
                group.name,
                _language(member.channel.language),
                version_name(member.channel.version).lower(),
                _CONSUME_MODES.get(group.consume_type, "push"),
                PROTOCOL_TYPE,
                _flag(is_system_group(group.name)),
            )
            for group in graph.consumers.groups()
            for member in group.members.values()
        )
        return list(counts.items())

    metrics.watch("rocketmq_producer_connections", producers)
    metrics.watch("rocketmq_consumer_connections", consumers)
    metrics.watch(
        "skylark_groups_in_conflict",
        lambda: [((group,), 1) for group in graph.consumers.groups_in_conflict()],
    )
    metrics.watch(
        "skylark_retention_endangered_messages",
        lambda: [((e.group, e.topic), e.message_count) for e in graph.retention_watch.endangered],
    )


def _watch_store(metrics: BrokerMetrics, graph: BrokerGraph) -> None:
    store = graph.store
    files = store.log.files

    def of_disk(value: Callable[[], int]) -> Callable[[], Labelled]:
        return lambda: [(STORAGE_LABELS, value())]

    values = {
        "rocketmq_storage_size": lambda: files.file_size * len(files.files),
        "rocketmq_storage_flush_behind_bytes": lambda: files.max_offset - files.flushed_where,
        "rocketmq_storage_dispatch_behind_bytes": (
            lambda: max(0, files.wrote_end - store.dispatch.dispatched_until)
        ),
    }
    for name, value in values.items():
        metrics.watch(name, of_disk(value))


def _watch_timer(metrics: BrokerMetrics, graph: BrokerGraph) -> None:
    timer = graph.timer
    if timer is None:
        return
    metrics.watch("rocketmq_timer_enqueue_lag", lambda: [(STORAGE_LABELS, timer.enqueue_lag())])
    metrics.watch("rocketmq_timer_dequeue_lag", lambda: [(STORAGE_LABELS, timer.dequeue_lag())])
    metrics.watch(
        "rocketmq_timing_messages",
        lambda: [
            ((*STORAGE_LABELS, topic), count) for topic, count in timer.timing_counts().items()
        ],
    )


def _watch_replication(metrics: BrokerMetrics, graph: BrokerGraph) -> None:
    replication = graph.replication
    if graph.slave is not None:
        metrics.watch("skylark_ha_following", lambda: replication.status.is_following)
        metrics.watch("skylark_ha_diverged", lambda: replication.status.divergence is not None)
        return
    metrics.watch("skylark_ha_slaves", lambda: replication.status.slave_count)
    metrics.watch("skylark_ha_slaves_in_sync", lambda: replication.status.in_sync_count)
    metrics.watch("skylark_ha_behind_bytes", lambda: replication.status.behind_bytes)
    metrics.watch("skylark_ha_waiting_puts", lambda: replication.status.waiting_count)
    metrics.watch("skylark_ha_timed_out_puts_total", lambda: replication.status.timeout_count)


def _watch_transactions(metrics: BrokerMetrics, graph: BrokerGraph) -> None:
    counts = graph.transactions.counts

    def by_topic(counter: Mapping[str, int]) -> Callable[[], Labelled]:
        return lambda: [((topic,), count) for topic, count in counter.items()]

    metrics.watch("rocketmq_half_messages", by_topic(counts.waiting))
    metrics.watch("rocketmq_commit_messages_total", by_topic(counts.committed))
    metrics.watch("rocketmq_rollback_messages_total", by_topic(counts.rolled_back))
    counts.on_committed = lambda topic, s: metrics.finish_latency.labels(topic).observe(s)


def _watch_lags(metrics: BrokerMetrics, report: LagReport) -> None:
    def column(name: str) -> Callable[[], Labelled]:
        return lambda: [(_lag_labels(lag), getattr(lag, name)) for lag in report.lags]

    metrics.watch("rocketmq_consumer_lag_messages", column("lag_count"))
    metrics.watch("rocketmq_consumer_lag_latency", column("lag_ms"))
    metrics.watch("rocketmq_consumer_inflight_messages", column("inflight_count"))
    metrics.watch("rocketmq_consumer_ready_messages", column("ready_count"))
    metrics.watch("rocketmq_consumer_queueing_latency", column("queueing_ms"))


def _lag_labels(lag: Lag) -> tuple[str, str, str, str]:
    return lag.group, lag.topic, "false", _flag(lag.is_system)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _language(name: str | None) -> str:
    return (name or "other").lower()


def _response_name(code: int) -> str:
    try:
        return ResponseCode(code).name.lower()
    except ValueError:
        return str(code)
