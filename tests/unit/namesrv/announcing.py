"""Brokers that announce topics to route tables, for their tests."""

from __future__ import annotations

from typing import Any

from skylark.namesrv.broker_registration import Registration
from skylark.namesrv.config import NamesrvConfig
from skylark.namesrv.routes import RouteTables
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.config import TopicConfig

NOW = 1_700_000_000_000
#: Connections are told apart by identity: this one object stands for one connection.
CONNECTION = "connection of b"


def version(counter: int, *, state: int = 0) -> DataVersion:
    return DataVersion(state_version=state, counter=counter, timestamp=NOW + counter)


def topics(*names: str, **changes: Any) -> dict[str, TopicConfig]:
    settings = {"read_queue_nums": 4, "write_queue_nums": 4, **changes}
    return {name: TopicConfig(topic_name=name, **settings) for name in names}


def registration(**changes: Any) -> Registration:
    fields: dict[str, Any] = {
        "cluster": "c",
        "broker_name": "b",
        "broker_addr": "10.0.0.1:10911",
        "broker_id": 0,
        "ha_server_addr": "10.0.0.1:10912",
        "connection": CONNECTION,
        "version": version(1),
        "topics": topics("T", "U"),
        "enable_acting_master": False,
    }
    return Registration(**{**fields, **changes})


def tables(**settings: Any) -> RouteTables:
    return RouteTables(NamesrvConfig(**settings))


def perms(of: RouteTables, *names: str) -> list[int]:
    found = []
    for name in names:
        route = of.route(name)
        assert route is not None
        found += [data.perm for data in route.queue_datas]
    return found


def addrs(of: RouteTables, broker_name: str = "b") -> dict[int, str]:
    return of.member_group("c", broker_name).broker_addrs
