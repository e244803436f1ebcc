"""Statuses and the codes they become (store 5.2 and 7.1)."""

from __future__ import annotations

import pytest

from skylark.store.store_results import GetStatus, PutResult, PutStatus

PUT_CODES = {
    "PUT_OK": 0,
    "FLUSH_DISK_TIMEOUT": 10,
    "SLAVE_NOT_AVAILABLE": 11,
    "FLUSH_SLAVE_TIMEOUT": 12,
    "MESSAGE_ILLEGAL": 13,
    "PROPERTIES_SIZE_EXCEEDED": 13,
    "WHEEL_TIMER_MSG_ILLEGAL": 13,
    "SERVICE_NOT_AVAILABLE": 14,
    "OS_PAGE_CACHE_BUSY": 2,
    "CREATE_MAPPED_FILE_FAILED": 1,
    "UNKNOWN_ERROR": 1,
    "IN_SYNC_REPLICAS_NOT_ENOUGH": 1,
    "WHEEL_TIMER_FLOW_CONTROL": 1,
    "WHEEL_TIMER_NOT_ENABLE": 1,
}


def test_every_put_status_has_its_code() -> None:
    assert {status.name: int(status.code) for status in PutStatus} == PUT_CODES
    assert {status.name for status in PutStatus if status.stored} == {
        "PUT_OK",
        "FLUSH_DISK_TIMEOUT",
        "SLAVE_NOT_AVAILABLE",
        "FLUSH_SLAVE_TIMEOUT",
    }


def test_the_next_offset_of_a_put_result() -> None:
    result = PutResult(PutStatus.PUT_OK, 1000, 115, 7, 1700000000123, 1)
    assert result.next_offset == 1115
    assert PutResult(PutStatus.MESSAGE_ILLEGAL).message_count == 0


@pytest.mark.parametrize(
    ("status", "at_start", "elsewhere"),
    [
        (GetStatus.FOUND, 0, 0),
        (GetStatus.NO_MATCHED_MESSAGE, 20, 20),
        (GetStatus.MESSAGE_WAS_REMOVING, 20, 20),
        (GetStatus.OFFSET_FOUND_NULL, 19, 19),
        (GetStatus.OFFSET_OVERFLOW_ONE, 19, 19),
        (GetStatus.OFFSET_OVERFLOW_BADLY, 21, 21),
        (GetStatus.OFFSET_TOO_SMALL, 21, 21),
        (GetStatus.NO_MATCHED_LOGIC_QUEUE, 19, 21),
        (GetStatus.NO_MESSAGE_IN_QUEUE, 19, 21),
    ],
)
def test_every_get_status_has_its_pull_code(
    status: GetStatus, at_start: int, elsewhere: int
) -> None:
    assert (status.pull_code(0), status.pull_code(3)) == (at_start, elsewhere)
