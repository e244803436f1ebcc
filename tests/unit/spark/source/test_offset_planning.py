"""What the next micro-batch takes, and what is lost; errors and their sentences."""

from __future__ import annotations

import logging

import pytest

from skylark.client.errors import Missing
from skylark.spark.errors import DataLossError, aged_out, find_cause, shrunk
from skylark.spark.source.offset_options import Named
from skylark.spark.source.offset_planning import BatchPlan, plan_batch
from skylark.spark.source.queue_bounds import Bounds, Survey, choose_address
from skylark.wire.bodies.common_body import MessageQueue

Q0, Q1, Q2 = (MessageQueue(topic="T", broker_name="broker-a", queue_id=i) for i in range(3))


def plan(
    start: dict[MessageQueue, int],
    bounds: dict[MessageQueue, tuple[int, int]],
    *,
    fail: bool = True,
    default: Named = Named.EARLIEST,
    target: dict[MessageQueue, int] | None = None,
    slaves: set[str] | None = None,
    cut_off: set[MessageQueue] | None = None,
) -> BatchPlan:
    survey = Survey(
        bounds={queue: Bounds(*each) for queue, each in bounds.items()},
        slaves=slaves or set(),
        cut_off=cut_off or set(),
    )
    return plan_batch(start, survey, fail_on_data_loss=fail, start_default=default, target=target)


def test_backlogs() -> None:
    found = plan({Q0: 5, Q1: 9}, {Q0: (0, 8), Q1: (0, 9)})
    assert found.positions == {Q0: 5, Q1: 9}
    assert found.backlogs == {Q0: 3}
    assert found.end({Q0: 2}) == {Q0: 7, Q1: 9}


def test_a_silent_queue_is_held() -> None:
    found = plan({Q0: 5, Q1: 9}, {Q0: (0, 8)})
    assert found.end(found.backlogs) == {Q0: 8, Q1: 9}


def test_a_queue_that_is_cut_off_is_held() -> None:
    found = plan({Q0: 5, Q1: 4}, {Q0: (0, 8), Q1: (0, 9)}, cut_off={Q1})
    assert found.end(found.backlogs) == {Q0: 8, Q1: 4}
    other = MessageQueue(topic="U", broker_name="broker-a", queue_id=0)
    assert "raise readQueueNums of T to 3, readQueueNums of U to 1" in str(shrunk({Q1, other, Q2}))


@pytest.mark.spec("spark.9.15")
def test_a_new_queue_enters_without_rows() -> None:
    found = plan({Q0: 5}, {Q0: (0, 8), Q1: (4, 9)})
    assert found.end(found.backlogs) == {Q0: 8, Q1: 4}
    assert plan({Q0: 5}, {Q1: (4, 9)}, default=Named.LATEST).positions == {Q0: 5, Q1: 9}


def test_a_target_bounds_the_run() -> None:
    found = plan({Q0: 5, Q2: 3}, {Q0: (0, 8), Q1: (0, 9), Q2: (0, 4)}, target={Q0: 6})
    assert found.end(found.backlogs) == {Q0: 6, Q2: 3}  # queues that came later wait for a new run


@pytest.mark.spec("spark.9.16")
def test_messages_that_expired(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError) as caught:
        plan({Q0: 5}, {Q0: (20, 30)})
    assert "topic T, broker broker-a, queue 0" in str(caught.value)
    assert "offset 5 is wanted, the first available is 20" in str(caught.value)
    with caplog.at_level(logging.WARNING):
        found = plan({Q0: 5}, {Q0: (20, 30)}, fail=False)
    assert (found.positions, found.backlogs) == ({Q0: 20}, {Q0: 10})
    assert "15 messages of topic T, broker broker-a, queue 0 are gone" in caplog.text
    assert plan({Q0: 5}, {Q0: (30, 30)}, fail=False).positions == {Q0: 30}


@pytest.mark.spec("spark.9.17")
def test_a_topic_that_was_made_anew(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError, match=r"ends at offset 3, and 5 is wanted.*new checkpoint"):
        plan({Q0: 5}, {Q0: (0, 3)})
    with caplog.at_level(logging.WARNING):
        found = plan({Q0: 5}, {Q0: (0, 3)}, fail=False)
    assert (found.positions, found.backlogs) == ({Q0: 0}, {})  # written down, then read
    assert "is read from its start, 0" in caplog.text


def test_a_slave_that_lags_is_no_loss() -> None:
    assert plan({Q0: 5}, {Q0: (0, 3)}, slaves={"broker-a"}).positions == {Q0: 5}


def test_addresses() -> None:
    both = {0: "m", 1: "s1", 2: "s2"}
    assert [choose_address(both, "master", n) for n in range(2)] == ["m", "m"]
    assert [choose_address(both, "slave", n) for n in range(4)] == ["s1", "s2", "m", "s1"]
    assert [choose_address(both, "any", n) for n in range(2)] == ["m", "s1"]
    assert choose_address({1: "s"}, "master") is None


def test_our_sentence_is_found_in_what_spark_says() -> None:
    missing = Missing(queue=Q0, wanted=3, available=1, count=4)
    assert "made anew" in str(aged_out(missing))
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed:\nTraceback (most recent call last):\n  File ...\n"
        "skylark.core.errors.ConfigError: option x is unknown: did you mean y?\n\n\tat org.apache"
    )
    assert find_cause(text) == "option x is unknown: did you mean y?"
    assert find_cause(RuntimeError("java.lang.Exception: no")) is None
