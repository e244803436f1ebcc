"""When groups are notified of changes: at once, or later together."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.groups.consumer_table import (
    BATCH_MS,
    DELAY_MS_MAX,
    SMALL_GROUP_SIZE,
    ChangeNotices,
)


def test_a_small_group_is_notified_every_time() -> None:
    notices = ChangeNotices()
    assert all(notices.changed("g", SMALL_GROUP_SIZE, 5) for _ in range(100))
    assert notices.next_due() is None


def test_a_large_group_is_notified_at_once_and_then_after_a_pause() -> None:
    notices = ChangeNotices()
    assert notices.changed("g", 100, 1000)
    assert not notices.changed("g", 101, 1001)
    assert not notices.changed("g", 102, 1099)
    assert notices.next_due() == 1101  # one millisecond per member that there was
    assert notices.take_due(1100) == []
    assert notices.take_due(1101) == ["g"]
    assert notices.next_due() is None
    assert not notices.changed("g", 102, 1202)
    assert notices.take_due(1203) == ["g"]
    assert notices.changed("g", 102, 1305), "quiet for long enough"


def test_the_pause_has_a_limit() -> None:
    notices = ChangeNotices()
    assert notices.changed("g", 50_000, 0)
    assert not notices.changed("g", 50_000, 1)
    assert notices.next_due() == DELAY_MS_MAX


def test_a_group_that_has_shrunk_is_notified_of_the_collected_changes() -> None:
    notices = ChangeNotices()
    assert notices.changed("g", 33, 0)
    assert not notices.changed("g", 34, 0)
    assert notices.changed("g", 32, 1)
    assert notices.next_due() is None
    assert notices.take_due(10_000) == []


def test_forgotten_groups_are_not_due() -> None:
    notices = ChangeNotices()
    for group in ("a", "b"):
        notices.changed(group, 100, 0)
        notices.changed(group, 100, 1)
    notices.forget("a")
    assert notices.take_due(100) == ["b"]


def test_groups_are_due_in_order_of_time() -> None:
    notices = ChangeNotices()
    for group, size in (("slow", 900), ("quick", 40)):
        notices.changed(group, size, 0)
        notices.changed(group, size, 1)
    assert notices.next_due() == 40
    assert notices.take_due(40) == ["quick"]
    assert notices.next_due() == 900
    assert notices.take_due(5000) == ["slow"]


def test_batches_where_real_time_is_switched_off() -> None:
    notices = ChangeNotices(batch_ms=BATCH_MS)
    assert not notices.changed("g", 2, 100)
    assert not notices.changed("g", 3, 9000)
    assert notices.next_due() == 100 + BATCH_MS
    assert notices.take_due(100 + BATCH_MS) == ["g"]
    assert not notices.changed("g", 3, 100 + BATCH_MS)
    assert notices.next_due() == 100 + 2 * BATCH_MS


@settings(max_examples=200, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 400), st.sampled_from(["a", "b"]), st.integers(1, 3000)),
        max_size=60,
    )
)
def test_no_notice_waits_longer_than_the_limit(changes: list[tuple[int, str, int]]) -> None:
    """Members are notified of every change within a second."""
    notices = ChangeNotices()
    now_ms = 0
    untold: dict[str, int] = {}

    def told(group: str, at_ms: int) -> None:
        first_ms = untold.pop(group)
        assert at_ms - first_ms <= DELAY_MS_MAX

    for step_ms, group, size in changes:
        target_ms = now_ms + step_ms
        while (due_ms := notices.next_due()) is not None and due_ms <= target_ms:
            now_ms = due_ms
            for due in notices.take_due(now_ms):
                told(due, now_ms)
        now_ms = target_ms
        untold.setdefault(group, now_ms)
        if notices.changed(group, size, now_ms):
            told(group, now_ms)
    while (due_ms := notices.next_due()) is not None:
        now_ms = due_ms
        for due in notices.take_due(now_ms):
            told(due, now_ms)
    assert not untold
