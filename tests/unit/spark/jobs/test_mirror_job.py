"""The parts of a mirror that need neither Spark nor a broker."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.core.errors import ConfigError
from skylark.spark.jobs.mirror_job import MirrorOptions, offset_runs, queue_map
from skylark.wire.bodies.common_body import MessageQueue

NAMESRV = "127.0.0.1:9876"
GIVEN: dict[str, Any] = {"topic": "T", "to_namesrv": NAMESRV, "checkpoint": "/ck"}


def queues(**counts: int) -> list[MessageQueue]:
    return [
        MessageQueue(topic="T", broker_name=broker, queue_id=number)
        for broker, count in counts.items()
        for number in range(count)
    ]


def mapped(source: list[MessageQueue], target: list[MessageQueue]) -> dict[str, str]:
    found = queue_map(source, target)
    return {
        f"{one.broker_name}{one.queue_id}": f"{other.broker_name}{other.queue_id}"
        for one, other in found.items()
    }


def test_queues_go_to_their_number_modulo_the_count() -> None:
    assert mapped(queues(a=3), queues(x=3)) == {"a0": "x0", "a1": "x1", "a2": "x2"}
    assert mapped(queues(a=3), queues(x=2)) == {"a0": "x0", "a1": "x1", "a2": "x0"}
    assert mapped(queues(a=2), queues(x=2, y=2)) == {"a0": "x0", "a1": "y0"}
    both = {"a0": "a0", "a1": "a1", "b0": "b0", "b1": "b1"}
    assert mapped(queues(a=2, b=2), queues(a=2, b=2)) == both


def test_more_queues_leave_those_that_exist_where_they_are() -> None:
    target = queues(x=4, y=4)
    before, after = mapped(queues(a=2, b=2), target), mapped(queues(a=3, b=3), target)
    assert {name: after[name] for name in before} == before


def batch(rows: list[tuple[str, int, int, str, int]]) -> pa.RecordBatch:
    brokers, numbers, offsets, targets, target_numbers = zip(*rows, strict=True)
    return pa.RecordBatch.from_pydict(
        {
            "sourceBroker": pa.array(brokers),
            "sourceQueueId": pa.array(numbers, pa.int32()),
            "sourceOffset": pa.array(offsets, pa.int64()),
            "brokerName": pa.array(targets),
            "queueId": pa.array(target_numbers, pa.int32()),
        }
    )


def test_runs_end_where_either_offset_jumps_or_a_queue_changes() -> None:
    rows = [("a", 0, n, "x", 0) for n in (5, 6, 7, 9, 10)] + [("a", 1, 11, "x", 0)]
    runs = offset_runs(batch(rows), np.array([100, 101, 105, 106, 107, 108]), "S", "T")
    found = [
        (run["sourceQueueId"], run["sourceOffset"], run["targetOffset"], run["count"])
        for run in runs.to_pylist()
    ]
    assert found == [(0, 5, 100, 2), (0, 7, 105, 1), (0, 9, 106, 2), (1, 11, 108, 1)]
    assert {(run["sourceTopic"], run["targetTopic"]) for run in runs.to_pylist()} == {("S", "T")}


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(0, 5)), min_size=1))
@settings(max_examples=100, deadline=None)
def test_runs_give_the_target_offset_of_every_row(given_rows: list[tuple[int, int, int]]) -> None:
    rows, targets, source_at, target_at = [], [], 0, 0
    for queue_id, source_gap, target_gap in given_rows:
        source_at += 1 + source_gap // 4
        target_at += 1 + target_gap // 4
        rows.append(("a", queue_id, source_at, "x", queue_id))
        targets.append(target_at)
    runs = offset_runs(batch(rows), np.array(targets), "S", "T").to_pylist()
    told = {
        (run["sourceQueueId"], run["sourceOffset"] + k): run["targetOffset"] + k
        for run in runs
        for k in range(run["count"])
    }
    assert told == {(row[1], row[2]): at for row, at in zip(rows, targets, strict=True)}


def test_wrong_options_raise_errors_with_hints() -> None:
    options = MirrorOptions(topic="T", to_namesrv=NAMESRV, checkpoint="/ck/", namesrv=NAMESRV)
    assert (options.target, options.pairs_folder) == ("T", "/ck.pairs")
    assert options.source["maxRecordsPerPartition"] == str(1 << 62)
    for wrong, sentence in (
        ({"checkpoint": ""}, "a mirror needs a checkpoint"),
        ({"name": "a,b"}, "'a,b' cannot be the name of a cluster here"),
        ({"start": "yesterday"}, "startingOffsets"),
        ({"topic": "a b"}, "topic"),
    ):
        given_options: dict[str, Any] = {
            "topic": "T",
            "to_namesrv": NAMESRV,
            "checkpoint": "/ck",
            **wrong,
        }
        with pytest.raises(ConfigError, match=sentence):
            MirrorOptions(**given_options)
