"""Routes that are kept fresh: who asks, who shares, what stays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from skylark.core.errors import NoNameServerError
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from tests.unit.client.scripted import ScriptedServer
from tests.unit.client.worlds import FakeConsumer, FakeProducer, world

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


async def test_a_topic_younger_than_the_question_under_way_is_found(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        address = await server.start()
        async with w.client(namesrv=address) as instance:
            gate = asyncio.Event()

            def not_yet(request: Command) -> Command:
                gate.set()
                return response_to(request, 17, "no")

            server.answer(ROUTE, not_yet)
            early = asyncio.ensure_future(instance.refresh_route("T"))
            await gate.wait()  # the server has answered, the client has not heard of it
            server.serve_route("T", a=address)
            late = [asyncio.ensure_future(instance.refresh_route("T")) for _ in range(2)]
            await w.clock.drain()
            assert await early is None
            routes = [await each for each in late]
            assert routes[0] is not None
            assert routes[0] is routes[1]
            assert len(server.of(ROUTE)) == 2
        await w.finish(server.stop())


async def test_an_answer_that_has_come_is_not_for_those_who_ask_afterwards(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        address = await server.start()
        server.serve_route("T", a=address)
        async with w.client(namesrv=address) as instance:

            async def unknown() -> None:
                """The outcome of a question from before the topic was made."""

            old = asyncio.ensure_future(unknown())
            await old
            instance._parts().routes._under_way["T", 0, ""] = old  # its end is not noticed yet
            assert await w.finish(instance.refresh_route("T")) is not None
        await w.finish(server.stop())


async def test_an_error_reaches_all_who_ask(tmp_path: Path) -> None:
    async with world(tmp_path) as w, w.client(namesrv="127.0.0.1:1") as instance:
        asked = [asyncio.ensure_future(instance.refresh_route("T")) for _ in range(3)]
        for each in asked:
            with pytest.raises(NoNameServerError):
                await w.finish(each)


async def test_the_round_goes_on_after_a_topic_that_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        served = server.serve_route("Z", a=await server.start())

        def answer(request: Command) -> Command:
            topic = (request.ext or {})["topic"]
            return response_to(request, 16, "not yours") if topic == "A" else served(request)

        server.answer(ROUTE, answer)
        async with w.client(namesrv=server.address) as instance:
            for topic in ("A", "%RETRY%g", "Z"):
                await instance.register_producer(FakeProducer(topic, topic))
            await instance.register_consumer(FakeConsumer("g", "Unknown"))
            await w.clock.advance(seconds=61)
            assert instance.routes.get("Z") is not None
        assert caplog.text.count("cannot refresh the route of A: not yours") == 3
        assert caplog.text.count("topic Unknown does not exist yet") == 1  # told once
        assert "%RETRY%g" not in caplog.text
        await w.finish(server.stop())


async def test_a_topic_made_after_its_consumer_is_found_and_its_queues_are_shared_out(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        address = await server.start()
        server.answer(ROUTE, lambda request: response_to(request, 17, "no"))
        async with w.client(namesrv=address) as instance:
            consumer = FakeConsumer("g", "Late")
            await instance.register_consumer(consumer)
            await w.clock.advance(seconds=5)
            assert instance.routes.get("Late") is None
            before = consumer.rebalances
            server.serve_route("Late", a=address)
            await w.clock.advance(seconds=2)  # asked after 0.2, 0.6, 1.4, 3 and 6.2 seconds
            assert instance.routes.get("Late") is not None
            assert consumer.rebalances > before
        await w.finish(server.stop())


async def test_a_topic_that_nobody_waits_for_is_not_asked_for_again(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        address = await server.start()
        server.answer(ROUTE, lambda request: response_to(request, 17, "no"))
        async with w.client(namesrv=address) as instance:
            await instance.register_producer(FakeProducer("p", "Unmade"))
            await w.clock.advance(seconds=25)
            assert len(server.of(ROUTE)) == 1
        await w.finish(server.stop())


async def test_a_topic_not_found_before_its_consumer_joined_is_looked_for_until_it_exists(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        address = await server.start()
        server.answer(ROUTE, lambda request: response_to(request, 17, "no"))
        async with w.client(namesrv=address) as instance:
            assert await w.finish(instance.refresh_route("Late")) is None  # a consumer starts
            assert "Late" not in caplog.text
            consumer = FakeConsumer("g", "Late")
            await w.finish(instance.register_consumer(consumer))
            await w.clock.advance(seconds=0.7)
            assert len(server.of(ROUTE)) == 3
            await w.clock.advance(seconds=300)
            few = len(server.of(ROUTE))
            assert few <= 3 + 6 + 300 / 30  # the periodic round does not ask besides
            assert caplog.text.count("topic Late does not exist yet") == 1
            server.serve_route("Late", a=address)
            await w.clock.advance(seconds=31)
            assert instance.routes.get("Late") is not None
            found = len(server.of(ROUTE))
            await w.clock.advance(seconds=20)
            assert len(server.of(ROUTE)) - found <= 1  # the periodic round
        await w.finish(server.stop())


async def test_a_topic_that_no_consumer_wants_any_more_is_not_looked_for(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        address = await server.start()
        server.answer(ROUTE, lambda request: response_to(request, 17, "no"))
        async with w.client(namesrv=address) as instance:
            consumer = FakeConsumer("g", "Late")
            await w.finish(instance.register_consumer(consumer))
            await w.finish(instance.refresh_route("Late"))
            await w.finish(instance.unregister_consumer(consumer))
            before = len(server.of(ROUTE))
            await w.clock.advance(seconds=20)
            assert len(server.of(ROUTE)) == before
        await w.finish(server.stop())
