"""Options of the source: valid values, and the errors for wrong ones."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from skylark.core.errors import ConfigError
from skylark.spark.option_table import Connection, byte_count, duration_ms, moment_ms
from skylark.spark.source.offset_options import Ago, At, Named, Offsets
from skylark.spark.source.source_options import SourceOptions, source_options
from skylark.wire.bodies.common_body import MessageQueue

BASE = {"nameserver": "127.0.0.1:9876", "topic": "T"}


def options(*, streaming: bool = False, without: str = "", **more: str) -> SourceOptions:
    return checked(more, streaming=streaming, without=without)


def checked(more: dict[str, str], *, streaming: bool = False, without: str = "") -> SourceOptions:
    given = {key: value for key, value in BASE.items() if key != without}
    return source_options(given | more, streaming=streaming, environ={})


def queue(queue_id: int, topic: str = "T", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)


def test_defaults() -> None:
    batch, stream = options(), options(streaming=True)
    assert batch.topics == ("T",)
    assert batch.start is Named.EARLIEST
    assert stream.start is Named.LATEST
    assert batch.end is Named.LATEST
    assert not stream.commit_group_offsets
    assert stream.fail_on_data_loss
    assert (batch.group, batch.read_mode, batch.idle_poll_ms) == ("spark-source", "auto", 200)
    assert options(group="g").commit_group_offsets
    assert not options(group="g", commitgroupoffsets="False").commit_group_offsets


def test_names_of_kafka_mean_the_same() -> None:
    found = source_options(
        {
            "kafka.bootstrap.servers": "a:1,b:2",
            "subscribe": "T1, T2",
            "kafka.group.id": "g",
            "startingOffsets": "earliest",
            "includeHeaders": "true",
        },
        streaming=True,
        environ={},
    )
    assert found.connection.name_server == "a:1;b:2"
    assert found.topics == ("T1", "T2")
    assert found.group == "g"
    assert found.start is Named.EARLIEST
    pattern = options(without="topic", subscribepattern="T.*")
    assert pattern.topics_pattern == "T.*"
    assert pattern.wants_topic("T1")
    assert not pattern.wants_topic("xT1")
    assigned = options(without="topic", assign='{"T": {"broker-a": [0, 2]}}')
    assert assigned.topics == ("T",)
    assert assigned.wants(queue(2))
    assert not assigned.wants(queue(1))


def test_keys_that_spark_adds_are_ignored() -> None:
    found = checked({"path": "x", "checkpointlocation": "y", "queryname": "q", "option.topic": "T"})
    assert found.topics == ("T",)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"maxoffsetpertrigger": "5"}, "maxoffsetpertrigger is unknown.*maxOffsetsPerTrigger"),
        ({"startingofsets": "latest"}, "did you mean startingOffsets"),
        ({"wholly": "5"}, "wholly is unknown: known are nameServer"),
        ({"failondataloss": "maybe"}, "failOnDataLoss='maybe' is not valid: it must be true or"),
        ({"startingoffsets": "yesterday"}, "must be earliest, latest, group, a time ago such as"),
        ({"startingoffsets": '{"T":{"a":{"0":-4}}}'}, "JSON like .* with offsets from -3"),
        ({"startingoffsets": '{"T":{"a":{"x":1}}}'}, "JSON like"),
        ({"startingoffsets": '{"T":1}'}, "JSON like"),
        ({"endingoffsets": "earliest"}, "it must be latest, a time ago"),
        ({"startingtimestamp": "noon"}, "milliseconds since 1970 or a time such as"),
        ({"minpartitions": "0"}, "a whole number from 1 to"),
        ({"pullmaxbytes": "much"}, "a size such as"),
        ({"idlepollms": "soon"}, "a duration such as"),
        ({"readmode": "magic"}, "it must be auto or pull or file"),
        ({"readmode": "file"}, "needs the folder"),
        ({"queues": "broker-a:3-1"}, "queues like broker-a:0-3,broker-b:1"),
        ({"assign": "{}"}, "JSON like"),
        ({"topics": "A,B"}, "topic and topics are given"),
        ({"topic": "a b"}, "illegal characters"),
        ({"tags": " || "}, r"it must be tags, TagA \|\| TagB"),
        ({"tags": "A", "sql92": "a > 1"}, "tags and sql92 exclude each other"),
        ({"group": "a b"}, "illegal characters"),
        ({"subexpression": "A", "tags": "B"}, "subexpression and tags mean the same and differ"),
        ({"accesskey": "k"}, "accessKey and secretKey belong together"),
        ({"minoffsetspertrigger": "9", "maxoffsetspertrigger": "3"}, "is more than"),
        ({"columns": "a,a"}, "each once"),
        ({"tls.enable": "true"}, "TLS are not supported yet"),
        ({"scan": "commitlog"}, "not supported yet"),
        ({"topicspattern": "("}, "regular expression"),
    ],
)
def test_errors_are_one_sentence(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence) as caught:
        checked(given)
    assert "\n" not in str(caught.value)


def test_a_stream_has_no_end() -> None:
    with pytest.raises(ConfigError, match="endingOffsets has no meaning in a stream"):
        options(streaming=True, endingoffsets="latest")
    assert options(maxoffsetspertrigger="10").offsets_per_trigger_max == 10  # paces streams only


def test_there_must_be_a_topic_and_a_name_server() -> None:
    with pytest.raises(ConfigError, match=r"one of topic, topics and topicsPattern.*none is given"):
        options(without="topic")
    with pytest.raises(ConfigError, match=r"no name server is given.*or set NAMESRV_ADDR"):
        options(without="nameserver")
    found = source_options(
        {"topic": "T"}, streaming=False, environ={"ROCKETMQ_NAMESRV_ADDR": "h:1"}
    )
    assert found.connection.name_server == "h:1"


def test_a_statement_that_lost_the_options_of_its_table() -> None:
    for given in ({}, {"provider": "rocketmq", "owner": "me", "option.x": "1"}):
        with pytest.raises(ConfigError, match=r"got no options.*of a table.*TEMPORARY VIEW"):
            source_options(given, streaming=False, environ={"ROCKETMQ_NAMESRV_ADDR": "h:1"})


def test_positions() -> None:
    given = {"topic": "T", "nameserver": "h:1", "endingoffsets": "-1h"}
    assert source_options(given, streaming=False, environ={}).end == Ago(3_600_000)
    assert options(startingoffsets="-10m").start == Ago(600_000)
    assert options(startingoffsets="Group").start is Named.GROUP
    assert options(startingtimestamp="1700000000000", startingoffsets="latest").start == At(
        1_700_000_000_000
    )
    assert options(endingtimestamp="2023-11-14T22:13:20.5Z").end == At(1_700_000_000_500)
    found = options(startingoffsets='{"T":{"broker-a":{"0":23,"1":-1,"2":-2,"3":-3}}}').start
    assert found == Offsets(
        {queue(0): 23, queue(1): Named.LATEST, queue(2): Named.EARLIEST, queue(3): Named.GROUP}
    )
    assert options(queues="broker-a:0-1,broker-b:3").queues == frozenset(
        {("broker-a", 0), ("broker-a", 1), ("broker-b", 3)}
    )


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (duration_ms, "250", 250),
        (duration_ms, "15 Minutes", 900_000),
        (duration_ms, "1d", 86_400_000),
        (byte_count, "4m", 4 << 20),
        (byte_count, "64 KiB", 65_536),
        (byte_count, "7b", 7),
        (moment_ms, "2023-11-14T22:13:20", 1_700_000_000_000),
        (moment_ms, "2023-11-14T23:13:20.0001+01:00", 1_700_000_000_001),
    ],
)
def test_values(parse: Any, text: str, value: int) -> None:
    assert parse(text) == value


def test_secrets_are_shown_nowhere() -> None:
    found = options(accesskey="AKAK", secretkey="SKSK", securitytoken="TTTT")
    assert found.connection == Connection(
        name_server="127.0.0.1:9876", access_key="AKAK", secret_key="SKSK", security_token="TTTT"
    )
    assert not any(secret in repr(found) for secret in ("AKAK", "SKSK", "TTTT"))
    assert pickle.loads(pickle.dumps(found)) == found
    with pytest.raises(ConfigError) as caught:
        options(secretkey="", accesskey="AKAK")
    assert "AKAK" not in str(caught.value)
