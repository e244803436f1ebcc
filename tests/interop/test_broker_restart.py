"""Real clients on our broker while it is restarted: nothing acknowledged is lost, order is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.interop.broker_scenarios.scene import Scene, Site, queue_orders, running_site, scenario
from tests.interop.driver import Client

pytestmark = pytest.mark.interop

#: Messages acknowledged before the restart, and after it.
STRETCH = 300


@pytest.fixture
def own_site(tmp_path: Path) -> Iterator[Site]:
    with running_site(tmp_path) as running:
        yield running


@pytest.fixture
def restarted(
    kind: str,
    own_site: Site,
    client_of: Callable[[str], Client],
    request: pytest.FixtureRequest,
) -> Iterator[Scene]:
    name: str = request.node.originalname
    scene = Scene(client_of(kind), own_site, f"{name.removeprefix('test_')}-{kind}")
    scene.create_topic()
    yield scene
    scene.close()


@scenario("restart")
def test_restart(restarted: Scene) -> None:
    def restart() -> None:
        assert restarted.site.broker.stop() == 0
        restarted.site.broker.start()

    send_and_consume_through(restarted, restart)


@scenario("crash")
def test_crash(restarted: Scene) -> None:
    def crash() -> None:
        restarted.site.broker.kill()
        restarted.site.broker.start()

    send_and_consume_through(restarted, crash)


def send_and_consume_through(scene: Scene, restart: Callable[[], None]) -> None:
    """Send and consume in order through a restart, and compare both ends."""
    client = scene.client
    del client.sent[:]
    scene.push("c", listener="orderly")
    scene.producer()
    scene.call("keep-sending", "p", topic=scene.topic, prefix="kept")

    def wait_more() -> None:
        sent, given = len(client.sent), len(scene.got("c"))

        def moved() -> bool:
            enough = len(scene.got("c")) >= given + STRETCH
            return enough and len(client.sent) >= sent + STRETCH

        client.wait(moved, timeout_s=90, what=f"{STRETCH} more sent and consumed")

    wait_more()
    restart()
    wait_more()
    sent_count, failed_count = scene.call("stop-sending", "p")
    assert failed_count > 0, "no attempt met a restart"
    acknowledged = {(each.queue, each.offset): each.number for each in client.sent}
    assert len(acknowledged) == sent_count == len(client.sent)

    def all_given() -> bool:
        return acknowledged.keys() <= {(each.queue, each.offset) for each in scene.got("c")}

    client.wait(all_given, timeout_s=60, what="every acknowledged message consumed")
    got = scene.got("c")
    numbers = {(each.queue, each.offset): each.number for each in got}
    assert acknowledged.items() <= numbers.items()
    # Each queue in order and without gaps; what was not committed comes again.
    for offsets in queue_orders(got).values():
        firsts = list(dict.fromkeys(offsets))
        assert firsts == list(range(len(firsts)))
    # An attempt that failed may have been stored; no other message is there twice.
    assert len(numbers) - len(set(numbers.values())) <= failed_count
