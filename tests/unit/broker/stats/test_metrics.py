"""The table of metrics: names, labels, and how they look when scraped."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from skylark.broker.config import BrokerConfig, load_broker_config
from skylark.broker.overload.overload_guard import LoopWatch
from skylark.broker.stats.metrics import (
    ROWS,
    STORAGE_LABELS,
    BrokerMetrics,
    PutMetrics,
    constant_labels,
)
from skylark.core.metrics import Registry
from skylark.testing.virtual_clock import VirtualClock

#: The names of section 11 of the specification, without their prefix; the last is Java's, too.
NATIVE = re.findall(
    r"\w+",
    """
    messages_in_total messages_out_total throughput_in_total throughput_out_total message_size
    processor_watermark broker_permission topic_number producer_connections consumer_connections
    consumer_lag_messages consumer_lag_latency consumer_inflight_messages consumer_ready_messages
    consumer_queueing_latency send_to_dlq_messages_total commit_messages_total
    rollback_messages_total finish_message_latency half_messages rpc_latency storage_size
    storage_flush_behind_bytes storage_dispatch_behind_bytes timer_enqueue_lag timer_dequeue_lag
    timing_messages pop_revive_lag pop_revive_latency pop_revive_retry_messages_total
    pop_checkpoint_buffer_size pop_offset_buffer_size pop_revive_in_message_total
    pop_revive_out_message_total
    """,
)


def config(**changes: str) -> BrokerConfig:
    texts = {"storePathRootDir": "unused", "brokerName": "b", "brokerClusterName": "c"}
    return load_broker_config(texts | changes)


@pytest.fixture
def metrics() -> BrokerMetrics:
    return BrokerMetrics(Registry(constant_labels(config())))


def samples(metrics: BrokerMetrics, name: str) -> list[str]:
    """Lines of one metric, without the labels that all have."""
    common = 'cluster="c",node_type="broker",node_id="b"'
    lines = [
        line
        for line in metrics.registry.render().splitlines()
        if re.match(rf"{name}(_bucket|_sum|_count)?\{{", line)
    ]
    assert all(common in line for line in lines)
    return [line.replace(f"{common},", "").replace(common, "") for line in lines]


def test_all_native_names_are_there_and_nothing_else_looks_native() -> None:
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))
    native = {name.removeprefix("rocketmq_") for name in names if name.startswith("rocketmq_")}
    assert native == set(NATIVE)
    assert all(name.startswith(("rocketmq_", "skylark_")) for name in names)


def test_the_registry_holds_the_table(metrics: BrokerMetrics) -> None:
    registered = {metric.name: metric for metric in metrics.registry.table()}
    for row in ROWS:
        assert registered[row.name].label_names == row.labels
        assert registered[row.name].kind == row.kind
        assert bool(row.bounds) is (row.kind == "histogram")


def test_a_gauge_without_a_callback_has_no_sample(metrics: BrokerMetrics) -> None:
    text = metrics.registry.render()
    assert "# TYPE rocketmq_topic_number gauge" in text
    assert samples(metrics, "rocketmq_topic_number") == []
    metrics.watch("rocketmq_topic_number", lambda: 12)
    assert samples(metrics, "rocketmq_topic_number") == ["rocketmq_topic_number{} 12"]


def test_gauges_with_labels(metrics: BrokerMetrics) -> None:
    metrics.watch("rocketmq_storage_size", lambda: [(STORAGE_LABELS, 4096)])
    metrics.watch("rocketmq_half_messages", lambda: [(("T",), 2), (("U",), 0)])
    assert samples(metrics, "rocketmq_storage_size") == [
        'rocketmq_storage_size{storage_type="local",storage_medium="disk"} 4096'
    ]
    assert samples(metrics, "rocketmq_half_messages") == [
        'rocketmq_half_messages{topic="T"} 2',
        'rocketmq_half_messages{topic="U"} 0',
    ]


def test_only_what_is_in_the_table_can_be_watched(metrics: BrokerMetrics) -> None:
    for name in ("rocketmq_no_such", "rocketmq_message_size"):
        with pytest.raises(KeyError):
            metrics.watch(name, lambda: 1)


def test_puts_are_counted_by_topic_and_type(metrics: BrokerMetrics) -> None:
    put = PutMetrics(metrics, "T", "normal", is_system=False)
    put.add(1, 300)
    put.add(10, 50_000)  # a batch
    labels = 'topic="T",message_type="normal",is_system="false"'
    assert samples(metrics, "rocketmq_messages_in_total") == [
        f"rocketmq_messages_in_total{{{labels}}} 11"
    ]
    assert samples(metrics, "rocketmq_throughput_in_total") == [
        f"rocketmq_throughput_in_total{{{labels}}} 50300"
    ]
    sizes = samples(metrics, "rocketmq_message_size")
    assert sizes[0] == f'rocketmq_message_size_bucket{{{labels},le="1024"}} 1'
    assert sizes[2] == f'rocketmq_message_size_bucket{{{labels},le="524288"}} 2'


def test_the_lag_of_the_loop_is_a_metric(metrics: BrokerMetrics) -> None:
    ends: list[Callable[[], None]] = []
    clock = VirtualClock()
    watch = LoopWatch(clock, call_soon=ends.append, on_turn=metrics.loop_turn.observe)
    watch.arrived_at(clock.monotonic())
    clock._now_ns += 250_000_000
    ends[0]()
    assert samples(metrics, "skylark_loop_turn_ms")[-2:] == [
        "skylark_loop_turn_ms_sum{} 250.0",
        "skylark_loop_turn_ms_count{} 1",
    ]


def test_further_labels() -> None:
    labels = constant_labels(config(metricsLabel="rack:r1,,zone:z"))
    assert labels == {
        "cluster": "c",
        "node_type": "broker",
        "node_id": "b",
        "rack": "r1",
        "zone": "z",
    }


@pytest.mark.parametrize(
    "item", ["x", "a:b:c", ":v", "topic:T", "cluster:d", "le:1", "__x:y", "é:1"]
)
def test_labels_that_make_no_sense_are_left_out(
    item: str, caplog: pytest.LogCaptureFixture
) -> None:
    labels = constant_labels(config(metricsLabel=f"{item},rack:r1"))
    assert list(labels) == ["cluster", "node_type", "node_id", "rack"]
    assert labels["cluster"] == "c"
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    BrokerMetrics(Registry(labels))
