"""Topics in the route tables: permissions, deletion, lists."""

from __future__ import annotations

import pytest

from skylark.namesrv.routes import RouteTables
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.bodies.route_body import QueueData
from tests.unit.namesrv.announcing import NOW, perms, registration, tables, topics, version


@pytest.mark.spec("broker.13.3")
def test_wiped_write_permission_lasts_until_a_new_version() -> None:
    known = tables()
    known.register(registration(version=version(1)), NOW)
    assert known.set_writable("b", False) == 2
    assert perms(known, "T", "U") == [4, 4]
    known.register(registration(version=version(1)), NOW)
    assert perms(known, "T", "U") == [4, 4]
    known.register(registration(version=version(2)), NOW)
    assert perms(known, "T", "U") == [6, 6]


def test_a_new_topic_does_not_bring_back_wiped_permissions() -> None:
    known = tables()
    known.register(registration(version=version(1)), NOW)
    known.set_writable("b", False)
    known.register(registration(version=version(2), topics=topics("V")), NOW)
    whole = registration(version=version(2), topics=topics("T", "U", "V"))
    known.register(whole, NOW)
    assert perms(known, "T", "U", "V") == [4, 4, 6]


def test_adding_write_permission_sets_read_and_write() -> None:
    known = tables()
    known.register(registration(topics=topics("T", "U", perm=1)), NOW)
    assert known.set_writable("b", True) == 2
    assert known.set_writable("unknown", True) == 0
    assert perms(known, "T", "U") == [6, 6]


def test_topics_missing_from_a_whole_table_are_deleted_only_if_asked() -> None:
    for delete, expected in ((False, ["T", "U", "b"]), (True, ["U", "b"])):
        known = tables(delete_topic_with_broker_registration=delete)
        known.register(registration(topics=topics("b", "T", "U")), NOW)
        known.register(registration(topics=topics("b", "U"), version=version(2)), NOW)
        assert known.topics().topic_list == expected


def test_a_part_of_the_table_deletes_nothing() -> None:
    known = tables(delete_topic_with_broker_registration=True)
    known.register(registration(topics=topics("b", "T")), NOW)
    known.register(registration(topics=topics("U"), version=version(2)), NOW)
    known.register(registration(topics=topics("V", "W"), version=version(4)), NOW)
    known.register(registration(topics={}, version=version(4)), NOW)
    assert known.topics().topic_list == ["T", "U", "V", "W", "b"]


# --- topics -------------------------------------------------------------------------------------


def two_clusters(known: RouteTables) -> None:
    for cluster, name in (("c1", "b1"), ("c2", "b2")):
        known.register(
            registration(
                cluster=cluster,
                broker_name=name,
                broker_addr=f"{name}:1",
                connection=name,
                topics=topics("T", name),
            ),
            NOW,
        )


def test_topic_lists() -> None:
    known = tables()
    two_clusters(known)
    assert known.topics().topic_list == ["T", "b1", "b2"]
    assert known.topics_of_cluster("c1").topic_list == ["T", "b1"]
    assert known.topics_of_cluster("unknown").topic_list == []
    system = known.system_topics()
    assert (system.topic_list, system.broker_addr) == (["b1", "b2", "c1", "c2"], "b1:1")


def test_system_topics_of_an_empty_name_server() -> None:
    system = tables().system_topics()
    assert (system.topic_list, system.broker_addr) == ([], None)


def test_topics_by_system_flag() -> None:
    known = tables()
    announced = {
        name: TopicConfig(topic_name=name, topic_sys_flag=flag)
        for name, flag in (("none", 0), ("unit", 1), ("sub", 2), ("both", 3))
    }
    known.register(registration(topics=announced), NOW)
    assert known.topics_by_flag(lambda flag: flag & 1 == 1).topic_list == ["both", "unit"]
    assert known.topics_by_flag(lambda flag: flag == 2).topic_list == ["sub"]


def test_delete_topic_everywhere_or_in_one_cluster() -> None:
    known = tables()
    two_clusters(known)
    known.delete_topic("T", "c1")
    route = known.route("T")
    assert route is not None
    assert [data.broker_name for data in route.queue_datas] == ["b2"]
    known.delete_topic("T", "unknown")
    assert known.route("T") is not None
    known.delete_topic("T")
    known.delete_topic("never there")
    assert known.topics().topic_list == ["b1", "b2"]


def test_register_topic_merges() -> None:
    known = tables()
    two_clusters(known)
    known.register_topic("V", [QueueData(broker_name="b1", perm=6)], "b1", NOW)
    known.register_topic("V", [QueueData(broker_name="b2", perm=4)], "b2", NOW)
    assert perms(known, "V") == [6, 4]
    known.register_topic(
        "W", [QueueData(broker_name="b1"), QueueData(broker_name="unknown")], "b1", NOW
    )
    assert known.route("W") is None
