"""The lag of streams."""

from __future__ import annotations

from skylark.spark.lag_listener import progress_offset, queue_lags
from skylark.spark.source.stream_offset import StreamOffset
from skylark.wire.bodies.common_body import MessageQueue


def queue(queue_id: int, topic: str = "T", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)


def test_lag_of_queues() -> None:
    end = StreamOffset({queue(0): 5, queue(1): 9})
    latest = StreamOffset({queue(0): 8, queue(1): 7, queue(2): 3})
    assert queue_lags(end, latest) == {queue(0): 3, queue(1): 0, queue(2): 0}


def test_offsets_of_other_sources_are_passed_over() -> None:
    assert progress_offset('{"v": 1, "q": {"T": {"broker-a": {"0": 5}}}}') == StreamOffset(
        {queue(0): 5}
    )
    for text in ('{"orders": {"0": 5}}', "no JSON", None):
        assert progress_offset(text) is None
