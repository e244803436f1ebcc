"""A master and its slave in processes of their own, and kill -9 of either: what clients see."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylark.admin.admin_client import Admin
from skylark.admin.cluster_stats import ReplicaState, replication_report
from skylark.client.consumer.push.push_consumer import PushConsumer
from skylark.client.core.broker_calls import open_caller
from skylark.client.core.client_message import Message, MessageExt, SendStatus
from skylark.client.core.client_options import ClientOptions
from skylark.client.producer.producer import Producer
from skylark.core.clock import LoopClock
from skylark.core.errors import SkylarkError
from skylark.launch.launch_plan import LaunchOptions
from skylark.launch.local_cluster import Cluster
from skylark.wire.bodies.heartbeat import ConsumeFromWhere
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command

LIMIT_S = 30.0
SETTINGS = {
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    "slaveSyncInterval": "200",
    "flushDiskType": "SYNC_FLUSH",
}


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with LoopClock().timeout(LIMIT_S):
        while not await condition():  # noqa: ASYNC110 - nobody tells us
            await asyncio.sleep(0.05)


@asynccontextmanager
async def running(root: Path) -> AsyncIterator[Cluster]:
    options = LaunchOptions(
        data=root,
        ephemeral=True,
        namesrv_port=0,
        broker_port=0,
        replica_count=1,
        sync=True,
        settings=SETTINGS,
    )
    cluster = Cluster(options, child_arguments=["--log-level", "error"])
    await cluster.start()
    watching = asyncio.create_task(cluster.watch())
    try:
        yield cluster
    finally:
        watching.cancel()
        await asyncio.wait({watching})
        await cluster.stop()


def kill(cluster: Cluster, name: str) -> None:
    (child,) = [child for child in cluster._children if child.name == name]
    assert child._process is not None
    os.kill(child._process.pid, signal.SIGKILL)


def options_of(cluster: Cluster) -> ClientOptions:
    return ClientOptions(namesrv=str(cluster.namesrv))


async def replicas(cluster: Cluster) -> dict[int, ReplicaState]:
    async with Admin(options_of(cluster)) as admin:
        report = await replication_report(admin.stats)
    return {replica.id: replica for replica in report.brokers}


async def are_together(cluster: Cluster) -> bool:
    try:
        both = await replicas(cluster)
    except SkylarkError:
        return False
    return (
        both.keys() == {0, 1}
        and both[0].in_sync == 1
        and both[1].phase == "FOLLOWING"
        and both[1].lag_bytes == 0
    )


async def slave_knows(cluster: Cluster, topic: str) -> bool:
    request = Command(code=RequestCode.GET_TOPIC_CONFIG, ext={"topic": topic})
    async with open_caller() as caller:
        answer = await caller.call(str(cluster.brokers["broker-a-1"]), request, LIMIT_S)
    return answer.code == ResponseCode.SUCCESS


async def master_knows_commits(cluster: Cluster, count: int) -> bool:
    """Whether the readers have come so far, as the master has it: no slave tells of itself."""
    async with Admin(options_of(cluster)) as admin:
        committed = await admin.offsets.committed("readers", "T")
    return sum(offset or 0 for offset in committed.values()) == count


async def send(cluster: Cluster, *bodies: bytes) -> list[SendStatus]:
    async with Producer(
        "pg", options_of(cluster), batching=False, send_timeout=LIMIT_S
    ) as producer:
        return [(await producer.send(Message("T", body))).status for body in bodies]


@asynccontextmanager
async def reader(cluster: Cluster, seen: list[bytes]) -> AsyncIterator[None]:
    consumer = PushConsumer(
        "readers",
        options_of(cluster),
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
    )

    @consumer.subscribe("T", tags="*")
    async def take(message: MessageExt) -> None:
        seen.append(message.body)

    async with consumer:
        yield


@pytest.mark.spec("store.12.44")
async def test_consumers_go_on_while_a_killed_master_is_away(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        assert set(cluster.brokers) == {"broker-a", "broker-a-1"}
        await until(lambda: are_together(cluster))
        addresses = cluster.brokers
        sent = [b"m%d" % number for number in range(40)]
        assert set(await send(cluster, *sent)) == {SendStatus.SEND_OK}
        await until(lambda: slave_knows(cluster, "T"))
        kill(cluster, "broker-a")
        seen: list[bytes] = []

        async def has_all() -> bool:
            return set(seen) >= set(sent)

        async with reader(cluster, seen):
            await until(has_all)
        assert sorted(seen) == sorted(sent), "each once, from the slave or the master"
        await until(lambda: are_together(cluster))
        await until(lambda: master_knows_commits(cluster, len(sent)))
        assert cluster.brokers == addresses, "whoever is back is where it was"
        assert await send(cluster, b"after") == [SendStatus.SEND_OK]
        later: list[bytes] = []

        async def has_later() -> bool:
            return b"after" in later

        async with reader(cluster, later):
            await until(has_later)
        assert later == [b"after"], "what was committed meanwhile is not lost"


async def test_a_killed_slave_catches_up(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster:
        await until(lambda: are_together(cluster))
        assert await send(cluster, b"before") == [SendStatus.SEND_OK]
        kill(cluster, "broker-a-1")
        statuses = await send(cluster, b"alone")
        assert statuses[0] in (SendStatus.FLUSH_SLAVE_TIMEOUT, SendStatus.SEND_OK)
        await until(lambda: are_together(cluster))
        assert await send(cluster, b"after") == [SendStatus.SEND_OK]
        both = await replicas(cluster)
        assert both[0].log_end == both[1].log_end
        assert (both[1].role, both[1].diverged, both[0].slaves) == ("SLAVE", None, 1)
