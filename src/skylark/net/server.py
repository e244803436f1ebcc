"""The remoting server: accepts connections, limits their number, and shuts down in order.

Shutdown: stop listening; respond to new requests with GO_AWAY (1500) if the client understands it,
so that it reconnects elsewhere and repeats them; let running handlers finish within the grace time;
write the queued responses; close. No response is lost, and no step waits without a limit.

Counterpart of Java's ``NettyRemotingServer``.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from skylark.core.clock import Clock
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.inbound import FirstBytes, Owner, Watch
from skylark.net.limits import NetLimits
from skylark.net.transport import Listener, Network
from skylark.wire.command import SERIALIZE_JSON
from skylark.wire.exchange import OpaqueCounter

logger = logging.getLogger(__name__)

CloseListener = Callable[[Connection, Exception | None], None]

#: How long a cancelled handler may take to end.
CANCEL_GRACE_S = 1.0
#: Minimum time between two log lines about refused connections.
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
        watch: Watch | None = None,
    ) -> None:
        """``watch`` decides when bytes count as arrived."""
        self.dispatcher = dispatcher
        self.connections: set[Connection] = set()
        self.connections_refused = 0
        self._refusal_logged_at = -math.inf
        self._network = network
        self._clock = clock
        self._limits = limits or NetLimits()
        self._serialize_type = serialize_type
        self._holders: set[Connection] = set()
        self._owner = Owner(
            first_bytes=first_bytes,
            watch=watch,
            holders=self._holders,
            on_open=self._opened,
            on_close=self._closed,
        )
        self._opaques = OpaqueCounter()
        self._listener: Listener | None = None
        self._stopping = False
        self._close_listeners: list[CloseListener] = []

    def on_close(self, listener: CloseListener) -> None:
        """Call ``listener(connection, error)`` when a connection has ended, for any reason."""
        self._close_listeners.append(listener)

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the bound address (port 0 chooses a free port)."""
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
        """Bytes held for all clients: requests without a response yet, and unsent responses.

        Costs time for each connection that holds any: do not call it for every request.
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
            self._log_refusal(connection)
            connection.abort()
            return
        self.connections.add(connection)

    def _log_refusal(self, connection: Connection) -> None:
        """Count a refused connection; log a line for the first one in each interval only."""
        self.connections_refused += 1
        now = self._clock.monotonic()
        if now >= self._refusal_logged_at + REFUSAL_LINE_INTERVAL_S:
            logger.warning(
                "refusing %r: %d connections are open, the limit; %d refused so far",
                connection, len(self.connections), self.connections_refused,
            )  # fmt: skip
            self._refusal_logged_at = now

    def _closed(self, connection: Connection, error: Exception | None) -> None:
        if connection not in self.connections:
            return
        self.connections.discard(connection)
        for listener in self._close_listeners:
            try:
                listener(connection, error)
            except Exception:
                logger.exception("%r: a close listener failed", connection)

    async def stop(self, grace_s: float = 3.0) -> None:
        """Stop accepting, let running handlers finish for at most ``grace_s``, then close."""
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
                logger.warning("aborting %r: the peer did not read its last bytes", connection)
                connection.abort()
        await self._listener.wait_closed()

    async def _finish_tasks(self, grace_s: float) -> None:
        tasks = self.dispatcher.tasks
        try:
            async with self._clock.timeout(grace_s):
                while tasks:  # clients that do not know GO_AWAY continue to send requests
                    await asyncio.wait(tasks)
        except TimeoutError:
            logger.warning("%d requests did not finish within %.1f s", len(tasks), grace_s)

    async def _cancel_tasks(self) -> None:
        """Cancel the remaining tasks. The connections are closing, so none is added."""
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
            logger.warning("%d handlers did not end after they were cancelled", stubborn)
