"""Master and slave, one of them Apache's: same bytes, same tables, and the slave serves it all.

A real client sends and consumes while the pair is connected, and while either of the two is
restarted. The master is a SYNC_MASTER with ``inSyncReplicas=2``: what the client was told to be
sent is at the slave, which has to show it when the master is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from skylark.wire.bodies.common_body import MessageQueue
from tests.interop.broker_scenarios.scene import TIMEOUT_S, Scene
from tests.interop.broker_scenarios.table import JAVA_5
from tests.interop.client_scenarios.stage import ApacheSite
from tests.interop.driver import Client
from tests.interop.ours import SkylarkNamesrv
from tests.interop.pairs import FILE_SIZE, Pair, log_bytes, log_start, restart, running_pair

pytestmark = pytest.mark.interop

#: Messages acknowledged before and after each restart, of so many bytes: some files of the log.
STRETCH = 250
BODY_SIZE = 1_500


@pytest.mark.spec("store.12.45")
@pytest.mark.parametrize(
    ("our_master", "our_slave"), [(False, True), (True, False), (True, True)],
    ids=["apache-ours", "ours-apache", "ours-ours"],
)  # fmt: skip
@pytest.mark.timeout(400)
def test_slave_has_everything(
    our_master: bool, our_slave: bool, client_of: Callable[[str], Client], tmp_path: Path
) -> None:
    client = client_of(JAVA_5)
    with running_pair(tmp_path, our_master=our_master, our_slave=our_slave) as pair:
        site = ApacheSite(pair.namesrv, pair.master)
        scene = Scene(client, site, f"ha-{our_master}-{our_slave}")
        site.create_topic(scene.topic, 4)
        pair.common_end()  # they are connected
        del client.sent[:]
        scene.push("c")
        scene.producer()
        sizes = {"size": BODY_SIZE}
        scene.call("keep-sending", "p", topic=scene.topic, prefix="m", **sizes)
        wait_sent(client)
        restart(pair.master)
        wait_sent(client)
        restart(pair.slave)
        wait_sent(client)
        scene.call("stop-sending", "p")
        log_end = pair.common_end()
        assert log_end > 4 * FILE_SIZE
        wait_all_given(scene, "c")
        scene.stop("c")  # which commits
        pair.wait_copied(scene.topic, scene.group, ends_of(scene))
        assert log_bytes(pair.master, log_end) == log_bytes(pair.slave, log_end)
        pair.master.kill()
        check_slave_serves(scene, pair)
        scene.close()


@pytest.mark.timeout(300)
def test_an_empty_slave_of_apache_gets_the_last_file_and_says_what_it_lacks(
    client_of: Callable[[str], Client], tmp_path: Path
) -> None:
    client = client_of(JAVA_5)
    with SkylarkNamesrv(folder=tmp_path / "namesrv") as namesrv:
        pair = Pair(namesrv, tmp_path, our_master=False, our_slave=True)
        pair.master.settings["inSyncReplicas"] = 1  # it is alone at first
        with pair.master:
            site = ApacheSite(namesrv, pair.master)
            scene = Scene(client, site, "ha-empty-slave")
            site.create_topic(scene.topic, 4)
            del client.sent[:]
            scene.producer()
            send_stretch(scene, "old")
            send_stretch(scene, "older")
            with pair.slave:
                start = pair.common_end() // FILE_SIZE * FILE_SIZE
                assert start >= 2 * FILE_SIZE, "the master has several files"
                assert log_start(pair.slave) == start
                send_stretch(scene, "new")
                log_end = pair.common_end()
                assert log_bytes(pair.slave, log_end, start) == log_bytes(
                    pair.master, log_end, start
                )
                check_same_messages(scene, pair)
                said = "".join(file.read_text() for file in pair.slave.log_files())
                assert f"this log begins at {start}: earlier messages of master" in said
            scene.close()


def check_same_messages(scene: Scene, pair: Pair) -> None:
    """What the slave has of each queue is what the master has from there on."""
    first = {}
    for queue_id in range(4):
        queue = MessageQueue(topic=scene.topic, broker_name="broker-a", queue_id=queue_id)
        first[queue_id] = offset = pair.min_offset(pair.slave, queue)
        served = pair.messages(pair.slave, queue, offset)
        assert served == pair.messages(pair.master, queue, offset)
        assert len(served) >= STRETCH // 4 - 1, "all new ones at least"
    assert min(first.values()) > 0, "the oldest are at the master only"


def send_stretch(scene: Scene, prefix: str) -> None:
    """Send until some more messages were acknowledged."""
    scene.call("keep-sending", "p", topic=scene.topic, prefix=prefix, size=BODY_SIZE)
    wait_sent(scene.client)
    scene.call("stop-sending", "p")


def wait_sent(client: Client) -> None:
    """Some more messages were acknowledged."""
    wanted = len(client.sent) + STRETCH

    def reached() -> bool:
        client.collect()
        return len(client.sent) >= wanted

    client.wait(reached, timeout_s=120, what=f"{STRETCH} more sent")


def ends_of(scene: Scene) -> dict[int, int]:
    """Behind the last message of each queue that was given to the consumer."""
    ends: Counter[int] = Counter()
    for each in scene.got("c"):
        ends[each.queue] = max(ends[each.queue], each.offset + 1)
    return dict(ends)


def wait_all_given(scene: Scene, consumer: str) -> None:
    """What was acknowledged comes, and is where the sender was told."""
    acknowledged = {(each.queue, each.offset): each.number for each in scene.client.sent}
    assert len(acknowledged) == len(scene.client.sent) >= 3 * STRETCH

    def all_given() -> bool:
        return acknowledged.keys() <= {(it.queue, it.offset) for it in scene.got(consumer)}

    scene.client.wait(all_given, timeout_s=3 * TIMEOUT_S, what="all that was acknowledged")
    given = {(each.queue, each.offset): each.number for each in scene.got(consumer)}
    assert acknowledged.items() <= given.items()


def check_slave_serves(scene: Scene, pair: Pair) -> None:
    """The master is dead: a group that is new gets everything from the slave."""
    assert not pair.master.running
    scene.push("from_slave", group=f"{scene.group}_late")
    wait_all_given(scene, "from_slave")
    before = {(each.queue, each.offset): each.keys for each in scene.got("c")}
    after = {(each.queue, each.offset): each.keys for each in scene.got("from_slave")}
    assert after.items() >= before.items()
