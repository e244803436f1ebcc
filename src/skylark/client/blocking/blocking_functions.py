"""Functions of :mod:`skylark.sync` besides clients: topics as Arrow, and the metrics endpoint.

::

    for batch in read_arrow("orders", start="earliest"): ...

    serve_metrics(9464)                        # until the process ends
    with serve_metrics(9464) as endpoint: ...  # or until stop()

Both run on the private loop of the blocking clients. A forked child serves no metrics: call
``serve_metrics`` there, with another port.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Self

from skylark.client import metrics_endpoint
from skylark.client.arrow import arrow_reader
from skylark.client.blocking.blocking_client import LoopFacade, waiting
from skylark.client.blocking.event_loop_thread import EventLoopThread, shared_loop_thread
from skylark.client.core.client_options import ClientOptions
from skylark.core.metrics import Registry

if TYPE_CHECKING:
    import pyarrow as pa


def read_arrow(
    topic: str,
    options: ClientOptions | None = None,
    *,
    start: arrow_reader.Bound = "earliest",
    end: arrow_reader.Bound = "latest",
    tags: str | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages of a topic between two bounds, as an iterator of record batches.

    A few batches are fetched ahead in the background. Closing or dropping the iterator closes the
    connections.
    """
    loop_thread = shared_loop_thread()
    loop_thread.check()
    return loop_thread.iterate(
        arrow_reader.read_arrow(topic, options, start=start, end=end, tags=tags, columns=columns)
    )


class MetricsEndpoint(LoopFacade[metrics_endpoint.MetricsEndpoint]):
    """A running metrics endpoint; :func:`serve_metrics` returns it."""

    def __init__(
        self, client: metrics_endpoint.MetricsEndpoint, loop_thread: EventLoopThread
    ) -> None:
        super().__init__(client, loop_thread)
        self.url = client.url  #: where Prometheus finds the metrics

    def __repr__(self) -> str:
        return f"<sync MetricsEndpoint {self.url}>"

    stop = waiting(metrics_endpoint.MetricsEndpoint.stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def serve_metrics(
    port: int = 0, *, host: str = "127.0.0.1", registry: Registry | None = None
) -> MetricsEndpoint:
    """Serve the metrics of this process, or those in ``registry``, until ``stop()`` or its end.

    Port 0 is any free port; ``url`` has it. Raises ClientError if the port is in use.
    """
    loop_thread = shared_loop_thread()
    serving = metrics_endpoint.serve_metrics(port, host=host, registry=registry)
    return MetricsEndpoint(loop_thread.call(serving), loop_thread)
