"""The metrics of a broker that runs, as they are scraped."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark.broker.overload.overload_guard import Reason
from skylark.store.store_results import PutStatus
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.heartbeat import SubscriptionData
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import encode_body
from tests.unit.broker.members import Member, silent
from tests.unit.broker.stored import Stored, stored
from tests.unit.broker.world import heartbeat

PORT = 5_557
ON = {"metricsExporterType": "PROM", "metricsPromExporterPort": str(PORT)}
COMMON = 'cluster="DefaultCluster",node_type="broker",node_id="broker-a"'


class Scrape(asyncio.Protocol):
    """One request for the metrics."""

    def __init__(self) -> None:
        self.received = b""
        self.ended = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")

    def data_received(self, data: bytes) -> None:
        self.received += data

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


async def scrape(world: Stored) -> dict[str, float]:
    """Samples by name and labels, those that all samples have left out."""
    _, request = await world.network.connect(
        Scrape, "127.0.0.1", PORT, timeout_s=1.0, clock=VirtualClock()
    )
    await request.ended
    head, _, body = request.received.decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 200 ")
    samples = {}
    for line in body.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            assert COMMON in name
            samples[re.sub(rf"{COMMON},?", "", name).removesuffix("{}")] = float(value)
    return samples


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Stored]:
    async with stored(tmp_path, **ON) as running:
        yield running


async def test_messages_in_and_out(world: Stored) -> None:
    world.add_topic("T", 1)
    world.add_topic("F", 1, attributes={"+message.type": "FIFO"})
    world.features.groups.table.find("g")
    for topic in ("T", "T", "BenchmarkTest", "%RETRY%g"):
        assert (await world.send(topic)).code == 0
    assert (await world.send("F", properties="__SHARDINGKEY\x01k\x02")).code == 0
    assert (await world.pull(0)).code == 0
    samples = await scrape(world)
    name = "rocketmq_messages_in_total"
    assert {key: value for key, value in samples.items() if key.startswith(name)} == {
        f'{name}{{topic="T",message_type="unspecified",is_system="false"}}': 2,
        f'{name}{{topic="F",message_type="fifo",is_system="false"}}': 1,
        f'{name}{{topic="BenchmarkTest",message_type="unspecified",is_system="true"}}': 1,
    }
    out = '{topic="T",consumer_group="g",is_system="false"}'
    assert samples[f"rocketmq_messages_out_total{out}"] == 2
    size = sum(record.total_size for record in world.records("T"))
    assert samples[f"rocketmq_throughput_out_total{out}"] == size
    put = '{topic="T",message_type="unspecified",is_system="false"}'
    assert samples[f"rocketmq_throughput_in_total{put}"] == size
    assert samples[f"rocketmq_message_size_count{put}"] == 2


async def test_series_are_given_back_with_their_topic_and_group(world: Stored) -> None:
    exporter = world.features.stats.exporter
    for topic in ("T", "Kept"):
        world.add_topic(topic, 1)
        assert (await world.send(topic)).code == 0
        for group in ("g", "kept"):
            world.features.groups.table.find(group)
            exporter.dead_letter(group, topic)
            assert (await world.pull(topic=topic, consumerGroup=group)).code == 0
            world.features.groups.offsets.commit(group, topic, 0, 0)  # so it has a lag
        exporter.metrics.finish_latency.labels(topic).observe(1)
    assert await labelled(world, 'topic="T"') == await labelled(world, 'topic="Kept"') > 5
    count = await labelled(world, 'consumer_group="g"')
    assert count > 10
    await world.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"})
    assert await labelled(world, 'topic="T"') == 0
    assert await labelled(world, 'consumer_group="g"') == count // 2
    await world.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"})
    assert await labelled(world, 'consumer_group="g"') == 0
    assert await labelled(world, 'topic="Kept"') > 5
    assert await labelled(world, 'consumer_group="kept"') == count // 2
    world.add_topic("T", 1)
    assert (await world.send("T")).code == 0  # a new topic of the same name begins at 0
    put = '{topic="T",message_type="unspecified",is_system="false"}'
    assert (await scrape(world))[f"rocketmq_messages_in_total{put}"] == 1


async def test_topics_get_series_when_others_give_theirs_back(world: Stored) -> None:
    metrics = world.features.stats.metrics
    for metric in (metrics.messages_in, metrics.throughput_in, metrics.message_size):
        metric.child_count_max = 2
    for topic in ("A", "B", "C"):
        world.add_topic(topic, 1)
        assert (await world.send(topic)).code == 0
    assert await labelled(world, 'topic="C"') == 0
    assert await labelled(world, 'topic="__overflow__"') > 0
    await world.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "A"})
    await world.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "B"})
    assert (await world.send("C")).code == 0
    assert await labelled(world, 'topic="C"') == await labelled(world, 'topic="__overflow__"') > 0


async def labelled(world: Stored, label: str) -> int:
    """Number of samples with a label."""
    return sum(label in name for name in await scrape(world))


async def test_the_broker_and_its_store(world: Stored) -> None:
    assert (await world.send("T")).code == 0
    samples = await scrape(world)
    assert samples["rocketmq_broker_permission"] == 6
    assert samples["rocketmq_topic_number"] == len(world.features.topics.table)
    storage = '{storage_type="local",storage_medium="disk"}'
    assert samples[f"rocketmq_storage_size{storage}"] == 8 << 20
    assert samples[f"rocketmq_storage_dispatch_behind_bytes{storage}"] == 0
    assert samples[f"rocketmq_storage_flush_behind_bytes{storage}"] >= 0
    assert samples['rocketmq_processor_watermark{processor="admin"}'] == 0
    assert samples['skylark_connections{port="20911"}'] == 1
    assert samples['skylark_connections{port="20909"}'] == 0
    assert samples['skylark_connections_refused_total{port="20911"}'] == 0
    assert samples["skylark_loop_turn_ms_count"] > 0
    latency = (
        'rocketmq_rpc_latency_count{protocol_type="remoting",request_code="send_message_v2",'
        'response_code="success",is_long_polling="false",result="success"}'
    )
    assert samples[latency] == 1
    assert samples["skylark_requests_at_work"] == 0
    assert samples["skylark_held_pulls"] == 0
    world.features.puts.writer.uncopied.add("retry", 7, "%DLQ%g", PutStatus.MESSAGE_ILLEGAL)
    assert (await scrape(world))['skylark_uncopied_messages_total{kind="retry"}'] == 1
    assert samples["skylark_pop_put_off_messages_total"] == 0
    revive = world.features.pop.revive
    assert revive is not None
    revive.copies.put_off_count += 2
    assert (await scrape(world))["skylark_pop_put_off_messages_total"] == 2
    held = await world.begin_pull(1)
    assert (await scrape(world))["skylark_held_pulls"] == 1
    await world.clock.advance(20)
    assert (await held).code == 19


async def test_timed_and_transactional_messages_and_dead_letters(world: Stored) -> None:
    world.add_topic("T", 1)
    due_ms = world.clock.now_ms() + 60_000
    assert (await world.send("T", properties=f"TIMER_DELIVER_MS\x01{due_ms}\x02")).code == 0
    await world.clock.advance(2)
    counts = world.features.transaction.service.counts
    counts.add("T", 3)
    counts.commit("T", world.clock.now_ms() - 70_000)
    counts.rolled_back["T"] += 1
    world.features.stats.exporter.dead_letter("g", "T")
    samples = await scrape(world)
    storage = 'storage_type="local",storage_medium="disk"'
    assert samples[f'rocketmq_timing_messages{{{storage},topic="T"}}'] == 1
    assert samples[f"rocketmq_timer_enqueue_lag{{{storage}}}"] == 0
    assert samples[f"rocketmq_timer_dequeue_lag{{{storage}}}"] == 0
    assert samples['rocketmq_half_messages{topic="T"}'] == 3
    assert samples['rocketmq_commit_messages_total{topic="T"}'] == 1
    assert samples['rocketmq_rollback_messages_total{topic="T"}'] == 1
    assert samples['rocketmq_finish_message_latency_sum{topic="T"}'] == 70
    dead = '{consumer_group="g",topic="T",is_system="false"}'
    assert samples[f"rocketmq_send_to_dlq_messages_total{dead}"] == 1


async def test_a_broker_without_timer_shows_none(tmp_path: Path) -> None:
    async with stored(tmp_path, timerWheelEnable="false", **ON) as world:
        assert not any(key.startswith("rocketmq_timer") for key in await scrape(world))


async def test_clients_and_their_lag(world: Stored) -> None:
    world.add_topic("T", 1)
    for _ in range(3):
        await world.send("T")
        await world.clock.advance(2)
    world.features.groups.table.find("g")
    world.features.groups.offsets.commit("g", "T", 0, 1)
    member = Member(world, "c1", silent)
    await member.join("g", "T")
    body = encode_body(heartbeat(producers=["pg", "CLIENT_INNER_PRODUCER"], client_id="p"))
    await world.call(RequestCode.HEART_BEAT, {}, body)
    samples = await scrape(world)
    labels = '{consumer_group="g",topic="T",is_retry="false",is_system="false"}'
    assert samples[f"rocketmq_consumer_lag_messages{labels}"] == 2
    assert samples[f"rocketmq_consumer_lag_latency{labels}"] == 4_000
    assert samples[f"rocketmq_consumer_inflight_messages{labels}"] == 0
    assert samples[f"rocketmq_consumer_ready_messages{labels}"] == 2
    assert samples[f"rocketmq_consumer_queueing_latency{labels}"] == 4_000
    consumers = (
        'rocketmq_consumer_connections{consumer_group="g",language="java",version="v5_5_0",'
        'consume_mode="push",protocol_type="remoting",is_system="false"}'
    )
    assert samples[consumers] == 1
    producers = 'rocketmq_producer_connections{language="python",version="v5_5_0"'
    assert samples[f'{producers},protocol_type="remoting"}}'] == 2
    await member.leave()
    await world.call(RequestCode.UNREGISTER_CLIENT, {"clientID": "p", "producerGroup": "pg"})
    samples = await scrape(world)
    assert consumers not in samples  # series are given back with their clients
    assert samples[f'{producers},protocol_type="remoting"}}'] == 1  # the group of the library


async def test_groups_whose_members_disagree_are_shown(world: Stored) -> None:
    members = [Member(world, client_id, silent) for client_id in ("c1", "c2")]
    for member, expression in zip(members, "ab", strict=True):
        data = SubscriptionData(topic="T", sub_string=expression, tags_set=[expression])
        await member.join("g", data)
    assert (await scrape(world))['skylark_groups_in_conflict{consumer_group="g"}'] == 1
    for member in members:
        await member.leave()


async def test_a_scrape_of_many_groups_does_not_delay_requests(world: Stored) -> None:
    world.features.groups.table.find("g")
    for number in range(200):
        world.add_topic(f"T{number}", 8)
        world.features.groups.offsets.commit("g", f"T{number}", 0, 0)
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await world.clock.sleep(0)

    metric_count = len(world.features.stats.exporter.metrics.registry.table())
    other = asyncio.create_task(count_turns())
    samples = await scrape(world)
    other.cancel()
    assert turns >= metric_count + 200 * 8 // 128
    assert sum(key.startswith("rocketmq_consumer_lag_messages") for key in samples) == 200


async def test_refusals_name_servers_and_full_statistics(tmp_path: Path) -> None:
    async with stored(tmp_path, **ON, namesrvAddr="127.0.0.1:1") as world:
        world.features.overload.guard.refused_counts[Reason.WAITED] += 3
        (table, *_) = world.features.stats.broker_stats.tables
        table.overflow_count += 1
        samples = await scrape(world)
    assert samples['skylark_requests_refused_total{reason="waited"}'] == 3
    assert samples['skylark_name_servers{address="127.0.0.1:1"}'] == 0
    assert samples['skylark_stats_overflows_total{table="puts by topic"}'] == 1


async def test_nothing_is_served_or_measured_by_default(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        assert world.broker.metrics_address is None
        assert world.features.stats.broker_stats.on_put is None
        assert (
            world.features.stats.exporter.rpc_times
            not in world.features.endpoint.server.dispatcher.interceptors
        )
        await world.send("T")
        text = world.features.stats.exporter.metrics.registry.render()
        assert "rocketmq_messages_in_total{" not in text


async def test_the_endpoint_closes_with_the_broker(tmp_path: Path) -> None:
    async with stored(tmp_path, **{**ON, "metricsPromExporterPort": "0"}) as world:
        address = world.broker.metrics_address
        assert address is not None
        assert address.port > 0
        network = world.network
    with pytest.raises(Exception, match=r"refused|listens"):
        await network.connect(Scrape, *address, timeout_s=1.0, clock=VirtualClock())


async def test_held_pulls_have_their_label(world: Stored) -> None:
    world.add_topic("T", 1)
    world.features.groups.table.find("g")
    pulling = await world.begin_pull()
    await world.clock.advance(seconds=2)
    assert (await world.send("T")).code == 0
    assert (await pulling).code == 0
    samples = await scrape(world)
    labels = 'protocol_type="remoting",request_code="pull_message",response_code="success"'
    name = f'rocketmq_rpc_latency_sum{{{labels},is_long_polling="true",result="success"}}'
    assert samples[name] == 2_000.0
