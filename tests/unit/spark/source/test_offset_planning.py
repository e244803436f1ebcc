"""Offset planning of micro-batches: backlogs, data loss, limits; and the error texts."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.client.errors import Missing
from skylark.spark.errors import DataLossError, find_cause, messages_expired, queues_withdrawn
from skylark.spark.source.offset_options import Named
from skylark.spark.source.offset_planning import BatchPlan, plan_batch, split_bytes, split_limit
from skylark.spark.source.queue_bounds import Bounds, ClusterSnapshot, choose_address
from skylark.wire.bodies.common_body import MessageQueue

Q0, Q1, Q2 = (MessageQueue(topic="T", broker_name="broker-a", queue_id=i) for i in range(3))


def plan(
    start: dict[MessageQueue, int],
    bounds: dict[MessageQueue, tuple[int, int]],
    *,
    fail: bool = True,
    default: Named = Named.EARLIEST,
    target: dict[MessageQueue, int] | None = None,
    slave_only: set[str] | None = None,
    unreadable: set[MessageQueue] | None = None,
) -> BatchPlan:
    snapshot = ClusterSnapshot(
        bounds={queue: Bounds(*each) for queue, each in bounds.items()},
        slave_only=slave_only or set(),
        unreadable=unreadable or set(),
    )
    return plan_batch(start, snapshot, fail_on_data_loss=fail, start_default=default, target=target)


def test_backlogs() -> None:
    found = plan({Q0: 5, Q1: 9}, {Q0: (0, 8), Q1: (0, 9)})
    assert found.positions == {Q0: 5, Q1: 9}
    assert found.backlogs == {Q0: 3}
    assert found.end({Q0: 2}) == {Q0: 7, Q1: 9}


def test_a_queue_of_an_unreachable_broker_keeps_its_offset() -> None:
    found = plan({Q0: 5, Q1: 9}, {Q0: (0, 8)})
    assert found.end(found.backlogs) == {Q0: 8, Q1: 9}


def test_an_unreadable_queue_keeps_its_offset() -> None:
    found = plan({Q0: 5, Q1: 4}, {Q0: (0, 8), Q1: (0, 9)}, unreadable={Q1})
    assert found.end(found.backlogs) == {Q0: 8, Q1: 4}
    other = MessageQueue(topic="U", broker_name="broker-a", queue_id=0)
    assert "raise readQueueNums of T to 3, readQueueNums of U to 1" in str(
        queues_withdrawn({Q1, other, Q2})
    )


@pytest.mark.spec("spark.9.15")
def test_a_new_queue_is_added_without_rows() -> None:
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
    assert plan({Q0: 20}, {Q0: (20, 30)}).backlogs == {Q0: 10}


def test_one_message_that_expired(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError, match=r"1 messages of topic T.*offset 19 is wanted.* 20:"):
        plan({Q0: 19}, {Q0: (20, 30)})
    with caplog.at_level(logging.WARNING):
        found = plan({Q0: 19}, {Q0: (20, 30)}, fail=False)
    assert (found.positions, found.backlogs) == ({Q0: 20}, {Q0: 10})
    assert "1 messages of topic T" in caplog.text


@pytest.mark.spec("spark.9.17")
def test_a_topic_that_was_created_again(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError, match=r"ends at offset 3, and 5 is wanted.*new checkpoint"):
        plan({Q0: 5}, {Q0: (0, 3)})
    with caplog.at_level(logging.WARNING):
        found = plan({Q0: 5}, {Q0: (0, 3)}, fail=False)
    assert (found.positions, found.backlogs) == ({Q0: 0}, {})  # written down, then read
    assert "broker broker-a, queue 0 again from its first offset 0" in caplog.text


def test_a_lagging_slave_is_not_a_data_loss() -> None:
    assert plan({Q0: 5}, {Q0: (0, 3)}, slave_only={"broker-a"}).positions == {Q0: 5}


def test_addresses() -> None:
    both = {0: "m", 1: "s1", 2: "s2"}
    assert [choose_address(both, "master", n) for n in range(2)] == ["m", "m"]
    assert [choose_address(both, "slave", n) for n in range(4)] == ["s1", "s2", "m", "s1"]
    assert [choose_address(both, "any", n) for n in range(2)] == ["m", "s1"]
    assert choose_address({1: "s"}, "master") is None


def test_find_cause_extracts_our_message() -> None:
    missing = Missing(queue=Q0, wanted=3, available=1, count=4)
    assert "created again" in str(messages_expired(missing))
    text = (
        "[PYTHON_DATA_SOURCE_ERROR] Failed:\nTraceback (most recent call last):\n  File ...\n"
        "skylark.core.errors.ConfigError: option x is unknown: did you mean y?\n\n\tat org.apache"
    )
    assert find_cause(text) == "option x is unknown: did you mean y?"
    assert find_cause(RuntimeError("java.lang.Exception: no")) is None


# ---- limits --------------------------------------------------------------------------------------


@pytest.mark.spec("spark.9.10")
def test_a_limit_is_shared_in_proportion() -> None:
    assert split_limit({0: 101, 1: 11, 2: 1}, 10) == {0: 9, 1: 1, 2: 0}
    assert split_limit({0: 100, 1: 100, 2: 100}, 10) == {0: 4, 1: 3, 2: 3}
    assert split_limit({0: 100, 1: 100, 2: 100}, 10, turn=1) == {0: 3, 1: 4, 2: 3}
    assert split_limit({0: 3, 1: 4}, 10) == {0: 3, 1: 4}
    assert split_limit({}, 10) == {}


@given(
    st.dictionaries(st.integers(0, 50), st.integers(0, 10**6), max_size=20),
    st.integers(1, 10**6),
    st.integers(0, 100),
)
@settings(max_examples=200, deadline=None)
def test_shares_add_up_and_stay_below_the_backlog(
    backlogs: dict[int, int], limit: int, turn: int
) -> None:
    shares = split_limit(backlogs, limit, turn)
    assert sum(shares.values()) == min(limit, sum(backlogs.values()))
    assert all(0 <= shares[key] <= backlogs[key] for key in backlogs)


@pytest.mark.parametrize("count", [3, 5, 12])
def test_every_queue_moves_soon(count: int) -> None:
    backlogs = dict.fromkeys(range(count), 100)
    moved: set[int] = set()
    for turn in range(2):
        shares = split_limit(backlogs, 10, turn)
        assert sum(shares.values()) == 10
        moved.update(key for key, share in shares.items() if share)
        backlogs = {key: backlogs[key] - share for key, share in shares.items()}
    assert moved == set(range(count))


def test_bytes_are_a_limit_too() -> None:
    assert split_bytes({0: 100, 1: 100}, {0: 10, 1: 30}, 800) == {0: 20, 1: 20}
    assert split_bytes({0: 5, 1: 5}, {0: 1000, 1: 2000}, 10) == {0: 0, 1: 1}  # never stuck
    assert split_bytes({0: 5}, {0: 10}, 1000) == {0: 5}
    assert split_bytes({}, {}, 1000) == {}
