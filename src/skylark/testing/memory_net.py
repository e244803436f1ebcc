"""A network without sockets: connections between protocols of one event loop, with faults by seed.

:class:`MemoryNetwork` stands where :class:`skylark.net.transport.TcpNetwork` would. Its transports
follow asyncio's rules (the same test suite runs over both):

* ``write`` copies, hands up to ``window_size`` bytes to the "kernel" at once, and buffers the rest;
  above the high-water mark the protocol gets ``pause_writing``, at the low one ``resume_writing``.
* Bytes arrive by ``call_soon``, in chunks of at most ``chunk_size``, while the receiver reads: one
  per turn of the loop, as with asyncio, or ``reads_per_turn``, as libuv does (32).
* ``close`` lets what was written arrive, then the peer sees end of file; ``abort`` drops what was
  still buffered. ``connection_made`` comes first, ``connection_lost`` last and once; a cut gives
  both ends ``connection_lost(ConnectionResetError)``.
* If a protocol raises, its connection ends, and the loop's exception handler is called.

Not modelled: a backlog, ``sendfile``, TLS, and the RST that TCP sends when a socket with unread
bytes is closed.

Fault points: ``memory.connect`` (ERROR: refused; DELAY, in which the caller's timeout runs) and
``memory.deliver`` for each chunk (DELAY of it and everything after it, SPLIT at a drawn position,
HALVE: the first half arrives and then the cut, CLOSE, CUT).

    caller            pending (user space)      in flight ("kernel")         receiver
    write() ------->  [.... high, low ....] --> [... window_size ...] -----> data_received()
"""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from skylark.core.clock import Clock, LoopClock, TimerHandle, yield_once
from skylark.core.errors import ConnectError
from skylark.net.transport import BACKLOG, Listener, connect_error, listen_error
from skylark.testing.fault_plan import NO_FAULT, Fault, FaultAction, FaultPlan

P = TypeVar("P", bound=asyncio.BaseProtocol)
Address = tuple[str, int]

WINDOW_SIZE = 64 * 1024
CHUNK_SIZE = 64 * 1024
FIRST_PORT = 40_000  # drawn for port 0, and for the client's end of a connection
FIRST_CLIENT_PORT = 50_000
HIGH_WATER = 64 * 1024  # asyncio's default
#: Another name of loopback here, and of nothing elsewhere: names under .invalid are never resolved.
MEMORY_HOST = "memory.invalid"
LOOPBACK = ("127.0.0.1", "localhost", "::1", MEMORY_HOST)
WILDCARDS = ("0.0.0.0", "::", "")  # noqa: S104 - names to look up, nothing is bound


class _Pipe:
    """One direction of a connection: from ``sender`` to the transport at the other end."""

    def __init__(self, network: MemoryNetwork, sender: MemoryTransport) -> None:
        self._network = network
        self._loop = asyncio.get_running_loop()
        self.sender = sender
        self.receiver: MemoryTransport = sender  # set when the two ends are joined
        self.pending = bytearray()
        self._in_flight = bytearray()
        self._ends = False  # end of file follows the last byte
        self._ended = False
        self._scheduled = False
        self._timer: TimerHandle | None = None
        self._spared = False  # the next chunk has had its fault

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.pending += data
        self._fill()

    def write_eof(self) -> None:
        self._ends = True
        self.wake()

    def wake(self) -> None:
        """See to delivery in the next turn of the loop, unless something delays it."""
        if not self._scheduled and self._timer is None:
            self._scheduled = True
            self._loop.call_soon(self._deliver)

    def stop(self) -> None:
        """Nothing arrives any more."""
        self.pending.clear()
        self._in_flight.clear()
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fill(self) -> None:
        room = self._network.window_size - len(self._in_flight)
        if room > 0 and self.pending:
            self._in_flight += self.pending[:room]
            del self.pending[:room]
        if self._in_flight or self._ends:
            self.wake()

    def _deliver(self) -> None:
        self._scheduled = False
        for _ in range(self._network.reads_per_turn):
            if self._ended or self._timer is not None or not self.receiver.takes_bytes():
                return
            if not self._in_flight:
                break
            size = self._chosen_size(min(len(self._in_flight), self._network.chunk_size))
            if size:
                self._hand_over(size)
        else:
            return
        if self._ends and not self.pending:
            self._ended = True
            self.receiver.receive_eof()

    def _hand_over(self, size: int) -> None:
        chunk = bytes(self._in_flight[:size])
        del self._in_flight[:size]
        self.receiver.receive(chunk)
        if not self._ended:
            self._fill()
            self.sender.buffer_shrank()

    def _chosen_size(self, size: int) -> int:
        """How much of the next ``size`` bytes arrives now, as the plan will have it."""
        plan, spared, self._spared = self._network.plan, self._spared, False
        if plan is None or spared:
            return size
        fault = plan.draw("memory.deliver", f"{size} bytes")
        action = fault.action
        if action is FaultAction.NONE:
            return size
        plan.hit("memory.deliver", action)
        if action is FaultAction.DELAY:
            clock = self._network.clock
            self._timer = clock.call_at(clock.monotonic() + fault.delay_ms / 1000, self._resume)
            return 0
        if action is FaultAction.SPLIT:
            return plan.stream("memory.split").randint(1, size)
        if action is FaultAction.HALVE:
            half = bytes(self._in_flight[: len(self._in_flight) // 2])
            if half:
                self.receiver.receive(half)
            self.sender.cut()
        elif action is FaultAction.CLOSE:
            self.sender.abort()
            self.receiver.abort()
        elif action is FaultAction.CUT:
            self.sender.cut()
        else:
            raise ValueError(f"memory.deliver knows nothing of {fault}")
        return 0

    def _resume(self) -> None:
        self._timer = None
        self._spared = True
        self.wake()


class MemoryTransport(asyncio.Transport):
    """One end of a connection."""

    def __init__(
        self,
        network: MemoryNetwork,
        protocol: asyncio.BaseProtocol,
        local: Address,
        remote: Address,
    ) -> None:
        super().__init__({"sockname": local, "peername": remote})
        self._network = network
        self._loop = asyncio.get_running_loop()
        self._protocol = protocol
        self._out = _Pipe(network, self)
        self._incoming: _Pipe | None = None
        self._made = False
        self._reading = True
        self._closing = False
        self._eof_written = False
        self._lost = False
        self._paused_writing = False
        self._high, self._low = HIGH_WATER, HIGH_WATER // 4

    def __repr__(self) -> str:
        local, remote = self.get_extra_info("sockname"), self.get_extra_info("peername")
        return f"<MemoryTransport {local[1]} to {remote[0]}:{remote[1]}>"

    def join(self, peer: MemoryTransport) -> None:
        """Connect the two ends; their protocols hear of it by ``open``."""
        self._out.receiver, self._incoming = peer, peer._out
        peer._out.receiver, peer._incoming = self, self._out

    def open(self) -> None:
        if not self._lost:
            self._made = True
            self._protocol.connection_made(self)
            self._wake_incoming()

    # What asyncio.Transport promises

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading and not self._closing:
            self._reading = True
            self._wake_incoming()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high}) must be >= low ({low}) must be >= 0")
        self._high, self._low = high, low
        self._pause_if_full()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def get_write_buffer_size(self) -> int:
        return len(self._out.pending)

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data must be bytes-like, not {type(data).__name__}")
        if self._eof_written:
            raise RuntimeError("cannot write after write_eof()")
        if data and not self._closing:
            self._out.write(data)
            self._pause_if_full()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if not self._closing and not self._eof_written:
            self._eof_written = True
            self._out.write_eof()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._out.write_eof()
            if not self._out.pending:
                self._lose(None)

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self._out.pending.clear()
            self._out.write_eof()
            self._lose(None)

    # What the other end and the network do to this one

    def cut(self) -> None:
        """Break the connection at both ends, as a reset does."""
        for end in (self, self._out.receiver):
            end._out.stop()
            end._closing = True
            end._lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def takes_bytes(self) -> bool:
        """Whether bytes may be handed to the protocol now (a closed end swallows them)."""
        return self._made and (self._reading or self._closing)

    def receive(self, chunk: bytes) -> None:
        if self._closing:
            return
        try:
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                self._receive_into(self._protocol, chunk)
            else:
                cast("asyncio.Protocol", self._protocol).data_received(chunk)
        except Exception as error:  # noqa: BLE001 - whatever a protocol raises ends its connection
            self._fail(error, "data_received")

    def receive_eof(self) -> None:
        if self._closing:
            return
        try:
            stays_open = cast("asyncio.Protocol", self._protocol).eof_received()
        except Exception as error:  # noqa: BLE001 - whatever a protocol raises ends its connection
            self._fail(error, "eof_received")
            return
        if not stays_open:
            self.close()

    def buffer_shrank(self) -> None:
        """Some of what was buffered has left."""
        if self._paused_writing and self.get_write_buffer_size() <= self._low:
            self._paused_writing = False
            self._call("resume_writing")
        if self._closing and not self._out.pending:
            self._lose(None)

    def _receive_into(self, protocol: asyncio.BufferedProtocol, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view and not self._closing:
            buffer = memoryview(protocol.get_buffer(len(view))).cast("B")
            if not buffer:
                raise RuntimeError("get_buffer() returned an empty buffer")
            count = min(len(buffer), len(view))
            buffer[:count] = view[:count]
            protocol.buffer_updated(count)
            view = view[count:]

    def _pause_if_full(self) -> None:
        if not self._paused_writing and self.get_write_buffer_size() > self._high:
            self._paused_writing = True
            self._call("pause_writing")

    def _call(self, method: str) -> None:
        try:
            getattr(self._protocol, method)()
        except Exception as error:  # noqa: BLE001 - asyncio reports these and goes on
            self._report(error, method)

    def _wake_incoming(self) -> None:
        if self._incoming is not None:
            self._incoming.wake()

    def _fail(self, error: Exception, method: str) -> None:
        self._report(error, method)
        self._closing = True
        self._out.pending.clear()
        self._out.write_eof()
        self._lose(error)

    def _report(self, error: Exception, method: str) -> None:
        self._loop.call_exception_handler(
            {
                "message": f"Fatal error: protocol.{method}() call failed.",
                "exception": error,
                "transport": self,
                "protocol": self._protocol,
            }
        )

    def _lose(self, error: Exception | None) -> None:
        if not self._lost:
            self._lost = True
            self._wake_incoming()  # what still comes is swallowed, and the peer can finish
            self._network.forget(self)
            self._loop.call_soon(self._call_connection_lost, error)

    def _call_connection_lost(self, error: Exception | None) -> None:
        if self._made:
            self._protocol.connection_lost(error)


class MemoryListener:
    """A :class:`~skylark.net.transport.Listener` of a :class:`MemoryNetwork`."""

    def __init__(
        self,
        network: MemoryNetwork,
        address: Address,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self._network = network
        self._address = address
        self.protocol_factory = protocol_factory

    @property
    def addresses(self) -> list[Address]:
        return [self._address]

    def close(self) -> None:
        self._network.stop_listening(self)

    async def wait_closed(self) -> None:
        await yield_once()


class MemoryNetwork:
    """All listeners and connections of one test; belongs to one event loop."""

    def __init__(
        self,
        plan: FaultPlan | None = None,
        *,
        clock: Clock | None = None,
        window_size: int = WINDOW_SIZE,
        chunk_size: int = CHUNK_SIZE,
        reads_per_turn: int = 1,
    ) -> None:
        """``reads_per_turn``: chunks that a receiver gets in one turn, while it reads."""
        self.plan = plan
        self.clock: Clock = clock or LoopClock()
        self.window_size = window_size
        self.chunk_size = chunk_size
        self.reads_per_turn = reads_per_turn
        self._listeners: dict[Address, MemoryListener] = {}
        self._ports = itertools.count(FIRST_PORT)
        self._client_ports = itertools.count(FIRST_CLIENT_PORT)
        self._transports: set[MemoryTransport] = set()

    @property
    def connection_count(self) -> int:
        """Ends of connections that are open: 0 after an orderly test."""
        return len(self._transports)

    async def listen(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        backlog: int = BACKLOG,
        reuse_port: bool = False,
    ) -> Listener:
        del backlog, reuse_port
        while port == 0:
            drawn = next(self._ports)
            port = 0 if (host, drawn) in self._listeners else drawn
        address = (host, port)
        if address in self._listeners:
            raise listen_error(host, port, OSError(errno.EADDRINUSE, ""))
        listener = self._listeners[address] = MemoryListener(self, address, protocol_factory)
        return listener

    async def connect(
        self,
        protocol_factory: Callable[[], P],
        host: str,
        port: int,
        *,
        timeout_s: float,
        clock: Clock,
    ) -> tuple[asyncio.Transport, P]:
        fault = self._connect_fault(f"{host}:{port}")
        try:
            async with clock.timeout(timeout_s):
                await self.clock.sleep(fault.delay_ms / 1000)
        except TimeoutError as error:
            raise ConnectError(f"no connection to {host}:{port} within {timeout_s:g} s") from error
        listener = self._find(host, port)
        if listener is None or fault.action is FaultAction.ERROR:
            number = fault.error or errno.ECONNREFUSED
            raise connect_error(host, port, OSError(number, os.strerror(number)))
        return self._join(protocol_factory(), listener.protocol_factory(), (host, port))

    def cut_all(self) -> int:
        """Reset every connection; returns how many there were."""
        ends = list(self._transports)
        for end in ends:
            end.cut()
        return len(ends) // 2

    def _connect_fault(self, address: str) -> Fault:
        if self.plan is None:
            return NO_FAULT
        fault = self.plan.draw("memory.connect", address)
        if fault.action not in (FaultAction.NONE, FaultAction.ERROR, FaultAction.DELAY):
            raise ValueError(f"memory.connect knows nothing of {fault}")
        if fault.action is not FaultAction.NONE:
            self.plan.hit("memory.connect", fault.action)
        return fault

    def _find(self, host: str, port: int) -> MemoryListener | None:
        names = (host, *LOOPBACK, *WILDCARDS) if host in LOOPBACK else (host, *WILDCARDS)
        return next((found for name in names if (found := self._listeners.get((name, port)))), None)

    def _join(
        self, protocol: P, server_protocol: asyncio.BaseProtocol, address: Address
    ) -> tuple[asyncio.Transport, P]:
        client_address = (address[0], next(self._client_ports))
        client = MemoryTransport(self, protocol, client_address, address)
        server = MemoryTransport(self, server_protocol, address, client_address)
        client.join(server)
        self._transports |= {client, server}
        asyncio.get_running_loop().call_soon(server.open)
        client.open()
        return client, protocol

    # What listeners, transports and pipes tell their network

    def stop_listening(self, listener: MemoryListener) -> None:
        address = listener.addresses[0]
        if self._listeners.get(address) is listener:
            del self._listeners[address]

    def forget(self, transport: MemoryTransport) -> None:
        self._transports.discard(transport)
