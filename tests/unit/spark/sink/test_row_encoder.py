"""Arrow batches as messages: the same bytes as the client makes, and every kind of bad row."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from skylark.client.core.client_message import Message
from skylark.client.producer.send_request import batch_part
from skylark.core.errors import ConfigError
from skylark.spark.option_table import Connection
from skylark.spark.sink.row_batcher import RowBatcher
from skylark.spark.sink.row_encoder import BadRowError, RowReader, Rows, Stamp, plan_rows
from skylark.spark.sink.sink_options import SinkOptions, read_sink_options
from skylark.wire.batch import split_batch
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.properties import parse_properties

PROPERTIES = pa.map_(pa.string(), pa.string())
TYPES = {
    "body": (pa.binary(), "binary"),
    "topic": (pa.string(), "string"),
    "tags": (pa.string(), "string"),
    "keys": (pa.string(), "string"),
    "properties": (PROPERTIES, "map<string,string>"),
    "shardingKey": (pa.string(), "string"),
    "brokerName": (pa.string(), "string"),
    "queueId": (pa.int32(), "int"),
    "delayLevel": (pa.int32(), "int"),
    "deliverTimestamp": (pa.timestamp("us", "Asia/Shanghai"), "timestamp"),
    "delayMs": (pa.int64(), "bigint"),
    "msgId": (pa.string(), "string"),
    "flag": (pa.int32(), "int"),
}
QUEUES = [MessageQueue(topic="T", broker_name="broker-a", queue_id=n) for n in range(4)]


def options(**settings: Any) -> SinkOptions:
    settings.setdefault("topic", "T")
    return SinkOptions(connection=Connection(name_server="127.0.0.1:1"), **settings)


def batch(**columns: list[Any]) -> pa.RecordBatch:
    arrays = [pa.array(values, TYPES[name][0]) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def ids() -> Any:
    numbers = iter(range(10_000))
    return lambda: f"ID{next(numbers):04}"


def read(rows: pa.RecordBatch, opts: SinkOptions | None = None, stamp: Stamp | None = None) -> Rows:
    opts = opts or options()
    types = {name: TYPES[name][1] for name in rows.schema.names}
    return RowReader(plan_rows(types, opts), opts, {}, ids()).read(rows, stamp)


def texts(rows: Rows) -> list[dict[str, str]]:
    return [parse_properties(text) for text in rows.texts.to_pylist()]


def test_properties_come_from_the_columns_that_have_a_value() -> None:
    rows = read(
        batch(
            body=[b"a", b"b", b"c"],
            tags=["TagA", None, ""],
            keys=["k1 k2", None, "k3"],
            properties=[[("x", "1"), ("y", "\u00e4")], None, []],
            shardingKey=["s", None, None],
        )
    )
    assert rows.bad == {}
    assert texts(rows) == [
        {
            "x": "1", "y": "\u00e4", "TAGS": "TagA", "__SHARDINGKEY": "s", "KEYS": "k1 k2",
            "UNIQ_KEY": "ID0000", "WAIT": "true",
        },
        {"UNIQ_KEY": "ID0001", "WAIT": "true"},
        {"KEYS": "k3", "UNIQ_KEY": "ID0002", "WAIT": "true"},
    ]  # fmt: skip


@pytest.mark.parametrize("can_be_null", [True, False])
def test_keys_may_be_a_list(can_be_null: bool) -> None:
    """Spark says of the elements of arrays whether they can be null."""
    kind = pa.list_(pa.field("element", pa.string(), nullable=can_be_null))
    keys = pa.array([["k1", "k2"], ["k3"], None], kind)
    rows = pa.RecordBatch.from_arrays([pa.array([b"a", b"b", b"c"]), keys], names=["body", "keys"])
    types = {"body": "binary", "keys": "array<string>"}
    found = RowReader(plan_rows(types, options()), options(), {}, ids()).read(rows, None)
    assert [text.get("KEYS") for text in texts(found)] == ["k1 k2", "k3", None]


def test_names_of_the_system_are_left_out_or_make_the_row_bad() -> None:
    rows = batch(
        body=[b"a", b"b", b"c"],
        properties=[
            [("TRAN_MSG", "true"), ("x", "1"), ("TIMER_OUT_MS", "5")],
            [("UNIQ_KEY", "old"), ("WAIT", "false"), ("TAGS", "kept")],
            [("__CRC32#", "1"), ("INNER_NUM", "2"), ("_SPARK_TX", "s:0:0:0:0"), ("y", None)],
        ],
    )
    stripped = read(rows)
    assert stripped.bad == {}
    assert [{**text, "UNIQ_KEY": ""} for text in texts(stripped)] == [
        {"x": "1", "UNIQ_KEY": "", "WAIT": "true"},
        {"TAGS": "kept", "UNIQ_KEY": "", "WAIT": "true"},
        {"UNIQ_KEY": "", "WAIT": "true"},
    ]
    failed = read(rows, options(reserved_properties="fail"))
    assert sorted(failed.bad) == [0, 2]
    assert failed.positions.tolist() == [1]
    assert texts(failed)[0]["TAGS"] == "kept"


def test_a_column_overrides_the_map() -> None:
    rows = read(batch(body=[b"a"], tags=["new"], properties=[[("TAGS", "old"), ("KEYS", "k")]]))
    assert texts(rows)[0]["TAGS"] == "new"
    assert texts(rows)[0]["KEYS"] == "k"
    assert rows.texts.to_pylist()[0].count("TAGS") == 1


def test_a_slice_of_a_batch_has_its_own_rows() -> None:
    whole = batch(
        body=[b"a", b"b", b"c"], properties=[[("n", "1")], [("n", "2"), ("m", "x")], [("n", "3")]]
    )
    rows = read(whole.slice(1, 1))
    assert rows.bodies.to_pylist() == [b"b"]
    assert texts(rows) == [{"n": "2", "m": "x", "UNIQ_KEY": "ID0000", "WAIT": "true"}]


def test_every_kind_of_bad_row_has_its_reason() -> None:
    rows = read(
        batch(
            body=[None, b"", b"x" * (4 << 20) + b"y", b"ok", b"ok", b"ok", b"ok", b"ok"],
            topic=["T", "T", "T", None, "a b", "T", "T", "T"],
            tags=[None, None, None, None, None, "a\x02b", None, None],
            properties=[None] * 6 + [[("n\x01", "v")], [("n", "v" * 40_000)]],
            delayLevel=[None] * 8,
        ),
        options(topic=None),
    )
    assert {row: reason[:30] for row, reason in rows.bad.items()} == {
        0: "the body is null or empty",
        1: "the body is null or empty",
        2: "the body is over 4194304 bytes",
        3: "the topic is null",
        4: "The specified topic: a b, cont",
        5: "tags: a separator",
        6: "a property has a separator, or",
        7: "the properties take over 32767",
    }
    assert len(rows.positions) == len(rows.bodies) == 0


def test_delayed_and_large_rows_get_a_request_each() -> None:
    when = datetime(2026, 11, 1, 12, tzinfo=UTC)
    rows = read(
        batch(
            body=[b"a", b"b", b"c", b"d" * 5000, b"e"],
            delayLevel=[3, None, None, None, 19],
            deliverTimestamp=[None, when, None, None, None],
            delayMs=[None, None, None, None, None],
        )
    )
    assert rows.alone.tolist() == [True, True, False, True]
    assert list(rows.bad) == [4]
    assert texts(rows)[0]["DELAY"] == "3"
    assert texts(rows)[1]["TIMER_DELIVER_MS"] == str(int(when.timestamp() * 1000))
    requests = list(RowBatcher(options()).requests_of(rows, {"T": QUEUES}))
    assert [request.count for request in requests] == [1, 1, 1, 1]
    large = requests[-1].parcel
    assert large.sys_flag & 1
    assert len(large.body) < 5000


def test_a_batch_is_what_the_client_would_have_sent() -> None:
    rows = read(
        batch(
            body=[b"first", b"second", b"third"],
            tags=["A", None, "B"],
            properties=[[("x", "1")], None, [("y", "2")]],
            flag=[7, None, -1],
        )
    )
    (request,) = RowBatcher(options()).requests_of(rows, {"T": QUEUES})
    messages = [Message("T", b"first", flag=7), Message("T", b"second"), Message("T", b"third")]
    messages[2] = Message("T", b"third", flag=-1)
    expected = b"".join(
        batch_part(message, text)
        for message, text in zip(messages, rows.texts.to_pylist(), strict=True)
    )
    assert request.parcel.body == expected
    assert len(list(split_batch(request.parcel.body))) == 3


def test_batches_are_closed_by_rows_and_by_bytes() -> None:
    rows = read(batch(body=[b"x" * 100] * 1000))
    by_rows = list(RowBatcher(options(batch_count_max=300)).requests_of(rows, {"T": QUEUES}))
    assert [request.count for request in by_rows] == [300, 300, 300, 100]
    by_size = list(RowBatcher(options(batch_size_max=1000)).requests_of(rows, {"T": QUEUES}))
    assert all(request.size <= 1000 for request in by_size)
    assert sum(request.count for request in by_size) == 1000
    assert b"".join(request.parcel.body for request in by_size) == b"".join(
        request.parcel.body for request in by_rows
    )


def test_sharding_keys_choose_the_queue_and_keep_the_order() -> None:
    keys = ["order-1", "order-0", None, "order-1", "order-0", "order-1"]
    bodies = [b"1", b"2", b"3", b"4" * 5000, b"5", b"6"]
    rows = read(batch(body=bodies, shardingKey=keys))
    requests = list(RowBatcher(options()).requests_of(rows, {"T": QUEUES}))
    lanes: dict[int | None, list[int]] = {}
    for request in requests:
        queue = None if request.target.queue is None else request.target.queue.queue_id
        lanes.setdefault(queue, []).extend(request.numbers)
    assert lanes == {None: [2], 3: [1, 4], 2: [0, 3, 5]}


def test_explicit_queues() -> None:
    rows = batch(body=[b"a", b"b"], brokerName=["broker-a", None], queueId=[2, 1])
    free = list(RowBatcher(options()).requests_of(read(rows), {"T": QUEUES}))
    assert [request.target.queue for request in free] == [None]
    chosen = options(explicit_queue=True)
    requests = list(RowBatcher(chosen).requests_of(read(rows, chosen), {"T": QUEUES}))
    assert [(request.target.queue, request.numbers) for request in requests] == [
        (None, [1]),
        (QUEUES[2], [0]),
    ]
    absent = batch(body=[b"a"], brokerName=["broker-b"], queueId=[0])
    with pytest.raises(BadRowError, match="queue 0 of broker-b"):
        list(RowBatcher(chosen).requests_of(read(absent, chosen), {"T": QUEUES}))


def test_topics_by_column_never_share_a_request() -> None:
    rows = read(batch(body=[b"1", b"2", b"3"], topic=["A", "B", "A"]), options(topic=None))
    queues = {"A": QUEUES, "B": QUEUES}
    requests = list(RowBatcher(options(topic=None)).requests_of(rows, queues))
    assert [(request.target.topic, request.numbers) for request in requests] == [
        ("A", [0, 2]),
        ("B", [1]),
    ]


def test_stamps_and_kept_ids() -> None:
    kept = options(preserve_msg_id=True)
    rows = read(batch(body=[b"1", b"2"], msgId=["M1", None]), kept, Stamp("q/3/1/", 40))
    assert [text["UNIQ_KEY"] for text in texts(rows)] == ["M1", "ID0001"]
    assert [text["SPARK_ID"] for text in texts(rows)] == ["q/3/1/40", "q/3/1/41"]


@pytest.mark.parametrize(
    ("types", "settings", "message"),
    [
        ({"value": "binary", "body": "binary"}, {}, "no column value"),
        ({"tags": "string"}, {}, "needs a column body"),
        ({"body": "int"}, {}, "column body is int, and must be binary or string"),
        ({"body": "binary"}, {"topic": None}, "no option and no column names the topic"),
        (
            {"body": "binary", "topic": "string", "queueOffset": "bigint"},
            {"topic": None},
            "they would be written back to the topic that they came from",
        ),
        ({"body": "binary", "delayMs": "bigint"}, {"delivery": "exactly-once"}, "column delayMs"),
        ({"body": "binary"}, {"explicit_queue": True}, "needs the columns brokerName and queueId"),
    ],
)
def test_invalid_columns(types: dict[str, str], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_rows(types, options(**settings))


def test_rows_of_the_source_need_no_projection() -> None:
    types = {"topic": "string", "queueOffset": "bigint", "body": "binary", "sysFlag": "int"}
    assert plan_rows(types, options()).columns == ("topic", "body")
    same = options(topic=None, allow_same_topic=True)
    assert plan_rows(types, same).columns == ("topic", "body")
    extra = {"value": "int", "body": "string"}
    assert plan_rows(extra, options(ignore_extra_columns=True)).columns == ("body",)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"delivery": "twice"}, "at-least-once or exactly-once"),
        ({"deliverry": "x"}, "did you mean delivery"),
        ({"onBadRow": "dlq"}, "badRowTopic belong together"),
        ({"topic": "a b"}, "contains illegal characters"),
        ({"txnId": "x"}, "options of delivery=exactly-once"),
        ({"delivery": "exactly-once", "txnId": "a b"}, "64 at most"),
        ({"batchBytes": "8m"}, "batchBytes=8388608 is too much"),
        (
            {"delivery": "exactly-once", "onBadRow": "dlq", "badRowTopic": "B"},
            "does not go with delivery=exactly-once",
        ),
    ],
)
def test_invalid_options(given: dict[str, str], message: str) -> None:
    lower = {key.lower(): value for key, value in given.items()}
    with pytest.raises(Exception, match=message):
        read_sink_options({"nameserver": "127.0.0.1:9876", **lower}, {})


@pytest.mark.spec("spark.9.23")
def test_an_insert_without_options_is_an_error_with_a_hint() -> None:
    with pytest.raises(ConfigError, match="does not pass those of a table to INSERT INTO"):
        read_sink_options({}, {})
    found = read_sink_options({}, {"ROCKETMQ_NAMESRV_ADDR": "127.0.0.1:9876"})
    with pytest.raises(ConfigError, match=r"INSERT INTO t WITH .* temporary view"):
        plan_rows({"body": "binary"}, found, has_options=False)


def test_an_insert_into_a_view_has_the_options_of_the_view() -> None:
    given = {"nameserver": "h:1", "topic": "T", "columns": "body,keys", "startingoffsets": "latest"}
    assert read_sink_options(given, {}).topic == "T"
    with pytest.raises(ConfigError, match=r"option colums is unknown"):
        read_sink_options({"nameserver": "h:1", "topic": "T", "colums": "body"}, {})


def test_secrets_are_not_shown() -> None:
    given = {"nameserver": "h:1", "topic": "T", "accesskey": "ak", "secretkey": "hidden"}
    assert "hidden" not in repr(read_sink_options(given, {}))
