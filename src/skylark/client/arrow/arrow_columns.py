"""The Arrow columns of messages: their names and types, and functions that make them.

:mod:`skylark.client.arrow.arrow_reader` passes pyarrow, which is an optional package. A column is
made from :class:`~skylark.client.arrow.record_rows.Rows`, all rows at once. Numbers are already
columns. Bodies and texts are gathered from the buffer: by numpy if all have one size, else by
Arrow: an array over the whole buffer has the values as every second element and the bytes between
them as the others, and one ``take`` selects the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from skylark.client.arrow.record_rows import Rows, Span
from skylark.core.errors import ConfigError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.properties import (
    PROPERTY_KEYS,
    PROPERTY_SHARDING_KEY,
    PROPERTY_TAGS,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_UNIQ_KEY,
    parse_properties,
)
from skylark.wire.record_scan import gather

DEFAULT_COLUMNS: Final = (
    "topic",
    "brokerName",
    "queueId",
    "queueOffset",
    "msgId",
    "tags",
    "keys",
    "body",
    "bornTimestamp",
    "storeTimestamp",
    "bornHost",
    "reconsumeTimes",
    "sysFlag",
    "properties",
)
EXTRA_COLUMNS: Final = (
    "commitLogOffset",
    "offsetMsgId",
    "flag",
    "bodyCrc",
    "storeSize",
    "storeHost",
    "preparedTransactionOffset",
    "shardingKey",
    "deliverTimestamp",
)

_INT32_MAX: Final = 2**31 - 1  # offsets of binary arrays


def make_schema(pa: Any, columns: Sequence[str] | None = None) -> Any:
    """The schema of batches with these columns; raises ConfigError for unknown names."""
    names = DEFAULT_COLUMNS if columns is None else tuple(columns)
    unknown = [name for name in names if name not in DEFAULT_COLUMNS + EXTRA_COLUMNS]
    if unknown or len(set(names)) != len(names) or not names:
        problem = f"no column {', '.join(map(repr, unknown))}"
        raise ConfigError(
            problem if unknown else "columns must be named, each once",
            hint=f"there are {', '.join(DEFAULT_COLUMNS + EXTRA_COLUMNS)}",
        )
    time = pa.timestamp("us", "UTC")
    types = dict.fromkeys(DEFAULT_COLUMNS + EXTRA_COLUMNS, pa.string()) | {
        "queueId": pa.int32(),
        "queueOffset": pa.int64(),
        "body": pa.binary(),
        "bornTimestamp": time,
        "storeTimestamp": time,
        "reconsumeTimes": pa.int32(),
        "sysFlag": pa.int32(),
        "properties": pa.map_(pa.string(), pa.string()),
        "commitLogOffset": pa.int64(),
        "flag": pa.int32(),
        "bodyCrc": pa.int32(),
        "storeSize": pa.int32(),
        "preparedTransactionOffset": pa.int64(),
        "deliverTimestamp": time,
    }
    return pa.schema([(name, types[name]) for name in names])


class ColumnMaker:
    """Makes the columns of one batch."""

    def __init__(self, pa: Any, queue: MessageQueue, rows: Rows, bodies: Any = None) -> None:
        """``pa`` is pyarrow; ``bodies`` an array of bodies that are not in the buffer."""
        self._pa = pa
        self._queue = queue
        self._rows = rows
        self._bodies = bodies

    def make(self, name: str) -> Any:
        return self._MAKERS[name](self)

    # ---- numbers

    def _number(self, field: str) -> Any:
        values = getattr(self._rows.columns, field)
        return self._pa.array(values.astype(values.dtype.newbyteorder("="), copy=False))

    def _time(self, field: str) -> Any:
        micros = getattr(self._rows.columns, field) * 1000
        return self._pa.array(micros).view(self._pa.timestamp("us", "UTC"))

    def _store_size(self) -> Any:
        return self._pa.array(self._rows.columns.total_size.astype("int32"))

    def _queue_id(self) -> Any:
        return self._constant(self._pa.scalar(self._queue.queue_id, self._pa.int32()))

    def _constant(self, value: Any) -> Any:
        return self._pa.repeat(value, len(self._rows))

    # ---- values in the buffer

    def _gather(self, spans: Sequence[Span], *, null_if_empty: bool = False) -> list[Any]:
        """The values of spans as binary arrays; of several spans, each precedes the next in a row.

        Elements of the first array: the values themselves and, between them, everything else.
        """
        import numpy as np

        pa, count = self._pa, len(spans[0][0])
        step = 2 * len(spans)
        offsets = np.empty(step * count + 1, np.int32)
        for index, (start, size) in enumerate(spans):
            offsets[2 * index : -1 : step] = start
            offsets[2 * index + 1 :: step] = start + size
        offsets[-1] = offsets[-2] if count else 0
        everything = pa.Array.from_buffers(
            pa.binary(),
            step * count,
            [None, pa.py_buffer(offsets), pa.py_buffer(self._rows.buffer)],
        )
        gathered = []
        for index, (_, size) in enumerate(spans):
            wanted = np.arange(2 * index, step * count, step, dtype=np.int32)
            missing = size == 0 if null_if_empty else None
            gathered.append(everything.take(pa.array(wanted, mask=missing)))
        return gathered

    def _gather_one(self, span: Span, *, null_if_empty: bool = False) -> Any:
        """The values of one span as an array; faster than ``_gather`` if all have one size."""
        start, sizes = span
        size = int(sizes[0]) if len(sizes) else 0
        if not size or len(sizes) * size > _INT32_MAX or (sizes != size).any():
            return self._gather([span], null_if_empty=null_if_empty)[0]
        import numpy as np

        pa, count = self._pa, len(sizes)
        offsets = np.arange(0, (count + 1) * size, size, dtype=np.int32)
        values = gather(self._rows.buffer, start, size)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
        return pa.Array.from_buffers(pa.binary(), count, buffers)

    def _body(self) -> Any:
        if self._bodies is not None:
            return self._bodies
        columns = self._rows.columns
        return self._gather_one((columns.body_start, columns.body_size))

    def _topic(self) -> Any:
        columns = self._rows.columns
        return self._text(self._gather_one((columns.topic_start, columns.topic_size)))

    def _property(self, name: str) -> Any:
        start, size = self._rows.property_span(name)
        if not size.any():
            return self._pa.nulls(len(size), self._pa.string())
        return self._text(self._gather_one((start, size), null_if_empty=True))

    def _text(self, raw: Any) -> Any:
        pa = self._pa
        try:
            return raw.cast(pa.string())
        except pa.ArrowInvalid:  # some of it is no UTF-8
            return pa.array(map(_decoded, raw.to_pylist()), pa.string())

    def _properties(self) -> Any:
        import numpy as np

        pa, items = self._pa, self._rows.items
        names, values = self._gather(
            [(items.name_start, items.name_size), (items.value_start, items.value_size)]
        )
        try:
            names, values = names.cast(pa.string()), values.cast(pa.string())
        except pa.ArrowInvalid:  # names that are no UTF-8 may become equal
            return self._properties_one_by_one()
        ends = np.searchsorted(items.record, np.arange(len(self._rows) + 1))
        return pa.MapArray.from_arrays(pa.array(ends.astype(np.int32)), names, values)

    def _properties_one_by_one(self) -> Any:
        pa, columns = self._pa, self._rows.columns
        view = memoryview(self._rows.buffer)
        spans = zip(
            columns.properties_start.tolist(), columns.properties_size.tolist(), strict=True
        )
        parsed = [parse_properties(bytes(view[at : at + size])) for at, size in spans]
        return pa.array([list(each.items()) for each in parsed], pa.map_(pa.string(), pa.string()))

    def _deliver_time(self) -> Any:
        texts = self._property(PROPERTY_TIMER_DELIVER_MS).to_pylist()
        return self._pa.array(map(_micros, texts), self._pa.timestamp("us", "UTC"))

    # ---- hosts and ids

    def _hosts(self, found: tuple[Any, list[str]]) -> Any:
        index, names = found
        return self._pa.array(names, self._pa.string()).take(self._pa.array(index))

    def _offset_ids(self) -> Any:
        import numpy as np

        text, ends = self._rows.offset_ids()
        offsets = np.zeros(len(ends) + 1, np.int32)
        offsets[1:] = ends
        pa = self._pa
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), len(ends), buffers)

    def _msg_id(self) -> Any:
        ids = self._property(PROPERTY_UNIQ_KEY)
        return self._pa.compute.coalesce(ids, self._offset_ids()) if ids.null_count else ids

    _MAKERS: Final[Mapping[str, Callable[[ColumnMaker], Any]]] = {
        "topic": _topic,
        "brokerName": lambda self: self._constant(self._queue.broker_name),
        "queueId": _queue_id,
        "queueOffset": lambda self: self._number("queue_offset"),
        "msgId": _msg_id,
        "tags": lambda self: self._property(PROPERTY_TAGS),
        "keys": lambda self: self._property(PROPERTY_KEYS),
        "body": _body,
        "bornTimestamp": lambda self: self._time("born_timestamp"),
        "storeTimestamp": lambda self: self._time("store_timestamp"),
        "bornHost": lambda self: self._hosts(self._rows.born_hosts()),
        "reconsumeTimes": lambda self: self._number("reconsume_times"),
        "sysFlag": lambda self: self._number("sys_flag"),
        "properties": _properties,
        "commitLogOffset": lambda self: self._number("log_offset"),
        "offsetMsgId": _offset_ids,
        "flag": lambda self: self._number("flag"),
        "bodyCrc": lambda self: self._number("body_crc"),
        "storeSize": _store_size,
        "storeHost": lambda self: self._hosts(self._rows.store_hosts()),
        "preparedTransactionOffset": lambda self: self._number("prepared_transaction_offset"),
        "shardingKey": lambda self: self._property(PROPERTY_SHARDING_KEY),
        "deliverTimestamp": _deliver_time,
    }
    assert set(_MAKERS) == set(DEFAULT_COLUMNS + EXTRA_COLUMNS)


def _decoded(raw: bytes | None) -> str | None:
    return None if raw is None else raw.decode("utf-8", "replace")


def _micros(text: str | None) -> int | None:
    """Convert a property from milliseconds to microseconds; None if it is not a number."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 15:
        return None
    return int(text) * 1000
