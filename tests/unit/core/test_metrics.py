"""core/metrics.py: values, limits on labels, the table of names, and the exposition text."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

import numpy as np
import pytest

from skylark.core.metrics import OVERFLOW_METRIC, MetricError, Registry


def body(registry: Registry) -> str:
    """The exposition without the registry's own overflow counter."""
    lines = registry.render().splitlines(keepends=True)
    return "".join(line for line in lines if OVERFLOW_METRIC not in line)


def test_counter_and_gauge() -> None:
    registry = Registry()
    total = registry.counter("requests_total", "Requests.").labels()
    total.value += 1
    total.value += 2
    total.value += 0.5
    depth = registry.gauge("depth", "Depth.").labels()
    depth.set(7)
    depth.value -= 2
    depth.value += 1
    assert body(registry) == (
        "# HELP depth Depth.\n# TYPE depth gauge\ndepth 6\n"
        "# HELP requests_total Requests.\n# TYPE requests_total counter\nrequests_total 3.5\n"
    )


def test_labels_give_the_same_child_for_the_same_values() -> None:
    metric = Registry().counter("m_total", "M.", ["topic", "group"])
    child = metric.labels("t", "g")
    assert metric.labels("t", "g") is child
    assert metric.labels("g", "t") is not child
    assert len(metric) == 2
    with pytest.raises(MetricError, match="m_total has 2 labels, 1 values were given"):
        metric.labels("t")
    metric.remove("t", "g")
    metric.remove("t", "g")
    assert metric.labels("t", "g") is not child


def test_children_are_sorted_and_constant_labels_stand_first() -> None:
    registry = Registry({"cluster": "c", "node_id": "broker-a"})
    metric = registry.gauge("lag", "Lag.", ["topic"])
    metric.labels("b").set(2)
    metric.labels("a").set(1)
    registry.gauge("up", "Up.").labels().set(1)
    assert body(registry) == (
        "# HELP lag Lag.\n# TYPE lag gauge\n"
        'lag{cluster="c",node_id="broker-a",topic="a"} 1\n'
        'lag{cluster="c",node_id="broker-a",topic="b"} 2\n'
        "# HELP up Up.\n# TYPE up gauge\n"
        'up{cluster="c",node_id="broker-a"} 1\n'
    )


def test_histogram_buckets_are_cumulative() -> None:
    registry = Registry()
    latency = registry.histogram("latency", "Latency.", ["code"], bounds=(1, 2.5, 10))
    child = latency.labels("310")
    for value in (0, 1, 1.5, 2.5, 11, 10):
        child.observe(value)
    assert body(registry) == (
        "# HELP latency Latency.\n# TYPE latency histogram\n"
        'latency_bucket{code="310",le="1"} 2\n'
        'latency_bucket{code="310",le="2.5"} 4\n'
        'latency_bucket{code="310",le="10"} 5\n'
        'latency_bucket{code="310",le="+Inf"} 6\n'
        'latency_sum{code="310"} 26.0\n'
        'latency_count{code="310"} 6\n'
    )


def test_empty_histogram_without_labels() -> None:
    registry = Registry()
    registry.histogram("h", "H.", bounds=[1])
    assert body(registry) == (
        "# HELP h H.\n# TYPE h histogram\n"
        'h_bucket{le="1"} 0\nh_bucket{le="+Inf"} 0\nh_sum 0\nh_count 0\n'
    )


def test_escaping() -> None:
    registry = Registry()
    registry.gauge("g", 'back\\slash "quote"\nline', ["l"]).labels('a"b\\c\nd').set(1)
    assert body(registry) == (
        '# HELP g back\\\\slash "quote"\\nline\n# TYPE g gauge\ng{l="a\\"b\\\\c\\nd"} 1\n'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (2**63, "9223372036854775808"),
        (True, "1"),
        (0.1, "0.1"),
        (1e22, "1e+22"),
        (math.inf, "+Inf"),
        (-math.inf, "-Inf"),
        (math.nan, "NaN"),
        (np.float64(2.5), "2.5"),
    ],
)
def test_numbers(value: float, text: str) -> None:
    registry = Registry()
    registry.gauge("g", "G.").labels().set(value)
    assert body(registry).splitlines()[-1] == f"g {text}"


def test_callbacks_are_read_at_each_scrape() -> None:
    registry = Registry({"c": "x"})
    table = {"a": 1.0}
    registry.gauge("size", "Size.", callback=lambda: len(table))
    registry.counter(
        "puts_total", "Puts.", ["t"], callback=lambda: [((key,), table[key]) for key in table]
    )
    assert 'size{c="x"} 1\n' in registry.render()
    table["b"] = 2.5
    assert 'size{c="x"} 2\n' in registry.render()
    assert 'puts_total{c="x",t="a"} 1.0\nputs_total{c="x",t="b"} 2.5\n' in registry.render()


def _raises() -> float:
    raise ValueError("no value today")


@pytest.mark.parametrize("callback", [_raises, lambda: [(("one", "two"), 1.0)]])
def test_broken_callback_leaves_only_its_own_metric_out(
    callback: Callable[[], float], caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry()
    registry.gauge("bad", "Bad.", ["l"], callback=callback)
    registry.gauge("good", "Good.").labels().set(1)
    assert body(registry) == (
        "# HELP bad Bad.\n# TYPE bad gauge\n# HELP good Good.\n# TYPE good gauge\ngood 1\n"
    )
    assert "metric bad is left out" in caplog.text


def test_label_limit_answers_with_one_overflow_child(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    metric = registry.counter("m_total", "M.", ["topic", "group"], child_count_max=2)
    first = metric.labels("t0", "g")
    metric.labels("t1", "g")
    for index in range(2, 1_000):
        metric.labels(f"t{index}", "g").value += 1
    assert metric.labels("t0", "g") is first
    assert len(metric) == 3
    text = registry.render()
    assert 'm_total{topic="__overflow__",group="__overflow__"} 998\n' in text
    assert f'{OVERFLOW_METRIC}{{metric="m_total"}} 998\n' in text
    assert [record.levelno for record in caplog.records] == [logging.WARNING]  # said once
    metric.remove("t1", "g")
    metric.remove("__overflow__", "__overflow__")
    metric.labels("t5", "g").value += 1
    assert 'm_total{topic="t5",group="g"} 1\n' in registry.render()


def test_callback_is_limited_too() -> None:
    registry = Registry()
    registry.gauge(
        "g",
        "G.",
        ["t"],
        callback=lambda: (((str(index),), index) for index in range(1_000_000_000)),
        child_count_max=3,
    )
    text = registry.render()
    assert [line for line in text.splitlines() if line.startswith("g{")] == [
        'g{t="0"} 0',
        'g{t="1"} 1',
        'g{t="2"} 2',
    ]
    assert f'{OVERFLOW_METRIC}{{metric="g"}} 1\n' in text


def test_names_are_registered_once() -> None:
    registry = Registry()
    registry.histogram("h", "H.")
    registry.counter("x_count", "X.")
    for name in ("h", "h_bucket", "h_sum", "h_count"):
        with pytest.raises(MetricError, match="registered before"):
            registry.counter(name, "Again.")
    with pytest.raises(MetricError, match=r"x: \['x_count'\] registered before"):
        registry.histogram("x", "X.")
    assert [(row.name, row.kind) for row in registry.table()] == [
        ("h", "histogram"),
        (OVERFLOW_METRIC, "counter"),
        ("x_count", "counter"),
    ]


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "ä", "a\n"])
def test_bad_names(name: str) -> None:
    with pytest.raises(MetricError, match="is not a name for a metric"):
        Registry().counter(name, "Bad.")


@pytest.mark.parametrize("labels", [["1a"], ["a-b"], ["__name"], [""], ["a", "a"], ["cluster"]])
def test_bad_labels(labels: list[str]) -> None:
    with pytest.raises(MetricError, match="label"):
        Registry({"cluster": "c"}).counter("m_total", "M.", labels)


def test_bad_constant_label() -> None:
    with pytest.raises(MetricError, match="constant labels: 'a-b' is not a name"):
        Registry({"a-b": "c"})


@pytest.mark.parametrize("bounds", [[], [2, 1], [1, 1], [1, math.inf]])
def test_bad_bounds(bounds: list[float]) -> None:
    with pytest.raises(MetricError, match="bounds must be finite and grow"):
        Registry().histogram("h", "H.", bounds=bounds)


def test_reserved_and_senseless_declarations() -> None:
    with pytest.raises(MetricError, match="the label le belongs to histograms"):
        Registry().histogram("h", "H.", ["le"])
    with pytest.raises(MetricError, match="below 1"):
        Registry().counter("m_total", "M.", ["t"], child_count_max=0)
