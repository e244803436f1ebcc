"""Rows of records in pull responses: selected, unpacked and indexed in one buffer.

The step between :mod:`skylark.wire.record_scan` and Arrow. It creates no object per record, except
for the few that cannot be processed by column: inner batches, which are unpacked, and IPv6
addresses.

A *span* is two columns: the start of a value in the buffer, and its size. The spans of a column
rise and do not overlap, so that Arrow can gather them.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any, Final, TypeAlias

import msgspec

from skylark.core.hashing import encode_offset_id
from skylark.wire.compress import InflatedSizeError
from skylark.wire.layout import (
    FLAG_BORN_HOST_V6,
    FLAG_HOSTS_V6_MASK,
    FLAG_INNER_BATCH,
    FLAG_NEED_UNWRAP,
    FLAG_STORE_HOST_V6,
    HOST_V4_SIZE,
    HOST_V6_SIZE,
)
from skylark.wire.message import (
    ReadBuffer,
    decode_record,
    encode_record,
    format_host,
    inflate_record,
    unwrap_record,
)
from skylark.wire.properties import PROPERTY_TAGS
from skylark.wire.property_scan import PropertyItems, scan_properties
from skylark.wire.record_scan import (
    Bools,
    Int64s,
    RecordColumns,
    gather,
    scan_records,
)

Span: TypeAlias = tuple[Int64s, Int64s]

#: Inner batches of one answer may inflate to so much.
UNWRAPPED_SIZE_MAX: Final = 512 * 1024 * 1024

_UNWRAP: Final = FLAG_NEED_UNWRAP | FLAG_INNER_BATCH
_ARRAYS: Final = tuple(
    name
    for name in RecordColumns.__struct_fields__
    if name not in ("buffer", "end_position", "fault", "blank_count")
)


class Rows:
    """The records of a buffer, one row each."""

    def __init__(self, columns: RecordColumns) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns)

    @property
    def buffer(self) -> ReadBuffer:
        return self.columns.buffer

    def where(self, wanted: Bools) -> Rows:
        """Only some of the rows."""
        return self if wanted.all() else Rows(_pick(self.columns, wanted))

    def part(self, first: int, end: int) -> Rows:
        """Consecutive rows."""
        if (first, end) == (0, len(self)):
            return self
        return Rows(_pick(self.columns, slice(first, end)))

    # ---- properties ------------------------------------------------------------------------------

    @cached_property
    def items(self) -> PropertyItems:
        """All properties."""
        return scan_properties(self.columns)

    def property_span(self, name: str) -> Span:
        """The value of a property; size 0 where a row has none."""
        import numpy as np

        start, size = self.items.column(name)
        return np.where(size > 0, start, self.columns.properties_start), size

    def has_tag(self, raw_tags: Collection[bytes]) -> Bools:
        """Which rows have one of these tags."""
        import numpy as np

        start, size = self.items.column(PROPERTY_TAGS)
        wanted = np.zeros(len(self), np.bool_)
        for tag in raw_tags:
            found = np.flatnonzero(size == len(tag))
            same = gather(self.buffer, start[found], len(tag)) == np.frombuffer(tag, np.uint8)
            wanted[found[same.all(axis=1)]] = True
        return wanted

    # ---- hosts -----------------------------------------------------------------------------------

    def born_hosts(self) -> tuple[Any, list[str]]:
        """For each row an index into a list of ``ip:port``."""
        return self._hosts(self.columns.born_host_start, FLAG_BORN_HOST_V6)

    def store_hosts(self) -> tuple[Any, list[str]]:
        """For each row an index into a list of ``ip:port``."""
        return self._hosts(self.columns.store_host_start, FLAG_STORE_HOST_V6)

    def _hosts(self, start: Int64s, v6_flag: int) -> tuple[Any, list[str]]:
        import numpy as np

        is_v6 = (self.columns.sys_flag & v6_flag) != 0
        size = HOST_V6_SIZE if is_v6.any() else HOST_V4_SIZE
        if size == HOST_V4_SIZE:
            keys = gather(self.buffer, start, size).view(">u8").ravel()
            if len(keys) and (keys == keys[0]).all():  # one producer, as often
                return np.zeros(len(keys), np.intp), [format_host(keys[:1].tobytes())]
            found, index = np.unique(keys, return_inverse=True)
            raw = found.astype(">u8").tobytes()
            return index, [format_host(raw[at : at + size]) for at in range(0, len(raw), size)]
        names: dict[str, int] = {}
        index = np.empty(len(start), np.intp)
        view = memoryview(self.buffer)
        for row, (at, v6) in enumerate(zip(start.tolist(), is_v6.tolist(), strict=True)):
            host = bytes(view[at : at + (HOST_V6_SIZE if v6 else HOST_V4_SIZE)])
            index[row] = names.setdefault(format_host(host), len(names))
        return index, list(names)

    def offset_ids(self) -> tuple[bytes, Int64s]:
        """The offset ids one after the other, and where each ends."""
        import numpy as np

        columns = self.columns
        if (columns.sys_flag & FLAG_HOSTS_V6_MASK).any():
            ids = [self._offset_id(row) for row in range(len(self))]
            return "".join(ids).encode(), np.cumsum([len(each) for each in ids], dtype=np.int64)
        raw = np.empty((len(self), 16), np.uint8)
        raw[:, :8] = gather(self.buffer, columns.store_host_start, HOST_V4_SIZE)
        raw[:, 8:] = columns.log_offset.astype(">i8").view(np.uint8).reshape(-1, 8)
        digits = np.frombuffer(b"0123456789ABCDEF", np.uint8)
        text = np.empty((len(self), 32), np.uint8)
        text[:, 0::2] = digits[raw >> 4]
        text[:, 1::2] = digits[raw & 15]
        return text.tobytes(), np.arange(32, 32 * len(self) + 1, 32)

    def _offset_id(self, row: int) -> str:
        columns = self.columns
        start = int(columns.store_host_start[row])
        size = HOST_V6_SIZE if columns.sys_flag[row] & FLAG_STORE_HOST_V6 else HOST_V4_SIZE
        host = bytes(memoryview(self.buffer)[start : start + size])
        return encode_offset_id(host, int(columns.log_offset[row]))


def rows_of(
    body: bytes, start: int, end: int, raw_tags: Collection[bytes] = (), offset_delta: int = 0
) -> Rows:
    """The messages in ``body`` with start <= queue offset < end and, if given, one of these tags.

    Raises RemoteProtocolError for bytes that are no records.
    """
    columns = scan_records(body)
    if ((columns.sys_flag & _UNWRAP) == _UNWRAP).any():
        columns = _unwrap(columns)
    if offset_delta:
        columns.queue_offset += offset_delta
    rows = Rows(columns)
    rows = rows.where((columns.queue_offset >= start) & (columns.queue_offset < end))
    return rows.where(rows.has_tag(raw_tags)) if raw_tags else rows


def _pick(columns: RecordColumns, which: Bools | slice) -> RecordColumns:
    return msgspec.structs.replace(
        columns, **{name: getattr(columns, name)[which] for name in _ARRAYS}
    )


def _unwrap(columns: RecordColumns) -> RecordColumns:
    """The same messages with inner batches taken apart, in a buffer of their own.

    The parts become records like others, except that nothing of this size was stored for them.
    """
    import numpy as np

    pieces: list[bytes] = []
    is_part: list[bool] = []
    room = UNWRAPPED_SIZE_MAX
    view = memoryview(columns.buffer)
    spans = zip(
        columns.position.tolist(),
        columns.total_size.tolist(),
        columns.sys_flag.tolist(),
        strict=True,
    )
    for position, size, sys_flag in spans:
        if sys_flag & _UNWRAP != _UNWRAP:
            pieces.append(bytes(view[position : position + size]))
            is_part.append(False)
            continue
        record = decode_record(columns.buffer, position)
        inflate_record(record)
        room -= len(record.body)
        if room < 0:
            raise InflatedSizeError(UNWRAPPED_SIZE_MAX)
        for part in unwrap_record(record):
            is_part.append(True)
            pieces.append(
                encode_record(
                    part.topic,
                    part.body,
                    part.raw_properties,
                    queue_id=part.queue_id,
                    queue_offset=part.queue_offset,
                    log_offset=part.log_offset,
                    born_timestamp=part.born_timestamp,
                    born_host=part.born_host,
                    store_timestamp=part.store_timestamp,
                    store_host=part.store_host,
                    flag=part.flag,
                    sys_flag=part.sys_flag,
                    body_crc=part.body_crc,
                )
            )
    unwrapped = scan_records(b"".join(pieces))
    unwrapped.total_size[np.array(is_part, np.bool_)] = 0
    return unwrapped
