"""Queues assigned by the broker, and how groups get their messages, by request."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import MessageModel
from skylark.wire.bodies.pop_body import (
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from skylark.wire.bodies.slave_sync_body import MessageRequestModeSerializeWrapper
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body, encode_body
from tests.unit.broker.members import Member, silent
from tests.unit.broker.recorded import exchanges
from tests.unit.broker.stored import Stored, stored


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Stored]:
    async with stored(tmp_path) as running:
        running.add_topic("T", 4)
        yield running


async def assigned(
    world: Stored,
    client_id: str,
    mode: MessageRequestMode = MessageRequestMode.PULL,
    **fields: object,
) -> list[int] | None:
    question = QueryAssignmentRequestBody(
        topic="T",
        consumer_group="g",
        client_id=client_id,
        strategy_name="AVG",
        message_model=MessageModel.CLUSTERING,
    )
    for name, value in fields.items():
        setattr(question, name, value)
    answer = await world.call(RequestCode.QUERY_ASSIGNMENT, None, encode_body(question))
    assert (answer.code, answer.remark, answer.ext) == (0, None, None)
    found = decode_body(QueryAssignmentResponseBody, answer.body or b"").message_queue_assignments
    if found is None:
        return None
    assert all(item.mode is mode for item in found)
    queues = [item.message_queue or MessageQueue() for item in found]
    assert all((queue.topic, queue.broker_name) == ("T", "broker-a") for queue in queues)
    return [queue.queue_id for queue in queues]


async def set_mode(world: Stored, **fields: object) -> Command:
    body = SetMessageRequestModeRequestBody(topic="T", consumer_group="g")
    for name, value in fields.items():
        setattr(body, name, value)
    return await world.call(RequestCode.SET_MESSAGE_REQUEST_MODE, None, encode_body(body))


async def test_members_share_the_queues(world: Stored) -> None:
    members = [Member(world, name, silent) for name in ("c2", "c1", "c3")]
    for member in members:
        await member.join("g", "T")
    shares = [await assigned(world, name) for name in ("c1", "c2", "c3")]
    assert shares == [[0, 1], [2], [3]]
    shares = [
        await assigned(world, name, strategy_name="AVG_BY_CIRCLE") for name in ("c1", "c2", "c3")
    ]
    assert shares == [[0, 3], [1], [2]]
    assert await assigned(world, "stranger") == []
    await members[0].leave()
    assert [await assigned(world, name) for name in ("c1", "c3")] == [[0, 1], [2, 3]]
    for member in members[1:]:
        await member.leave()


async def test_in_doubt_the_client_keeps_what_it_has(world: Stored) -> None:
    assert await assigned(world, "c1") is None  # no member is known
    member = Member(world, "c1", silent)
    await member.join("g", "T")
    assert await assigned(world, "c1") == [0, 1, 2, 3]
    assert await assigned(world, "c1", strategy_name="CONFIG") is None
    assert await assigned(world, "c1", topic="x") is None
    await member.leave()


async def test_broadcasting_members_get_all(world: Stored) -> None:
    model = MessageModel.BROADCASTING
    assert await assigned(world, "anybody", message_model=model) == [0, 1, 2, 3]


async def test_without_load_balancing_all_get_all(tmp_path: Path) -> None:
    async with stored(tmp_path, serverLoadBalancerEnable="false") as world:
        world.add_topic("T", 2)
        assert await assigned(world, "anybody") == [0, 1]


async def test_a_question_without_model_is_refused(world: Stored) -> None:
    answer = await world.call(RequestCode.QUERY_ASSIGNMENT, None, b'{"topic":"T"}')
    assert answer.code == 1
    answer = await world.call(RequestCode.QUERY_ASSIGNMENT)
    assert answer.code == 1


async def test_the_recorded_assignment_of_a_retry_topic(world: Stored) -> None:
    world.add_topic("%RETRY%golden_pop_cg", 1)
    member = Member(world, "127.0.0.1@p1", silent)
    await member.join("golden_pop_cg", "T")
    compared = 0
    for asked, recorded in exchanges("pop-consumer", RequestCode.QUERY_ASSIGNMENT):
        if b"%RETRY%" in (asked.body or b"") and b"@p1" in (asked.body or b""):
            answer = await world.call(asked.code, asked.ext, asked.body)
            assert (answer.code, answer.remark, answer.body) == (0, None, recorded.body)
            compared += 1
    assert compared > 0
    await member.leave()


async def test_a_mode_is_kept_over_a_restart(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 4)
        answer = await set_mode(world, pop_share_queue_num=8)
        assert (answer.code, answer.remark, answer.body) == (0, None, None)
        # A crash now would find it: it was answered.
        saved = tmp_path / "store" / "config" / "messageRequestMode.json"
        assert '"popShareQueueNum":8' in saved.read_text().replace(" ", "").replace("\t", "")
    async with stored(tmp_path) as world:
        answer = await world.call(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        table = decode_body(MessageRequestModeSerializeWrapper, answer.body or b"")
        assert table.message_request_mode_map["T"]["g"].pop_share_queue_num == 8


@pytest.mark.parametrize(
    ("fields", "code", "remark"),
    [
        ({"topic": "%RETRY%g"}, 16, "retry topic is not allowed to set mode"),
        ({"topic": "x"}, 17, "topic[x] not exist"),
        ({"consumer_group": "bad group"}, 26, "subscription group does not exist"),
    ],
)
async def test_modes_that_cannot_be_set(
    world: Stored, fields: dict[str, object], code: int, remark: str
) -> None:
    answer = await set_mode(world, **fields)
    assert answer.code == code
    assert (answer.remark or "").startswith(remark)
    assert len(world.features.groups.request_modes) == 0


async def test_members_that_pop_share_all_queues(world: Stored) -> None:
    members = [Member(world, name, silent) for name in ("c1", "c2", "c3")]
    for member in members:
        await member.join("g", "T")
    pop = MessageRequestMode.POP
    assert (await set_mode(world, mode=pop, pop_share_queue_num=0)).code == 0
    assert await assigned(world, "c1", pop) == [-1]
    assert (await set_mode(world, mode=pop, pop_share_queue_num=1)).code == 0
    assert [await assigned(world, name, pop) for name in ("c1", "c2", "c3")] == [
        [0, 1, 2],
        [2, 3],
        [3, 0, 1],
    ]
    assert await assigned(world, "c1", pop, strategy_name="CONFIG") is None
    assert (await set_mode(world)).code == 0
    assert await assigned(world, "c2") == [2]
    for member in members:
        await member.leave()


async def test_pop_can_be_the_default(tmp_path: Path) -> None:
    async with stored(tmp_path, defaultMessageRequestMode="POP") as world:
        world.add_topic("T", 4)
        member = Member(world, "c1", silent)
        await member.join("g", "T")
        assert await assigned(world, "c1", MessageRequestMode.POP) == [-1]
        await member.leave()


@pytest.mark.parametrize(
    ("text", "is_known", "mode"),
    [
        ('"PUSH"', False, MessageRequestMode.PULL),
        ('"pop"', False, MessageRequestMode.PULL),
        ("7", False, MessageRequestMode.PULL),
        ('"POP"', True, MessageRequestMode.POP),
        ("1", True, MessageRequestMode.POP),
        ("0", True, MessageRequestMode.PULL),
    ],
)
async def test_an_unknown_mode_counts_as_pull(
    world: Stored, text: str, is_known: bool, mode: MessageRequestMode
) -> None:
    body = f'{{"topic":"T","consumerGroup":"g","mode":{text}}}'.encode()
    answer = await world.call(RequestCode.SET_MESSAGE_REQUEST_MODE, None, body)
    assert answer.code == 0  # as by Java
    remark = None if is_known else f"there is no mode {text.strip(chr(34))}: the mode is PULL"
    assert answer.remark == remark
    found = world.features.groups.request_modes.get("T", "g")
    assert found is not None
    assert found.mode is mode
