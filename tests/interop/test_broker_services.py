"""Real clients on our broker: what it does by itself with messages that it has.

Delayed and timed messages, transactions and their checks, messages that fail, requests and replies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import count

import pytest

from skylark.wire.codes import RequestCode
from tests.interop.broker_scenarios.scene import (
    TIMEOUT_S,
    TRANSACTION_CHECKS,
    Scene,
    keys,
    scenario,
)
from tests.interop.broker_scenarios.table import CPP
from tests.interop.cluster import Cluster
from tests.interop.driver import ClientError, Delivery
from tests.interop.java import MqAdmin
from tests.interop.shown import shows

pytestmark = pytest.mark.interop

COMMIT, ROLLBACK, UNKNOWN = "COMMIT_MESSAGE", "ROLLBACK_MESSAGE", "UNKNOW"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
GIVEN_UP_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"


# Delay


@scenario("delay_levels")
def test_delay_levels(scene: Scene) -> None:
    scene.push("c")
    scene.producer()
    scene.send(20, prefix="now")
    scene.wait_got("c", count=20)
    scene.send(20, prefix="three", delay=2)
    scene.send(20, prefix="one", delay=1)
    got = scene.wait_got("c", count=60)
    assert [each.keys.split("-")[0] for each in got] == ["now"] * 20 + ["one"] * 20 + ["three"] * 20
    for prefix, delay_ms in (("one", 1_000), ("three", 3_000)):
        waited = [each.at - each.born for each in got if each.keys.startswith(prefix)]
        assert delay_ms <= min(waited)
        assert max(waited) <= delay_ms + 1_500


@pytest.mark.spec("broker.13.8")
@shows(codes=[RequestCode.RECALL_MESSAGE])
@scenario("timer_messages")
def test_timer_messages(scene: Scene) -> None:
    scene.push("c")
    scene.producer()
    recalled = [timed(scene, f"recalled{number}", "at", 4_000) for number in range(5)]
    for how in ("seconds", "milliseconds", "at"):
        for number in range(5):
            timed(scene, f"{how}{number}", how, 5_000)
    handles = [timed(scene, f"soon{number}", "milliseconds", 2_000) for number in range(5)]
    for handle in recalled:
        assert scene.call("recall", "p", topic=scene.topic, handle=handle)
    got = scene.wait_got("c", count=20)
    assert not any(each.keys.startswith("recalled") for each in got)
    for each in got:
        delay_ms = 2_000 if each.keys.startswith("soon") else 5_000
        assert delay_ms - 1_000 <= each.at - each.born <= delay_ms + 2_000
    with pytest.raises(ClientError, match="CODE: "):
        scene.call("recall", "p", topic=scene.topic, handle=handles[0])
    with pytest.raises(ClientError, match="CODE: 13 "):
        timed(scene, "later", "seconds", 4 * 86_400_000)


def timed(scene: Scene, prefix: str, how: str, delay_ms: int) -> str:
    """Send a message that becomes visible in so long; the handle to recall it."""
    status, handle = scene.call(
        "send-timed", "p", topic=scene.topic, prefix=prefix, how=how, delay_ms=delay_ms
    )
    assert status == "SEND_OK"
    return str(handle)


# Transactions


def decide(scene: Scene, prefix: str, count: int, answer: str, *later: str) -> None:
    """Send messages in transactions; the local answer, and those to checks."""
    for number in range(count):
        status = scene.call(
            *("transaction", "p"),
            topic=scene.topic,
            prefix=prefix,
            first=number,
            answer=answer,
            later=",".join(later) or UNKNOWN,
        )
        assert status == "SEND_OK"


def checks_of(scene: Scene, prefix: str) -> dict[str, list[str | None]]:
    """How often each message was asked about: its TRANSACTION_CHECK_TIMES, one by one."""
    scene.client.collect()
    checks: dict[str, list[str | None]] = {}
    for each in scene.client.checked:
        if each.keys.startswith(f"{scene.topic}_{prefix}-"):
            checks.setdefault(each.keys, []).append(each.times)
    return checks


@pytest.mark.spec("broker.13.18")
@scenario("transaction_answers")
def test_transaction_answers(scene: Scene) -> None:
    scene.push("c")
    scene.producer(transactional="yes")
    committed, rolled_back, open_ = (f"{scene.topic}_{it}" for it in ("commit", "rollback", "open"))
    decide(scene, committed, 10, COMMIT)
    decide(scene, rolled_back, 10, ROLLBACK)
    decide(scene, open_, 10, UNKNOWN)
    got = scene.wait_got("c", count=10)
    assert {each.keys for each in got} == keys(committed, 10)

    # Only the open ones are asked about, until the broker gives up and puts them aside.
    def all_asked() -> bool:
        counts = [len(times) for times in checks_of(scene, "open").values()]
        return counts == [TRANSACTION_CHECKS] * 10

    scene.client.wait(all_asked, timeout_s=60, what="all checks of ten transactions")
    put_aside = pull_until(scene, GIVEN_UP_TOPIC, keys(open_, 10))
    assert len(put_aside) == 10
    expected = [str(time) for time in range(1, TRANSACTION_CHECKS + 1)]
    assert list(checks_of(scene, "open").values()) == [expected] * 10
    assert checks_of(scene, "commit") == checks_of(scene, "rollback") == {}
    assert len(scene.got("c")) == 10


@pytest.mark.spec("broker.13.18")
@scenario("transaction_checks")
def test_transaction_checks(scene: Scene) -> None:
    scene.push("c")
    scene.producer(transactional="yes")
    first, third, never = (f"{scene.topic}_{it}" for it in ("first", "third", "never"))
    decide(scene, first, 10, UNKNOWN, COMMIT)
    decide(scene, third, 10, UNKNOWN, UNKNOWN, UNKNOWN, COMMIT)
    decide(scene, never, 10, UNKNOWN, ROLLBACK)
    got = scene.wait_got("c", count=20, timeout_s=60)
    assert {each.keys for each in got} == keys(first, 10) | keys(third, 10)
    assert list(checks_of(scene, "first").values()) == [["1"]] * 10
    assert list(checks_of(scene, "never").values()) == [["1"]] * 10
    assert list(checks_of(scene, "third").values()) == [["1", "2", "3"]] * 10


# Failed consumption


@pytest.mark.spec("broker.13.17")
@shows(codes=[RequestCode.CONSUMER_SEND_MSG_BACK])
@scenario("retry")
def test_retry(scene: Scene, kind: str) -> None:
    scene.push("c", fail_times=2)
    scene.producer()
    scene.send(20, prefix="again")
    if kind == CPP:
        wait_last_attempts(scene, "again", 20, times=2)
        return
    got = scene.wait_got("c", count=60)
    assert Counter((each.keys, each.times) for each in got) == Counter(
        (key, times) for key in keys("again", 20) for times in range(3)
    )
    again = [each for each in got if each.times]
    first_ids = {each.keys: each.id for each in got if not each.times}
    assert {each.topic for each in again} == {scene.topic}
    assert all(each.id == first_ids[each.keys] for each in again)
    assert {each.properties["RETRY_TOPIC"] for each in again} == {scene.topic}
    assert all(each.properties["ORIGIN_MESSAGE_ID"] for each in again)


def wait_last_attempts(scene: Scene, prefix: str, count: int, *, times: int) -> None:
    """Wait for the last attempt of each message, where those before may be unseen.

    The C++ library reads several messages at once, and when one fails, it sends those after it back
    without having shown them.
    """

    def complete() -> bool:
        last = [each.keys for each in scene.got("c") if each.times == times]
        return sorted(last) == sorted(keys(prefix, count))

    scene.client.wait(complete, timeout_s=TIMEOUT_S, what=f"attempt {times} of all messages")
    assert max(each.times for each in scene.got("c")) == times


def pull_until(scene: Scene, topic: str, wanted: Iterable[str]) -> list[Delivery]:
    """Read a topic, again and again, until the messages with these keys are in it."""
    expected = set(wanted)
    reads = count()
    reader = {"namesrv": scene.site.namesrv.address, "topic": topic}
    found: list[Delivery] = []

    def complete() -> bool:
        name = f"reads{next(reads)}"
        try:
            scene.call("pull", name, group=f"{scene.group}_{name}", **reader)
        except ClientError:
            return False  # there is no such topic yet
        found[:] = [each for each in scene.got(name) if each.keys in expected]
        return {each.keys for each in found} == expected

    scene.client.wait(complete, timeout_s=TIMEOUT_S, what=f"{sorted(expected)} in {topic}")
    return found


@pytest.mark.spec("broker.13.17")
@scenario("dead_letters")
def test_dead_letters(scene: Scene, kind: str, mqadmin: MqAdmin) -> None:
    # With its route known from the start, the client need not look for it 20 s later.
    scene.site.create_topic(f"%RETRY%{scene.group}", 1)
    if kind == CPP:  # it leaves the number of attempts to the broker
        cluster = Cluster(mqadmin, scene.site.namesrv.address)
        address = scene.site.broker.address
        cluster.run("updateSubGroup", "-b", address, "-g", scene.group, "-r", "2", expect="success")
        scene.push("c", fail_times=99)
    else:
        scene.push("c", fail_times=99, retries=2)
    scene.producer()
    scene.send(10, prefix="dead")
    dead = pull_until(scene, f"%DLQ%{scene.group}", keys("dead", 10))
    assert len(dead) == 10
    assert {(each.queue, each.times) for each in dead} == {(0, 3)}
    times = Counter(each.times for each in scene.got("c"))
    if kind == CPP:
        assert set(times) == {0, 1, 2}
    else:
        assert times == {0: 10, 1: 10, 2: 10}


@pytest.mark.spec("broker.13.17")
@scenario("orderly_dead_letters")
def test_orderly_dead_letters(scene: Scene) -> None:
    scene.push("c", listener="orderly", fail_times=99, retries=2)
    scene.producer()
    scene.send(5, prefix="dead", queue=1)
    got = scene.wait_got("c", count=15)
    # Each message holds up its queue until it is given up.
    order = [(each.number, each.times) for each in got]
    assert order == [(number, times) for number in range(5) for times in range(3)]
    dead = pull_until(scene, f"%DLQ%{scene.group}", keys("dead", 5))
    assert sorted(each.number for each in dead) == list(range(5))


# Traces


@scenario("message_trace")
def test_message_trace(scene: Scene) -> None:
    scene.producer(trace="yes")
    scene.push("c", trace="yes")
    sent = {msg_id for _, _, _, msg_id in scene.send(20, prefix="traced")}
    scene.wait_got("c", count=20)
    reads = count()
    reader = {"namesrv": scene.site.namesrv.address, "topic": TRACE_TOPIC}

    def traced() -> bool:
        name = f"traces{next(reads)}"
        scene.call("pull", name, group=f"{scene.group}_{name}", **reader)
        contexts = [line.split("\1") for it in scene.got(name) for line in it.body.split("\2")]
        by_producer = [fields[5] for fields in contexts if fields[0] == "Pub"]
        by_consumer = [fields[2] for fields in contexts if fields[0] == "SubAfter"]
        return sent <= set(by_producer) and sent <= set(by_consumer)

    scene.client.wait(traced, timeout_s=TIMEOUT_S, what="traces of 20 messages")


# Request and reply


@pytest.mark.spec("broker.13.24")
@shows(codes=[RequestCode.SEND_REPLY_MESSAGE_V2])
@scenario("request_reply")
def test_request_reply(scene: Scene) -> None:
    scene.producer("replier")
    scene.push("c", reply=f"{scene.topic}_replier")
    scene.producer()
    replies = [
        scene.call("request", "p", topic=scene.topic, prefix="ask", first=number, timeout_ms=10_000)
        for number in range(20)
    ]
    assert replies == [f"reply to ask-{number}" for number in range(20)]
    assert len(scene.got("c")) == 20
    nobody = f"{scene.topic}_nobody"
    with pytest.raises(ClientError, match="RequestTimeoutException"):
        scene.call("request", "p", topic=nobody, prefix="lost", first=0, timeout_ms=1_000)
