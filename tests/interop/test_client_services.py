"""Our client on Apache's servers: what the broker does by itself with messages that it has.

Delayed and timed messages, transactions and their checks, messages that fail, requests and replies,
and where a group begins.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import count, pairwise

import pytest

from tests.interop.broker_scenarios.scene import QUEUES, TIMEOUT_S, TRANSACTION_CHECKS, Scene, keys
from tests.interop.client_scenarios.stage import Stage, wait_keys
from tests.interop.driver import ClientError, Delivery
from tests.interop.toolchain import CURRENT

pytestmark = pytest.mark.interop

COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"

only_current = pytest.mark.parametrize("stage", [CURRENT], indirect=True)


# Delay


def test_delay_levels(stage: Stage) -> None:
    stage.java.push("c")
    stage.ours.producer()
    stage.ours.send(20, prefix="now")
    stage.java.wait_got("c", count=20)
    stage.ours.send(20, prefix="three", delay=2)
    stage.ours.send(20, prefix="one", delay=1)
    got = stage.java.wait_got("c", count=60)
    assert [each.keys.split("-")[0] for each in got] == ["now"] * 20 + ["one"] * 20 + ["three"] * 20
    for prefix, delay_ms in (("one", 1_000), ("three", 3_000)):
        waited = [each.at - each.born for each in got if each.keys.startswith(prefix)]
        assert delay_ms <= min(waited)
        assert max(waited) <= delay_ms + 2_500


@only_current
def test_timed_messages(stage: Stage) -> None:
    """For any time, and recalled: brokers have it since 5.0."""
    stage.ours.push("c")
    stage.ours.producer()
    recalled = [timed(stage.ours, f"recalled{number}", "at", 4_000) for number in range(5)]
    for number in range(5):
        timed(stage.ours, f"at{number}", "at", 5_000)
        timed(stage.ours, f"in{number}", "milliseconds", 5_000)
    soon = [timed(stage.ours, f"soon{number}", "milliseconds", 2_000) for number in range(5)]
    for handle in recalled:
        assert stage.ours.call("recall", "p", topic=stage.topic, handle=handle)
    got = stage.ours.wait_got("c", count=15)
    assert not any(each.keys.startswith("recalled") for each in got)
    for each in got:
        delay_ms = 2_000 if each.keys.startswith("soon") else 5_000
        assert delay_ms - 1_000 <= each.at - each.born <= delay_ms + 2_500
    with pytest.raises(ClientError, match="BrokerError"):
        stage.ours.call("recall", "p", topic=stage.topic, handle=soon[0])
    with pytest.raises(ClientError, match="recall handle is invalid"):
        stage.ours.call("recall", "p", topic=stage.topic, handle="nonsense")


def timed(scene: Scene, prefix: str, how: str, delay_ms: int) -> str:
    """Send a message that becomes visible in so long; the handle to recall it."""
    status, handle = scene.call(
        "send-timed", "p", topic=scene.topic, prefix=prefix, how=how, delay_ms=delay_ms
    )
    assert status == "SEND_OK"
    return str(handle)


# Transactions


def decide(scene: Scene, prefix: str, size: int, answer: str, later: str, **how: str) -> None:
    """Send messages in transactions; the local answer, and those to checks."""
    for number in range(size):
        status = scene.call(
            *("transaction", "p"),
            topic=scene.topic,
            prefix=prefix,
            first=number,
            answer=answer,
            later=later,
            **how,
        )
        assert status == "SEND_OK"


def checks_of(scene: Scene, prefix: str) -> dict[str, list[str | None]]:
    """How often each message was asked about: its TRANSACTION_CHECK_TIMES, one by one."""
    scene.client.collect()
    checks: dict[str, list[str | None]] = {}
    for each in scene.client.checked:
        if each.keys.startswith(f"{prefix}-"):
            checks.setdefault(each.keys, []).append(each.times)
    return checks


def test_transaction_answers(stage: Stage) -> None:
    """What the listener or the end of the block says at once."""
    stage.java.push("c")
    stage.ours.producer()
    names = {
        name: f"{stage.topic}_{name}" for name in ("commit", "rollback", "block", "back", "raised")
    }
    decide(stage.ours, names["commit"], 10, COMMIT, UNKNOWN)
    decide(stage.ours, names["rollback"], 10, ROLLBACK, UNKNOWN)
    decide(stage.ours, names["block"], 10, COMMIT, UNKNOWN, block="yes")
    decide(stage.ours, names["back"], 10, ROLLBACK, UNKNOWN, block="yes")
    decide(stage.ours, names["raised"], 3, "RAISE", COMMIT)
    wanted = keys(names["commit"], 10) | keys(names["block"], 10) | keys(names["raised"], 3)
    got = stage.java.wait_got("c", count=23)
    assert {each.keys for each in got} == wanted
    # A listener that raises leaves it open, and the check finds the truth.
    assert set(checks_of(stage.ours, names["raised"])) == keys(names["raised"], 3)
    for name in ("commit", "rollback", "block", "back"):
        assert checks_of(stage.ours, names[name]) == {}


def test_transaction_checks(stage: Stage) -> None:
    stage.java.push("c")
    stage.ours.producer()
    first, third, never, open_ = (
        f"{stage.topic}_{name}" for name in ("first", "third", "never", "open")
    )
    decide(stage.ours, first, 10, UNKNOWN, COMMIT)
    decide(stage.ours, third, 10, UNKNOWN, f"{UNKNOWN},{UNKNOWN},{COMMIT}", block="yes")
    decide(stage.ours, never, 10, UNKNOWN, ROLLBACK)
    decide(stage.ours, open_, 5, UNKNOWN, UNKNOWN)
    got = stage.java.wait_got("c", count=20, timeout_s=60)
    assert {each.keys for each in got} == keys(first, 10) | keys(third, 10)
    assert list(checks_of(stage.ours, first).values()) == [["1"]] * 10
    assert list(checks_of(stage.ours, third).values()) == [["1", "2", "3"]] * 10
    assert list(checks_of(stage.ours, never).values()) == [["1"]] * 10
    expected = [str(time) for time in range(1, TRANSACTION_CHECKS + 1)]

    def given_up() -> bool:
        return list(checks_of(stage.ours, open_).values()) == [expected] * 5

    stage.ours.client.wait(given_up, timeout_s=60, what="all checks of five transactions")
    assert all(
        each.id is not None and each.topic == stage.topic
        for each in stage.ours.client.checked
        if each.keys.startswith(stage.topic)
    )
    assert len(stage.java.got("c")) == 20


# Failed consumption


def pull_until(stage: Stage, topic: str, wanted: set[str]) -> list[Delivery]:
    """What is in a topic as soon as all these messages are, read by Java."""
    found: list[Delivery] = []
    reads = count()
    namesrv = stage.site.namesrv.address

    def complete() -> bool:
        name = f"reader{next(reads)}"
        reader = {"namesrv": namesrv, "group": f"{stage.group}_{name}", "topic": topic}
        with suppress(ClientError):  # the broker makes the topic for the first of them
            stage.java.call("pull", name, **reader)
        found[:] = stage.java.got(name)
        return {each.keys for each in found} >= wanted

    stage.java.client.wait(complete, timeout_s=TIMEOUT_S, what=f"{len(wanted)} in {topic}")
    return [each for each in found if each.keys in wanted]


@pytest.mark.parametrize("options", [{}, {"threads": "yes"}], ids=["coroutine", "thread"])
def test_retries_and_dead_letters(stage: Stage, options: dict[str, str]) -> None:
    stage.ours.push("c", fail_times=99, retries=2, **options)
    stage.java.producer()
    stage.java.send(10, prefix="dead")
    dead = pull_until(stage, f"%DLQ%{stage.group}", keys("dead", 10))
    assert {(each.queue, each.times) for each in dead} == {(0, 3)}
    assert Counter(each.keys for each in dead) == dict.fromkeys(keys("dead", 10), 1)
    got = stage.ours.wait_got("c", count=30)
    assert Counter(each.times for each in got) == {0: 10, 1: 10, 2: 10}
    assert {each.topic for each in got} == {stage.topic}
    assert all(each.id == first.id for each in got for first in got if each.keys == first.keys)


def test_dead_at_once(stage: Stage) -> None:
    stage.ours.push("c", dead="yes")
    stage.java.producer()
    stage.java.send(10, prefix="hopeless")
    dead = pull_until(stage, f"%DLQ%{stage.group}", keys("hopeless", 10))
    assert len(dead) == 10
    assert len(stage.ours.wait_got("c", count=10)) == 10


@pytest.mark.spec("client.8.40")
def test_part_of_a_batch_is_sent_back(stage: Stage) -> None:
    """Item 28: three messages, the first accepted: two come again, the offset is past all."""
    stage.java.producer()
    for prefix in "abc":  # one batch: all of one queue, there before the consumer
        stage.java.send(1, prefix=prefix, queue=1)
    stage.ours.push("c", batch=3, ack_index=0)
    got = stage.ours.wait_got("c", count=5)
    assert Counter((each.keys, each.times) for each in got) == Counter(
        {("a-0", 0): 1, ("b-0", 0): 1, ("c-0", 0): 1, ("b-0", 1): 1, ("c-0", 1): 1}
    )
    stage.ours.stop("c")
    assert stage.committed()[1] == 3
    # Who broadcasts sends nothing back.
    group = f"{stage.group}_broadcast"
    stage.ours.push("d", batch=3, ack_index=0, model="BROADCASTING", group=group)
    got = stage.ours.wait_got("d", count=3)
    assert [each.times for each in got] == [0, 0, 0]
    stage.ours.stop("d")
    assert stage.ask("pull", group=f"{group}_reader", topic=f"%RETRY%{group}") == 0


@pytest.mark.spec("client.8.40")
def test_orderly_failures(stage: Stage) -> None:
    """Item 31: a failure holds up its queue for a second; the third one is a dead letter."""
    stage.ours.push("c", listener="orderly", fail_times=99, retries=2, suspend_ms=1_000)
    stage.java.producer()
    stage.java.send(3, prefix="dead", queue=1)
    got = stage.ours.wait_got("c", count=9)
    assert [(each.number, each.times) for each in got] == [
        (number, times) for number in range(3) for times in range(3)
    ]
    waits = [after.at - before.at for before, after in pairwise(got)]
    for index, waited in enumerate(waits):
        if index % 3 != 2:  # between two tries of one message
            assert 950 <= waited <= 2_500, waits
    dead = pull_until(stage, f"%DLQ%{stage.group}", keys("dead", 3))
    assert sorted(each.number for each in dead) == [0, 1, 2]
    assert stage.ours.call("most-at-once", "c") == 1


# Requests


def test_request_and_reply(stage: Stage) -> None:
    """We ask and Java answers; Java asks and we answer; we ask ourselves."""
    java, ours = stage.java, stage.ours
    topics = {name: f"{stage.topic}_{name}" for name in ("java", "ours")}
    for topic in topics.values():
        stage.site.create_topic(topic, QUEUES)
    for prefix, scene in (("j", java), ("o", ours)):  # names make client ids, which are unique
        scene.producer(f"{prefix}_replier")
        scene.producer(f"{prefix}_asker")
    for prefix, scene, topic in (("j", java, "java"), ("o", ours, "ours")):
        replier = f"{stage.topic}_{prefix}_replier"
        group = f"{stage.group}_{prefix}"
        scene.push(f"{prefix}c", topic=topics[topic], group=group, reply=replier)
    for asker, scene, topic in (
        ("o_asker", ours, "java"),
        ("j_asker", java, "ours"),
        ("o_asker", ours, "ours"),
    ):
        replies = [
            scene.call(
                *("request", asker),
                topic=topics[topic],
                prefix="ask",
                first=number,
                timeout_ms=15_000,
            )
            for number in range(10)
        ]
        assert replies == [f"reply to ask-{number}" for number in range(10)]
    assert (len(java.got("jc")), len(ours.got("oc"))) == (10, 20)
    with pytest.raises(ClientError, match="RequestReplyTimeoutError"):
        ours.call("request", "o_asker", topic=stage.topic, prefix="lost", first=0, timeout_ms=1_000)


# Where a group begins


@pytest.mark.spec("client.8.40")
def test_where_a_group_begins(stage: Stage) -> None:
    """Item 23: what the broker says about a new group, and what it has stored."""
    stage.ours.producer()
    stage.ours.send(20, prefix="old", queue=0)
    # The broker still has the queue from its beginning, and answers 0: so does Java's client.
    for name, scene, more in (("l", stage.ours, {"from": "LAST"}), ("j", stage.java, {})):
        scene.push(name, group=f"{stage.group}_{name}", **more)
        assert {each.keys for each in scene.wait_got(name, count=20)} == keys("old", 20)
    # A stored offset wins over the wish to begin with the first.
    stored = f"{stage.group}_stored"
    stage.commit(0, 5, stored)
    stage.ours.push("s", group=stored)
    got = stage.ours.wait_got("s", count=15)
    assert sorted(each.offset for each in got) == list(range(5, 20))


@pytest.mark.spec("client.8.40")
def test_an_offset_that_does_not_exist(stage: Stage) -> None:
    """Item 26: the broker answers 21 with where to go on, which is saved, and consuming goes on."""
    stage.ours.producer()
    stage.ours.send(20, prefix="old", queue=0)
    stage.commit(0, 10_000)
    stage.ours.push("c")
    stage.ours.client.wait(
        lambda: stage.committed()[0] == 20, timeout_s=TIMEOUT_S, what="the corrected offset"
    )
    stage.ours.send(20, prefix="new", queue=0)
    got = wait_keys(lambda: stage.ours.got("c"), keys("new", 20))
    assert {each.keys for each in got} == keys("new", 20)
    stage.ours.stop("c")
    assert stage.committed()[0] == 40
