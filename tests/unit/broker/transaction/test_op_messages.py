"""Op messages, without a store."""

from __future__ import annotations

import pytest

from skylark.broker.transaction.op_messages import (
    COLLECTED_SIZE_MAX,
    GROUP_SIZE,
    OpBatch,
    OpProgress,
    parse_op,
)


@pytest.mark.spec("broker.13.18")
def test_both_forms_are_read() -> None:
    assert parse_op(b"7") == [7]
    assert parse_op(b"7,8,") == [7, 8]
    assert parse_op(b"-1,") == []
    assert parse_op(b"7,,x,9" + b"9" * 20 + b",8") == [7, 8]
    assert parse_op(b"") == []


def test_all_that_was_collected_is_written_at_once() -> None:
    batch = OpBatch()
    assert not batch
    batch.add([7])
    batch.add([12, 8])
    assert (batch.body(), batch.size, bool(batch)) == (b"7,12,8,", 7, True)
    assert batch.body() == b"7,12,8,"  # it was not written, and is tried again
    assert batch.written() == 12
    assert (bool(batch), batch.size) == (False, 0)
    # With nothing in it an op message is a mark.
    assert batch.body() == b"-1,"
    assert batch.written() == -1


def test_there_is_a_limit() -> None:
    batch = OpBatch()
    while not batch.is_full:
        batch.add([10**17])
    assert COLLECTED_SIZE_MAX <= batch.size < COLLECTED_SIZE_MAX + 20
    batch.written()
    assert not batch.is_full


def test_op_messages_are_done_when_all_they_name_is_passed() -> None:
    progress = OpProgress(10)
    for highest in (5, 3, -1):
        progress.written(highest)
    assert progress.passed(5) == 10
    assert progress.passed(6) == 13
    for number in range(2 * GROUP_SIZE + 1):
        progress.written(number + 100)
    assert progress.passed(100 + GROUP_SIZE) == 13 + GROUP_SIZE
    assert progress.passed(1_000) == 13 + 2 * GROUP_SIZE + 1
