"""Sizes of Arrow batches."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.spark import arrow_batches
from skylark.spark.arrow_batches import BYTES_MAX, ROWS_MAX, cut_batch, merge_batches


def batch(sizes: list[int]) -> pa.RecordBatch:
    bodies = pa.array([b"x" * size for size in sizes], pa.binary())
    return pa.RecordBatch.from_pydict({"body": bodies, "number": pa.array(range(len(sizes)))})


def test_large_rows_are_few_in_a_batch() -> None:
    whole = batch([100, *[1 << 20] * 30, 5])
    parts = list(cut_batch(whole))
    assert max(part.nbytes for part in parts) <= BYTES_MAX
    assert pa.Table.from_batches(parts).equals(pa.Table.from_batches([whole]))
    assert len(list(cut_batch(batch([BYTES_MAX + 1])))) == 1  # one row is never cut
    assert list(cut_batch(batch([]))) == [batch([])]
    assert max(part.num_rows for part in cut_batch(batch([1] * 25_000))) <= ROWS_MAX


@given(st.lists(st.integers(0, 40), max_size=60))
@settings(max_examples=100, deadline=None)
def test_parts_have_all_rows_in_order(sizes: list[int]) -> None:
    before = arrow_batches.BYTES_MAX, arrow_batches.ROWS_MAX
    arrow_batches.BYTES_MAX, arrow_batches.ROWS_MAX = 100, 7  # type: ignore[misc]
    try:
        parts = list(cut_batch(batch(sizes)))
    finally:
        arrow_batches.BYTES_MAX, arrow_batches.ROWS_MAX = before  # type: ignore[misc]
    assert [row for part in parts for row in part.to_pylist()] == batch(sizes).to_pylist()
    assert all(part.num_rows <= 7 for part in parts)
    assert all(part.nbytes <= 100 or part.num_rows == 1 for part in parts)


def test_small_batches_are_merged() -> None:
    parts = [pa.record_batch({"n": pa.array(range(n, n + 5))}) for n in range(0, 25_000, 5)]
    merged = list(merge_batches([*parts[:10], parts[0].slice(0, 0), *parts[10:]]))
    assert [batch.num_rows for batch in merged] == [ROWS_MAX, ROWS_MAX, 5_000]
    assert pa.Table.from_batches(merged)["n"].to_pylist() == list(range(25_000))
    assert list(merge_batches([])) == []
    large = pa.record_batch({"n": pa.array(range(25_000))})
    assert sum(batch.num_rows for batch in merge_batches([parts[0], large])) == 25_005
