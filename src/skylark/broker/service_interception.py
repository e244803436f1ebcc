"""Calls the interceptors of a broker around each operation of its services.

:func:`intercept` puts a wrapper around each service. The wrapper knows the operation and the
resources of each method (:data:`METHODS`) and of each request that stores messages (:data:`PUTS`);
a method or request that is in neither table cannot be used. So no endpoint can forget the
interceptors. A broker without interceptors has no wrappers, and its requests pay nothing.

An operation that is refused by an interceptor leaves no trace: no group, no topic, no held pull.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from skylark.broker.api import (
    BrokerServices,
    Call,
    EndTransactionRequest,
    InterceptorChain,
    Operation,
    Peer,
    Pending,
    PullRequest,
    PutService,
    RecallRequest,
    ReplyRequest,
    Resource,
    SendBackRequest,
    SendRequest,
    code_of,
)
from skylark.broker.transaction.commit_runs import CommitRunRequest
from skylark.broker.transaction.half_batches import SendHalvesRequest
from skylark.core.names import topic_of_pop_retry
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.heartbeat import HeartbeatData
from skylark.wire.bodies.pop_body import BatchAckMessageRequestBody
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.headers.pop import AckMessageRequestHeader, ChangeInvisibleTimeRequestHeader


class Rule(NamedTuple):
    """The operation that a request is, and how to find its resources."""

    code: RequestCode
    resources: Callable[..., list[Resource]]

    @property
    def operation(self) -> Operation:
        return Operation(self.code.name, int(self.code))


def _topic(name: str, *_others: object, **_options: object) -> list[Resource]:
    return [Resource("topic", name)]


def _group(name: str, *_others: object) -> list[Resource]:
    return [Resource("group", name)]


def _topic_and_group(
    group: str, topic: str, *_others: object, **_options: object
) -> list[Resource]:
    return [Resource("topic", topic), Resource("group", group)]


def _locked(group: str, _client_id: str, queues: Sequence[MessageQueue]) -> list[Resource]:
    topics = dict.fromkeys(queue.topic for queue in queues)
    return [*(Resource("topic", topic) for topic in topics), Resource("group", group)]


def _subscribed(heartbeat: HeartbeatData, **_options: object) -> list[Resource]:
    """The consumer groups of a client, and the topics that they subscribe to."""
    return list(
        dict.fromkeys(
            resource
            for data in heartbeat.consumer_data_set
            for resource in (
                *(Resource("topic", each.topic) for each in data.subscription_data_set),
                Resource("group", data.group_name),
            )
        )
    )


def _left(*, consumer_group: str | None, **_options: object) -> list[Resource]:
    return [] if consumer_group is None else _group(consumer_group)


def _pulled(request: PullRequest) -> list[Resource]:
    return _topic_and_group(request.header.consumer_group, request.header.topic)


def _popped(header: Any) -> list[Resource]:
    return _topic_and_group(header.consumer_group, header.topic)


def _acked(header: Any) -> list[Resource]:
    """The topic as subscribed: its retry topics belong to the group."""
    group = header.consumer_group
    return _topic_and_group(group, topic_of_pop_retry(header.topic, group))


def _acked_together(body: BatchAckMessageRequestBody) -> list[Resource]:
    return list(dict.fromkeys(resource for ack in body.acks for resource in _acked(ack)))


def _of_header(request: Any) -> list[Resource]:
    return _topic(request.header.topic)


def _decided(
    request: EndTransactionRequest, topic_of_half: Callable[[int], str | None]
) -> list[Resource]:
    """The topic of the half message: producers name none, or after a check-back the half topic.

    A half message of the same run is not stored yet. Its topic is that of a send in the run.
    """
    topic = topic_of_half(request.header.commit_log_offset) or request.header.topic
    return [] if topic is None else _topic(topic)


def _committed_run(request: CommitRunRequest) -> list[Resource]:
    return _topic(request.draft.real_topic)


#: The methods of each service; those of services that are not here are no operations of clients.
METHODS: Final[dict[str, dict[str, Rule]]] = {
    "pulls": {"pull": Rule(RequestCode.PULL_MESSAGE, _pulled)},
    "pops": {
        "pop": Rule(RequestCode.POP_MESSAGE, _popped),
        "peek": Rule(RequestCode.PEEK_MESSAGE, _popped),
        "notify": Rule(RequestCode.NOTIFICATION, _popped),
        "waiting_count": Rule(RequestCode.POLLING_INFO, _popped),
    },
    "offsets": {
        "committed": Rule(RequestCode.QUERY_CONSUMER_OFFSET, _topic_and_group),
        "commit": Rule(RequestCode.UPDATE_CONSUMER_OFFSET, _topic_and_group),
        "min_offset": Rule(RequestCode.GET_MIN_OFFSET, _topic),
        "max_offset": Rule(RequestCode.GET_MAX_OFFSET, _topic),
        "offset_by_time": Rule(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, _topic),
        "earliest_store_time": Rule(RequestCode.GET_EARLIEST_MSG_STORETIME, _topic),
    },
    "locks": {
        "lock": Rule(RequestCode.LOCK_BATCH_MQ, _locked),
        "unlock": Rule(RequestCode.UNLOCK_BATCH_MQ, _locked),
    },
    "clients": {
        "heartbeat": Rule(RequestCode.HEART_BEAT, _subscribed),
        "unregister": Rule(RequestCode.UNREGISTER_CLIENT, _left),
        "consumer_ids": Rule(RequestCode.GET_CONSUMER_LIST_BY_GROUP, _group),
        "check_filter": Rule(
            RequestCode.CHECK_CLIENT_CONFIG,
            lambda group, filtered: [
                *(() if filtered is None else _topic(filtered.topic)),
                *_group(group),
            ],
        ),
    },
}
#: The requests that :class:`~skylark.broker.api.PutService` takes.
PUTS: Final[dict[type, Rule]] = {
    SendRequest: Rule(RequestCode.SEND_MESSAGE_V2, _of_header),
    SendHalvesRequest: Rule(RequestCode.SEND_HALVES, _of_header),
    EndTransactionRequest: Rule(RequestCode.END_TRANSACTION, _decided),
    CommitRunRequest: Rule(RequestCode.END_TRANSACTION, _committed_run),
    SendBackRequest: Rule(
        RequestCode.CONSUMER_SEND_MSG_BACK, lambda request: _group(request.header.group)
    ),
    ReplyRequest: Rule(RequestCode.SEND_REPLY_MESSAGE_V2, _of_header),
    RecallRequest: Rule(RequestCode.RECALL_MESSAGE, _of_header),
    AckMessageRequestHeader: Rule(RequestCode.ACK_MESSAGE, _acked),
    BatchAckMessageRequestBody: Rule(RequestCode.BATCH_ACK_MESSAGE, _acked_together),
    ChangeInvisibleTimeRequestHeader: Rule(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, _acked),
}
#: The request codes whose handlers call a service, which calls the interceptors.
INTERCEPTED_CODES: Final = frozenset(
    {
        *(int(rule.code) for rules in METHODS.values() for rule in rules.values()),
        *(int(rule.code) for rule in PUTS.values()),
        int(RequestCode.SEND_MESSAGE),
        int(RequestCode.SEND_BATCH_MESSAGE),
        int(RequestCode.SEND_REPLY_MESSAGE),
        int(RequestCode.END_HALVES),
        int(RequestCode.LITE_PULL_MESSAGE),
    }
)


def intercept(
    services: BrokerServices, topic_of_half: Callable[[int], str | None]
) -> BrokerServices:
    """The same services, with the interceptors of ``services`` called around each operation.

    ``topic_of_half`` finds the topic of the half message at a log offset.
    """
    chain = services.interceptors
    if not chain:
        return services
    wrapped = {
        name: _InterceptedService(getattr(services, name), rules, chain)
        for name, rules in METHODS.items()
    }
    puts = _InterceptedPuts(services.puts, chain, topic_of_half)
    return msgspec.structs.replace(services, puts=puts, **wrapped)


class _InterceptedService:
    """Has the methods of a service that are operations, and no other."""

    def __init__(self, service: object, rules: dict[str, Rule], chain: InterceptorChain) -> None:
        for name, rule in rules.items():
            setattr(self, name, partial(_run, chain, rule, getattr(service, name)))


def _run(
    chain: InterceptorChain,
    rule: Rule,
    method: Callable[..., Any],
    peer: Peer,
    *args: Any,
    **options: Any,
) -> Any:
    """Call a method of a service between the interceptors."""
    request = args[0] if args and isinstance(args[0], msgspec.Struct) else None
    call = Call(peer, rule.operation, rule.resources(*args, **options), request)
    chain.admit(call)
    try:
        result = method(peer, *args, **options)
    except BaseException as error:
        chain.finish(call, code_of(error))
        raise
    if isinstance(result, Pending):
        return _finished_later(chain, call, result)
    chain.finish(call, int(ResponseCode.SUCCESS) if result is None else code_of(result))
    return result


def _finished_later(chain: InterceptorChain, call: Call, pending: Pending[Any]) -> Pending[Any]:
    """The same result, which the interceptors see before the caller."""
    later: Pending[Any] = Pending()

    def finish(result: Any) -> None:
        chain.finish(call, code_of(result))
        later.set(result)

    def cancel() -> None:
        pending.cancel()
        chain.finish(call, None)

    later.on_cancel = cancel
    pending.then(finish)
    return later


class _InterceptedPuts:
    """A :class:`~skylark.broker.api.PutService` that handles only requests that are admitted."""

    def __init__(
        self,
        puts: PutService,
        chain: InterceptorChain,
        topic_of_half: Callable[[int], str | None],
    ) -> None:
        self._puts = puts
        self._chain = chain
        decided = partial(_decided, topic_of_half=topic_of_half)
        self._rules = {**PUTS, EndTransactionRequest: Rule(RequestCode.END_TRANSACTION, decided)}

    def run(
        self,
        peer: Peer,
        requests: Sequence[Any],
        *,
        stops_at: Callable[[BaseException], bool] | None = None,
    ) -> list[Any]:
        """The outcomes of requests; a request that is refused has the refusal in its place."""
        chain = self._chain
        admitted: list[Any] = list(requests)
        calls: dict[int, Call] = {}
        for place, request in enumerate(requests):
            if isinstance(request, BaseException):  # the endpoint could not read the request
                continue
            try:
                rule = self._rules[type(request)]
                call = Call(peer, rule.operation, rule.resources(request), request)
                chain.admit(call)
            except Exception as error:  # noqa: BLE001 - the outcome
                admitted[place] = error
            else:
                calls[place] = call
        outcomes = self._puts.run(peer, admitted, stops_at=stops_at)
        for place, call in calls.items():
            outcome = outcomes[place]
            if isinstance(outcome, Pending):
                outcomes[place] = _finished_later(chain, call, outcome)
            else:
                chain.finish(call, code_of(outcome))
        return outcomes
