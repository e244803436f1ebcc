"""The cluster as driver and tasks see it: one admin client per process and connection.

Spark keeps Python workers alive between micro-batches, and may end them at any time. So the
connections are made when they are first needed, shared by everything in the process, and never
closed: they end with it. Everything runs on the private loop of the blocking clients; a
:class:`Cluster` may be used from any thread.
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
from skylark.spark.connection_options import Connection

T = TypeVar("T")


class Cluster:
    """Functions about a cluster, run and waited for."""

    def __init__(self, connection: Connection) -> None:
        self._portal = shared_portal()
        self._admin = Admin(client_options(connection))
        self._portal.call(self._admin.start())

    @property
    def session(self) -> Session:
        return self._admin.session

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the end of ``work``."""
        return self._portal.call(work)

    def iterate(self, source: AsyncGenerator[T, None]) -> Iterator[T]:
        """What ``source`` yields; leaving the iteration ends it."""
        return self._portal.iterate(source)

    def sleep(self, seconds: float) -> None:
        """Wait a while."""
        self._portal.call(self.session.clock.sleep(seconds))

    def close(self) -> None:
        """Close the connections."""
        self._portal.call(self._admin.stop())


def client_options(connection: Connection) -> ClientOptions:
    """The options of clients of this cluster."""
    acl: tuple[str, str] | tuple[str, str, str] | None = None
    if connection.access_key is not None and connection.secret_key is not None:
        acl = (connection.access_key, connection.secret_key)
        if connection.security_token is not None:
            acl = (*acl, connection.security_token)
    return ClientOptions(namesrv=connection.name_server, acl=acl)


_lock: Final = threading.Lock()
_clusters: Final[dict[tuple[int, Connection], Cluster]] = {}


def shared_cluster(connection: Connection) -> Cluster:
    """The cluster of this process; a forked child makes its own."""
    key = (os.getpid(), connection)
    with _lock:
        if key not in _clusters:
            _clusters[key] = Cluster(connection)
        return _clusters[key]


def close_clusters() -> None:
    """Let go of the connections that this process shares; the next use makes new ones."""
    with _lock:
        while _clusters:
            (process_id, _), cluster = _clusters.popitem()
            if process_id == os.getpid():
                cluster.close()
