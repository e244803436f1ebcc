"""Options of the source: names, types, defaults, and which of them exclude each other.

:func:`source_options` makes a :class:`SourceOptions` from the options of a query, or raises one
error that says what is wrong. The options of Spark's Kafka source that have a counterpart are
accepted as well:

=============================  ================================================
``kafka.bootstrap.servers``    ``nameServer``
``subscribe``                  ``topics``
``subscribePattern``           ``topicsPattern``
``assign``                     topics and queues, ``{"T": {"broker-a": [0, 1]}}``
``kafka.group.id``             ``group``
``includeHeaders``             ignored: properties are a column
=============================  ================================================

With ``kafka.bootstrap.servers`` the columns of that source are there as well, and offsets may be
in its form, ``{"T": {"0": 23}}``, for topics on one broker.

All others have the same names there. An option of batches in a stream (or the reverse) is an error
if it would change what is read (``endingOffsets`` in a stream), and is ignored if it would only
limit the rate (``maxOffsetsPerTrigger`` in a batch).

Tasks get these options inside pickled readers, so all values are plain, and classes and fields keep
their names: pickles of earlier versions must open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from skylark.core.errors import ConfigError
from skylark.core.names import group_problem, topic_problem
from skylark.spark.option_table import (
    CONNECTION_OPTIONS,
    OUTAGE_TIMEOUT_MS,
    Connection,
    Option,
    boolean,
    byte_count,
    duration_ms,
    make_connection,
    moment_ms,
    names,
    one_of,
    option_fields,
    read_options,
    text_of,
    valid_name,
    whole,
)
from skylark.spark.source.offset_options import (
    At,
    Named,
    Position,
    assigned_queues,
    chosen_queues,
    ending_position,
    starting_position,
)
from skylark.wire.bodies.common_body import MessageQueue

DEFAULT_GROUP: Final = "spark-source"
FILE_RECORDS_PER_PARTITION: Final = 500_000
#: Messages in one reply of a Skylark broker; Apache brokers send 32 at most.
PULL_BATCH_SIZE: Final = 65_536
#: Larger replies exceed the processor caches and are decoded more slowly.
PULL_SIZE: Final = 2 * 1024 * 1024
FETCH_RETRY_MS: Final = 200
_PATH_LENGTH_MAX: Final = 1024


_topic: Final = valid_name(topic_problem)


def _topics(text: str) -> tuple[str, ...]:
    return tuple(map(_topic, names(text)))


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise ValueError(f"it must be a regular expression: {error}") from None
    return text


def _tags(text: str) -> str:
    if not any(part.strip() for part in text.split("||")):
        raise ValueError("it must be tags, TagA || TagB, or * for all")
    return text


def _default_position(text: str) -> Named:
    return Named[one_of("earliest", "latest")(text).upper()]


def _scan(text: str) -> str:
    if one_of("queue", "commitlog")(text) == "commitlog":
        raise ValueError("scanning the whole commit log is not supported yet; leave it out")
    return "queue"


def _schema_content(text: str) -> bytes:
    """A schema as text, or the content of a file, which tasks then need not find."""
    if not text:
        raise ValueError("it must be a schema, or the path of a file with one")
    if "\n" not in text and len(text) < _PATH_LENGTH_MAX and Path(text).is_file():
        return Path(text).read_bytes()
    if "/" in text and not any(sign in text for sign in "{<, "):
        raise ValueError("there is no such file, and it is no schema")
    return text.encode()


_POSITIVE: Final = whole(1)

OPTIONS: Final = (
    *CONNECTION_OPTIONS,
    Option("topic", _topic),
    Option("topics", _topics, ("subscribe",)),
    Option("topicsPattern", _pattern, ("subscribePattern",)),
    Option("assign", assigned_queues),
    Option("topicRefreshMs", duration_ms, field="topic_refresh_ms"),
    Option("group", valid_name(group_problem), ("kafka.group.id", "consumerGroup"), field="group"),
    Option("commitGroupOffsets", boolean),
    Option("startingOffsets", starting_position),
    Option("startingDefault", _default_position, field="start_default"),
    Option("startingTimestamp", moment_ms),
    Option("endingTimestamp", moment_ms),
    Option("endingOffsets", ending_position),
    Option("tags", _tags, ("subExpression",), field="tags"),
    Option("sql92", text_of("a condition"), field="sql92"),
    Option("queues", chosen_queues, field="queues"),
    Option("maxOffsetsPerTrigger", _POSITIVE, field="offsets_per_trigger_max"),
    Option("maxBytesPerTrigger", byte_count, field="bytes_per_trigger_max"),
    Option("minOffsetsPerTrigger", _POSITIVE, field="offsets_per_trigger_min"),
    Option("maxTriggerDelay", duration_ms, field="trigger_delay_max_ms"),
    Option("minPartitions", whole(1, 1_000_000), field="partitions_min"),
    Option("maxPartitions", whole(1, 1_000_000), field="partitions_max"),
    Option("maxRecordsPerPartition", _POSITIVE, field="records_per_partition_max"),
    Option("failOnDataLoss", boolean, field="fail_on_data_loss"),
    Option("brokerDownGraceMs", duration_ms, field="broker_down_grace_ms"),
    Option("readMode", one_of("auto", "pull", "file"), field="read_mode"),
    Option("storePath", text_of("the folder of the broker's store"), field="store_path"),
    Option("scan", _scan),
    Option("columns", names),
    Option("decompress", boolean, field="decompress"),
    Option("includeHeaders", boolean),
    Option("pullBatchSize", whole(1, 1 << 20), field="pull_batch_size"),
    Option("pullMaxBytes", byte_count, field="pull_size_max"),
    Option("pullTimeoutMs", duration_ms, field="pull_timeout_ms"),
    Option("idlePollMs", duration_ms, field="idle_poll_ms"),
    Option("readFrom", one_of("master", "slave", "any"), field="read_from"),
    Option("fetchOffset.numRetries", whole(0, 1000), field="fetch_retries"),
    Option("fetchOffset.retryIntervalMs", duration_ms, field="fetch_retry_ms"),
    Option("outageTimeout", duration_ms, field="outage_timeout_ms"),
    Option("valueFormat", one_of("json", "avro", "protobuf"), ("value_format",),
           field="value_format"),
    Option("valueSchema", _schema_content, ("value_schema",), field="value_schema"),
    Option("valueMessage", text_of("the name of a message"), ("value_message",),
           field="value_message"),
    Option("schemaRegistry", text_of("the URL of a registry"),
           ("schema_registry", "schema.registry.url"), field="schema_registry"),
    Option("mode", one_of("permissive", "dropmalformed", "failfast"), field="bad_record_mode"),
    Option("badRecordsTopic", _topic, ("bad_records",), field="bad_records_topic"),
)  # fmt: skip
_BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp")


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one query, parsed and checked."""

    connection: Connection
    topics: tuple[str, ...] = ()
    topics_pattern: str | None = None
    assigned: frozenset[MessageQueue] | None = None
    queues: frozenset[tuple[str, int]] | None = None
    topic_refresh_ms: int = 30_000
    group: str = DEFAULT_GROUP
    commit_group_offsets: bool = False
    start: Position = Named.LATEST
    start_default: Named = Named.EARLIEST
    end: Position = Named.LATEST
    tags: str | None = None
    sql92: str | None = None
    offsets_per_trigger_max: int | None = None
    bytes_per_trigger_max: int | None = None
    offsets_per_trigger_min: int | None = None
    trigger_delay_max_ms: int = 15 * 60_000
    partitions_min: int | None = None
    records_per_partition_max: int | None = None
    fail_on_data_loss: bool = True
    broker_down_grace_ms: int = 600_000
    read_mode: str = "auto"
    store_path: str | None = None
    decompress: bool = True
    pull_batch_size: int = PULL_BATCH_SIZE
    pull_size_max: int = PULL_SIZE
    pull_timeout_ms: int = 30_000
    idle_poll_ms: int = 200
    read_from: str = "master"
    fetch_retries: int = 5
    fetch_retry_ms: int = FETCH_RETRY_MS
    outage_timeout_ms: int = OUTAGE_TIMEOUT_MS
    partitions_max: int | None = None
    value_format: str | None = None
    value_schema: bytes | None = None
    value_message: str | None = None
    schema_registry: str | None = None
    bad_record_mode: str = "permissive"
    bad_records_topic: str | None = None

    @property
    def fetch_patience_s(self) -> float:
        """How long requests of commands are retried, which users wait for."""
        return self.fetch_retries * self.fetch_retry_ms / 1000

    def wants(self, queue: MessageQueue) -> bool:
        """Whether the options select this queue of a selected topic."""
        if self.assigned is not None:
            return queue in self.assigned
        return self.queues is None or (queue.broker_name, queue.queue_id) in self.queues

    def wants_topic(self, topic: str) -> bool:
        """Whether the options select this topic."""
        if self.topics_pattern is not None:
            return re.fullmatch(self.topics_pattern, topic) is not None
        return topic in self.topics


def source_options(
    given: Mapping[str, str], *, streaming: bool, environ: Mapping[str, str] | None = None
) -> SourceOptions:
    """Parse the options of a query and check them as a whole; raises ConfigError."""
    values = read_options(given, OPTIONS)
    if not values:
        raise ConfigError(
            "the source got no options: Spark does not pass those of a table to this statement",
            hint="read a view, CREATE TEMPORARY VIEW v USING rocketmq OPTIONS (topic '...', ...),"
            ' or use spark.read.format("rocketmq").option(...)',
        )
    if streaming:
        for name in _BATCH_ONLY:
            if name in values:
                raise ConfigError(
                    f"option {name} has no meaning in a stream", hint="leave it out, or use read"
                )
    _check_together(values)
    low = values.get("minOffsetsPerTrigger")
    high = values.get("maxOffsetsPerTrigger")
    if low is not None and high is not None and low > high:
        raise ConfigError(f"minOffsetsPerTrigger={low} is more than maxOffsetsPerTrigger={high}")
    low, high = values.get("minPartitions"), values.get("maxPartitions")
    if low is not None and high is not None and low > high:
        raise ConfigError(f"minPartitions={low} is more than maxPartitions={high}")
    if "outageTimeout" not in values and "fetchOffset.numRetries" in values:
        retry_ms = values.get("fetchOffset.retryIntervalMs", FETCH_RETRY_MS)
        values["outageTimeout"] = values["fetchOffset.numRetries"] * retry_ms
    return SourceOptions(
        connection=make_connection(values, environ),
        **_chosen_topics(values),
        start=_position(values, "starting", Named.LATEST if streaming else Named.EARLIEST),
        end=_position(values, "ending", Named.LATEST),
        commit_group_offsets=values.get("commitGroupOffsets", "group" in values),
        **option_fields(values, OPTIONS),
    )


def _check_together(values: Mapping[str, Any]) -> None:
    for one, other in (("tags", "sql92"), ("assign", "queues")):
        if one in values and other in values:
            raise ConfigError(f"options {one} and {other} exclude each other")
    if values.get("readMode") == "file" and "storePath" not in values:
        raise ConfigError(
            "readMode=file needs the folder of the broker's store",
            hint="give storePath, or use readMode=auto, which asks brokers on this machine",
        )
    _check_value(values)
    if "sql92" in values and values.get("readMode") == "file":
        raise ConfigError("conditions in SQL are for brokers to evaluate", hint="use readMode=pull")


def _check_value(values: Mapping[str, Any]) -> None:
    """The options about decoding belong to ``valueFormat``."""
    if "valueFormat" not in values:
        for name in ("valueSchema", "valueMessage", "schemaRegistry", "mode", "badRecordsTopic"):
            if name in values:
                raise ConfigError(
                    f"option {name} is about decoding, and no valueFormat is given",
                    hint="give valueFormat=json, avro or protobuf",
                )
    elif values.get("mode") == "failfast" and "badRecordsTopic" in values:
        raise ConfigError(
            "mode=failfast and badRecordsTopic exclude each other",
            hint="mode=dropmalformed sends bad records to the topic and goes on",
        )


def _chosen_topics(values: Mapping[str, Any]) -> dict[str, Any]:
    ways = [way for way in ("topic", "topics", "topicsPattern", "assign") if way in values]
    if len(ways) != 1:
        given = f"{' and '.join(ways)} are given" if ways else "none is given"
        raise ConfigError(f"one of topic, topics and topicsPattern says what is read; {given}")
    value = values[ways[0]]
    if ways[0] == "topicsPattern":
        return {"topics_pattern": value}
    if ways[0] == "assign":
        topics = tuple(sorted({queue.topic for queue in value}))
        return {"topics": topics, "assigned": value}
    return {"topics": (value,) if ways[0] == "topic" else value}


def _position(values: Mapping[str, Any], which: str, default: Named) -> Position:
    """The position by ``startingTimestamp`` or ``startingOffsets``, or those of ``ending``."""
    if f"{which}Timestamp" in values:
        return At(values[f"{which}Timestamp"])
    position: Position = values.get(f"{which}Offsets", default)
    return position
