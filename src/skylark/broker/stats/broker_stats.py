"""Broker statistics: puts and gets by topic and group in the last minute, hour and day (315).

Code that handles messages looks up a meter by its key and adds to it. It must not keep the meter,
which may expire::

    meter = stats.topic_puts[topic]        # made on first use
    meter.count += count
    meter.size += size
    meter.times += 1

Two names of Java share one meter where the numbers go up together:

====================  =======================  ================================================
Name                  Key, as in the request   Meter
====================  =======================  ================================================
TOPIC_PUT_NUMS        topic                    ``topic_puts[topic].count``
TOPIC_PUT_SIZE                                 ``.size``
TOPIC_PUT_LATENCY     queue@topic              ``put_latencies[topic, queue].count``, in ms
QUEUE_PUT_NUMS        topic@queue              ``level_puts[topic, queue].count``
QUEUE_PUT_SIZE                                 ``.size``
GROUP_GET_NUMS        topic@group              ``group_gets[topic, group].count``
GROUP_GET_SIZE                                 ``.size``
QUEUE_GET_NUMS        topic@queue@group        ``level_gets[topic, queue, group].count``
QUEUE_GET_SIZE                                 ``.size``
SNDBCK_PUT_NUMS       topic@group              ``send_backs[topic, group].count``
SNDBCK2DLQ_TIMES      null@topic@group@type    ``dead_letters["null", topic, group, type].count``
GROUP_GET_LATENCY     queue@topic@group        ``queue_gets[queue, topic, group].count``, in ms
GROUP_CK_NUMS         topic@group              ``group_check_points[topic, group].count``
GROUP_ACK_NUMS        topic@group              ``group_acks[topic, group].count``
BROKER_PUT_NUMS       cluster                  from ``user_put_count`` and ``system_put_count``;
BROKER_GET_NUMS       cluster                  with ``_WITHOUT_SYSTEM_TOPIC`` from the first alone
BROKER_CK_NUMS        cluster                  from ``check_point_count``
BROKER_ACK_NUMS       cluster                  from ``ack_count``
====================  =======================  ================================================

As in Java, QUEUE_PUT_* counts only what clients have sent, or sent back, to a delay level,
QUEUE_GET_* only what the delay levels have delivered, and nothing adds to DLQ_PUT_NUMS and others:
such a name is answered like a key that does not exist. The queue of a latency is that of the
request, also if the message waits in a delay level.

How many bytes a group is behind on a queue (GROUP_GET_FALL_SIZE) is not a count but the latest
value. It is kept with the latency, to find slow consumers; as in Java, 315 does not return it.

**Windows.** Every 10 s a sample of each meter is added to its minute, every 10 min to its hour,
every hour to its day. The value of a window is the difference between its oldest and its newest
sample: 60 s once there are seven. What happened since the last sample is not included.

**Limits.** Each table has at most ``count_max`` keys. Further keys share one meter that no request
returns; :attr:`MeterTable.overflow_count` counts its uses. A meter that has not changed for
``idle_max_ms`` is dropped: by default 25 h, when all its windows have become zero.

Counterpart of Java's ``StatsItem``, ``StatsItemSet`` and ``BrokerStatsManager``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from skylark.core.errors import BrokerError
from skylark.core.names import SCHEDULE_TOPIC
from skylark.wire.bodies.stats import BrokerStatsData, BrokerStatsItem

logger = logging.getLogger(__name__)

METER_COUNT_MAX: Final = 50_000
IDLE_MAX_MS: Final = 25 * 3_600_000
#: With fewer minutes configured, Java takes 30.
IDLE_MINUTES_MIN: Final = 11

Window = Literal["minute", "hour", "day"]
#: (time between two samples, most samples)
WINDOWS: Final[dict[Window, tuple[int, int]]] = {
    "minute": (10_000, 7),
    "hour": (600_000, 7),
    "day": (3_600_000, 25),
}

Sample: TypeAlias = tuple[int, int, int, int]  # time in ms, count, size, times
Column: TypeAlias = Literal["count", "size"]


class _Statistic(NamedTuple):
    """Where a statistic of 315 is."""

    table: str  # of :class:`BrokerStats`
    column: Column
    #: The parts of its key: t text, q number of a queue.
    kinds: str
    #: Whether the key of the table has the parts in reverse order.
    is_reversed: bool = False


_STATISTICS: Final = {
    "TOPIC_PUT_NUMS": _Statistic("topic_puts", "count", "t"),
    "TOPIC_PUT_SIZE": _Statistic("topic_puts", "size", "t"),
    "TOPIC_PUT_LATENCY": _Statistic("put_latencies", "count", "qt", is_reversed=True),
    "QUEUE_PUT_NUMS": _Statistic("level_puts", "count", "tq"),
    "QUEUE_PUT_SIZE": _Statistic("level_puts", "size", "tq"),
    "GROUP_GET_NUMS": _Statistic("group_gets", "count", "tt"),
    "GROUP_GET_SIZE": _Statistic("group_gets", "size", "tt"),
    "QUEUE_GET_NUMS": _Statistic("level_gets", "count", "tqt"),
    "QUEUE_GET_SIZE": _Statistic("level_gets", "size", "tqt"),
    "SNDBCK_PUT_NUMS": _Statistic("send_backs", "count", "tt"),
    "SNDBCK2DLQ_TIMES": _Statistic("dead_letters", "count", "tttt"),
    "GROUP_GET_LATENCY": _Statistic("queue_gets", "count", "qtt"),
    "GROUP_CK_NUMS": _Statistic("group_check_points", "count", "tt"),
    "GROUP_ACK_NUMS": _Statistic("group_acks", "count", "tt"),
}
#: The tables of :class:`BrokerStats`, each once.
_TABLES: Final = tuple(dict.fromkeys(statistic.table for statistic in _STATISTICS.values()))
_BROKER_NAMES: Final = (
    "BROKER_PUT_NUMS",
    "BROKER_GET_NUMS",
    "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC",
    "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC",
    "BROKER_CK_NUMS",
    "BROKER_ACK_NUMS",
)


class Meter:
    """Counters that only grow, and their samples."""

    __slots__ = ("count", "day", "hour", "idle_ms", "minute", "size", "times")

    def __init__(self) -> None:
        self.count = 0
        self.size = 0
        self.times = 0
        self.minute: list[Sample] = []
        self.hour: list[Sample] = []
        self.day: list[Sample] = []
        self.idle_ms = 0

    def sample(self, window: Window, now_ms: int) -> None:
        """Add a sample of the counters; call it at the interval of the window."""
        samples: list[Sample] = getattr(self, window)
        interval_ms, count_max = WINDOWS[window]
        if not samples:
            samples.append((now_ms - interval_ms, 0, 0, 0))
        if window == "hour":
            still = self.times == samples[-1][3] and self.count == samples[-1][1]
            self.idle_ms = self.idle_ms + interval_ms if still else 0
        samples.append((now_ms, self.count, self.size, self.times))
        if len(samples) > count_max:
            del samples[0]

    def item(self, window: Window, column: Column) -> BrokerStatsItem:
        """The sum over a window, per second, and per time that something was added."""
        samples: list[Sample] = getattr(self, window)
        if not samples:
            return BrokerStatsItem()
        index = 1 if column == "count" else 2
        first, last = samples[0], samples[-1]
        total, times = last[index] - first[index], last[3] - first[3]
        span_ms = max(1, last[0] - first[0])
        return BrokerStatsItem(
            sum=total, tps=total * 1000 / span_ms, avgpt=total / times if times > 0 else 0.0
        )

    def data(self, column: Column) -> BrokerStatsData:
        return BrokerStatsData(
            stats_minute=self.item("minute", column),
            stats_hour=self.item("hour", column),
            stats_day=self.item("day", column),
        )


class QueueMeter(Meter):
    """The meter of a group on a queue: latency of reads, and how far the last one was behind."""

    __slots__ = ("behind_size",)

    def __init__(self) -> None:
        super().__init__()
        self.behind_size = 0  # bytes between what was read and the end of the log


Key = TypeVar("Key")
MeterT = TypeVar("MeterT", bound=Meter)


class MeterTable(dict[Key, MeterT], Generic[Key, MeterT]):
    """Meters by key, created on first use. A dict, so that a look-up costs nothing more."""

    def __init__(self, name: str, new_meter: Callable[[], MeterT], *, count_max: int) -> None:
        super().__init__()
        self.name = name
        self.overflow_count = 0
        self._new_meter = new_meter
        self._count_max = count_max
        self._overflow = new_meter()

    def __missing__(self, key: Key) -> MeterT:
        if len(self) >= self._count_max:
            if not self.overflow_count:
                logger.warning(
                    "%s: further keys get no statistics, the limit is %d",
                    self.name,
                    self._count_max,
                )
            self.overflow_count += 1
            return self._overflow
        meter = self[key] = self._new_meter()
        return meter

    def drop(self, matches: Callable[[Key], bool]) -> None:
        for key in list(filter(matches, self)):
            del self[key]

    def expire(self, idle_max_ms: int) -> int:
        """Drop meters that have not changed for so long; returns how many."""
        idle = [key for key, meter in self.items() if meter.idle_ms >= idle_max_ms]
        for key in idle:
            del self[key]
        return len(idle)


class BrokerStats:
    """All meters of one broker."""

    def __init__(
        self,
        cluster: str,
        *,
        count_max: int = METER_COUNT_MAX,
        idle_max_ms: Callable[[], int] = lambda: IDLE_MAX_MS,
    ) -> None:
        self._cluster = cluster
        self.idle_max_ms = idle_max_ms

        def table(name: str) -> MeterTable[Any, Meter]:
            return MeterTable(name, Meter, count_max=count_max)

        self.topic_puts: MeterTable[str, Meter] = table("puts by topic")
        self.put_latencies: MeterTable[tuple[str, int], Meter] = table("put latencies by queue")
        self.level_puts: MeterTable[tuple[str, int], Meter] = table("puts by delay level")
        self.group_gets: MeterTable[tuple[str, str], Meter] = table("gets by topic and group")
        self.level_gets: MeterTable[tuple[str, int, str], Meter] = table("gets by delay level")
        self.send_backs: MeterTable[tuple[str, str], Meter] = table("send-backs by topic and group")
        self.dead_letters: MeterTable[tuple[str, ...], Meter] = table("dead letters")
        self.group_check_points: MeterTable[tuple[str, str], Meter] = table("check-points by group")
        self.group_acks: MeterTable[tuple[str, str], Meter] = table("acks by topic and group")
        self.queue_gets: MeterTable[tuple[int, str, str], QueueMeter] = MeterTable(
            "gets by queue, topic and group", QueueMeter, count_max=count_max
        )
        self.user_put_count = self.system_put_count = 0
        self.user_get_count = self.system_get_count = 0
        self.check_point_count = self.ack_count = 0
        self._broker_meters = {name: Meter() for name in _BROKER_NAMES}
        #: Called for every put with topic, messages and bytes.
        self.on_put: Callable[[str, int, int], None] | None = None

    # --- counting ---

    def put(self, topic: str, count: int, size: int, *, is_system: bool = False) -> None:
        """Count a request that stored ``count`` messages, ``size`` bytes in the log."""
        meter = self.topic_puts[topic]
        meter.count += count
        meter.size += size
        meter.times += 1
        if is_system:
            self.system_put_count += count
        else:
            self.user_put_count += count
        if self.on_put is not None:
            self.on_put(topic, count, size)

    def got(
        self, topic: str, group: str, count: int, size: int, *, is_system: bool = False
    ) -> None:
        """Count a read that found messages."""
        meter = self.group_gets[topic, group]
        meter.count += count
        meter.size += size
        meter.times += 1
        if is_system:
            self.system_get_count += count
        else:
            self.user_get_count += count

    def sent(self, topic: str, queue_id: int, ms: int) -> None:
        """Count a send to a queue, which took ``ms``."""
        meter = self.put_latencies[topic, queue_id]
        meter.count += ms
        meter.times += 1

    def delayed(self, queue_id: int, count: int, size: int) -> None:
        """Count messages that a client has sent, or sent back, to the queue of a delay level."""
        meter = self.level_puts[SCHEDULE_TOPIC, queue_id]
        meter.count += count
        meter.size += size
        meter.times += 1

    def kept_check_point(self, topic: str, group: str) -> None:
        """Count a check-point of popped messages."""
        meter = self.group_check_points[topic, group]
        meter.count += 1
        meter.times += 1
        self.check_point_count += 1

    def acked(self, topic: str, group: str, count: int) -> None:
        """Count an ack of ``count`` popped messages."""
        meter = self.group_acks[topic, group]
        meter.count += count
        meter.times += 1
        self.ack_count += count

    def topic_deleted(self, topic: str) -> None:
        self.topic_puts.pop(topic, None)
        self.queue_gets.drop(lambda key: key[1] == topic)
        tables: list[MeterTable[Any, Meter]] = [self.put_latencies, *self._of_groups]
        for table in tables:
            table.drop(lambda key: key[0] == topic)

    def group_deleted(self, group: str) -> None:
        self.queue_gets.drop(lambda key: key[2] == group)
        for table in self._of_groups:
            table.drop(lambda key: key[1] == group)

    @property
    def _of_groups(self) -> tuple[MeterTable[tuple[str, str], Meter], ...]:
        """The tables by topic and group."""
        return self.group_gets, self.send_backs, self.group_check_points, self.group_acks

    # --- sampling ---

    @property
    def tables(self) -> tuple[MeterTable[Any, Any], ...]:
        return tuple(getattr(self, name) for name in _TABLES)

    def meters(self) -> Iterator[Meter]:
        """Every meter to sample."""
        yield from self._add_up().values()
        for table in self.tables:
            yield from table.values()

    def sample(self, window: Window, now_ms: int, meters: Iterable[Meter] | None = None) -> None:
        """Sample all meters, or the given ones."""
        for meter in self.meters() if meters is None else meters:
            meter.sample(window, now_ms)

    def expire(self) -> None:
        """Drop meters unchanged for ``idle_max_ms``; call it after each hourly sample."""
        idle_max_ms = self.idle_max_ms()
        count = sum(table.expire(idle_max_ms) for table in self.tables)
        if count:
            logger.info("dropped %d statistics that have not changed for long", count)

    # --- reading ---

    def view(self, name: str, key: str) -> BrokerStatsData:
        """VIEW_BROKER_STATS_DATA (315); raises BrokerError if there is no such meter."""
        meter = self._find(name, key)
        if meter is None:
            raise BrokerError(f"The stats <{name}> <{key}> not exist")
        return meter.data(_STATISTICS[name].column if name in _STATISTICS else "count")

    def put_tps(self, topic: str) -> float:
        """Messages put per second in the last minute (202)."""
        meter = self.topic_puts.get(topic)
        return 0.0 if meter is None else meter.item("minute", "count").tps

    def get_tps(self, topic: str, group: str) -> float:
        """Messages got per second in the last minute (208)."""
        meter = self.group_gets.get((topic, group))
        return 0.0 if meter is None else meter.item("minute", "count").tps

    def _add_up(self) -> dict[str, Meter]:
        """The meters of the whole broker, updated from the counters that hot paths add to."""
        counts = (
            self.user_put_count + self.system_put_count,
            self.user_get_count + self.system_get_count,
            self.user_put_count,
            self.user_get_count,
            self.check_point_count,
            self.ack_count,
        )
        for meter, count in zip(self._broker_meters.values(), counts, strict=True):
            meter.count = count
        return self._broker_meters

    def _find(self, name: str, key: str) -> Meter | None:
        if name in _BROKER_NAMES:
            broker = self._add_up()[name]
            return broker if key == self._cluster and broker.count else None
        statistic = _STATISTICS.get(name)
        parts = None if statistic is None else _parse_key(key, statistic.kinds)
        if statistic is None or parts is None:
            return None
        if statistic.is_reversed:
            parts = parts[::-1]
        meter: Meter | None = getattr(self, statistic.table).get(
            parts if len(parts) > 1 else parts[0]
        )
        return meter


def _parse_key(key: str, kinds: str) -> tuple[str | int, ...] | None:
    """The parts of a key, joined by ``@``; None if they are not of these kinds."""
    texts = key.split("@")
    if len(texts) != len(kinds):
        return None
    parts: list[str | int] = []
    for text, kind in zip(texts, kinds, strict=True):
        if kind == "q" and not (text.isdecimal() and len(text) < 10):
            return None
        parts.append(int(text) if kind == "q" else text)
    return tuple(parts)


def idle_max_ms(minutes: int) -> int:
    """The setting ``maxStatsIdleTimeInMinutes``: negative means Java's never, here 25 h."""
    if minutes < 0:
        return IDLE_MAX_MS
    return (30 if minutes < IDLE_MINUTES_MIN else minutes) * 60_000
