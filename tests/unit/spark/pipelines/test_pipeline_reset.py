"""Plans of resets: the number of the first batch, by the sink. The cluster is scripted."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.spark.exactly_once.commit_protocol import StatusView, admit
from skylark.spark.exactly_once.txn_log_records import BatchStatus
from skylark.spark.pipelines import pipeline_reset
from skylark.spark.pipelines.checkpoint_folders import Checkpoints
from skylark.spark.pipelines.pipeline_file import load
from skylark.spark.pipelines.pipeline_reset import ResetPlan, plan_reset, reset_position
from skylark.spark.source.queue_bounds import Bounds, ClusterSnapshot
from skylark.spark.source.stream_offset import StreamOffset
from skylark.wire.bodies.common_body import MessageQueue
from tests.unit.spark.pipelines.test_checkpoint_folders import plan

QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)


@pytest.fixture(autouse=True)
def _cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = ClusterSnapshot(bounds={QUEUE: Bounds(0, 9)})
    monkeypatch.setattr(pipeline_reset, "source_snapshot", lambda _: snapshot)
    monkeypatch.setattr(pipeline_reset, "resolve_start", lambda *_: {QUEUE: 0})


def planned(folder: Path, sink: str, batches: int) -> ResetPlan:
    """The plan for a pipeline that has completed so many batches."""
    file = folder / "p.yaml"
    file.write_text(
        f"""name: f
cluster: {{nameServer: 'h:1'}}
checkpoints: ck
pipelines:
  - name: p
    source: {{options: {{topic: T}}}}
    sink: {sink}
"""
    )
    document = load(file, {})
    for number in range(batches):
        plan(folder / "ck" / "p" / "0", number, StreamOffset({QUEUE: number + 1}))
    return plan_reset(document, document.pipelines[0], reset_position("earliest"))


@pytest.mark.parametrize("batches", [0, 3])
def test_an_exactly_once_sink_admits_the_first_batch_after_a_reset(
    tmp_path: Path, batches: int
) -> None:
    sink = "{format: rocketmq, options: {topic: Out, delivery: exactly-once}}"
    reset = planned(tmp_path, sink, batches)
    reset.write()
    made = Checkpoints(str(tmp_path / "ck"), tmp_path).newest("p")
    assert made is not None
    assert (made.next_number, made.positions) == (0, {QUEUE: 0})
    assert admit("new-id", made.next_number, StatusView(BatchStatus(), 0))


def test_other_sinks_continue_the_numbers(tmp_path: Path) -> None:
    assert planned(tmp_path, "{format: noop}", 3).next_number == 3
