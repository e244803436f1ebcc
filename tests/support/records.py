"""Both record decoders side by side, for tests that show that they agree."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from skylark.wire import record_scan as scan
from skylark.wire.layout import HOST_V4_SIZE, HOST_V6_SIZE
from skylark.wire.message import (
    MessageRecord,
    ReadBuffer,
    RecordError,
    RecordFault,
    Verify,
    iter_records,
)
from skylark.wire.property_scan import PropertyItems, scan_properties
from skylark.wire.record_scan import RecordColumns, scan_records

FIXED = (
    "total_size",
    "magic",
    "body_crc",
    "queue_id",
    "flag",
    "queue_offset",
    "log_offset",
    "sys_flag",
    "born_timestamp",
    "store_timestamp",
    "reconsume_times",
    "prepared_transaction_offset",
)


def plain_records(
    buffer: ReadBuffer,
    position: int = 0,
    end: int | None = None,
    *,
    verify: Verify | None = None,
    log_start: int | None = None,
) -> tuple[list[MessageRecord], RecordFault | None, int]:
    """What the plain decoder finds, why it stops and where."""
    records = []
    try:
        for record in iter_records(buffer, position, end, verify=verify, log_start=log_start):
            records.append(record)  # noqa: PERF402 - keeps what came before a fault
    except RecordError as error:
        return records, error.fault, error.position
    return records, None, len(buffer) if end is None else end


def records_of(columns: RecordColumns) -> list[MessageRecord]:
    """The records of a scan, rebuilt from nothing but its columns."""
    view = memoryview(columns.buffer)

    def text(start: int, size: int) -> bytes:
        return bytes(view[start : start + size])

    records = []
    for index in range(len(columns)):
        fixed: dict[str, Any] = {name: int(getattr(columns, name)[index]) for name in FIXED}
        sys_flag = fixed["sys_flag"]
        records.append(
            MessageRecord(
                **fixed,
                born_host=text(
                    columns.born_host_start[index],
                    HOST_V6_SIZE if sys_flag & 0x10 else HOST_V4_SIZE,
                ),
                store_host=text(
                    columns.store_host_start[index],
                    HOST_V6_SIZE if sys_flag & 0x20 else HOST_V4_SIZE,
                ),
                body=text(columns.body_start[index], columns.body_size[index]),
                topic=text(columns.topic_start[index], columns.topic_size[index]).decode(
                    "utf-8", "replace"
                ),
                raw_properties=text(
                    columns.properties_start[index], columns.properties_size[index]
                ),
            )
        )
    return records


def properties_of(items: PropertyItems) -> list[dict[str, str]]:
    """One dict per record; a name that comes twice in a record is a defect of the scan."""
    view = memoryview(items.buffer)
    found: list[dict[bytes, bytes]] = [{} for _ in range(items.record_count)]
    for index in range(len(items)):
        start, size = items.name_start[index], items.name_size[index]
        name = bytes(view[start : start + size])
        start, size = items.value_start[index], items.value_size[index]
        properties = found[items.record[index]]
        assert name not in properties
        properties[name] = bytes(view[start : start + size])
    return [
        {
            name.decode("utf-8", "replace"): value.decode("utf-8", "replace")
            for name, value in properties.items()
        }
        for properties in found
    ]


def assert_same(
    buffer: ReadBuffer,
    position: int = 0,
    end: int | None = None,
    *,
    verify: Verify | None = None,
    log_start: int | None = None,
    names: tuple[str, ...] = (),
) -> RecordColumns:
    """Decode ``buffer`` plainly and by columns, compare everything, return the columns."""
    expected, fault, stop = plain_records(buffer, position, end, verify=verify, log_start=log_start)
    columns = scan_records(buffer, position, end, verify=verify, log_start=log_start, strict=False)
    assert (columns.fault, columns.end_position) == (fault, stop)
    assert records_of(columns) == expected
    assert len(columns) == len(expected)
    items = scan_properties(columns)
    assert properties_of(items) == [record.properties for record in expected]
    view = memoryview(buffer)
    for name in names:
        start, size = items.column(name)
        values = [
            bytes(view[a : a + n]).decode("utf-8", "replace") or None
            for a, n in zip(start.tolist(), size.tolist(), strict=True)
        ]
        assert values == [record.properties.get(name) for record in expected]
    return columns


@contextmanager
def lanes_everywhere() -> Iterator[None]:
    """Make the scanner follow lanes in buffers of a kilobyte, as it does in large ones."""
    settings = {"_SAMPLE_BYTES": 64, "_SAMPLE_COUNT_MIN": 1, "_LANES_MIN": 2}
    saved = {name: getattr(scan, name) for name in settings}
    try:
        for name, value in settings.items():
            setattr(scan, name, value)
        yield
    finally:
        for name, value in saved.items():
            setattr(scan, name, value)
