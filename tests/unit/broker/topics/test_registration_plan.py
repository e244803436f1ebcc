"""What is told to which name server, and when: on plain numbers."""

from __future__ import annotations

from skylark.broker.topics.registration_plan import ANSWER_MS, Announcement, RegistrationPlan
from skylark.wire.bodies.config import TopicConfig

A, B = "10.0.0.1:9876", "10.0.0.2:9876"
START = 1_000_000


def topic(name: str) -> TopicConfig:
    return TopicConfig(topic_name=name)


def whole(address: str, *, ask_first: bool = False) -> Announcement:
    return Announcement(address=address, ask_first=ask_first)


def part(address: str, *names: str) -> Announcement:
    return Announcement(address=address, topics=tuple(map(topic, names)))


def begun(*addresses: str, period_ms: int = 30_000) -> RegistrationPlan:
    """A plan whose name servers have all taken the whole table."""
    plan = RegistrationPlan(period_ms=period_ms)
    assert plan.set_servers(addresses, START) == []
    for announcement in plan.due(START):
        plan.done(announcement, START, succeeded=True)
    assert plan.registered == list(addresses)
    return plan


def test_the_whole_table_goes_to_all_at_start_then_after_10_s_then_every_period() -> None:
    plan = RegistrationPlan(period_ms=30_000)
    plan.set_servers([A, B], START)
    assert plan.states == {A: None, B: None}
    assert plan.due(START) == [whole(A), whole(B)]
    assert plan.due(START) == []  # under way
    assert plan.next_due_ms() is None
    for announcement in (whole(A), whole(B)):
        assert plan.done(announcement, START + 40, succeeded=True)
    for round_ms in (10_000, 40_000, 70_000):
        assert plan.next_due_ms() == START + round_ms
        assert plan.due(START + round_ms - 1) == []
        assert plan.due(START + round_ms) == [whole(A), whole(B)]
        for announcement in (whole(A), whole(B)):
            assert not plan.done(announcement, START + round_ms + 40, succeeded=True)


def test_rounds_keep_their_rhythm_when_one_comes_late() -> None:
    plan = begun(A, period_ms=10_000)
    assert plan.due(START + 33_333) == [whole(A)]
    plan.done(whole(A), START + 33_400, succeeded=True)
    assert plan.next_due_ms() == START + 40_000


def test_a_changed_topic_is_announced_alone_and_at_once() -> None:
    plan = begun(A, B)
    plan.topics_changed([topic("T")])
    assert plan.due(START + 1) == [part(A, "T"), part(B, "T")]
    plan.done(part(A, "T"), START + 2, succeeded=True)
    assert plan.due(START + 2) == []
    assert plan.next_due_ms() == START + 10_000


def test_what_changes_while_an_announcement_is_under_way_follows_it_together() -> None:
    plan = begun(A)
    plan.topics_changed([topic("T")])
    assert plan.due(START + 1) == [part(A, "T")]
    plan.topics_changed([topic("U")])
    plan.topics_changed([topic("V"), topic("W")])
    plan.topics_deleted(["V", "unheard of"])
    assert plan.due(START + 2) == []
    plan.done(part(A, "T"), START + 3, succeeded=True)
    assert plan.due(START + 3) == [part(A, "U", "W")]


def test_single_topics_are_not_announced_before_the_whole_table() -> None:
    plan = RegistrationPlan(period_ms=30_000)
    plan.set_servers([A], START)
    plan.topics_changed([topic("T")])
    assert plan.due(START) == [whole(A)]  # T is in it
    plan.done(whole(A), START + 5, succeeded=True)
    assert plan.due(START + 5) == []


def test_a_failure_is_repeated_after_growing_pauses_and_delays_no_other_server() -> None:
    plan = RegistrationPlan(period_ms=30_000)
    plan.set_servers([A, B], START)
    plan.due(START)
    plan.done(whole(A), START, succeeded=True)
    now, pauses = START, []
    assert plan.done(whole(B), now, succeeded=False)
    for _ in range(6):
        plan.topics_changed([topic("T")])
        assert plan.due(now) in ([part(A, "T")], [whole(A)])
        plan.done(whole(A), now, succeeded=True)
        due = plan._servers[B].whole_due_ms
        pauses.append(due - now)
        now = due
        assert whole(B) in plan.due(now)
        assert not plan.done(whole(B), now, succeeded=False)  # no news
        plan.done(whole(A), now, succeeded=True)
    assert pauses == [1_000, 2_000, 4_000, 8_000, 10_000, 10_000]
    assert plan.states == {A: True, B: False}
    assert plan.registered == [A]
    plan.due(now + 10_000)
    assert plan.done(whole(B), now + 10_000, succeeded=True)  # news
    plan.due(now + 40_000)
    plan.done(whole(B), now + 40_000, succeeded=False)
    assert plan._servers[B].whole_due_ms == now + 41_000  # pauses begin anew


def test_a_refused_single_topic_is_followed_by_the_whole_table_at_once() -> None:
    plan = begun(A)
    plan.topics_changed([topic("T")])
    plan.due(START + 1)
    assert plan.done(part(A, "T"), START + 2, succeeded=False)
    assert plan.due(START + 2) == [whole(A)]
    plan.done(whole(A), START + 3, succeeded=False)
    assert plan.due(START + 3) == []
    assert plan.next_due_ms() == START + 3 + 2_000


def test_a_lost_connection_makes_the_whole_table_due() -> None:
    plan = begun(A, B)
    assert plan.connection_lost(A, START + 100)
    assert not plan.connection_lost(A, START + 100)  # no news
    assert plan.states == {A: False, B: True}
    assert plan.due(START + 100) == [whole(A)]
    assert not plan.connection_lost(A, START + 200)  # what is under way finds out
    assert not plan.connection_lost("10.9.9.9:1", START)


def test_name_servers_come_and_go_at_run_time() -> None:
    plan = begun(A)
    plan.topics_changed([topic("T")])
    plan.due(START + 1)
    assert plan.set_servers([B], START + 2) == [A]
    assert plan.due(START + 2) == [whole(B)]
    assert not plan.done(part(A, "T"), START + 3, succeeded=False)  # nobody cares any more
    assert plan.states == {B: None}
    assert plan.set_servers([], START + 4) == [B]
    assert plan.next_due_ms() is None


def test_a_name_server_that_returns_during_an_announcement_gets_another() -> None:
    plan = begun(A)
    plan.topics_changed([topic("T")])
    plan.due(START + 1)
    plan.set_servers([], START + 2)
    plan.set_servers([A], START + 3)
    assert plan.due(START + 3) == []  # one at a time
    plan.done(part(A, "T"), START + 4, succeeded=True)
    assert plan.due(START + 4) == [whole(A)]


def test_new_permissions_are_announced_with_the_whole_table_now() -> None:
    plan = begun(A, B)
    plan.all_changed(START + 500)
    assert plan.due(START + 500) == [whole(A), whole(B)]


def test_without_force_a_name_server_is_asked_first_unless_it_cannot_know() -> None:
    plan = RegistrationPlan(period_ms=30_000)
    plan.set_servers([A], START)
    assert plan.due(START, ask_first=True) == [whole(A)]  # the first time it is told
    plan.done(whole(A), START, succeeded=True)
    assert plan.due(START + 10_000, ask_first=True) == [whole(A, ask_first=True)]
    plan.done(whole(A), START + 10_000, succeeded=True)
    plan.topics_changed([topic("T")])
    assert plan.due(START + 40_000, ask_first=True) == [whole(A)]
    plan.done(whole(A), START + 40_000, succeeded=True)
    plan.connection_lost(A, START + 50_000)
    assert plan.due(START + 50_000, ask_first=True) == [whole(A)]


def test_a_change_is_announced_when_all_servers_that_answer_have_it() -> None:
    plan = RegistrationPlan(period_ms=30_000)
    plan.set_servers([A, B], START)
    assert not plan.announced_to_all(0, START)
    plan.due(START)
    plan.done(whole(A), START, succeeded=True)
    assert not plan.announced_to_all(0, START)
    plan.done(whole(B), START, succeeded=False)
    assert plan.announced_to_all(0, START)  # B does not answer
    plan.topics_changed([topic("T")])
    assert not plan.announced_to_all(plan.change_count, START)
    plan.due(START + 1)
    plan.topics_changed([topic("U")])  # too late for what is under way
    plan.done(part(A, "T"), START + 2, succeeded=True)
    assert plan.announced_to_all(1, START)
    assert not plan.announced_to_all(2, START)
    plan.due(START + 2)
    plan.done(part(A, "U"), START + 3, succeeded=True)
    assert plan.announced_to_all(2, START)
    plan.connection_lost(A, START + 4)
    assert not plan.announced_to_all(2, START)  # it has forgotten everything
    plan.all_changed(START + 4)
    plan.due(START + 4)
    plan.done(whole(A), START + 5, succeeded=True)
    assert plan.announced_to_all(plan.change_count, START)


def test_a_server_that_takes_long_to_answer_is_not_waited_for() -> None:
    plan = RegistrationPlan(period_ms=30_000)
    plan.set_servers([A, B], START)
    plan.due(START)
    plan.done(whole(A), START, succeeded=True)
    assert plan.overdue_ms(START) == START + ANSWER_MS
    assert plan.overdue_ms(START + ANSWER_MS) is None
    assert not plan.announced_to_all(0, START + ANSWER_MS - 1)
    assert plan.announced_to_all(0, START + ANSWER_MS)
    plan.topics_changed([topic("T")])
    plan.due(START + 1)
    assert not plan.announced_to_all(1, START + ANSWER_MS)  # A is only asked since a moment
    plan.done(part(A, "T"), START + 2, succeeded=True)
    assert plan.announced_to_all(1, START + ANSWER_MS)
    plan.done(whole(B), START + 9_000, succeeded=True)
    assert plan.overdue_ms(START) is None


def test_what_an_answer_lacks_is_sought_soon_and_no_later_than_the_next_round() -> None:
    plan = begun(A, B)
    plan.seek(A, START)
    assert plan.next_due_ms() == START + 3_000
    assert plan.due(START + 3_000) == [whole(A)]
    plan.done(whole(A), START + 3_001, succeeded=True)
    assert plan.next_due_ms() == START + 10_000
    plan.seek(B, START + 9_999)
    assert plan.next_due_ms() == START + 10_000
    plan.seek("10.0.0.3:9876", START)  # dropped meanwhile
    assert plan.due(START + 9_999) == []
