"""Metrics of clients: durations of sends, pulls and handlers, cached messages, and lag.

All clients count into one :class:`~skylark.core.metrics.Registry`: that of the process
(:func:`default_registry`), or the one in ``ClientOptions(metrics=...)``; ``metrics=False`` disables
them. The registry renders the text that Prometheus reads; ``docs/observability.md`` lists the
names.

Hot paths use a *meter*: an object with the resolved children of one group and topic, so that a send
or a handler call costs a few additions. The levels of consumers are read when the registry is
rendered: each consumer is a :class:`LevelSource`, held by a weak reference, so that one that was
never stopped can be collected.

**Threads.** The meters of a topic belong to the loop of their client. Two clients of one group on
two loops share children, and an addition may get lost. Connections and heartbeats, which are rare
and come from several loops, are counted under a lock. A forked child has a new registry, which
starts at zero.
"""

from __future__ import annotations

import os
import threading
import weakref
from bisect import bisect_left
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from skylark.client.core.client_message import SendStatus
from skylark.core.errors import TooManyRequestsError
from skylark.core.metrics import Counter, Gauge, Histogram, Registry

if TYPE_CHECKING:  # it needs asyncio, which applications that only name us do not load
    from skylark.client.core.broker_connections import ChannelWatcher

#: Of sends and handlers, in milliseconds.
LATENCY_BOUNDS_MS: Final = (0.25, 0.5, 1, 2, 5, 10, 20, 50, 100, 250, 500, 1_000, 3_000, 10_000)
#: A pull may wait at the broker for 15 or 20 seconds.
PULL_BOUNDS_MS: Final = (0.5, 1, 2, 5, 10, 50, 100, 500, 1_000, 5_000, 15_000, 20_000, 30_000)
_PREFIX: Final = "skylark_client_{}"
BATCH_BOUNDS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1_024)

_OUTCOMES: Final = {status: status.value.lower() for status in SendStatus} | {
    SendStatus.SEND_OK: "ok"
}


class QueueLevel(msgspec.Struct, frozen=True):
    """The cached messages of one queue, and its lag at the broker."""

    topic: str  #: as the application knows it
    broker_name: str
    queue_id: int
    count: int  #: cached messages that are not settled
    size: int  #: their bytes
    behind: int  #: messages at the broker that were not pulled, as of the last pull


class LevelSource(Protocol):
    """A consumer whose levels are read, from any thread."""

    def levels(self) -> Iterable[QueueLevel]:
        """The levels of its assigned queues."""


# ---- meters --------------------------------------------------------------------------------------


class SendMeter:
    """The sends of one group to one topic. This one counts nothing; see :class:`_SendMeter`."""

    __slots__ = ()

    def begin(self, count: int) -> None:
        """A request with so many messages is sent."""

    def retry(self) -> None:
        """An attempt has failed, another follows."""

    def done(self, status: SendStatus, seconds: float, count: int) -> None:
        """The messages are stored."""

    def failed(self, error: BaseException, seconds: float, count: int) -> None:
        """The send failed; the messages may be stored anyway."""


class _SendMeter(SendMeter):
    __slots__ = ("_all", "_batches", "_in_flight", "_labels", "_of_outcome", "_retries")

    def __init__(self, metrics: ClientMetrics, group: str, topic: str) -> None:
        self._all = metrics
        self._labels = (group, topic)
        self._batches = metrics.batch_messages.labels(group, topic)
        self._in_flight: Gauge = metrics.sends_in_flight.labels(group, topic)
        self._retries: Counter = metrics.send_retries.labels(group, topic)
        self._of_outcome: dict[object, tuple[Histogram, Counter]] = {}

    def begin(self, count: int) -> None:
        self._in_flight.value += count
        batches = self._batches
        batches.counts[bisect_left(BATCH_BOUNDS, count)] += 1
        batches.sum += count

    def retry(self) -> None:
        self._retries.value += 1

    def done(self, status: SendStatus, seconds: float, count: int) -> None:
        found = self._of_outcome.get(status)
        if found is None:
            found = self._of_outcome[status] = self._resolve(_OUTCOMES[status])
        latency, messages = found
        took_ms = seconds * 1000
        latency.counts[bisect_left(LATENCY_BOUNDS_MS, took_ms)] += 1
        latency.sum += took_ms
        messages.value += count
        self._in_flight.value -= count

    def failed(self, error: BaseException, seconds: float, count: int) -> None:
        latency, messages = self._resolve(_outcome_of(error))
        latency.observe(seconds * 1000)
        messages.value += count
        self._in_flight.value -= count

    def _resolve(self, outcome: str) -> tuple[Histogram, Counter]:
        group, topic = self._labels
        return (
            self._all.send_latency.labels(group, topic, outcome),
            self._all.messages_sent.labels(group, topic, outcome),
        )


def _outcome_of(error: BaseException) -> str:
    if isinstance(error, Exception):
        is_late = isinstance(error, (TimeoutError, TooManyRequestsError))
        return "timeout" if is_late else "error"
    return "cancelled"


class ConsumeMeter:
    """The pulls and handlers of one group and topic. This one counts nothing."""

    __slots__ = ()

    def pulled(self, status: str, took_ms: float, count: int) -> None:
        """A pull has ended, with ``count`` messages that match."""

    def consumed(self, accepted: int, failed: int, took_ms: float) -> None:
        """A handler has ended."""

    def consumed_at_once(self, calls: int, accepted: int) -> None:
        """Handlers accepted messages in calls of less than a millisecond."""


class _ConsumeMeter(ConsumeMeter):
    __slots__ = (
        "_accepted",
        "_all",
        "_failed",
        "_labels",
        "_latency",
        "_latency_failed",
        "_received",
    )

    def __init__(self, metrics: ClientMetrics, group: str, topic: str) -> None:
        latency, consumed = metrics.consume_latency, metrics.messages_consumed
        self._all = metrics
        self._labels = (group, topic)
        self._received: Counter = metrics.messages_received.labels(group, topic)
        self._latency: Histogram = latency.labels(group, topic, "ok")
        self._latency_failed: Histogram = latency.labels(group, topic, "failed")
        self._accepted: Counter = consumed.labels(group, topic, "ok")
        self._failed: Counter = consumed.labels(group, topic, "failed")

    def pulled(self, status: str, took_ms: float, count: int) -> None:
        self._all.pull_latency.labels(*self._labels, status).observe(took_ms)
        self._received.value += count

    def consumed(self, accepted: int, failed: int, took_ms: float) -> None:
        self._accepted.value += accepted
        latency = self._latency
        if failed:
            self._failed.value += failed
            latency = self._latency_failed
        latency.counts[bisect_left(LATENCY_BOUNDS_MS, took_ms)] += 1
        latency.sum += took_ms

    def consumed_at_once(self, calls: int, accepted: int) -> None:
        self._accepted.value += accepted
        self._latency.counts[0] += calls


NO_SEND_METER: Final = SendMeter()
NO_CONSUME_METER: Final = ConsumeMeter()


# ---- the table -----------------------------------------------------------------------------------


class ClientMetrics:
    """The metrics of all clients that share a registry."""

    def __init__(self, registry: Registry) -> None:
        self._lock = threading.Lock()
        self._sources: tuple[tuple[str, weakref.ref[LevelSource]], ...] = ()
        topic = ("group", "topic")
        name = _PREFIX.format
        self.send_latency = registry.histogram(
            name("send_latency_ms"),
            "Time from a send, or the first message of a batch, to its outcome.",
            (*topic, "outcome"),
            bounds=LATENCY_BOUNDS_MS,
        )
        self.messages_sent = registry.counter(
            name("messages_sent_total"), "Messages that have their outcome.", (*topic, "outcome")
        )
        self.sends_in_flight = registry.gauge(
            name("sends_in_flight"), "Messages that have no outcome yet.", topic
        )
        self.send_retries = registry.counter(
            name("send_retries_total"), "Attempts that followed a failed one.", topic
        )
        self.batch_messages = registry.histogram(
            name("batch_messages"), "Messages in one request.", topic, bounds=BATCH_BOUNDS
        )
        self.pull_latency = registry.histogram(
            name("pull_latency_ms"),
            "Time to the answer of a pull, the wait of the broker included.",
            (*topic, "status"),
            bounds=PULL_BOUNDS_MS,
        )
        self.messages_received = registry.counter(
            name("messages_received_total"), "Messages pulled, without those of other tags.", topic
        )
        self.consume_latency = registry.histogram(
            name("consume_latency_ms"),
            "Time that a handler took.",
            (*topic, "outcome"),
            bounds=LATENCY_BOUNDS_MS,
        )
        self.messages_consumed = registry.counter(
            name("messages_consumed_total"),
            "Messages that handlers accepted or not; each try counts.",
            (*topic, "outcome"),
        )
        self._opened = registry.counter(
            name("connections_opened_total"), "Connections made.", ("address",)
        )
        self._lost = registry.counter(
            name("connections_lost_total"), "Connections that ended, however.", ("address",)
        )
        self._heartbeats = registry.counter(
            name("heartbeats_total"), "Heartbeats to brokers.", ("address", "outcome")
        )
        self._traces = registry.counter(
            name("traces_total"),
            "Trace messages sent or failed, and contexts dropped.",
            ("outcome",),
        )
        self._add_levels(registry)

    def _add_levels(self, registry: Registry) -> None:
        """Add gauges that are read from the consumers when the registry is rendered."""
        queue = ("group", "topic", "broker", "queue")
        name = _PREFIX.format
        registry.gauge(
            name("cached_messages"),
            "Messages that were pulled and are not done with.",
            queue,
            callback=lambda: self._samples(lambda level: level.count),
        )
        registry.gauge(
            name("cached_bytes"),
            "Bytes of messages that were pulled and are not done with.",
            queue,
            callback=lambda: self._samples(lambda level: level.size),
        )
        registry.gauge(
            name("consume_lag_messages"),
            "Messages not done with, here and at the broker as of the last pull.",
            queue,
            callback=lambda: self._samples(lambda level: level.count + level.behind),
        )

    def send_meter(self, group: str, topic: str) -> SendMeter:
        """For the sends of a group to a topic, both as the application knows them."""
        return _SendMeter(self, group, topic)

    def consume_meter(self, group: str, topic: str) -> ConsumeMeter:
        """For a topic that a group consumes."""
        return _ConsumeMeter(self, group, topic)

    # ---- consumers -------------------------------------------------------------------------------

    def add_source(self, group: str, source: LevelSource) -> None:
        """Add a running consumer."""
        with self._lock:
            alive = [each for each in self._sources if each[1]() is not None]
            self._sources = (*alive, (group, weakref.ref(source)))

    def remove_source(self, source: LevelSource) -> None:
        """Remove a stopped consumer."""
        with self._lock:
            self._sources = tuple(each for each in self._sources if each[1]() is not source)

    def _samples(self, value_of: _ValueOf) -> Iterable[tuple[tuple[str, ...], float]]:
        """One sample per queue; the sum if two consumers have it (broadcasting)."""
        found: dict[tuple[str, ...], float] = {}
        for group, reference in self._sources:
            source = reference()
            for level in source.levels() if source is not None else ():
                labels = (group, level.topic, level.broker_name, str(level.queue_id))
                found[labels] = found.get(labels, 0) + value_of(level)
        return sorted(found.items())

    # ---- rare events, from any thread ------------------------------------------------------------

    def heartbeat(self, address: str, *, taken: bool) -> None:
        """Count a heartbeat that a broker accepted or not."""
        with self._lock:
            self._heartbeats.labels(address, "ok" if taken else "failed").value += 1

    def trace(self, outcome: str) -> None:
        """Count a trace: ``sent``, ``failed`` or ``dropped``."""
        with self._lock:
            self._traces.labels(outcome).value += 1

    def watch(self, watcher: ChannelWatcher | None) -> ChannelWatcher:
        """A watcher that counts connections and calls ``watcher``."""
        return _Connections(self, watcher)

    def connection(self, address: str, *, opened: bool) -> None:
        """Count a connection that was made or has ended."""
        with self._lock:
            (self._opened if opened else self._lost).labels(address).value += 1


class _ValueOf(Protocol):
    def __call__(self, level: QueueLevel, /) -> float: ...


class _Connections:
    """A ChannelWatcher that counts."""

    def __init__(self, metrics: ClientMetrics, then: ChannelWatcher | None) -> None:
        self._metrics = metrics
        self._then = then

    def channel_opened(self, address: str) -> None:
        self._metrics.connection(address, opened=True)
        if self._then is not None:
            self._then.channel_opened(address)

    def channel_lost(self, address: str) -> None:
        self._metrics.connection(address, opened=False)
        if self._then is not None:
            self._then.channel_lost(address)


# ---- registries ----------------------------------------------------------------------------------

_lock = threading.Lock()
# By id of the registry; its callbacks refer to the table, so both live equally long.
_tables: weakref.WeakValueDictionary[int, ClientMetrics] = weakref.WeakValueDictionary()
_default: Registry | None = None


def default_registry() -> Registry:
    """The registry of this process, the default of all clients."""
    global _default
    with _lock:
        if _default is None:
            _default = Registry()
        return _default


def client_metrics(metrics: Registry | bool) -> ClientMetrics | None:
    """The metrics in a registry, in that of the process (True), or none (False)."""
    if metrics is False:
        return None
    registry = default_registry() if metrics is True else metrics
    with _lock:
        table = _tables.get(id(registry))
        if table is None:
            table = _tables[id(registry)] = ClientMetrics(registry)
        return table


def _forget_parent() -> None:
    global _lock, _tables, _default
    _lock = threading.Lock()
    _tables = weakref.WeakValueDictionary()
    _default = None


if hasattr(os, "register_at_fork"):  # Windows knows no fork
    os.register_at_fork(after_in_child=_forget_parent)
