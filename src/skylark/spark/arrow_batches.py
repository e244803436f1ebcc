"""Sizes of the Arrow batches that Python workers hold: by rows, and by bytes.

A worker holds a few batches at a time, so that this bounds its memory, whatever the size of the
messages: of a reader (one batch with Spark, one reply of a broker decoded, one under way), and of a
writer (one batch as Arrow, once more encoded as messages, and 32 MiB of requests in flight).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pyarrow as pa

#: The default size of Spark's own Arrow batches.
ROWS_MAX: Final = 10_000
BYTES_MAX: Final = 8 << 20


def cut_batch(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch in halves until each part is small enough, or one row; copies nothing."""
    if batch.num_rows > 1 and (batch.num_rows > ROWS_MAX or batch.nbytes > BYTES_MAX):
        middle = batch.num_rows // 2
        yield from cut_batch(batch.slice(0, middle))
        yield from cut_batch(batch.slice(middle))
    else:
        yield batch


def merge_batches(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Put small batches together, up to the same limits, and cut large ones; keeps the order.

    A batch costs Spark about as much as a thousand rows.
    """
    import pyarrow as pa

    waiting: list[pa.RecordBatch] = []
    row_count = size = 0
    for batch in batches:
        if waiting and (row_count + batch.num_rows > ROWS_MAX or size + batch.nbytes > BYTES_MAX):
            yield from cut_batch(pa.concat_batches(waiting))
            waiting, row_count, size = [], 0, 0
        if batch.num_rows:
            waiting.append(batch)
            row_count += batch.num_rows
            size += batch.nbytes
    if waiting:
        yield from cut_batch(pa.concat_batches(waiting))
