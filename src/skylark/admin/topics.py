"""Topics of a cluster: make them, list them.

A topic exists on each broker by itself; the name server puts the parts together. So a topic is made
on every master, and where it exists already it stays as it is: a number of queues that others
rely on does not change because somebody says "create" once more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from skylark.admin.servers import ask_name_server, checked, cluster_info, masters
from skylark.client.calls import Caller
from skylark.core.errors import InvalidParameterError
from skylark.core.names import (
    AUTO_CREATE_TOPIC,
    Address,
    broker_system_topics,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
    topic_problem,
)
from skylark.wire.bodies.common import TopicList
from skylark.wire.bodies.config import TopicFilterType
from skylark.wire.bodies.route import TopicRouteData
from skylark.wire.codes import Perm, RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body
from skylark.wire.fields import encode_ext
from skylark.wire.headers.admin import CreateTopicRequestHeader
from skylark.wire.headers.route import GetRouteInfoRequestHeader

DEFAULT_QUEUE_COUNT: Final = 8
#: Routes asked for at a time.
ROUTES_AT_ONCE: Final = 64


class TopicOnBroker(msgspec.Struct, frozen=True, kw_only=True):
    """A topic on one broker, after :func:`topic_create`."""

    topic: str
    broker: str
    address: str
    created: bool  # False: it was there before, and is as it was
    queue_count: int


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A topic of the cluster as its route shows it."""

    topic: str
    brokers: tuple[str, ...]
    queue_count: int  # queues for writing, on all brokers
    perm: str  # for example ``rw``; the brokers' permissions together


async def topic_create(
    caller: Caller,
    namesrv: Sequence[Address],
    topic: str,
    *,
    queue_count: int = DEFAULT_QUEUE_COUNT,
    cluster: str | None = None,
    order: bool = False,
    attributes: Mapping[str, str] | None = None,
) -> list[TopicOnBroker]:
    """Make a topic on every master, or on those of ``cluster``; one result per broker.

    ``attributes`` such as ``{"message.type": "FIFO"}``. Raises BrokerError for what a broker
    refuses, TransportError where nobody answers.
    """
    if (problem := topic_problem(topic)) is not None:
        raise InvalidParameterError(problem)
    brokers = await masters(caller, namesrv, cluster)
    route = await topic_route(caller, namesrv, topic)
    existing = (
        {} if route is None else {q.broker_name: q.write_queue_nums for q in route.queue_datas}
    )
    header = CreateTopicRequestHeader(
        topic=topic,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=queue_count,
        write_queue_nums=queue_count,
        perm=Perm.READ | Perm.WRITE,
        topic_filter_type=TopicFilterType.SINGLE_TAG.name,
        topic_sys_flag=0,
        order=order,
        attributes=",".join(f"+{key}={value}" for key, value in (attributes or {}).items()),
    )
    results = []
    for name, address in brokers.items():
        if name not in existing:
            request = Command(code=RequestCode.UPDATE_AND_CREATE_TOPIC, ext=encode_ext(header))
            checked(await caller.call(address, request))
        results.append(
            TopicOnBroker(
                topic=topic,
                broker=name,
                address=address,
                created=name not in existing,
                queue_count=existing.get(name, queue_count),
            )
        )
    return results


async def topic_list(
    caller: Caller, namesrv: Sequence[Address], *, with_internal: bool = False
) -> list[TopicSummary]:
    """The topics of the cluster by name; ``with_internal``: also those of RocketMQ itself.

    Internal are system topics, retry topics and dead letters.
    """
    request = Command(code=RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
    answer = checked(await ask_name_server(caller, namesrv, request))
    names = sorted(decode_body(TopicList, answer.body or b"").topic_list)
    if not with_internal:
        info = await cluster_info(caller, namesrv)
        system: set[str] = set()
        for broker in info.broker_addr_table.values():
            system |= broker_system_topics(broker.cluster, broker.broker_name)
        names = [name for name in names if not _is_internal(name, system)]
    summaries = []
    for start in range(0, len(names), ROUTES_AT_ONCE):
        some = names[start : start + ROUTES_AT_ONCE]
        routes = await asyncio.gather(*(topic_route(caller, namesrv, name) for name in some))
        summaries += [
            _summary(name, route)
            for name, route in zip(some, routes, strict=True)
            if route is not None  # deleted meanwhile
        ]
    return summaries


async def topic_route(
    caller: Caller, namesrv: Sequence[Address], topic: str
) -> TopicRouteData | None:
    """The route of a topic (105); None if it has none."""
    header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
    request = Command(code=RequestCode.GET_ROUTEINFO_BY_TOPIC, ext=encode_ext(header))
    answer = await ask_name_server(caller, namesrv, request)
    if answer.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    return decode_body(TopicRouteData, checked(answer).body or b"")


def _is_internal(name: str, system: set[str]) -> bool:
    return is_system_topic(name, system) or is_retry_topic(name) or is_dlq_topic(name)


def _summary(topic: str, route: TopicRouteData) -> TopicSummary:
    perm = 0
    for queues in route.queue_datas:
        perm |= queues.perm
    letters = ((Perm.READ, "r"), (Perm.WRITE, "w"), (Perm.INHERIT, "x"))
    return TopicSummary(
        topic=topic,
        brokers=tuple(sorted(queues.broker_name for queues in route.queue_datas)),
        queue_count=sum(queues.write_queue_nums for queues in route.queue_datas),
        perm="".join(letter for bit, letter in letters if perm & bit),
    )
