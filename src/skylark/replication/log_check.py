"""The log check: LOG_CHECK finds out whether the logs of two Skylark brokers have diverged.

A slave sends it before it starts replicating (:mod:`skylark.replication.slave`), with an offset and
a size; the response has the CRC-32 of the bytes before the offset, or a code::

    0    success, with the CRC-32
    21   the log ends before the offset: the slave is ahead
    22   the log begins after these bytes: they were deleted
    29   more bytes than a check may have, or impossible numbers
    3    not supported: an Apache broker, or another server without this request

The request is private to Skylark (specification, remoting 8.6).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from skylark.core.errors import HeaderFieldError, InvalidParameterError, TransportError
from skylark.net.success_response import success
from skylark.replication.slave import TailAnswer
from skylark.store.file_sequence import MappedFiles
from skylark.store.replica_log import TAIL_SIZE, log_checksum
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fields import decode_ext, encode_ext
from skylark.wire.headers.ha import LogCheckRequestHeader, LogCheckResponseHeader

#: Bytes that one check may cover: the loop does nothing else while it reads them.
CHECK_SIZE_MAX: Final = 1 << 20
assert CHECK_SIZE_MAX >= TAIL_SIZE

#: Sends a request to the master's ordinary port.
Call = Callable[[Command], Awaitable[Command]]


def answer_log_check(files: MappedFiles, request: Command) -> Command:
    """The response of the master."""
    header = decode_ext(LogCheckRequestHeader, request.ext)
    if not 0 < header.size <= min(CHECK_SIZE_MAX, header.log_offset):
        raise InvalidParameterError(
            f"{header.size} bytes before {header.log_offset} cannot be checked",
            hint=f"from 1 to {CHECK_SIZE_MAX} bytes, all of them in the log",
        )
    if header.log_offset > files.max_offset:
        remark = f"the log ends at {files.max_offset}"
        return response_to(request, ResponseCode.PULL_OFFSET_MOVED, remark)
    crc = log_checksum(files, header.log_offset, header.size)
    if crc is None:
        remark = f"the log begins at {files.min_offset}"
        return response_to(request, ResponseCode.QUERY_NOT_FOUND, remark)
    return success(request, header=LogCheckResponseHeader(crc32=crc))


async def ask_log_check(call: Call, log_offset: int, size: int, crc: int) -> TailAnswer:
    """Ask the master whether it has bytes with this checksum there."""
    header = LogCheckRequestHeader(log_offset=log_offset, size=size)
    try:
        response = await call(Command(code=RequestCode.LOG_CHECK, ext=encode_ext(header)))
        match response.code:
            case ResponseCode.SUCCESS:
                found = decode_ext(LogCheckResponseHeader, response.ext)
                return TailAnswer.SAME if found.crc32 == crc else TailAnswer.DIFFERENT
            case ResponseCode.PULL_OFFSET_MOVED:
                return TailAnswer.AHEAD
            case ResponseCode.QUERY_NOT_FOUND:
                return TailAnswer.GONE
            case ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                return TailAnswer.UNSUPPORTED
    except (TransportError, HeaderFieldError):
        pass
    return TailAnswer.UNREACHABLE
