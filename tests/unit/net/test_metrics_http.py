"""net/metrics_http.py over real loopback sockets, on asyncio's loop and on uvloop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from skylark.core.clock import LoopClock
from skylark.core.metrics import Registry
from skylark.net import metrics_http
from skylark.net.metrics_http import MetricsServer
from skylark.net.transport import PortInUseError, TcpNetwork
from skylark.testing.virtual_clock import VirtualClock
from tests.support.loops import on_both_loops

REAL_LIMIT_SECONDS = 10.0


@contextlib.asynccontextmanager
async def serving(
    *,
    registry: Registry | None = None,
    clock: VirtualClock | None = None,
    health: Callable[[], str | None] = lambda: None,
) -> AsyncIterator[MetricsServer]:
    server = MetricsServer(
        registry or Registry(), network=TcpNetwork(), clock=clock or VirtualClock(), health=health
    )
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def ask(server: MetricsServer, request: bytes, *, half_close: bool = False) -> bytes:
    """Send bytes and read until the server shuts its side."""
    async with LoopClock().timeout(REAL_LIMIT_SECONDS):
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(request)
        if half_close:
            writer.write_eof()
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    return answer


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@on_both_loops
async def test_metrics() -> None:
    registry = Registry({"cluster": "c"})
    registry.counter("messages_total", "Grüße.").labels().value += 3
    async with serving(registry=registry) as server:
        answer = await ask(server, b"GET /metrics?x=1 HTTP/1.1\r\nHost: h\r\n\r\n")
    head, _, body = answer.partition(b"\r\n\r\n")
    assert body.decode() == registry.render()
    assert 'messages_total{cluster="c"} 3\n' in body.decode()
    assert head.decode().split("\r\n") == [
        "HTTP/1.1 200 OK",
        "Content-Type: text/plain; version=0.0.4; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
    ]


@on_both_loops
async def test_head_has_the_same_header_and_no_body() -> None:
    async with serving() as server:
        get = await ask(server, b"GET /metrics HTTP/1.1\r\n\r\n")
        head = await ask(server, b"HEAD /metrics HTTP/1.1\r\n\r\n")
    assert head == get[: get.index(b"\r\n\r\n") + 4]
    assert len(head) < len(get)


@on_both_loops
async def test_health() -> None:
    problems: list[str] = []
    async with serving(health=lambda: problems[0] if problems else None) as server:
        fine = await ask(server, b"GET /healthz HTTP/1.0\r\n\r\n")
        problems.append("disk full")
        broken = await ask(server, b"GET /healthz HTTP/1.1\r\n\r\n")
    assert fine.startswith(b"HTTP/1.1 200 OK\r\n")
    assert fine.endswith(b"\r\n\r\nok\n")
    assert broken.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert broken.endswith(b"\r\n\r\ndisk full\n")


async def test_failing_health_check_is_unhealthy(caplog: pytest.LogCaptureFixture) -> None:
    def check() -> str | None:
        raise ValueError("oops")

    async with serving(health=check) as server:
        answer = await ask(server, b"GET /healthz HTTP/1.1\r\n\r\n")
    assert status_of(answer) == 503
    assert "the health check failed" in caplog.text


@on_both_loops
async def test_request_in_single_bytes() -> None:
    async with serving() as server, LoopClock().timeout(REAL_LIMIT_SECONDS):
        reader, writer = await asyncio.open_connection(*server.address)
        for byte in b"GET /healthz HTTP/1.1\r\nHost: h\r\n\r\n":
            writer.write(bytes([byte]))
            await LoopClock().sleep(0)
        assert status_of(await reader.read()) == 200
        writer.close()
        await writer.wait_closed()


@on_both_loops
async def test_client_that_shuts_its_side_early_is_answered() -> None:
    async with serving() as server:
        answer = await ask(server, b"GET /metrics HTTP/1.1\r\n\r\n", half_close=True)
        assert status_of(answer) == 200
        assert answer.endswith(b"counter\n")
        assert status_of(await ask(server, b"GET /metrics", half_close=True)) == 400


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET / HTTP/1.1", 404),
        (b"GET /metricsx HTTP/1.1", 404),
        (b"HEAD /nothing HTTP/1.1", 404),
        (b"POST /metrics HTTP/1.1", 405),
        (b"get /metrics HTTP/1.1", 405),
        (b"GET /metrics HTTP/2.0", 400),
        (b"GET /metrics", 400),
        (b"GET metrics HTTP/1.1", 400),
        (b"GET  /metrics HTTP/1.1", 400),
        (b"\x16\x03\x01\xff\xfe", 400),
        (b"", 400),
    ],
)
async def test_refusals(request_line: bytes, status: int) -> None:
    async with serving() as server:
        answer = await ask(server, request_line + b"\r\n\r\n")
        assert status_of(answer) == status
        assert (b"\r\nAllow: GET, HEAD\r\n" in answer) == (status == 405)
        assert status_of(await ask(server, b"GET /metrics HTTP/1.1\r\n\r\n")) == 200


@on_both_loops
async def test_response_survives_an_unread_request_body() -> None:
    async with serving() as server:
        answer = await ask(server, b"POST /metrics HTTP/1.1\r\n\r\n" + b"x" * 4_000)
    assert status_of(answer) == 405
    assert answer.endswith(b"405 Method Not Allowed\n")


@on_both_loops
async def test_request_size_limit() -> None:
    padding = b"GET /healthz HTTP/1.1\r\nX: "
    fits = padding + b"x" * (metrics_http.REQUEST_SIZE_MAX - len(padding))
    async with serving() as server:
        assert status_of(await ask(server, fits + b"\r\n\r\n")) == 200
        assert status_of(await ask(server, fits + b"x\r\n\r\n")) == 431
        assert status_of(await ask(server, b"x" * (metrics_http.REQUEST_SIZE_MAX + 1))) == 431


async def test_peer_that_never_stops_sending_is_cut() -> None:
    async with serving() as server, LoopClock().timeout(REAL_LIMIT_SECONDS):
        _, writer = await asyncio.open_connection(*server.address)

        async def flood() -> None:
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            while True:
                writer.write(b"x" * 65_536)
                await writer.drain()

        with pytest.raises(ConnectionError):
            await flood()
        writer.close()
        with pytest.raises(ConnectionError):
            await writer.wait_closed()


async def test_silent_peer_gets_408_and_is_then_cut() -> None:
    clock = VirtualClock()
    async with serving(clock=clock) as server:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(b"GET /met")
        await clock.advance(9.9)
        assert not reader.at_eof()
        await clock.advance(0.1)
        async with LoopClock().timeout(REAL_LIMIT_SECONDS):
            assert status_of(await reader.read()) == 408
        assert clock.timer_count == 1
        await clock.advance(10.0)  # it keeps its own side open: cut
        assert clock.timer_count == 0
        writer.close()
        await writer.wait_closed()


async def test_peer_that_stays_after_the_answer_is_cut() -> None:
    clock = VirtualClock()
    async with serving(clock=clock) as server:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(b"GET /healthz HTTP/1.1\r\n\r\n")
        async with LoopClock().timeout(REAL_LIMIT_SECONDS):
            assert status_of(await reader.read()) == 200
        assert clock.timer_count == 1
        await clock.advance(10.0)
        assert clock.timer_count == 0
        writer.close()
        await writer.wait_closed()


async def test_connection_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_http, "CONNECTION_COUNT_MAX", 2)
    clock = VirtualClock()
    async with serving(clock=clock) as server:
        held = [await asyncio.open_connection(*server.address) for _ in range(2)]
        await clock.drain()
        assert status_of(await ask(server, b"")) == 503
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        await clock.drain()
        assert status_of(await ask(server, b"GET /healthz HTTP/1.1\r\n\r\n")) == 200


@on_both_loops
async def test_rendering_gives_way_between_metrics() -> None:
    registry = Registry()
    turns: list[str] = []
    loop = asyncio.get_running_loop()

    def sample(name: str) -> float:
        turns.append(name)
        loop.call_soon(turns.append, f"after {name}")
        return 1

    registry.gauge("a", "A.", callback=lambda: sample("a"))
    registry.gauge("b", "B.", callback=lambda: sample("b"))
    async with serving(registry=registry) as server:
        await ask(server, b"GET /metrics HTTP/1.1\r\n\r\n")
    assert turns == ["a", "after a", "b", "after b"]


@on_both_loops
async def test_stop_cuts_what_is_under_way_and_frees_the_port() -> None:
    server = MetricsServer(Registry(), network=TcpNetwork(), clock=LoopClock())
    with pytest.raises(RuntimeError, match="not started"):
        _ = server.address
    await server.start()
    host, port = server.address
    assert (host, port > 0) == ("127.0.0.1", True)
    other = MetricsServer(Registry(), network=TcpNetwork(), clock=LoopClock(), port=port)
    with pytest.raises(PortInUseError):
        await other.start()
    async with LoopClock().timeout(REAL_LIMIT_SECONDS):
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(b"GET /heal")
        await LoopClock().sleep(0)
        await server.stop()
        with pytest.raises(ConnectionError):
            await asyncio.open_connection(host, port)
        with contextlib.suppress(ConnectionResetError):  # the system may report it either way
            assert await reader.read() == b""
        writer.close()
    await server.stop()
    await other.start()
    await other.stop()
