"""Encoded route answers: dialects, cache, zones, own brokers."""

from __future__ import annotations

from typing import Any

import pytest

from skylark.namesrv import route_responses as module
from skylark.namesrv.broker_registration import Registration
from skylark.namesrv.config import NamesrvConfig
from skylark.namesrv.kv import ORDER_TOPIC_CONFIG, KvTable
from skylark.namesrv.route_responses import RouteAnswers, with_host
from skylark.namesrv.routes import RouteTables
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.bodies.route_body import ClusterInfo, TopicRouteData
from skylark.wire.fastjson import decode_body


class Fixture:
    """Tables with two brokers in two zones, and the answers made from them."""

    def __init__(self, **options: Any) -> None:
        self.tables = RouteTables(NamesrvConfig())
        self.kv = KvTable(10_000)
        self.answers = RouteAnswers(self.tables, self.kv, **options)
        for number, (name, zone) in enumerate((("b1", "East"), ("b2", "west"))):
            self.register(name, zone, broker_addr=f"10.0.0.{number}:10911")

    def register(self, name: str, zone: str | None, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "cluster": "c",
            "broker_name": name,
            "broker_id": 0,
            "ha_server_addr": "",
            "connection": name,
            "version": DataVersion(counter=1),
            "topics": {"T": TopicConfig(topic_name="T"), "U": TopicConfig(topic_name="U")},
            "filter_servers": [f"filter-of-{name}:1"],
            "enable_acting_master": False,
            "zone_name": zone,
        }
        self.tables.register(Registration(**{**fields, **changes}), 0)

    def ask(self, topic: str = "T", **changes: Any) -> bytes | None:
        asked: dict[str, Any] = {
            "standard": True,
            "with_order": False,
            "local_host": "127.0.0.1",
            **changes,
        }
        return self.answers.route(topic, **asked)

    def route(self, **changes: Any) -> TopicRouteData:
        body = self.ask(**changes)
        assert body is not None
        return decode_body(TopicRouteData, body)


def test_two_dialects() -> None:
    known = Fixture()
    standard, dialect = known.ask(standard=True), known.ask(standard=False)
    assert standard is not None
    assert dialect is not None
    assert b'{"0":"10.0.0.0:10911"}' in standard
    assert b'{0:"10.0.0.0:10911"}' in dialect
    assert known.ask("unknown") is None


def test_answers_are_kept_until_something_changes() -> None:
    known = Fixture()
    first = known.ask()
    assert known.ask() is first
    known.tables.set_writable("b1", False)
    second = known.ask()
    assert second != first
    assert known.ask() is second
    known.kv.put(ORDER_TOPIC_CONFIG, "T", "b1:4")
    assert known.ask() is not second


def test_cluster_information_is_kept_too() -> None:
    known = Fixture()
    first = known.answers.cluster_info("127.0.0.1")
    assert known.answers.cluster_info("127.0.0.1") is first
    assert b'{0:"10.0.0.0:10911"}' in first
    known.register("b3", None, broker_addr="10.0.0.3:10911")
    assert b"10.0.0.3:10911" in known.answers.cluster_info("127.0.0.1")


@pytest.mark.parametrize("limit", ["CACHED_COUNT_MAX", "CACHED_SIZE_MAX"])
def test_the_cache_is_bounded(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, limit, 1)
    known = Fixture()
    first = known.ask("T")
    assert known.ask("U") is not None
    again = known.ask("T")
    assert again is not first
    assert again == first


def test_order_of_a_topic() -> None:
    known = Fixture()
    known.kv.put(ORDER_TOPIC_CONFIG, "T", "b1:4;b2:4")
    assert known.route(topic="T", with_order=True).order_topic_conf == "b1:4;b2:4"
    assert known.route(topic="U", with_order=True).order_topic_conf is None


@pytest.mark.parametrize("zone", ["east", "EAST"])
def test_a_zone_sees_its_own_brokers(zone: str) -> None:
    route = Fixture().route(zone=zone)
    assert [data.broker_name for data in route.broker_datas] == ["b1"]
    assert [data.broker_name for data in route.queue_datas] == ["b1"]
    assert route.filter_server_table == {"10.0.0.0:10911": ["filter-of-b1:1"]}


def test_a_zone_sees_brokers_without_a_master_too() -> None:
    known = Fixture()
    known.register("b2", "west", broker_id=1, broker_addr="10.0.0.1:10911")
    route = known.route(zone="East")
    assert [data.broker_name for data in route.broker_datas] == ["b1", "b2"]


def test_an_unknown_zone_sees_nothing_and_nothing_of_it_is_kept() -> None:
    known = Fixture()
    assert known.route(zone="north").broker_datas == []
    assert len(known.route().broker_datas) == 2


def test_own_brokers_are_reached_as_we_are() -> None:
    known = Fixture(own_brokers={"b1"})
    route = known.route(local_host="192.168.1.5")
    assert [data.broker_addrs for data in route.broker_datas] == [
        {0: "192.168.1.5:10911"},
        {0: "10.0.0.1:10911"},
    ]
    # another client came by another way
    assert known.route(local_host="::1").broker_datas[0].broker_addrs == {0: "[::1]:10911"}
    info = decode_body(ClusterInfo, known.answers.cluster_info("192.168.1.5"))
    assert info.broker_addr_table["b1"].broker_addrs == {0: "192.168.1.5:10911"}
    assert info.broker_addr_table["b2"].broker_addrs == {0: "10.0.0.1:10911"}
    system = known.answers.system_topics("192.168.1.5")
    assert system.broker_addr == "192.168.1.5:10911"
    # the tables themselves keep what was announced
    assert known.tables.member_group("c", "b1").broker_addrs == {0: "10.0.0.0:10911"}


def test_without_own_brokers_the_way_of_the_client_does_not_matter() -> None:
    known = Fixture()
    assert known.ask(local_host="192.168.1.5") is known.ask(local_host="127.0.0.1")


def test_an_address_that_is_none_stays_as_it_is() -> None:
    assert with_host("not an address", "h") == "not an address"
    assert with_host("[fe80::1]:10911", "10.0.0.1") == "10.0.0.1:10911"
