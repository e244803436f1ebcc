"""The network seam: all code that listens or connects does so through a :class:`Network`.

:class:`TcpNetwork` uses sockets. ``skylark.testing.memory_net.MemoryNetwork`` carries bytes between
protocols of one event loop without sockets, and can lose, delay and cut them by seed. Code above
this seam uses only asyncio transports and protocols, so the same server and client run on both
networks, with asyncio's loop and with uvloop.

* ``TCP_NODELAY`` is on: responses are small, and those of a batch are written together.
* ``SO_KEEPALIVE`` is off, as in Java: idle timeouts and heartbeats find dead peers much sooner.
* A closed listener accepts no more connections, and its port is free after ``wait_closed``.
  Accepted connections stay open and belong to the server; ``wait_closed`` does not wait for them
  (asyncio does since 3.12).

Error messages contain address, cause and, if there is one, a remedy (Java:
``RemotingConnectException``, ``BindException``).
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from typing import ClassVar, Protocol, TypeVar

from skylark.core.clock import Clock, yield_once
from skylark.core.errors import ConnectError, TransportError

P = TypeVar("P", bound=asyncio.BaseProtocol)

BACKLOG = 1024  # Netty's default in RocketMQ (serverSocketBacklog)


class ListenError(TransportError):
    """The server cannot listen on the address."""

    retriable: ClassVar[bool] = False


class PortInUseError(ListenError):
    """Another socket listens on this port already."""


class Listener(Protocol):
    """A bound address that accepts connections."""

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """The bound addresses, in order; port 0 is replaced by the real port."""

    def close(self) -> None:
        """Accept no more connections; accepted ones stay open. May be called again."""

    async def wait_closed(self) -> None:
        """Return once the port is free."""


class Network(Protocol):
    """Listens for and makes connections."""

    async def listen(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        backlog: int = BACKLOG,
        reuse_port: bool = False,
    ) -> Listener:
        """Accept connections on ``host:port``, each with a new protocol.

        Port 0 chooses a free port. Raises PortInUseError or another ListenError.
        """

    async def connect(
        self,
        protocol_factory: Callable[[], P],
        host: str,
        port: int,
        *,
        timeout_s: float,
        clock: Clock,
    ) -> tuple[asyncio.Transport, P]:
        """Connect within ``timeout_s``, name resolution included, or raise ConnectError."""


class TcpListener:
    """An ``asyncio`` or uvloop server as a :class:`Listener`."""

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        names = [listening.getsockname() for listening in server.sockets]
        self._addresses = [(str(name[0]), int(name[1])) for name in names]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        return list(self._addresses)

    def close(self) -> None:
        # If the server closes now, a connection that is accepted but has no transport yet leaks.
        # So stop accepting, and close in the next turn.
        if isinstance(self._loop, asyncio.SelectorEventLoop):
            for listening in self._server.sockets:
                self._loop.remove_reader(listening.fileno())
        self._loop.call_soon(self._server.close)

    async def wait_closed(self) -> None:
        await yield_once()


class TcpNetwork:
    """TCP on the running event loop."""

    async def listen(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        backlog: int = BACKLOG,
        reuse_port: bool = False,
    ) -> Listener:
        try:
            server = await asyncio.get_running_loop().create_server(
                protocol_factory, host, port, backlog=backlog, reuse_port=reuse_port or None
            )
        except OSError as error:
            raise listen_error(host, port, error) from error
        return TcpListener(server)

    async def connect(
        self,
        protocol_factory: Callable[[], P],
        host: str,
        port: int,
        *,
        timeout_s: float,
        clock: Clock,
    ) -> tuple[asyncio.Transport, P]:
        try:
            async with clock.timeout(timeout_s):
                return await asyncio.get_running_loop().create_connection(
                    protocol_factory, host, port
                )
        except TimeoutError as error:
            raise ConnectError(f"no connection to {host}:{port} within {timeout_s:g} s") from error
        except OSError as error:
            raise connect_error(host, port, error) from error


def listen_error(host: str, port: int, error: OSError) -> ListenError:
    """The error for a failed bind, with a hint."""
    kind, hint = ListenError, None
    if error.errno == errno.EADDRINUSE:
        kind = PortInUseError
        hint = f"stop what listens on port {port}, or set another listenPort"
    elif error.errno == errno.EACCES:
        hint = "ports below 1024 need privileges: choose a higher listenPort"
    elif error.errno == errno.EADDRNOTAVAIL:
        hint = "bindAddress must be an address of this machine"
    return kind(f"cannot listen on {host}:{port}: {_cause(error)}", hint=hint)


def connect_error(host: str, port: int, error: OSError) -> ConnectError:
    """The error for a failed connection attempt, with a hint."""
    cause, hint = _cause(error), None
    if isinstance(error, ConnectionRefusedError):
        cause = f"nothing listens there ({cause})"
        hint = "start the server, or correct the address"
    elif isinstance(error, socket.gaierror):
        hint = f"the name {host} cannot be resolved"
    return ConnectError(f"no connection to {host}:{port}: {cause}", hint=hint)


def _cause(error: OSError) -> str:
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    # asyncio and uvloop have different texts for the same error; the system has one
    return os.strerror(error.errno)


def address_of(name: object) -> tuple[str, int]:
    """Host and port of a transport's ``peername`` or ``sockname``; (name, 0) for other sockets."""
    if isinstance(name, tuple) and len(name) >= 2:
        return str(name[0]), int(name[1])
    return (str(name or ""), 0)
