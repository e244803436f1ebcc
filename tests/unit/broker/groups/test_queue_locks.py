"""Locks on queues: one holder at a time, renewed or lost after a minute."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.groups.queue_locks import LOCK_EXPIRED_MS, QueueLocks
from skylark.wire.bodies.admin_body import QueueLock
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.fastjson import encode_body


def queue(queue_id: int, topic: str = "T") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name="b", queue_id=queue_id)


Q0, Q1, Q2 = queue(0), queue(1), queue(2)


@pytest.mark.spec("broker.13.16")
def test_a_lock_excludes_others_until_a_minute_after_its_last_renewal() -> None:
    locks = QueueLocks()
    assert locks.lock("g", "A", [Q0], 0) == [Q0]
    assert locks.lock("g", "B", [Q0], 1) == []
    assert locks.lock("g", "A", [Q0], 20_000) == [Q0]
    assert locks.lock("g", "B", [Q0], 20_000 + LOCK_EXPIRED_MS) == [], "60 s, not more"
    locks.unlock("g", "B", [Q0])
    assert locks.holder("g", Q0, 20_000 + LOCK_EXPIRED_MS) == "A"
    assert locks.lock("g", "B", [Q0], 20_001 + LOCK_EXPIRED_MS) == [Q0]
    assert locks.lock("g", "A", [Q0], 20_002 + LOCK_EXPIRED_MS) == [], "now it is B's"
    locks.unlock("g", "B", [Q0])
    assert locks.lock("g", "A", [Q0], 20_003 + LOCK_EXPIRED_MS) == [Q0]


def test_the_answer_names_all_that_the_client_holds_of_the_request() -> None:
    locks = QueueLocks()
    locks.lock("g", "A", [Q0, Q1], 0)
    assert locks.lock("g", "B", [Q0, Q2, Q2], 1) == [Q2]
    assert locks.lock("g", "A", [Q1, Q0, Q2], 2) == [Q1, Q0]


def test_groups_topics_and_brokers_are_apart() -> None:
    locks = QueueLocks()
    locks.lock("g", "A", [Q0], 0)
    assert locks.lock("h", "B", [Q0], 0) == [Q0]
    elsewhere = MessageQueue(topic="T", broker_name="other", queue_id=0)
    assert locks.lock("g", "B", [queue(0, "U"), elsewhere], 0) == [queue(0, "U"), elsewhere]


def test_whether_a_group_consumes_in_order() -> None:
    locks = QueueLocks()
    assert not locks.holds_any("g", 0)
    locks.lock("g", "A", [Q0], 0)
    locks.lock("g", "A", [Q1], 10)
    assert locks.holds_any("g", 10 + LOCK_EXPIRED_MS)
    assert not locks.holds_any("g", 11 + LOCK_EXPIRED_MS)
    assert not locks.holds_any("h", 0)
    locks.lock("g", "A", [Q0], 100_000)
    locks.unlock("g", "A", [Q0, Q1])
    assert not locks.holds_any("g", 100_000)


def test_holders_and_ends_are_shown() -> None:
    locks = QueueLocks()
    locks.lock("g", "A", [Q0], 0)
    locks.lock("g", "B", [Q1], 5)
    assert locks.held("g", LOCK_EXPIRED_MS + 1) == [
        QueueLock(message_queue=Q1, client_id="B", expires_ms=5 + LOCK_EXPIRED_MS)
    ]
    assert encode_body(locks.held("g", 5)) == (
        b'[{"clientId":"A","expiresMs":60000,'
        b'"messageQueue":{"brokerName":"b","queueId":0,"topic":"T"}},'
        b'{"clientId":"B","expiresMs":60005,'
        b'"messageQueue":{"brokerName":"b","queueId":1,"topic":"T"}}]'
    )
    assert locks.held("h", 5) == []


def test_unlocking_what_is_not_locked_is_harmless() -> None:
    locks = QueueLocks()
    locks.unlock("g", "A", [Q0])
    locks.lock("g", "A", [Q0], 0)
    locks.unlock("g", "A", [Q1, Q0, Q0])
    assert len(locks) == 0


def test_expired_locks_are_swept_out() -> None:
    locks = QueueLocks()
    locks.lock("g", "A", [Q0], 0)
    locks.lock("g", "A", [Q1], 1)
    locks.lock("h", "A", [Q0], 0)
    locks.sweep(LOCK_EXPIRED_MS + 1)
    assert len(locks) == 1
    assert locks.holder("g", Q1, LOCK_EXPIRED_MS + 1) == "A"


def test_beyond_the_limit_nothing_is_granted(caplog: pytest.LogCaptureFixture) -> None:
    locks = QueueLocks(count_max=2)
    assert locks.lock("g", "A", [Q0, Q1, Q2], 0) == [Q0, Q1]
    assert locks.lock("g", "A", [Q0, Q1, Q2], 1) == [Q0, Q1], "renewing needs no room"
    assert locks.lock("h", "B", [Q0], 2) == []
    assert len(caplog.messages) == 3
    assert caplog.messages[2] == "group h: refused 1 locks of B, the table is full"
    assert locks.lock("h", "B", [Q0], 2 + LOCK_EXPIRED_MS) == [Q0], "expired ones made room"
    assert len(locks) == 1


def test_virtual_time_takes_no_lock_from_online_clients() -> None:
    locks = QueueLocks()
    locks.lock("g", "lost", [Q0], 0)
    locks.lock("g", "offline", [Q1], 100_000)
    locks.lock("g", "online", [Q2], 100_000)
    asked: list[tuple[str, str]] = []

    def is_online(group: str, client_id: str) -> bool:
        asked.append((group, client_id))
        return client_id != "offline"

    locks.refresh(100_000, 7_300_000, is_online)
    assert asked == [("g", "offline"), ("g", "online")], "what had expired before stays so"
    assert [held.client_id for held in locks.held("g", 7_300_000)] == ["online"]


Step = tuple[str, str, list[int], int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["lock", "unlock", "sweep"]),
        st.sampled_from(["A", "B", "C"]),
        st.lists(st.integers(0, 3), max_size=4),
        st.sampled_from([0, 1, 20_000, 40_000, 59_999, 60_000, 60_001]),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(steps=STEPS)
def test_against_a_naive_model(steps: list[Step]) -> None:
    """The model keeps every renewal ever made and derives all answers from that."""
    locks = QueueLocks()
    history: dict[int, tuple[str, int] | None] = {}
    now_ms = 0

    def holder(queue_id: int) -> str | None:
        entry = history.get(queue_id)
        return entry[0] if entry is not None and now_ms - entry[1] <= LOCK_EXPIRED_MS else None

    for action, client, queue_ids, pause_ms in steps:
        now_ms += pause_ms
        queues = [queue(number) for number in queue_ids]
        if action == "lock":
            granted = [n for n in dict.fromkeys(queue_ids) if holder(n) in (None, client)]
            for number in granted:
                history[number] = (client, now_ms)
            assert locks.lock("g", client, queues, now_ms) == [queue(n) for n in granted]
        elif action == "unlock":
            for number in queue_ids:
                entry = history.get(number)
                if entry is not None and entry[0] == client:
                    history[number] = None
            locks.unlock("g", client, queues)
        else:
            locks.sweep(now_ms)
            assert len(locks) == sum(holder(number) is not None for number in range(4))
        for number in range(4):
            assert locks.holder("g", queue(number), now_ms) == holder(number)
        assert locks.holds_any("g", now_ms) == any(holder(number) for number in range(4))
