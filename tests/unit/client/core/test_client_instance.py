"""A client instance among real name servers and brokers, on one loop and virtual time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark.client.core.client_runtime import inline_runtime
from skylark.client.core.service_state import ServiceState
from skylark.core.errors import ClientStateError, NoNameServerError, NoRouteError
from skylark.wire.bodies.heartbeat import HeartbeatData
from skylark.wire.codes import CURRENT_VERSION, RequestCode
from tests.unit.client.scripted import ScriptedServer
from tests.unit.client.worlds import FakeConsumer, FakeProducer, World, world


def group_ids(of: World, group: str, broker: str = "broker-a") -> list[str]:
    return of.brokers[broker].features.groups.consumers.client_ids(group)


async def test_it_finds_routes_and_becomes_a_member(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add_name_server()
        await w.add_broker()
        await w.add_topic("T")
        async with w.client() as instance:
            consumer = FakeConsumer("g", "T")
            await instance.register_consumer(consumer)
            route = await instance.refresh_route("T")
            assert route is not None
            assert len(route.publish) == 4
            await w.clock.drain()
            assert consumer.rebalances == 1  # the topic has queues now
            assert await instance.heartbeat_all()
            assert group_ids(w, "g") == ["127.0.0.1@a"]
            assert instance.broker_version("127.0.0.1:20911") == CURRENT_VERSION
            await w.finish(instance.unregister_consumer(consumer))
            assert group_ids(w, "g") == []


@pytest.mark.spec("client.8.1")
async def test_a_group_can_be_registered_once(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add_name_server()
        async with w.client() as instance:
            first = FakeProducer("g")
            await instance.register_producer(first)
            with pytest.raises(ClientStateError, match="has been created before"):
                await instance.register_producer(FakeProducer("g"))
            await instance.register_consumer(FakeConsumer("g"))
            with pytest.raises(ClientStateError, match=r"consumer group\[g\] has been created"):
                await instance.register_consumer(FakeConsumer("g"))
            await instance.unregister_producer(first)
            await instance.register_producer(FakeProducer("g"))


@pytest.mark.spec("client.8.4")
async def test_after_a_restart_of_the_broker_the_consumer_is_back_soon(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add_name_server()
        broker = await w.add_broker()
        await w.add_topic("T")
        async with w.client() as instance:
            consumer = FakeConsumer("g", "T")
            await instance.register_consumer(consumer)
            await instance.refresh_route("T")
            await instance.heartbeat_all()
            before = consumer.rebalances
            await w.stop(broker)
            await w.clock.advance(seconds=20)
            await w.add_broker()
            await w.clock.advance(seconds=5)
            assert group_ids(w, "g") == ["127.0.0.1@a"]
            assert consumer.rebalances > before


@pytest.mark.spec("client.8.4")
async def test_after_a_restart_of_everything_the_consumer_is_back_soon(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        name_server = await w.add_name_server()
        broker = await w.add_broker()
        await w.add_topic("T")
        async with w.client() as instance:
            await instance.register_consumer(FakeConsumer("g", "T"))
            await instance.refresh_route("T")
            await instance.heartbeat_all()
            await w.stop(broker)
            await w.stop(name_server)
            await w.clock.advance(minutes=5)
            await w.add_name_server()
            await w.add_broker()
            await w.clock.advance(seconds=5)
            assert group_ids(w, "g") == ["127.0.0.1@a"]


async def test_a_cut_connection_is_made_again_by_a_heartbeat(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add_name_server()
        await w.add_broker()
        await w.add_topic("T")
        async with w.client() as instance:
            consumer = FakeConsumer("g", "T")
            await instance.register_consumer(consumer)
            await instance.refresh_route("T")
            await instance.heartbeat_all()
            await w.clock.advance(seconds=2)
            rebalances = consumer.rebalances
            w.network.cut_all()
            await w.clock.advance(seconds=2)
            assert group_ids(w, "g") == ["127.0.0.1@a"]
            assert consumer.rebalances > rebalances


async def test_everything_of_the_table_happens_in_its_time(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add_name_server()
        await w.add_broker()
        await w.add_topic("T")
        async with w.client() as instance:
            consumer = FakeConsumer("g", "T")
            await instance.register_consumer(consumer)
            await w.clock.advance(ms=11)
            assert instance.routes.get("T") is not None
            assert group_ids(w, "g") == []
            await w.clock.advance(seconds=1)
            assert group_ids(w, "g") == ["127.0.0.1@a"]
            assert consumer.persisted == 0
            await w.clock.advance(seconds=9)
            assert consumer.persisted == 1
            await w.clock.advance(seconds=10)
            assert consumer.persisted == 3


async def test_a_consumer_that_cannot_rebalance_does_not_stop_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(FakeConsumer):
        async def rebalance(self) -> bool:
            raise ZeroDivisionError

        async def persist_offsets(self) -> None:
            raise NoRouteError("no route")

    async with world(tmp_path) as w:
        await w.add_name_server()
        await w.add_broker()
        await w.add_topic("T")
        async with w.client() as instance:
            await instance.register_consumer(Broken("a", "T"))
            sound = FakeConsumer("b", "T")
            await instance.register_consumer(sound)
            instance.rebalance_soon()
            await w.clock.advance(seconds=10)
            assert sound.rebalances > 5
            assert sound.persisted == 1
    assert "cannot rebalance" in caplog.text
    assert "offsets of a are not saved" in caplog.text


async def test_a_broker_that_left_is_forgotten(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add_name_server()
        await w.add_broker("a", 20911)
        await w.add_broker("b", 20921)
        await w.add_topic("T")
        async with w.client() as instance:
            await instance.register_consumer(FakeConsumer("g", "T"))
            await instance.refresh_route("T")
            await instance.heartbeat_all()
            assert set(instance.versions) == {"127.0.0.1:20911", "127.0.0.1:20921"}
            await w.stop(w.brokers["b"])
            await w.clock.advance(seconds=62)
            assert set(instance.routes.brokers) == {"a"}
            assert set(instance.versions) == {"127.0.0.1:20911"}


async def test_topics_are_created_after_their_model(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add_name_server()
        await w.add_broker()
        await w.clock.advance(seconds=31)
        async with w.client() as instance:
            route = await instance.lookup.publish_route("New")
            assert [queue.queue_id for queue in route.publish] == [0, 1, 2, 3]
            assert await instance.lookup.master_of(route.publish[0]) == "127.0.0.1:20911"
            assert instance.routes.get("New") == route
            with pytest.raises(NoRouteError, match="No route info of this topic: Other") as caught:
                await instance.lookup.subscribe_route("Other")
            assert caught.value.response_code == 10005
            await w.clock.advance(seconds=61)
            assert instance.routes.get("New") == route  # unknown to name servers still: it stays


async def test_without_a_name_server_the_error_says_so(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.client(namesrv="127.0.0.1:1;127.0.0.1:2") as instance:
        with pytest.raises(NoNameServerError, match="no name server answers") as caught:
            await w.finish(instance.lookup.publish_route("T"))
        assert caught.value.response_code == 10004
        assert caught.value.retriable
        assert "127.0.0.1:1" in str(caught.value)
        assert "127.0.0.1:2" in str(caught.value)


async def test_use_before_and_after_its_life_is_an_error(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add_name_server()
        async with w.client() as instance:
            await instance.start()  # once more changes nothing
            link = instance.open_link()
            assert instance.open_link() is link
            await link.release()
            await link.release()
            other = instance.open_link()
            assert other is not link
            await other.release()
        with pytest.raises(ClientStateError, match="has been stopped"):
            await instance.start()
        with pytest.raises(ClientStateError, match="has been stopped"):
            instance.open_link()
        with pytest.raises(ClientStateError, match="has been stopped"):
            await instance.heartbeat_all()


async def test_stopping_ends_what_waits(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        silent = ScriptedServer(w.network, w.clock)
        silent.answer(RequestCode.GET_ROUTEINFO_BY_TOPIC, None)
        async with w.client(namesrv=await silent.start()) as instance:
            asked = [asyncio.ensure_future(instance.refresh_route("T")) for _ in range(2)]
            await w.clock.drain()
            assert len(silent.of(RequestCode.GET_ROUTEINFO_BY_TOPIC)) == 1  # shared
            asked[0].cancel()
            await w.clock.drain()
            assert asked[0].cancelled()
        with pytest.raises(ClientStateError, match="was stopped meanwhile"):
            await asked[1]
        await silent.stop()


async def test_a_link_that_was_forgotten_is_closed_with_its_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path) as w:
        await w.add_name_server()
        await w.add_broker()
        async with w.client() as instance:
            link = instance.open_link()
            await link.calls.heartbeat("127.0.0.1:20911", HeartbeatData(client_id="x"))
            assert link.connected("127.0.0.1:20911")
    assert "stops although a link of it was not released" in caplog.text
    assert not link.connected("127.0.0.1:20911")


async def test_a_stop_that_is_cancelled_goes_on(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add_name_server()
        runtime = inline_runtime(w.network, w.clock)
        instance = w.table.acquire(w.options(), "127.0.0.1@a", runtime)
        await instance.start()
        await w.clock.advance(seconds=2)
        stopping = asyncio.ensure_future(instance.release())
        await asyncio.sleep(0)
        stopping.cancel()
        await w.clock.drain()
        assert stopping.cancelled()
        assert instance.state is ServiceState.SHUTDOWN_ALREADY


async def test_other_work_is_done_again_and_again_until_it_is_ended(tmp_path: Path) -> None:
    done: list[float] = []
    async with world(tmp_path) as w:
        await w.add_name_server()

        async def work() -> None:
            done.append(w.clock.monotonic())
            if len(done) == 1:
                raise ZeroDivisionError  # is logged, and does not end it

        async with w.client() as instance:
            start = w.clock.monotonic()
            end = await instance.add_periodic("work", 3.0, 1.0, work)
            await w.clock.advance(seconds=5.5)
            assert [round(time - start, 3) for time in done] == [3.0, 4.0, 5.0]
            end()
            await w.clock.advance(seconds=5)
            assert len(done) == 3
