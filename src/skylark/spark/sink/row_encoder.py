"""Encoder of the sink: turns Arrow batches into message bodies, properties and destinations.

=====================  ============================================================================
column                 becomes
=====================  ============================================================================
body                   the body; binary or string. Null or empty is a bad row
topic                  the topic, unless the option names one
tags, keys             TAGS, KEYS; keys may be an array, joined by blanks
properties             user properties; reserved names are dropped, or make the row bad
shardingKey            __SHARDINGKEY, and the queue: equal keys, one queue, in the order of the rows
brokerName, queueId    the queue, with ``explicitQueue``
delayLevel             DELAY, 1 to 18
deliverTimestamp       TIMER_DELIVER_MS
delayMs                TIMER_DELAY_MS
msgId                  UNIQ_KEY, with ``preserveMsgId``
flag                   the flag
=====================  ============================================================================

Other columns of the source are ignored, so that rows can be written as they were read; any further
column is an error. All work is done on whole columns; only bad rows and rows that need a request of
their own (delayed or large ones) are handled one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from skylark.client.core.validation import MESSAGE_SIZE_MAX
from skylark.core.errors import ConfigError, SkylarkError
from skylark.core.names import topic_problem
from skylark.spark.sink.row_properties import (
    STAMP_PROPERTY,
    fixed_text,
    join_pieces,
    map_pieces,
    piece,
)
from skylark.spark.sink.sink_options import SinkOptions, no_topic_known
from skylark.wire import properties as names
from skylark.wire.layout import BATCH_HEAD_SIZE, BATCH_MESSAGE_SIZE_MIN, PROPERTIES_SIZE_MAX

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

DELAY_LEVEL_MAX: Final = 18
#: The columns of the sink, with Spark's names of their types.
SINK_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "shardingKey": ("string",),
    "brokerName": ("string",),
    "queueId": ("int",),
    "delayLevel": ("int",),
    "deliverTimestamp": ("timestamp",),
    "delayMs": ("bigint", "int"),
    "msgId": ("string",),
    "flag": ("int",),
}
#: Columns of the source that the sink ignores.
PASSED_OVER: Final = frozenset(
    {
        "queueOffset", "bornTimestamp", "storeTimestamp", "bornHost", "reconsumeTimes", "sysFlag",
        "commitLogOffset", "offsetMsgId", "bodyCrc", "storeSize", "storeHost",
        "preparedTransactionOffset",
    }
)  # fmt: skip
_DELAYS: Final = ("delayLevel", "deliverTimestamp", "delayMs")


class BadRowError(SkylarkError):
    """A row that cannot be sent as a message."""


class RowPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The columns that the sink uses; pickled to the tasks."""

    columns: tuple[str, ...]

    def has(self, column: str) -> bool:
        return column in self.columns


def plan_rows(
    types: Mapping[str, str], options: SinkOptions, *, has_options: bool = True
) -> RowPlan:
    """Check the columns of a frame (name -> Spark's name of the type); raises ConfigError."""
    known = {**dict.fromkeys(PASSED_OVER), **SINK_TYPES}
    unknown = [name for name in types if name not in known]
    if unknown and not options.ignore_extra_columns:
        raise ConfigError(
            f"the sink has no column {', '.join(unknown)}",
            hint=f"it takes {', '.join(SINK_TYPES)}; ignoreExtraColumns=true drops others",
        )
    if "topic" not in types and options.topic is None:
        raise no_topic_known(has_options=has_options)
    if "body" not in types:
        raise ConfigError("the sink needs a column body", hint="name one: `value AS body`")
    for name, kinds in SINK_TYPES.items():
        if name in types and types[name] not in kinds:
            raise ConfigError(
                f"column {name} is {types[name]}, and must be {' or '.join(kinds)}",
                hint="cast it in the query",
            )
    if "queueOffset" in types and options.topic is None and not options.allow_same_topic:
        raise ConfigError(
            "these are rows of the source, and no option names a topic: they would be written back"
            " to the topic that they came from",
            hint='give .option("topic", "..."), or allowSameTopic=true',
        )
    if options.exactly_once and (delays := [name for name in _DELAYS if name in types]):
        raise ConfigError(
            f"column {', '.join(delays)} does not go with delivery=exactly-once",
            hint="half messages cannot be delayed; drop the column or use at-least-once",
        )
    if options.explicit_queue and not {"brokerName", "queueId"} <= types.keys():
        raise ConfigError("explicitQueue=true needs the columns brokerName and queueId")
    return RowPlan(columns=tuple(name for name in types if name in SINK_TYPES))


class Stamp(msgspec.Struct, frozen=True):
    """The prefix of the property ``SPARK_ID``, and the number of the first row."""

    prefix: str
    first: int


class Rows:
    """The good rows of one Arrow batch as columns, and why the others are bad.

    ``positions`` has the indexes of the good rows in the batch; all other arrays have one entry per
    good row.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.first = 0  #: index of its first row among all rows of the task
        self.bad: dict[int, str] = {}
        self.positions: np.ndarray[Any, Any]
        self.bodies: pa.Array
        self.texts: pa.Array
        self.sizes: np.ndarray[Any, Any]
        self.flags: np.ndarray[Any, Any]
        self.topics: pa.Array | None = None
        self.shard_keys: pa.Array | None = None
        self.brokers: pa.Array | None = None
        self.queue_ids: pa.Array | None = None
        self.alone: np.ndarray[Any, Any]  #: rows that need a separate request


class RowReader:
    """Encodes Arrow batches as :class:`Rows`."""

    def __init__(
        self,
        plan: RowPlan,
        options: SinkOptions,
        extra: Mapping[str, str],
        next_id: Callable[[], str] | None,
    ) -> None:
        """``extra`` properties are added to every message; ``next_id`` makes unique ids."""
        self._plan = plan
        self._options = options
        self._fixed = fixed_text({names.PROPERTY_WAIT: "true", **extra})
        self._next_id = next_id

    def read(self, batch: pa.RecordBatch, stamp: Stamp | None = None) -> Rows:
        """Encode a batch."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        rows = Rows(batch.num_rows)
        bodies = batch.column("body").cast(pa.binary())
        sizes = pc.fill_null(pc.binary_length(bodies), 0).to_numpy()
        self._mark(rows, sizes == 0, "the body is null or empty")
        self._mark(rows, sizes > MESSAGE_SIZE_MAX, f"the body is over {MESSAGE_SIZE_MAX} bytes")
        texts = self._texts(rows, batch, stamp)
        too_long = pc.binary_length(texts).to_numpy() > PROPERTIES_SIZE_MAX
        self._mark(rows, too_long, f"the properties take over {PROPERTIES_SIZE_MAX} bytes")
        self._read_topics(rows, batch)
        alone = sizes >= min(self._options.compress_over, self._options.batch_size_max)
        for name in _DELAYS:
            if self._plan.has(name):
                alone |= pc.is_valid(batch.column(name)).to_numpy(zero_copy_only=False)
        flags = np.zeros(rows.count, np.int32)
        if self._plan.has("flag"):
            flags = pc.fill_null(batch.column("flag"), 0).to_numpy()
        keys = batch.column("shardingKey") if self._plan.has("shardingKey") else None
        brokers = queue_ids = None
        if self._options.explicit_queue:
            brokers, queue_ids = batch.column("brokerName"), batch.column("queueId")
        keep = np.array([n for n in range(rows.count) if n not in rows.bad], np.int64)
        if not rows.bad:
            keep = np.arange(rows.count)
        rows.positions = keep

        def good(column: pa.Array | None) -> pa.Array | None:
            return column if column is None or not rows.bad else column.take(pa.array(keep))

        rows.bodies, rows.texts = good(bodies), good(texts)
        rows.sizes, rows.flags, rows.alone = sizes[keep], flags[keep], alone[keep]
        rows.topics, rows.shard_keys = good(rows.topics), good(keys)
        rows.brokers, rows.queue_ids = good(brokers), good(queue_ids)
        return rows

    def _texts(self, rows: Rows, batch: pa.RecordBatch, stamp: Stamp | None) -> pa.Array:
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        has = self._plan.has
        pieces: list[pa.Array | str] = []
        if has("properties"):
            decided = {
                names.PROPERTY_TAGS: "tags",
                names.PROPERTY_KEYS: "keys",
                names.PROPERTY_SHARDING_KEY: "shardingKey",
            }
            without = [name for name, column in decided.items() if has(column)]
            kept = [names.PROPERTY_RETRY_TOPIC] if self._options.keep_retry_topic else []
            found = map_pieces(batch.column("properties"), without, kept)
            if self._options.reserved_properties == "fail":
                self._mark(rows, found.reserved, "a property has a name of the system")
            self._mark(rows, found.broken, "a property has a separator, or no name")
            pieces.append(found.texts)
        for name, column in (
            (names.PROPERTY_TAGS, "tags"),
            (names.PROPERTY_SHARDING_KEY, "shardingKey"),
            (names.PROPERTY_KEYS, "keys"),
        ):
            if has(column):
                values = batch.column(column)
                if pa.types.is_list(values.type):
                    # Spark marks elements as not null, and the kernel takes nullable ones only.
                    values = pc.binary_join(values.cast(pa.list_(pa.string())), " ")
                broken = pc.fill_null(pc.match_substring(values, "\x02"), False)
                self._mark(rows, broken.to_numpy(zero_copy_only=False), f"{column}: a separator")
                pieces.append(piece(name, values))
        pieces += self._delays(rows, batch)
        if self._next_id is not None:
            ids = pa.array([self._next_id() for _ in range(rows.count)], pa.string())
            if self._options.preserve_msg_id and has("msgId"):
                ids = pc.coalesce(batch.column("msgId"), ids)
            pieces.append(piece(names.PROPERTY_UNIQ_KEY, ids))
        if stamp is not None:
            numbers = pa.array(np.arange(stamp.first, stamp.first + rows.count)).cast(pa.string())
            pieces.append(
                piece(STAMP_PROPERTY, pc.binary_join_element_wise(stamp.prefix, numbers, ""))
            )
        pieces.append(self._fixed)
        return join_pieces(pieces, rows.count)

    def _delays(self, rows: Rows, batch: pa.RecordBatch) -> Iterator[pa.Array]:
        import pyarrow as pa
        import pyarrow.compute as pc

        has = self._plan.has
        if has("delayLevel"):
            level = batch.column("delayLevel")
            wrong = pc.or_(pc.less(level, 1), pc.greater(level, DELAY_LEVEL_MAX))
            self._mark(rows, pc.fill_null(wrong, False).to_numpy(zero_copy_only=False),
                       f"delayLevel is not 1 to {DELAY_LEVEL_MAX}")  # fmt: skip
            yield piece(names.PROPERTY_DELAY, level)
        if has("deliverTimestamp"):
            micros = batch.column("deliverTimestamp").cast(pa.timestamp("us", "UTC"))
            millis = pc.divide(micros.cast(pa.int64()), 1000)
            yield piece(names.PROPERTY_TIMER_DELIVER_MS, millis)
        if has("delayMs"):
            delay = batch.column("delayMs")
            wrong = pc.fill_null(pc.less(delay, 0), False)
            self._mark(rows, wrong.to_numpy(zero_copy_only=False), "delayMs is negative")
            yield piece(names.PROPERTY_TIMER_DELAY_MS, delay)

    def _read_topics(self, rows: Rows, batch: pa.RecordBatch) -> None:
        import pyarrow.compute as pc

        if self._options.topic is not None:
            return
        topics = batch.column("topic")
        self._mark(rows, pc.is_null(topics).to_numpy(zero_copy_only=False), "the topic is null")
        for topic in pc.unique(topics).to_pylist():
            problem = None if topic is None else topic_problem(topic)
            if problem is not None:
                same = pc.fill_null(pc.equal(topics, topic), False)
                self._mark(rows, same.to_numpy(zero_copy_only=False), problem)
        rows.topics = topics

    @staticmethod
    def _mark(rows: Rows, which: np.ndarray[Any, Any], reason: str) -> None:
        """Mark rows as bad, given by a mask or by their indexes; the first reason is kept."""
        numbers = which.nonzero()[0] if which.dtype == bool else which
        for number in numbers.tolist():
            rows.bad.setdefault(number, reason)


def batch_parts(
    bodies: pa.Array, texts: pa.Array, flags: np.ndarray[Any, Any]
) -> tuple[memoryview, np.ndarray[Any, Any]]:
    """The messages encoded as the body of a batch, and the start of each in it."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    count = len(bodies)
    body_sizes = pc.binary_length(bodies).to_numpy()
    text_sizes = pc.binary_length(texts).to_numpy()
    heads = np.zeros((count, BATCH_HEAD_SIZE // 4), ">i4")
    heads[:, 0] = BATCH_MESSAGE_SIZE_MIN + body_sizes + text_sizes
    heads[:, 3] = flags
    heads[:, 4] = body_sizes
    parts = pc.binary_join_element_wise(
        _fixed_width(heads, BATCH_HEAD_SIZE),
        bodies,
        _fixed_width(text_sizes.astype(">i2"), 2),
        texts.cast(pa.binary()),
        b"",
    )
    _, offsets, data = parts.buffers()
    ends = np.frombuffer(offsets, np.int32)[parts.offset : parts.offset + count + 1]
    return memoryview(data or b""), ends


def _fixed_width(values: np.ndarray[Any, Any], width: int) -> pa.Array:
    """A binary array with values of one width."""
    import numpy as np
    import pyarrow as pa

    raw = np.ascontiguousarray(values).tobytes()
    ends = np.arange(0, len(raw) + 1, width, dtype=np.int32)
    return pa.BinaryArray.from_buffers(
        pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(raw)]
    )
