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
from typing import Final

from skylark.broker.config import BrokerConfig, MetricsExporterType
from skylark.broker.groups.consumer_table import ConsumerTable
from skylark.broker.groups.producer_table import ProducerTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.stats.broker_stats import BrokerStats
from skylark.broker.stats.consumer_lag import Lag, LagReport
from skylark.broker.stats.metrics import (
    PROTOCOL_TYPE,
    STORAGE_LABELS,
    BrokerMetrics,
    PutMetrics,
    constant_labels,
)
from skylark.broker.topics.attributes import MESSAGE_TYPE
from skylark.broker.topics.topic_table import TopicTable
from skylark.core.clock import Clock, TimeSource
from skylark.core.metrics import Histogram, Registry
from skylark.core.names import is_dlq_topic, is_retry_topic, is_system_group
from skylark.net.connection import Connection
from skylark.net.dispatch import Interceptor
from skylark.net.metrics_http import MetricsServer
from skylark.net.server import RemotingServer
from skylark.net.transport import Network
from skylark.replication.replication_service import Replication
from skylark.store.message_store import MessageStore
from skylark.wire.bodies.heartbeat import ConsumeType
from skylark.wire.catalogue import name_of
from skylark.wire.codes import ResponseCode, version_name
from skylark.wire.command import Command

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
        self._put_counts: _PutCounts | None = None
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

    def topic_deleted(self, topic: str) -> None:
        """Give back the series of a topic; another topic may get them."""
        self.metrics.forget("topic", topic)
        if self._put_counts is not None:
            self._put_counts.clear()

    def group_deleted(self, group: str) -> None:
        """Give back the series of a group."""
        self.metrics.forget("consumer_group", group)

    @property
    def interceptors(self) -> tuple[Interceptor, ...]:
        """What measures requests; nothing if nothing is scraped."""
        return (self.rpc_times,) if self.is_on else ()

    # ---- what is read when the metrics are scraped -----------------------------------------------

    def watch_topics(self, live: LiveSettings, topics: TopicTable, stats: BrokerStats) -> None:
        """Show the topics, and what is sent to and read from them."""

        def got(column: str) -> Labelled:
            return [
                ((topic, group, _flag(topics.is_system(topic))), getattr(meter, column))
                for (topic, group), meter in stats.group_gets.items()
                if not is_retry_topic(topic) and not is_dlq_topic(topic)
            ]

        watch = self.metrics.watch
        watch("rocketmq_broker_permission", lambda: live.current.broker_permission)
        watch("rocketmq_topic_number", lambda: len(topics))
        watch("rocketmq_messages_out_total", lambda: got("count"))
        watch("rocketmq_throughput_out_total", lambda: got("size"))
        watch(
            "skylark_stats_overflows_total",
            lambda: [((table.name,), table.overflow_count) for table in stats.tables],
        )
        if self.is_on:
            self._put_counts = _PutCounts(self.metrics, topics)
            stats.on_put = self._put_counts.add

    def watch_servers(self, servers: Mapping[int, RemotingServer]) -> None:
        """Show the connections and requests of servers, by port."""

        def tasks() -> int:
            return sum(len(server.dispatcher.tasks) for server in servers.values())

        def by_port(value: Callable[[RemotingServer], int]) -> Callable[[], Labelled]:
            return lambda: [((str(port),), value(server)) for port, server in servers.items()]

        watch = self.metrics.watch
        watch("rocketmq_processor_watermark", lambda: [(("admin",), tasks())])
        watch("skylark_requests_at_work", tasks)
        watch("skylark_connections", by_port(lambda server: len(server.connections)))
        watch(
            "skylark_connections_refused_total", by_port(lambda server: server.connections_refused)
        )

    def watch_clients(self, consumers: ConsumerTable, producers: ProducerTable) -> None:
        """Show the clients that are connected."""

        def producer_counts() -> Labelled:
            infos = (info for group in producers.table_info().data.values() for info in group)
            counts = Counter(
                (_language(info.language), version_name(info.version).lower()) for info in infos
            )
            return [((*key, PROTOCOL_TYPE), count) for key, count in counts.items()]

        def consumer_counts() -> Labelled:
            counts = Counter(
                (
                    group.name,
                    _language(member.channel.language),
                    version_name(member.channel.version).lower(),
                    _CONSUME_MODES.get(group.consume_type, "push"),
                    PROTOCOL_TYPE,
                    _flag(is_system_group(group.name)),
                )
                for group in consumers.groups()
                for member in group.members.values()
            )
            return list(counts.items())

        self.metrics.watch("rocketmq_producer_connections", producer_counts)
        self.metrics.watch("rocketmq_consumer_connections", consumer_counts)
        self.metrics.watch(
            "skylark_groups_in_conflict",
            lambda: [((group,), 1) for group in consumers.groups_in_conflict()],
        )

    def watch_store(self, store: MessageStore) -> None:
        """Show the size of the log, and how far disk and queues are behind it."""
        files = store.log.files
        values = {
            "rocketmq_storage_size": lambda: files.file_size * len(files.files),
            "rocketmq_storage_flush_behind_bytes": lambda: files.max_offset - files.flushed_where,
            "rocketmq_storage_dispatch_behind_bytes": (
                lambda: max(0, files.wrote_end - store.dispatch.dispatched_until)
            ),
        }
        for name, value in values.items():
            self.metrics.watch(name, _of_disk(value))

    def watch_lags(self, report: LagReport) -> None:
        """Show how far consumer groups are behind."""

        def column(name: str) -> Callable[[], Labelled]:
            return lambda: [(_lag_labels(lag), getattr(lag, name)) for lag in report.lags]

        self._registry.prepare = report.renew
        self.metrics.watch("rocketmq_consumer_lag_messages", column("lag_count"))
        self.metrics.watch("rocketmq_consumer_lag_latency", column("lag_ms"))
        self.metrics.watch("rocketmq_consumer_inflight_messages", column("inflight_count"))
        self.metrics.watch("rocketmq_consumer_ready_messages", column("ready_count"))
        self.metrics.watch("rocketmq_consumer_queueing_latency", column("queueing_ms"))

    def watch_replication(self, replication: Replication, *, is_slave: bool) -> None:
        """Show how replication stands."""
        watch = self.metrics.watch
        if is_slave:
            watch("skylark_ha_following", lambda: replication.status.is_following)
            watch("skylark_ha_diverged", lambda: replication.status.divergence is not None)
            return
        watch("skylark_ha_slaves", lambda: replication.status.slave_count)
        watch("skylark_ha_slaves_in_sync", lambda: replication.status.in_sync_count)
        watch("skylark_ha_behind_bytes", lambda: replication.status.behind_bytes)
        watch("skylark_ha_waiting_puts", lambda: replication.status.waiting_count)
        watch("skylark_ha_timed_out_puts_total", lambda: replication.status.timeout_count)

    def watch_timer(
        self,
        enqueue_lag: Callable[[], int],
        dequeue_lag: Callable[[], int],
        counts: Callable[[], Mapping[str, int]],
    ) -> None:
        """Show the timed messages that wait, and how far the timer is behind."""
        self.metrics.watch("rocketmq_timer_enqueue_lag", _of_disk(enqueue_lag))
        self.metrics.watch("rocketmq_timer_dequeue_lag", _of_disk(dequeue_lag))
        self.metrics.watch(
            "rocketmq_timing_messages",
            lambda: [((*STORAGE_LABELS, topic), count) for topic, count in counts().items()],
        )


class _PutCounts:
    """Counts messages of producers by topic and message type."""

    def __init__(self, metrics: BrokerMetrics, topics: TopicTable) -> None:
        self._metrics = metrics
        self._topics = topics
        self._children: dict[tuple[str, str], PutMetrics] = {}

    def clear(self) -> None:
        """Look the metrics of each topic up again: series were given back."""
        self._children.clear()

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


def by_topic(counter: Mapping[str, int]) -> Callable[[], Labelled]:
    """Reads a metric that has one value for each topic."""
    return lambda: [((topic,), count) for topic, count in counter.items()]


def _of_disk(value: Callable[[], int]) -> Callable[[], Labelled]:
    return lambda: [(STORAGE_LABELS, value())]


def _lag_labels(lag: Lag) -> tuple[str, str, str, str]:
    return lag.group, lag.topic, _flag(lag.is_retry), _flag(lag.is_system)


def _flag(value: bool) -> str:
    return "true" if value else "false"


def _language(name: str | None) -> str:
    return (name or "other").lower()


def _response_name(code: int) -> str:
    try:
        return ResponseCode(code).name.lower()
    except ValueError:
        return str(code)
