"""Properties of many rows, encoded column by column: ``name 0x01 value 0x02`` each.

Arrow kernels do all of it on whole columns, never row by row. The text of a row is joined from
pieces, one per column; the piece is empty where the column has no value. Reserved names
(:data:`RESERVED_NAMES`), and names that have a separate column, are dropped from the column
``properties``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from skylark.spark.exactly_once.txn_log_records import IDENTITY_PROPERTY
from skylark.wire import properties as names

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

STAMP_PROPERTY: Final = "SPARK_ID"
#: Names that clients and brokers write: a row that has one was read from a topic, or is wrong.
RESERVED_NAMES: Final = frozenset(
    {
        names.PROPERTY_TRAN_MSG,
        names.PROPERTY_PGROUP,
        names.PROPERTY_REAL_TOPIC,
        names.PROPERTY_REAL_QID,
        names.PROPERTY_RETRY_TOPIC,
        names.PROPERTY_DELAY,
        names.PROPERTY_PRIORITY,  # it would override the queue that the sink has chosen
        names.PROPERTY_MIN_OFFSET,
        names.PROPERTY_MAX_OFFSET,
        names.PROPERTY_RECONSUME_TIME,
        names.PROPERTY_MAX_RECONSUME_TIMES,
        names.PROPERTY_CONSUME_START_TIME,
        names.PROPERTY_TRANSACTION_CHECK_TIMES,
        names.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
        names.PROPERTY_TRAN_PREPARED_QUEUE_OFFSET,
        names.PROPERTY_TRANSACTION_ID,
        names.PROPERTY_POP_CK,
        names.PROPERTY_POP_CK_OFFSET,
        names.PROPERTY_FIRST_POP_TIME,
        names.PROPERTY_CLUSTER,
        names.PROPERTY_CRC32,
        names.PROPERTY_ORIGIN_MESSAGE_ID,
        IDENTITY_PROPERTY,
    }
)
RESERVED_PREFIXES: Final = ("TIMER_", "INNER_", names.PROPERTY_TRANSIENT_PREFIX)
#: Dropped from the column ``properties``: the sink writes its own values.
REPLACED_NAMES: Final = frozenset({names.PROPERTY_UNIQ_KEY, names.PROPERTY_WAIT, STAMP_PROPERTY})


class MapTexts(NamedTuple):
    """The encoded properties of a map column."""

    texts: pa.Array
    reserved: np.ndarray[Any, Any]  #: rows that had a reserved name
    broken: np.ndarray[Any, Any]  #: rows with a separator in a name or value


def piece(name: str, values: pa.Array) -> pa.Array:
    """The property of one column; empty where the value is null or empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values = values.cast(pa.string())
    text = pc.binary_join_element_wise(f"{name}\x01", values, "\x02", "")
    present = pc.fill_null(pc.greater(pc.binary_length(values), 0), False)
    return pc.if_else(present, text, "")


def map_pieces(
    column: pa.MapArray, without: Collection[str], kept: Collection[str] = ()
) -> MapTexts:
    """Encode a map column; ``without`` has the names for which there are other columns.

    ``kept`` are reserved names that stay nevertheless.
    """
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(column)
    offsets = column.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    keys = column.keys[first:last].cast(pa.string())
    values = column.items[first:last].cast(pa.string())
    row_of = np.repeat(np.arange(count), np.diff(offsets))

    reserved = pc.is_in(keys, value_set=pa.array(sorted(RESERVED_NAMES - set(kept)), pa.string()))
    for prefix in RESERVED_PREFIXES:
        reserved = pc.or_(reserved, pc.starts_with(keys, prefix))
    dropped = pa.array(sorted({*REPLACED_NAMES, *without}), pa.string())
    left_out = pc.or_(pc.is_in(keys, value_set=dropped), pc.is_null(values))
    keep = pc.invert(pc.or_(reserved, left_out)).to_numpy(zero_copy_only=False)
    broken = pc.or_(
        pc.match_substring_regex(keys, "^$|[\x01\x02]"),
        pc.fill_null(pc.match_substring(values, "\x02"), False),
    )

    mask = pa.array(keep)
    entries = pc.binary_join_element_wise(
        keys.filter(mask), "\x01", values.filter(mask), "\x02", ""
    )
    per_row = np.bincount(row_of[keep], minlength=count)
    ends = np.concatenate(([0], np.cumsum(per_row)))
    return MapTexts(
        _joined(entries, ends),
        np.unique(row_of[reserved.to_numpy(zero_copy_only=False)]),
        np.unique(row_of[broken.to_numpy(zero_copy_only=False) & keep]),
    )


def _joined(entries: pa.StringArray, ends: np.ndarray[Any, Any]) -> pa.Array:
    """Join adjacent texts without a copy: only the offsets change."""
    import numpy as np
    import pyarrow as pa

    if not len(entries):
        return pa.array([""] * (len(ends) - 1), pa.string())
    _, offsets, data = entries.buffers()
    entry_ends = np.frombuffer(offsets, np.int32)[
        entries.offset : entries.offset + len(entries) + 1
    ]
    row_ends = np.ascontiguousarray(entry_ends[ends])
    return pa.StringArray.from_buffers(len(ends) - 1, pa.py_buffer(row_ends), data)


def join_pieces(pieces: Collection[pa.Array | str], count: int) -> pa.Array:
    """Join the pieces of each row; a piece that is a plain string is the same for all rows."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if all(isinstance(part, str) for part in pieces):
        return pa.array(["".join(map(str, pieces))] * count, pa.string())
    return pc.binary_join_element_wise(*pieces, "")


def fixed_text(properties: Mapping[str, str]) -> str:
    """The encoded properties that all rows have."""
    return names.encode_properties(properties)
