"""One message after the other: locks, commits, waiting, dead letters."""

from __future__ import annotations

import pytest

from skylark.client.consumer.consumer_send_back import retry_message
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.push.orderly_settlement import (
    ALL_ACCEPTED,
    RECONSUME_TIMES_MAX,
    SUSPENDED,
    NextStep,
    OrderlyResult,
    OrderlyStatus,
    Settlement,
    Step,
    after_lock,
    clip_suspend_ms,
    exhausted,
    next_step,
    settle,
)
from skylark.client.core.client_message import MessageExt
from tests.unit.client.consumer.samples import message, messages, offsets_of

NOW_MS = 1_000_000


def filled(*offsets: int) -> ProcessQueue:
    queue = ProcessQueue(NOW_MS, locked=True)
    queue.put(messages(*offsets))
    return queue


def taken(queue: ProcessQueue, count: int = 1) -> list[MessageExt]:
    return queue.take(count, NOW_MS)


# ---- before the call -----------------------------------------------------------------------------


def test_a_locked_queue_may_go() -> None:
    queue = filled(1)
    assert next_step(queue, NOW_MS, None, clustering=True) == NextStep(Step.GO)
    assert next_step(queue, NOW_MS + 30_000, NOW_MS, clustering=True) == NextStep(Step.GO)


@pytest.mark.spec("client.8.31")
def test_without_a_valid_lock_nothing_is_taken() -> None:
    queue = filled(1)
    assert next_step(queue, NOW_MS + 30_001, None, clustering=True) == NextStep(Step.LOCK, 100)
    queue.locked = False
    assert next_step(queue, NOW_MS, NOW_MS, clustering=True) == NextStep(Step.LOCK, 10)
    assert next_step(queue, NOW_MS, None, clustering=False) == NextStep(Step.GO)
    assert after_lock(queue, locked=False, now_ms=NOW_MS) == NextStep(Step.RESUBMIT, 3_000)
    assert not queue.is_lock_valid(NOW_MS)
    assert after_lock(queue, locked=True, now_ms=NOW_MS + 7) == NextStep(Step.RESUBMIT, 10)
    assert queue.last_lock_ms == NOW_MS + 7
    assert next_step(queue, NOW_MS + 17, None, clustering=True) == NextStep(Step.GO)


def test_other_queues_get_their_turn_after_a_minute() -> None:
    queue = filled(1)
    queue.lock(NOW_MS + 60_000)
    assert next_step(queue, NOW_MS + 60_000, NOW_MS, clustering=True) == NextStep(Step.GO)
    late = next_step(queue, NOW_MS + 60_001, NOW_MS, clustering=True)
    assert late == NextStep(Step.RESUBMIT, 10)


def test_a_queue_that_was_given_up_ends_its_task() -> None:
    queue = filled(1)
    queue.dropped = True
    assert next_step(queue, NOW_MS, None, clustering=True) == NextStep(Step.END)
    assert after_lock(queue, locked=True, now_ms=NOW_MS) == NextStep(Step.END)


# ---- committing by itself ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "status", [OrderlyStatus.SUCCESS, OrderlyStatus.COMMIT, OrderlyStatus.ROLLBACK]
)
def test_success_commits(status: OrderlyStatus) -> None:
    queue = filled(10, 11, 12)
    batch = taken(queue, 2)
    assert settle(queue, batch, OrderlyResult(status)) == Settlement(12)
    assert queue.count == 1


@pytest.mark.spec("client.8.31")
def test_a_failure_is_delivered_again_in_its_place() -> None:
    queue = filled(10, 11, 12)
    batch = taken(queue, 2)
    assert exhausted(batch, SUSPENDED, RECONSUME_TIMES_MAX) == []
    assert settle(queue, batch, SUSPENDED) == Settlement(None, rerun_ms=1_000)
    assert [each.reconsume_times for each in batch] == [1, 1]
    assert offsets_of(taken(queue, 3)) == [10, 11, 12]


@pytest.mark.spec("client.8.31")
def test_the_third_failure_is_published_for_the_dead_letters() -> None:
    queue = filled(10, 11)
    for _ in range(2):
        batch = taken(queue)
        assert exhausted(batch, SUSPENDED, 2) == []
        assert settle(queue, batch, SUSPENDED) == Settlement(None, 1_000)
    batch = taken(queue)
    assert offsets_of(exhausted(batch, SUSPENDED, 2)) == [10]
    published = retry_message(batch[0], "G", 2).encoded_properties()
    assert (published["RECONSUME_TIME"], published["MAX_RECONSUME_TIMES"]) == ("3", "2")
    assert settle(queue, batch, SUSPENDED, published=batch) == Settlement(11)
    assert offsets_of(taken(queue)) == [11]


def test_what_cannot_be_published_is_kept() -> None:
    queue = ProcessQueue(NOW_MS, locked=True)
    batch = [message(10, reconsume_times=2), message(11, reconsume_times=2)]
    queue.put(batch)
    assert exhausted(taken(queue, 2), SUSPENDED, 2) == batch
    assert settle(queue, batch, SUSPENDED, published=batch[:1]) == Settlement(None, 1_000)
    assert [each.reconsume_times for each in batch] == [2, 3]
    assert offsets_of(taken(queue, 2)) == [10, 11]  # all of the batch comes again


def test_success_publishes_nothing() -> None:
    batch = [message(10, reconsume_times=9)]
    assert exhausted(batch, ALL_ACCEPTED, 2) == []


def test_counting_ends_at_the_largest_number() -> None:
    queue = ProcessQueue(NOW_MS, locked=True)
    batch = [message(10, reconsume_times=RECONSUME_TIMES_MAX)]
    queue.put(batch)
    settle(queue, taken(queue), SUSPENDED)
    assert batch[0].reconsume_times == RECONSUME_TIMES_MAX


# ---- committed by the handler --------------------------------------------------------------------


def by_hand(status: OrderlyStatus, suspend_ms: int | None = None) -> OrderlyResult:
    return OrderlyResult(status, auto_commit=False, suspend_ms=suspend_ms)


def test_messages_pile_up_until_they_are_committed() -> None:
    queue = filled(10, 11, 12)
    for _ in range(2):
        assert settle(queue, taken(queue), by_hand(OrderlyStatus.SUCCESS)) == Settlement(None)
    assert queue.count == 3
    assert settle(queue, taken(queue), by_hand(OrderlyStatus.COMMIT)) == Settlement(13)
    assert queue.count == 0


def test_rollback_delivers_all_of_them_again() -> None:
    queue = filled(10, 11, 12)
    settle(queue, taken(queue), by_hand(OrderlyStatus.SUCCESS))
    settled = settle(queue, taken(queue), by_hand(OrderlyStatus.ROLLBACK, 50))
    assert settled == Settlement(None, rerun_ms=50)
    found = taken(queue, 3)
    assert offsets_of(found) == [10, 11, 12]
    assert [each.reconsume_times for each in found] == [0, 0, 0]


def test_suspend_keeps_what_was_not_committed() -> None:
    queue = filled(10, 11)
    settle(queue, taken(queue), by_hand(OrderlyStatus.SUCCESS))
    batch = taken(queue)
    assert settle(queue, batch, by_hand(OrderlyStatus.SUSPEND)) == Settlement(None, 1_000)
    assert offsets_of(taken(queue, 2)) == [11]
    gone = settle(queue, batch, by_hand(OrderlyStatus.SUSPEND), published=batch)
    assert gone == Settlement(None)  # published, and committed with the next COMMIT
    assert queue.commit() == 12


def test_nothing_is_committed_once_the_queue_is_given_up() -> None:
    queue = filled(10)
    batch = taken(queue)
    queue.dropped = True
    assert settle(queue, batch, ALL_ACCEPTED) == Settlement(None)


@pytest.mark.parametrize(
    ("given_ms", "expected_ms"),
    [(None, 1_000), (-1, 1_000), (0, 10), (10, 10), (500, 500), (30_000, 30_000), (99_999, 30_000)],
)
def test_waiting_has_limits(given_ms: int | None, expected_ms: int) -> None:
    assert clip_suspend_ms(given_ms, 1_000) == expected_ms
    assert clip_suspend_ms(None, 5) == 10
