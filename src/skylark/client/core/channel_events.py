"""Connection events: a network that notifies when a connection is made or lost.

A broker knows a client by the connection of its heartbeats. So a new connection to a broker must
bring a heartbeat at once, and a lost one must be made again, long before the next heartbeat is due.
:class:`WatchedNetwork` stands between a :class:`~skylark.net.client.RemotingClient` and its network
and tells ``watcher``. Counterpart of Java's ``ChannelEventListener``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

from skylark.core.clock import Clock
from skylark.core.names import Address
from skylark.net.connection import Connection
from skylark.net.transport import BACKLOG, Listener, Network

P = TypeVar("P", bound=asyncio.BaseProtocol)


class ChannelWatcher(Protocol):
    """Hears of connections, each by its address ``host:port``; on their loop, in a later turn."""

    def channel_opened(self, address: str) -> None:
        """There is a connection, and it is in use already."""

    def channel_lost(self, address: str) -> None:
        """A connection has ended, by either side; there may be another already."""


class WatchedNetwork:
    """``network``, with news of the connections made through it."""

    def __init__(self, network: Network, watcher: ChannelWatcher) -> None:
        self._network = network
        self._watcher = watcher

    async def listen(
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        backlog: int = BACKLOG,
        reuse_port: bool = False,
    ) -> Listener:
        return await self._network.listen(
            protocol_factory, host, port, backlog=backlog, reuse_port=reuse_port
        )

    async def connect(
        self,
        protocol_factory: Callable[[], P],
        host: str,
        port: int,
        *,
        timeout_s: float,
        clock: Clock,
    ) -> tuple[asyncio.Transport, P]:
        made = await self._network.connect(
            protocol_factory, host, port, timeout_s=timeout_s, clock=clock
        )
        address = str(Address(host, port))
        asyncio.get_running_loop().call_soon(self._watcher.channel_opened, address)
        if isinstance(made[1], Connection):
            made[1].closed.add_done_callback(lambda _: self._watcher.channel_lost(address))
        return made
