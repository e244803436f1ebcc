"""Typed requests against a real broker; what it never says is scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from skylark.client.core.broker_calls import PullStatus
from skylark.client.core.broker_connections import BrokerConnections
from skylark.core.errors import (
    BrokerError,
    QueryNotFoundError,
    RemoteProtocolError,
    TopicNotExistError,
)
from skylark.core.hashing import decode_offset_id
from skylark.filter.errors import FilterSyntaxError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import SubscriptionData
from skylark.wire.codes import CURRENT_VERSION, PullSysFlag, RequestCode
from skylark.wire.command import Command
from skylark.wire.fields import decode_ext, encode_ext
from skylark.wire.headers.pull import PullMessageRequestHeader, QueryMessageRequestHeader
from skylark.wire.headers.send import (
    ConsumerSendMsgBackRequestHeader,
    RecallMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from skylark.wire.headers.txn import EndTransactionRequestHeader
from skylark.wire.message import iter_records
from tests.unit.client.scripted import ScriptedServer
from tests.unit.client.worlds import FakeConsumer, World, world

QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=0)
ADDRESS = "127.0.0.1:20911"


class Linked:
    """A link to a broker that has the topic T and knows group g."""

    def __init__(self, of: World, link: BrokerConnections) -> None:
        self.world = of
        self.link = link
        self.calls = link.calls

    async def send(self, body: bytes, properties: str = "") -> SendMessageResponseHeader:
        header = SendMessageRequestHeaderV2(
            producer_group="p", topic="T", default_topic="TBW102", default_topic_queue_nums=4,
            queue_id=0, sys_flag=0, born_timestamp=self.world.clock.now_ms(), flag=0,
            properties=properties,
        )  # fmt: skip
        request = Command(code=RequestCode.SEND_MESSAGE_V2, ext=encode_ext(header), body=body)
        answer = await self.link.call(ADDRESS, request)
        assert answer.code == 0
        return decode_ext(SendMessageResponseHeader, answer.ext)


@asynccontextmanager
async def linked(root: Path) -> AsyncIterator[Linked]:
    async with world(root) as w:
        await w.add_name_server()
        await w.add_broker()
        await w.add_topic("T", 1)
        async with w.client("127.0.0.1@me") as instance:
            await instance.register_consumer(FakeConsumer("g", "T"))
            await instance.refresh_route("T")
            await instance.heartbeat_all()
            link = instance.open_link()
            yield Linked(w, link)
            await link.release()


async def test_offsets(tmp_path: Path) -> None:
    async with linked(tmp_path) as to:
        calls = to.calls
        start_ms = to.world.clock.now_ms()
        await to.send(b"1")
        await to.world.clock.advance(seconds=10)
        await to.send(b"2")
        assert await calls.max_offset(ADDRESS, QUEUE) == 2
        assert await calls.min_offset(ADDRESS, QUEUE) == 0
        assert await calls.search_offset(ADDRESS, QUEUE, start_ms + 1) == 1
        assert await calls.search_offset(ADDRESS, QUEUE, start_ms, upper=True) == 0
        with pytest.raises(QueryNotFoundError) as caught:
            await calls.query_offset(ADDRESS, "g", QUEUE, set_zero_if_not_found=False)
        assert str(caught.value).startswith("CODE: 22  DESC: ")
        assert str(caught.value).endswith(f" BROKER: {ADDRESS}")
        await calls.update_offset(ADDRESS, "g", QUEUE, 1)
        assert await calls.query_offset(ADDRESS, "g", QUEUE) == 1
        await calls.update_offset(ADDRESS, "g", QUEUE, 2, oneway=True)
        await to.world.clock.drain()
        assert await calls.query_offset(ADDRESS, "g", QUEUE) == 2
        with pytest.raises(TopicNotExistError):
            await calls.update_offset(ADDRESS, "g", MessageQueue(topic="U"), 1)


def pull_header(offset: int) -> PullMessageRequestHeader:
    return PullMessageRequestHeader(
        consumer_group="g", topic="T", queue_id=0, queue_offset=offset, max_msg_nums=32,
        sys_flag=PullSysFlag.SUBSCRIPTION, commit_offset=0, suspend_timeout_millis=0,
        subscription="*", sub_version=1, expression_type="TAG",
    )  # fmt: skip


async def test_pulls(tmp_path: Path) -> None:
    async with linked(tmp_path) as to:
        await to.send(b"1")
        await to.send(b"2")
        found = await to.calls.pull(ADDRESS, pull_header(0), "broker-a")
        assert found.status is PullStatus.FOUND
        assert (found.next_offset, found.min_offset, found.max_offset) == (2, 0, 2)
        assert found.suggested_broker_id == 0
        assert [record.body for record in iter_records(found.body)] == [b"1", b"2"]
        nothing = await to.calls.pull(ADDRESS, pull_header(2), "broker-a", lite=True)
        assert (nothing.status, nothing.next_offset) == (PullStatus.NO_NEW_MSG, 2)
        moved = await to.calls.pull(ADDRESS, pull_header(9), "broker-a")
        assert (moved.status, moved.next_offset, moved.body) == (PullStatus.OFFSET_ILLEGAL, 2, b"")


async def test_members_and_locks(tmp_path: Path) -> None:
    async with linked(tmp_path) as to:
        calls = to.calls
        assert await calls.consumer_ids(ADDRESS, "g") == ["127.0.0.1@me"]
        with pytest.raises(BrokerError, match="no consumer for this group, h"):
            await calls.consumer_ids(ADDRESS, "h")
        assert await calls.lock_queues(ADDRESS, "g", "me", [QUEUE]) == {QUEUE}
        assert await calls.lock_queues(ADDRESS, "g", "other", [QUEUE]) == frozenset()
        await calls.unlock_queues(ADDRESS, "g", "me", [QUEUE])
        assert await calls.lock_queues(ADDRESS, "g", "other", [QUEUE]) == {QUEUE}
        await calls.unlock_queues(ADDRESS, "g", "other", [QUEUE], oneway=True)
        await to.world.clock.drain()
        assert await calls.lock_queues(ADDRESS, "g", "me", [QUEUE]) == {QUEUE}


async def test_filters_are_checked(tmp_path: Path) -> None:
    async with linked(tmp_path) as to:
        tags = SubscriptionData(topic="T", sub_string="A")
        await to.calls.check_client(ADDRESS, "me", "g", tags)
        sql = SubscriptionData(topic="T", sub_string="a > ", expression_type="SQL92")
        with pytest.raises(BrokerError) as caught:
            await to.calls.check_client(ADDRESS, "me", "g", sql)
        assert caught.value.broker_address == ADDRESS


async def test_an_expression_that_a_broker_cannot_parse_has_an_error_of_its_own(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        address = await server.start()
        server.answer(RequestCode.CHECK_CLIENT_CONFIG, 23)
        server.answer(RequestCode.PULL_MESSAGE, 23)
        sql = SubscriptionData(topic="T", sub_string="a > ", expression_type="SQL92")
        async with w.client(namesrv=address) as instance:
            link = instance.open_link()
            for call in (
                link.calls.check_client(address, "me", "g", sql),
                link.calls.pull(address, pull_header(0), "a"),
            ):
                with pytest.raises(FilterSyntaxError) as caught:
                    await call
                error = caught.value
                assert (error.code, error.remark, error.position) == (23, "scripted 23", None)
                assert str(error) == f"CODE: 23  DESC: scripted 23 BROKER: {address}"
            await link.release()
        await w.finish(server.stop())


async def test_single_messages(tmp_path: Path) -> None:
    async with linked(tmp_path) as to:
        sent = await to.send(b"1", "KEYS\x01k\x02UNIQ_KEY\x01U\x02")
        await to.world.clock.drain()
        log_offset = decode_offset_id(sent.msg_id).log_offset
        record = await to.calls.view_message(ADDRESS, log_offset)
        assert record.body == b"1"
        now_ms = to.world.clock.now_ms()
        query = QueryMessageRequestHeader(
            topic="T", key="k", max_num=8, begin_timestamp=0, end_timestamp=now_ms + 1
        )
        found = await to.calls.query_messages(ADDRESS, query)
        assert [each.body for each in found] == [b"1"]
        query.key = "other"
        assert await to.calls.query_messages(ADDRESS, query) == []


async def test_a_message_is_sent_back(tmp_path: Path) -> None:
    async with linked(tmp_path) as to:
        sent = await to.send(b"1")
        header = ConsumerSendMsgBackRequestHeader(
            offset=decode_offset_id(sent.msg_id).log_offset,
            group="g",
            delay_level=1,
            origin_topic="T",
            max_reconsume_times=16,
        )
        await to.calls.send_back(ADDRESS, header, "broker-a")
        await to.world.clock.advance(seconds=3)
        retries = MessageQueue(topic="%RETRY%g", broker_name="broker-a", queue_id=0)
        assert await to.calls.max_offset(ADDRESS, retries) == 1


async def test_the_ends_of_transactions_and_recalls(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        address = await server.start()
        server.answer_ok(RequestCode.RECALL_MESSAGE, {"msgId": "U"})
        async with w.client(namesrv=address) as instance:
            link = instance.open_link()
            end = EndTransactionRequestHeader(
                producer_group="p", tran_state_table_offset=1, commit_log_offset=2,
                commit_or_rollback=8, msg_id="U",
            )  # fmt: skip
            await link.calls.end_transaction(address, end, "a", remark="why")
            recall = RecallMessageRequestHeader(topic="T", recall_handle="h")
            assert await link.calls.recall(address, recall, "a") == "U"
            (request,) = server.of(RequestCode.END_TRANSACTION)
            assert request.is_oneway
            assert request.remark == "why"
            assert decode_ext(EndTransactionRequestHeader, request.ext) == end
            assert (request.ext or {})["bname"] == "a"
            assert request.version == CURRENT_VERSION
            await link.release()
        await w.finish(server.stop())


async def test_flow_control_and_unreadable_answers_are_errors(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        address = await server.start()
        server.answer(RequestCode.PULL_MESSAGE, 215, 0)
        server.answer_ok(RequestCode.GET_CONSUMER_LIST_BY_GROUP, body=b"no JSON")
        server.answer_ok(RequestCode.VIEW_MESSAGE_BY_ID, body=b"no record")
        async with w.client(namesrv=address) as instance:
            link = instance.open_link()
            with pytest.raises(BrokerError, match="scripted 215") as caught:
                await link.calls.pull(address, pull_header(0), "a")
            assert (caught.value.code, caught.value.response_code) == (215, 215)
            with pytest.raises(RemoteProtocolError):  # success without its numbers
                await link.calls.pull(address, pull_header(0), "a")
            with pytest.raises(RemoteProtocolError):
                await link.calls.consumer_ids(address, "g")
            with pytest.raises(RemoteProtocolError):
                await link.calls.view_message(address, 0)
            await link.release()
        await w.finish(server.stop())
