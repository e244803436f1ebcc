"""Links: shared per loop, with back-pressure and the second port."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from skylark.client.core.broker_calls import vip_address
from skylark.core.errors import (
    ClientStateError,
    ConnectError,
    ConnectionClosedError,
    RequestTimeoutError,
    TooManyRequestsError,
)
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import HeartbeatData
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from tests.unit.client.scripted import ScriptedServer
from tests.unit.client.worlds import world

QUEUE = MessageQueue(topic="T", broker_name="a", queue_id=1)


async def test_requests_beyond_the_limit_wait_their_time(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        server.answer(1, None)
        address = await server.start()
        async with w.client(namesrv=address, in_flight_max=2) as instance:
            link = instance.open_link()
            calls = [
                asyncio.ensure_future(link.call(address, Command(code=1), timeout))
                for timeout in (5.0, 9.0, 2.0, 9.0)
            ]
            await w.clock.drain()
            assert (link.permits.count, len(server.requests)) == (2, 2)
            await w.clock.advance(seconds=2)
            with pytest.raises(TooManyRequestsError, match="2 requests of 0 bytes"):
                await calls[2]
            await w.clock.advance(seconds=3)
            with pytest.raises(RequestTimeoutError):
                await calls[0]
            assert len(server.requests) == 3  # the fourth had its turn, within its 9 seconds
            await w.clock.advance(seconds=4)
            for call in (calls[1], calls[3]):
                with pytest.raises(TimeoutError):
                    await call
            assert (link.permits.count, link.permits.size) == (0, 0)
            await link.release()
        await w.finish(server.stop())


async def test_a_cancelled_call_gives_its_permit_back(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        server.answer(1, None)
        address = await server.start()
        async with w.client(namesrv=address) as instance:
            link = instance.open_link()
            call = asyncio.ensure_future(link.call(address, Command(code=1, body=b"12345")))
            await w.clock.drain()
            assert (link.permits.count, link.permits.size) == (1, 5)
            call.cancel()
            await w.clock.drain()
            assert (link.permits.count, link.permits.size) == (0, 0)
            await link.release()
        await w.finish(server.stop())


async def test_closing_fails_what_is_under_way(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        server.answer(1, None)
        address = await server.start()
        async with w.client(namesrv=address) as instance:
            link = instance.open_link()
            call = asyncio.ensure_future(link.call(address, Command(code=1)))
            await w.clock.drain()
            await w.finish(link.release())
            with pytest.raises(ConnectionClosedError):
                await call
            with pytest.raises(ConnectError, match="closed"):
                await link.call(address, Command(code=1))
            with pytest.raises(ClientStateError, match="closed"):
                link.add_user()
        await w.finish(server.stop())


async def test_the_second_port_is_used_for_what_it_is_for(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        main, fast = ScriptedServer(w.network, w.clock), ScriptedServer(w.network, w.clock)
        await main.start("127.0.0.1", 20911)
        await fast.start("127.0.0.1", 20909)
        for server in (main, fast):
            server.answer_ok(RequestCode.GET_MAX_OFFSET, {"offset": "9"})
            server.answer(RequestCode.UPDATE_CONSUMER_OFFSET, 0)
        async with w.client(namesrv=main.address, vip_channel=True) as instance:
            link = instance.open_link()
            assert link.send_address("127.0.0.1:20911") == "127.0.0.1:20909"
            await link.calls.heartbeat(main.address, HeartbeatData(client_id="x"))
            assert await link.calls.max_offset(main.address, QUEUE) == 9
            await link.calls.update_offset(main.address, "g", QUEUE, 5, oneway=True)
            await link.calls.unlock_queues(main.address, "g", "x", [QUEUE], oneway=True)
            await link.calls.unregister(main.address, "x", producer_group="p")
            await w.clock.drain()
            await link.release()
        assert [request.code for request in main.requests] == [34, 35]
        assert [request.code for request in fast.requests] == [30, 15, 42]
        await w.finish(main.stop())
        await w.finish(fast.stop())


def test_the_second_port_is_two_below() -> None:
    assert vip_address("10.0.0.1:10911") == "10.0.0.1:10909"
    assert vip_address("[::1]:10911") == "[::1]:10909"


async def test_hooks_of_the_application_see_every_request(tmp_path: Path) -> None:
    class Hook:
        def __init__(self) -> None:
            self.seen: list[tuple[str, int]] = []

        def before_request(self, address: str, request: Command) -> None:
            if request.code == 13:
                raise PermissionError("not this one")
            self.seen.append((address, request.code))

        def after_response(self, address: str, request: Command, response: Command) -> None:
            self.seen.append((address, -response.code))

    hook = Hook()
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        server.answer(1, 16)
        address = await server.start()
        async with w.client(namesrv=address, rpc_hooks=(hook,)) as instance:
            link = instance.open_link()
            await link.call(address, Command(code=1))
            with pytest.raises(PermissionError):
                await link.call(address, Command(code=13))
            assert hook.seen == [(address, 1), (address, -16)]
            assert link.permits.count == 0
            await link.release()
        await w.finish(server.stop())


async def test_a_forked_child_touches_no_socket_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        address = await server.start()
        async with w.client(namesrv=address) as instance:
            link = instance.open_link()
            with monkeypatch.context() as child:
                child.setattr(os, "getpid", lambda: -1)
                for use in (
                    link.call(address, Command(code=1)),
                    link.oneway(address, Command(code=1)),
                    link.call_name_server(address, Command(code=1)),
                    link.release(),
                    instance.release(),
                    instance.heartbeat_all(),
                ):
                    with pytest.raises(ClientStateError, match="was forked"):
                        await use
                with pytest.raises(ClientStateError, match="was forked"):
                    instance.open_link()
            assert server.requests == []
            await link.release()
        await w.finish(server.stop())
