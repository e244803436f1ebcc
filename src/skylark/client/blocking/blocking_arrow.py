"""Topics as Arrow, for programs without an event loop; see
:mod:`skylark.client.arrow.arrow_reader`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from skylark.client.arrow import arrow_reader as aio
from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.client.core.client_options import ClientOptions

if TYPE_CHECKING:
    import pyarrow as pa


def read_arrow(
    topic: str,
    options: ClientOptions | None = None,
    *,
    start: aio.Bound = "earliest",
    end: aio.Bound = "latest",
    tags: str | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The messages of a topic between two bounds, as an iterator of record batches.

    Batches are fetched ahead in the background, a few of them. Closing the iterator, or dropping
    it, closes the connections.
    """
    portal = shared_portal()
    portal.check()
    batches = aio.read_arrow(topic, options, start=start, end=end, tags=tags, columns=columns)
    return portal.iterate(batches)
