"""An endpoint without a socket, which uses a real broker through ``broker.api`` alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from skylark.broker.api import (
    EndTransactionResult,
    Pending,
    PullResult,
    RecallResult,
    ReplyResult,
    SendBackResult,
    SendRequest,
    SendResult,
    result_of,
)
from skylark.core.errors import BrokerError
from skylark.filter.errors import FilterSyntaxError
from skylark.wire.batch import BatchMessage, encode_batch
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.config import SubscriptionGroupConfig
from skylark.wire.bodies.heartbeat import (
    SubscriptionData,
)
from skylark.wire.codes import RequestCode, ResponseCode
from tests.unit.broker.fake_endpoint import (
    REPLY_TOPIC,
    FakeEndpoint,
    FakePeer,
    bodies,
    join,
    send_back_request,
    send_header,
)
from tests.unit.broker.stored import OWN, SUSPEND, await_flushes, stored
from tests.unit.broker.test_service_interception import Watching

# --- storing ---


async def test_a_message_and_a_batch(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        endpoint = FakeEndpoint(world.broker.services)
        sent = await endpoint.sent(UNIQ_KEY="U1")
        assert (sent.code, sent.queue_offset, sent.unique_id) == (0, 0, "U1")
        batch = [BatchMessage(body, b"") for body in (b"a", b"b")]
        together = await endpoint.sent(body=encode_batch(batch), batch=True)
        assert together.queue_offset == 1
        assert len((together.message_ids or "").split(",")) == 2
        records = world.records("T")
        assert [record.body for record in records] == [b"hello", b"a", b"b"]
        assert {record.born_host for record in records} == {endpoint.peer.born_host}


async def test_a_half_message_is_committed_once(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        endpoint = FakeEndpoint(world.broker.services)
        half = await endpoint.sent(TRAN_MSG="true", PGROUP="pg", UNIQ_KEY="U1")
        assert world.records("T") == []
        assert endpoint.end(half, 8) == EndTransactionResult()
        assert [record.body for record in world.records("T")] == [b"hello"]
        assert endpoint.end(half, 8) == EndTransactionResult(), "the same decision again"
        with pytest.raises(BrokerError):
            endpoint.end(half, 12)
        assert len(world.records("T")) == 1


async def test_a_message_waits_for_the_disk(tmp_path: Path) -> None:
    async with stored(tmp_path, flushDiskType="SYNC_FLUSH") as world:
        await_flushes(world)
        world.add_topic("T", 1)
        await world.features.puts.durability.topics_saved()
        endpoint = FakeEndpoint(world.broker.services)
        pending = endpoint.send(UNIQ_KEY="U1")
        assert isinstance(pending, Pending)
        result = await result_of(pending)
        assert (result.code, result.unique_id) == (0, "U1")


async def test_a_message_that_is_sent_back_is_a_retry_or_a_dead_letter(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        endpoint = FakeEndpoint(world.broker.services)
        sent = await endpoint.sent()
        assert await endpoint.send_back(sent.log_offset) == SendBackResult("%RETRY%g")
        await world.clock.advance(seconds=10)
        (retried,) = world.records("%RETRY%g")
        assert (retried.body, retried.reconsume_times) == (b"hello", 1)
        assert await endpoint.send_back(retried.log_offset, -1) == SendBackResult("%DLQ%g")
        assert [dead.reconsume_times for dead in world.records("%DLQ%g")] == [2]
        with pytest.raises(BrokerError, match="look message by offset failed, 7"):
            await endpoint.send_back(7)
        world.features.groups.table.update(
            SubscriptionGroupConfig(group_name="none", retry_queue_nums=0)
        )
        assert await endpoint.send_back(0, group="none") == SendBackResult(None)


async def test_several_kinds_of_requests_are_one_run(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        endpoint = FakeEndpoint(world.broker.services)
        sent = await endpoint.sent()
        again = SendRequest(send_header("T"), b"again")
        requests = [again, send_back_request(sent.log_offset, -1), ValueError("unreadable"), again]
        outcomes = world.broker.services.puts.run(endpoint.peer, requests)
        assert outcomes[2] is requests[2]
        stored_at = [await result_of(outcomes[place]) for place in (0, 1, 3)]
        assert [type(each) for each in stored_at] == [SendResult, SendBackResult, SendResult]
        assert [record.body for record in world.records("T")] == [b"hello", b"again", b"again"]
        assert [record.body for record in world.records("%DLQ%g")] == [b"hello"]


async def test_a_reply_reaches_the_requester(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        requester, replier = (
            FakeEndpoint(world.broker.services, FakePeer(port)) for port in (1, 2)
        )
        join(requester, "A")
        result = await replier.reply("A")
        (record,) = world.records(REPLY_TOPIC)
        assert result == ReplyResult(0, None, record.log_offset, 0)
        pushed = requester.peer.sent[-1]
        assert (pushed.code, pushed.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"reply")
        assert (pushed.ext or {})["bornHost"] == "10.0.0.1:2"
        unknown = await replier.reply("nobody")
        assert unknown.failure is not None
        assert (unknown.code, unknown.log_offset is not None) == (1, True)
        with pytest.raises(BrokerError, match="no body"):
            await replier.reply("A", b"")


async def test_a_timed_message_is_recalled(tmp_path: Path) -> None:
    async with stored(tmp_path, recallMessageEnable="true") as world:
        endpoint = FakeEndpoint(world.broker.services)
        sent = await endpoint.sent(TIMER_DELAY_SEC="10", UNIQ_KEY="U1")
        assert sent.recall_handle is not None
        assert await endpoint.recall(sent.recall_handle) == RecallResult("U1")
        await world.clock.advance(seconds=20)
        assert world.records("T") == []
        with pytest.raises(BrokerError, match="recall handle is invalid"):
            await endpoint.recall("?")


# --- reading ---


async def test_pulls_now_and_later(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        endpoint = FakeEndpoint(world.broker.services)
        await endpoint.sent(body=b"first")
        found = endpoint.pull()
        assert isinstance(found, PullResult)
        assert (found.code, found.next_offset, found.max_offset) == (0, 1, 1)
        assert bodies(found) == [b"first"]
        outcomes = endpoint.hold(1)
        assert len(world.features.pull.service.held) == 1
        await endpoint.sent(body=b"second")
        await world.clock.drain()
        assert [bodies(each) for each in outcomes] == [[b"second"]]
        assert sum(file.leases for file in world.features.store.log.files.files) == 0
        nothing = endpoint.hold(2)
        await world.clock.advance(seconds=15)
        (outcome,) = nothing
        assert isinstance(outcome, PullResult)
        assert outcome.code == ResponseCode.PULL_NOT_FOUND
        with pytest.raises(BrokerError, match="not exist") as refused:
            endpoint.pull(topic="Unknown")
        assert refused.value.code == ResponseCode.TOPIC_NOT_EXIST


@pytest.mark.parametrize("is_watched", [False, True], ids=["plain", "with an interceptor"])
async def test_a_held_pull_is_cancelled(tmp_path: Path, is_watched: bool) -> None:
    watching = Watching()
    async with stored(tmp_path, None, [watching] if is_watched else []) as world:
        world.add_topic("T", 1)
        endpoint = FakeEndpoint(world.broker.services)
        outcomes: list[object] = []
        held = []
        for _ in range(3):
            pending = endpoint.pull(sys_flag=OWN | SUSPEND)
            assert isinstance(pending, Pending)
            pending.then(outcomes.append)
            held.append(pending)
        assert held[0].cancel()
        assert held[0].cancel(), "again does nothing"
        assert len(world.features.pull.service.held) == 2
        endpoint.peer.is_reading = False
        await endpoint.sent()
        await world.clock.drain()
        assert held[1].cancel(), "it has woken, and waits for its client"
        endpoint.peer.read_all()
        (outcome,) = outcomes
        assert bodies(outcome) == [b"hello"]
        assert not held[2].cancel(), "it has its result"
        assert sum(file.leases for file in world.features.store.log.files.files) == 0
        codes = [code for _, name, _, code in watching.take() if name == "PULL_MESSAGE"]
        assert codes == ([None, None, 0] if is_watched else [])


async def test_a_held_pull_is_refused_when_its_topic_is_gone(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 1)
        outcomes = FakeEndpoint(world.broker.services).hold()
        world.features.topics.table.delete("T", ())
        await world.clock.advance(seconds=15)
        (outcome,) = outcomes
        assert isinstance(outcome, BrokerError)
        assert outcome.code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_client_that_does_not_read_is_woken_when_it_does(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 1)
        endpoint = FakeEndpoint(world.broker.services)
        outcomes = endpoint.hold()
        endpoint.peer.is_reading = False
        await endpoint.sent()
        await world.clock.drain()
        assert outcomes == []
        endpoint.peer.read_all()
        assert [bodies(each) for each in outcomes] == [[b"hello"]]


# --- groups ---


async def test_offsets(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        endpoint = FakeEndpoint(world.broker.services)
        offsets, peer = endpoint.services.offsets, endpoint.peer
        for _ in range(3):
            await endpoint.sent()
        with pytest.raises(BrokerError, match="Group g not exist"):
            offsets.commit(peer, "g", "T", 0, 2)
        assert endpoint.services.groups.get("g") is None
        assert len(bodies(endpoint.pull())) == 3  # a pull creates its group
        assert endpoint.services.groups.get("g") is not None
        assert offsets.commit(peer, "g", "T", 0, 2)
        assert offsets.committed(peer, "g", "T", 0) == 2
        assert (offsets.min_offset(peer, "T", 0), offsets.max_offset(peer, "T", 0)) == (0, 3)
        assert offsets.offset_by_time(peer, "T", 0, 0) == 0
        assert offsets.earliest_store_time(peer, "T", 0) == world.records("T")[0].store_timestamp
        assert offsets.earliest_store_time(peer, "Unknown", 0) == -1
        with pytest.raises(BrokerError) as refused:
            offsets.committed(peer, "other", "T", 0, set_zero_if_not_found=False)
        assert refused.value.code == ResponseCode.QUERY_NOT_FOUND
        topic = endpoint.services.topics.get("T")
        assert topic is not None
        assert topic.read_queue_nums == 1


async def test_locks(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        locks, peer = world.broker.services.locks, FakePeer()
        queues = [MessageQueue(topic="T", broker_name="b", queue_id=number) for number in (0, 1)]
        assert locks.lock(peer, "g", "A", queues[:1]) == queues[:1]
        assert locks.lock(peer, "g", "B", queues) == queues[1:]
        locks.unlock(peer, "g", "A", queues)
        assert locks.lock(peer, "g", "B", queues) == queues


async def test_members_come_and_go(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 1)
        a, b = (FakeEndpoint(world.broker.services, FakePeer(port)) for port in (1, 2))
        clients = world.broker.services.clients
        join(a, "A")
        join(a, "A")
        join(b, "B")
        assert (a.peer.client_id, b.peer.client_id) == ("A", "B")
        assert clients.consumer_ids(a.peer, "g") == ["A", "B"]
        assert [each.code for each in a.peer.sent][-1] == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        clients.unregister(b.peer, producer_group="pg", consumer_group="g")
        assert clients.consumer_ids(a.peer, "g") == ["A"]
        assert world.features.groups.producers.find("B") is None
        with pytest.raises(BrokerError, match="no consumer for this group"):
            clients.consumer_ids(a.peer, "other")


async def test_nothing_is_left_of_a_client_that_is_gone(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 1)
        a, b = (FakeEndpoint(world.broker.services, FakePeer(port)) for port in (1, 2))
        join(a, "A")
        join(b, "B")
        gone, kept = [a.hold(), a.hold()], b.hold()
        a.peer.close()
        assert gone == [[None], [None]]
        assert world.broker.services.clients.consumer_ids(b.peer, "g") == ["B"]
        assert world.features.groups.producers.find("A") is None
        assert len(world.features.pull.service.held) == 1
        await b.sent()
        await world.clock.drain()
        assert [bodies(each) for each in kept] == [[b"hello"]]
        assert gone == [[None], [None]]


async def test_a_filter_that_cannot_be_used(tmp_path: Path) -> None:
    async with stored(tmp_path, enablePropertyFilter="true") as world:
        check = partial(world.broker.services.clients.check_filter, FakePeer(), "g")
        check(SubscriptionData(topic="T", sub_string="a || b"))
        check(SubscriptionData(topic="T", sub_string="a > 5", expression_type="SQL92"))
        with pytest.raises(FilterSyntaxError):
            check(SubscriptionData(topic="T", sub_string="a >", expression_type="SQL92"))
