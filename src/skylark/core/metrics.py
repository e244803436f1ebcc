"""Metrics: counters, gauges and histograms, and their Prometheus text.

A :class:`Registry` is one table of metric names; each row (:class:`Metric`) has a type, a help
text and label names, and holds one child per combination of label values. Code on the data path
resolves its child once and keeps it::

    messages_in = registry.counter("rocketmq_messages_in_total", "Messages stored.", ["topic"])
    topic_in = messages_in.labels("TopicTest")      # once per topic
    topic_in.value += 1                             # per message: one attribute

Rules:

- A name, and every name that a histogram derives from its own, is registered once.
- Each metric has a limit on its children. Beyond it ``labels`` answers with one shared child whose
  label values are all ``__overflow__``, and ``skylark_metric_label_overflows_total`` counts the
  refusals: a client that invents topics cannot fill the memory of a broker.
- Values that live elsewhere are read by a callback at scrape time; one that raises is logged and
  leaves its metric out of that scrape.
- A child belongs to one thread (``+=`` is not atomic). Another thread counts by itself and hands
  its number over by callback.

The text is format 0.0.4 of Prometheus. Rendering is plain string work, without asyncio.
"""

from __future__ import annotations

import logging
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, Literal, TypeVar

from skylark.core.errors import SkylarkError

logger = logging.getLogger(__name__)

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
CHILD_COUNT_MAX: Final = 10_000
OVERFLOW: Final = "__overflow__"
OVERFLOW_METRIC: Final = "skylark_metric_label_overflows_total"
LATENCY_BUCKETS_MS: Final = (1, 3, 5, 10, 30, 50, 100, 300, 500, 1_000, 3_000, 5_000, 10_000)

Kind = Literal["counter", "gauge", "histogram"]
LabelValues = tuple[str, ...]
# What a callback gives: a number, or for a metric with labels one number per label values.
Samples = float | Iterable[tuple[Sequence[str], float]]

_METRIC_NAME: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME: Final = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")


class MetricError(SkylarkError):
    """A metric is declared or used wrongly."""


class Counter:
    """A number that only grows; hot paths add to ``value`` directly."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0


class Gauge:
    """A number that goes up and down."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def set(self, value: float) -> None:
        self.value = value


class Histogram:
    """Counts of observations by upper bound, and their sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)  # the last one is +Inf
        self.sum: float = 0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


Child = TypeVar("Child", bound=Counter | Gauge | Histogram)


class Metric(Generic[Child]):
    """One row of the table: a name with all its children."""

    def __init__(
        self,
        kind: Kind,
        name: str,
        help_text: str,
        labels: Sequence[str],
        new_child: Callable[[], Child],
        *,
        child_count_max: int,
        on_overflow: Callable[[str], None],
    ) -> None:
        self.kind = kind
        self.name = name
        self.help_text = help_text
        self.label_names = tuple(labels)
        self.child_count_max = child_count_max
        self._new_child = new_child
        self._on_overflow = on_overflow
        self._children: dict[LabelValues, Child] = {}
        self._callback: Callable[[], Samples] | None = None
        if not labels:
            self._children[()] = new_child()  # a metric without labels is there from the start

    def __len__(self) -> int:
        return len(self._children)

    def labels(self, *values: str) -> Child:
        """The child with these label values, made on first use; keep it where speed matters."""
        child = self._children.get(values)
        if child is not None:
            return child
        self._check_values(values)
        if len(self._children) >= self.child_count_max:
            self._on_overflow(self.name)
            values = (OVERFLOW,) * len(self.label_names)
            return self._children.setdefault(values, self._new_child())
        child = self._children[values] = self._new_child()
        return child

    def remove(self, *values: str) -> None:
        """Forget a child, when its topic or group is deleted; harmless when there is none."""
        self._children.pop(values, None)

    def remove_labelled(self, label: str, value: str) -> None:
        """Forget all children with this value of a label."""
        place = self.label_names.index(label)
        for values in [values for values in self._children if values[place] == value]:
            del self._children[values]

    def set_callback(self, callback: Callable[[], Samples]) -> None:
        """Read the values from ``callback`` at each scrape instead of from children."""
        self._callback = callback

    def render(self, constant: str) -> str:
        """HELP, TYPE and all samples; ``constant`` are rendered labels put on each of them."""
        lines = [
            f"# HELP {self.name} {_escape_help(self.help_text)}\n# TYPE {self.name} {self.kind}\n"
        ]
        if self._callback is not None:
            lines.extend(self._render_callback(constant, self._callback))
            return "".join(lines)
        for values, child in sorted(self._children.items(), key=lambda item: item[0]):
            labels = _join_labels(constant, self.label_names, values)
            if isinstance(child, Histogram):
                lines.extend(self._render_histogram(labels, child))
            else:
                lines.append(_sample(self.name, labels, child.value))
        return "".join(lines)

    def _check_values(self, values: Sequence[str]) -> None:
        if len(values) != len(self.label_names):
            raise MetricError(
                f"{self.name} has {len(self.label_names)} labels, {len(values)} values were given"
            )

    def _render_callback(self, constant: str, callback: Callable[[], Samples]) -> list[str]:
        lines: list[str] = []
        try:
            samples = callback()
            if isinstance(samples, int | float):
                samples = [((), samples)]
            for values, value in samples:
                if len(lines) >= self.child_count_max:
                    self._on_overflow(self.name)
                    break
                self._check_values(values)
                labels = _join_labels(constant, self.label_names, values)
                lines.append(_sample(self.name, labels, value))
        except Exception:  # a broken callback must not take the whole scrape down
            logger.exception("metric %s is left out: its callback failed", self.name)
            return []
        return lines

    def _render_histogram(self, labels: str, child: Histogram) -> Iterator[str]:
        comma = "," if labels else ""
        total = 0
        for bound, count in zip((*child.bounds, math.inf), child.counts, strict=True):
            total += count
            yield _sample(f"{self.name}_bucket", f'{labels}{comma}le="{_number(bound)}"', total)
        yield _sample(f"{self.name}_sum", labels, child.sum)
        yield _sample(f"{self.name}_count", labels, total)


AnyMetric = Metric[Any]


class Registry:
    """The table of all metrics of one process or one broker.

    ``constant_labels`` (cluster, node_type, node_id) stand before the labels of every sample.
    """

    def __init__(self, constant_labels: Mapping[str, str] | None = None) -> None:
        constant = dict(constant_labels or {})
        _check_labels("constant labels", tuple(constant))
        self._constant_names = frozenset(constant)
        self._constant = _join_labels("", tuple(constant), tuple(constant.values()))
        self._metrics: dict[str, AnyMetric] = {}
        self._taken: set[str] = set()  # names and the names that histograms derive
        self._overflows = self.counter(
            OVERFLOW_METRIC, "Uses of a metric beyond its limit of label values.", ["metric"]
        )

    def counter(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str] = (),
        *,
        callback: Callable[[], Samples] | None = None,
        child_count_max: int = CHILD_COUNT_MAX,
    ) -> Metric[Counter]:
        return self._add("counter", name, help_text, labels, Counter, child_count_max, callback)

    def gauge(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str] = (),
        *,
        callback: Callable[[], Samples] | None = None,
        child_count_max: int = CHILD_COUNT_MAX,
    ) -> Metric[Gauge]:
        return self._add("gauge", name, help_text, labels, Gauge, child_count_max, callback)

    def histogram(
        self,
        name: str,
        help_text: str,
        labels: Sequence[str] = (),
        *,
        bounds: Sequence[float] = LATENCY_BUCKETS_MS,
        child_count_max: int = CHILD_COUNT_MAX,
    ) -> Metric[Histogram]:
        upper = tuple(bounds)
        if not upper or sorted(set(upper)) != list(upper) or not all(map(math.isfinite, upper)):
            raise MetricError(f"{name}: bounds must be finite and grow: {upper}")
        if "le" in labels:
            raise MetricError(f"{name}: the label le belongs to histograms themselves")
        derived = (f"{name}_bucket", f"{name}_sum", f"{name}_count")
        return self._add(
            "histogram",
            name,
            help_text,
            labels,
            lambda: Histogram(upper),
            child_count_max,
            None,
            derived,
        )

    def table(self) -> tuple[AnyMetric, ...]:
        """All metrics by name, for the reference pages."""
        return tuple(metric for _, metric in sorted(self._metrics.items()))

    def render(self) -> str:
        """The whole exposition."""
        return "".join(self.render_parts())

    def render_parts(self) -> Iterator[str]:
        """The exposition metric by metric, for callers that must not hold up others."""
        return (metric.render(self._constant) for metric in self.table())

    def _add(
        self,
        kind: Kind,
        name: str,
        help_text: str,
        labels: Sequence[str],
        new_child: Callable[[], Child],
        child_count_max: int,
        callback: Callable[[], Samples] | None,
        derived: Sequence[str] = (),
    ) -> Metric[Child]:
        """Check and add a metric; ``derived`` are further names that its samples have."""
        if not _METRIC_NAME.fullmatch(name):
            raise MetricError(f"{name!r} is not a name for a metric")
        _check_labels(name, labels)
        if both := self._constant_names.intersection(labels):
            raise MetricError(f"{name}: labels {sorted(both)} are constant labels")
        if taken := self._taken.intersection((name, *derived)):
            raise MetricError(f"{name}: {sorted(taken)} registered before")
        if child_count_max < 1:
            raise MetricError(f"{name}: the limit of children is below 1")
        metric = Metric(
            kind,
            name,
            help_text,
            labels,
            new_child,
            child_count_max=child_count_max,
            on_overflow=self._overflowed,
        )
        if callback is not None:
            metric.set_callback(callback)
        self._metrics[name] = metric
        self._taken.update((name, *derived))
        return metric

    def _overflowed(self, name: str) -> None:
        child = self._overflows.labels(name)
        if child.value == 0:
            logger.warning("metric %s reached its limit of label values; see %s", name, OVERFLOW)
        child.value += 1


def _check_labels(owner: str, label_names: Sequence[str]) -> None:
    for label in label_names:
        if not _LABEL_NAME.fullmatch(label):
            raise MetricError(f"{owner}: {label!r} is not a name for a label")
    if len(set(label_names)) != len(label_names):
        raise MetricError(f"{owner}: a label stands twice in {tuple(label_names)}")


def _sample(name: str, labels: str, value: float) -> str:
    return f"{name}{{{labels}}} {_number(value)}\n" if labels else f"{name} {_number(value)}\n"


def _join_labels(constant: str, names: Sequence[str], values: Sequence[str]) -> str:
    own = ",".join(
        f'{name}="{_escape_label(value)}"' for name, value in zip(names, values, strict=True)
    )
    return f"{constant},{own}" if constant and own else constant or own


def _escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(int(value))  # True counts as 1
    if math.isfinite(value):
        return repr(float(value))  # numpy's numbers print their type
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
