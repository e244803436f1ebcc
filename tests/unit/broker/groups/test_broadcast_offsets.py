"""Broadcast consumers that come through a proxy, by themselves, or first one and then the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylark.broker.groups.client_channel import ClientChannel
from skylark.wire.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import encode_body
from tests.unit.broker.stored import Stored, stored

PROXY: dict[str, Any] = {"requestSource": 1, "proxyFrowardClientId": "c1"}


async def heartbeat(world: Stored, model: MessageModel = MessageModel.BROADCASTING) -> None:
    data = ConsumerData(
        group_name="g",
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=model,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        subscription_data_set=[SubscriptionData(topic="T", sub_string="*")],
    )
    body = encode_body(HeartbeatData(client_id="c1", consumer_data_set=[data]))
    assert (await world.call(RequestCode.HEART_BEAT, {}, body)).code == 0


async def fill(world: Stored, count: int = 10) -> None:
    for _ in range(count):
        await world.send()


def told(answer: Command) -> tuple[int, str | None, str]:
    return answer.code, answer.remark, (answer.ext or {})["nextBeginOffset"]


async def test_a_client_that_comes_another_way_gets_its_recorded_offset_once(
    tmp_path: Path,
) -> None:
    async with stored(tmp_path) as world:
        await fill(world)
        await heartbeat(world)
        assert told(await world.pull(3)) == (0, "FOUND", "10")
        assert told(await world.pull(4)) == (0, "FOUND", "10")
        assert told(await world.pull(0, **PROXY)) == (21, "OFFSET_RESET", "4")
        assert told(await world.pull(4, **PROXY)) == (0, "FOUND", "10")
        assert told(await world.pull(7, **PROXY)) == (0, "FOUND", "10")
        assert told(await world.pull(2)) == (21, "OFFSET_RESET", "7")
        assert told(await world.pull(2)) == (0, "FOUND", "10")


async def test_a_proxy_that_knows_no_offset_asks_for_one(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await fill(world)
        assert told(await world.pull(-1, **PROXY)) == (21, "OFFSET_RESET", "0")
        await world.pull(6, **PROXY)
        assert told(await world.pull(-1, **PROXY)) == (21, "OFFSET_RESET", "6")
        world.features.store.reader._memory_size = 10  # the beginning is not in memory any more
        other = {**PROXY, "proxyFrowardClientId": "c2", "consumerGroup": "h"}
        assert told(await world.pull(-1, **other)) == (21, "OFFSET_RESET", "10")


async def test_an_unknown_client_goes_on_where_the_last_one_is(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await fill(world)
        for client_id, offset in (("c1", 8), ("c2", 5)):
            await world.pull(offset, requestSource=1, proxyFrowardClientId=client_id)
        await world.clock.advance(seconds=6)
        await world.pull(8, **PROXY)
        offsets = world.features.groups.offsets
        assert offsets.get("g@broadcast", "T", 0) == 5
        assert (offsets.groups_of("T"), offsets.topics_of("g@broadcast")) == ([], [])
        assert offsets.dump().group_topic_map == {}
        new = await world.pull(-1, requestSource=1, proxyFrowardClientId="c3")
        assert told(new) == (21, "OFFSET_RESET", "5")


async def test_clients_are_forgotten(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await fill(world)
        await heartbeat(world)
        broadcasts = world.features.pull.service._broadcasts
        await world.pull(8)  # c1, connected
        await world.pull(5, requestSource=1, proxyFrowardClientId="c2")
        other: dict[str, Any] = {**PROXY, "proxyFrowardClientId": "x", "consumerGroup": "h"}
        await world.clock.advance(seconds=119)
        await world.pull(0, **other)
        assert len(broadcasts) == 3
        await world.clock.advance(seconds=6)
        await world.pull(0, **other)
        assert len(broadcasts) == 2
        await world.clock.advance(seconds=200)
        await world.pull(0, **other)
        assert len(broadcasts) == 1
        assert told(await world.pull(1, **PROXY)) == (0, "FOUND", "10")


async def test_a_large_group_is_gone_through_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search for each of a thousand clients among a thousand members would hold up the loop."""
    async with stored(tmp_path) as world:
        await fill(world)
        await heartbeat(world)
        for number in range(1, 200):
            await world.pull(5, requestSource=1, proxyFrowardClientId=f"c{number}")
        looks = 0

        def client_id(channel: ClientChannel) -> str:
            nonlocal looks
            looks += 1
            return "c1"

        monkeypatch.setattr(ClientChannel, "client_id", property(client_id))
        await world.clock.advance(seconds=121)
        await world.pull(5, **PROXY)
        assert len(world.features.pull.service._broadcasts) == 1
        assert looks <= 2


async def test_other_consumers_and_other_brokers_are_left_alone(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await fill(world)
        await heartbeat(world, MessageModel.CLUSTERING)
        await world.pull(3)
        assert len(world.features.pull.service._broadcasts) == 0
        await world.pull(3, requestSource=1)  # a proxy that does not say for whom
        assert len(world.features.pull.service._broadcasts) == 0
    async with stored(tmp_path / "off", enableBroadcastOffsetStore="false") as world:
        await fill(world)
        await heartbeat(world)
        await world.pull(3)
        assert told(await world.pull(1, **PROXY)) == (0, "FOUND", "10")
        assert len(world.features.pull.service._broadcasts) == 0
