"""What goes into heartbeats, and who gets them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark.client.core.broker_calls import HeartbeatAnswer
from skylark.client.core.heartbeat_sender import HeartbeatPlan, heartbeat_targets
from skylark.core.clock import yield_once
from skylark.core.errors import RequestTimeoutError
from skylark.wire.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body
from tests.unit.client.scripted import ScriptedServer
from tests.unit.client.worlds import FakeConsumer, FakeProducer, world

CONSUMER = ConsumerData(
    group_name="g", subscription_data_set=[SubscriptionData(topic="T", sub_string="*")]
)
V2 = HeartbeatAnswer(version=1, supports_v2=True, sub_change=False)
CHANGED = HeartbeatAnswer(version=1, supports_v2=True, sub_change=True)
OLD = HeartbeatAnswer(version=1, supports_v2=False, sub_change=False)


def test_producers_speak_to_masters_consumers_to_slaves_too() -> None:
    brokers = {"a": {0: "a:1", 1: "a:2"}, "b": {1: "b:2"}, "c": {0: "a:1"}}
    assert heartbeat_targets(brokers, with_consumers=False) == ["a:1"]
    assert heartbeat_targets(brokers, with_consumers=True) == ["a:1", "a:2", "b:2"]


def test_there_is_no_heartbeat_without_groups() -> None:
    plan = HeartbeatPlan("id")
    assert plan.whole([], []) is None
    whole = plan.whole(["p"], [CONSUMER])
    assert whole is not None
    assert (whole.client_id, whole.heartbeat_fingerprint, whole.without_sub) == ("id", 0, False)
    assert [producer.group_name for producer in whole.producer_data_set] == ["p"]


def body(
    plan: HeartbeatPlan, answer: HeartbeatAnswer | None, address: str = "a:1"
) -> HeartbeatData:
    """The next heartbeat, and what the broker says to it."""
    whole = plan.whole([], [CONSUMER])
    assert whole is not None
    sent = plan.body_for(address, whole)
    if answer is not None:
        plan.answered(address, sent, answer)
    return sent


def test_version_one_is_always_whole() -> None:
    plan = HeartbeatPlan("id")
    assert not body(plan, V2).without_sub
    assert not body(plan, V2).without_sub


def test_version_two_leaves_out_what_the_broker_has() -> None:
    plan = HeartbeatPlan("id", use_v2=True)
    first, second = body(plan, V2), body(plan, V2)
    assert (first.without_sub, second.without_sub) == (False, True)
    assert first.heartbeat_fingerprint == second.heartbeat_fingerprint != 0
    assert second.consumer_data_set[0].subscription_data_set == []
    assert second.consumer_data_set[0].group_name == "g"
    assert not body(plan, V2, "b:1").without_sub  # another broker
    assert body(plan, CHANGED).without_sub
    assert not body(plan, V2).without_sub
    assert body(plan, OLD).without_sub  # it was replaced by one that does not know it
    assert not body(plan, OLD).without_sub
    assert not body(plan, V2).without_sub


def test_after_a_change_or_on_a_new_connection_it_is_whole() -> None:
    plan = HeartbeatPlan("id", use_v2=True)
    body(plan, V2)
    plan.forget("a:1")
    assert not body(plan, V2).without_sub
    plan.forget_all()
    assert not body(plan, V2).without_sub
    whole = plan.whole([], [CONSUMER, ConsumerData(group_name="h")])
    assert whole is not None
    assert not plan.body_for("a:1", whole).without_sub


def beats(server: ScriptedServer) -> list[HeartbeatData]:
    return [
        decode_body(HeartbeatData, request.body or b"")
        for request in server.of(RequestCode.HEART_BEAT)
    ]


@pytest.mark.spec("client.8.5")
async def test_version_two_over_the_wire(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        server.serve_route("T", a=await server.start())
        said = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "false"}
        server.answer_ok(RequestCode.HEART_BEAT, said)
        async with w.client(namesrv=server.address, heartbeat_v2=True) as instance:
            await instance.register_consumer(FakeConsumer("g", "T"))
            await instance.refresh_route("T")
            await instance.heartbeat_all()
            await instance.heartbeat_all()
            first, second = beats(server)
            assert len(first.consumer_data_set[0].subscription_data_set) == 1
            assert (first.without_sub, second.without_sub) == (False, True)
            assert second.consumer_data_set[0].subscription_data_set == []
            assert second.heartbeat_fingerprint == first.heartbeat_fingerprint
            server.answer_ok(RequestCode.HEART_BEAT, {**said, "IS_SUB_CHANGE": "true"})
            await instance.heartbeat_all()
            server.answer_ok(RequestCode.HEART_BEAT, said)
            await instance.heartbeat_all()
            await instance.heartbeat_all()
            await instance.heartbeat_all(whole=True)
            assert [beat.without_sub for beat in beats(server)[2:]] == [True, False, True, False]
            # The broker may have been started anew behind a new connection.
            w.network.cut_all()
            await w.clock.advance(seconds=0.5)
            assert beats(server)[-1].without_sub is False
        await w.finish(server.stop())


async def test_a_heartbeat_that_opens_the_connection_is_the_only_one(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        server.serve_route("T", a=await server.start("127.0.0.1", 20911))
        async with w.client(namesrv=server.address) as instance:
            await instance.register_producer(FakeProducer("p", "T"))
            await instance.register_consumer(FakeConsumer("g", "T"))
            await instance.refresh_route("T")
            assert await instance.heartbeat_all()
            await w.clock.drain()
            (beat,) = beats(server)
            assert beat.client_id == "127.0.0.1@a"
            assert [each.group_name for each in beat.producer_data_set] == ["p"]
            assert [each.group_name for each in beat.consumer_data_set] == ["g"]
            assert server.of(RequestCode.HEART_BEAT)[0].language == "PYTHON"
        assert server.of(RequestCode.UNREGISTER_CLIENT) == []
        await w.finish(server.stop())


async def test_another_connection_brings_a_heartbeat_at_once(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server, broker = ScriptedServer(w.network, w.clock), ScriptedServer(w.network, w.clock)
        server.serve_route("T", a=await broker.start())
        async with w.client(namesrv=await server.start()) as instance:
            consumer = FakeConsumer("g", "T")
            await instance.register_consumer(consumer)
            await instance.refresh_route("T")
            await instance.control_link.call(broker.address, Command(code=99))
            await w.clock.drain()
            assert len(beats(broker)) == 1
            assert consumer.rebalances == 1
        await w.finish(server.stop())
        await w.finish(broker.stop())


async def test_a_connection_that_replaces_that_of_a_heartbeat_brings_another(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        server, broker = ScriptedServer(w.network, w.clock), ScriptedServer(w.network, w.clock)
        server.serve_route("T", a=await broker.start())
        async with w.client(namesrv=await server.start()) as instance:
            consumer = FakeConsumer("g", "T")
            await instance.register_consumer(consumer)
            await instance.refresh_route("T")
            await instance.heartbeat_all()
            broker.answer(RequestCode.HEART_BEAT, None, 0)  # silent to the next one
            broker.answer(99, None, 0)
            beating = asyncio.ensure_future(instance.heartbeat_all())
            await w.clock.drain()
            assert len(beats(broker)) == 2
            call = instance.control_link.call
            with pytest.raises(RequestTimeoutError):
                await w.finish(call(broker.address, Command(code=99), 1.0))
            rebalances = consumer.rebalances
            await call(broker.address, Command(code=99))
            await w.clock.drain()
            assert not beating.done()  # on the connection that was given up
            assert len(broker.connections) == 2
            assert len(beats(broker)) == 3
            assert consumer.rebalances == rebalances + 1
            await w.finish(beating)
        await w.finish(server.stop())
        await w.finish(broker.stop())


async def test_a_heartbeat_asked_for_meanwhile_follows(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        server.serve_route("T", a=await server.start())
        server.answer(RequestCode.HEART_BEAT, None, 0)  # silent to the first
        async with w.client(namesrv=server.address) as instance:
            consumer = FakeConsumer("g", "T")
            await instance.register_consumer(consumer)
            await instance.refresh_route("T")
            asked = [asyncio.ensure_future(instance.heartbeat_all()) for _ in range(3)]
            await w.clock.drain()
            assert len(beats(server)) == 1
            await w.clock.advance(seconds=3)
            assert [await each for each in asked] == [True, True, True]
            assert len(beats(server)) >= 2
        await w.finish(server.stop())


async def test_a_heartbeat_asked_for_as_a_round_ends_is_sent(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        server.serve_route("T", a=await server.start())
        async with w.client(namesrv=server.address) as instance:
            await instance.register_consumer(FakeConsumer("g", "T"))
            await instance.refresh_route("T")
            heartbeats = instance._parts().heartbeats
            first = asyncio.ensure_future(heartbeats.send_all())
            await yield_once()
            under_way = heartbeats._round
            assert under_way is not None
            while not under_way.done():
                await yield_once()
            assert heartbeats._round is under_way  # its end is not known yet
            count = len(beats(server))
            assert await heartbeats.send_all()
            assert len(beats(server)) == count + 1
            assert await first
        await w.finish(server.stop())


async def test_a_broker_that_is_down_delays_nobody_and_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        server.serve_route("T", a="127.0.0.1:1", b=await server.start())
        async with w.client(namesrv=server.address) as instance:
            await instance.register_producer(FakeProducer("p", "T"))
            await instance.refresh_route("T")
            assert await w.finish(instance.heartbeat_all())
            await w.clock.advance(minutes=2)
            assert len(beats(server)) >= 4
        told = [
            r
            for r in caplog.records
            if r.levelname == "WARNING" and "cannot send a heartbeat" in r.message
        ]
        assert len(told) == 1
        await w.finish(server.stop())


async def test_a_broker_that_always_goes_away_is_asked_now_and_then(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        server.serve_route("T", a=await server.start("127.0.0.1", 20911))
        async with w.client(namesrv=server.address) as instance:
            await instance.register_producer(FakeProducer("p", "T"))
            await instance.refresh_route("T")
            server.answer(RequestCode.HEART_BEAT, ResponseCode.GO_AWAY)
            assert not await instance.heartbeat_all()
            before = len(beats(server))
            await w.clock.advance(seconds=10)
            # One a second, each sent twice: the second time on a new connection.
            assert 1 <= len(beats(server)) - before <= 2 * 11
            server.answer_ok(RequestCode.HEART_BEAT)
            await w.clock.advance(seconds=2)
            count = len(beats(server))
            await w.clock.advance(seconds=5)
            assert len(beats(server)) == count
        await w.finish(server.stop())
