"""Connected clients: members of consumer groups (203), producers (204), running info (307).

Every broker knows the clients whose heartbeats it receives. A client sends heartbeats to all
brokers of its topics, so the members of a group are the union over all masters.
"""

from __future__ import annotations

from typing import Final

import msgspec

from skylark.admin.admin_session import Session
from skylark.admin.errors import NotFoundError, ServerFailure
from skylark.admin.fan_out import on_each
from skylark.core.errors import BrokerError, ConsumerNotOnlineError, TopicNotExistError
from skylark.wire.bodies.admin_body import (
    Connection,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerConnection,
    QueueLock,
    SubscriptionConflict,
)
from skylark.wire.codes import RequestCode, version_name
from skylark.wire.headers.admin import ConsumerGroupRequestHeader
from skylark.wire.headers.client_header import (
    GetConsumerRunningInfoRequestHeader,
    GetProducerConnectionListRequestHeader,
)

#: Timeout of a request that a broker relays to a client; the broker itself waits 10 s.
RELAY_TIMEOUT_S: Final = 15.0


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A connected client."""

    client_id: str
    address: str
    language: str
    version: str
    brokers: tuple[str, ...]  #: where it is connected


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """The subscription of a group to a topic."""

    topic: str
    expression: str
    expression_type: str


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """The connected members of a consumer group; none: it is offline."""

    group: str
    members: tuple[Member, ...] = ()
    subscriptions: tuple[Subscription, ...] = ()
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None
    conflicts: tuple[SubscriptionConflict, ...] = ()  #: reported by Skylark brokers only
    locks: tuple[QueueLock, ...] = ()  #: likewise
    failures: tuple[ServerFailure, ...] = ()


class Producers(msgspec.Struct, frozen=True, kw_only=True):
    """The connected members of a producer group."""

    group: str
    members: tuple[Member, ...]
    failures: tuple[ServerFailure, ...] = ()


async def group_members(session: Session, group: str) -> Members:
    """The members of a group (name with namespace); raises if no broker responds."""
    header = ConsumerGroupRequestHeader(consumer_group=group)
    code = RequestCode.GET_CONSUMER_CONNECTION_LIST
    masters = await session.masters()

    async def ask(_: str, address: str) -> ConsumerConnection | None:
        try:
            return await session.ask(ConsumerConnection, address, code, header)
        except (ConsumerNotOnlineError, TopicNotExistError):  # no members here
            return None

    answers = await on_each(masters, ask)
    found = {broker: body for broker, body in answers.some().items() if body is not None}
    if not found:
        return Members(group=session.unwrap(group), failures=answers.failures)
    first = next(iter(found.values()))
    subscriptions = {
        topic: data for body in found.values() for topic, data in body.subscription_table.items()
    }
    conflicts = {c.topic: c for body in found.values() for c in body.subscription_conflicts or ()}
    return Members(
        group=session.unwrap(group),
        members=_members({broker: body.connection_set for broker, body in found.items()}),
        subscriptions=tuple(
            Subscription(
                topic=session.unwrap(topic),
                expression=data.sub_string,
                expression_type=data.expression_type or "TAG",
            )
            for topic, data in sorted(subscriptions.items())
        ),
        consume_type=first.consume_type,
        message_model=first.message_model,
        consume_from_where=first.consume_from_where,
        conflicts=tuple(conflicts.values()),
        locks=tuple(lock for body in found.values() for lock in body.queue_locks or ()),
        failures=answers.failures,
    )


async def producer_members(session: Session, group: str) -> Producers:
    """The members of a producer group (name with namespace); raises NotFoundError."""
    header = GetProducerConnectionListRequestHeader(producer_group=group)
    code = RequestCode.GET_PRODUCER_CONNECTION_LIST
    answers = await session.ask_each(ProducerConnection, await session.masters(), code, header)
    connected = {broker: body.connection_set for broker, body in answers.results.items()}
    answered = answers.without(BrokerError)  # code 1: unknown here
    if not any(connected.values()):
        if not answered.failures:
            raise NotFoundError(
                f"no producer of group {session.unwrap(group)} is connected",
                hint="a producer is listed after its first send",
            )
        answered.all()
    return Producers(
        group=session.unwrap(group), members=_members(connected), failures=answered.failures
    )


async def running_info(
    session: Session, group: str, client_id: str, *, stack: bool = False
) -> ConsumerRunningInfo:
    """The running info of a member (307); raises NotFoundError if it is not connected."""
    members = await group_members(session, group)
    brokers = next((m.brokers for m in members.members if m.client_id == client_id), ())
    if not brokers:
        raise no_member(session.unwrap(group), client_id)
    masters = await session.masters()
    header = GetConsumerRunningInfoRequestHeader(
        consumer_group=group, client_id=client_id, jstack_enable=stack
    )
    code = RequestCode.GET_CONSUMER_RUNNING_INFO
    return await session.ask(
        ConsumerRunningInfo, masters[brokers[0]], code, header, timeout_s=RELAY_TIMEOUT_S
    )


def no_member(group: str, client_id: str) -> NotFoundError:
    """The error for a client that is not connected."""
    return NotFoundError(
        f"no member {client_id} of group {group} is connected",
        hint="`skylark group describe` lists the members",
    )


def _members(connections: dict[str, list[Connection]]) -> tuple[Member, ...]:
    """The clients of all brokers, by id."""
    known: dict[str, tuple[Connection, list[str]]] = {}
    for broker, found in connections.items():
        for connection in found:
            known.setdefault(connection.client_id, (connection, []))[1].append(broker)
    return tuple(
        Member(
            client_id=client_id,
            address=connection.client_addr,
            language=connection.language or "",
            version=version_name(connection.version),
            brokers=tuple(brokers),
        )
        for client_id, (connection, brokers) in sorted(known.items())
    )
