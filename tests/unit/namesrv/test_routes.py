"""The route tables without sockets: registration, removal, routes, lists, limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from skylark.core.errors import BrokerError
from skylark.namesrv.broker_registration import MinBrokerChanged
from skylark.namesrv.config import NamesrvConfig
from skylark.namesrv.routes import RouteTables
from skylark.wire.bodies.config import TopicQueueMappingInfo
from skylark.wire.bodies.route_body import QueueData
from tests.unit.namesrv.announcing import (
    CONNECTION,
    NOW,
    addrs,
    perms,
    registration,
    tables,
    topics,
    version,
)

# --- routes -----------------------------------------------------------------------------------


def test_a_registered_topic_has_a_route() -> None:
    known = tables()
    known.register(registration(zone_name="z"), NOW)
    route = known.route("T")
    assert route is not None
    assert route.queue_datas == [
        QueueData(broker_name="b", read_queue_nums=4, write_queue_nums=4, perm=6)
    ]
    (broker,) = route.broker_datas
    assert (broker.cluster, broker.broker_name, broker.zone_name) == ("c", "b", "z")
    assert broker.broker_addrs == {0: "10.0.0.1:10911"}
    assert known.route("V") is None


def test_answers_are_sorted_by_name() -> None:
    known = tables()
    for name in ("b2", "b1"):
        known.register(
            registration(broker_name=name, broker_addr=f"{name}:1", connection=name), NOW
        )
    route = known.route("T")
    assert route is not None
    assert [data.broker_name for data in route.queue_datas] == ["b1", "b2"]
    assert [data.broker_name for data in route.broker_datas] == ["b1", "b2"]
    assert list(known.cluster_info().broker_addr_table) == ["b1", "b2"]
    assert known.cluster_info().cluster_addr_table == {"c": ["b1", "b2"]}


def test_answers_are_copies() -> None:
    known = tables()
    known.register(registration(), NOW)
    route = known.route("T")
    assert route is not None
    route.broker_datas[0].broker_addrs.clear()
    route.queue_datas.clear()
    known.cluster_info().broker_addr_table["b"].broker_addrs.clear()
    known.member_group("c", "b").broker_addrs.clear()
    assert addrs(known) == {0: "10.0.0.1:10911"}
    assert perms(known, "T") == [6]


def test_static_topics_have_their_mapping_in_the_route() -> None:
    known = tables()
    mapping = TopicQueueMappingInfo(topic="T", bname="b", total_queues=4, curr_id_map={0: 0})
    known.register(registration(mappings={"T": mapping}), NOW)
    route = known.route("T")
    assert route is not None
    assert route.topic_queue_mapping_by_broker == {"b": mapping}
    # Java takes mappings with a new version only.
    moved = TopicQueueMappingInfo(topic="T", bname="b", total_queues=8)
    known.register(registration(mappings={"T": moved}), NOW)
    route = known.route("T")
    assert route is not None
    assert route.topic_queue_mapping_by_broker == {"b": mapping}
    known.delete_topic("T")
    known.register(registration(version=version(2)), NOW)
    route = known.route("T")
    assert route is not None
    assert route.topic_queue_mapping_by_broker is None


def test_filter_servers_of_the_brokers_of_a_topic() -> None:
    known = tables()
    known.register(registration(filter_servers=["f:1"]), NOW)
    route = known.route("T")
    assert route is not None
    assert route.filter_server_table == {"10.0.0.1:10911": ["f:1"]}


# --- registration -------------------------------------------------------------------------------


@pytest.mark.spec("broker.13.2")
def test_a_single_topic_cannot_come_first() -> None:
    known = tables()
    single = registration(topics=topics("T"), version=version(2))
    with pytest.raises(BrokerError, match="register broker failed") as refused:
        known.register(single, NOW)
    assert refused.value.code == 1
    assert known.cluster_info().broker_addr_table == {}
    assert known.cluster_info().cluster_addr_table == {}
    assert known.route("T") is None
    known.register(registration(version=version(1)), NOW)
    assert known.register(single, NOW).topics_left_out == 0


@pytest.mark.spec("broker.13.2")
def test_a_slave_that_becomes_master_leaves_its_old_id() -> None:
    known = tables()
    known.register(registration(broker_id=1), NOW)
    assert addrs(known) == {1: "10.0.0.1:10911"}
    known.register(registration(broker_id=0), NOW)
    assert addrs(known) == {0: "10.0.0.1:10911"}


def test_a_slave_is_told_its_live_master() -> None:
    known = tables()
    assert known.register(registration(), NOW).master_addr is None
    slave = registration(broker_id=1, broker_addr="10.0.0.2:10911", connection="slave")
    told = known.register(slave, NOW)
    assert (told.master_addr, told.ha_server_addr) == ("10.0.0.1:10911", "10.0.0.1:10912")


def test_topics_come_from_the_master_or_the_prime_slave() -> None:
    known = tables()
    known.register(registration(topics=topics("T", "U")), NOW)
    slave = registration(
        broker_id=1,
        broker_addr="10.0.0.2:10911",
        connection="slave",
        topics=topics("T", "V"),
        enable_acting_master=True,
    )
    known.register(slave, NOW)
    assert known.topics().topic_list == ["T", "U"]
    known.remove("c", "b", "10.0.0.1:10911", 0)
    known.drain_removals()
    known.register(slave, NOW)
    assert known.topics().topic_list == ["T", "U", "V"]
    assert perms(known, "V") == [4]  # read only: it stands in for a master that is away


def test_an_old_broker_as_slave_registers_no_topics() -> None:
    known = tables()
    known.register(registration(broker_id=1, enable_acting_master=None), NOW)
    assert known.topics().topic_list == []


def test_an_outdated_master_is_ignored() -> None:
    known = tables()
    new = registration(broker_addr="new:1", connection="new", version=version(1, state=5))
    old = registration(broker_addr="old:1", connection="old", version=version(9, state=4))
    known.register(new, NOW)
    answer = known.register(old, NOW)
    assert (answer.master_addr, answer.ha_server_addr) == (None, None)
    assert addrs(known) == {0: "new:1"}
    assert known.live_broker_count == 1
    newest = registration(broker_addr="old:1", connection="old", version=version(9, state=5))
    known.register(newest, NOW)
    assert addrs(known) == {0: "old:1"}


# --- removal ------------------------------------------------------------------------------------


@pytest.mark.spec("broker.13.1")
def test_a_silent_broker_is_removed_with_its_topics_and_cluster() -> None:
    known = tables()
    known.register(registration(), NOW)
    assert known.expire(NOW + 120_000) == []
    assert known.expire(NOW + 120_001) == [CONNECTION]
    known.drain_removals()
    assert known.route("T") is None
    assert known.topics().topic_list == []
    assert known.cluster_info().cluster_addr_table == {}
    assert known.live_broker_count == 0


def test_signs_of_life() -> None:
    known = tables()
    known.register(registration(heartbeat_timeout_ms=10_000), NOW)
    known.heartbeat("c", "10.0.0.1:10911", NOW + 9_000)
    known.heartbeat("c", "unknown:1", NOW)
    assert known.expire(NOW + 19_000) == []
    assert known.query_version("c", "10.0.0.1:10911", version(1), NOW + 19_000) == (
        False,
        version(1),
    )
    assert known.expire(NOW + 29_000) == []
    assert known.expire(NOW + 29_001) == [CONNECTION]


def test_data_version_query() -> None:
    known = tables()
    assert known.query_version("c", "10.0.0.1:10911", version(1), NOW) == (True, None)
    known.register(registration(version=version(1)), NOW)
    assert known.query_version("c", "10.0.0.1:10911", version(2), NOW) == (True, version(1))
    assert known.query_version("c", "10.0.0.1:10911", None, NOW) == (True, version(1))


@pytest.mark.spec("broker.13.1")
def test_only_the_connection_that_registered_last_counts() -> None:
    known = tables()
    known.register(registration(connection="first"), NOW)
    known.register(registration(connection="second"), NOW)
    known.connection_closed("first")
    known.connection_closed("a client's")
    assert known.drain_removals() == []
    assert known.route("T") is not None
    known.connection_closed("second")
    known.drain_removals()
    assert known.route("T") is None


def test_all_brokers_of_one_connection_go_with_it() -> None:
    known = tables()
    for name in ("b1", "b2", "b3"):
        connection = "other" if name == "b3" else "container"
        known.register(
            registration(broker_name=name, broker_addr=f"{name}:1", connection=connection), NOW
        )
    known.connection_closed("container")
    known.drain_removals()
    assert list(known.cluster_info().broker_addr_table) == ["b3"]
    assert known.cluster_info().cluster_addr_table == {"c": ["b3"]}


@pytest.mark.parametrize(
    "cause",
    [
        lambda known: known.remove("c", "b", "10.0.0.1:10911", 0),
        lambda known: known.connection_closed(CONNECTION),
        lambda known: known.expire(NOW + 1_000_000),
    ],
    ids=["unregistered", "closed", "silent"],
)
def test_a_broker_that_registers_before_its_removal_is_done_stays(
    cause: Callable[[RouteTables], object],
) -> None:
    known = tables()
    known.register(registration(), NOW)
    cause(known)
    assert known.removal_count == 1
    known.register(registration(connection="new"), NOW)
    known.drain_removals()
    assert known.route("T") is not None


def test_a_broker_whose_address_was_taken_over_is_forgotten_alone() -> None:
    known = tables(notify_min_broker_id_changed=True)
    known.register(registration(enable_acting_master=True), NOW)
    known.register(
        registration(broker_addr="new:1", connection="new", enable_acting_master=True), NOW
    )
    known.connection_closed(CONNECTION)
    assert known.drain_removals() == []
    assert addrs(known) == {0: "new:1"}
    assert known.live_broker_count == 1


def test_the_queue_of_removals_is_bounded() -> None:
    known = tables(un_register_broker_queue_capacity=2)
    known.register(registration(), NOW)
    assert known.remove("c", "b", "10.0.0.1:10911", 0) is True
    assert known.remove("c", "b", "10.0.0.1:10911", 0) is True
    assert known.remove("c", "b", "10.0.0.1:10911", 0) is False
    known.drain_removals()
    assert known.removal_count == 0
    assert known.live_broker_count == 0


# --- acting master ------------------------------------------------------------------------------


def group(known: RouteTables, *ids: int, acting: bool = True) -> None:
    for broker_id in ids:
        known.register(
            registration(
                broker_id=broker_id,
                broker_addr=f"10.0.0.{broker_id}:10911",
                ha_server_addr=f"10.0.0.{broker_id}:10912",
                connection=broker_id,
                enable_acting_master=acting,
            ),
            NOW,
        )


def test_the_smallest_slave_stands_in_for_a_missing_master() -> None:
    known = tables(support_acting_master=True)
    member_topic = "rmq_sys_SYNC_BROKER_MEMBER_b"
    for broker_id in (0, 1, 2):
        known.register(
            registration(
                broker_id=broker_id,
                broker_addr=f"10.0.0.{broker_id}:10911",
                connection=broker_id,
                topics=topics("T", member_topic),
                enable_acting_master=True,
            ),
            NOW,
        )
    known.connection_closed(0)
    known.drain_removals()
    route = known.route("T")
    assert route is not None
    assert perms(known, "T") == [4]
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911", 2: "10.0.0.2:10911"}
    # the group itself is shown as it is
    route = known.route(member_topic)
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {1: "10.0.0.1:10911", 2: "10.0.0.2:10911"}
    assert addrs(known) == {1: "10.0.0.1:10911", 2: "10.0.0.2:10911"}


@pytest.mark.parametrize(("support", "acting"), [(False, True), (True, False)])
def test_nobody_stands_in_unless_both_sides_support_it(support: bool, acting: bool) -> None:
    known = tables(support_acting_master=support)
    group(known, 0, 1, acting=acting)
    known.connection_closed(0)
    known.drain_removals()
    route = known.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {1: "10.0.0.1:10911"}


def test_a_returning_master_makes_topics_writable_again() -> None:
    known = tables(support_acting_master=True)
    group(known, 0, 1)
    known.connection_closed(0)
    known.drain_removals()
    group(known, 0)
    assert perms(known, "T") == [6]


def test_members_are_told_when_the_smallest_id_goes() -> None:
    known = tables(notify_min_broker_id_changed=True)
    group(known, 0, 1, 2)
    known.connection_closed(2)
    assert known.drain_removals() == []
    group(known, 2)
    known.connection_closed(0)
    assert known.drain_removals() == [
        MinBrokerChanged(
            recipients=["10.0.0.1:10911", "10.0.0.2:10911"],
            min_broker_id=1,
            min_broker_addr="10.0.0.1:10911",
            offline_broker_addr="10.0.0.0:10911",
        )
    ]


def test_members_are_told_when_a_smaller_id_comes() -> None:
    known = tables(notify_min_broker_id_changed=True)
    first = registration(broker_id=1, broker_addr="10.0.0.1:10911", connection=1)
    assert known.register(first, NOW).notices == []
    second = registration(
        broker_id=0,
        broker_addr="10.0.0.0:10911",
        ha_server_addr="10.0.0.0:10912",
        connection=0,
    )
    assert known.register(second, NOW).notices == [
        MinBrokerChanged(
            recipients=["10.0.0.1:10911"],
            min_broker_id=0,
            min_broker_addr="10.0.0.0:10911",
            ha_broker_addr="10.0.0.0:10912",
        )
    ]


def test_a_promoted_lone_slave_is_told_itself() -> None:
    known = tables(notify_min_broker_id_changed=True)
    known.register(registration(broker_id=1), NOW)
    (notice,) = known.register(registration(broker_id=0), NOW).notices
    assert notice.recipients == ["10.0.0.1:10911"]


@pytest.mark.parametrize(("notify", "acting"), [(False, True), (True, False)])
def test_nobody_is_told_unless_both_sides_want_it(notify: bool, acting: bool) -> None:
    known = tables(notify_min_broker_id_changed=notify)
    group(known, 0, 1, acting=acting)
    known.connection_closed(0)
    assert known.drain_removals() == []


def test_a_whole_group_that_goes_at_once_tells_nobody() -> None:
    known = tables(notify_min_broker_id_changed=True)
    group(known, 0, 1)
    known.connection_closed(0)
    known.connection_closed(1)
    assert known.drain_removals() == []
    assert known.topics().topic_list == []


# --- limits, and the version that caches rely on ------------------------------------------------


def test_topics_beyond_the_limit_are_left_out() -> None:
    known = tables(topic_count_max=2)
    assert known.register(registration(topics=topics("T", "U", "V")), NOW).topics_left_out == 1
    assert known.topics().topic_list == ["T", "U"]
    more = registration(topics=topics("U"), version=version(2))
    assert known.register(more, NOW).topics_left_out == 0
    with pytest.raises(BrokerError, match="2 topics, the limit: raise topicCountMax"):
        known.register_topic("W", [QueueData(broker_name="b")], "b", NOW)


def test_brokers_beyond_the_limit_are_refused() -> None:
    known = tables(broker_count_max=1)
    known.register(registration(), NOW)
    other = registration(broker_name="other", broker_addr="other:1")
    with pytest.raises(BrokerError, match="1 brokers, the limit: raise brokerCountMax"):
        known.register(other, NOW)
    assert known.cluster_info().cluster_addr_table == {"c": ["b"]}
    known.register(registration(broker_id=1, broker_addr="slave:1", connection="s"), NOW)


def test_the_version_moves_with_every_visible_change_and_no_other() -> None:
    known = tables()
    steps: list[tuple[Callable[[], object], bool]] = [
        (lambda: known.register(registration(), NOW), True),
        (lambda: known.register(registration(), NOW), False),
        (lambda: known.register(registration(version=version(2)), NOW), False),
        (lambda: known.register(registration(version=version(2), zone_name="z"), NOW), True),
        (
            lambda: known.register(
                registration(version=version(3), topics=topics("T", perm=4), zone_name="z"), NOW
            ),
            True,
        ),
        (
            lambda: known.register(
                registration(version=version(3), filter_servers=["f:1"], zone_name="z"), NOW
            ),
            True,
        ),
        (lambda: known.heartbeat("c", "10.0.0.1:10911", NOW), False),
        (lambda: known.set_writable("b", False), True),
        (lambda: known.delete_topic("T"), True),
        (lambda: known.register_topic("V", [QueueData(broker_name="b")], "b", NOW), True),
        (lambda: known.connection_closed(CONNECTION), False),
        (lambda: known.drain_removals(), True),
        (lambda: known.drain_removals(), False),
        (lambda: known.reconfigure(NamesrvConfig(support_acting_master=True)), True),
    ]
    for index, (step, visible) in enumerate(steps):
        before = known.version
        step()
        assert (known.version != before) is visible, f"step {index}"
