"""Metrics of clients: what is counted, where, and how it shows."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import re
import urllib.request
import weakref
from pathlib import Path
from typing import Any

import pytest

from skylark import aio, sync
from skylark.client.consumer.lite_pull.lite_pull_consumer import LitePullConsumer
from skylark.client.core.client_message import Message, MessageExt, SendStatus
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.client_runtime import inline_runtime
from skylark.client.metrics import (
    NO_CONSUME_METER,
    NO_SEND_METER,
    QueueLevel,
    client_metrics,
    default_registry,
)
from skylark.client.producer.producer import Producer
from skylark.core.errors import (
    ClientError,
    ConfigError,
    ConnectError,
    RequestTimeoutError,
    SkylarkError,
)
from skylark.core.metrics import Registry
from tests.unit.client.consumer.pull_world import pull_world
from tests.unit.client.consumer.pushes import consuming, push_world
from tests.unit.client.producer_world import scripted

ROOT = Path(__file__).resolve().parents[3]


def samples(registry: Registry, name: str) -> dict[str, float]:
    """Labels to value, of all samples with this name."""
    lines = re.findall(rf"^skylark_client_{name}(?:{{(.*)}})? (\S+)$", registry.render(), re.M)
    return {labels: float(value) for labels, value in lines}


def one(registry: Registry, name: str) -> float:
    (value,) = samples(registry, name).values()
    return value


class Levels:
    """A consumer that has what it is told."""

    def __init__(self, *levels: QueueLevel) -> None:
        self._levels = levels

    def levels(self) -> tuple[QueueLevel, ...]:
        return self._levels


# ---- registries ----------------------------------------------------------------------------------


def test_clients_of_one_registry_share_their_metrics() -> None:
    registry = Registry()
    assert client_metrics(registry) is client_metrics(registry)
    assert client_metrics(registry) is not client_metrics(Registry())
    assert client_metrics(True) is client_metrics(default_registry())
    assert client_metrics(False) is None


def test_a_registry_that_nobody_has_any_more_is_gone() -> None:
    registry = Registry()
    client_metrics(registry)
    reference = weakref.ref(registry)
    del registry
    gc.collect()
    assert reference() is None


def test_the_documents_name_all_metrics_and_no_others() -> None:
    registry = Registry()
    client_metrics(registry)
    text = (ROOT / "docs" / "observability.md").read_text()
    named = {
        (name, tuple(filter(None, labels.replace("`", "").split(", "))))
        for name, labels in re.findall(r"^\| `(skylark_client_\w+)` \| \w+ \| (.*?) \|", text, re.M)
    }
    known = {
        (metric.name, metric.label_names)
        for metric in registry.table()
        if metric.name.startswith("skylark_client_")
    }
    assert named == known


# ---- sends ---------------------------------------------------------------------------------------


async def test_sends_are_counted_with_their_outcome(tmp_path: Path) -> None:
    registry = Registry()
    async with scripted(tmp_path, given={"metrics": registry}, batching=False, retries=1) as s:
        await s.producer.send(Message("T", b"x"))
        s.answer(2, broker="")  # a code that is tried again, then given up
        with pytest.raises(SkylarkError):
            await s.producer.send(Message("T", b"x"))
        s.answer(None)
        hanging = await s.later(s.producer.send(Message("T", b"x")))
        assert samples(registry, "sends_in_flight") == {'group="pg",topic="T"': 1}
        await s.clock.advance(seconds=3.1)
        with pytest.raises(SkylarkError):
            await hanging
    of = 'group="pg",topic="T",outcome='
    assert samples(registry, "messages_sent_total") == {
        f'{of}"ok"': 1,
        f'{of}"error"': 1,
        f'{of}"timeout"': 1,
    }
    counts = samples(registry, "send_latency_ms_count")
    assert counts == samples(registry, "messages_sent_total")
    assert samples(registry, "send_latency_ms_sum")[f'{of}"timeout"'] == pytest.approx(3_000)
    assert one(registry, "sends_in_flight") == 0
    assert one(registry, "send_retries_total") >= 1


async def test_messages_that_travel_together_are_one_request(tmp_path: Path) -> None:
    registry = Registry()
    async with scripted(tmp_path, given={"metrics": registry}) as s:
        futures = [await s.producer.submit(Message("T", b"x")) for _ in range(10)]
        await asyncio.gather(*futures)
    assert one(registry, "messages_sent_total") == 10
    assert one(registry, "send_latency_ms_count") == one(registry, "batch_messages_count") == 1
    assert one(registry, "batch_messages_sum") == 10


async def test_a_cancelled_send_is_not_in_flight(tmp_path: Path) -> None:
    registry = Registry()
    async with scripted(tmp_path, given={"metrics": registry}, batching=False) as s:
        s.answer(None)
        task = await s.later(s.producer.send(Message("T", b"x")))
        task.cancel()
        await s.clock.drain()
        assert samples(registry, "sends_in_flight") == {'group="pg",topic="T"': 0}
        assert samples(registry, "messages_sent_total") == {
            'group="pg",topic="T",outcome="cancelled"': 1
        }


async def test_nothing_is_counted_where_that_is_off(tmp_path: Path) -> None:
    before = default_registry().render()
    async with scripted(tmp_path, given={"metrics": False}) as s:
        await s.producer.send(Message("T", b"x"))
        assert s.producer._parts is not None
        assert s.producer._parts.instance.metrics is None
    assert default_registry().render() == before
    NO_SEND_METER.begin(1)
    NO_SEND_METER.retry()
    NO_SEND_METER.done(SendStatus.SEND_OK, 1.0, 1)
    NO_SEND_METER.failed(ConnectError("x"), 1.0, 1)
    NO_CONSUME_METER.pulled("found", 1.0, 1)
    NO_CONSUME_METER.consumed(1, 0, 1.0)


def test_statuses_and_errors_have_names() -> None:
    registry = Registry()
    metrics = client_metrics(registry)
    assert metrics is not None
    meter = metrics.send_meter("g", "T")
    meter.done(SendStatus.FLUSH_DISK_TIMEOUT, 0.1, 1)
    meter.failed(RequestTimeoutError("late"), 0.1, 2)
    meter.failed(ConnectError("nobody"), 0.1, 4)
    meter.failed(asyncio.CancelledError(), 0.1, 8)
    assert [
        (labels.rpartition("=")[2], value)
        for labels, value in samples(registry, "messages_sent_total").items()
    ] == [('"cancelled"', 8), ('"error"', 4), ('"flush_disk_timeout"', 1), ('"timeout"', 2)]


# ---- connections and heartbeats ------------------------------------------------------------------


async def test_connections_and_heartbeats_are_counted(tmp_path: Path) -> None:
    registry = Registry()
    async with scripted(tmp_path, "a", given={"metrics": registry}) as s:
        await s.producer.send(Message("T", b"x"))
        await s.clock.advance(seconds=31)
        address = s.brokers["a"].address
        taken = f'address="{address}",outcome="ok"'
        beats = samples(registry, "heartbeats_total")
        assert beats[taken] >= 2
        opened = samples(registry, "connections_opened_total")[f'address="{address}"']
        assert opened == 2  # one of each plane
        for connection in tuple(s.brokers["a"].connections):
            connection.abort()
        await s.clock.advance(seconds=2)
        assert samples(registry, "connections_lost_total")[f'address="{address}"'] == 2
        assert samples(registry, "connections_opened_total")[f'address="{address}"'] == opened + 1
        await s.world.finish(s.brokers["a"].stop())
        await s.clock.advance(seconds=5)
        assert samples(registry, "heartbeats_total")[f'address="{address}",outcome="failed"'] >= 1


# ---- consumers -----------------------------------------------------------------------------------


async def test_a_push_consumer_shows_what_waits_and_what_was_done(tmp_path: Path) -> None:
    registry = Registry()
    go_on = asyncio.Event()

    async def handle(message: MessageExt) -> None:
        await go_on.wait()
        if message.body == b"3":
            raise ValueError(message.body)

    async with push_world(tmp_path) as w:
        await w.send_many(5)
        consumer = w.consumer(metrics=registry, concurrency=2, pull_batch_size=2)
        consumer.subscribe("T", handle)
        async with consuming(w, consumer):
            of = 'group="g",topic="T",broker="broker-a",queue="0"'
            assert samples(registry, "cached_messages")[of] == 5
            assert samples(registry, "consume_lag_messages")[of] == 5
            assert samples(registry, "cached_bytes")[of] > 5 * 80
            go_on.set()
            await w.clock.drain()
            assert samples(registry, "cached_messages")[of] == 0
            assert samples(registry, "consume_lag_messages")[of] == 0
            done = samples(registry, "messages_consumed_total")
            assert done['group="g",topic="T",outcome="ok"'] == 4
            assert done['group="g",topic="T",outcome="failed"'] == 1
            calls = samples(registry, "consume_latency_ms_count")
            assert calls['group="g",topic="T",outcome="ok"'] == 4
            assert calls['group="g",topic="T",outcome="failed"'] == 1
            assert samples(registry, "messages_received_total")['group="g",topic="T"'] == 5
            pulls = samples(registry, "pull_latency_ms_count")
            assert pulls['group="g",topic="T",status="found"'] == 3
        assert samples(registry, "cached_messages") == {}


async def test_an_orderly_consumer_counts_too(tmp_path: Path) -> None:
    registry = Registry()
    tried: list[bytes] = []

    async def handle(message: MessageExt) -> None:
        tried.append(message.body)
        if len(tried) == 1:
            raise ValueError("the first time")

    async with push_world(tmp_path) as w:
        await w.send(b"a")
        consumer = w.consumer(metrics=registry)
        consumer.subscribe("T", handle, orderly=True)
        async with consuming(w, consumer):
            await w.clock.advance(seconds=3)
            assert tried == [b"a", b"a"]
            done = samples(registry, "messages_consumed_total")
            assert done['group="g",topic="T",outcome="ok"'] == 1
            assert done['group="g",topic="T",outcome="failed"'] == 1


async def test_a_lite_pull_consumer_shows_its_lag(tmp_path: Path) -> None:
    registry = Registry()
    async with pull_world(tmp_path) as w:
        await w.send(*(b"%d" % number for number in range(30)))
        runtime = inline_runtime(w.world.network, w.world.clock)
        options = w.world.options(metrics=registry)
        lite = LitePullConsumer("lg", options, runtime=runtime, pull_threshold_for_queue=10)
        await w.finish(lite.start())
        lite.assign(await w.finish(lite.fetch_queues("T")))
        for queue in lite.assignment:
            await w.finish(lite.seek_to_begin(queue))
        await w.world.clock.advance(seconds=1)
        lag = samples(registry, "consume_lag_messages")
        assert sum(lag.values()) == 30
        assert 10 < sum(samples(registry, "cached_messages").values()) < 30
        await w.finish(lite.stop())
        assert samples(registry, "consume_lag_messages") == {}


def test_queues_that_two_consumers_have_are_added_up() -> None:
    registry = Registry()
    metrics = client_metrics(registry)
    assert metrics is not None
    level = QueueLevel("T", "a", 1, 2, 300, 4)
    first, second = Levels(level), Levels(level)
    metrics.add_source("g", first)
    metrics.add_source("g", second)
    of = 'group="g",topic="T",broker="a",queue="1"'
    assert samples(registry, "consume_lag_messages") == {of: 12}
    metrics.remove_source(first)
    assert samples(registry, "cached_bytes") == {of: 300}
    del second  # never removed: nobody keeps it
    gc.collect()
    assert samples(registry, "cached_messages") == {}


# ---- showing them --------------------------------------------------------------------------------


async def test_prometheus_reads_the_registry_of_the_process(tmp_path: Path) -> None:
    async with scripted(tmp_path) as s:
        await s.producer.send(Message("T", b"x"))
    async with await aio.serve_metrics() as endpoint:
        text = await asyncio.to_thread(fetch, endpoint.url)
    assert 'skylark_client_messages_sent_total{group="pg",topic="T",outcome="ok"}' in text
    with pytest.raises(OSError, match="refused"):
        await asyncio.to_thread(fetch, endpoint.url)
    await endpoint.stop()  # again does nothing


def test_threads_serve_metrics_too() -> None:
    registry = Registry()
    registry.counter("mine_total", "Of the application.").labels().value += 3
    with sync.serve_metrics(registry=registry) as endpoint:
        assert endpoint.url.startswith("http://127.0.0.1:")
        assert "mine_total 3\n" in fetch(endpoint.url)
        taken = int(endpoint.url.split(":")[2].partition("/")[0])
        with pytest.raises(ClientError, match=f"cannot be served: .*127.0.0.1:{taken}.*or 0"):
            sync.serve_metrics(taken)
    with pytest.raises(OSError, match="refused"):
        fetch(endpoint.url)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"port": -1}, "port is -1: a number from 0 to 65535"),
        ({"port": "9464"}, "port is '9464'"),
        ({"port": None}, "port is None"),
        ({"host": ""}, "host is ''"),
        ({"host": 5}, "host is 5"),
        ({"registry": "x"}, "registry is a str"),
    ],
)
async def test_what_cannot_be_served_is_refused(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        await aio.serve_metrics(**given)


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.status == 200
        return str(answer.read(), "utf-8")


def test_options_show_what_they_are_given() -> None:
    assert "metrics" not in repr(ClientOptions())
    assert "metrics=False" in repr(ClientOptions(metrics=False))
    assert Producer("pg", ClientOptions(metrics=Registry())).options.metrics is not True


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_begins_at_zero() -> None:
    parent = default_registry()
    client_metrics(parent)
    child = multiprocessing.get_context("fork")
    answers = child.SimpleQueue()
    process = child.Process(target=lambda: answers.put(default_registry().render()))
    process.start()
    text = answers.get()
    process.join(10)
    assert "skylark_client" not in text
    assert "skylark_client" in parent.render()
