"""The broker as an object: the ports it draws, the features that it starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from skylark.broker.app import Broker, _Refusing
from skylark.broker.base_features import Feature, StoreFeature
from skylark.broker.config import load_broker_config
from skylark.broker.features import PullFeature
from skylark.core.errors import StoreError, TransportError
from skylark.net.transport import TcpNetwork
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.testing.memory_net import FIRST_PORT, MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from tests.support.loops import on_both_loops
from tests.unit.broker.stored import in_place, stored, texts


def drawing_broker(root: Path, network: MemoryNetwork, clock: VirtualClock) -> Broker:
    config = load_broker_config(texts(root, listenPort="0"))
    return Broker(config, network=network, clock=clock, in_thread=in_place)


@pytest.mark.parametrize(
    ("taken", "drawn"),
    [((), 0), ((-2,), 1), ((1,), 2), ((-2, 1), 2), ((-1, 2), 0)],
)
async def test_a_drawn_port_has_its_neighbours_free(
    tmp_path: Path, taken: tuple[int, ...], drawn: int
) -> None:
    """The fast port is two below, the HA port one above: clients and slaves compute them."""
    clock = VirtualClock()
    network = MemoryNetwork(clock=clock)
    for port in taken:
        await network.listen(asyncio.Protocol, "127.0.0.1", FIRST_PORT + port)
    broker = drawing_broker(tmp_path, network, clock)
    await broker.start()
    try:
        assert broker.address.port == FIRST_PORT + drawn
        assert broker.fast_address.port == FIRST_PORT + drawn - 2
        assert broker.config.ha_port == FIRST_PORT + drawn + 1
    finally:
        await broker.stop()


@pytest.mark.parametrize("taken", [20, 18, 21])
async def test_a_port_that_is_taken_costs_no_file(tmp_path: Path, taken: int) -> None:
    clock = VirtualClock()
    network = MemoryNetwork(clock=clock)
    await network.listen(asyncio.Protocol, "127.0.0.1", taken)
    root = tmp_path / "store"
    config = load_broker_config(texts(root, listenPort="20"))
    broker = Broker(config, network=network, clock=clock, in_thread=in_place)
    with pytest.raises(TransportError, match=f"cannot listen on 127.0.0.1:{taken}"):
        await broker.start()
    await broker.stop()
    assert not root.exists()


@on_both_loops
async def test_whoever_comes_while_ports_are_looked_at_is_sent_away() -> None:
    listener = await TcpNetwork().listen(_Refusing, "127.0.0.1", 0)
    with contextlib.suppress(ConnectionResetError):
        reader, writer = await asyncio.open_connection(*listener.addresses[0])
        writer.close()
        assert await reader.read() == b""
    listener.close()
    await listener.wait_closed()


async def test_a_slave_does_without_the_port_for_slaves(tmp_path: Path) -> None:
    clock = VirtualClock()
    network = MemoryNetwork(clock=clock)
    await network.listen(asyncio.Protocol, "127.0.0.1", 21)
    given = texts(tmp_path, listenPort="20", brokerRole="SLAVE", brokerId="1")
    broker = Broker(load_broker_config(given), network=network, clock=clock, in_thread=in_place)
    await broker.start()
    await broker.stop()


async def test_where_no_port_has_free_neighbours(tmp_path: Path) -> None:
    clock = VirtualClock()
    network = MemoryNetwork(clock=clock)
    for port in range(FIRST_PORT, FIRST_PORT + 1_000, 2):
        await network.listen(asyncio.Protocol, "127.0.0.1", port)
    with pytest.raises(TransportError, match="no free ports p-2, p and p"):
        await drawing_broker(tmp_path, network, clock).start()


# --- features ---


async def test_every_feature_is_in_the_list(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        listed = {type(component) for component in world.features}
    written = {kind for kind in Feature.__subclasses__() if kind.__module__.startswith("skylark.")}
    assert len(written) > 10
    assert written <= listed


async def test_features_start_in_order_and_stop_in_reverse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def record(kind: type, step: str) -> None:
        original = getattr(kind, step)

        async def call(self: object) -> None:
            calls.append(f"{step} {kind.__name__}")
            await original(self)

        monkeypatch.setattr(kind, step, call)

    for kind in (StoreFeature, PullFeature):
        for step in ("start", "drain", "stop"):
            record(kind, step)
    async with stored(tmp_path):
        assert calls == ["start StoreFeature", "start PullFeature"]
    assert calls[2:] == ["drain PullFeature", "stop PullFeature", "stop StoreFeature"]


async def test_a_start_that_fails_late_closes_the_store(tmp_path: Path) -> None:
    clock = VirtualClock()
    network = MemoryNetwork(clock=clock)
    given = {"metricsExporterType": "PROM", "metricsPromExporterPort": "5557"}
    taken = await network.listen(asyncio.Protocol, "127.0.0.1", 5557)
    broker = Broker(
        load_broker_config(texts(tmp_path, listenPort="20", **given)),
        network=network,
        clock=clock,
        in_thread=in_place,
    )
    with pytest.raises(TransportError, match=r"cannot listen on .*:5557"):
        await broker.start()
    assert not (tmp_path / "store" / "abort").exists()
    await broker.stop()
    taken.close()
    async with stored(tmp_path, **given) as world:  # the ports, the lock and the files are free
        assert (await world.send()).code == 0


async def test_a_stop_with_a_dead_disk_stops_all_features_and_raises_store_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = VirtualClock()
    disk = FaultyFileSystem(FaultPlan(1))
    network = MemoryNetwork(clock=clock)
    config = load_broker_config(texts(Path("/"), listenPort="20"))
    broker = Broker(config, network=network, clock=clock, files=disk, in_thread=in_place)
    await broker.start()
    broker.features.groups.saved.groups.mark()
    disk.kill()
    with pytest.raises(StoreError, match="the machine has stopped"):
        await broker.stop()
    assert "the broker did not stop cleanly: tables could not be saved" in caplog.text
    (await network.listen(asyncio.Protocol, "127.0.0.1", 20)).close()  # the port is free
    await broker.stop()  # a second stop does nothing
