"""Real clients on our broker: groups whose members come, leave and die, and binary headers."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from skylark.wire.codes import RequestCode
from tests.interop.broker_scenarios.scene import (
    TIMEOUT_S,
    Scene,
    Site,
    keys,
    running_client,
    scenario,
)
from tests.interop.broker_scenarios.table import CLIENTS
from tests.interop.driver import Client
from tests.interop.shown import shows

pytestmark = pytest.mark.interop

QUEUES = 8
#: Clients look at their group by themselves every 20 s; the broker's notice must be quicker.
NOTICED_S = 10.0


class Rounds:
    """One message to each queue, again and again: who is given it has the queue."""

    def __init__(self, sender: Scene, members: dict[str, Scene]) -> None:
        self._sender = sender
        self._members = members
        self._numbers = count()

    def owners(self) -> dict[int, str]:
        """Who has which queue, by one message to each that somebody was given."""
        prefix = f"round{next(self._numbers)}"
        for queue in range(QUEUES):
            self._sender.send(1, queue=queue, prefix=prefix)
        owners: dict[int, str] = {}

        def complete() -> bool:
            for name, scene in self._members.items():
                for each in scene.got(name):
                    if each.keys == f"{prefix}-0":
                        owners[each.queue] = name
            return len(owners) == QUEUES

        self._sender.client.wait(complete, timeout_s=30, what="one message of each queue")
        return owners

    def wait_shares(self, *shares: int, within_s: float) -> dict[int, str]:
        """The owners as soon as the members have so many queues, largest first."""
        began = time.monotonic()
        owners: dict[int, str] = {}

        def shared() -> bool:
            owners.clear()
            owners.update(self.owners())
            return sorted(Counter(owners.values()).values(), reverse=True) == list(shares)

        self._sender.client.wait(shared, timeout_s=60, what=f"queues shared {shares}")
        assert time.monotonic() - began <= within_s, owners
        return owners


@pytest.fixture
def wide(scene: Scene, site: Site) -> Scene:
    """The scene with a topic of more queues."""
    scene.topic += "_wide"
    site.create_topic(scene.topic, QUEUES)
    return scene


@pytest.mark.spec("broker.13.15")
@scenario("consumer_joins_and_leaves")
def test_consumer_joins_and_leaves(wide: Scene) -> None:
    rounds = Rounds(wide, dict.fromkeys(("a", "b", "c"), wide))
    wide.producer()
    wide.push("a")
    rounds.wait_shares(8, within_s=NOTICED_S)
    wide.push("b")
    rounds.wait_shares(4, 4, within_s=NOTICED_S)
    wide.push("c")
    rounds.wait_shares(3, 3, 2, within_s=NOTICED_S)
    wide.stop("b")
    assert set(rounds.wait_shares(4, 4, within_s=NOTICED_S).values()) == {"a", "c"}
    wide.stop("a")
    assert set(rounds.wait_shares(8, within_s=NOTICED_S).values()) == {"c"}


@pytest.mark.spec("broker.13.15")
@scenario("consumer_is_killed")
def test_consumer_is_killed(wide: Scene, kind: str, tmp_path: Path) -> None:
    with running_client(kind, tmp_path) as victim:
        doomed = Scene(victim, wide.site, wide.topic)
        doomed.group = wide.group
        rounds = Rounds(wide, {"a": wide, "doomed": doomed})
        wide.producer()
        wide.push("a")
        doomed.push("doomed")
        rounds.wait_shares(4, 4, within_s=NOTICED_S)
        wide.send(80, prefix="before")
        victim.crash()
        wide.send(80, prefix="after")
        owners = rounds.wait_shares(8, within_s=NOTICED_S)
        assert set(owners.values()) == {"a"}

        # Nothing is lost; what the dead one had not committed comes again.
        def missing() -> set[str]:
            given = {each.keys for each in [*wide.got("a"), *doomed.got("doomed")]}
            return (keys("before", 80) | keys("after", 80)) - given

        wide.client.wait(lambda: not missing(), timeout_s=TIMEOUT_S, what="160 messages")


@shows(codes=[RequestCode.SEND_MESSAGE])
def test_clients_share_a_group(site: Site, client_of: Callable[[str], Client]) -> None:
    """Members of three kinds work out the same shares, and read what each of them sent."""
    site.create_topic("Shared", QUEUES)
    with ExitStack() as stack:
        members = {}
        for kind in CLIENTS:
            members[kind] = Scene(client_of(kind), site, "Shared")
            stack.callback(members[kind].close)
            members[kind].producer(f"p-{kind}")
            members[kind].push(kind)
        sender = Scene(client_of(next(iter(CLIENTS))), site, "Shared")
        stack.callback(sender.close)
        sender.producer()
        Rounds(sender, members).wait_shares(3, 3, 2, within_s=30)
        for kind, member in members.items():
            member.send(80, name=f"p-{kind}", prefix=kind)
        wanted = set[str]().union(*(keys(kind, 80) for kind in CLIENTS))

        def given() -> list[str]:
            every = [each for kind, member in members.items() for each in member.got(kind)]
            return [each.keys for each in every if not each.keys.startswith("round")]

        sender.client.wait(lambda: set(given()) >= wanted, timeout_s=30, what="240 messages")
        assert sorted(given()) == sorted(wanted)


@scenario("binary_headers")
def test_binary_headers(site: Site, kind: str, tmp_path: Path) -> None:
    with running_client(kind, tmp_path, serialize="ROCKETMQ") as client:
        scene = Scene(client, site, f"binary-{kind}")
        scene.create_topic()
        scene.producer(transactional="yes")
        scene.producer("asker")  # its first request announces it to the broker
        scene.producer("replier")
        scene.push("c", reply=f"{scene.topic}_replier")
        scene.push("o", listener="orderly", group=f"{scene.group}_orderly", tags="A")
        assert client.call("serialize-type") == "ROCKETMQ"
        ways = ("sync", "async", "oneway", "batch")
        for how in ways:
            scene.send(50, how=how, prefix=how, tags="A,B")
        ask = {"topic": scene.topic, "prefix": "ask", "tags": "A"}
        assert scene.call("request", "asker", first=0, timeout_ms=10_000, **ask) == "reply to ask-0"
        decide = {"topic": scene.topic, "prefix": "tx", "tags": "A"}
        for first, answer in enumerate(("COMMIT_MESSAGE", "ROLLBACK_MESSAGE")):
            status = scene.call("transaction", "p", first=first, answer=answer, **decide)
            assert status == "SEND_OK"
        expected = {"ask-0", "tx-0"}.union(*(keys(how, 50) for how in ways))
        got = scene.wait_got("c", count=202)
        assert {each.keys for each in got} == expected
        tagged = {key for key in expected if int(key.rpartition("-")[2]) % 2 == 0}
        assert {each.keys for each in scene.wait_got("o", count=102)} == tagged
