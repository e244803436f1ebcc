"""HTTP endpoint of the metrics of clients, for Prometheus: ``http://<host>:<port>/metrics``.

::

    endpoint = await serve_metrics(9464)
    ...                                        # the application, with its clients
    await endpoint.stop()                      # or: async with await serve_metrics(9464): ...

A small server on the running loop (:mod:`skylark.net.metrics_http`); an application with a web
server can return ``default_registry().render()`` there instead.
:mod:`skylark.client.blocking.blocking_functions` has the blocking form.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from skylark.client.metrics import default_registry
from skylark.core.clock import LoopClock
from skylark.core.errors import ClientError, ConfigError
from skylark.core.metrics import Registry
from skylark.net.metrics_http import MetricsServer
from skylark.net.transport import ListenError, TcpNetwork

_PORT_MAX = 65_535


class MetricsEndpoint:
    """A running metrics endpoint; :func:`serve_metrics` returns it."""

    def __init__(self, server: MetricsServer) -> None:
        host, port = server.address
        #: the address for Prometheus
        self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}/metrics"
        self._server = server

    def __repr__(self) -> str:
        return f"<MetricsEndpoint {self.url}>"

    async def stop(self) -> None:
        """Stop listening and close connections; a second call does nothing."""
        await self._server.stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()


async def serve_metrics(
    port: int = 0, *, host: str = "127.0.0.1", registry: Registry | None = None
) -> MetricsEndpoint:
    """Serve the metrics of this process, or those in ``registry``, until ``stop()``.

    Port 0 is any free port; ``url`` has it. Raises ClientError if the port is in use.
    """
    if not isinstance(port, int) or not 0 <= port <= _PORT_MAX:
        raise ConfigError(
            f"port is {port!r}", hint=f"a number from 0 to {_PORT_MAX}; 0 is any that is free"
        )
    if not isinstance(host, str) or not host:
        raise ConfigError(f"host is {host!r}", hint='an address, like "127.0.0.1" or "0.0.0.0"')
    if registry is None:
        registry = default_registry()
    elif not isinstance(registry, Registry):
        raise ConfigError(
            f"registry is a {type(registry).__name__}", hint="leave it out, or make a Registry()"
        )
    server = MetricsServer(registry, network=TcpNetwork(), clock=LoopClock(), host=host, port=port)
    try:
        await server.start()
    except ListenError as error:
        raise ClientError(
            f"metrics cannot be served: {error.message}",
            hint="take another port, or 0 for any that is free",
        ) from error
    return MetricsEndpoint(server)
