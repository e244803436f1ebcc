"""Questions passed on to clients, and their answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from skylark.wire.bodies.admin_body import GetConsumerStatusBody
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import decode_body, encode_body
from tests.unit.broker.members import Member, answering, silent
from tests.unit.broker.recorded import exchanges
from tests.unit.broker.stored import Stored, records_of, stored

RUNNING_INFO = RequestCode.GET_CONSUMER_RUNNING_INFO
DIRECTLY = RequestCode.CONSUME_MESSAGE_DIRECTLY
STATUS = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Stored]:
    async with stored(tmp_path) as running:
        yield running


def to(client_id: str, **changes: str) -> dict[str, str]:
    return {"consumerGroup": "g", "clientId": client_id, **changes}


async def test_a_recorded_question_and_its_answer(world: Stored) -> None:
    ((asked, recorded),) = exchanges("admin-consumerStatus", RUNNING_INFO)
    assert asked.ext is not None
    member = Member(
        world, asked.ext["clientId"], answering(recorded.body or b"", remark=recorded.remark)
    )
    await member.join(asked.ext["consumerGroup"], "T")
    answer = await world.call(RUNNING_INFO, asked.ext)
    assert (answer.code, answer.remark, answer.ext) == (recorded.code, recorded.remark, None)
    assert answer.body == recorded.body
    (question,) = member.questions
    credentials = {"AccessKey", "Signature"}
    assert credentials < asked.ext.keys()
    assert question.code == RUNNING_INFO
    # Java passes on the credentials of the tool, too.
    assert question.ext == {k: v for k, v in asked.ext.items() if k not in credentials}
    await member.leave()


async def test_any_answer_of_a_client_is_forwarded(world: Stored) -> None:
    member = Member(world, "c1", answering(b"", code=1, remark="The Consumer Group <g> not exist"))
    await member.join("g", "T")
    answer = await world.call(RUNNING_INFO, to("c1"))
    assert (answer.code, answer.remark) == (1, "The Consumer Group <g> not exist")
    await member.leave()


async def test_a_client_that_is_not_there(world: Stored) -> None:
    answer = await world.call(RUNNING_INFO, to("c9"))
    assert (answer.code, answer.remark) == (1, "The Consumer <g> <c9> not online")


async def test_a_client_that_is_too_old(world: Stored) -> None:
    member = Member(world, "c1", silent)
    await member.join("g", "T")
    member.grow_old("g", 61)
    answer = await world.call(RUNNING_INFO, to("c1"))
    assert answer.code == 1
    assert (answer.remark or "").startswith("The Consumer <c1> Version <V3_1_7> too low to")
    await member.leave()


async def test_a_client_that_does_not_answer_in_time_delays_no_other_request(world: Stored) -> None:
    member = Member(world, "c1", silent)
    await member.join("g", "T")
    asked = asyncio.create_task(world.call(RUNNING_INFO, to("c1")))
    await world.clock.drain()
    assert (await world.call(RequestCode.GET_BROKER_CONFIG)).code == 0
    await world.clock.advance(9.9)
    assert not asked.done()
    await world.clock.advance(0.2)
    answer = await asked
    assert answer.code == 207
    assert (answer.remark or "").startswith("consumer <g> <c1> Timeout: ")
    await member.leave()


async def test_a_client_that_leaves_before_it_answers(world: Stored) -> None:
    member = Member(world, "c1", silent)
    await member.join("g", "T")
    asked = asyncio.create_task(world.call(RUNNING_INFO, to("c1")))
    await world.clock.drain()
    await member.leave()
    answer = await asked
    assert answer.code == 1
    assert (answer.remark or "").startswith("invoke consumer <g> <c1> Exception: ")


# --- 309 ---


async def test_a_client_consumes_a_message_that_the_broker_sends_along(world: Stored) -> None:
    world.add_topic("T", 1, topic_sys_flag=1)
    sent = await world.send("T", b"consume me")
    result = b'{"autoCommit":true,"consumeResult":"CR_SUCCESS","order":false,"spentTimeMills":3}'
    member = Member(world, "c1", answering(result))
    await member.join("g", "T")
    message_id = (sent.ext or {})["msgId"]
    answer = await world.call(DIRECTLY, to("c1", msgId=message_id, topic="T", Signature="x"))
    assert (answer.code, answer.body) == (0, result)
    (question,) = member.questions
    assert [record.body for record in records_of(question.body)] == [b"consume me"]
    assert question.ext == to(
        "c1",
        msgId=message_id,
        topic="T",
        brokerName="broker-a",
        topicSysFlag="1",
        groupSysFlag="0",
    )
    await member.leave()


@pytest.mark.parametrize(
    ("message_id", "remark"),
    [
        ("7F0000020000000000000000000F4240", "can not find message by the offset, 1000000"),
        ("nonsense", ""),
        (None, ""),
    ],
)
async def test_a_message_that_is_not_there(
    world: Stored, message_id: str | None, remark: str
) -> None:
    ext = to("c1", topic="T") | ({} if message_id is None else {"msgId": message_id})
    answer = await world.call(DIRECTLY, ext)
    assert answer.code == 1
    assert (answer.remark or "").startswith(remark)


# --- 223 ---


def at(offset: int) -> bytes:
    queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
    return encode_body(GetConsumerStatusBody(message_queue_table={queue: offset}))


async def statuses(world: Stored, **changes: str) -> dict[str, list[int]]:
    answer = await world.call(STATUS, {"topic": "T", "group": "g", **changes})
    assert (answer.code, answer.remark) == (0, None)
    table = decode_body(GetConsumerStatusBody, answer.body or b"").consumer_table
    return {client_id: list(offsets.values()) for client_id, offsets in table.items()}


async def test_all_members_report_their_offsets(world: Stored) -> None:
    members = [Member(world, "c1", answering(at(3))), Member(world, "c2", answering(at(8)))]
    for member in members:
        await member.join("g", "T")
    assert await statuses(world) == {"c1": [3], "c2": [8]}
    assert await statuses(world, clientAddr="c2") == {"c2": [8]}
    question = members[1].questions[-1]
    assert (question.code, question.ext) == (221, {"topic": "T", "group": "g"})
    assert [len(member.questions) for member in members] == [1, 2]
    for member in members:
        await member.leave()


async def test_members_with_useless_answers_are_left_out(world: Stored) -> None:
    def refusing(question: Command) -> Command:
        return response_to(question, 1, "no")

    answers = {"good": answering(at(3)), "mute": silent, "bad": answering(b"{{"), "no": refusing}
    members = [Member(world, name, answer) for name, answer in answers.items()]
    for member in members:
        await member.join("g", "T")
    asked = asyncio.create_task(statuses(world))
    await world.clock.advance(4.9)
    assert not asked.done()
    await world.clock.advance(0.2)
    assert await asked == {"good": [3]}
    for member in members:
        await member.leave()


async def test_a_group_without_members(world: Stored) -> None:
    answer = await world.call(STATUS, {"topic": "T", "group": "g"})
    assert (answer.code, answer.remark) == (
        1,
        "No Any Consumer online in the consumer group: [g]",
    )
    member = Member(world, "c1", silent)
    await member.join("g", "T")
    member.grow_old("g", 27)
    answer = await world.call(STATUS, {"topic": "T", "group": "g"})
    assert answer.code == 1
    assert (answer.remark or "").startswith("the client does not support this feature. version=")
    await member.leave()
