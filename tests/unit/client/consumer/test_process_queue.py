"""Messages that wait: the offset to commit, order, limits, hung handlers."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.client.consumer.process_queue import (
    FlowControl,
    Hold,
    HoldReason,
    ProcessQueue,
)
from skylark.client.core.client_message import MessageExt
from skylark.wire.compress import COMPRESSION_ZLIB, compress_body, compression_flags
from tests.unit.client.consumer.samples import message, messages, offsets_of

NOW_MS = 1_000_000


def filled(*offsets: int) -> ProcessQueue:
    queue = ProcessQueue(NOW_MS, locked=True)
    queue.put(messages(*offsets))
    return queue


@pytest.mark.spec("client.8.24")
def test_the_lowest_message_holds_the_commit_back() -> None:
    queue = filled(10, 11, 12, 13, 14)
    assert queue.remove(messages(11, 12), NOW_MS) == 10
    assert queue.remove(messages(10), NOW_MS) == 13
    assert queue.remove(messages(13, 14), NOW_MS) == 15
    assert queue.remove(messages(13, 14), NOW_MS) == -1
    assert (queue.count, queue.size) == (0, 0)


def test_put_counts_new_messages_only() -> None:
    queue = filled(10, 11)
    size = queue.size
    again = message(11, b"longer")
    assert queue.put([again, message(12)]) is False
    assert (queue.count, queue.queue_offset_max) == (3, 12)
    assert queue.size == size // 2 * 3 + 5
    assert queue.remove(messages(10, 11, 12), NOW_MS) == 13
    assert queue.size == 0


def test_put_says_once_that_a_task_must_start() -> None:
    queue = ProcessQueue(NOW_MS)
    assert queue.put([]) is False
    assert queue.put(messages(1)) is True
    assert queue.put(messages(2)) is False
    assert offsets_of(queue.take(2, NOW_MS)) == [1, 2]
    assert queue.put(messages(3)) is False
    queue.take(1, NOW_MS)
    assert [queue.consuming, queue.take(1, NOW_MS), queue.consuming] == [True, [], False]
    assert queue.put(messages(4)) is True


def test_messages_pulled_again_find_their_place() -> None:
    queue = filled(10, 11, 12)
    queue.remove(messages(10, 11), NOW_MS)
    queue.put(messages(10, 11))
    assert queue.remove(messages(12), NOW_MS) == 10
    assert queue.span == 2
    assert queue.remove(messages(10, 11), NOW_MS) == 12  # after the last new one that was put


def test_the_span_reaches_from_the_first_that_is_left_to_the_last_pulled() -> None:
    queue = filled(10, 15, 20)
    assert queue.span == 10
    queue.remove(messages(20), NOW_MS)
    assert queue.span == 10
    queue.remove(messages(10), NOW_MS)
    assert queue.span == 5
    queue.put(messages(12))
    assert queue.span == 3
    queue.remove(messages(12, 15), NOW_MS)
    assert queue.span == 0


def test_sizes_are_not_those_of_inflated_bodies() -> None:
    body = bytes(4096)
    packed = message(
        1, compress_body(body, COMPRESSION_ZLIB), sys_flag=compression_flags(COMPRESSION_ZLIB)
    )
    queue = ProcessQueue(NOW_MS)
    queue.put([packed])
    size = queue.size
    assert size < 200
    assert packed.body == body
    queue.remove([packed], NOW_MS)
    assert queue.size == 0


def test_clear() -> None:
    queue = filled(10, 11)
    queue.take(1, NOW_MS)
    queue.start(messages(11), NOW_MS)
    queue.clear()
    assert (queue.count, queue.size, queue.span) == (0, 0, 0)
    assert queue.expired(NOW_MS + 10**9, 1) is None
    assert queue.remove(messages(11), NOW_MS) == -1


# ---- in order ------------------------------------------------------------------------------------


def test_take_and_commit() -> None:
    queue = filled(10, 11, 12)
    assert offsets_of(queue.take(2, NOW_MS)) == [10, 11]
    assert queue.count == 3
    assert queue.commit() == 12
    assert queue.count == 1
    assert queue.commit() == -1
    assert offsets_of(queue.take(5, NOW_MS)) == [12]
    assert queue.commit() == 13
    assert queue.size == 0


def test_what_is_rolled_back_comes_first_again() -> None:
    queue = filled(10, 11, 12)
    queue.take(1, NOW_MS)
    queue.take(1, NOW_MS)
    queue.rollback()
    assert offsets_of(queue.take(9, NOW_MS)) == [10, 11, 12]


def test_some_are_put_back_and_the_rest_stays_in_flight() -> None:
    queue = filled(10, 11, 12)
    taken = queue.take(2, NOW_MS)
    queue.make_again(taken[:1])
    assert offsets_of(queue.take(2, NOW_MS)) == [10, 12]
    assert queue.commit() == 13


def test_put_back_what_was_pulled_again_meanwhile() -> None:
    queue = filled(10)
    taken = queue.take(1, NOW_MS)
    queue.put(messages(10))
    queue.make_again(taken)
    assert (queue.count, queue.size) == (1, taken[0].record.total_size)
    assert queue.take(1, NOW_MS)[0] is taken[0]


class Model:
    """The same with sorted dictionaries and no thought of speed."""

    def __init__(self) -> None:
        self.here: dict[int, MessageExt] = {}
        self.in_flight: dict[int, MessageExt] = {}
        self.offset_max = 0
        self.highest = 0

    def put(self, found: Sequence[MessageExt]) -> None:
        for each in found:
            if each.queue_offset not in self.here:
                self.offset_max = each.queue_offset
            self.here[each.queue_offset] = each
            self.highest = max(self.highest, each.queue_offset)

    def remove(self, found: Sequence[MessageExt]) -> int:
        if not self.here:
            return -1
        for each in found:
            self.here.pop(each.queue_offset, None)
        return min(self.here, default=self.offset_max + 1)

    def take(self, count: int) -> list[int]:
        taken = sorted(self.here)[:count]
        for offset in taken:
            self.in_flight[offset] = self.here.pop(offset)
        return taken

    def commit(self) -> int:
        offset = max(self.in_flight, default=-2) + 1
        self.in_flight.clear()
        return offset

    def make_again(self, offsets: Sequence[int]) -> None:
        for offset in offsets:
            if offset in self.in_flight:
                self.here[offset] = self.in_flight.pop(offset)


OFFSETS = st.lists(st.integers(0, 12), max_size=6)
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["put", "put rising", "remove", "make_again"]), OFFSETS),
        st.tuples(st.just("take"), st.integers(1, 3)),
        st.tuples(st.sampled_from(["commit", "rollback"]), st.none()),
    ),
    max_size=30,
)
MESSAGES = [message(offset, bytes(offset)) for offset in range(400)]


@settings(max_examples=300, deadline=None)
@given(OPERATIONS)
def test_any_order_of_events_gives_what_a_sorted_map_gives(
    operations: list[tuple[str, list[int] | int | None]],
) -> None:
    queue, model = ProcessQueue(NOW_MS), Model()
    for name, argument in operations:
        if name == "take":
            assert isinstance(argument, int)
            assert offsets_of(queue.take(argument, NOW_MS)) == model.take(argument)
        elif name == "commit":
            assert queue.commit() == model.commit()
        elif name == "rollback":
            queue.rollback()
            model.make_again(list(model.in_flight))
        else:
            assert isinstance(argument, list)
            if name == "put rising":
                argument = [model.offset_max + 1 + each for each in sorted(set(argument))]
            found = [MESSAGES[offset] for offset in argument]
            if name == "remove":
                assert queue.remove(found, NOW_MS) == model.remove(found)
            elif name == "make_again":
                queue.make_again(found)
                model.make_again(argument)
            else:
                queue.put(found)
                model.put(found)
        here = model.here
        if here:
            assert max(here) - min(here) <= queue.span <= model.highest - min(here)
        else:
            assert queue.span == 0
        assert queue.count == len(here) + len(model.in_flight)
        held = [*here.values(), *model.in_flight.values()]
        assert queue.size == sum(each.record.total_size for each in held)
        assert [each in queue for each in MESSAGES[:13]] == [n in here for n in range(13)]


# ---- hung handlers -------------------------------------------------------------------------------


@pytest.mark.spec("client.8.30")
def test_only_the_first_message_can_expire() -> None:
    queue = filled(0, 1, 2)
    first, second, _ = MESSAGES[:3]
    queue.start([second], NOW_MS - 100_000)
    assert queue.expired(NOW_MS, 60_000) is None  # the first was not handed out yet
    queue.start([first], NOW_MS - 60_000)
    assert queue.expired(NOW_MS, 60_000) is None
    expired = queue.expired(NOW_MS + 1, 60_000)
    assert expired is not None
    assert expired.queue_offset == 0
    queue.remove_first(expired, NOW_MS)
    assert expired not in queue
    expired = queue.expired(NOW_MS + 1, 60_000)
    assert expired is not None
    assert expired.queue_offset == 1


def test_a_message_that_ended_meanwhile_is_not_removed_twice() -> None:
    queue = filled(0, 1)
    first = MESSAGES[0]
    queue.remove([first], NOW_MS)
    queue.remove_first(first, NOW_MS)
    assert queue.count == 1


def test_a_message_put_again_is_not_hung() -> None:
    queue = filled(0, 1)
    queue.start(MESSAGES[:2], NOW_MS)
    queue.remove(MESSAGES[:1], NOW_MS)
    queue.put(MESSAGES[:1])
    assert queue.expired(NOW_MS + 10**9, 1) is None


def test_a_start_after_the_end_is_forgotten() -> None:
    queue = filled(0)
    queue.start(MESSAGES[1:2], NOW_MS)  # it was cleaned up while it waited for a handler
    queue.remove(MESSAGES[:1], NOW_MS)
    queue.put(MESSAGES[1:2])
    assert queue.expired(NOW_MS + 10**9, 1) is None


# ---- locks and tools -----------------------------------------------------------------------------


def test_a_lock_is_valid_for_thirty_seconds() -> None:
    queue = ProcessQueue(NOW_MS)
    assert not queue.is_lock_valid(NOW_MS)
    queue.lock(NOW_MS)
    assert queue.is_lock_valid(NOW_MS + 30_000)
    assert not queue.is_lock_valid(NOW_MS + 30_001)
    queue.locked = False
    assert not queue.is_lock_valid(NOW_MS)


def test_a_pull_loop_is_dead_after_two_minutes() -> None:
    queue = ProcessQueue(NOW_MS)
    assert not queue.is_pull_expired(NOW_MS + 120_000)
    assert queue.is_pull_expired(NOW_MS + 120_001)


@pytest.mark.spec("client.8.34")
def test_what_tools_are_shown() -> None:
    queue = filled(10, 11, 12)
    queue.take(1, NOW_MS + 5)
    queue.dropped = True
    queue.try_unlock_times = 2
    info = queue.info(commit_offset=10)
    assert (info.commit_offset, info.cached_msg_count) == (10, 2)
    assert (info.cached_msg_min_offset, info.cached_msg_max_offset) == (11, 12)
    assert (info.transaction_msg_min_offset, info.transaction_msg_max_offset) == (10, 10)
    assert (info.transaction_msg_count, info.cached_msg_size_in_mib) == (1, 0)
    assert (info.locked, info.dropped, info.try_unlock_times) == (True, True, 2)
    assert (info.last_lock_timestamp, info.last_pull_timestamp) == (NOW_MS, NOW_MS)
    assert info.last_consume_timestamp == NOW_MS + 5
    assert repr(queue) == f"<ProcessQueue dropped 3 messages, {queue.size} bytes>"
    empty = ProcessQueue(NOW_MS).info(commit_offset=0)
    assert (empty.cached_msg_max_offset, empty.transaction_msg_count) == (0, 0)


# ---- when to pull --------------------------------------------------------------------------------


@pytest.mark.spec("client.8.26")
def test_a_thousand_may_wait_and_no_more() -> None:
    flow = FlowControl()
    queue = filled(*range(1_000))
    assert flow.may_pull(queue, NOW_MS) is None
    queue.put(messages(1_000))
    assert flow.may_pull(queue, NOW_MS) == Hold(HoldReason.COUNT, 50, should_log=True)
    queue.remove(messages(5), NOW_MS)
    assert flow.may_pull(queue, NOW_MS) is None


def test_bytes_are_limited() -> None:
    queue = filled(1, 2)
    flow = FlowControl(size_max=queue.size)
    assert flow.may_pull(queue, NOW_MS) is None
    queue.put(messages(3))
    assert flow.may_pull(queue, NOW_MS) == Hold(HoldReason.SIZE, 50, should_log=True)


@pytest.mark.spec("client.8.25")
def test_a_stuck_message_stops_pulling_and_holds_the_commit() -> None:
    flow = FlowControl()
    queue = ProcessQueue(NOW_MS)
    for start in range(0, 2_016, 32):
        assert flow.may_pull(queue, NOW_MS) is None
        queue.put(messages(*range(start, start + 32)))
        assert queue.remove(messages(*range(max(1, start), start + 32)), NOW_MS) == 0
    assert flow.may_pull(queue, NOW_MS) == Hold(HoldReason.SPAN, 50, should_log=True)
    assert queue.count == 1
    assert queue.remove(messages(0), NOW_MS) == 2_016
    assert flow.may_pull(queue, NOW_MS) is None


def test_orderly_consumers_have_no_span() -> None:
    queue = filled(0, 5_000)
    queue.offset_checked = True
    assert FlowControl(orderly=True).may_pull(queue, NOW_MS) is None
    assert FlowControl().may_pull(queue, NOW_MS) is not None
    assert FlowControl(orderly=True, count_max=10).room(queue) == 8
    assert FlowControl(count_max=10, span_max=5_003).room(queue) == 3


def test_the_first_reason_counts() -> None:
    flow = FlowControl(orderly=True, count_max=0, error_delay_ms=700)
    queue = filled(1)
    queue.dropped = True
    queue.locked = queue.offset_checked = False
    reasons: list[tuple[HoldReason, int | None]] = []

    def ask(**state: bool) -> None:
        hold = flow.may_pull(queue, NOW_MS + 5, **state)
        assert hold is not None
        reasons.append((hold.reason, hold.delay_ms))

    ask(running=False, paused=True, subscribed=False)
    assert queue.last_pull_ms == NOW_MS
    queue.dropped = False
    ask(running=False, paused=True, subscribed=False)
    assert queue.last_pull_ms == NOW_MS + 5
    ask(paused=True, subscribed=False)
    ask(subscribed=False)
    flow.count_max = 1
    ask(subscribed=False)
    queue.locked = True
    ask(subscribed=False)
    queue.offset_checked = True
    ask(subscribed=False)
    assert reasons == [
        (HoldReason.DROPPED, None),
        (HoldReason.NOT_RUNNING, 700),
        (HoldReason.PAUSED, 1_000),
        (HoldReason.COUNT, 50),
        (HoldReason.NOT_LOCKED, 700),
        (HoldReason.OFFSET_UNCHECKED, 0),
        (HoldReason.NO_SUBSCRIPTION, 700),
    ]
    assert flow.may_pull(queue, NOW_MS) is None


def test_every_thousandth_time_is_logged() -> None:
    flow = FlowControl(count_max=0)
    queue = filled(1)
    holds = [flow.may_pull(queue, NOW_MS) for _ in range(2_001)]
    logged = [index for index, hold in enumerate(holds) if hold is not None and hold.should_log]
    assert logged == [0, 1_000, 2_000]
