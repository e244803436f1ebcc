"""Requests of pop consumers that are wrong or hostile: a code, a remark, and nothing lost."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

import pytest

from skylark.broker.pop.acknowledge import BATCH_ENTRIES_MAX
from skylark.wire.bodies.pop_body import BatchAck, BatchAckMessageRequestBody
from skylark.wire.codes import RequestCode
from tests.unit.broker.pop.pop_client import MERGING, PopClient, fill, popping
from tests.unit.broker.pop.test_pop_requests import batch


def log_end(client: PopClient) -> int:
    return client.world.features.store.log.max_offset


@pytest.mark.parametrize(
    "handle",
    ["", "x", "0 1 2", "0 1 2 3 4 5 6 7", "0 1 2 3 0 broker-a 0 0 0 0", "9" * 100_000],
)
@MERGING
async def test_handles_that_cannot_be_read(tmp_path: Path, merge: str, handle: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 1)
        (message,) = await client.pop()
        end = log_end(client)
        for answer in (
            await client.ack(message, extraInfo=handle),
            await client.change(message, 60_000, extraInfo=handle),
        ):
            assert answer.code == 1
            assert "extraInfo" in (answer.remark or "")
            assert len(answer.remark or "") < 400
        assert log_end(client) == end
        await client.ack_all([message])  # the connection is still of use


@pytest.mark.parametrize(
    "text",
    [
        "0 {time} 10000 {queue} 0 broker-b 0 0",
        "0 {time} 10000 500 0 broker-a 0 0",
        "0 {time} 10000 -1 0 broker-a 0 0",
        "0 -5 10000 {queue} 0 broker-a 0 0",
        "0 {time} 999999999999999 {queue} 0 broker-a 0 0",
        "0 999999999999999999 1 {queue} 0 broker-a 0 0",
    ],
)
@MERGING
async def test_forged_handles_have_no_effect(tmp_path: Path, merge: str, text: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 1)
        (message,) = await client.pop()
        handle = message.handle
        forged = text.format(time=handle.pop_time_ms, queue=handle.revive_queue_id)
        end = log_end(client)
        answer = await client.ack(message, extraInfo=forged)
        assert answer.code == 0  # as by Java
        assert (answer.remark or "").startswith("no effect: ")
        answer = await client.change(message, 60_000, extraInfo=forged)
        assert answer.code == 1
        assert "no effect" in (answer.remark or "")
        assert log_end(client) == end
        await client.world.clock.advance(20)
        assert len(await client.pop()) == 1


@MERGING
async def test_the_handle_of_another_group_acknowledges_nothing(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        other = PopClient(client.world, group="h")
        await fill(client, 1)
        (message,) = await client.pop()
        await client.world.clock.advance(0.1)  # pops of one time have the same handle
        assert await other.pop() != []
        assert (await other.ack(message)).code == 0
        await client.world.clock.advance(20)
        assert [each.body for each in await client.pop()] == [message.body]
        assert [each.body for each in await other.pop()] == [message.body]


@MERGING
async def test_acks_of_what_is_not_there(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 2)
        message, _ = await client.pop()
        for fields, code in (
            ({"topic": "x"}, 17),
            ({"queueId": 1}, 13),
            ({"queueId": -1}, 13),
            ({"offset": 3}, 208),
            ({"offset": -1}, 208),
            ({"liteTopic": "l"}, 3),
            ({"offset": None}, 1),
            ({"extraInfo": None}, 1),
        ):
            answer = await client.ack(message, **fields)
            assert (answer.code, bool(answer.remark)) == (code, True), fields
            answer = await client.change(message, 60_000, **fields)
            assert (answer.code, bool(answer.remark)) == (code, True), fields
        assert (await client.ack(message, offset=2)).code == 0  # the end itself, as by Java
        assert (await client.change(message, 60_000, offset=2)).code == 208
        await client.world.clock.advance(20)
        assert len(await client.pop()) == 2


@pytest.mark.parametrize("invisible_ms", [0, -1, -(10**12), -(1 << 63)])
@MERGING
async def test_times_that_are_over_bring_messages_back_soon(
    tmp_path: Path, merge: str, invisible_ms: int
) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 1)
        (message,) = await client.pop(invisibleTime=invisible_ms)
        await client.world.clock.advance(10)
        (again,) = await client.pop()
        assert again.body == message.body
        assert (await client.change(again, invisible_ms)).code == 0
        await client.world.clock.advance(10)
        (third,) = await client.pop()
        assert (third.body, third.record.reconsume_times) == (message.body, 2)
        await client.ack_all([third])
        await client.world.clock.advance(60)
        assert await client.pop() == []


@pytest.mark.parametrize("invisible_ms", [0, -1, -(10**17)])
async def test_times_that_are_over_in_order(tmp_path: Path, invisible_ms: int) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 1)
        (message,) = await client.pop(order="true", invisibleTime=invisible_ms)
        (again,) = await client.pop(order="true", invisibleTime=invisible_ms)
        assert again.offset == message.offset
        answer = await client.change(again, invisible_ms)
        assert answer.code == 0
        await client.ack_all([client.changed(again, answer)])
        assert client.committed() == 1


@MERGING
async def test_times_that_never_end_are_refused(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 1)
        for invisible_ms in (10**17, 10**12, (1 << 63) - 1):
            answer = await client.answer(invisibleTime=invisible_ms, pollTime=15_000)
            assert answer.code == 13
            assert answer.remark
        (message,) = await client.pop()
        answer = await client.change(message, (1 << 63) - 1)
        assert answer.code == 1
        await client.ack_all([message])
        await client.world.clock.advance(60)
        assert await client.pop() == []


@MERGING
async def test_bits_beyond_all_measure(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 3)
        messages = await client.pop()
        end = log_end(client)
        megabyte = b64encode(b"\xff" * (1 << 20)).decode()
        for bits, code in ((megabyte, 1), ("no base 64!", 1), ("", 0)):
            answer = await client.batch_ack(batch(messages[0], bit_set=bits))
            assert (answer.code, bool(answer.remark)) == (code, True)
            assert len(answer.remark or "") < 400
        assert log_end(client) == end
        everything = b64encode(b"\xff" * 8_192).decode()
        assert (await client.batch_ack(batch(messages[0], bit_set=everything))).code == 0
        await client.world.clock.advance(60)
        assert await client.pop() == []


@MERGING
async def test_batch_acks_of_what_is_not_there(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 1)
        (message,) = await client.pop()
        end = log_end(client)
        for changes, code in (
            ({"topic": "x"}, 0),
            ({"queue_id": 7}, 0),
            ({"queue_id": -1}, 0),
            ({"retry": "1"}, 0),
            ({"retry": "9"}, 1),
            ({"start_offset": 10**15}, 0),
            ({"start_offset": -5}, 0),
            ({"revive_queue_id": 77}, 0),
            ({"pop_time": -1}, 0),
        ):
            answer = await client.batch_ack(batch(message, **changes))
            assert (answer.code, bool(answer.remark)) == (code, True), changes
        foreign = batch(message)
        foreign.broker_name = "broker-b"
        answer = await client.batch_ack(foreign)
        assert (answer.code, "broker-b" in (answer.remark or "")) == (0, True)
        assert log_end(client) == end
        garbage = await client.world.call(RequestCode.BATCH_ACK_MESSAGE, None, b"{")
        assert garbage.code == 1
        await client.world.clock.advance(20)
        assert len(await client.pop()) == 1


@MERGING
async def test_an_unreadable_entry_undoes_the_whole_batch(tmp_path: Path, merge: str) -> None:
    async with popping(tmp_path, enablePopBufferMerge=merge) as client:
        await fill(client, 1)
        (message,) = await client.pop()
        body = BatchAckMessageRequestBody(
            broker_name="broker-a", acks=[*batch(message).acks, BatchAck(topic="T", bit_set="%")]
        )
        assert (await client.batch_ack(body)).code == 1
        await client.world.clock.advance(20)
        assert len(await client.pop()) == 1


async def test_the_request_of_the_rocksdb_form_is_refused_by_name(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        answer = await client.world.call(RequestCode.POP_ROLLBACK)
        assert answer.code == 3
        assert "POP_ROLLBACK" in (answer.remark or "")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"maxMsgNums": 33}, 29),
        ({"maxMsgNums": 10**9}, 29),
        ({"maxMsgNums": -(10**9)}, 1),
        ({"maxMsgNums": 10**12}, 210),  # Java takes a number that it cannot read for 0
        ({"maxMsgNums": "many"}, 210),
        ({"maxMsgNums": None}, 210),
        ({"queueId": 10**9}, 29),
        ({"expType": "XPATH", "exp": "//a"}, 23),
        ({"expType": "SQL92", "exp": "a = " * 1_000}, 23),
    ],
)
async def test_pops_that_ask_for_what_cannot_be(
    tmp_path: Path, fields: dict[str, object], code: int
) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 1)
        end = log_end(client)
        answer = await client.answer(pollTime=15_000, **fields)
        assert (answer.code, bool(answer.remark), answer.body) == (code, True, None)
        assert len(answer.remark or "") < 8_000
        assert log_end(client) == end
        assert len(client.world.features.pop.service.pops.held) == 0
        assert len(await client.pop()) == 1


@pytest.mark.parametrize("mode", [2, -1, (1 << 31) - 1])
async def test_an_unknown_init_mode_starts_at_the_end(tmp_path: Path, mode: int) -> None:
    async with popping(tmp_path, initPopOffsetByCheckMsgInMem="false") as client:
        await fill(client, 3)
        assert [message.offset for message in await client.pop(initMode=mode)] == [2]


@pytest.mark.parametrize(
    ("mode", "code"),
    [('"PUSH"', 0), ("7", 0), ("null", 1)],  # Java's default, PULL, is set
)
async def test_an_unknown_request_mode_is_reported(tmp_path: Path, mode: str, code: int) -> None:
    async with popping(tmp_path) as client:
        body = f'{{"topic":"T","consumerGroup":"g","mode":{mode},"popShareQueueNum":-1}}'
        answer = await client.world.call(RequestCode.SET_MESSAGE_REQUEST_MODE, None, body.encode())
        assert (answer.code, bool(answer.remark)) == (code, True)


@pytest.mark.parametrize(
    ("poll_ms", "born_ms"), [(10**17, 0), ((1 << 63) - 1, 0), (15_000, (1 << 63) - 1)]
)
async def test_a_pop_that_waits_for_ever_takes_one_place(
    tmp_path: Path, poll_ms: int, born_ms: int
) -> None:
    async with popping(tmp_path) as client:
        waiting = await client.begin(pollTime=poll_ms, bornTime=born_ms)
        await client.world.clock.advance(14)
        assert len(client.world.features.pop.service.pops.held) == 1
        await fill(client, 1)
        assert len(client.popped(await waiting)) == 1
        assert len(client.world.features.pop.service.pops.held) == 0


async def test_a_pop_of_the_past_does_not_wait(tmp_path: Path) -> None:
    async with popping(tmp_path) as client:
        await fill(client, 1)
        for fields in ({"bornTime": -(1 << 63)}, {"pollTime": -(1 << 63)}):
            answer = await client.answer(**fields)
            assert (answer.code, answer.body) == (210, None)
        assert len(await client.pop()) == 1


@pytest.mark.parametrize("code", [RequestCode.NOTIFICATION, RequestCode.POLLING_INFO])
async def test_questions_that_cannot_be_answered(tmp_path: Path, code: RequestCode) -> None:
    async with popping(tmp_path) as client:
        fields = {"consumerGroup": "g", "topic": "T", "queueId": "0", "pollTime": "0"}
        assert (await client.world.call(code, fields)).code == 0
        for changes, expected in (
            ({"topic": "x"}, 17),
            ({"queueId": "1"}, 29),
            ({"consumerGroup": "bad group"}, 26),
        ):
            answer = await client.world.call(code, {**fields, **changes})
            assert (answer.code, bool(answer.remark)) == (expected, True), changes


async def test_a_batch_ack_of_very_many_entries(tmp_path: Path) -> None:
    """Each of them is wrong: nothing is stored, and nothing is kept."""
    async with popping(tmp_path) as client:
        await fill(client, 1)
        (message,) = await client.pop()
        end = log_end(client)
        (entry,) = batch(message, group="h", start_offset=10**6).acks
        body = BatchAckMessageRequestBody(broker_name="broker-a", acks=[entry] * BATCH_ENTRIES_MAX)
        answer = await client.batch_ack(body)
        assert (answer.code, bool(answer.remark)) == (0, True)
        assert log_end(client) == end
