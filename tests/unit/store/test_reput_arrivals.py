"""Arrivals are reported only for awaited queues; the derived files do not depend on it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from skylark.core.hashing import java_hash
from skylark.store.commit_log import Draft
from skylark.store.put_message import Putter
from skylark.store.reput import Arrival, IsAwaited, Reput, TagsCodes
from tests.unit.store.crash_store import derived_files
from tests.unit.store.small_store import HOST, QUEUE_FILE_ENTRIES, SmallStore, memory_store

Queue = tuple[str, int]
T0: Queue = ("T", 0)
T1: Queue = ("T", 1)
U0: Queue = ("U", 0)
HALF, ROLLBACK = 0x4, 0xC


class ArrivalLog:
    """A store, and the arrivals that it reports."""

    def __init__(self, is_awaited: IsAwaited | None = None, *, after_flush: bool = False) -> None:
        self.store: SmallStore = memory_store()
        self.arrivals: list[Arrival] = []
        self.dispatch = Reput(
            self.store.index,
            TagsCodes(),
            on_arrival=self.arrivals.append,
            is_awaited=is_awaited,
            after_flush=after_flush,
        )
        store = self.store
        self.putter = Putter(store.config, store.log, store.queues, self.dispatch, store.flags)

    def put(self, *queues: Queue) -> None:
        self.put_run([draft(*queue) for queue in queues])

    def put_run(self, drafts: list[Draft]) -> None:
        assert all(result.status.stored for result in self.putter.put_run(drafts))

    @property
    def places(self) -> list[tuple[str, int, int]]:
        return [(it.topic, it.queue_id, it.next_offset) for it in self.arrivals]

    def files(self) -> dict[str, bytes]:
        self.store.queues.flush()
        self.store.index.flush()
        return derived_files(self.store.files)


def draft(topic: str = "T", queue_id: int = 0, tag: str = "A", sys_flag: int = 0) -> Draft:
    properties = f"UNIQ_KEY\x01{topic}{queue_id}{tag}\x02TAGS\x01{tag}\x02KEYS\x01k l\x02"
    return Draft(topic, queue_id, b"body", properties.encode(), born_host=HOST, sys_flag=sys_flag)


def test_arrivals_are_reported_only_for_awaited_queues() -> None:
    awaited = {T1}
    told = ArrivalLog(lambda topic, queue_id: (topic, queue_id) in awaited)
    told.put(T0, T1, U0, T1, T0)
    assert told.places == [("T", 1, 1), ("T", 1, 2)]
    assert told.arrivals[0].tags_code == java_hash("A")
    assert told.arrivals[0].properties == draft("T", 1).properties
    told.arrivals.clear()
    told.put(T1, T1, T1)
    assert told.places == [("T", 1, 3), ("T", 1, 4), ("T", 1, 5)]


def test_without_is_awaited_all_arrivals_are_reported() -> None:
    told = ArrivalLog()
    told.put(T0, T1, T0)
    told.put(T0, T0)
    assert told.places == [("T", 0, 1), ("T", 1, 1), ("T", 0, 2), ("T", 0, 3), ("T", 0, 4)]


def test_arrivals_are_reported_from_the_beginning_of_a_wait() -> None:
    awaited: set[Queue] = set()
    told = ArrivalLog(lambda topic, queue_id: (topic, queue_id) in awaited)
    told.put(T0, T0)
    assert told.arrivals == []
    awaited.add(T0)
    told.put(T0)
    awaited.clear()
    told.put(T0, T0)
    assert told.places == [("T", 0, 3)]


def test_where_records_wait_for_the_disk_the_question_waits_with_them() -> None:
    awaited = {T1}
    told = ArrivalLog(lambda topic, queue_id: (topic, queue_id) in awaited, after_flush=True)
    told.put(T0, T0, T1)
    assert told.arrivals == []
    awaited.clear()
    awaited.add(T0)
    told.dispatch.release(told.store.log.max_offset)
    assert told.places == [("T", 0, 1), ("T", 0, 2)]


def test_hidden_records_are_not_reported() -> None:
    told = ArrivalLog(lambda _topic, _queue_id: True)
    told.put_run([draft(sys_flag=HALF), draft(), draft(sys_flag=ROLLBACK)])
    assert told.places == [("T", 0, 1)]


def test_no_arrival_is_reported_after_the_stop() -> None:
    told = ArrivalLog(lambda _topic, _queue_id: True)
    told.dispatch.stop_reporting_arrivals()
    told.put(T0, T0, T1)
    assert told.arrivals == []


# ---- derived files -------------------------------------------------------------------------------

drafts = st.builds(
    draft,
    st.sampled_from(["T", "T", "T", "U"]),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from(["A", "B", "größe", "C C"]),
    st.sampled_from([0, 0, 0, 0, HALF, 0x8, ROLLBACK]),
)
runs = st.lists(st.lists(drafts, min_size=1, max_size=8), min_size=1, max_size=6)


def put_one_by_one(told: ArrivalLog, run: Sequence[Draft]) -> None:
    for each in run:
        assert told.putter.put(each).status.stored


@settings(max_examples=60, deadline=None)
@given(runs)
@example([[draft(), draft(), draft()], [draft(), draft("U")], [draft(), draft(sys_flag=HALF)]])
def test_derived_files_do_not_depend_on_waiters_or_runs(
    sequence: list[list[Draft]],
) -> None:
    unasked, awaited, not_awaited = (
        ArrivalLog(),
        ArrivalLog(lambda *_: True),
        ArrivalLog(lambda *_: False),
    )
    for run in sequence:
        put_one_by_one(unasked, run)
        awaited.put_run(run)
        not_awaited.put_run(run)
    assert awaited.arrivals == unasked.arrivals
    assert not_awaited.arrivals == []
    expected = unasked.files()
    assert awaited.files() == expected
    assert not_awaited.files() == expected
    for told in (awaited, not_awaited):
        assert told.dispatch.dispatched_until == unasked.dispatch.dispatched_until
        assert told.dispatch.dispatched_timestamp == unasked.dispatch.dispatched_timestamp


@pytest.mark.parametrize("run_size", [7, 64, 300])
def test_a_run_may_go_beyond_the_end_of_every_file(run_size: int) -> None:
    """Of the log, of the queue and of the index."""
    count = QUEUE_FILE_ENTRIES + 500
    alone, together = ArrivalLog(), ArrivalLog(lambda *_: False)
    messages = [draft(tag=str(number)) for number in range(count)]
    put_one_by_one(alone, messages)
    for start in range(0, count, run_size):
        together.put_run(messages[start : start + run_size])
    expected = alone.files()
    assert len([name for name in expected if name.startswith("consumequeue/T/0")]) == 2
    assert len([name for name in expected if name.startswith("index")]) > 2
    assert len(alone.store.log.files.files) > 2
    assert together.files() == expected
    queue = together.store.queues.get("T", 0)
    assert queue is not None
    assert (queue.max_offset, queue.next_offset) == (count, count)
