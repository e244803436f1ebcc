"""Our client on Apache's servers, and with Java's clients: every way to send and to consume.

Servers are of releases 5.5.0 and 4.9.7: there are no published servers of 4.9.8, only its client,
which is the 4.x member of shared groups in ``test_client_groups.py``. The other files of this part
show what the broker does by itself, and brokers that fail.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from tests.interop.broker_scenarios.scene import QUEUES, keys, queue_orders
from tests.interop.client_scenarios.stage import JAVA_4, JAVA_5, OURS, Stage, wait_keys
from tests.interop.driver import ClientError

pytestmark = pytest.mark.interop

COUNT = 100


# Sending


@pytest.mark.parametrize("kind", [OURS, JAVA_5, JAVA_4])
def test_awaited_sends(stage: Stage, kind: str) -> None:
    """What we were told is where our own and Java's consumers find it."""
    reader = stage.scene(kind)
    reader.push("c")
    stage.ours.producer(alone="yes")
    results = stage.ours.send(COUNT, prefix="one", tags="A,B")
    got = reader.wait_got("c", count=COUNT)
    assert {each.keys for each in got} == keys("one", COUNT)
    assert all((each.body, each.topic, each.times) == (each.keys, stage.topic, 0) for each in got)
    assert all(each.tags == "AB"[each.number % 2] for each in got)
    assert all(each.properties["number"] == str(each.number) for each in got)
    assert Counter(each.queue for each in got) == dict.fromkeys(range(QUEUES), COUNT // QUEUES)
    places = {(each.keys, each.queue, each.offset, each.id) for each in got}
    assert places == {tuple(result) for result in results}


@pytest.mark.parametrize("how", ["concurrent", "async", "oneway", "shard", "selector"])
def test_other_sends(stage: Stage, how: str) -> None:
    stage.java.push("c")
    stage.ours.producer()
    results = stage.ours.send(COUNT, how=how, prefix=how)
    got = stage.java.wait_got("c", count=COUNT)
    assert {each.keys for each in got} == keys(how, COUNT)
    if how == "oneway":
        assert results == []
        return
    assert {(each.keys, each.queue, each.offset, each.id) for each in got} == {
        tuple(result) for result in results
    }
    if how in ("shard", "selector"):
        # Java's hash of the key, so a Java producer with the same keys would meet ours.
        assert all(each.queue == java_queue(each.number) for each in got)


def java_queue(number: int) -> int:
    """Where ``SelectMessageQueueByHash`` puts a message: by the hash of ``order-N``."""
    text = f"order-{number % 10}"
    value = 0
    for letter in text:
        value = (31 * value + ord(letter)) & 0xFFFFFFFF
    return abs(value - (1 << 32) if value >> 31 else value) % QUEUES


def test_accumulated_sends(stage: Stage) -> None:
    """Small sends at the same time go as batches, and each has a place of its own."""
    stage.java.push("c")
    stage.ours.producer(linger_ms=20)
    results = stage.ours.send(1_000, how="concurrent", prefix="small")
    assert len({(queue, offset) for _, queue, offset, _ in results}) == 1_000
    got = stage.java.wait_got("c", count=1_000)
    assert {(each.keys, each.queue, each.offset, each.id) for each in got} == {
        tuple(result) for result in results
    }
    # Messages of one request are in one queue, one after the other: not spread in turn.
    neighbours = Counter(after[1] == before[1] for before, after in pairwise(results))
    assert neighbours[True] > 900


def test_batch_send(stage: Stage) -> None:
    stage.java.push("c")
    stage.ours.producer()
    results = stage.ours.send(COUNT, how="batch", prefix="batch", queue=2)
    assert [(key, queue, offset) for key, queue, offset, _ in results] == [
        (f"batch-{number}", 2, number) for number in range(COUNT)
    ]
    got = stage.java.wait_got("c", count=COUNT)
    assert sorted((each.offset, each.keys, each.id) for each in got) == [
        (offset, key, msg_id) for key, _, offset, msg_id in results
    ]


@pytest.mark.parametrize("kind", [JAVA_5, JAVA_4])
@pytest.mark.parametrize("codec", ["ZLIB", "LZ4", "ZSTD"])
def test_compressed_sends(stage: Stage, codec: str, kind: str) -> None:
    """Large bodies, compressed by us, as Java's clients read them; and the other way round."""
    java = stage.scene(kind)
    java.push("c")
    stage.ours.push("o", group=f"{stage.group}_ours")
    stage.ours.producer(compress=codec)
    java.producer("j")
    stage.ours.send(20, prefix="large", size=20_000)
    java.send(20, name="j", prefix="java", size=20_000)
    for got in (java.wait_got("c", count=40), stage.ours.wait_got("o", count=40)):
        assert {each.keys for each in got} == keys("large", 20) | keys("java", 20)
        assert all(each.body == each.keys and each.size >= 20_000 for each in got)


def test_a_first_send_creates_the_topic(stage: Stage) -> None:
    topic = f"{stage.topic}_new"
    stage.ours.producer()
    results = stage.ours.send(20, prefix="new", topic=topic)
    assert len(results) == 20
    stage.java.push("c", topic=topic)
    got = stage.java.wait_got("c", count=20)
    assert {each.keys for each in got} == keys("new", 20)


def test_fast_port(stage: Stage) -> None:
    stage.ours.producer(vip="yes")
    stage.ours.push("c", vip="yes")
    stage.ours.send(20, prefix="vip")
    assert {each.keys for each in stage.ours.wait_got("c", count=20)} == keys("vip", 20)


# Consuming


def in_order(count: int) -> dict[int, list[int]]:
    """Each queue from its beginning, what ``queue_orders`` tells if order was kept."""
    return {queue: list(range(count)) for queue in range(QUEUES)}


@pytest.mark.parametrize("options", [{}, {"threads": "yes"}], ids=["coroutine", "thread"])
def test_push_concurrent(stage: Stage, options: dict[str, str]) -> None:
    """A group of two; Java and we send."""
    stage.ours.push("a", **options)
    stage.ours.push("b", **options)
    stage.wait_shares(QUEUES, 2, 2)
    stage.java.producer()
    stage.ours.producer("o")
    stage.java.send(COUNT, prefix="java")
    stage.ours.send(COUNT, name="o", how="concurrent", prefix="ours")
    got = stage.ours.wait_got("a", "b", count=2 * COUNT)
    assert {each.keys for each in got} == keys("java", COUNT) | keys("ours", COUNT)
    owners = {(each.queue, each.consumer) for each in got}
    assert len(owners) == QUEUES
    assert len({consumer for _, consumer in owners}) == 2


def test_push_orderly(stage: Stage) -> None:
    stage.ours.push("a", listener="orderly")
    stage.ours.push("b", listener="orderly", threads="yes")
    stage.wait_shares(QUEUES, 2, 2)
    stage.java.producer()
    stage.java.send(4 * COUNT, prefix="java")
    got = stage.ours.wait_got("a", "b", count=4 * COUNT)
    assert queue_orders(got) == in_order(COUNT)
    assert stage.ours.call("most-at-once", "a") == stage.ours.call("most-at-once", "b") == 1


@pytest.mark.parametrize("listener", ["concurrent", "orderly"])
def test_push_broadcasting(stage: Stage, listener: str) -> None:
    """Each of ours has everything, and so has Java's in the same group."""
    how = {"model": "BROADCASTING", "listener": listener}
    stage.ours.push("a", **how)
    stage.ours.push("b", **how)
    if listener == "concurrent":  # Java's client locks queues although it broadcasts
        stage.java.push("j", **how)
    stage.java.producer()
    stage.java.send(COUNT, prefix="all")
    everyone = [stage.ours.wait_got("a", count=COUNT), stage.ours.wait_got("b", count=COUNT)]
    if listener == "concurrent":
        everyone.append(stage.java.wait_got("j", count=COUNT))
    for got in everyone:
        assert {each.keys for each in got} == keys("all", COUNT)
        if listener == "orderly":
            assert queue_orders(got) == in_order(COUNT // QUEUES)


def test_lite_pull_shares_queues(stage: Stage) -> None:
    stage.java.producer()
    stage.java.send(COUNT, prefix="lite")
    for name in "ab":
        stage.ours.lite(name)
    stage.wait_shares(QUEUES, 2, 2)
    polls = Counter[str]()
    while sum(polls.values()) < COUNT:
        for name in "ab":
            polls[name] += stage.ours.call("poll", name, timeout_ms=1_000)
    got = stage.ours.wait_got("a", "b", count=COUNT)
    assert {each.keys for each in got} == keys("lite", COUNT)
    assert set(polls) == {"a", "b"}
    # What one has committed, the other goes on after.
    stage.ours.stop("a")
    stage.java.send(20, prefix="more")
    stage.wait_shares(QUEUES, 4)
    while polls["b"] < len([each for each in got if each.consumer.endswith("_b")]) + 20:
        polls["b"] += stage.ours.call("poll", "b", timeout_ms=1_000)
    more = [each.keys for each in stage.ours.got("b") if each.keys.startswith("more")]
    assert sorted(more) == sorted(keys("more", 20))


def test_lite_pull_assigned(stage: Stage) -> None:
    stage.java.producer()
    stage.java.send(COUNT, prefix="lite")
    stage.ours.lite("a", assign="yes")
    count = 0
    while count < COUNT:
        count += stage.ours.call("poll", "a", timeout_ms=1_000)
    got = stage.ours.wait_got("a", count=COUNT)
    assert {each.keys for each in got} == keys("lite", COUNT)
    assert queue_orders(got) == in_order(COUNT // QUEUES)


def test_classic_pull(stage: Stage) -> None:
    stage.java.producer()
    stage.java.send(COUNT, prefix="pull", tags="A,B")
    assert stage.ask("pull", group=stage.group, topic=stage.topic) == COUNT
    got = stage.ours.got("asker")
    assert {each.keys for each in got} == keys("pull", COUNT)
    assert stage.ask("pull", group=stage.group, topic=stage.topic, tags="A") == COUNT // 2
    tagged = stage.ours.got("asker")[COUNT:]
    assert {each.tags for each in tagged} == {"A"}


def test_read_arrow(stage: Stage) -> None:
    """Apache's brokers have no bulk pulls; small pulls bring the same."""
    stage.java.producer()
    sent = stage.java.send(COUNT, prefix="java", tags="A,B")
    stage.ours.producer("o")
    sent += stage.ours.send(COUNT, name="o", prefix="ours", how="concurrent", size=10_000)
    rows = stage.ask("read-arrow", topic=stage.topic)
    places = [(key, queue, offset) for key, queue, offset, _, _ in rows]
    assert sorted(places) == sorted((key, queue, offset) for key, queue, offset, _ in sent)
    assert all(body == key for key, _, _, _, body in rows)
    tagged = stage.ask("read-arrow", topic=stage.topic, tags="A")
    assert {key for key, *_ in tagged} == {f"java-{number}" for number in range(0, COUNT, 2)}


# Filters


def test_tags(stage: Stage) -> None:
    stage.ours.push("c", tags="A || C")
    stage.java.producer()
    stage.java.send(COUNT, prefix="tag", tags="A,B,C,D")
    got = stage.ours.wait_got("c", count=COUNT // 2)
    assert {each.number % 4 for each in got} == {0, 2}


def test_sql(stage: Stage) -> None:
    stage.ours.push("c", sql="number BETWEEN 10 AND 19 OR TAGS = 'D'")
    stage.java.producer()
    stage.java.send(COUNT, prefix="sql", tags="A,B,C,D")
    wanted = {n for n in range(COUNT) if 10 <= n <= 19 or n % 4 == 3}
    got = stage.ours.wait_got("c", count=len(wanted))
    assert {each.number for each in got} == wanted
    with pytest.raises(ClientError, match=r"code 23|SUBSCRIPTION_PARSE_FAILED|parse"):
        stage.ours.push("bad", sql="a > > b", group=f"{stage.group}_bad")


# Namespaces


def test_namespace(stage: Stage) -> None:
    """We see plain names; Java, without the namespace, sees what is on the wire."""
    wire = f"ns%{stage.topic}"
    stage.site.create_topic(wire, QUEUES)
    stage.ours.producer(namespace="ns")
    stage.ours.push("c", namespace="ns", fail_times=1)
    stage.java.push("j", topic=wire, group=f"{stage.group}_java")
    stage.ours.send(20, prefix="named")
    seen = stage.java.wait_got("j", count=20)
    assert {(each.topic, each.keys) for each in seen} == {(wire, key) for key in keys("named", 20)}
    got = stage.ours.wait_got("c", count=40)
    assert {each.topic for each in got} == {stage.topic}
    assert Counter(each.times for each in got) == {0: 20, 1: 20}
    topics = stage.cluster.topics()
    assert f"%RETRY%ns%{stage.group}" in topics
    assert f"%RETRY%{stage.group}" not in topics


def test_goes_on_where_the_group_had_stopped(stage: Stage) -> None:
    """Ours after Java, Java after ours: committed offsets are one language."""
    stage.ours.producer()
    for turn, scene in enumerate((stage.ours, stage.java, stage.ours)):
        name, prefix = f"m{turn}", f"turn{turn}"
        scene.push(name)
        stage.ours.send(COUNT, prefix=prefix)
        got = scene.wait_got(name, count=COUNT)
        assert {each.keys for each in got} == keys(prefix, COUNT)
        scene.stop(name)
    stage.ours.push("last")
    stage.ours.send(1, prefix="end")
    assert [each.keys for each in wait_keys(lambda: stage.ours.got("last"), {"end-0"})] == ["end-0"]
