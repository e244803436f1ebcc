"""Options of the sink, checked once in the driver and pickled to the tasks.

======================  ==========================================================================
option                  default and other values
======================  ==========================================================================
nameServer, accessKey,  as for the source
secretKey, ...
topic                   none: the column ``topic``; the option wins over the column
producerGroup           spark-sink
delivery                at-least-once, or exactly-once
batchBytes, batchRows   1m, 512: limits of a request
maxInFlight             16 requests per broker; 1 per queue where order is kept
queueSelector           roundrobin; for rows with a sharding key hash, consistent or siphash
compressOver,           4096 bytes, zlib (or lz4, zstd)
compressType
sendTimeoutMs, retries, 3000, 8, 120000
deliveryTimeoutMs
strictAck               false: a message whose flush or replication timed out counts as stored
onBadRow, badRowTopic   fail; skip; dlq: send bad rows to badRowTopic
reservedProperties      strip; fail: a row with such a property is bad
explicitQueue           false; true: the columns brokerName and queueId name the queue
preserveMsgId           false; true: the column msgId becomes the unique id
stampId                 false; true: property SPARK_ID=query/batch/partition/number
ignoreExtraColumns      false
allowSameTopic          false; true: rows of the source may be written back to their topic
txnId                   of exactly-once batch writes: a second write with the same id does nothing
txnImmunitySec          900: for so long brokers send no check-back for undecided rows
txnVerify               false; true: best-effort exactly-once on Apache brokers
keepRetryTopic          false; true: the property RETRY_TOPIC stays, so that rows of dead letters
                        can go to the retry topic of their group
outageTimeout           5m: how long to wait for brokers and name servers that do not answer
======================  ==========================================================================

Classes and fields keep their names: pickles of earlier versions must open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from skylark.client.producer.send_request import COMPRESS_OVER
from skylark.core.errors import ConfigError
from skylark.core.names import check_group, check_topic
from skylark.spark.exactly_once.txn_log_records import is_sink_id
from skylark.spark.option_table import (
    CONNECTION_OPTIONS,
    OUTAGE_TIMEOUT_MS,
    Connection,
    Option,
    boolean,
    byte_count,
    duration_ms,
    make_connection,
    one_of,
    option_fields,
    read_options,
    text_of,
    whole,
)
from skylark.spark.source.source_options import OPTIONS as SOURCE_OPTIONS

BATCH_BYTES_MAX: Final = 3 << 20  # with its properties a batch must stay below maxMessageSize
IMMUNITY_SEC_MAX: Final = 7 * 86_400


def _sink_id(text: str) -> str:
    if not is_sink_id(text):
        raise ValueError("it must be letters, digits, dots, dashes and underscores, 64 at most")
    return text


OPTIONS: Final = (
    *CONNECTION_OPTIONS,
    Option("topic", text_of("the name of a topic"), field="topic"),
    Option("producerGroup", text_of("the name of a group"), ("group",), field="producer_group"),
    Option("delivery", one_of("at-least-once", "exactly-once"), field="delivery"),
    Option("batchBytes", byte_count, field="batch_size_max"),
    Option("batchRows", whole(1, 65_536), field="batch_count_max"),
    Option("maxInFlight", whole(1, 1024), field="in_flight_max"),
    Option(
        "queueSelector",
        one_of("roundrobin", "hash", "consistent", "siphash"),
        field="queue_selector",
    ),
    Option("compressOver", byte_count, field="compress_over"),
    Option("compressType", one_of("zlib", "lz4", "zstd"), field="compress_type"),
    Option("sendTimeoutMs", duration_ms, field="send_timeout_ms"),
    Option("retries", whole(0, 1_000_000), field="retries"),
    Option("deliveryTimeoutMs", duration_ms, field="delivery_timeout_ms"),
    Option("strictAck", boolean, field="strict_ack"),
    Option("onBadRow", one_of("fail", "skip", "dlq"), ("errorPolicy",), field="on_bad_row"),
    Option("badRowTopic", text_of("the name of a topic"), field="bad_row_topic"),
    Option("reservedProperties", one_of("strip", "fail"), field="reserved_properties"),
    Option("explicitQueue", boolean, field="explicit_queue"),
    Option("preserveMsgId", boolean, field="preserve_msg_id"),
    Option("stampId", boolean, field="stamp_id"),
    Option("ignoreExtraColumns", boolean, field="ignore_extra_columns"),
    Option("allowSameTopic", boolean, field="allow_same_topic"),
    Option("txnId", _sink_id, field="txn_id"),
    Option("txnImmunitySec", whole(1, IMMUNITY_SEC_MAX), field="immunity_sec"),
    Option("txnVerify", boolean, field="verify"),
    Option("outageTimeout", duration_ms, field="outage_timeout_ms"),
    Option("keepRetryTopic", boolean, field="keep_retry_topic"),
)


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one sink, parsed and checked."""

    connection: Connection
    topic: str | None = None
    producer_group: str = "spark-sink"
    delivery: str = "at-least-once"
    batch_size_max: int = 1 << 20
    batch_count_max: int = 512
    in_flight_max: int = 16
    queue_selector: str = "roundrobin"
    compress_over: int = COMPRESS_OVER
    compress_type: str = "zlib"
    send_timeout_ms: int = 3_000
    retries: int = 8
    delivery_timeout_ms: int = 120_000
    strict_ack: bool = False
    on_bad_row: str = "fail"
    bad_row_topic: str | None = None
    reserved_properties: str = "strip"
    explicit_queue: bool = False
    preserve_msg_id: bool = False
    stamp_id: bool = False
    ignore_extra_columns: bool = False
    allow_same_topic: bool = False
    txn_id: str | None = None
    immunity_sec: int = 900
    verify: bool = False
    outage_timeout_ms: int = OUTAGE_TIMEOUT_MS
    keep_retry_topic: bool = False

    @property
    def outage_timeout_s(self) -> float:
        return self.outage_timeout_ms / 1000

    @property
    def exactly_once(self) -> bool:
        return self.delivery == "exactly-once"


def read_sink_options(
    given: Mapping[str, str], environ: Mapping[str, str] | None = None
) -> SinkOptions:
    """Parse the options that Spark passes; raises ConfigError."""
    # INSERT INTO a view passes the options of the view, which are those of a source.
    ours = {key.lower() for option in OPTIONS for key in (option.name, *option.aliases)}
    of_source = {key.lower() for each in SOURCE_OPTIONS for key in (each.name, *each.aliases)}
    kept = {key: text for key, text in given.items() if key.lower() not in of_source - ours}
    values = read_options(kept, OPTIONS)
    try:
        connection = make_connection(values, environ)
    except ConfigError as error:
        if given:
            raise
        raise _no_options() from error
    options = SinkOptions(connection=connection, **option_fields(values, OPTIONS))
    _check(options)
    return options


def _check(options: SinkOptions) -> None:
    check_group(options.producer_group)
    for topic in (options.topic, options.bad_row_topic):
        if topic is not None:
            check_topic(topic)
    if (options.on_bad_row == "dlq") != (options.bad_row_topic is not None):
        raise ConfigError(
            "onBadRow=dlq and badRowTopic belong together",
            hint="name the topic for the bad rows, or leave both out",
        )
    if options.batch_size_max > BATCH_BYTES_MAX:
        raise ConfigError(
            f"option batchBytes={options.batch_size_max} is too much",
            hint=f"a request holds {BATCH_BYTES_MAX} bytes at most",
        )
    if options.exactly_once and options.on_bad_row == "dlq":
        raise ConfigError(
            "onBadRow=dlq does not go with delivery=exactly-once",
            hint="bad rows would be there twice after a failure: use skip or fail",
        )
    if not options.exactly_once and (options.txn_id is not None or options.verify):
        raise ConfigError("txnId and txnVerify are options of delivery=exactly-once")


def _no_options() -> ConfigError:
    return ConfigError(
        "the sink got no options: Spark does not pass those of a table to INSERT INTO",
        hint="name them, INSERT INTO t WITH ('nameServer' = '...', 'topic' = '...') SELECT ...,"
        ' insert into a temporary view, or use df.write.format("rocketmq")',
    )


def no_topic_known(*, has_options: bool) -> ConfigError:
    """The error for rows without a topic in options and columns."""
    if not has_options:
        return _no_options()
    return ConfigError(
        "no option and no column names the topic",
        hint='give .option("topic", "...") or a column topic',
    )
