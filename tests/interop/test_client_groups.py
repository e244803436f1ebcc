"""Our consumers and Java's in one group, on Apache's servers: who has what, and what is delivered.

Java's members are those of releases 5.5.0 and 4.9.8. Assignments are those that the members
themselves tell when the broker asks them for mqadmin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from skylark.client.consumer.allocation import (
    Allocation,
    Averagely,
    ByCircle,
    ByMachineRoom,
    ConsistentHash,
)
from skylark.wire.bodies.common_body import MessageQueue
from tests.interop.broker_scenarios.scene import Scene, keys
from tests.interop.client_scenarios.stage import (
    JAVA_4,
    JAVA_5,
    OURS,
    Stage,
    running_client,
    wait_keys,
)
from tests.interop.driver import Client, Delivery
from tests.interop.java import run_program
from tests.interop.toolchain import CURRENT, OLD_CLIENT, OLD_SERVERS

pytestmark = pytest.mark.interop

QUEUES = 8
COUNT = 160
#: What a member may have consumed without having told the broker: it does so every 5 s.
UNCOMMITTED_S = 5.0

either_java = pytest.mark.parametrize(
    ("stage", "java_kind"),
    [(CURRENT, JAVA_5), (CURRENT, JAVA_4), (OLD_SERVERS, JAVA_4)],
    indirect=["stage"],
)
both_listeners = pytest.mark.parametrize("listener", ["concurrent", "orderly"])


@pytest.fixture
def wide(stage: Stage) -> Stage:
    """The stage with a topic of more queues."""
    stage.topic += "_wide"
    stage.site.create_topic(stage.topic, QUEUES)
    return stage


class Members:
    """Members of one group, each a scene and a name in it."""

    def __init__(self) -> None:
        self._members: dict[str, Scene] = {}

    def push(self, scene: Scene, name: str, **options: str | int) -> None:
        """Let a member join."""
        scene.push(name, **options)
        self._members[name] = scene

    def got(self) -> list[Delivery]:
        """What all members were given, by time."""
        found = [each for name, scene in self._members.items() for each in scene.got(name)]
        return sorted(found, key=lambda each: each.at)


# Item 21


STRATEGIES: dict[str, Allocation] = {
    strategy.name: strategy
    for strategy in (Averagely(), ByCircle(), ConsistentHash(), ByMachineRoom(["room1", "room2"]))
}


@pytest.mark.spec("client.8.40")
@pytest.mark.parametrize("release", [CURRENT, OLD_CLIENT])
def test_strategies_are_those_of_java(release: str) -> None:
    """Item 21: every share of up to 16 queues among up to 6 members, by four strategies."""
    records = run_program("Allocations", {"queues": 16, "members": 6}, version=release)
    assert len(records) == 16 * 6 * len(STRATEGIES)
    for record in records:
        strategy = STRATEGIES[str(record["strategy"])]
        room = "room1@" if strategy.name == "MACHINE_ROOM" else ""
        queues = [
            MessageQueue(topic="T", broker_name=f"{room}broker-{'ab'[i % 2]}", queue_id=i)
            for i in range(int(str(record["queues"])))
        ]
        members = [f"10.0.0.{i}@{i}" for i in range(1, int(str(record["members"])) + 1)]
        shares = [
            [queue.queue_id for queue in strategy.allocate("G", member, queues, members)]
            for member in members
        ]
        assert shares == record["shares"], record


# Groups that stay as they are


@pytest.mark.spec("client.8.40")
@either_java
@both_listeners
def test_members_share_a_group(wide: Stage, java_kind: str, listener: str) -> None:
    """Two of ours and one of Java's: assignments disjoint and complete, everything once."""
    java, members = wide.scene(java_kind), Members()
    members.push(wide.ours, "a", listener=listener)
    members.push(java, "j", listener=listener)
    members.push(wide.ours, "b", listener=listener, threads="yes")
    owners = wide.wait_shares(QUEUES, 3, 3, 2)
    assert set(owners) == {f"{wide.topic}_{name}" for name in "abj"}
    java.producer("jp")
    wide.ours.producer("op", alone="yes")
    java.send(COUNT, name="jp", prefix="java")
    wide.ours.send(COUNT, name="op", prefix="ours")
    wide.ours.send(COUNT, name="op", how="concurrent", prefix="more")
    wanted = keys("java", COUNT) | keys("ours", COUNT) | keys("more", COUNT)
    got = wait_keys(members.got, wanted)
    assert Counter(each.keys for each in got) == dict.fromkeys(wanted, 1)
    assert {(each.consumer, each.queue) for each in got} == {
        (name, queue) for name, queues in owners.items() for queue in queues
    }
    if listener == "orderly":
        check_order(got)


@both_listeners
def test_an_idle_group_of_ours_repeats_nothing(wide: Stage, listener: str) -> None:
    """A member joins, and one leaves: the next owner of a queue goes on where the last one was."""
    members = Members()
    members.push(wide.ours, "a", listener=listener)
    wide.wait_shares(QUEUES, 8)
    wide.ours.producer("op")
    wide.ours.send(COUNT, name="op", prefix="first")
    wait_keys(members.got, keys("first", COUNT))
    members.push(wide.ours, "b", listener=listener, threads="yes")
    wide.wait_shares(QUEUES, 4, 4)
    wide.ours.stop("a")
    wide.wait_shares(QUEUES, 8)
    wide.ours.send(COUNT, name="op", prefix="second")
    wanted = keys("first", COUNT) | keys("second", COUNT)
    assert Counter(each.keys for each in wait_keys(members.got, wanted)) == Counter(wanted)


def check_order(deliveries: list[Delivery]) -> None:
    """Each queue from its beginning, without gaps; only what was seen may come again."""
    offsets: dict[int, list[int]] = {}
    for each in deliveries:
        offsets.setdefault(each.queue, []).append(each.offset)
    for queue, seen in offsets.items():
        firsts = list(dict.fromkeys(seen))
        assert firsts == list(range(len(firsts))), f"queue {queue}: {seen}"


# Groups that change


class Traffic:
    """Messages from Java and from us while the group changes."""

    def __init__(self, stage: Stage, java: Scene) -> None:
        self._senders = {"java": (java, "jp"), "ours": (stage.ours, "op")}
        self._topic = stage.topic
        for prefix, (scene, name) in self._senders.items():
            scene.producer(name)
            scene.call("keep-sending", name, topic=self._topic, prefix=prefix)

    def end(self) -> set[str]:
        """The keys of what was acknowledged.

        An attempt that failed on a busy machine may have been stored, so that a key is there twice:
        who counts deliveries goes by their places.
        """
        wanted: set[str] = set()
        for prefix, (scene, name) in self._senders.items():
            acknowledged, _failed = scene.call("stop-sending", name)
            assert acknowledged > 100
            wanted |= keys(prefix, acknowledged)
        return wanted


def delivered_again(deliveries: list[Delivery]) -> list[Delivery]:
    """All deliveries but the first of each message."""
    seen: set[tuple[int, int]] = set()
    again = []
    for each in deliveries:
        if (each.queue, each.offset) in seen:
            again.append(each)
        seen.add((each.queue, each.offset))
    return again


def handed_over(deliveries: list[Delivery]) -> list[tuple[int, str, str]]:
    """Queues that went from one member to another, in order of time."""
    owner: dict[int, str] = {}
    found = []
    for each in deliveries:
        before = owner.get(each.queue, each.consumer)
        if before != each.consumer:
            found.append((each.queue, before, each.consumer))
        owner[each.queue] = each.consumer
    return found


@pytest.mark.spec("client.8.40")
@pytest.mark.parametrize(
    ("stage", "java_kind"), [(CURRENT, JAVA_5), (OLD_SERVERS, JAVA_4)], indirect=["stage"]
)
@both_listeners
def test_members_come_and_go(wide: Stage, java_kind: str, listener: str) -> None:
    """Item 31: while messages come, no queue is with two members at a time, and order is kept."""
    java, members = wide.scene(java_kind), Members()
    traffic = Traffic(wide, java)
    members.push(java, "j", listener=listener)
    wide.wait_shares(QUEUES, 8)
    members.push(wide.ours, "a", listener=listener)
    wide.wait_shares(QUEUES, 4, 4)
    members.push(wide.ours, "b", listener=listener, threads="yes")
    wide.wait_shares(QUEUES, 3, 3, 2)
    java.stop("j")
    wide.wait_shares(QUEUES, 4, 4)
    members.push(java, "k", listener=listener)
    wide.wait_shares(QUEUES, 3, 3, 2)
    wide.ours.stop("a")
    wide.wait_shares(QUEUES, 4, 4)
    wanted = traffic.end()
    got = wait_keys(members.got, wanted)
    assert {each.keys for each in got} == wanted
    changes, again = handed_over(got), delivered_again(got)
    if listener == "orderly":
        # A queue is locked: it changes hands as a whole, once for each time the group changed.
        check_order(got)
        assert len(changes) <= 5 * QUEUES
        assert len(again) <= len(changes)
    else:
        # Of a queue that was given away, what was being handled comes again, and not more.
        assert {each.queue for each in again} <= {queue for queue, _, _ in changes}


@pytest.fixture
def doomed(tmp_path: Path) -> Iterator[Callable[[str], Client]]:
    """A process that may be killed."""
    with ExitStack() as stack:
        yield lambda kind: stack.enter_context(running_client(kind, tmp_path / kind))


@pytest.mark.spec("client.8.40")
@pytest.mark.parametrize(
    ("stage", "survivor", "victim"),
    [
        (CURRENT, OURS, JAVA_5),
        (CURRENT, JAVA_5, OURS),
        (CURRENT, JAVA_4, OURS),
        (OLD_SERVERS, OURS, JAVA_4),
    ],
    indirect=["stage"],
)
def test_a_member_is_killed(
    wide: Stage, doomed: Callable[[str], Client], survivor: str, victim: str
) -> None:
    scene, lost = wide.scene(survivor), wide.scene_with(doomed(victim))
    members = Members()
    members.push(scene, "s")
    members.push(lost, "v")
    wide.wait_shares(QUEUES, 4, 4)
    traffic = Traffic(wide, wide.java if survivor == OURS else scene)
    before = len(members.got())
    wide.ours.client.wait(
        lambda: len(members.got()) > before + 200, timeout_s=30, what="200 deliveries"
    )
    lost.client.crash()
    assert wide.wait_shares(QUEUES, 8) == {f"{wide.topic}_s": list(range(QUEUES))}
    wanted = traffic.end()
    got = wait_keys(members.got, wanted)
    assert {each.keys for each in got} == wanted
    # Once each, but for what the dead one had not committed.
    again = {(each.queue, each.offset) for each in delivered_again(got)}
    by_victim = [each for each in got if each.consumer == f"{wide.topic}_v"]
    assert again <= {(each.queue, each.offset) for each in by_victim}
    last = max(each.at for each in by_victim)
    early = [each for each in by_victim if each.at < last - 2 * UNCOMMITTED_S * 1000]
    assert not again & {(each.queue, each.offset) for each in early}
