"""Results of puts and gets: the store's statuses and the response codes they become.

A status says what happened to the message, a response code is what the client gets; several
statuses share a code. The pairs are defined beside the statuses, so that no handler needs a second
table.

Counterpart of Java's ``PutMessageStatus``, ``PutMessageResult``, ``GetMessageStatus`` and of the
switches over them in ``SendMessageProcessor`` and ``PullMessageProcessor``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from skylark.wire.codes import ResponseCode


class PutStatus(enum.Enum):
    """Result of a put; ``code`` is the response code for the producer."""

    PUT_OK = "PUT_OK", ResponseCode.SUCCESS
    # Stored, but with fewer copies or less durable than requested
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT", ResponseCode.FLUSH_DISK_TIMEOUT
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE", ResponseCode.SLAVE_NOT_AVAILABLE
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT", ResponseCode.FLUSH_SLAVE_TIMEOUT
    # Not stored, and never will be
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL", ResponseCode.MESSAGE_ILLEGAL
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED", ResponseCode.MESSAGE_ILLEGAL
    WHEEL_TIMER_MSG_ILLEGAL = "WHEEL_TIMER_MSG_ILLEGAL", ResponseCode.MESSAGE_ILLEGAL
    # Not stored now
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE", ResponseCode.SERVICE_NOT_AVAILABLE
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY", ResponseCode.SYSTEM_BUSY
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED", ResponseCode.SYSTEM_ERROR
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH", ResponseCode.SYSTEM_ERROR
    WHEEL_TIMER_FLOW_CONTROL = "WHEEL_TIMER_FLOW_CONTROL", ResponseCode.SYSTEM_ERROR
    WHEEL_TIMER_NOT_ENABLE = "WHEEL_TIMER_NOT_ENABLE", ResponseCode.SYSTEM_ERROR
    UNKNOWN_ERROR = "UNKNOWN_ERROR", ResponseCode.SYSTEM_ERROR

    code: ResponseCode

    def __init__(self, name: str, code: ResponseCode) -> None:
        del name  # makes the values distinct: members of equal value would be one
        self.code = code

    @property
    def stored(self) -> bool:
        """Whether the message is in the log, so that the response contains its offsets."""
        return self.code in _STORED_CODES


_STORED_CODES = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)


class PutResult(msgspec.Struct, frozen=True, gc=False):
    """Where a message, or the first of a batch, was stored; zeros when it was not."""

    status: PutStatus
    log_offset: int = 0
    size: int = 0  # bytes in the log, of the whole batch
    queue_offset: int = 0
    store_timestamp: int = 0
    message_count: int = 0

    @property
    def next_offset(self) -> int:
        """End of the records in the log: the offset that a flush must reach."""
        return self.log_offset + self.size


class GetStatus(enum.Enum):
    """Result of reading a queue."""

    FOUND = "FOUND", ResponseCode.SUCCESS
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE", ResponseCode.PULL_RETRY_IMMEDIATELY
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING", ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL", ResponseCode.PULL_NOT_FOUND
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE", ResponseCode.PULL_NOT_FOUND
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY", ResponseCode.PULL_OFFSET_MOVED
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL", ResponseCode.PULL_OFFSET_MOVED
    # For these two the code depends on the requested offset
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE", ResponseCode.PULL_NOT_FOUND
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE", ResponseCode.PULL_NOT_FOUND

    _code: ResponseCode

    def __init__(self, name: str, code: ResponseCode) -> None:
        del name
        self._code = code

    @property
    def remark(self) -> str:
        """The remark of the response.

        Java creates a queue at the first read, so a client is never told that a queue does not
        exist, but that it is empty.
        """
        absent = self is GetStatus.NO_MATCHED_LOGIC_QUEUE
        return GetStatus.NO_MESSAGE_IN_QUEUE.name if absent else self.name

    def pull_code(self, queue_offset: int) -> ResponseCode:
        """The response code of a pull that asked for ``queue_offset``.

        A consumer that asks an empty queue for any offset but 0 is moved to its start.
        """
        if queue_offset != 0 and self in _EMPTY_QUEUE:
            return ResponseCode.PULL_OFFSET_MOVED
        return self._code


_EMPTY_QUEUE = frozenset({GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE})

#: Callback with the result of a put; called once, in the owner's thread.
PutWaiter: TypeAlias = Callable[[PutStatus], None]
