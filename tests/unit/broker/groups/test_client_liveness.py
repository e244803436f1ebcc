"""Members that come, go and fall silent, and who is told; on virtual time, without sockets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from skylark.broker.groups.client_liveness import SCAN_INTERVAL_S
from skylark.broker.groups.consumer_filters import DEAD_KEPT_MS
from skylark.broker.groups.consumer_table import GroupNotice
from skylark.net.connection import Connection
from skylark.testing.virtual_clock import START_MS, VirtualClock
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import MessageModel, SubscriptionData
from skylark.wire.codes import RequestCode
from tests.unit.broker.world import Peer, World, consumer, heartbeat, running

QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)


def notice_counts(*peers: Peer) -> list[int]:
    """Notices since the last time."""
    counts = [len(peer.notices) for peer in peers]
    for peer in peers:
        peer.notices.clear()
    return counts


async def subscribe(peer: Peer, client_id: str, tags: str, version: int = 1) -> None:
    data = SubscriptionData(topic="T", sub_string=tags, sub_version=version)
    beat = heartbeat(consumer("g", data), client_id=client_id, producers=["p"])
    assert (await peer.call(RequestCode.HEART_BEAT, {}, beat)).code == 0


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with running() as started:
        yield started


@pytest.fixture
async def pair(world: World) -> tuple[Peer, Peer]:
    """Two clients, not yet members of anything."""
    return world.peer(), world.peer()


# --- notices ---


@pytest.mark.spec("broker.13.15")
async def test_members_hear_of_joins_and_losses_only(pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    await subscribe(a, "A", "x")
    assert notice_counts(a) == [1], "the one that caused it hears of it, too"
    await subscribe(b, "B", "x")
    assert notice_counts(a, b) == [1, 1]
    await subscribe(b, "B", "x")
    await subscribe(a, "A", "x", version=2)
    await subscribe(a, "A", "x || y", version=3)
    assert notice_counts(a, b) == [0, 0]
    await b.disconnect()
    assert notice_counts(a, b) == [1, 0]


async def test_a_notice_is_a_one_way_request_with_the_name_of_the_group(
    pair: tuple[Peer, Peer],
) -> None:
    a, _ = pair
    await subscribe(a, "A", "x")
    (notice,) = a.notices
    assert notice.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    assert notice.ext == {"consumerGroup": "g"}
    assert (notice.is_oneway, notice.is_response) == (True, False)
    assert (notice.version, notice.language, notice.body) == (513, "JAVA", None)


async def test_the_other_members_are_notified_of_a_leave(pair: tuple[Peer, Peer]) -> None:
    a, b = pair
    await subscribe(a, "A", "x")
    await subscribe(b, "B", "x")
    notice_counts(a, b)
    await b.call(RequestCode.UNREGISTER_CLIENT, {"clientID": "B", "consumerGroup": "g"})
    assert notice_counts(a, b) == [1, 0]


async def test_broadcast_groups_are_not_notified(pair: tuple[Peer, Peer]) -> None:
    for peer, client_id in zip(pair, "AB", strict=True):
        data = consumer("g", message_model=MessageModel.BROADCASTING)
        await peer.call(RequestCode.HEART_BEAT, {}, heartbeat(data, client_id=client_id))
    await pair[1].disconnect()
    assert notice_counts(*pair) == [0, 0]


async def test_a_large_group_that_grows_at_once_is_notified_a_few_times(world: World) -> None:
    peers = [world.peer() for _ in range(60)]
    for number, peer in enumerate(peers):
        await peer.join("g", "T", client_id=f"c{number}")
    told = notice_counts(*peers)
    assert told[0] == 33, "32 joins of a small group, and the first of a large one"
    assert told[-1] == 0, "it will be told soon"
    await world.clock.advance(ms=59)
    assert notice_counts(*peers) == [1] * 60
    await world.clock.advance(10)
    assert notice_counts(*peers) == [0] * 60


async def test_notices_can_be_saved_up_for_a_while() -> None:
    async with running(notice_batch_ms=15_000) as world:
        a, b = world.peer(), world.peer()
        await subscribe(a, "A", "x")
        await world.clock.advance(10)
        await subscribe(b, "B", "x")
        await world.clock.advance(4.999)
        assert notice_counts(a, b) == [0, 0]
        await world.clock.advance(ms=1)
        assert notice_counts(a, b) == [1, 1]


async def test_an_earlier_notice_moves_the_timer_forward(world: World) -> None:
    """The second change of a group is told as many milliseconds later as it has members."""
    peers = [world.peer() for _ in range(100)]
    for number, peer in enumerate(peers):
        await peer.join("large", client_id=f"c{number}")
    for number, peer in enumerate(peers[:40]):
        await peer.join("small", client_id=f"c{number}")
    await world.clock.advance(2)
    await peers[0].disconnect()
    notice_counts(*peers)
    for group in ("large", "small"):
        await peers[0].join(group, client_id="c0")
    await world.clock.advance(ms=50)
    assert [notice.ext for notice in peers[1].notices] == [{"consumerGroup": "small"}]
    await world.clock.advance(ms=50)
    assert [notice.ext for notice in peers[1].notices[1:]] == [{"consumerGroup": "large"}]


async def test_a_member_that_has_just_gone_stops_no_notice(world: World) -> None:
    a, b = world.peer(), world.peer()
    await subscribe(a, "A", "x")
    await subscribe(b, "B", "x")
    notice_counts(a, b)
    group = world.consumers.group("g")
    assert group is not None
    first, second = group.members
    assert isinstance(first, Connection)
    first.abort()
    world.liveness.notify([GroupNotice("g", [first, second])])
    await world.clock.drain()
    assert notice_counts(b) == [2], "this one, and that the other has gone"


# --- the end of a connection ---


async def test_a_closed_connection_leaves_nothing_behind(world: World) -> None:
    a, b = world.peer(), world.peer()
    sql = SubscriptionData(topic="T", sub_string="a > 5", expression_type="SQL92")
    beat = heartbeat(consumer("g", sql), client_id="A", producers=["p"])
    await a.call(RequestCode.HEART_BEAT, {}, beat)
    await subscribe(b, "B", "x")
    assert world.producers.find("A") is not None
    await a.disconnect()
    assert world.producers.find("A") is None
    assert world.consumers.client_ids("g") == ["B"]
    filtered = world.filters.get("T", "g")
    assert filtered is not None
    await b.disconnect()
    assert len(world.consumers) == len(world.producers) == 0
    assert filtered.is_dead


# --- silence ---


async def test_a_silent_client_is_dropped_without_a_notice(world: World) -> None:
    silent, loud, selling = world.peer(), world.peer(), world.peer()
    await subscribe(silent, "A", "x")
    await subscribe(loud, "B", "x")
    await selling.call(RequestCode.HEART_BEAT, {}, heartbeat(client_id="C", producers=["q"]))
    for _ in range(12):
        await world.clock.advance(10, clients_alive=False)
        await subscribe(loud, "B", "x")
    assert world.consumers.client_ids("g") == ["A", "B"], "120 s are not too long"
    notice_counts(silent, loud)
    await world.clock.advance(SCAN_INTERVAL_S, clients_alive=False)
    assert world.consumers.client_ids("g") == ["B"]
    assert world.producers.connection_list("q") is None
    assert [peer.is_connected for peer in (silent, loud, selling)] == [False, True, False]
    assert notice_counts(loud) == [0]
    assert len(world.server.connections) == 1


async def test_the_filter_of_a_silent_group_dies_and_is_removed_a_day_later(
    world: World,
) -> None:
    peer = world.peer()
    sql = SubscriptionData(topic="T", sub_string="a > 5", expression_type="SQL92")
    await peer.call(RequestCode.HEART_BEAT, {}, heartbeat(consumer("g", sql)))
    await world.clock.advance(130, clients_alive=False)
    kept = world.filters.get("T", "g")
    assert kept is not None
    assert kept.dead_ms == START_MS + 130_000
    await world.clock.advance(ms=DEAD_KEPT_MS)
    assert world.filters.get("T", "g") is None


async def test_virtual_time_kills_no_client_that_is_connected(world: World) -> None:
    peer, gone = world.peer(), world.peer()
    await subscribe(peer, "A", "x")
    await subscribe(gone, "B", "x")
    other = MessageQueue(topic="T", broker_name="broker-a", queue_id=1)
    now_ms = world.clock.steady_ms()
    world.locks.lock("g", "A", [QUEUE], now_ms)
    world.locks.lock("g", "B", [other], now_ms)
    await gone.disconnect()
    await world.clock.advance(hours=5)
    now_ms = world.clock.steady_ms()
    assert world.consumers.client_ids("g") == ["A"]
    assert world.producers.find("A") is not None
    assert peer.is_connected
    assert world.locks.holder("g", QUEUE, now_ms) == "A"
    assert world.locks.holder("g", other, now_ms) is None, "B is not online"
    assert len(world.locks) == 1, "what lapsed is swept out"


async def test_a_connection_that_is_about_to_end_renews_nothing(world: World) -> None:
    peer = world.peer()
    await subscribe(peer, "A", "x")
    now_ms = world.clock.steady_ms()
    world.locks.lock("g", "A", [QUEUE], now_ms - 20_000)
    (connection,) = world.server.connections
    connection.abort()
    world.liveness.clock_advanced(now_ms - 1, now_ms, True)
    assert world.locks.holder("g", QUEUE, now_ms + 40_000) == "A"
    assert world.locks.holder("g", QUEUE, now_ms + 40_001) is None


class SteppingClock(VirtualClock):
    """A clock whose wall time can be set."""

    step_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.step_ms


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
async def test_a_step_of_the_wall_clock_expires_no_client(step_ms: int) -> None:
    clock = SteppingClock()
    async with running(clock=clock) as world:
        peer = world.peer()
        await subscribe(peer, "A", "x")
        world.locks.lock("g", "A", [QUEUE], world.clock.steady_ms())
        clock.step_ms = step_ms
        await clock.advance(50, clients_alive=False)
        assert world.clock.steady_ms() == START_MS + 50_000
        assert peer.is_connected
        assert world.locks.holder("g", QUEUE, world.clock.steady_ms()) == "A"
        await clock.advance(80, clients_alive=False)
        assert not peer.is_connected, "real silence is noticed all the same"


# --- start and stop ---


async def test_no_notices_are_sent_after_the_stop() -> None:
    async with running(notice_batch_ms=15_000) as world:
        a, b = world.peer(), world.peer()
        await subscribe(a, "A", "x")
        await subscribe(b, "B", "x")
        await world.liveness.stop()
        await world.clock.advance(20)
        world.liveness.notify([GroupNotice("g", list(world.server.connections))])
        await b.disconnect()
        assert notice_counts(a, b) == [0, 0]
        assert world.consumers.client_ids("g") == ["A"], "the tables still follow"
        await world.clock.advance(minutes=10, clients_alive=False)
        assert world.consumers.client_ids("g") == ["A"], "nothing scans any more"
    await world.liveness.stop()
    assert world.clock.timer_count == 0
