"""Requests about how messages are stored and read: what a default Java broker answers with 0."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from skylark.store.file_system import Advice
from skylark.wire.bodies.heartbeat import ConsumeType, SubscriptionData
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import encode_body
from skylark.wire.message import iter_records
from tests.unit.broker.stored import Stored, stored
from tests.unit.broker.world import consumer, heartbeat

COLD = {
    "coldDataFlowControlEnable": "true",
    "accessMessageInMemoryHotRatio": "0",  # every message is old
    "cgColdReadThreshold": "1000",
}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Stored]:
    async with stored(tmp_path) as running:
        yield running


async def info(world: Stored) -> dict[str, Any]:
    answer = await world.call(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO)
    assert (answer.code, answer.remark) == (0, None)
    found: dict[str, Any] = json.loads(answer.body or b"")
    return found


async def join(world: Stored, group: str, kind: ConsumeType) -> None:
    member = consumer(group, SubscriptionData(topic="T", sub_string="*"), consume_type=kind)
    answer = await world.call(RequestCode.HEART_BEAT, {}, encode_body(heartbeat(member)))
    assert answer.code == 0


async def test_thresholds_of_groups(world: Stored) -> None:
    assert await info(world) == {
        "cgColdReadThreshold": 3_145_728,
        "configTable": {},
        "globalAcc": 0,
        "globalColdReadThreshold": 104_857_600,
        "runtimeTable": {},
    }
    body = b"g1=1000\ng2=-5\nwrong=x\n"
    answer = await world.call(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, {}, body)
    assert (answer.code, answer.remark) == (0, None)
    assert (await info(world))["configTable"] == {"g1": 1_000, "g2": -5}
    answer = await world.call(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, {}, b"g2")
    assert (answer.code, answer.remark) == (0, None)
    answer = await world.call(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, {}, b"unknown")
    assert answer.code == 0
    assert (await info(world))["configTable"] == {"g1": 1_000}


async def test_a_push_consumer_that_reads_old_messages_is_refused_for_a_while(
    tmp_path: Path,
) -> None:
    async with stored(tmp_path, **COLD) as world:
        world.add_topic("T", 1)
        await join(world, "g", ConsumeType.CONSUME_PASSIVELY)
        for _ in range(3):
            await world.send(body=bytes(600))
        first_ms = world.clock.now_ms()
        assert (await world.pull(0, maxMsgNums="1")).code == 0
        assert (await world.pull(1, maxMsgNums="1")).code == 0, "600 of 1,000 bytes"
        refused = await world.pull(2)
        assert refused.code == 2
        assert (refused.remark or "").startswith(
            "This consumer group is reading cold data. It has been flow control"
        )
        found = await info(world)
        assert found["runtimeTable"]["g"]["lastColdReadTimeMills"] == first_ms
        assert found["runtimeTable"]["g"]["coldAcc"] == found["globalAcc"] > 1_200
        await world.clock.advance(5)
        assert (await world.pull(2)).code == 0
        await world.clock.advance(65)
        assert (await info(world))["runtimeTable"] == {}


async def test_thresholds_of_administrators_and_of_all_groups_count(tmp_path: Path) -> None:
    async with stored(tmp_path, **COLD | {"globalColdReadThreshold": "3000"}) as world:
        world.add_topic("T", 1)
        await join(world, "g", ConsumeType.CONSUME_PASSIVELY)
        await world.send(body=bytes(2_000))
        await world.call(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, {}, b"g=1000000")
        assert (await world.pull(0)).code == 0
        assert (await world.pull(0)).code == 0, "its own threshold is high"
        assert (await world.pull(0)).code == 2, "that of all groups is not"


async def test_a_pull_consumer_waits_and_gets_one_message(tmp_path: Path) -> None:
    async with stored(tmp_path, **COLD) as world:
        world.add_topic("T", 1)
        await join(world, "g", ConsumeType.CONSUME_ACTIVELY)
        for _ in range(3):
            await world.send(body=bytes(600))
        assert (await world.pull(0)).code == 0
        waits = await world.begin_pull(0)
        assert not waits.done()
        await world.send(body=bytes(600))
        assert not waits.done(), "no message wakes it"
        await world.clock.advance(2.9)
        assert not waits.done()
        await world.clock.advance(0.2)
        answer: Command = await waits
        assert answer.code == 0
        assert len(list(iter_records(answer.body or b""))) == 1


async def test_other_groups_and_new_messages_are_not_limited(tmp_path: Path) -> None:
    async with stored(tmp_path, **COLD | {"accessMessageInMemoryHotRatio": "26"}) as world:
        world.add_topic("T", 1)
        await join(world, "g", ConsumeType.CONSUME_PASSIVELY)
        await world.send(body=bytes(2_000))
        for _ in range(3):
            assert (await world.pull(0)).code == 0
        assert (await info(world))["globalAcc"] == 0


@pytest.mark.parametrize(
    ("ext", "code", "remark"),
    [
        ({"READ_AHEAD_MODE": "1"}, 0, "set commitlog readahead mode success, mode: 1"),
        ({"READ_AHEAD_MODE": "0"}, 0, "set commitlog readahead mode success, mode: 0"),
        ({"READ_AHEAD_MODE": "7"}, 29, "set commitlog readahead mode param value error"),
        ({"READ_AHEAD_MODE": "x"}, 1, "set commitlog readahead mode failed"),
        (None, 1, "set commitlog readahead mode param error"),
    ],
)
async def test_the_read_mode_of_log_files(
    world: Stored,
    monkeypatch: pytest.MonkeyPatch,
    ext: dict[str, str] | None,
    code: int,
    remark: str,
) -> None:
    await world.send()
    (file,) = world.features.store.log.files.files
    advised: list[Advice] = []
    monkeypatch.setattr(type(file.handle), "advise", lambda _handle, what: advised.append(what))
    answer = await world.call(RequestCode.SET_COMMITLOG_READ_MODE, ext)
    assert (answer.code, answer.remark) == (code, remark)
    wanted = {"0": [Advice.NORMAL], "1": [Advice.RANDOM]}
    assert advised == wanted.get((ext or {}).get("READ_AHEAD_MODE", ""), [])


async def test_there_is_no_rocksdb(world: Stored) -> None:
    answer = await world.call(RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, {"topic": "T"})
    assert (answer.code, json.loads(answer.body or b"")) == (0, {"checkStatus": 2})
    answer = await world.call(
        RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON, {"configType": "topics;subscriptionGroups"}
    )
    assert (answer.code, answer.remark) == (0, "export done.")


async def test_the_flushed_offset_of_a_master_is_taken(world: Stored) -> None:
    answer = await world.call(RequestCode.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": "7"})
    assert (answer.code, answer.remark) == (0, None)
