"""Groups and connected clients by request; changes are on disk before the answer."""

from __future__ import annotations

import errno

import pytest

from skylark.wire.bodies.admin_body import ProducerConnection, ProducerTableInfo, QueueLock
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.config import SubscriptionGroupConfig, SubscriptionGroupList
from skylark.wire.bodies.heartbeat import SubscriptionData
from skylark.wire.bodies.slave_sync_body import SubscriptionGroupWrapper
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import decode_body
from tests.unit.broker.world import Peer, World, consumer, heartbeat, running

# --- changes ---


async def test_a_group_is_on_disk_when_it_is_acknowledged(world: World, peer: Peer) -> None:
    config = SubscriptionGroupConfig(group_name="g", retry_max_times=3)
    answer = await peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
    assert (answer.code, answer.remark, answer.ext, answer.body) == (0, None, None, None)
    assert world.groups.get("g") == config
    _, groups, _ = world.after_power_loss()
    assert groups.get("g") == config


@pytest.mark.parametrize(
    ("name", "remark"),
    [
        ("", "The specified group is blank."),
        ("a b", "The specified group: a b, contains illegal characters,"),
        ("x" * 121, f"The specified group: {'x' * 121}, is longer than group max length: 120"),
    ],
)
async def test_bad_names_are_refused(world: World, peer: Peer, name: str, remark: str) -> None:
    bad = SubscriptionGroupConfig(group_name=name)
    answer = await peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, bad)
    assert answer.code == 29
    assert (answer.remark or "").startswith(remark)
    several = SubscriptionGroupList(
        group_config_list=[SubscriptionGroupConfig(group_name="g"), bad]
    )
    answer = await peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, several)
    assert answer.code == 29
    assert "g" not in world.groups
    assert world.calls == []


async def test_the_number_of_retry_queues_has_a_limit(world: World, peer: Peer) -> None:
    for count, code in ((65_536, 0), (65_537, 29), (2**31 - 1, 29)):
        config = SubscriptionGroupConfig(group_name=f"g{count}", retry_queue_nums=count)
        answer = await peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
        assert answer.code == code
        assert (config.group_name in world.groups) == (code == 0)
    assert answer.remark == (
        "2147483647 retry queues for group g2147483647: at most 65536 are possible"
    )


async def test_several_groups_are_set_together(world: World, peer: Peer) -> None:
    body = SubscriptionGroupList(
        group_config_list=[SubscriptionGroupConfig(group_name=name) for name in ("g", "h")]
    )
    answer = await peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, body)
    assert (answer.code, answer.remark) == (0, None)
    _, groups, _ = world.after_power_loss()
    assert "g" in groups
    assert "h" in groups


@pytest.mark.parametrize(("clean", "left"), [("true", -1), ("false", 5)])
async def test_a_deleted_group_may_take_its_offsets_along(
    world: World, peer: Peer, clean: str, left: int
) -> None:
    world.groups.find("g")
    world.offsets.commit("g", "T", 0, 5)
    world.saved.offsets.mark()
    ext = {"groupName": "g", "cleanOffset": clean}
    answer = await peer.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)
    assert (answer.code, answer.remark) == (0, None)
    assert (await peer.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, ext)).code == 0, "unknown by now"
    _, groups, offsets = world.after_power_loss()
    assert "g" not in groups
    assert offsets.get("g", "T", 0) == left


async def test_a_deleted_group_takes_its_statistics_along(world: World, peer: Peer) -> None:
    world.groups.find("g")
    world.stats.got("T", "g", 1, 100)
    world.stats.got("T", "h", 1, 100)
    await peer.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"})
    assert list(world.stats.group_gets) == [("T", "h")]


async def test_a_group_can_be_kept_from_a_topic(world: World, peer: Peer) -> None:
    ext = {"group": "g", "topic": "T"}

    async def ask(**more: str) -> bytes | None:
        answer = await peer.call(RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN, {**ext, **more})
        assert (answer.code, answer.remark) == (0, "")
        return answer.body

    assert await ask() == b'{"group":"g","readable":true,"topic":"T"}'
    assert world.calls == []
    assert await ask(readable="false") == b'{"group":"g","readable":false,"topic":"T"}'
    assert await ask() == b'{"group":"g","readable":false,"topic":"T"}'
    assert await ask(readable="true") == b'{"group":"g","readable":true,"topic":"T"}'
    assert world.calls == ["write subscriptionGroup.json"] * 2
    await ask(readable="false")
    _, groups, _ = world.after_power_loss()
    assert not groups.may_read("g", "T")


async def test_a_change_that_cannot_be_saved_is_not_acknowledged(world: World, peer: Peer) -> None:
    world.plan.at("files.write", nth=1, error=errno.ENOSPC)
    config = SubscriptionGroupConfig(group_name="g")
    answer = await peer.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
    assert answer.code == 1
    assert (answer.remark or "").startswith("the change holds until restart")
    assert "g" in world.groups


# --- groups ---


async def test_asking_for_a_group_creates_it(world: World, peer: Peer) -> None:
    answer = await peer.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
    assert (answer.code, answer.remark) == (0, None)
    assert decode_body(SubscriptionGroupConfig, answer.body or b"").group_name == "g"
    assert "g" in world.groups


async def test_a_group_that_cannot_be_created_does_not_exist() -> None:
    async with running(autoCreateSubscriptionGroup="false") as world:
        peer = world.peer()
        answer = await peer.call(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": "g"})
        assert (answer.code, answer.remark) == (26, "No group in this broker")


async def test_the_table_comes_whole_or_in_pages(world: World, peer: Peer) -> None:
    every = sorted(config.group_name for config in world.groups)
    world.groups.set_may_read(every[1], "T", False)

    async def ask(**ext: str) -> SubscriptionGroupWrapper:
        answer = await peer.call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, ext or None)
        assert (answer.code, answer.remark, answer.ext) == (0, None, {"totalGroupNum": "8"})
        return decode_body(SubscriptionGroupWrapper, answer.body or b"")

    whole = await ask()
    assert sorted(whole.subscription_group_table) == every
    assert whole.data_version == world.groups.version
    first = await ask(groupSeq="0", dataVersion="", maxGroupNum="2")
    assert list(first.subscription_group_table) == every[:2]
    assert first.forbidden_table == {every[1]: {"T": 4}}
    version = world.groups.version
    text = f'{{"counter":{version.counter},"stateVersion":0,"timestamp":{version.timestamp}}}'
    second = await ask(groupSeq="2", dataVersion=text, maxGroupNum="2")
    assert list(second.subscription_group_table) == every[2:4]
    assert second.forbidden_table == {}


# --- clients ---


async def test_members_are_shown_without_extras_where_all_is_well(world: World, peer: Peer) -> None:
    await peer.join("g", "T", client_id="A")
    answer = await peer.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
    assert (answer.code, answer.remark, answer.ext) == (0, None, None)
    (connection,) = world.server.connections
    host, port = connection.remote_address
    assert (answer.body or b"").decode() == (
        f'{{"connectionSet":[{{"clientAddr":"{host}:{port}","clientId":"A","language":"JAVA",'
        '"version":513}],"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
        '"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","subscriptionTable":{"T":'
        '{"classFilterMode":false,"codeSet":[],"expressionType":"TAG","subString":"*",'
        '"subVersion":0,"tagsSet":[],"topic":"T"}}}'
    )


async def test_conflicts_and_locks_are_shown(world: World, peer: Peer) -> None:
    other = world.peer()
    for client, client_id, tags in ((peer, "A", "a"), (other, "B", "b")):
        data = consumer("g", SubscriptionData(topic="T", sub_string=tags))
        await client.call(RequestCode.HEART_BEAT, {}, heartbeat(data, client_id=client_id))
    queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=1)
    world.locks.lock("g", "A", [queue], world.clock.steady_ms())
    shown = await peer.connections("g")
    assert shown.queue_locks == [
        QueueLock(message_queue=queue, client_id="A", expires_ms=world.clock.now_ms() + 60_000)
    ]
    (conflict,) = shown.subscription_conflicts or []
    assert conflict.topic == "T"
    assert [(side.expression, side.client_ids) for side in conflict.sides] == [
        ("a", ["A"]),
        ("b", ["B"]),
    ]
    await world.clock.advance(60.001, clients_alive=False)
    assert (await peer.connections("g")).queue_locks is None


async def test_a_group_without_members_is_not_online(peer: Peer) -> None:
    answer = await peer.call(RequestCode.GET_CONSUMER_CONNECTION_LIST, {"consumerGroup": "g"})
    assert (answer.code, answer.remark) == (206, "the consumer group[g] not online")
    answer = await peer.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})
    assert (answer.code, answer.remark) == (1, "the producer group[p] not exist")
    answer = await peer.call(RequestCode.GET_ALL_PRODUCER_INFO)
    assert (answer.code, answer.body) == (0, b'{"data":{}}')


async def test_producers_are_shown(world: World, peer: Peer) -> None:
    beat = heartbeat(client_id="A", producers=["p"])
    await peer.call(RequestCode.HEART_BEAT, {}, beat)
    answer = await peer.call(RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})
    shown = decode_body(ProducerConnection, answer.body or b"")
    (connection,) = world.server.connections
    host, port = connection.remote_address
    assert [(each.client_id, each.client_addr) for each in shown.connection_set] == [
        ("A", f"{host}:{port}")
    ]
    answer = await peer.call(RequestCode.GET_ALL_PRODUCER_INFO)
    (info,) = decode_body(ProducerTableInfo, answer.body or b"").data["p"]
    assert (info.client_id, info.remote_ip) == ("A", f"/{host}:{port}")
    assert (info.language, info.version) == ("JAVA", 513)
    assert info.last_update_timestamp == world.clock.now_ms()
