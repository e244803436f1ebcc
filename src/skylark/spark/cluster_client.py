"""Cluster client: one shared admin client per process and connection, for driver and tasks.

Spark keeps Python workers alive between micro-batches, and may end them at any time. So connections
are opened on first use, shared by the whole process, and stay open until it ends. Everything runs
on the private event loop of the blocking clients; a :class:`Cluster` may be used from any thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Final, Generic, TypeVar

from skylark.admin.admin_client import Admin
from skylark.admin.admin_session import Session
from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.client.core.client_options import ClientOptions
from skylark.spark.option_table import Connection

T = TypeVar("T")
K = TypeVar("K")


class Cluster:
    """Runs coroutines on an admin session and waits for their results."""

    def __init__(self, connection: Connection) -> None:
        self._portal = shared_portal()
        self._admin = Admin(client_options(connection))
        self._portal.call(self._admin.start())

    @property
    def session(self) -> Session:
        return self._admin.session

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` and return its result."""
        return self._portal.call(work)

    def iterate(self, source: AsyncGenerator[T, None]) -> Iterator[T]:
        """Iterate over an async generator; leaving the loop closes it."""
        return self._portal.iterate(source)

    def sleep(self, seconds: float) -> None:
        """Sleep by the clock of the session."""
        self._portal.call(self.session.clock.sleep(seconds))

    def close(self) -> None:
        """Close the connections."""
        self._portal.call(self._admin.stop())


def client_options(connection: Connection) -> ClientOptions:
    """Client options for a connection."""
    acl: tuple[str, str] | tuple[str, str, str] | None = None
    if connection.access_key is not None and connection.secret_key is not None:
        acl = (connection.access_key, connection.secret_key)
        if connection.security_token is not None:
            acl = (*acl, connection.security_token)
    return ClientOptions(namesrv=connection.name_server, acl=acl)


class SharedClients(Generic[K, T]):
    """The clients that this process shares, one per key; a forked child opens its own."""

    def __init__(self, make: Callable[[K], T], close: Callable[[T], object]) -> None:
        self._make = make
        self._close = close
        self._lock = threading.Lock()
        self._clients: dict[tuple[int, K], T] = {}

    def get(self, key: K) -> T:
        """The client for ``key``, opened on first use."""
        mine = (os.getpid(), key)
        with self._lock:
            if mine not in self._clients:
                self._clients[mine] = self._make(key)
            return self._clients[mine]

    def close(self) -> None:
        """Close the clients of this process; the next use opens new ones."""
        with self._lock:
            while self._clients:
                (process_id, _), client = self._clients.popitem()
                if process_id == os.getpid():
                    self._close(client)


_clusters: Final = SharedClients(Cluster, Cluster.close)
#: The shared cluster client of this process for a connection.
shared_cluster: Final = _clusters.get
close_clusters: Final = _clusters.close
