"""Sizes of the Arrow batches that Python workers hold: by rows, and by bytes.

A worker holds a few batches at a time, so that this bounds its memory, whatever the size of the
messages: of a reader (one batch with Spark, one reply of a broker decoded, one under way), and of a
writer (one batch as Arrow, once more encoded as messages, and 32 MiB of requests in flight).
"""

from __future__ import annotations

from collections.abc import Iterator
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
