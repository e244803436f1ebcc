"""The broker as an object: the ports it draws."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from skylark.broker.app import Broker, _Refusing
from skylark.broker.config import load_broker_config
from skylark.core.errors import TransportError
from skylark.net.transport import TcpNetwork
from skylark.testing.memory_net import FIRST_PORT, MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from tests.support.loops import on_both_loops
from tests.unit.broker.stored import in_place, texts


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
