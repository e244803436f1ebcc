"""Records as columns: the vectorised form of :mod:`skylark.wire.message`.

A buffer of concatenated records becomes numpy arrays, one element per record, for readers that want
many messages and no object for each: recovery, Arrow and Spark. Nothing is copied but the fixed
fields; bodies, topics and properties are (start, size) pairs into the buffer.

Fields that no rule needs are not even converted: their columns are views of the gathered heads, in
the wire's byte order. numpy computes with them as with any others; code that passes one to a
library which needs the machine's order (Arrow) converts it.

All records are processed at once, in steps. If a step finds a record that breaks a rule, the scan
begins again with the records before it; at the end the plain decoder decodes the first bad one and
names its fault. So both decoders report the same faults by construction, and the rules here only
have to be complete.

Properties are a second pass (:mod:`skylark.wire.property_scan`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias
from zlib import crc32

import msgspec
import numpy as np
import numpy.typing as npt

from skylark.wire.layout import (
    BLANK_SIZE_MIN,
    BORN_HOST_POSITION,
    FLAG_BORN_HOST_V6,
    FLAG_HOSTS_V6_MASK,
    FLAG_STORE_HOST_V6,
    HOST_V4_SIZE,
    HOST_V6_EXTRA,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    RECORD_HEAD_SIZE,
    RECORD_SIZE_MIN,
    RECORD_TAIL_SIZE,
    TOPIC_SIZE_V1_MAX,
    TOPIC_SIZE_V2_MAX,
    TOTAL_SIZE,
    record_head_dtype,
    record_tail_dtype,
)
from skylark.wire.message import ReadBuffer, RecordError, RecordFault, Verify, decode_record

Int32s: TypeAlias = npt.NDArray[np.int32]
Int64s: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


class RecordColumns(msgspec.Struct, kw_only=True):
    """The records of a buffer, one element each in every column; blanks are left out.

    Columns may be big-endian and strided (see the module).
    """

    buffer: ReadBuffer
    end_position: int = 0  # where the scan stopped
    fault: RecordFault | None = None  # why it stopped there; None: nothing is left to scan
    blank_count: int = 0

    position: Int64s
    total_size: Int64s
    magic: Int32s
    body_crc: Int32s
    queue_id: Int32s
    flag: Int32s
    queue_offset: Int64s
    log_offset: Int64s
    sys_flag: Int32s
    born_timestamp: Int64s
    store_timestamp: Int64s
    reconsume_times: Int32s
    prepared_transaction_offset: Int64s
    body_start: Int64s
    body_size: Int64s
    topic_start: Int64s
    topic_size: Int64s
    properties_start: Int64s
    properties_size: Int64s

    def __len__(self) -> int:
        return len(self.position)

    @property
    def born_host_start(self) -> Int64s:
        """Where the packed born host begins; 8 bytes, or 20 if SYSFLAG marks IPv6."""
        return self.position + BORN_HOST_POSITION

    @property
    def store_host_start(self) -> Int64s:
        """Where the packed store host begins; 8 bytes, or 20 if SYSFLAG marks IPv6."""
        return _host_ends(self.position, self.sys_flag)[0] + 8


def scan_records(
    buffer: ReadBuffer,
    position: int = 0,
    end: int | None = None,
    *,
    verify: Verify | None = None,
    log_start: int | None = None,
    strict: bool = True,
) -> RecordColumns:
    """The columns of all records from ``position`` to ``end``; see :func:`iter_records`.

    At bytes that are not a record a strict scan raises :class:`RecordError`; one that is not
    strict, as in recovery, stops there and returns the position and the fault. ``verify`` and
    ``log_start`` check more than the structure, as in :func:`decode_record`.
    """
    if end is None:
        end = len(buffer)
    starts, stop = _walk(buffer, position, end)
    while True:
        try:
            columns = _columns(buffer, starts, stop)
            _check(columns, verify, log_start)
        except _BadRecordError as bad:
            stop = bad.position
            starts = starts[: np.searchsorted(starts, stop)]
        else:
            break
    columns.end_position = stop
    if stop < end:
        try:
            decode_record(buffer, stop, end, verify=verify, log_start=log_start)
        except RecordError as error:
            if strict:
                raise
            columns.fault = error.fault
        else:
            raise AssertionError(f"the two decoders disagree about position {stop}")
    return columns


class _BadRecordError(Exception):
    def __init__(self, position: int) -> None:
        self.position = position


def _require(valid: Bools, starts: Int64s) -> None:
    if not valid.all():
        raise _BadRecordError(int(starts[valid.argmin()]))


def windows(buffer: ReadBuffer, dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Element ``i`` is the item that starts at byte ``i``: indexing gathers from any positions."""
    dtype = np.dtype(dtype)
    count = len(buffer) - dtype.itemsize + 1
    if count <= 0:
        return np.empty(0, dtype)
    return np.ndarray((count,), dtype, buffer, strides=(1,))


def gather(buffer: ReadBuffer, starts: Int64s, size: int) -> npt.NDArray[np.uint8]:
    """``size`` bytes from each start, as a matrix."""
    if not len(starts):
        return np.empty((0, size), np.uint8)
    return windows(buffer, f"V{size}")[starts].view(np.uint8).reshape(-1, size)


# ---- where the records start ---------------------------------------------------------------------

# Sizes chain the records, and following a chain is one unpacking after another. In a large buffer
# many places are followed in step instead: "lanes" that begin where the magic code is found. Those
# bytes may also occur in a body, so a lane counts only if the one before it arrives at its start.
_SAMPLE_BYTES: Final = 16 * 1024
_SAMPLE_COUNT_MIN: Final = 8  # larger records are too few to be worth lanes
_LANES_MIN: Final = 48  # fewer are followed faster one by one
_LANES_MAX: Final = 1024
_BLIND_STEPS: Final = 8  # between two looks at how many lanes are still on their way
_MAGIC_V1_BYTES: Final = MAGIC_V1.to_bytes(4, "big", signed=True)


def _walk(buffer: ReadBuffer, position: int, end: int) -> tuple[Int64s, int]:
    """Follow the sizes from record to record: where each starts, and where the chain breaks."""
    bound = end - BLANK_SIZE_MIN + 1
    if end - position < 16 * _SAMPLE_BYTES:
        starts, position = _walk_on(buffer, position, bound, end)
        return np.array(starts, np.int64), position
    sample, position = _walk_on(buffer, position, position + _SAMPLE_BYTES, end)
    pieces = [np.array(sample, np.int64)]
    if len(sample) >= _SAMPLE_COUNT_MIN:
        lanes = _lanes(buffer, position, bound, sample)
        if len(lanes) >= _LANES_MIN:
            followed, position = _walk_lanes(buffer, lanes, bound, end)
            pieces.append(followed)
    rest, position = _walk_on(buffer, position, bound, end)
    return np.concatenate((*pieces, np.array(rest, np.int64))), position


def _walk_on(buffer: ReadBuffer, position: int, bound: int, end: int) -> tuple[list[int], int]:
    """Follow the sizes from ``position`` while records start before ``bound``."""
    unpack = TOTAL_SIZE.unpack_from
    starts: list[int] = []
    append = starts.append
    while position < bound:
        size = unpack(buffer, position)[0]
        if size < BLANK_SIZE_MIN:
            break
        append(position)
        position += size
    if position > end:  # the last one is torn
        position = starts.pop()
    return starts, position


def _lanes(buffer: ReadBuffer, position: int, bound: int, sample: list[int]) -> Int64s:
    """``position`` and, evenly spread after it, places where records seem to start."""
    size_mean = (position - sample[0]) // len(sample)
    expected = (bound - position) // size_mean
    if expected < _LANES_MIN:
        return np.array([position])
    # So many lanes that finding them costs about as much as following them.
    count = min(_LANES_MAX, expected, int((10 * expected) ** 0.5))
    # If all records have one size, every place is a start and nothing is searched.
    stride = expected // count * size_mean
    places = np.arange(position, bound - 2 * size_mean, stride)
    hits = windows(buffer, ">i4")[places + 4] == MAGIC_V1
    missed = np.flatnonzero(~hits[1:]) + 1
    if len(missed):
        find = _find_in_view(buffer) if isinstance(buffer, memoryview) else buffer.find
        found = [
            find(_MAGIC_V1_BYTES, place + 4, place + 2 * size_mean)
            for place in places[missed].tolist()
        ]
        starts = np.array(found) - 4
        places[missed] = np.where(starts > 0, starts, position)
    return np.unique(places)


def _find_in_view(buffer: memoryview) -> Callable[[bytes, int, int], int]:
    def find(needle: bytes, start: int, end: int) -> int:
        """As ``bytes.find``, which views lack."""
        found = bytes(buffer[start:end]).find(needle)
        return found if found < 0 else start + found

    return find


def _walk_lanes(buffer: ReadBuffer, lanes: Int64s, bound: int, end: int) -> tuple[Int64s, int]:
    """Like :func:`_walk_on` from the first lane, but may stop early, at a sure place."""
    bounds = np.append(lanes[1:], bound)
    rows = _step_lanes(buffer, lanes, bounds, bound)
    # A lane's places count while they lie before the next lane and sizes lead from one to the next.
    counts = rows < bounds
    broken = (rows[1:] - rows[:-1] < BLANK_SIZE_MIN) & counts[1:]
    if broken.any():
        counts[1:] &= ~np.logical_or.accumulate(broken)
    starts = rows.T[counts.T]  # lane after lane, each in order

    current = starts[np.cumsum(np.count_nonzero(counts, axis=0)) - 1]
    size = windows(buffer, ">i4")[current]
    following = current + size
    arrivals = np.where((size >= BLANK_SIZE_MIN) & (following <= end), following, current)
    extra: list[int] = []
    for lane in np.flatnonzero((size >= BLANK_SIZE_MIN) & (following < bounds)).tolist():
        more, arrivals[lane] = _walk_on(buffer, int(arrivals[lane]), int(bounds[lane]), end)
        extra += more
    if extra:
        starts = np.insert(starts, np.searchsorted(starts, extra), extra)
    # The chain is sure up to the first lane that was not met by the one before it.
    met = arrivals[:-1] == lanes[1:]
    final = len(lanes) - 1 if met.all() else int(met.argmin())
    stop = int(arrivals[final])
    return starts[: np.searchsorted(starts, min(stop, int(bounds[final])))], stop


def _step_lanes(buffer: ReadBuffer, lanes: Int64s, bounds: Int64s, bound: int) -> Int64s:
    """Follow the sizes from all lanes, blindly: row ``i`` is where ``i`` steps lead to.

    A step is three calls for all lanes together, so nothing is checked in between. A lane goes on
    where others began, or through bytes that are not a record; it never leaves the buffer.
    """
    # A negative size read as unsigned leads beyond ``bound`` like any other that is too large.
    sizes = windows(buffer, ">u4")
    rows = [lanes]
    current = before = lanes
    going = len(lanes)
    # Few remaining lanes, or few of many, would waste time and memory on the others.
    while going >= max(_LANES_MIN, len(lanes) // 4):
        for _ in range(_BLIND_STEPS):
            current = np.minimum(current + sizes[current], bound)
            rows.append(current)
        moving = current - before >= _BLIND_STEPS * BLANK_SIZE_MIN
        going = int(np.count_nonzero(moving & (current < bounds)))
        before = current
    return np.array(rows)


# ---- columns -------------------------------------------------------------------------------------


def _columns(buffer: ReadBuffer, starts: Int64s, stop: int) -> RecordColumns:
    """The columns of records that start at ``starts``, the last of which ends at ``stop``."""
    starts, sizes, head, v2, blank_count = _heads(buffer, starts, stop)
    ends = starts + sizes
    sys_flag = head["sys_flag"].astype(np.int32)
    body_start = starts + RECORD_HEAD_SIZE
    body_size = head["body_size"].astype(np.int64)
    v6 = np.flatnonzero(sys_flag & FLAG_HOSTS_V6_MASK)
    if len(v6):
        born_end, tail_start = _host_ends(starts[v6], sys_flag[v6])
        _require(tail_start + (RECORD_TAIL_SIZE + 3) <= ends[v6], starts[v6])
        tail = windows(buffer, f"V{RECORD_TAIL_SIZE}")[tail_start].view(record_tail_dtype())
        head["store_timestamp"][v6] = windows(buffer, ">i8")[born_end]
        head["reconsume_times"][v6] = tail["reconsume_times"]
        head["prepared_transaction_offset"][v6] = tail["prepared_transaction_offset"]
        body_start[v6] = tail_start + RECORD_TAIL_SIZE
        body_size[v6] = tail["body_size"]
    body_end = body_start + body_size
    _require((body_size >= 0) & (body_end + 3 <= ends), starts)

    word = windows(buffer, ">u2")[body_end].astype(np.int64)
    topic_start = body_end + 1
    topic_size = word >> 8
    topic_size_max: Int64s | int = TOPIC_SIZE_V1_MAX
    if v2 is not None:
        topic_start += v2
        topic_size = np.where(v2, word, topic_size)
        topic_size_max = np.where(v2, TOPIC_SIZE_V2_MAX, TOPIC_SIZE_V1_MAX)
    topic_end = topic_start + topic_size
    properties_start = topic_end + 2
    properties_size = ends - properties_start
    _require((topic_size <= topic_size_max) & (properties_size >= 0), starts)
    _require(windows(buffer, ">i2")[topic_end] == properties_size, starts)
    return RecordColumns(
        buffer=buffer,
        blank_count=blank_count,
        position=starts,
        total_size=sizes,
        magic=head["magic"],
        body_crc=head["body_crc"],
        queue_id=head["queue_id"],
        flag=head["flag"],
        queue_offset=head["queue_offset"],
        log_offset=head["log_offset"],
        sys_flag=sys_flag,
        born_timestamp=head["born_timestamp"],
        store_timestamp=head["store_timestamp"],
        reconsume_times=head["reconsume_times"],
        prepared_transaction_offset=head["prepared_transaction_offset"],
        body_start=body_start,
        body_size=body_size,
        topic_start=topic_start,
        topic_size=topic_size,
        properties_start=properties_start,
        properties_size=properties_size,
    )


def _heads(
    buffer: ReadBuffer, starts: Int64s, stop: int
) -> tuple[Int64s, Int64s, npt.NDArray[Any], Bools | None, int]:
    """Starts, sizes and fixed fields of the records, which are V2 (None: none), count of blanks."""
    sizes = np.diff(starts, append=stop)
    blank_count = 0
    large = sizes >= RECORD_SIZE_MIN
    if not large.all():  # the smaller ones can only be blanks
        small = starts[~large]
        _require(windows(buffer, ">i4")[small + 4] == MAGIC_BLANK, small)
        blank_count = len(small)
        starts, sizes = starts[large], sizes[large]
    # Items without fields are gathered by one memory copy each, the fields seen in afterwards.
    head = windows(buffer, f"V{RECORD_HEAD_SIZE}")[starts].view(record_head_dtype())
    magic = head["magic"]
    known = magic == MAGIC_V1
    v2: Bools | None = None
    if not known.all():
        v2 = magic == MAGIC_V2
        known |= v2
        _require(known | (magic == MAGIC_BLANK), starts)
        blank_count += len(starts) - int(np.count_nonzero(known))
        starts, sizes, head, v2 = starts[known], sizes[known], head[known], v2[known]
    return starts, sizes, head, v2, blank_count


def _host_ends(starts: Int64s, sys_flag: Int32s) -> tuple[Int64s, Int64s]:
    """Where BORNHOST and STOREHOST end."""
    born_v6 = (sys_flag & FLAG_BORN_HOST_V6) != 0
    store_v6 = (sys_flag & FLAG_STORE_HOST_V6) != 0
    born_end = starts + (BORN_HOST_POSITION + HOST_V4_SIZE) + HOST_V6_EXTRA * born_v6
    return born_end, born_end + (8 + HOST_V4_SIZE) + HOST_V6_EXTRA * store_v6


def _check(columns: RecordColumns, verify: Verify | None, log_start: int | None) -> None:
    """Check what the structure does not show: the offset and the checksum."""
    if log_start is not None:
        _require(columns.log_offset == columns.position + log_start, columns.position)
    if verify is None:
        return
    if verify is Verify.BODY:
        view = memoryview(columns.buffer)
        spans = zip(
            columns.body_start.tolist(),
            (columns.body_start + columns.body_size).tolist(),
            strict=True,
        )
        whole = np.array([crc32(view[start:end]) for start, end in spans], np.uint32)
        actual = whole & 0x7FFF_FFFF  # body_crc() of all at once
        _require((actual == columns.body_crc) | (columns.body_size == 0), columns.position)
        return
    for position in columns.position.tolist():
        try:
            decode_record(columns.buffer, position, verify=verify)
        except RecordError:
            raise _BadRecordError(position) from None
