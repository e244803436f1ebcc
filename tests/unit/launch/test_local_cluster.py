"""A cluster as an object: one process or several, its addresses, and how it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from skylark.admin.admin_client import Admin
from skylark.broker.app import Broker
from skylark.client.core.broker_calls import open_caller
from skylark.client.core.client_options import ClientOptions
from skylark.core.clock import LoopClock, Timeout
from skylark.core.errors import StoreError, TransportError
from skylark.core.names import Address
from skylark.launch.broker_process import BrokerDiedError, BrokerProcess
from skylark.launch.launch_plan import FRIENDLY, BrokerPlace, LaunchOptions
from skylark.launch.local_cluster import Cluster
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command

TIMEOUT_S = 30


def options(data: Path, **given: Any) -> LaunchOptions:
    return LaunchOptions(
        **{"data": data, "ephemeral": True, "namesrv_port": 0, "broker_port": 0, **given}
    )


@asynccontextmanager
async def running(data: Path, **given: Any) -> AsyncIterator[Cluster]:
    cluster = Cluster(options(data, **given), child_arguments=["--log-level", "warning"])
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


async def send(address: Address, topic: str) -> Command:
    ext = {
        "a": "pg", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0",
        "i": "UNIQ_KEY\x01U\x02",
    }  # fmt: skip
    async with open_caller() as caller:
        request = Command(code=RequestCode.SEND_MESSAGE_V2, ext=ext, body=b"hello")
        return await caller.call(str(address), request)


def admin_of(cluster: Cluster) -> Admin:
    return Admin(ClientOptions(namesrv=str(cluster.namesrv)))


async def test_one_broker_is_known_and_serves(tmp_path: Path) -> None:
    async with running(tmp_path) as cluster, admin_of(cluster) as admin:
        assert list(cluster.brokers) == ["broker-a"]
        created = await admin.topics.create("T", queue_count=4)
        assert [(c.broker, c.created, c.queue_count) for c in created] == [("broker-a", True, 4)]
        answer = await send(cluster.brokers["broker-a"], "T")
        assert (answer.code, (answer.ext or {})["queueOffset"]) == (0, "0")
    assert (tmp_path / "broker-a" / "commitlog").is_dir()
    assert not (tmp_path / "broker-a" / "abort").exists()


async def test_what_was_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    for number in range(2):
        async with running(tmp_path) as cluster, admin_of(cluster) as admin:
            (created,) = await admin.topics.create("T", queue_count=4 - number)
            assert (created.created, created.queue_count) == (number == 0, 4)
            answer = await send(cluster.brokers["broker-a"], "T")
            assert (answer.ext or {})["queueOffset"] == str(number)


async def test_routes_lead_to_where_the_name_server_was_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(FRIENDLY, "brokerIP1", "127.0.0.9")  # what a broker itself believes
    async with running(tmp_path) as cluster, admin_of(cluster) as admin:
        await admin.topics.create("T")
        route = await admin.topics.route("T")
        broker = cluster.brokers["broker-a"]
        assert [data.broker_addrs for data in route.broker_datas] == [{0: str(broker)}]
        answer = await send(broker, "T")
        assert (answer.ext or {})["msgId"].startswith("7F000009")  # the store host stays


async def test_what_brokers_announce_may_be_said(tmp_path: Path) -> None:
    """As for clients behind translated addresses: they are sent where the user says."""
    settings = {"brokerIP1": "127.0.0.9"}
    async with running(tmp_path, settings=settings) as cluster, open_caller() as caller:
        request = Command(code=RequestCode.GET_BROKER_CLUSTER_INFO)
        answer = await caller.call(str(cluster.namesrv), request)
        port = cluster.brokers["broker-a"].port
        assert f'"127.0.0.9:{port}"'.encode() in (answer.body or b"")


async def test_several_brokers_have_processes_of_their_own(tmp_path: Path) -> None:
    async with running(tmp_path, broker_count=2) as cluster, admin_of(cluster) as admin:
        assert list(cluster.brokers) == ["broker-a", "broker-b"]
        created = await admin.topics.create("T", queue_count=2)
        assert [(c.broker, c.created) for c in created] == [("broker-a", True), ("broker-b", True)]
        for address in cluster.brokers.values():
            assert (await send(address, "T")).code == 0
        assert len(child_pids()) == 2
    assert child_pids() == []
    for name in ("broker-a", "broker-b"):
        assert not (tmp_path / name / "abort").exists()


async def test_a_broker_that_dies_is_started_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, broker_count=2) as cluster, watched(cluster):
        first = cluster.brokers
        for address in first.values():
            assert (await send(address, "T")).code == 0
        (pid,) = [pid for pid in child_pids() if b"broker-b" in command_of(pid)[-1]]
        os.kill(pid, signal.SIGKILL)
        await until(lambda: len(caplog.messages) >= 2)
        died, back = caplog.messages
        assert died == (
            "broker-b was killed by SIGKILL, although it was not stopped; starting it again in 1 s"
        )
        second = cluster.brokers
        assert back == f"started broker-b again, on {second['broker-b']}"
        assert second["broker-a"] == first["broker-a"]
        assert len(child_pids()) == 2
        # What it had stored is there, and clients find it.
        answer = await send(second["broker-b"], "T")
        assert (answer.code, (answer.ext or {})["queueOffset"]) == (0, "1")
        wanted = {name: {0: str(address)} for name, address in second.items()}
        async with admin_of(cluster) as admin, asyncio.timeout(TIMEOUT_S):
            found: dict[str, Any] = {}
            while found != wanted:  # it registers as soon as it is ready
                route = await admin.topics.route("T")
                found = {data.broker_name: data.broker_addrs for data in route.broker_datas}
    assert child_pids() == []


class Dying(BrokerProcess):
    """A broker that cannot run, and the times at which that was tried."""

    def __init__(self, clock: VirtualClock, failure: Exception) -> None:
        super().__init__("broker-x", {}, Path(), clock)
        self.virtual = clock
        self.failure = failure
        self.starts: list[float] = []
        self.life_s = 0.0

    async def start(self) -> None:
        self.starts.append(self.virtual.monotonic())
        if not self.life_s:
            raise self.failure

    async def died(self) -> BrokerDiedError:
        await self.virtual.sleep(self.life_s)
        return BrokerDiedError("broker-x ended with exit code 1, before it was ready")


@pytest.mark.parametrize(
    "failure",
    [
        BrokerDiedError("broker-x ended with exit code 1, before it was ready"),
        BlockingIOError("no process can be made now"),
    ],
)
async def test_one_that_dies_again_and_again_is_started_less_and_less_often(
    tmp_path: Path, failure: Exception
) -> None:
    clock = VirtualClock()
    cluster = Cluster(options(tmp_path, broker_count=2), clock=clock)
    child = Dying(clock, failure)
    cluster._children.append(child)
    async with watched(cluster):
        began_at = clock.monotonic()
        await clock.advance(300)
        assert [at - began_at for at in child.starts] == [1, 3, 7, 15, 31, 63, 123, 183, 243]
        child.life_s = 61.0  # it has recovered: the next death is the first of its kind
        await clock.advance(3 + 61 + 1)
        assert [at - began_at for at in child.starts[9:]] == [303, 365]


@asynccontextmanager
async def watched(cluster: Cluster) -> AsyncIterator[None]:
    watching = asyncio.create_task(cluster.watch())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.wait([watching])


async def until(condition: Callable[[], bool]) -> None:
    clock = LoopClock()
    async with asyncio.timeout(TIMEOUT_S):
        while not condition():
            await clock.sleep(0.01)


async def test_modules_of_the_current_folder_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "queue.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(project)
    async with running(tmp_path / "data", broker_count=2) as cluster:
        assert set(cluster.brokers) == {"broker-a", "broker-b"}


async def test_a_broker_that_cannot_start_ends_the_rest(tmp_path: Path) -> None:
    (tmp_path / "broker-b").write_text("not a folder")
    cluster = Cluster(options(tmp_path, broker_count=2))
    with pytest.raises(BrokerDiedError) as caught:
        await cluster.start()
    assert str(caught.value).startswith(f"broker-b failed, {tmp_path / 'broker-b'}")
    assert str(caught.value).endswith("Not a directory (ENOTDIR)")
    assert child_pids() == []
    with pytest.raises(TransportError):
        await send(cluster.namesrv, "T")


async def test_a_port_in_use_is_named_and_nothing_stays(tmp_path: Path) -> None:
    async with running(tmp_path / "first") as first:
        port = first.brokers["broker-a"].port
        for given in ({"namesrv_port": first.namesrv.port}, {"broker_port": port}):
            second = Cluster(options(tmp_path / "second", **given))
            with pytest.raises(TransportError) as caught:
                await second.start()
            (used,) = given.values()  # of a broker the HA port, the next one, is tried first
            assert any(str(port) in str(caught.value) for port in (used, used + 1))
        third = Cluster(options(tmp_path / "second"))  # its folder is free again
        await third.start()
        await third.stop()


async def test_a_folder_in_use_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path):
        with pytest.raises(StoreError) as caught:
            await Cluster(options(tmp_path)).start()
        assert str(tmp_path / "broker-a") in str(caught.value)


class Impatient(LoopClock):
    """A clock whose time-outs are over at once."""

    def timeout(self, seconds: float | None) -> Timeout:
        return super().timeout(None if seconds is None else 0.0)


async def test_a_broker_that_stops_with_an_error_does_not_keep_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = Broker.stop

    async def stop_badly(broker: Broker) -> None:
        await stop(broker)
        raise StoreError("tables could not be saved")

    monkeypatch.setattr(Broker, "stop", stop_badly)
    cluster = Cluster(options(tmp_path))
    await cluster.start()
    namesrv = cluster.namesrv
    with pytest.raises(StoreError, match="tables could not be saved"):
        await cluster.stop()
    async with open_caller() as caller:
        with pytest.raises(TransportError):
            await caller.call(str(namesrv), Command(code=RequestCode.GET_BROKER_CLUSTER_INFO))


async def test_a_process_that_does_not_stop_is_killed(tmp_path: Path) -> None:
    settings = options(tmp_path).broker_settings(BrokerPlace(0), Address("127.0.0.1", 1))
    child = BrokerProcess(
        "broker-a", settings, tmp_path, Impatient(), arguments=["--log-level", "error"]
    )
    await child.start()
    (pid,) = child_pids()
    os.kill(pid, signal.SIGSTOP)  # it does not hear SIGTERM any more
    async with asyncio.timeout(TIMEOUT_S):
        await child.stop()
    assert child_pids() == []
    await child.stop()


def child_pids() -> list[int]:
    """The processes that this one has started and that run."""
    own = os.getpid()
    text = Path(f"/proc/{own}/task/{own}/children").read_text()
    return [pid for pid in map(int, text.split()) if is_broker(pid)]


def is_broker(pid: int) -> bool:
    arguments = command_of(pid)
    return b"skylark" in arguments and b"broker" in arguments


def command_of(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return []
