"""An endpoint without a socket, which uses a real broker through ``broker.api`` alone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import pytest

from skylark.broker.api import (
    BrokerServices,
    EndTransactionRequest,
    EndTransactionResult,
    Identity,
    Operation,
    Peer,
    Pending,
    PullOutcome,
    PullRequest,
    PullResult,
    Resource,
    SendRequest,
    SendResult,
)
from skylark.core.errors import BrokerError, NoPermissionError
from skylark.filter.errors import FilterSyntaxError
from skylark.wire.batch import BatchMessage, encode_batch
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerData,
    SubscriptionData,
)
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import encode_body
from skylark.wire.headers.pull import PullMessageRequestHeader
from skylark.wire.headers.send import SendMessageRequestHeaderV2
from skylark.wire.headers.txn import EndTransactionRequestHeader
from skylark.wire.message import pack_host
from skylark.wire.properties import encode_properties
from tests.unit.broker.stored import OWN, SUSPEND, await_flushes, records_of, stored

ResultT = TypeVar("ResultT")


class FakePeer:
    """A client of the fake endpoint."""

    def __init__(self, port: int = 1) -> None:
        self.client_id: str | None = None
        self.identity: Identity | None = None
        self.remote_address = ("10.0.0.1", port)
        self.born_host = pack_host(*self.remote_address)
        self.is_closing = False
        self.is_reading = True
        self.sent: list[Command] = []
        self._on_close: list[Callable[[], object]] = []
        self._when_writable: list[Callable[[], None]] = []

    def on_close(self, callback: Callable[[], object]) -> None:
        self._on_close.append(callback)

    def call_when_writable(self, callback: Callable[[], None]) -> None:
        self._when_writable.append(callback)

    def oneway(self, request: Command) -> None:
        self.sent.append(request)

    def call(self, request: Command, _timeout_s: float) -> asyncio.Future[Command]:
        self.sent.append(request)
        answered: asyncio.Future[Command] = asyncio.get_running_loop().create_future()
        answered.set_result(response_to(request, ResponseCode.SUCCESS))
        return answered

    def read_all(self) -> None:
        self.is_reading = True
        callbacks, self._when_writable = self._when_writable, []
        for callback in callbacks:
            callback()

    def close(self) -> None:
        self.is_closing = True
        callbacks, self._on_close = self._on_close, []
        for callback in callbacks:
            callback()


class FakeEndpoint:
    """What an endpoint does with one client, without any bytes: admit, call a service, report."""

    def __init__(self, services: BrokerServices, peer: FakePeer | None = None) -> None:
        self.services = services
        self.peer = peer or FakePeer()

    def send(
        self, topic: str = "T", body: bytes = b"hello", *, batch: bool = False, **properties: str
    ) -> SendResult | Pending[SendResult]:
        header = SendMessageRequestHeaderV2(
            producer_group="pg",
            topic=topic,
            default_topic="TBW102",
            default_topic_queue_nums=1,
            queue_id=0,
            sys_flag=4 if "TRAN_MSG" in properties else 0,
            born_timestamp=1_794_710_000_000,
            flag=0,
            properties=encode_properties(properties),
            batch=batch,
        )
        request = SendRequest(header, body)
        result: SendResult | Pending[SendResult] = self._admitted(
            RequestCode.SEND_MESSAGE_V2, [Resource("topic", topic)], lambda: self._put(request)
        )
        return result

    async def sent(self, *args: Any, **options: Any) -> SendResult:
        """Send, and wait: the first message of a new topic waits until the topic is saved."""
        return await waited_for(self.send(*args, **options))

    def end(self, half: SendResult, decision: int) -> EndTransactionResult:
        header = EndTransactionRequestHeader(
            producer_group="pg",
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.log_offset,
            commit_or_rollback=decision,
            msg_id=half.unique_id,
            transaction_id=half.unique_id,
        )
        request = EndTransactionRequest(header)
        result = self._admitted(RequestCode.END_TRANSACTION, [], lambda: self._put(request))
        assert isinstance(result, EndTransactionResult)
        return result

    def _put(self, request: object) -> Any:
        (outcome,) = self.services.puts.run(self.peer, [request])
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def pull(self, offset: int = 0, **changes: Any) -> PullResult | Pending[PullOutcome]:
        fields: dict[str, Any] = {
            "consumer_group": "g",
            "topic": "T",
            "queue_id": 0,
            "queue_offset": offset,
            "max_msg_nums": 32,
            "sys_flag": OWN,
            "commit_offset": 0,
            "suspend_timeout_millis": 15_000,
            "subscription": "*",
            "sub_version": 0,
        }
        header = PullMessageRequestHeader(**fields | changes)
        resources = [Resource("topic", header.topic), Resource("group", header.consumer_group)]
        request = PullRequest(header)
        return self._admitted(
            RequestCode.PULL_MESSAGE,
            resources,
            lambda: self.services.pulls.pull(self.peer, request),
        )

    def hold(self, offset: int = 0, **changes: Any) -> list[PullOutcome]:
        """A pull that waits; its outcome will be in the list."""
        pending = self.pull(offset, sys_flag=OWN | SUSPEND, **changes)
        assert isinstance(pending, Pending)
        outcomes: list[PullOutcome] = []
        pending.then(outcomes.append)
        return outcomes

    def _admitted(
        self, code: RequestCode, resources: list[Resource], serve: Callable[[], ResultT]
    ) -> ResultT:
        operation = Operation(name=code.name, code=int(code))
        try:
            self.services.admit(self.peer, operation, resources)
            result = serve()
        except BrokerError as error:
            self.services.finished(self.peer, operation, error.code)
            raise
        if not isinstance(result, Pending):
            self.services.finished(self.peer, operation, ResponseCode.SUCCESS)
            return result
        later: Pending[Any] = Pending()

        def finished(outcome: Any) -> None:
            self.services.finished(self.peer, operation, getattr(outcome, "code", None))
            later.set(outcome)

        result.then(finished)
        return cast("ResultT", later)


async def waited_for(result: SendResult | Pending[SendResult]) -> SendResult:
    if isinstance(result, SendResult):
        return result
    future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
    result.then(future.set_result)
    return await future


def bodies(outcome: object) -> list[bytes]:
    """The messages of a result, which gives them back."""
    assert isinstance(outcome, PullResult)
    assert outcome.messages is not None
    found = [record.body for record in records_of(b"".join(outcome.messages.views))]
    outcome.messages.release()
    return found


def consumer(group: str, topic: str) -> ConsumerData:
    return ConsumerData(
        group_name=group,
        consume_type=ConsumeType.CONSUME_PASSIVELY,
        message_model=MessageModel.CLUSTERING,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        subscription_data_set=[SubscriptionData(topic=topic, sub_string="*")],
    )


def heartbeat(client_id: str) -> HeartbeatData:
    return HeartbeatData(
        client_id=client_id,
        producer_data_set=[ProducerData(group_name="pg")],
        consumer_data_set=[consumer("g", "T")],
    )


def join(endpoint: FakeEndpoint, client_id: str) -> None:
    endpoint.services.clients.heartbeat(
        endpoint.peer, heartbeat(client_id), language="PYTHON", version=513
    )


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
        await world.graph.durability.topics_saved()
        endpoint = FakeEndpoint(world.broker.services)
        pending = endpoint.send(UNIQ_KEY="U1")
        assert isinstance(pending, Pending)
        result = await waited_for(pending)
        assert (result.code, result.unique_id) == (0, "U1")


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
        assert len(world.graph.pulls.held) == 1
        await endpoint.sent(body=b"second")
        await world.clock.drain()
        assert [bodies(each) for each in outcomes] == [[b"second"]]
        assert sum(file.leases for file in world.graph.store.log.files.files) == 0
        nothing = endpoint.hold(2)
        await world.clock.advance(seconds=15)
        (outcome,) = nothing
        assert isinstance(outcome, PullResult)
        assert outcome.code == ResponseCode.PULL_NOT_FOUND
        with pytest.raises(BrokerError, match="not exist") as refused:
            endpoint.pull(topic="Unknown")
        assert refused.value.code == ResponseCode.TOPIC_NOT_EXIST


async def test_a_held_pull_is_refused_when_its_topic_is_gone(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 1)
        outcomes = FakeEndpoint(world.broker.services).hold()
        world.graph.topics.delete("T", ())
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
        offsets = endpoint.services.offsets
        for _ in range(3):
            await endpoint.sent()
        with pytest.raises(BrokerError, match="Group g not exist"):
            offsets.commit("g", "T", 0, 2)
        assert endpoint.services.groups.find("g") is not None  # which creates it
        assert offsets.commit("g", "T", 0, 2)
        assert offsets.committed("g", "T", 0) == 2
        assert (offsets.min_offset("T", 0), offsets.max_offset("T", 0)) == (0, 3)
        assert offsets.offset_by_time("T", 0, 0) == 0
        assert offsets.earliest_store_time("T", 0) == world.records("T")[0].store_timestamp
        assert offsets.earliest_store_time("Unknown", 0) == -1
        with pytest.raises(BrokerError) as refused:
            offsets.committed("other", "T", 0, set_zero_if_not_found=False)
        assert refused.value.code == ResponseCode.QUERY_NOT_FOUND
        topic = endpoint.services.topics.get("T")
        assert topic is not None
        assert topic.read_queue_nums == 1


async def test_locks(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        locks = world.broker.services.locks
        queues = [MessageQueue(topic="T", broker_name="b", queue_id=number) for number in (0, 1)]
        assert locks.lock("g", "A", queues[:1]) == queues[:1]
        assert locks.lock("g", "B", queues) == queues[1:]
        locks.unlock("g", "A", queues)
        assert locks.lock("g", "B", queues) == queues


async def test_members_come_and_go(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 1)
        a, b = (FakeEndpoint(world.broker.services, FakePeer(port)) for port in (1, 2))
        clients = world.broker.services.clients
        join(a, "A")
        join(a, "A")
        join(b, "B")
        assert (a.peer.client_id, b.peer.client_id) == ("A", "B")
        assert clients.consumer_ids("g") == ["A", "B"]
        assert [each.code for each in a.peer.sent][-1] == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
        clients.unregister(b.peer, producer_group="pg", consumer_group="g")
        assert clients.consumer_ids("g") == ["A"]
        assert world.graph.producers.find("B") is None
        with pytest.raises(BrokerError, match="no consumer for this group"):
            clients.consumer_ids("other")


async def test_nothing_is_left_of_a_client_that_is_gone(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        world.add_topic("T", 1)
        a, b = (FakeEndpoint(world.broker.services, FakePeer(port)) for port in (1, 2))
        join(a, "A")
        join(b, "B")
        gone, kept = [a.hold(), a.hold()], b.hold()
        a.peer.close()
        assert gone == [[None], [None]]
        assert world.broker.services.clients.consumer_ids("g") == ["B"]
        assert world.graph.producers.find("A") is None
        assert len(world.graph.pulls.held) == 1
        await b.sent()
        await world.clock.drain()
        assert [bodies(each) for each in kept] == [[b"hello"]]
        assert gone == [[None], [None]]


async def test_a_filter_that_cannot_be_used(tmp_path: Path) -> None:
    async with stored(tmp_path, enablePropertyFilter="true") as world:
        check = world.broker.services.clients.check_filter
        check(SubscriptionData(topic="T", sub_string="a || b"))
        check(SubscriptionData(topic="T", sub_string="a > 5", expression_type="SQL92"))
        with pytest.raises(FilterSyntaxError):
            check(SubscriptionData(topic="T", sub_string="a >", expression_type="SQL92"))


# --- interceptors ---


class Refusing:
    """Refuses one topic; notes what it saw."""

    def __init__(self, topic: str) -> None:
        self._refused = Resource("topic", topic)
        self.before_calls: list[tuple[Peer, str, list[Resource]]] = []
        self.after_calls: list[tuple[Peer, str, int | None]] = []

    def before(self, peer: Peer, operation: Operation, resources: Sequence[Resource]) -> None:
        self.before_calls.append((peer, operation.name, list(resources)))
        if self._refused in resources:
            raise NoPermissionError("this topic is closed")

    def after(self, peer: Peer, operation: Operation, code: int | None) -> None:
        self.after_calls.append((peer, operation.name, code))


async def test_an_interceptor_refuses_a_topic_for_every_endpoint(tmp_path: Path) -> None:
    refusing = Refusing("Closed")
    async with stored(tmp_path, None, [refusing]) as world:
        endpoint = FakeEndpoint(world.broker.services)
        assert (await endpoint.sent("T")).code == 0
        with pytest.raises(NoPermissionError):
            endpoint.send("Closed")
        assert refusing.before_calls == [
            (endpoint.peer, "SEND_MESSAGE_V2", [Resource("topic", topic)])
            for topic in ("T", "Closed")
        ]
        assert refusing.after_calls == [
            (endpoint.peer, "SEND_MESSAGE_V2", code) for code in (0, ResponseCode.NO_PERMISSION)
        ]
        refusing.before_calls.clear()
        refusing.after_calls.clear()
        assert (await world.send("T")).code == 0
        refused = await world.send("Closed")
        assert (refused.code, refused.remark) == (16, "this topic is closed")
        assert (await world.pull(topic="Closed")).code == 16
        assert bodies_read(await world.pull()) == [b"hello", b"hello"]
        (connection,) = world.graph.server.connections
        send, pull = "SEND_MESSAGE_V2", "PULL_MESSAGE"
        assert refusing.before_calls == [
            (connection, send, [Resource("topic", "T")]),
            (connection, send, [Resource("topic", "Closed")]),
            (connection, pull, [Resource("topic", "Closed"), Resource("group", "g")]),
            (connection, pull, [Resource("topic", "T"), Resource("group", "g")]),
        ]
        codes = [(name, code) for _, name, code in refusing.after_calls]
        assert codes == [(send, 0), (send, 16), (pull, 16), (pull, 0)]
        assert world.graph.topics.get("Closed") is None


def bodies_read(answer: Command) -> list[bytes]:
    return [record.body for record in records_of(answer.body)]


async def test_an_interceptor_sees_the_end_of_a_held_pull(tmp_path: Path) -> None:
    watching = Refusing("Closed")
    async with stored(tmp_path, None, [watching]) as world:
        world.add_topic("T", 1)
        held = await world.begin_pull()
        assert watching.after_calls == []
        await world.send()
        assert (await held).code == 0
        assert ("PULL_MESSAGE", 0) in {(name, code) for _, name, code in watching.after_calls}
        waits = await world.begin_pull(1)
        world.network.cut_all()
        await world.clock.drain()
        assert watching.after_calls[-1][1:] == ("PULL_MESSAGE", None)
        with pytest.raises(Exception, match="closed"):
            await waits


async def test_a_remoting_client_has_its_client_id_at_its_peer(tmp_path: Path) -> None:
    watching = Refusing("Closed")
    async with stored(tmp_path, None, [watching]) as world:
        await world.call(RequestCode.HEART_BEAT, {}, encode_body(heartbeat("remote")))
        await world.send()
        assert watching.before_calls[-1][0].client_id == "remote"


async def test_without_interceptors_requests_take_the_short_way(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        assert world.graph.server.dispatcher.judged_alike
    async with stored(tmp_path / "seen", None, [Refusing("Closed")]) as world:
        assert not world.graph.server.dispatcher.judged_alike
