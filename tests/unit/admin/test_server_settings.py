"""Which brokers a change of settings reaches."""

from __future__ import annotations

import pytest

from skylark.admin.admin_session import Session
from skylark.admin.errors import NotFoundError
from skylark.admin.server_settings import Settings
from skylark.wire.bodies.route_body import BrokerData, ClusterInfo
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to


def pair(name: str, **addresses: str) -> BrokerData:
    numbered = {int(key[2:]): address for key, address in addresses.items()}
    return BrokerData(cluster="c", broker_name=name, broker_addrs=numbered)


class Cluster(Session):
    """Two masters, one with a slave, and a slave whose master is down."""

    def __init__(self) -> None:
        self.changed: dict[str, bytes] = {}

    async def cluster_info(self) -> ClusterInfo:
        brokers = {
            "a": pair("a", id0="a:0", id1="a:1"),
            "b": pair("b", id0="b:0"),
            "d": pair("d", id2="d:2"),
        }
        return ClusterInfo(broker_addr_table=brokers, cluster_addr_table={"c": ["a", "b", "d"]})

    async def call(
        self, address: str, request: Command, *also: int, timeout_s: float | None = None
    ) -> Command:
        del also, timeout_s
        if request.code == RequestCode.UPDATE_BROKER_CONFIG:
            self.changed[address] = request.body or b""
        return response_to(request, 0, body=f"fileReservedTime=72\nlisten={address}\n".encode())


async def test_slaves_are_changed_too() -> None:
    cluster = Cluster()
    settings = Settings(cluster)
    done = await settings.set_brokers({"fileReservedTime": "48"})
    assert done == ["a", "a#1", "b", "d#2"]
    assert cluster.changed == dict.fromkeys(("a:0", "a:1", "b:0", "d:2"), b"fileReservedTime=48\n")
    report = await settings.brokers()
    assert {each.server: each.settings["listen"] for each in report.servers} == {
        "a": "a:0",
        "a#1": "a:1",
        "b": "b:0",
        "d#2": "d:2",
    }


async def test_by_name_with_the_slaves_by_address_alone() -> None:
    settings = Settings(Cluster())
    assert await settings.set_brokers({"x": "1"}, broker="a") == ["a", "a#1"]
    assert await settings.set_brokers({"x": "1"}, broker="a", slaves=False) == ["a"]
    assert await settings.set_brokers({"x": "1"}, broker="a:1") == ["a"]
    assert await settings.set_brokers({"x": "1"}, broker="d") == ["d#2"]
    assert await settings.set_brokers({"x": "1"}, cluster="c", broker="b") == ["b"]
    with pytest.raises(NotFoundError, match="cluster z does not exist"):
        await settings.set_brokers({"x": "1"}, cluster="z")


async def test_a_slave_stays_a_slave() -> None:
    settings = Settings(Cluster())
    assert await settings.set_brokers({"brokerRole": "SYNC_MASTER"}) == ["a", "b"]
    assert await settings.set_brokers({"brokerRole": "SLAVE"}, broker="a:1") == ["a"]
