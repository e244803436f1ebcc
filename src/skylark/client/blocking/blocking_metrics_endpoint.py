"""Shows the metrics of clients to Prometheus, for programs without an event loop.

::

    serve_metrics(9464)                        # until the process ends
    with serve_metrics(9464) as endpoint: ...  # or until stop()

The server runs on the private loop of the blocking clients. In a forked child nobody serves: call
it there, with a port of its own.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from skylark.client import metrics_endpoint as aio
from skylark.client.blocking.event_loop_thread import Portal, shared_portal
from skylark.core.metrics import Registry


class MetricsEndpoint:
    """A server of metrics that runs; :func:`serve_metrics` makes it."""

    def __init__(self, portal: Portal, twin: aio.MetricsEndpoint) -> None:
        self.url = twin.url  #: where Prometheus finds the metrics
        self._portal = portal
        self._twin = twin

    def __repr__(self) -> str:
        return f"<sync MetricsEndpoint {self.url}>"

    def stop(self) -> None:
        """Stop listening, and end what is under way; again does nothing."""
        self._portal.call(self._twin.stop())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def serve_metrics(
    port: int = 0, *, host: str = "127.0.0.1", registry: Registry | None = None
) -> MetricsEndpoint:
    """Serve the metrics of this process, or those in ``registry``, until ``stop()`` or its end.

    Port 0 is any that is free: ``url`` says which. Raises ClientError if it is taken.
    """
    portal = shared_portal()
    return MetricsEndpoint(
        portal, portal.call(aio.serve_metrics(port, host=host, registry=registry))
    )
