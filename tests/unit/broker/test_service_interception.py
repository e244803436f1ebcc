"""Interceptors see, and may refuse, every operation of every service and of every endpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, get_type_hints

import msgspec
import pytest

from skylark.broker.api import (
    BrokerServices,
    Call,
    InterceptorChain,
    Peer,
    Pending,
    Resource,
    SendRequest,
    SendResult,
    result_of,
)
from skylark.broker.service_interception import METHODS, PUTS, intercept
from skylark.broker.transaction.half_batches import SendHalvesRequest
from skylark.core.errors import BrokerError, NoPermissionError
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.config import SubscriptionGroupConfig, SubscriptionGroupList
from skylark.wire.bodies.heartbeat import (
    LockBatchRequestBody,
    SubscriptionData,
)
from skylark.wire.bodies.pop_body import BatchAck, BatchAckMessageRequestBody
from skylark.wire.catalogue import CATALOGUE
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.end_halves_body import HalfPlace, encode_places
from skylark.wire.fastjson import encode_body
from skylark.wire.headers.pop import (
    AckMessageRequestHeader,
    ChangeInvisibleTimeRequestHeader,
    NotificationRequestHeader,
    PeekMessageRequestHeader,
    PollingInfoRequestHeader,
    PopMessageRequestHeader,
)
from tests.unit.broker.fake_endpoint import (
    REPLY_TOPIC,
    FakeEndpoint,
    FakePeer,
    end_request,
    heartbeat,
    join,
    recall_request,
    reply_request,
    send_back_request,
    send_header,
)
from tests.unit.broker.stored import await_flushes, records_of, stored


class Watching:
    """Records every call; refuses those that are about one of some resources."""

    def __init__(self, *refused: Resource) -> None:
        self._refused = set(refused)
        self.before_calls: list[Call] = []
        self.after_calls: list[tuple[Call, int | None]] = []

    def before(self, call: Call) -> None:
        self.before_calls.append(call)
        if self._refused.intersection(call.resources):
            raise NoPermissionError("this is closed")

    def after(self, call: Call, code: int | None) -> None:
        self.after_calls.append((call, code))

    def take(self) -> list[tuple[Peer, str, list[Resource], int | None]]:
        """What was seen since the last time, in the order of the ends; each has one beginning."""
        before, after = self.before_calls, self.after_calls
        self.before_calls, self.after_calls = [], []
        assert sorted(map(id, before)) == sorted(id(call) for call, _ in after)
        return [
            (call.peer, call.operation.name, list(call.resources), code) for call, code in after
        ]


CLOSED: Final = Resource("topic", "Closed")
TOPIC, GROUP = Resource("topic", "T"), Resource("group", "g")
QUEUE: Final = MessageQueue(topic="T", broker_name="b", queue_id=0)
HALF: Final = SendResult(0, 0, 0, 0, "U")


class Case(NamedTuple):
    """An operation of the API, how an endpoint asks for it, and what it is about."""

    name: str
    run: Callable[[FakeEndpoint], Any]
    resources: tuple[Resource, ...]


def put(request: object) -> Callable[[FakeEndpoint], Any]:
    return lambda endpoint: endpoint.put(request)


def offsets(method: str, *args: object) -> Callable[[FakeEndpoint], Any]:
    return lambda endpoint: getattr(endpoint.services.offsets, method)(endpoint.peer, *args)


def pops(method: str, header: object) -> Callable[[FakeEndpoint], Any]:
    return lambda endpoint: getattr(endpoint.services.pops, method)(endpoint.peer, header)


SUBSCRIPTION: Final = SubscriptionData(topic="T", sub_string="*")
POPPED: Final[dict[str, Any]] = {"consumer_group": "g", "topic": "T"}
#: A receipt handle of a retry: the resource is the topic that was subscribed to.
ACKED: Final[dict[str, Any]] = {
    "consumer_group": "g",
    "topic": "%RETRY%g_T",
    "queue_id": 0,
    "extra_info": "0 1 1 0 1 b 0 0",
    "offset": 0,
}
ACK: Final = AckMessageRequestHeader(**ACKED)
CHANGE: Final = ChangeInvisibleTimeRequestHeader(**ACKED, invisible_time=1)
BATCH_ACK: Final = BatchAckMessageRequestBody(
    broker_name="b", acks=[BatchAck(consumer_group="g", topic="T", retry="1", bit_set="AQ==")]
)
CASES: Final = (
    Case("SEND_MESSAGE_V2", put(SendRequest(send_header("T"), b"x")), (TOPIC,)),
    Case("SEND_HALVES", put(SendHalvesRequest(send_header("T"), b"x")), (TOPIC,)),
    Case("END_TRANSACTION", put(end_request(HALF, 8, "T")), (TOPIC,)),
    Case("CONSUMER_SEND_MSG_BACK", put(send_back_request(0)), (GROUP,)),
    Case("SEND_REPLY_MESSAGE_V2", put(reply_request("A")), (Resource("topic", REPLY_TOPIC),)),
    Case("RECALL_MESSAGE", put(recall_request("?")), (TOPIC,)),
    Case("ACK_MESSAGE", put(ACK), (TOPIC, GROUP)),
    Case("CHANGE_MESSAGE_INVISIBLETIME", put(CHANGE), (TOPIC, GROUP)),
    Case("BATCH_ACK_MESSAGE", put(BATCH_ACK), (TOPIC, GROUP)),
    Case("POP_MESSAGE", pops("pop", PopMessageRequestHeader(**POPPED)), (TOPIC, GROUP)),
    Case("PEEK_MESSAGE", pops("peek", PeekMessageRequestHeader(**POPPED)), (TOPIC, GROUP)),
    Case("NOTIFICATION", pops("notify", NotificationRequestHeader(**POPPED)), (TOPIC, GROUP)),
    Case("POLLING_INFO", pops("waiting_count", PollingInfoRequestHeader(**POPPED)), (TOPIC, GROUP)),
    Case("PULL_MESSAGE", lambda endpoint: endpoint.pull(), (TOPIC, GROUP)),
    Case("QUERY_CONSUMER_OFFSET", offsets("committed", "g", "T", 0), (TOPIC, GROUP)),
    Case("UPDATE_CONSUMER_OFFSET", offsets("commit", "g", "T", 0, 0), (TOPIC, GROUP)),
    Case("GET_MIN_OFFSET", offsets("min_offset", "T", 0), (TOPIC,)),
    Case("GET_MAX_OFFSET", offsets("max_offset", "T", 0), (TOPIC,)),
    Case("SEARCH_OFFSET_BY_TIMESTAMP", offsets("offset_by_time", "T", 0, 0), (TOPIC,)),
    Case("GET_EARLIEST_MSG_STORETIME", offsets("earliest_store_time", "T", 0), (TOPIC,)),
    Case(
        "LOCK_BATCH_MQ",
        lambda endpoint: endpoint.services.locks.lock(endpoint.peer, "g", "A", [QUEUE]),
        (TOPIC, GROUP),
    ),
    Case(
        "UNLOCK_BATCH_MQ",
        lambda endpoint: endpoint.services.locks.unlock(endpoint.peer, "g", "A", [QUEUE]),
        (TOPIC, GROUP),
    ),
    Case("HEART_BEAT", lambda endpoint: join(endpoint, "A"), (TOPIC, GROUP)),
    Case(
        "UNREGISTER_CLIENT",
        lambda endpoint: endpoint.services.clients.unregister(
            endpoint.peer, producer_group="pg", consumer_group="g"
        ),
        (GROUP,),
    ),
    Case(
        "GET_CONSUMER_LIST_BY_GROUP",
        lambda endpoint: endpoint.services.clients.consumer_ids(endpoint.peer, "g"),
        (GROUP,),
    ),
    Case(
        "CHECK_CLIENT_CONFIG",
        lambda endpoint: endpoint.services.clients.check_filter(endpoint.peer, "g", SUBSCRIPTION),
        (TOPIC, GROUP),
    ),
)


#: Codes of results, not of errors.
FOUND_NOTHING: Final = {
    "PULL_MESSAGE": ResponseCode.PULL_NOT_FOUND,
    "POP_MESSAGE": ResponseCode.POLLING_TIMEOUT,
    "PEEK_MESSAGE": ResponseCode.PULL_NOT_FOUND,
}


def test_the_cases_are_all_operations() -> None:
    rules = [*PUTS.values(), *(rule for rules in METHODS.values() for rule in rules.values())]
    assert {case.name for case in CASES} == {rule.code.name for rule in rules}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_catalogue_has_the_actions_of_each_resource(case: Case) -> None:
    access = CATALOGUE[RequestCode[case.name]].access
    actions = {each.resource.lower(): each.actions for each in access}
    assert len(actions) == len(access), "one entry for each kind"
    assert all(actions[resource.kind] for resource in case.resources)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_an_interceptor_sees_each_operation(tmp_path: Path, case: Case) -> None:
    watching = Watching()
    async with stored(tmp_path, None, [watching]) as world:
        world.add_topic("T", 1)
        endpoint = FakeEndpoint(world.broker.services)
        try:
            await result_of(case.run(endpoint))
            code = 0
        except BrokerError as error:  # most find nothing; what counts is that they are seen
            code = error.code
        ((peer, name, resources, seen),) = watching.take()
        assert (peer, name, resources) == (endpoint.peer, case.name, list(case.resources))
        if case.name == "SEND_REPLY_MESSAGE_V2":
            code = 1  # stored, and not delivered
        assert seen == FOUND_NOTHING.get(case.name, code)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_an_interceptor_refuses_each_operation(tmp_path: Path, case: Case) -> None:
    watching = Watching(case.resources[-1])
    async with stored(tmp_path, None, [watching]) as world:
        endpoint = FakeEndpoint(world.broker.services)
        with pytest.raises(NoPermissionError, match="this is closed"):
            case.run(endpoint)
        assert [(name, code) for _, name, _, code in watching.take()] == [(case.name, 16)]
        assert world.features.store.log.max_offset == 0
        assert world.features.topics.table.get("T") is None
        assert "g" not in world.features.groups.table
        assert len(world.features.groups.locks) == len(world.features.pull.service.held) == 0
        assert world.features.groups.producers.find("A") is None
        assert endpoint.peer.client_id is None


async def test_interceptors_are_called_in_pairs(tmp_path: Path) -> None:
    first, refusing, last = Watching(), Watching(CLOSED), Watching()
    async with stored(tmp_path, None, [first, refusing, last]) as world:
        endpoint = FakeEndpoint(world.broker.services)
        with pytest.raises(NoPermissionError):
            endpoint.send("Closed")
        refused = [(endpoint.peer, "SEND_MESSAGE_V2", [CLOSED], 16)]
        assert (first.take(), refusing.take(), last.take()) == (refused, refused, [])
        assert (
            await world.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Closed"})
        ).code == 16
        assert ([code for *_, code in first.take()], last.take()) == ([16], [])


async def test_an_interceptor_refuses_a_topic_for_every_endpoint(tmp_path: Path) -> None:
    refusing = Watching(CLOSED)
    async with stored(tmp_path, None, [refusing]) as world:
        endpoint = FakeEndpoint(world.broker.services)
        assert (await endpoint.sent("T")).code == 0
        with pytest.raises(NoPermissionError):
            endpoint.send("Closed")
        send, pull = "SEND_MESSAGE_V2", "PULL_MESSAGE"
        seen = refusing.take()
        assert sorted(seen, key=lambda each: each[3] or 0) == [
            (endpoint.peer, send, [TOPIC], 0),
            (endpoint.peer, send, [CLOSED], ResponseCode.NO_PERMISSION),
        ]
        assert (await world.send("T")).code == 0
        refused = await world.send("Closed")
        assert (refused.code, refused.remark) == (16, "this is closed")
        assert (await world.pull(topic="Closed")).code == 16
        assert bodies_read(await world.pull()) == [b"hello", b"hello"]
        (connection,) = world.features.endpoint.server.connections
        assert refusing.take() == [
            (connection, send, [TOPIC], 0),
            (connection, send, [CLOSED], 16),
            (connection, pull, [CLOSED, GROUP], 16),
            (connection, pull, [TOPIC, GROUP], 0),
        ]
        assert world.features.topics.table.get("Closed") is None


async def test_remoting_requests_whose_body_names_the_groups(tmp_path: Path) -> None:
    refusing = Watching(GROUP)
    async with stored(tmp_path, None, [refusing]) as world:
        other = LockBatchRequestBody(consumer_group="other", client_id="A", mq_set=[QUEUE])
        locked = LockBatchRequestBody(consumer_group="g", client_id="A", mq_set=[QUEUE])
        groups = SubscriptionGroupList(group_config_list=[SubscriptionGroupConfig(group_name="g")])
        for code, body, expected in (
            (RequestCode.HEART_BEAT, heartbeat("A"), 16),
            (RequestCode.LOCK_BATCH_MQ, locked, 16),
            (RequestCode.LOCK_BATCH_MQ, other, 0),
            (RequestCode.UNLOCK_BATCH_MQ, locked, 16),
            (RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, groups, 16),
        ):
            assert (await world.call(code, {}, encode_body(body))).code == expected
            ((_, name, resources, seen),) = refusing.take()
            assert (name, seen) == (code.name, expected)
            assert (GROUP in resources) == (expected == 16)
        leaving = {"clientID": "A", "consumerGroup": "g"}
        assert (await world.call(RequestCode.UNREGISTER_CLIENT, leaving)).code == 16
        assert "g" not in world.features.groups.table


def bodies_read(answer: Command) -> list[bytes]:
    return [record.body for record in records_of(answer.body)]


async def test_an_interceptor_sees_the_end_of_a_held_pull(tmp_path: Path) -> None:
    watching = Watching()
    async with stored(tmp_path, None, [watching]) as world:
        world.add_topic("T", 1)
        held = await world.begin_pull()
        assert watching.after_calls == []
        await world.send()
        assert (await held).code == 0
        assert ("PULL_MESSAGE", 0) in {(name, code) for _, name, _, code in watching.take()}
        waits = await world.begin_pull(1)
        world.network.cut_all()
        await world.clock.drain()
        assert [(name, code) for _, name, _, code in watching.take()] == [("PULL_MESSAGE", None)]
        with pytest.raises(Exception, match="closed"):
            await waits


async def test_an_interceptor_sees_a_send_that_waits_for_the_disk(tmp_path: Path) -> None:
    watching = Watching()
    async with stored(tmp_path, None, [watching], flushDiskType="SYNC_FLUSH") as world:
        await_flushes(world)
        world.add_topic("T", 1)
        await world.features.puts.durability.topics_saved()
        endpoint = FakeEndpoint(world.broker.services)
        pending = endpoint.send()
        assert isinstance(pending, Pending)
        assert watching.after_calls == []
        assert (await result_of(pending)).code == 0
        assert [code for *_, code in watching.take()] == [0]


async def test_an_interceptor_that_fails_after_a_request_costs_no_result(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Watching):
        def after(self, call: Call, code: int | None) -> None:
            raise ZeroDivisionError

    async with stored(tmp_path, None, [Broken()]) as world:
        assert (await FakeEndpoint(world.broker.services).sent()).code == 0
        assert "an interceptor failed after SEND_MESSAGE_V2" in caplog.messages


async def test_a_remoting_client_has_its_client_id_at_its_peer(tmp_path: Path) -> None:
    watching = Watching()
    async with stored(tmp_path, None, [watching]) as world:
        await world.call(RequestCode.HEART_BEAT, {}, encode_body(heartbeat("remote")))
        await world.send()
        assert watching.before_calls[-1].peer.client_id == "remote"


async def test_without_interceptors_requests_take_the_short_way(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        assert world.features.endpoint.server.dispatcher.judged_alike
        assert world.broker.services.puts is world.features.puts.pipeline
    async with stored(tmp_path / "seen", None, [Watching()]) as world:
        assert not world.features.endpoint.server.dispatcher.judged_alike


def test_every_method_of_a_service_has_a_rule() -> None:
    protocols = get_type_hints(BrokerServices)
    assert protocols.keys() - METHODS.keys() == {"puts", "topics", "groups", "interceptors"}
    for name, rules in METHODS.items():
        methods = [each for each in vars(protocols[name]) if not each.startswith("_")]
        assert sorted(rules) == sorted(methods), name


async def test_every_kind_of_request_that_is_stored_has_a_rule(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        assert PUTS.keys() == world.features.puts.pipeline._steps.keys()


async def test_a_request_without_a_rule_is_not_handled(tmp_path: Path) -> None:
    class Unknown(msgspec.Struct):
        pass

    async with stored(tmp_path, None, [Watching()]) as world:
        (outcome,) = world.broker.services.puts.run(FakePeer(), [Unknown()])
        assert isinstance(outcome, KeyError)


def test_services_without_interceptors_are_not_wrapped() -> None:
    services = BrokerServices(*[object()] * 8)  # type: ignore[arg-type]
    assert intercept(services, lambda _log_offset: None) is services


@pytest.mark.parametrize("named", [None, "T", "Closed", "RMQ_SYS_TRANS_HALF_TOPIC"])
async def test_a_decision_is_about_the_topic_of_its_half_message(
    tmp_path: Path, named: str | None
) -> None:
    """Not about the one that the producer names."""
    watching = Watching(CLOSED)
    async with stored(tmp_path, None, [watching]) as world:
        endpoint = FakeEndpoint(world.broker.services)
        half = await endpoint.sent(TRAN_MSG="true", PGROUP="pg", UNIQ_KEY="U1")
        endpoint.put(end_request(half, 8, named))
        assert [resources for _, _, resources, _ in watching.take()] == [[TOPIC]] * 2
        assert len(world.records("T")) == 1


async def test_what_comes_behind_a_refused_decision_has_no_result(tmp_path: Path) -> None:
    """END_HALVES stops at the first decision that is refused; its decisions are seen one by one."""

    class RefusesSecond(Watching):
        def before(self, call: Call) -> None:
            super().before(call)
            if len(self.before_calls) == 2:
                raise NoPermissionError("closed")

    watching = RefusesSecond()
    async with stored(tmp_path, None, [watching]) as world:
        places = [HalfPlace(queue_offset=n, log_offset=0, unique_id=f"U{n}") for n in range(3)]
        ext = {"topic": "T", "producerGroup": "pg", "commitOrRollback": "8"}
        await world.call(RequestCode.END_HALVES, ext, encode_places(places))
        seen = watching.take()
        assert {name for _, name, *_ in seen} == {"END_TRANSACTION"}
        assert {resource.name for _, _, resources, _ in seen for resource in resources} == {"T"}
        assert sorted(str(code) for *_, code in seen) == ["1", "16", "None"]


def test_an_empty_chain_is_false() -> None:
    assert not InterceptorChain()
    with pytest.raises(ZeroDivisionError):
        InterceptorChain([_Broken()]).admit(None)  # type: ignore[arg-type]


class _Broken:
    def before(self, _call: Call) -> None:
        raise ZeroDivisionError

    def after(self, _call: Call, code: int | None) -> None:
        assert code == 1
