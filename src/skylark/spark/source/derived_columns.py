"""Columns that are made from others: decoded values, and the columns of Spark's Kafka source.

====================  ============================================================================
column                made from
====================  ============================================================================
``value``             the body, decoded by ``valueFormat``; without that option the body itself
``_corrupt_record``   why the body could not be decoded, and where it is; null for good ones
``key``               ``keys``, as bytes
``partition``         ``queueId``; with several brokers unique together with ``brokerName``
``offset``            ``queueOffset``
``timestamp``         ``storeTimestamp``; ``timestampType`` is 1, the time of storing
``headers``           ``properties``, as pairs of a name and bytes
====================  ============================================================================

**Bad records.** ``mode`` says what becomes of a body that cannot be decoded: ``permissive`` (null,
and ``_corrupt_record``), ``dropmalformed`` (no row) or ``failfast`` (an error). With
``badRecordsTopic`` such bodies are also sent to that topic, with the reason and their place as
properties, before the rows of the same batch go on: at least once, since a task may run again.
With ``dropmalformed`` a task logs at its end how many rows it has dropped, and the first of them.

A schema registry that does not answer says nothing about a body: the task waits for it, up to
``outageTimeout``, and then fails.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.types import StructType

from skylark.client.blocking.event_loop_thread import shared_portal
from skylark.client.decode.body_decoders import DecodeError, make_decoder
from skylark.client.decode.schema_registry import RegistryUnavailableError
from skylark.core.clock import Clock, LoopClock
from skylark.core.errors import ClientError
from skylark.spark.outages import OutageError, OutageWait
from skylark.spark.source.schema import CORRUPT, KAFKA_TYPES, VALUE
from skylark.spark.source.source_options import SourceOptions
from skylark.spark.source.value_types import arrow_ready, json_type
from skylark.wire.bodies.common_body import MessageQueue

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_RENAMED: Final = {
    "value": "body",
    "partition": "queueId",
    "offset": "queueOffset",
    "timestamp": "storeTimestamp",
}
_SOURCES: Final = {**_RENAMED, "key": "keys", "headers": "properties", "timestampType": "queueId"}
#: What the error of a bad record names.
_PLACE: Final = ("body", "topic", "brokerName", "queueId", "queueOffset", "msgId")
REASON_PROPERTY: Final = "BAD_RECORD_REASON"
PLACE_PROPERTY: Final = "BAD_RECORD_PLACE"


class BadRecordError(ClientError):
    """A body that cannot be decoded, with ``mode=failfast``."""


class DerivedColumns:
    """Makes the wanted columns from batches with the columns of messages."""

    def __init__(
        self, options: SourceOptions, columns: Sequence[str], value_type: StructType | None
    ) -> None:
        self._options = options
        self._columns = tuple(columns)
        self._values = None if value_type is None else ValueColumn(options, value_type)
        derived = [name for name in columns if name in _SOURCES or name == CORRUPT]
        needed = [name for name in columns if name not in derived]
        needed += [_SOURCES[name] for name in derived if name in _SOURCES]
        if self._values is not None:
            needed += _PLACE
        self.is_needed = bool(derived) or self._values is not None
        #: The columns that batches must have.
        self.base = tuple(dict.fromkeys(needed)) if self.is_needed else self._columns

    def make(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The batches with the wanted columns; raises BadRecordError.

        Also RegistryUnavailableError, after ``outageTimeout``.
        """
        try:
            yield from map(self._made, batches)
        finally:
            if self._values is not None:
                self._values.log_dropped()

    def _made(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        made: dict[str, pa.Array] = {}
        if self._values is not None:
            batch, values, reasons = self._values.decode(batch)
            made = {VALUE: values, CORRUPT: reasons}
        arrays = [made[name] if name in made else _derive(name, batch) for name in self._columns]
        return pa.RecordBatch.from_arrays(arrays, names=list(self._columns))


def _derive(name: str, batch: pa.RecordBatch) -> pa.Array:
    import pyarrow as pa

    if name in _RENAMED:
        return batch.column(_RENAMED[name])
    if name == "key":
        return batch.column("keys").cast(pa.binary())
    if name == "timestampType":
        return pa.repeat(pa.scalar(1, pa.int32()), batch.num_rows)
    if name == "headers":
        from pyspark.sql.pandas.types import to_arrow_type

        found = batch.column("properties")
        pairs = pa.StructArray.from_arrays(
            [found.keys, found.items.cast(pa.binary())], names=["key", "value"]
        )
        kind = to_arrow_type(KAFKA_TYPES["headers"], timezone="UTC")
        return pa.ListArray.from_arrays(found.offsets, pairs).cast(kind)
    if name == CORRUPT:
        return pa.nulls(batch.num_rows, pa.string())
    return batch.column(name)


class ValueColumn:
    """Decodes the bodies of batches."""

    def __init__(
        self, options: SourceOptions, value_type: StructType, clock: Clock | None = None
    ) -> None:
        from pyspark.sql.pandas.types import to_arrow_type

        assert options.value_format is not None, "there is a type of its values"
        is_json = options.value_format == "json"
        self._options = options
        self._clock = clock or LoopClock()
        self._type = to_arrow_type(value_type, timezone="UTC")
        self._ready: Callable[[Any], Any] = arrow_ready(value_type) or (lambda value: value)
        self._decoder = make_decoder(
            options.value_format,
            schema=None if is_json else options.value_schema,
            message=options.value_message,
            registry=options.schema_registry,
            kind=json_type(value_type) if is_json else Any,
        )
        self._dropped = 0
        self._first_dropped = ""  #: its place, and why

    def decode(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.Array, pa.Array]:
        """The rows that stay, their values, and why some have none."""
        import pyarrow as pa

        values: list[Any] = []
        reasons: dict[int, str] = {}
        for row, body in enumerate(batch.column("body").to_pylist()):
            try:
                values.append(self._ready(self._decode(body)))
            except DecodeError as error:
                values.append(None)
                reasons[row] = error.message
        array = self._array(values, reasons)
        if not reasons:
            return batch, array, pa.nulls(batch.num_rows, pa.string())
        self._handle(batch, reasons)
        if self._options.bad_record_mode == "dropmalformed":
            rows = [row for row in range(batch.num_rows) if row not in reasons]
            kept = pa.array(rows, pa.int64())
            self._count_dropped(batch, reasons)
            return batch.take(kept), array.take(kept), pa.nulls(len(kept), pa.string())
        texts = [
            f"{_place(batch, row)}: {reasons[row]}" if row in reasons else None
            for row in range(batch.num_rows)
        ]
        return batch, array, pa.array(texts, pa.string())

    def _decode(self, body: bytes) -> Any:
        """The value in a body; waits while the schema registry does not answer."""
        try:
            return self._decoder.decode(body)
        except RegistryUnavailableError as error:
            problem = error
        timeout_s = self._options.outage_timeout_ms / 1000
        with OutageWait(self._clock, timeout_s) as wait:
            while True:
                try:
                    shared_portal().call(wait.pause(problem))
                except OutageError:  # its text is about brokers and name servers
                    text = f"{problem.message}, for {timeout_s:.0f} s now"
                    raise RegistryUnavailableError(text, hint=problem.hint) from problem
                try:
                    return self._decoder.decode(body)
                except RegistryUnavailableError as error:
                    problem = error

    def _count_dropped(self, batch: pa.RecordBatch, reasons: dict[int, str]) -> None:
        if not self._dropped:
            first = min(reasons)
            self._first_dropped = f"{_place(batch, first)}: {reasons[first]}"
        self._dropped += len(reasons)

    def log_dropped(self) -> None:
        """Log how many rows ``dropmalformed`` has dropped since the last call."""
        if self._dropped:
            logger.warning(
                "%d rows that cannot be decoded as %s were dropped, the first is %s",
                self._dropped,
                self._options.value_format,
                self._first_dropped,
            )
            self._dropped = 0

    def _array(self, values: list[Any], reasons: dict[int, str]) -> pa.Array:
        """The values as Arrow; those that do not fit their type are bad as well."""
        import pyarrow as pa

        try:
            return pa.array(values, self._type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            pass
        for row, value in enumerate(values):
            try:
                pa.array([value], self._type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                values[row] = None
                reasons[row] = f"it does not fit the schema: {error}"
        return pa.array(values, self._type)

    def _handle(self, batch: pa.RecordBatch, reasons: dict[int, str]) -> None:
        row = min(reasons)
        if self._options.bad_record_mode == "failfast":
            raise BadRecordError(
                f"{_place(batch, row)} cannot be decoded as {self._options.value_format}:"
                f" {reasons[row]}",
                hint="mode=permissive or dropmalformed goes on without such records",
            )
        if self._options.bad_records_topic is not None:
            _send_bad_records(self._options, batch, reasons)


def _place(batch: pa.RecordBatch, row: int) -> str:
    """Where a message is."""
    queue = MessageQueue(
        topic=batch.column("topic")[row].as_py(),
        broker_name=batch.column("brokerName")[row].as_py(),
        queue_id=batch.column("queueId")[row].as_py(),
    )
    offset, msg_id = (batch.column(name)[row].as_py() for name in ("queueOffset", "msgId"))
    return (
        f"message {msg_id} (topic {queue.topic}, broker {queue.broker_name}, queue"
        f" {queue.queue_id}, offset {offset})"
    )


def _send_bad_records(
    options: SourceOptions, batch: pa.RecordBatch, reasons: dict[int, str]
) -> None:
    """Send bad records to their topic; returns when brokers have acknowledged them."""
    import pyarrow as pa

    from skylark.spark.sink.row_encoder import RowPlan
    from skylark.spark.sink.sink_options import SinkOptions
    from skylark.spark.sink.task_writer import TaskId, write_at_least_once

    rows = sorted(reasons)
    properties = [
        [(REASON_PROPERTY, _one_line(reasons[row])), (PLACE_PROPERTY, _place(batch, row))]
        for row in rows
    ]
    taken = batch.take(pa.array(rows))
    bad = pa.RecordBatch.from_arrays(
        [
            taken.column("body"),
            taken.column("msgId"),
            pa.array(properties, pa.map_(pa.string(), pa.string())),
        ],
        names=["body", "keys", "properties"],
    )
    sink = SinkOptions(
        connection=options.connection,
        topic=options.bad_records_topic,
        producer_group="spark-source",
        on_bad_row="skip",  # an empty body cannot be sent, and is in the log
        outage_timeout_ms=options.outage_timeout_ms,
    )
    plan = RowPlan(columns=("body", "keys", "properties"))
    write_at_least_once([bad], sink, plan, TaskId(sink="bad-records", batch=0, partition=0))


def _one_line(text: str) -> str:
    """Text without the separators of properties, and not too long for one."""
    return "".join(char if char.isprintable() else " " for char in text)[:500]
