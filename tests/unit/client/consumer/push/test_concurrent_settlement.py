"""Batches that a handler has seen: what goes back, what is committed, what is tried again."""

from __future__ import annotations

import pytest

from skylark.client.consumer.consumer_send_back import retry_message, send_back_header
from skylark.client.consumer.process_queue import EXPIRED_DELAY_LEVEL, ProcessQueue
from skylark.client.consumer.push.concurrent_settlement import (
    ALL_ACCEPTED,
    RECONSUME_LATER,
    Outcome,
    ReturnType,
    Settlement,
    batches,
    outcome_of_error,
    return_type,
    send_backs,
    settle,
)
from skylark.client.core.client_message import DeadLetter, MessageExt, RetryLater
from skylark.core.errors import RemoteProtocolError
from skylark.wire.layout import FLAG_COMPRESSED
from tests.unit.client.consumer.samples import message, messages, offsets_of

NOW_MS = 1_000_000


def filled(*offsets: int) -> tuple[ProcessQueue, list[MessageExt]]:
    queue = ProcessQueue(NOW_MS)
    batch = messages(*offsets)
    queue.put(batch)
    return queue, batch


def test_batches() -> None:
    pulled = messages(*range(5))
    assert [offsets_of(list(each)) for each in batches(pulled, 2)] == [[0, 1], [2, 3], [4]]
    assert list(batches(pulled, 5)) == [pulled]
    assert [len(each) for each in batches(pulled, 1)] == [1] * 5


# ---- what a handler says -------------------------------------------------------------------------


def test_errors_say_how_to_go_on() -> None:
    assert outcome_of_error(RetryLater(level=5)) == Outcome(ack_index=-1, delay_level=5)
    assert outcome_of_error(RetryLater()) == RECONSUME_LATER
    assert outcome_of_error(DeadLetter()) == Outcome(ack_index=-1, delay_level=-1)
    assert outcome_of_error(KeyError("x")) == Outcome(ack_index=-1, delay_level=0)


@pytest.mark.parametrize(
    ("failed", "raised", "took_ms", "expected"),
    [
        (False, False, 5, ReturnType.SUCCESS),
        (False, False, 10, ReturnType.TIME_OUT),
        (True, False, 10, ReturnType.TIME_OUT),
        (True, True, 10, ReturnType.EXCEPTION),
        (True, False, 5, ReturnType.FAILED),
    ],
)
def test_what_hooks_are_told(
    failed: bool, raised: bool, took_ms: int, expected: ReturnType
) -> None:
    found = return_type(failed=failed, raised=raised, took_ms=took_ms, timeout_ms=10)
    assert found is expected
    assert [int(each) for each in ReturnType] == [0, 1, 2, 3, 4]


# ---- what becomes of it --------------------------------------------------------------------------


def test_all_accepted() -> None:
    queue, batch = filled(10, 11)
    assert send_backs(queue, batch, ALL_ACCEPTED, clustering=True) == []
    assert settle(queue, batch, [], NOW_MS) == Settlement(12, [])


@pytest.mark.spec("client.8.28")
def test_what_is_behind_the_ack_index_goes_back() -> None:
    queue, batch = filled(10, 11, 12)
    outcome = Outcome(ack_index=0, delay_level=4)
    assert send_backs(queue, batch, outcome, clustering=True) == batch[1:]
    assert settle(queue, batch, [], NOW_MS) == Settlement(13, [])
    assert queue.count == 0


@pytest.mark.spec("client.8.28")
def test_nothing_goes_back_in_broadcasting() -> None:
    queue, batch = filled(10, 11, 12)
    assert send_backs(queue, batch, Outcome(ack_index=0), clustering=False) == []
    assert settle(queue, batch, [], NOW_MS) == Settlement(13, [])


def test_later_means_all_of_them() -> None:
    queue, batch = filled(10, 11)
    assert send_backs(queue, batch, RECONSUME_LATER, clustering=True) == batch
    assert send_backs(queue, batch, Outcome(ack_index=1), clustering=True) == []


@pytest.mark.spec("client.8.29")
def test_what_could_not_go_back_is_tried_again_here() -> None:
    queue, batch = filled(10, 11, 12, 13)
    settled = settle(queue, batch, [batch[1]], NOW_MS)
    assert settled == Settlement(11, [batch[1]])
    assert [each.reconsume_times for each in batch] == [0, 1, 0, 0]
    assert settle(queue, settled.resubmit, settled.resubmit, NOW_MS) == Settlement(11, [batch[1]])
    assert batch[1].reconsume_times == 2
    assert settle(queue, settled.resubmit, [], NOW_MS) == Settlement(14, [])


@pytest.mark.spec("client.8.30")
def test_a_late_result_of_a_hung_message_is_ignored() -> None:
    queue, batch = filled(10, 11)
    hung = batch[:1]
    queue.start(hung, NOW_MS)
    expired = queue.expired(NOW_MS + 60_001, 60_000)
    assert expired is batch[0]
    assert EXPIRED_DELAY_LEVEL == 3
    queue.remove_first(expired, NOW_MS)
    assert send_backs(queue, hung, RECONSUME_LATER, clustering=True) == []
    assert settle(queue, hung, [], NOW_MS) == Settlement(11, [])
    assert queue.count == 1


def test_nothing_counts_once_the_queue_is_given_up() -> None:
    queue, batch = filled(10, 11)
    queue.dropped = True
    assert send_backs(queue, batch, RECONSUME_LATER, clustering=True) == []
    assert settle(queue, batch, [batch[0]], NOW_MS) == Settlement(None, [])
    assert (queue.count, batch[0].reconsume_times) == (2, 0)


def test_nothing_to_commit() -> None:
    queue = ProcessQueue(NOW_MS)
    assert settle(queue, messages(1), [], NOW_MS) == Settlement(None, [])


# ---- going back ----------------------------------------------------------------------------------


def test_the_request_to_send_back() -> None:
    header = send_back_header(message(7, UNIQ_KEY="U"), "G", 5, 16)
    assert (header.offset, header.group, header.delay_level) == (7_000, "G", 5)
    assert (header.origin_msg_id, header.origin_topic) == ("U", "T")
    assert (header.max_reconsume_times, header.unit_mode) == (16, False)
    again = message(7, topic="%RETRY%G", RETRY_TOPIC="ns%T")
    assert send_back_header(again, "G").origin_topic == "ns%T"


@pytest.mark.spec("client.8.29")
def test_the_message_that_the_client_publishes_itself() -> None:
    failed = message(
        7, b"body", flag=9, reconsume_times=2, UNIQ_KEY="U", TAGS="A", a="1", TRAN_MSG="true"
    )
    published = retry_message(failed, "G", 16)
    assert (published.topic, published.body, published.flag) == ("%RETRY%G", b"body", 9)
    assert published.encoded_properties() == {
        "UNIQ_KEY": "U",
        "TAGS": "A",
        "a": "1",
        "ORIGIN_MESSAGE_ID": "U",
        "RETRY_TOPIC": "T",
        "RECONSUME_TIME": "3",
        "MAX_RECONSUME_TIMES": "16",
        "DELAY": "5",
        "WAIT": "true",
    }
    assert failed.properties["TRAN_MSG"] == "true"


@pytest.mark.spec("client.8.29")
def test_a_message_that_failed_before_keeps_where_it_came_from() -> None:
    failed = message(
        7, topic="%RETRY%G", RETRY_TOPIC="T", ORIGIN_MESSAGE_ID="O", UNIQ_KEY="U", WAIT="false"
    )
    assert failed.topic == "T"  # what the listener sees
    published = retry_message(failed, "G")
    found = published.encoded_properties()
    assert (found["ORIGIN_MESSAGE_ID"], found["RETRY_TOPIC"]) == ("O", "T")
    assert (found["RECONSUME_TIME"], found["DELAY"], found["WAIT"]) == ("1", "3", "false")


def test_a_body_that_cannot_be_read_cannot_be_published() -> None:
    broken = message(7, b"not zlib", sys_flag=FLAG_COMPRESSED)
    with pytest.raises(RemoteProtocolError):
        retry_message(broken, "G")
