"""Giving up and taking up queues: instructions only, no broker."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.client.consumer.allocation import Averagely, ByConfig
from skylark.client.consumer.process_queue import ProcessQueue
from skylark.client.consumer.rebalance import (
    AwaitHandover,
    AwaitIdle,
    Freeze,
    Instruction,
    Lock,
    Open,
    Persist,
    Rebalance,
    Release,
    Settled,
    StartPull,
    WakeRebalance,
)
from skylark.core.errors import ClientError
from skylark.wire.bodies.common_body import MessageQueue
from tests.unit.client.consumer.samples import queue

NOW_MS = 1_000_000
Q0, Q1, Q2 = queue(0), queue(1), queue(2)
OTHER_BROKER = queue(0, broker="broker-b")


def concurrent(
    *, topic_count_max: int | None = None, topic_size_max: int | None = None
) -> Rebalance:
    return Rebalance(
        "G",
        "me",
        Averagely(),
        topic_count_max=topic_count_max,
        topic_size_max=topic_size_max,
    )


def orderly() -> Rebalance:
    return Rebalance("G", "me", Averagely(), orderly=True)


def take_up(rebalance: Rebalance, *queues: MessageQueue, now_ms: int = NOW_MS) -> None:
    for each in queues:
        rebalance.opened(each, 5, now_ms)


# ---- shares --------------------------------------------------------------------------------------


def test_members_and_queues_are_sorted_before_they_are_shared() -> None:
    rebalance = concurrent()
    assert rebalance.share("T", [Q2, Q0, Q1], ["me", "a"]) == frozenset({Q2})
    assert rebalance.share("T", {Q1, Q0}, ["z", "me"]) == frozenset({Q0})


def test_without_a_route_or_members_a_topic_is_left_alone() -> None:
    assert concurrent().share("T", None, ["me"]) is None
    assert concurrent().share("T", [Q0], None) is None


def test_broadcasting_consumers_have_all_queues() -> None:
    rebalance = Rebalance("G", "me", Averagely(), clustering=False, orderly=True)
    assert rebalance.share("T", [Q1, Q0], None) == frozenset({Q0, Q1})
    assert rebalance.apply("T", [Q1, Q0], NOW_MS) == [Open(Q0, 0), Open(Q1, 0)]  # no locks
    take_up(rebalance, Q0)
    given_up = rebalance.table[Q0]
    assert rebalance.apply("T", [], NOW_MS) == [Release(Q0, given_up)]
    assert rebalance.lock_requests() == []


def test_a_strategy_that_fails_is_heard() -> None:
    class Broken:
        name = "BROKEN"

        def allocate(
            self, group: str, client_id: str, queues: Sequence[MessageQueue], members: Sequence[str]
        ) -> list[MessageQueue]:
            raise ClientError("no idea")

    with pytest.raises(ClientError, match="no idea"):
        Rebalance("G", "me", Broken()).share("T", [Q0], ["me"])


def test_configured_queues_count_for_their_own_topic() -> None:
    rebalance = Rebalance("G", "me", ByConfig([Q0, queue(0, topic="Other")]))
    assert rebalance.share("T", [Q0, Q1], ["me"]) == frozenset({Q0})
    assert rebalance.share("%RETRY%G", [queue(0, topic="%RETRY%G")], ["me"]) == frozenset()


# ---- concurrent ----------------------------------------------------------------------------------


def test_taking_up() -> None:
    rebalance = concurrent()
    assert rebalance.apply("T", {Q1, Q0}, NOW_MS) == [Open(Q0), Open(Q1)]
    assert not rebalance.is_balanced("T", {Q0, Q1})
    [start] = rebalance.opened(Q0, 7, NOW_MS)
    process_queue = rebalance.table[Q0]
    assert start == StartPull(Q0, process_queue, 7, delay_ms=500)
    assert (process_queue.locked, process_queue.last_pull_ms) == (True, NOW_MS)
    assert rebalance.opened(Q0, 9, NOW_MS) == []
    take_up(rebalance, Q1)
    assert rebalance.is_balanced("T", {Q0, Q1})
    assert rebalance.apply("T", {Q1, Q0}, NOW_MS) == []


@pytest.mark.spec("client.8.23")
def test_a_queue_whose_offset_cannot_be_asked_is_tried_again() -> None:
    rebalance = concurrent()
    for _ in range(2):  # the question failed, so nothing was reported
        assert rebalance.apply("T", {Q0}, NOW_MS) == [Open(Q0)]
        assert not rebalance.is_balanced("T", {Q0})
        assert rebalance.table == {}


def test_giving_up() -> None:
    rebalance = concurrent()
    take_up(rebalance, Q0, Q1)
    given_up = rebalance.table[Q0]
    steps = [AwaitIdle(Q0, given_up, wait_ms=500), Open(Q2)]
    assert rebalance.apply("T", {Q1, Q2}, NOW_MS) == steps
    assert (given_up.closing_ms, given_up.dropped) == (NOW_MS, False)  # handlers may finish
    assert rebalance.awaited(Q0, given_up, idle=False) == []
    assert rebalance.apply("T", {Q1, Q2}, NOW_MS + 3_000) == steps
    assert rebalance.awaited(Q0, given_up, idle=True) == [Release(Q0, given_up)]
    assert given_up.dropped
    assert list(rebalance.table) == [Q1]
    assert not rebalance.table[Q1].dropped


def test_handlers_of_a_queue_are_waited_for_three_seconds() -> None:
    rebalance = concurrent()
    take_up(rebalance, Q0)
    given_up = rebalance.table[Q0]
    rebalance.apply("T", (), NOW_MS)
    # Not taken back, because waiting messages will never be handed out.
    assert rebalance.apply("T", {Q0}, NOW_MS + 1_000) == [AwaitIdle(Q0, given_up)]
    assert rebalance.apply("T", (), NOW_MS + 3_001) == [Release(Q0, given_up)]


def test_a_queue_that_is_reset_is_not_waited_for() -> None:
    rebalance = concurrent()
    take_up(rebalance, Q0)
    given_up = rebalance.table[Q0]
    assert rebalance.drop(Q0, NOW_MS) == [Release(Q0, given_up)]


def test_the_first_pull_of_the_only_member_does_not_wait() -> None:
    rebalance = concurrent()
    share = rebalance.share("T", [Q0], ["me"])
    assert share is not None
    assert rebalance.apply("T", share, NOW_MS) == [Open(Q0, 0)]
    [start] = rebalance.opened(Q0, 7, NOW_MS, 0)
    assert start == StartPull(Q0, rebalance.table[Q0], 7, delay_ms=0)
    assert rebalance.table[Q0].offset_checked


def test_a_queue_that_another_member_had_is_taken_up_after_its_release() -> None:
    rebalance = concurrent()
    share = rebalance.share("T", [Q0, Q1, Q2], ["a", "me", "z"])
    assert share == frozenset({Q1})  # without us "a" had the first two
    assert rebalance.apply("T", share, NOW_MS) == [AwaitHandover("a", (Q1,))]
    assert rebalance.apply("T", share, NOW_MS) == []  # the same wait goes on
    assert rebalance.handed_over([Q1], confirmed=True) == [Open(Q1, 0)]
    assert rebalance.handed_over([Q1], confirmed=False) == [Open(Q1, 500)]
    take_up(rebalance, Q1)
    assert rebalance.handed_over([Q1], confirmed=True) == []
    share = rebalance.share("T", [Q0, Q1, Q2], ["a", "me"])  # "z" has gone: no one to ask
    assert share == frozenset({Q2})
    assert rebalance.apply("T", share, NOW_MS)[1:] == [Open(Q2)]
    share = rebalance.share("T", [Q0, Q1, Q2], ["me"])
    assert share is not None
    assert [type(each) for each in rebalance.apply("T", share, NOW_MS)][1:] == [Open, Open]


def test_a_release_that_comes_too_late_opens_nothing() -> None:
    rebalance = concurrent()
    share = rebalance.share("T", [Q0, Q1], ["a", "me"])
    assert share == frozenset({Q1})
    assert rebalance.apply("T", share, NOW_MS) == [AwaitHandover("a", (Q1,))]
    rebalance.apply("T", (), NOW_MS)
    assert rebalance.handed_over([Q1], confirmed=True) == []
    rebalance.apply("T", {Q1}, NOW_MS)
    rebalance.retain_topics((), NOW_MS)
    assert rebalance.handed_over([Q1], confirmed=True) == []


def test_a_queue_without_pulls_is_taken_up_anew() -> None:
    rebalance = concurrent()
    take_up(rebalance, Q0)
    dead = rebalance.table[Q0]
    assert rebalance.apply("T", {Q0}, NOW_MS + 120_000) == []
    assert rebalance.apply("T", {Q0}, NOW_MS + 120_001) == [Release(Q0, dead), Open(Q0)]
    assert dead.dropped
    take_up(rebalance, Q0)
    blocked = rebalance.table[Q0]  # with the loop of the application, which cannot pull
    assert rebalance.apply("T", {Q0}, NOW_MS + 10**9, NOW_MS + 120_000) == []
    steps = [Release(Q0, blocked), Open(Q0)]
    assert rebalance.apply("T", {Q0}, NOW_MS + 10**9, NOW_MS + 120_001) == steps
    pulling = Rebalance("G", "me", Averagely(), push=False)
    take_up(pulling, Q0)
    assert pulling.apply("T", {Q0}, NOW_MS + 10**9) == []


def test_topics_no_longer_subscribed_are_saved_and_given_up() -> None:
    rebalance = concurrent()
    elsewhere = queue(0, topic="Other")
    take_up(rebalance, Q0, elsewhere)
    given_up = rebalance.table[elsewhere]
    assert rebalance.retain_topics({"T"}, NOW_MS) == [AwaitIdle(elsewhere, given_up)]
    assert rebalance.awaited(elsewhere, given_up, idle=True) == [Release(elsewhere, given_up)]
    assert given_up.dropped
    assert list(rebalance.table) == [Q0]


def test_other_topics_are_not_touched() -> None:
    rebalance = concurrent()
    take_up(rebalance, Q0, queue(0, topic="Other"))
    assert rebalance.apply("Other", {queue(0, topic="Other")}, NOW_MS) == []
    assert rebalance.is_balanced("T", {Q0})


@pytest.mark.spec("client.8.26")
def test_an_illegal_offset_moves_the_queue() -> None:
    rebalance = concurrent()
    take_up(rebalance, Q0)
    moved = rebalance.table[Q0]
    assert rebalance.offset_illegal(Q0, moved, 100, NOW_MS) == [
        Freeze(Q0, 100),
        Persist(Q0),
        Release(Q0, moved),
        WakeRebalance(0),
    ]
    assert moved.dropped
    assert rebalance.apply("T", {Q0}, NOW_MS) == [Open(Q0)]
    take_up(rebalance, Q0)
    late = ProcessQueue(NOW_MS)
    assert rebalance.offset_illegal(Q0, late, 7, NOW_MS) == []  # of an owner before this one
    assert late.dropped
    assert not rebalance.table[Q0].dropped


def test_drop_and_drop_all() -> None:
    rebalance = concurrent()
    take_up(rebalance, Q0, Q1)
    first, second = rebalance.table.values()
    assert rebalance.drop(Q0, NOW_MS) == [Release(Q0, first)]
    assert rebalance.drop(Q0, NOW_MS) == []
    rebalance.drop_all()
    assert (second.dropped, rebalance.table) == (True, {})


# ---- changes -------------------------------------------------------------------------------------


def test_changes_are_told_once() -> None:
    rebalance = concurrent(topic_count_max=1_000, topic_size_max=7)
    assert rebalance.settled("T", [Q0, Q1], [Q0, Q1], NOW_MS) is None
    take_up(rebalance, Q0, Q1, queue(0, topic="Other"))
    assert rebalance.settled("T", [Q0, Q1, Q2], [Q0, Q1], NOW_MS) == Settled(
        topic="T",
        sub_version=NOW_MS,
        all_queues=frozenset({Q0, Q1, Q2}),
        my_queues=frozenset({Q0, Q1}),
        count_max=333,
        size_max=2,
    )
    assert rebalance.settled("T", [Q0], [Q0], NOW_MS) is None
    rebalance.apply("T", [], NOW_MS)
    rebalance.apply("T", [], NOW_MS + 3_001)
    changed = rebalance.settled("T", [Q0], [], NOW_MS)
    assert changed is not None
    assert (changed.count_max, changed.size_max) == (1_000, 7)


def test_limits_of_a_topic() -> None:
    rebalance = concurrent(topic_count_max=1)
    take_up(rebalance, Q0, Q1)
    changed = rebalance.settled("T", [Q0, Q1], [Q0, Q1], NOW_MS)
    assert changed is not None
    assert (changed.count_max, changed.size_max) == (1, None)
    rebalance.apply("T", [], NOW_MS)
    rebalance.apply("T", [], NOW_MS + 3_001)
    changed = rebalance.settled("T", [Q0, Q1], [], NOW_MS)
    assert changed is not None
    assert changed.count_max is None  # no queues to share it


# ---- orderly -------------------------------------------------------------------------------------


@pytest.mark.spec("client.8.31")
def test_orderly_queues_are_locked_first() -> None:
    rebalance = orderly()
    assert rebalance.apply("T", {Q1, OTHER_BROKER, Q0}, NOW_MS) == [
        Lock("broker-a", (Q0, Q1)),
        Lock("broker-b", (OTHER_BROKER,)),
    ]
    assert rebalance.locked((Q0, Q1), {Q1}) == [Open(Q1), WakeRebalance(500)]
    assert rebalance.locked((OTHER_BROKER,), {OTHER_BROKER}) == [Open(OTHER_BROKER)]
    assert rebalance.locked((Q0,), []) == [WakeRebalance(500)]


@pytest.mark.spec("client.8.31")
def test_a_queue_is_not_unlocked_while_a_handler_runs() -> None:
    rebalance = orderly()
    take_up(rebalance, Q0)
    given_up = rebalance.table[Q0]
    steps: list[Instruction] = [Persist(Q0), AwaitIdle(Q0, given_up, wait_ms=500)]
    assert rebalance.apply("T", [], NOW_MS + 1_000) == steps
    assert (given_up.is_closing, given_up.dropped) == (True, False)  # its result counts
    assert rebalance.lock_requests() == []
    assert rebalance.awaited(Q0, given_up, idle=False) == []
    assert (given_up.try_unlock_times, given_up.locked) == (1, True)
    assert rebalance.table == {Q0: given_up}
    assert rebalance.apply("T", [], NOW_MS + 20_000) == steps
    assert rebalance.awaited(Q0, given_up, idle=True) == [Release(Q0, given_up, unlock=True)]
    assert (rebalance.table, given_up.locked) == ({}, False)
    assert rebalance.awaited(Q0, given_up, idle=True) == []


def test_waiting_for_a_handler_ends_with_the_lock() -> None:
    rebalance = orderly()
    take_up(rebalance, Q0)
    given_up = rebalance.table[Q0]
    assert rebalance.apply("T", [], NOW_MS + 20_001) == [Release(Q0, given_up, unlock=True)]


def test_a_queue_that_comes_back_while_it_is_given_up() -> None:
    rebalance = orderly()
    take_up(rebalance, Q0)
    given_up = rebalance.table[Q0]
    rebalance.apply("T", [], NOW_MS)
    rebalance.awaited(Q0, given_up, idle=False)
    assert rebalance.apply("T", {Q0}, NOW_MS + 1) == [Persist(Q0), AwaitIdle(Q0, given_up)]
    assert not rebalance.is_balanced("T", {Q0})
    rebalance.awaited(Q0, given_up, idle=True)
    assert rebalance.apply("T", {Q0}, NOW_MS + 2) == [Lock("broker-a", (Q0,))]


def test_locks_are_renewed_or_lost() -> None:
    rebalance = orderly()
    take_up(rebalance, Q0, Q1, Q2, OTHER_BROKER)
    rebalance.table[Q2].dropped = True
    assert rebalance.lock_requests() == [
        Lock("broker-a", (Q0, Q1)),
        Lock("broker-b", (OTHER_BROKER,)),
    ]
    gone = queue(9)
    rebalance.relocked([Q0, Q1, gone], {Q0, gone}, NOW_MS + 500)
    kept, lost, untouched = (rebalance.table[each] for each in (Q0, Q1, OTHER_BROKER))
    assert (kept.locked, kept.last_lock_ms) == (True, NOW_MS + 500)
    assert (lost.locked, lost.last_lock_ms) == (False, NOW_MS)
    assert (untouched.locked, untouched.last_lock_ms) == (True, NOW_MS)
    assert gone not in rebalance.table


# ---- several members -----------------------------------------------------------------------------


class Locks:
    """What the broker knows: the owner of each queue."""

    def __init__(self) -> None:
        self.owners: dict[MessageQueue, str] = {}

    def lock(self, member: str, queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        return [each for each in queues if self.owners.setdefault(each, member) == member]

    def unlock(self, member: str, each: MessageQueue) -> None:
        assert self.owners.pop(each) == member


ROUNDS = st.lists(
    st.tuples(
        st.sets(st.sampled_from(["a", "b", "c"]), min_size=1),  # who is a member
        st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), st.booleans()), max_size=6),
    ),
    max_size=8,
)


@pytest.mark.spec("client.8.31")
@settings(max_examples=200, deadline=None)
@given(ROUNDS)
def test_no_queue_has_two_consumers_whatever_the_order_of_rounds(
    rounds: list[tuple[set[str], list[tuple[str, bool]]]],
) -> None:
    queues = [queue(queue_id) for queue_id in range(5)]
    locks = Locks()
    consumers = {name: Rebalance("G", name, Averagely(), orderly=True) for name in "abc"}

    def run(name: str, members: set[str], idle: bool) -> None:
        rebalance = consumers[name]
        share = rebalance.share("T", queues, members)
        assert share is not None
        pending = rebalance.apply("T", share, NOW_MS)
        while pending:
            match pending.pop(0):
                case Lock(queues=asked):
                    pending += rebalance.locked(asked, locks.lock(name, asked))
                case AwaitIdle(queue=each, process_queue=process_queue):
                    pending += rebalance.awaited(each, process_queue, idle=idle)
                case Release(queue=each, unlock=True):
                    locks.unlock(name, each)
                case Open(queue=each):
                    rebalance.opened(each, 0, NOW_MS)
        for each in rebalance.table:
            assert locks.owners[each] == name

    for members, turns in rounds:
        for name, idle in turns:
            run(name, members, idle)
        consuming = [each for rebalance in consumers.values() for each in rebalance.table]
        assert len(consuming) == len(set(consuming))
    for _ in range(2):  # give up, then take up
        for name in "abc":
            run(name, {"a", "b"}, True)
    assert [len(consumers[name].table) for name in "abc"] == [3, 2, 0]
