"""No change is acknowledged before the disk has it."""

from __future__ import annotations

import asyncio

import pytest

from skylark.wire.bodies.common_body import Body
from skylark.wire.bodies.config import (
    CreateTopicListRequestBody,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
)
from skylark.wire.codes import RequestCode
from tests.unit.broker.world import Peer, World

TOPIC_FIELDS = {
    "topic": "U",
    "defaultTopic": "TBW102",
    "readQueueNums": "1",
    "writeQueueNums": "1",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
}
TOPICS = CreateTopicListRequestBody(topic_config_list=[TopicConfig(topic_name="U")])
GROUP = SubscriptionGroupConfig(group_name="h")
GROUPS = SubscriptionGroupList(group_config_list=[GROUP])


@pytest.mark.parametrize(
    ("code", "ext", "body", "files"),
    [
        (RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC_FIELDS, None, ["topics.json"]),
        (RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, TOPICS, ["topics.json"]),
        (
            RequestCode.DELETE_TOPIC_IN_BROKER,
            {"topic": "T"},
            None,
            ["consumerOffset.json", "topics.json"],
        ),
        (
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
            None,
            GROUP,
            ["subscriptionGroup.json"],
        ),
        (
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
            None,
            GROUPS,
            ["subscriptionGroup.json"],
        ),
        (
            RequestCode.DELETE_SUBSCRIPTIONGROUP,
            {"groupName": "g", "cleanOffset": "true"},
            None,
            ["consumerOffset.json", "subscriptionGroup.json"],
        ),
        (
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
            {"group": "g", "topic": "T", "readable": "false"},
            None,
            ["subscriptionGroup.json"],
        ),
        (RequestCode.UPDATE_BROKER_CONFIG, None, b"traceOn=false\n", ["broker.conf"]),
    ],
)
async def test_the_answer_waits_for_the_disk(
    world: World,
    peer: Peer,
    code: int,
    ext: dict[str, str] | None,
    body: Body | bytes | None,
    files: list[str],
) -> None:
    world.topics.ensure("T", queue_count=1)
    world.groups.find("g")
    world.offsets.commit("g", "T", 0, 5)
    await world.clock.drain()
    world.calls.clear()
    world.disk_is_free.clear()
    asking = asyncio.create_task(peer.ask(code, ext, body))
    await world.clock.drain()
    assert not asking.done()
    world.disk_is_free.set()
    assert (await asking).code == 0
    written = [call for call in world.calls if call[:6] == "write "]
    assert sorted(written) == [f"write {name}" for name in files]
