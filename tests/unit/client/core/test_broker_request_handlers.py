"""Requests that a client serves, asked over a connection as a broker does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylark.client.core.broker_request_handlers import TransactionCheck
from skylark.client.core.client_instance import ClientInstance
from skylark.core.errors import ConnectionClosedError
from skylark.wire.bodies.admin_body import (
    CMResult,
    ConsumeMessageDirectlyResult,
    ConsumerRunningInfo,
    GetConsumerStatusBody,
    ResetOffsetBody,
)
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.headers.send import ReplyMessageRequestHeader
from skylark.wire.message import MessageRecord, encode_record, pack_host
from skylark.wire.properties import encode_properties
from tests.unit.client.scripted import ScriptedServer
from tests.unit.client.worlds import FakeConsumer, FakeProducer, World, world

QUEUE = MessageQueue(topic="T", broker_name="a", queue_id=1)


def message(**properties: str) -> bytes:
    return encode_record(
        topic="T",
        body=b"x",
        properties=encode_properties(properties).encode(),
        queue_id=1,
        queue_offset=2,
        log_offset=3,
        sys_flag=0,
        born_timestamp=1,
        born_host=pack_host("10.0.0.1", 1),
        store_timestamp=2,
        store_host=pack_host("10.0.0.2", 2),
        reconsume_times=0,
        flag=0,
    )


class Producer(FakeProducer):
    def __init__(self, group: str, *topics: str) -> None:
        super().__init__(group, *topics)
        self.checks: list[TransactionCheck] = []

    def check_transaction(self, check: TransactionCheck) -> None:
        self.checks.append(check)


class Consumer(FakeConsumer):
    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None:
        self.reset.append((topic, offsets))

    def consumer_status(self, topic: str) -> Mapping[MessageQueue, int]:
        return {QUEUE: 7} if topic == "T" else {}

    def running_info(self, *, with_stacks: bool) -> ConsumerRunningInfo:
        return ConsumerRunningInfo(properties={"stacks": str(with_stacks)})

    async def consume_directly(
        self, record: MessageRecord, broker_name: str | None
    ) -> ConsumeMessageDirectlyResult:
        return ConsumeMessageDirectlyResult(
            consume_result=CMResult.CR_SUCCESS, remark=f"{record.topic} of {broker_name}"
        )


class Broker:
    """The broker's end of the connection of heartbeats."""

    def __init__(self, server: ScriptedServer, instance: ClientInstance, of: World) -> None:
        self.server = server
        self.instance = instance
        self.world = of

    async def ask(self, code: int, body: bytes | None = None, **ext: str) -> Command:
        return await self.world.finish(self._call(Command(code=code, ext=ext, body=body)))

    async def _call(self, request: Command) -> Command:
        (connection,) = self.server.connections
        return await connection.call(request, 30.0)

    async def tell(self, code: int, body: bytes | None = None, **ext: str) -> None:
        for connection in self.server.connections:
            connection.oneway(Command(code=code, ext=ext, body=body))
        await self.world.clock.drain()


@asynccontextmanager
async def serving(root: Path, *members: FakeProducer) -> AsyncIterator[Broker]:
    async with world(root) as w:
        broker, name_server = ScriptedServer(w.network, w.clock), ScriptedServer(w.network, w.clock)
        name_server.serve_route("T", a=await broker.start())
        async with w.client(namesrv=await name_server.start()) as instance:
            for member in members:
                if isinstance(member, FakeConsumer):
                    await instance.register_consumer(member)
                else:
                    await instance.register_producer(member)
            await instance.refresh_route("T")
            assert await instance.heartbeat_all()
            yield Broker(broker, instance, w)
        await w.finish(broker.stop())
        await w.finish(name_server.stop())


async def test_checks_go_to_the_producer_of_the_transaction(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    producer = Producer("p", "T")
    async with serving(tmp_path, producer, FakeProducer("plain")) as broker:
        ext = {"tranStateTableOffset": "5", "commitLogOffset": "6", "bname": "a"}
        code = RequestCode.CHECK_TRANSACTION_STATE
        await broker.tell(code, message(PGROUP="p", UNIQ_KEY="U"), **ext)
        (check,) = producer.checks
        assert check.address == broker.server.address
        assert check.broker_name == "a"
        assert (check.header.tran_state_table_offset, check.header.commit_log_offset) == (5, 6)
        assert check.record.properties["UNIQ_KEY"] == "U"
        await broker.tell(code, message(PGROUP="plain"), **ext)
        await broker.tell(code, message(), **ext)
        assert len(producer.checks) == 1
    assert "no producer of group plain here can answer a transaction check" in caplog.text


async def test_a_changed_group_wakes_the_rebalance(tmp_path: Path) -> None:
    consumer = Consumer("g", "T")
    async with serving(tmp_path, consumer) as broker:
        await broker.world.clock.advance(seconds=2)  # never twice within a second
        before = consumer.rebalances
        await broker.tell(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, consumerGroup="g")
        assert consumer.rebalances == before + 1


async def test_offsets_are_reset_and_shown(tmp_path: Path) -> None:
    consumer = Consumer("g", "T")
    async with serving(tmp_path, consumer, FakeConsumer("plain", "T")) as broker:
        body = encode_body(ResetOffsetBody(offset_table={QUEUE: 3}))
        code = RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        await broker.tell(code, body, group="g", topic="T", timestamp="1")
        await broker.tell(code, body, group="plain", topic="T", timestamp="1")
        await broker.tell(code, body, group="unknown", topic="T", timestamp="1")
        assert consumer.reset == [("T", {QUEUE: 3})]
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        answer = await broker.ask(code, group="g", topic="T")
        shown = decode_body(GetConsumerStatusBody, answer.body or b"")
        assert (answer.code, shown.message_queue_table) == (0, {QUEUE: 7})
        answer = await broker.ask(code, group="unknown", topic="T")
        shown = decode_body(GetConsumerStatusBody, answer.body or b"")
        assert (answer.code, shown.message_queue_table) == (0, {})


async def test_running_info_and_direct_consumption(tmp_path: Path) -> None:
    async with serving(tmp_path, Consumer("g", "T")) as broker:
        code = RequestCode.GET_CONSUMER_RUNNING_INFO
        answer = await broker.ask(code, consumerGroup="g", clientId="c", jstackEnable="true")
        info = decode_body(ConsumerRunningInfo, answer.body or b"")
        assert (answer.code, info.properties) == (0, {"stacks": "True"})
        missing = "The Consumer Group <x> not exist in this consumer"
        answer = await broker.ask(code, consumerGroup="x", clientId="c")
        assert (answer.code, answer.remark) == (1, missing)
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        answer = await broker.ask(code, message(), consumerGroup="g", brokerName="b")
        result = decode_body(ConsumeMessageDirectlyResult, answer.body or b"")
        assert (result.consume_result, result.remark) == (CMResult.CR_SUCCESS, "T of b")
        answer = await broker.ask(code, message(), consumerGroup="x")
        assert (answer.code, answer.remark) == (1, missing)
        answer = await broker.ask(code, b"garbage", consumerGroup="g")
        assert answer.code == 1


async def test_replies_are_taken_or_refused(tmp_path: Path) -> None:
    class Replies:
        def __init__(self) -> None:
            self.bodies: list[bytes] = []

        def reply_arrived(
            self, address: str, header: ReplyMessageRequestHeader, body: bytes
        ) -> None:
            if body == b"bad":
                raise ZeroDivisionError(f"{address} {header.topic}")
            self.bodies.append(body)

    header = {
        "producerGroup": "p", "topic": "c_REPLY_TOPIC", "defaultTopic": "d",
        "defaultTopicQueueNums": "4", "queueId": "0", "sysFlag": "0", "bornTimestamp": "1",
        "flag": "0", "bornHost": "10.0.0.1:1", "storeHost": "10.0.0.2:2",
    }  # fmt: skip
    code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
    replies = Replies()
    async with serving(tmp_path, Consumer("g", "T")) as broker:
        assert (await broker.ask(code, b"nobody waits", **header)).code == 0
        broker.instance.add_reply_listener(replies)
        assert (await broker.ask(code, b"good", **header)).code == 0
        answer = await broker.ask(code, b"bad", **header)
        assert (answer.code, answer.remark) == (1, "process reply message fail")
        broker.instance.remove_reply_listener(replies)
        assert (await broker.ask(code, b"too late", **header)).code == 0
    assert replies.bodies == [b"good"]


async def test_other_requests_are_refused_by_name(tmp_path: Path) -> None:
    async with serving(tmp_path, Consumer("g", "T")) as broker:
        answer = await broker.ask(12345)
        assert (answer.code, answer.remark) == (3, " request type 12345 not supported")


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_handler_at_work_does_not_hold_up_the_stop(tmp_path: Path, stubborn: bool) -> None:
    class Hanging(Consumer):
        def __init__(self, group: str, *topics: str) -> None:
            super().__init__(group, *topics)
            self.gate = asyncio.Event()
            self.cancelled = False

        async def consume_directly(
            self, record: MessageRecord, broker_name: str | None
        ) -> ConsumeMessageDirectlyResult:
            try:
                await self.gate.wait()
            except asyncio.CancelledError:
                self.cancelled = True
                if not stubborn:
                    raise
                await self.gate.wait()
            return ConsumeMessageDirectlyResult()

    consumer = Hanging("g", "T")
    async with serving(tmp_path, consumer) as broker:
        (connection,) = broker.server.connections
        ext = {"consumerGroup": "g"}
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        asked = connection.call(Command(code=code, ext=ext, body=message()), 99.0)
        await broker.world.clock.drain()
        await broker.world.finish(broker.instance.release())
        assert consumer.cancelled
        consumer.gate.set()
        with pytest.raises(ConnectionClosedError):
            await broker.world.finish(asked)
