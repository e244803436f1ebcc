"""The metrics endpoint: a minimal HTTP/1.1 server for Prometheus and liveness probes.

===========  ================================================================================
/metrics     200 with the registry's text
/healthz     200 ``ok``, or 503 with the problem
other path   404; other method than GET and HEAD: 405; unreadable request: 400
===========  ================================================================================

One request per connection: every response has ``Content-Length`` and ``Connection: close``. After
it the server shuts its write side, and reads and drops what the peer still sends: closing a socket
with unread data resets it and can destroy the response on its way.

Limits: size of a request (431), time for the whole exchange (408 while the request is incomplete,
then the connection is aborted), number of connections (503).

The server renders one metric per turn of the event loop, so that a scrape of a broker with many
topics does not delay messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from http import HTTPStatus
from typing import Final, cast

from skylark.core.clock import Clock, TimerHandle
from skylark.core.metrics import CONTENT_TYPE, Registry
from skylark.net.transport import Listener, Network

logger = logging.getLogger(__name__)

REQUEST_SIZE_MAX: Final = 8 * 1024
EXCHANGE_SECONDS_MAX: Final = 10.0
CONNECTION_COUNT_MAX: Final = 32

_PLAIN: Final = "text/plain; charset=utf-8"


class MetricsServer:
    """Serves one registry; a component with ``start`` and ``stop``.

    ``health`` returns None if the process is healthy, or a sentence about the problem. It must not
    block.
    """

    def __init__(
        self,
        registry: Registry,
        *,
        network: Network,
        clock: Clock,
        host: str = "127.0.0.1",
        port: int = 0,
        health: Callable[[], str | None] = lambda: None,
    ) -> None:
        self.registry = registry
        self.clock = clock
        self._health = health
        self._network = network
        self._host = host
        self._port = port
        self._listener: Listener | None = None
        self._exchanges: set[_Exchange] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def address(self) -> tuple[str, int]:
        """The bound address; only while started."""
        if self._listener is None:
            raise RuntimeError("the metrics server is not started")
        return self._listener.addresses[0]

    async def start(self) -> None:
        self._listener = await self._network.listen(lambda: _Exchange(self), self._host, self._port)
        logger.info("serving metrics on http://%s:%s/metrics", *self.address)

    async def stop(self) -> None:
        """Stop listening and abort open exchanges."""
        if self._listener is None:
            return
        self._listener.close()
        for exchange in tuple(self._exchanges):
            exchange.abort()
        await self._idle.wait()
        await self._listener.wait_closed()
        self._listener = None

    def check_health(self) -> str | None:
        """The problem, or None; a health check that raises is a problem, too."""
        try:
            return self._health()
        except Exception:
            logger.exception("the health check failed")
            return "the health check failed"

    def enter(self, exchange: _Exchange) -> bool:
        """Add a connection; returns whether it is within the limit."""
        self._exchanges.add(exchange)
        self._idle.clear()
        return len(self._exchanges) <= CONNECTION_COUNT_MAX

    def leave(self, exchange: _Exchange) -> None:
        self._exchanges.discard(exchange)
        if not self._exchanges:
            self._idle.set()


class _Exchange(asyncio.Protocol):
    """One connection: reads a request, sends the response, drops the rest."""

    def __init__(self, server: MetricsServer) -> None:
        self._server = server
        self._received = bytearray()
        self._served = False  # the request was read; its response may still be rendered
        self._answered = False
        self._peer_done = False  # the peer sends no more, or its request is not read
        self._dropped_size = 0
        self._transport: asyncio.Transport | None = None
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # a cast, not a check: uvloop's transports do not derive from asyncio's
        self._transport = cast(asyncio.Transport, transport)
        self._timer = self._server.clock.call_later(EXCHANGE_SECONDS_MAX, self._out_of_time)
        if not self._server.enter(self):
            self._peer_done = True
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE, "too many connections\n")

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
        self._server.leave(self)

    def data_received(self, data: bytes) -> None:
        if self._served or self._answered:
            self._dropped_size += len(data)
            if self._dropped_size > REQUEST_SIZE_MAX:
                self.abort()
            return
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if max(end, 0) > REQUEST_SIZE_MAX or (end < 0 and len(self._received) > REQUEST_SIZE_MAX):
            self._answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif end >= 0:
            self._served = True
            self._serve(bytes(self._received[:end]).partition(b"\r\n")[0])

    def eof_received(self) -> bool:
        self._peer_done = True
        if not self._served and not self._answered:
            self._answer(HTTPStatus.BAD_REQUEST)
        return not self._answered  # False: the transport closes after its last write

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _out_of_time(self) -> None:
        if self._answered:
            self.abort()
            return
        self._timer = self._server.clock.call_later(EXCHANGE_SECONDS_MAX, self.abort)
        self._answer(HTTPStatus.REQUEST_TIMEOUT)

    def _serve(self, request_line: bytes) -> None:
        words = request_line.decode("iso-8859-1").split(" ")
        if len(words) != 3 or not words[1].startswith("/") or not words[2].startswith("HTTP/1."):
            self._answer(HTTPStatus.BAD_REQUEST)
            return
        method, path = words[0], words[1].partition("?")[0]
        with_body = method != "HEAD"
        if method not in ("GET", "HEAD"):
            self._answer(HTTPStatus.METHOD_NOT_ALLOWED, extra="Allow: GET, HEAD\r\n")
        elif path == "/metrics":
            self._render(self._server.registry.render_parts(), [], with_body)
        elif path == "/healthz":
            problem = self._server.check_health()
            status = HTTPStatus.OK if problem is None else HTTPStatus.SERVICE_UNAVAILABLE
            self._answer(status, f"{problem or 'ok'}\n", with_body=with_body)
        else:
            self._answer(HTTPStatus.NOT_FOUND, with_body=with_body)

    def _render(self, rest: Iterator[str], parts: list[str], with_body: bool) -> None:
        if self._transport is None:
            return
        part = next(rest, None)
        if part is None:
            self._answer(
                HTTPStatus.OK, "".join(parts), content_type=CONTENT_TYPE, with_body=with_body
            )
            return
        parts.append(part)
        asyncio.get_running_loop().call_soon(self._render, rest, parts, with_body)

    def _answer(
        self,
        status: HTTPStatus,
        text: str | None = None,
        *,
        content_type: str = _PLAIN,
        extra: str = "",
        with_body: bool = True,
    ) -> None:
        self._answered = True
        self._received.clear()
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        body = (f"{status.value} {status.phrase}\n" if text is None else text).encode()
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\n"
            f"Content-Length: {len(body)}\r\n{extra}Connection: close\r\n\r\n"
        )
        transport.write(head.encode("ascii") + body if with_body else head.encode("ascii"))
        if self._peer_done or not transport.can_write_eof():
            transport.close()
        else:
            transport.write_eof()
