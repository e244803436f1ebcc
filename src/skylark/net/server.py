"""The listening side: accepts connections, counts them, and shuts down in order.

Shutdown: stop listening; answer new requests with GO_AWAY (1500) where the client understands it,
so that it reconnects elsewhere and repeats; let handlers at work finish within the grace time;
write out what is queued; close. Nothing that was answered is lost, nothing hangs.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from skylark.core.clock import Clock
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.inbound import FirstBytes, Owner, Stamp
from skylark.net.limits import NetLimits
from skylark.net.transport import Listener, Network
from skylark.wire.command import SERIALIZE_JSON
from skylark.wire.exchange import OpaqueCounter

log = logging.getLogger(__name__)

CloseListener = Callable[[Connection, Exception | None], None]

#: What a handler gets to end after it was cancelled.
CANCEL_GRACE_S = 1.0
#: Time between two log lines about refused connections.
REFUSAL_LINE_INTERVAL_S = 10.0


class RemotingServer:
    """Serves one port with one dispatcher. ``start`` and ``stop`` once each."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        network: Network,
        clock: Clock,
        *,
        limits: NetLimits | None = None,
        serialize_type: int = SERIALIZE_JSON,
        first_bytes: FirstBytes | None = None,
        stamp: Stamp | None = None,
    ) -> None:
        """``stamp`` tells when bytes that are read count as arrived (see ``inbound.Owner``)."""
        self.dispatcher = dispatcher
        self.connections: set[Connection] = set()
        self.connections_refused = 0
        self._refusals_said_at = -math.inf
        self._network = network
        self._clock = clock
        self._limits = limits or NetLimits()
        self._serialize_type = serialize_type
        self._holders: set[Connection] = set()
        self._owner = Owner(
            first_bytes=first_bytes,
            stamp=stamp,
            holders=self._holders,
            on_open=self._opened,
            on_close=self._closed,
        )
        self._opaques = OpaqueCounter()
        self._listener: Listener | None = None
        self._stopping = False
        self._close_listeners: list[CloseListener] = []

    def on_close(self, listener: CloseListener) -> None:
        """Call ``listener(connection, error)`` whenever a connection has ended, for any reason."""
        self._close_listeners.append(listener)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the address really bound (port 0 draws a free one)."""
        if self._listener is not None:
            raise RuntimeError("the server has been started before")
        self._listener = await self._network.listen(self._make_connection, host, port)
        return self.address

    @property
    def address(self) -> tuple[str, int]:
        if self._listener is None:
            raise RuntimeError("the server has not been started")
        return self._listener.addresses[0]

    def held_size(self) -> int:
        """Bytes held for all clients: requests not answered yet, and answers not read yet.

        Takes time for each connection that holds any, so not to be asked for every request.
        """
        size = 0
        for connection in tuple(self._holders):
            held_size = connection.held_size
            if held_size:
                size += held_size
            else:
                self._holders.discard(connection)
        return size

    def _make_connection(self) -> Connection:
        return Connection(
            self.dispatcher,
            self._clock,
            self._limits,
            opaques=self._opaques,
            serialize_type=self._serialize_type,
            owner=self._owner,
        )

    def _opened(self, connection: Connection) -> None:
        if self._stopping:  # accepted by the system before the listener closed
            connection.abort()
            return
        if len(self.connections) >= self._limits.connections_max:
            self._note_refusal(connection)
            connection.abort()
            return
        self.connections.add(connection)

    def _note_refusal(self, connection: Connection) -> None:
        """A crowd at the door must not fill the log: one line now and then, with their number."""
        self.connections_refused += 1
        now = self._clock.monotonic()
        if now >= self._refusals_said_at + REFUSAL_LINE_INTERVAL_S:
            log.warning(
                "%r refused, %d so far: %d connections are open, the limit",
                connection, self.connections_refused, len(self.connections),
            )  # fmt: skip
            self._refusals_said_at = now

    def _closed(self, connection: Connection, error: Exception | None) -> None:
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        for listener in self._close_listeners:
            try:
                listener(connection, error)
            except Exception:
                log.exception("%r: a close listener failed", connection)

    async def stop(self, grace_s: float = 3.0) -> None:
        """Stop accepting, let work in hand finish for at most ``grace_s``, then close."""
        if self._listener is None:
            return
        self._stopping = True
        self.dispatcher.shutting_down = True
        self._listener.close()
        await self._finish_tasks(grace_s)
        for connection in tuple(self.connections):
            connection.close()
        await self._cancel_tasks()
        try:
            async with self._clock.timeout(grace_s):
                while self.connections:
                    await asyncio.wait([connection.closed for connection in self.connections])
        except TimeoutError:
            for connection in tuple(self.connections):
                log.warning("%r did not take its last bytes, cut off", connection)
                connection.abort()
        await self._listener.wait_closed()

    async def _finish_tasks(self, grace_s: float) -> None:
        tasks = self.dispatcher.tasks
        try:
            async with self._clock.timeout(grace_s):
                while tasks:  # clients that do not know GO_AWAY go on asking meanwhile
                    await asyncio.wait(tasks)
        except TimeoutError:
            log.warning("%d requests did not finish within %.1f s", len(tasks), grace_s)

    async def _cancel_tasks(self) -> None:
        """End what is left. The connections are closing, so nothing new begins."""
        late = tuple(self.dispatcher.tasks)
        if not late:
            return
        for task in late:
            task.cancel()
        try:
            async with self._clock.timeout(CANCEL_GRACE_S):
                await asyncio.wait(late)
        except TimeoutError:
            stubborn = sum(not task.done() for task in late)
            log.warning("%d handlers do not end although they were cancelled", stubborn)
