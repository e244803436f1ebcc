"""Cluster client: one shared admin client per process and connection, for driver and tasks.

Spark keeps Python workers alive between micro-batches, and may end them at any time. So connections
are opened on first use, shared by the whole process, and stay open until it ends. Everything runs
on the private event loop of the blocking clients; a :class:`Cluster` may be used from any thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from typing import Any, Final, TypeVar

from skylark.admin.admin_client import Admin
from skylark.admin.admin_session import Session
from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.client.core.client_options import ClientOptions
from skylark.spark.option_table import Connection

T = TypeVar("T")


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


_lock: Final = threading.Lock()
_clusters: Final[dict[tuple[int, Connection], Cluster]] = {}


def shared_cluster(connection: Connection) -> Cluster:
    """The shared cluster client of this process; a forked child opens its own."""
    key = (os.getpid(), connection)
    with _lock:
        if key not in _clusters:
            _clusters[key] = Cluster(connection)
        return _clusters[key]


def close_clusters() -> None:
    """Close the shared connections of this process; the next use opens new ones."""
    with _lock:
        while _clusters:
            (process_id, _), cluster = _clusters.popitem()
            if process_id == os.getpid():
                cluster.close()
