"""Pipeline files: content, environment variables, and line and column of every mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.core.errors import ConfigError
from skylark.spark.pipelines.pipeline_file import (
    PipelineFile,
    PipelineFileError,
    RestartPolicy,
    Trigger,
    expand,
    load,
)

GOOD = """\
name: orders
cluster: {nameServer: "${NAMESRV}", accessKey: ak, secretKey: "${SECRET:-sk}"}
checkpoints: file:///data/ck
spark: {master: "local[2]", conf: {spark.sql.shuffle.partitions: 4}}
pipelines:
  - name: paid-to-lake
    source: {format: rocketmq, options: {topic: orders, tags: PAID, maxOffsetsPerTrigger: 200000}}
    sql: SELECT *, to_date(storeTimestamp) AS dt FROM input
    sink: {format: parquet, path: file:///lake/paid, partitionBy: [dt], options: {a: b}}
    trigger: {processingTime: 10 seconds}
  - name: alerts
    source: {options: {topic: orders, nameServer: "other:1"}}
    python: jobs.alerts:transform
    sink: {format: rocketmq, options: {topic: alerts, delivery: exactly-once}}
    trigger: {availableNow: true}
  - name: counts
    source: {options: {topics: "a,b"}}
    sink: {format: console, outputMode: complete, partitionBy: dt}
"""
ENVIRON = {"NAMESRV": "h:9876"}


def read(tmp_path: Path, text: str) -> PipelineFile:
    file = tmp_path / "orders.yaml"
    file.write_text(text)
    return load(file, ENVIRON)


def mistakes(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(PipelineFileError) as caught:
        read(tmp_path, text)
    for mistake in caught.value.mistakes:
        assert str(mistake) in str(caught.value)
    return [f"{each.line}:{each.column} {each.text}" for each in caught.value.mistakes]


def test_a_pipeline_file_is_parsed(tmp_path: Path) -> None:
    document = read(tmp_path, GOOD)
    assert (document.name, document.checkpoints) == ("orders", "file:///data/ck")
    assert (document.master, document.conf) == ("local[2]", {"spark.sql.shuffle.partitions": "4"})
    paid, alerts, counts = document.pipelines
    assert (paid.name, paid.line, paid.python) == ("paid-to-lake", 6, None)
    assert paid.source.given == {
        "nameServer": "h:9876",
        "accessKey": "ak",
        "secretKey": "sk",
        "topic": "orders",
        "tags": "PAID",
        "maxOffsetsPerTrigger": "200000",
    }
    assert paid.source.options.offsets_per_trigger_max == 200_000
    assert (paid.sink.format, paid.sink.path) == ("parquet", "file:///lake/paid")
    assert (paid.sink.partition_by, paid.sink.given) == (("dt",), {"a": "b"})
    assert paid.trigger == Trigger(interval_ms=10_000)
    assert (alerts.sql, alerts.python) == (None, "jobs.alerts:transform")
    assert alerts.source.options.connection.name_server == "other:1"
    assert alerts.sink.topic_options is not None
    assert alerts.sink.topic_options.exactly_once
    assert alerts.sink.topic_options.connection.name_server == "h:9876"
    assert alerts.trigger == Trigger(available_now=True)
    assert (counts.sink.output_mode, counts.sink.partition_by) == ("complete", ("dt",))
    assert (counts.sql, counts.python, counts.trigger) == (None, None, Trigger())
    assert counts.source.options.topics == ("a", "b")


def test_a_path_may_be_among_the_options(tmp_path: Path) -> None:
    text = GOOD.replace("path: file:///lake/paid, ", "").replace("{a: b}", "{a: b, Path: lake}")
    sink = read(tmp_path, text).pipelines[0].sink
    assert (sink.path, sink.given) == ("lake", {"a": "b"})


def test_pipelines_are_chosen_by_name(tmp_path: Path) -> None:
    document = read(tmp_path, GOOD)
    assert [each.name for each in document.chosen(())] == ["paid-to-lake", "alerts", "counts"]
    assert [each.name for each in document.chosen(("counts", "alerts", "counts"))] == [
        "counts",
        "alerts",
    ]
    with pytest.raises(ConfigError, match=r"has no pipeline alert: did you mean alerts\?"):
        document.chosen(("alert",))


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("    sql:", "    sqll:", "8:5 a pipeline has no key sqll: did you mean sql?"),
        ("checkpoints:", "checkpoint:", "3:1 the file has no key checkpoint: did you mean checkpo"),
        ("nameServer: \"${N", "nameserver: \"${N", "2:11 cluster has no key nameserver: did you m"),
        ("${NAMESRV}", "${NOBODY}", "2:23 cluster.nameServer: the environment has no variable NOB"),
        ("tags: PAID", "tagz: PAID", "7:57 option tagz is unknown: did you mean tags?"),
        ("topic: orders, tags", "tags", "7:41 one of topic, topics and topicsPattern says what is"),
        ("200000}", "many}", "7:69 option maxOffsetsPerTrigger='many' is not valid"),
        ("200000}", "}", "7:90 the options of a source: maxOffsetsPerTrigger must be a text"),
        ("format: rocketmq, options: {topic: orders, t", "format: kafka, options: {topic: a, t",
         "7:22 a source has the format rocketmq"),
        ("exactly-once", "exactly-twice", "14:55 option delivery='exactly-twice' is not valid"),
        ("{topic: alerts,", "{topic: 'a b',", "14:40 The specified topic: a b, contains illegal"),
        ("sink: {format: parquet, path: file:///lake/paid,", "sink: {format: parquet,",
         "9:11 a sink of format parquet needs path"),
        ("sink: {format: parquet,", "sink: {", "9:11 a sink needs format"),
        ("name: alerts", "name: paid-to-lake", "11:5 line 6 has a pipeline paid-to-lake already"),
        ("name: alerts", "name: ../alerts", "11:11 the name of a pipeline must be letters"),
        ("jobs.alerts:transform", "jobs.alerts", "13:13 python must be module:function"),
        ("10 seconds", "10 bananas", "10:31 processingTime must be a time such as 10 seconds"),
        ("availableNow: true", "availableNow: maybe", "15:29 availableNow must be true or false"),
        ("{availableNow: true}", "{availableNow: true, processingTime: 1s}",
         "15:14 processingTime and availableNow exclude each other"),
        ("outputMode: complete", "outputMode: all", "18:41 outputMode must be append or complete"),
        ("{topic: alerts, delivery: exactly-once}", "{topic: alerts}, outputMode: update",
         "14:68 a topic takes rows by outputMode append only"),
        ("{topic: alerts, delivery: exactly-once}", "{topic: alerts}, path: /x",
         "14:62 a sink of format rocketmq has no path"),
        ("  - name: counts", "  - 7\n  - name: counts", "16:5 a pipeline must be keys with values"),
        ("name: orders\n", "name: orders\nname: again\n",
         "2:1 the file: the key name is given twice"),
        ("name: orders\n", "", "1:1 the file needs name"),
        ("spark: {", "spark: {jars: x, ", "4:9 spark has no key jars: known are master, conf"),
        ("partitionBy: [dt]", "partitionBy: [[dt]]", "9:68 partitionBy must be a text"),
    ],
)  # fmt: skip
def test_a_mistake_has_a_line_and_a_column(
    tmp_path: Path, old: str, new: str, expected: str
) -> None:
    assert GOOD.count(old) >= 1
    found = mistakes(tmp_path, GOOD.replace(old, new, 1))
    assert len(found) == 1, found
    assert found[0].startswith(expected)


def test_the_error_lists_all_mistakes_in_order(tmp_path: Path) -> None:
    text = GOOD.replace("partitionBy: dt", "partitionBi: dt").replace("tags:", "tagz:")
    found = mistakes(tmp_path, text)
    assert [each.partition(" ")[0] for each in found] == ["7:57", "18:51"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "1:1 the file is empty"),
        ("- a", "1:1 the file must be keys with values"),
        ("name: [", "1:8 not valid YAML"),
        ("a: 1\n\tb: 2", "2:1 not valid YAML"),
        ("name: \x07", "1:1 not valid YAML"),
        ("[" * 5000, "1:32 nested deeper than 32"),
        ("name: n\ncheckpoints: c\npipelines: []", "3:12 pipelines must be a list with at least"),
        ("name: n\ncheckpoints:\npipelines: [{}]", "2:13 checkpoints must be a text"),
        ("? [a]\n: b", "1:3 the file: a key must be a text"),
        ("#" * ((1 << 20) + 1), "1:1 the file has more than"),
    ],
)
def test_files_that_are_not_pipeline_files(tmp_path: Path, text: str, expected: str) -> None:
    assert any(each.startswith(expected) for each in mistakes(tmp_path, text))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nosuch\.yaml cannot be read: no such file"):
        load(tmp_path / "nosuch.yaml", {})
    with pytest.raises(ConfigError, match="cannot be read: is a directory"):
        load(tmp_path, {})
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not text"):
        load(tmp_path / "b.yaml", {})


def test_secrets_are_in_no_error(tmp_path: Path) -> None:
    text = GOOD.replace("accessKey: ak, ", "").replace("${SECRET:-sk}", "hush")
    found = mistakes(tmp_path, text)
    assert "accessKey and secretKey belong together" in found[0]
    assert "hush" not in str(found)


VARIABLES = {"HOST": "h", "EMPTY": "", "WILD": "a: {b}\n${HOST}"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain $.uid $HOST $", "plain $.uid $HOST $"),
        ("${HOST}:9876;${HOST}", "h:9876;h"),
        ("${HOST:-other}", "h"),
        ("${NONE:-other}/x", "other/x"),
        ("${EMPTY:-other}", "other"),
        ("${EMPTY}", ""),
        ("${NONE:-}", ""),
        ("${NONE:-local[*]}", "local[*]"),
        ("$${HOST}", "${HOST}"),
        ("${WILD}", "a: {b}\n${HOST}"),  # what is put in is not looked at again
    ],
)
def test_environment_variables_are_replaced(text: str, expected: str) -> None:
    assert expand(text, VARIABLES) == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${NONE}", r"no variable NONE: set it, or write \$\{NONE:-default\}"),
        ("a ${", "there must be a name"),
        ("${A-b}", "there must be a name"),
        ("${1A}", "there must be a name"),
    ],
)
def test_wrong_references_are_errors(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        expand(text, VARIABLES)


def test_restart_policies(tmp_path: Path) -> None:
    text = GOOD.replace("    trigger: {availableNow: true}\n", "    on_failure: stop\n")
    text = text.replace("10 seconds}\n", "10 seconds}\n    restart: {pause: 1m, limit: 3}\n")
    paid, alerts, counts = read(tmp_path, text).pipelines
    assert paid.restart == RestartPolicy(on_failure="restart", pause_ms=60_000, limit=3)
    assert [paid.restart.pause_s(n) for n in (1, 2, 3, 9)] == [60, 120, 240, 300]
    assert alerts.restart == RestartPolicy(on_failure="stop")
    assert counts.restart == RestartPolicy()
    wrong = GOOD.replace("10 seconds}\n", "10 seconds}\n    on_failure: sulk\n")
    assert mistakes(tmp_path, wrong) == ["11:17 on_failure must be restart or isolate or stop"]
    policy = "    on_failure: isolate\n    restart: {pause: soon, limit: 0, max: 1}\n"
    wrong = GOOD.replace("10 seconds}\n", f"10 seconds}}\n{policy}")
    assert mistakes(tmp_path, wrong) == [
        "12:14 on_failure: isolate does not restart it",
        "12:22 restart.pause: it must be a duration such as 500ms, 30s, 15m, 2h or 1d",
        "12:35 restart.limit: it must be a whole number from 1 to 1000000",
        "12:38 restart has no key max: known are pause, limit",
    ]


def test_expectations_and_bad_records(tmp_path: Path) -> None:
    more = (
        "10 seconds}\n    bad_records: Bad\n    expect: {amount: '> 0'}\n    on_violation: drop\n"
    )
    text = GOOD.replace("10 seconds}\n", more).replace(
        "topic: orders, tags: PAID", "topic: orders, tags: PAID, valueFormat: json"
    )
    paid = read(tmp_path, text).pipelines[0]
    assert (paid.expect, paid.on_violation) == ({"amount": "> 0"}, "drop")
    assert paid.source.options.bad_records_topic == "Bad"
    wrong = GOOD.replace("10 seconds}\n", "10 seconds}\n    on_violation: drop\n")
    assert mistakes(tmp_path, wrong) == ["11:19 on_violation belongs to expect"]
    wrong = GOOD.replace("10 seconds}\n", "10 seconds}\n    expect: {a: ' '}\n")
    assert mistakes(tmp_path, wrong) == ['11:13 expect: a needs a condition such as "> 0"']
