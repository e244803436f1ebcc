"""Consumer groups: list, create, change, describe and delete them; their connected members.

Each broker has its own settings of a group, as of a topic. Most brokers create a group when its
first consumer connects, so a group without settings is normal. Request 352 for one group would
create it; therefore the whole table is read (201).

Counterpart of mqadmin's updateSubGroup, deleteSubGroup, consumerProgress, consumerConnection,
consumerStatus, producerConnection.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

from skylark.admin.admin_session import Operations
from skylark.admin.connected_clients import (
    Members,
    Producers,
    group_members,
    producer_members,
    running_info,
)
from skylark.admin.consumer_progress import GroupProgress, QueueProgress, group_progress
from skylark.admin.errors import NotFoundError, ServerFailure
from skylark.admin.fan_out import FannedOut, few_at_a_time, on_each
from skylark.client.core.argument_checks import checks_arguments
from skylark.client.core.broker_calls import make_request
from skylark.core.errors import InvalidParameterError, SkylarkError
from skylark.core.names import (
    BUILT_IN_GROUPS,
    dlq_topic,
    group_problem,
    is_system_group,
    retry_topic,
)
from skylark.wire.bodies.admin_body import ConsumerRunningInfo
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.config import SubscriptionGroupConfig
from skylark.wire.bodies.heartbeat import MessageModel
from skylark.wire.bodies.pop_body import (
    MessageRequestMode,
    QueryAssignmentRequestBody,
    QueryAssignmentResponseBody,
    SetMessageRequestModeRequestBody,
)
from skylark.wire.bodies.slave_sync_body import SubscriptionGroupWrapper
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import decode_body
from skylark.wire.headers.admin import DeleteSubscriptionGroupRequestHeader, TopicRequestHeader
from skylark.wire.headers.route import DeleteTopicFromNamesrvRequestHeader

#: Members that are queried concurrently for their queues.
OWNERS_AT_ONCE: Final = 8

GroupTable: TypeAlias = dict[str, SubscriptionGroupConfig]


class GroupOnBroker(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a group on one broker."""

    broker: str
    address: str
    config: SubscriptionGroupConfig


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A group, and the brokers that know it."""

    group: str
    brokers: tuple[str, ...]


class GroupListing(msgspec.Struct, frozen=True, kw_only=True):
    """Groups by name; brokers that did not respond are in ``failures``."""

    groups: tuple[GroupSummary, ...]
    failures: tuple[ServerFailure, ...] = ()


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """Settings, members and progress of a group."""

    group: str
    configs: tuple[GroupOnBroker, ...]
    members: Members
    progress: GroupProgress
    failures: tuple[ServerFailure, ...] = ()

    @property
    def is_online(self) -> bool:
        return bool(self.members.members)


@checks_arguments
class Groups(Operations):
    """Functions about groups, on all masters or those of ``cluster`` or ``broker``."""

    # ---- changes ---------------------------------------------------------------------------------

    async def put(
        self,
        config: SubscriptionGroupConfig,
        *,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[GroupOnBroker]:
        """Create or replace the settings of a group (200).

        Raises BrokerError if a broker refuses them, PartialFailureError.
        """
        session = self._session
        wire = msgspec.structs.replace(config, group_name=self._checked(config.group_name))

        async def put(name: str, address: str) -> GroupOnBroker:
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await session.call(address, make_request(code, body=wire))
            return GroupOnBroker(broker=name, address=address, config=config)

        return list((await on_each(await session.masters(cluster, broker), put)).all().values())

    async def create(
        self, group: str, *, cluster: str | None = None, broker: str | None = None
    ) -> list[GroupOnBroker]:
        """Create a group with default settings; an existing group is not changed.

        :meth:`put` sets settings. Raises BrokerError, PartialFailureError.
        """
        self._checked(group)
        targets = await self._session.masters(cluster, broker)
        tables = (await self._tables(targets)).all()
        name = self._session.wrap(group)
        missing = [server for server, table in tables.items() if name not in table]
        results = [self._shown(b, targets[b], t[name]) for b, t in tables.items() if name in t]
        for server in missing:
            results += await self.put(SubscriptionGroupConfig(group_name=group), broker=server)
        return sorted(results, key=lambda result: result.broker)

    async def delete(
        self,
        group: str,
        *,
        with_data: bool = True,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[str]:
        """Delete a group; returns the brokers. ``with_data``: also offsets, retries, dead letters.

        Members that are still connected create it again. Raises NotFoundError,
        PartialFailureError.
        """
        session, name = self._session, self._checked(group)
        targets = await session.masters(cluster, broker)
        tables = (await self._tables(targets)).all()
        if not any(name in table for table in tables.values()):
            raise no_group(group)
        header = DeleteSubscriptionGroupRequestHeader(group_name=name, clean_offset=with_data)
        topics = [
            topic
            for topic in (retry_topic(name), dlq_topic(name))
            if with_data and await session.find_route(topic) is not None
        ]

        async def delete(_: str, address: str) -> None:
            code = RequestCode.DELETE_SUBSCRIPTIONGROUP
            await session.call(address, make_request(code, header))
            for topic in topics:
                code = RequestCode.DELETE_TOPIC_IN_BROKER
                await session.call(address, make_request(code, TopicRequestHeader(topic=topic)))

        brokers = list((await on_each(targets, delete)).all())
        for topic in topics if cluster is None and broker is None else ():
            deletion = DeleteTopicFromNamesrvRequestHeader(topic=topic)
            await session.call_all_name_servers(
                make_request(RequestCode.DELETE_TOPIC_IN_NAMESRV, deletion)
            )
        return brokers

    async def set_mode(
        self, topic: str, group: str, mode: Literal["pull", "pop"], *, share_queues: int = 0
    ) -> list[str]:
        """Set how a group gets the messages of a topic, on all its brokers (401); returns them.

        Members whose queues brokers assign follow within half a minute. ``share_queues``: in pop
        mode a member pops its own queues and those of so many others; 0: all queues. Raises
        NotFoundError for an unknown topic, BrokerError, PartialFailureError.
        """
        session, name = self._session, self._checked(group)
        wire_topic = session.wrap(topic)
        targets = await self._masters_of(topic)

        async def set_on(_: str, address: str) -> None:
            body = SetMessageRequestModeRequestBody(
                topic=wire_topic,
                consumer_group=name,
                mode=MessageRequestMode[mode.upper()],
                pop_share_queue_num=share_queues,
            )
            code = RequestCode.SET_MESSAGE_REQUEST_MODE
            await session.call(address, make_request(code, body=body))

        return sorted((await on_each(targets, set_on)).all())

    async def modes(self, topic: str, group: str) -> dict[str, str | None]:
        """How a group gets the messages of a topic, by broker (400): ``pull`` or ``pop``.

        The default of the broker, if no mode was set; None where the topic has no queue. Raises
        NotFoundError for an unknown topic, BrokerError, PartialFailureError.
        """
        session, name = self._session, self._checked(group)
        # As a broadcasting consumer, which has all queues without being a member.
        body = QueryAssignmentRequestBody(
            topic=session.wrap(topic),
            consumer_group=name,
            client_id="",
            strategy_name="AVG",
            message_model=MessageModel.BROADCASTING,
        )

        async def mode_on(_: str, address: str) -> str | None:
            request = make_request(RequestCode.QUERY_ASSIGNMENT, body=body)
            answer = await session.call(address, request)
            found = decode_body(QueryAssignmentResponseBody, answer.body or b"{}")
            queues = found.message_queue_assignments or ()
            return next((each.mode.name.lower() for each in queues if each.mode), None)

        return (await on_each(await self._masters_of(topic), mode_on)).all()

    async def _masters_of(self, topic: str) -> dict[str, str]:
        """The masters that have a topic; raises NotFoundError."""
        session = self._session
        route = await session.find_route(session.wrap(topic))
        if route is None:
            raise NotFoundError(f"topic {topic} does not exist")
        has_topic = {each.broker_name for each in route.broker_datas}
        masters = await session.masters()
        return {broker: address for broker, address in masters.items() if broker in has_topic}

    # ---- queries ---------------------------------------------------------------------------------

    async def all(self, *, with_internal: bool = False) -> GroupListing:
        """All groups of all brokers; ``with_internal``: also the internal groups of RocketMQ."""
        session = self._session
        tables = await self._tables(await session.masters())
        brokers: dict[str, list[str]] = {}
        for broker, table in tables.some().items():
            for name in table:
                if session.is_ours(name) and (with_internal or not _is_internal(name)):
                    brokers.setdefault(session.unwrap(name), []).append(broker)
        return GroupListing(
            groups=tuple(
                GroupSummary(group=group, brokers=tuple(sorted(found)))
                for group, found in sorted(brokers.items())
            ),
            failures=tables.failures,
        )

    async def describe(self, group: str, *, with_owners: bool = False) -> GroupDescription:
        """Settings, members and progress; raises NotFoundError if no broker knows the group.

        ``with_owners`` queries every member for its queues, as :meth:`progress` does.
        """
        session, name = self._session, self._session.wrap(group)
        targets = await session.masters()
        tables = await self._tables(targets)
        members = await group_members(session, name)
        progress = await group_progress(session, name)
        configs = [
            self._shown(broker, targets[broker], table[name])
            for broker, table in tables.some().items()
            if name in table
        ]
        failures = {f.server: f for f in (*tables.failures, *members.failures, *progress.failures)}
        if not (configs or members.members or progress.queues or failures):
            raise no_group(group)
        if with_owners:
            progress = await self._with_owners(progress, members)
        return GroupDescription(
            group=group,
            configs=tuple(configs),
            members=members,
            progress=progress,
            failures=tuple(failures.values()),
        )

    async def progress(
        self, group: str, topic: str | None = None, *, with_owners: bool = False
    ) -> GroupProgress:
        """The progress of a group per queue, including its retry topic.

        ``with_owners`` also queries every member for its queues; one that does not respond has
        none. Raises NotFoundError if the group has no offsets.
        """
        session, name = self._session, self._session.wrap(group)
        progress = await group_progress(
            session, name, None if topic is None else session.wrap(topic)
        )
        if not progress.queues and not progress.failures:
            hint = "it has not committed yet, or does not exist"
            raise NotFoundError(f"group {group} has no offsets", hint=hint)
        if with_owners:
            progress = await self._with_owners(progress, await group_members(session, name))
        return progress

    async def members(self, group: str) -> Members:
        """The connected members (203); without members the group is offline."""
        return await group_members(self._session, self._session.wrap(group))

    async def producers(self, group: str) -> Producers:
        """The connected producers of a group (204); raises NotFoundError if there are none."""
        return await producer_members(self._session, self._session.wrap(group))

    async def running_info(
        self, group: str, client_id: str, *, stack: bool = False
    ) -> ConsumerRunningInfo:
        """The running info of a member (307); ``stack``: also the stacks of its threads.

        Raises NotFoundError if it is not connected, BrokerError if it does not respond in time.
        """
        wrapped = self._session.wrap(group)
        return await running_info(self._session, wrapped, client_id, stack=stack)

    async def _with_owners(self, progress: GroupProgress, members: Members) -> GroupProgress:
        session, group = self._session, self._session.wrap(progress.group)

        async def queues_of(client_id: str) -> list[tuple[MessageQueue, str]]:
            try:
                info = await running_info(session, group, client_id)
            except SkylarkError:  # it has left or hangs: its queues are shown without an owner
                return []
            return [(session.unwrap_queue(queue), client_id) for queue in info.mq_table]

        found = await few_at_a_time(
            [member.client_id for member in members.members], queues_of, OWNERS_AT_ONCE
        )
        owners = dict(pair for pairs in found for pair in pairs)

        def owned(queue: QueueProgress) -> QueueProgress:
            return msgspec.structs.replace(queue, client_id=owners.get(queue.queue))

        return msgspec.structs.replace(progress, queues=tuple(map(owned, progress.queues)))

    # ---- private ---------------------------------------------------------------------------------

    def _checked(self, group: str) -> str:
        if (problem := group_problem(group)) is not None:
            raise InvalidParameterError(problem)
        return self._session.wrap(group)

    def _shown(self, broker: str, address: str, config: SubscriptionGroupConfig) -> GroupOnBroker:
        shown = msgspec.structs.replace(config, group_name=self._session.unwrap(config.group_name))
        return GroupOnBroker(broker=broker, address=address, config=shown)

    async def _tables(self, targets: dict[str, str]) -> FannedOut[GroupTable]:
        return await on_each(targets, self._table)

    async def _table(self, _broker: str, address: str) -> GroupTable:
        code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
        body = await self._session.ask(SubscriptionGroupWrapper, address, code)
        return body.subscription_group_table


def no_group(group: str) -> NotFoundError:
    """The error for a group that no broker knows."""
    return NotFoundError(f"group {group} does not exist", hint="`skylark group list` lists all")


def _is_internal(group: str) -> bool:
    return group in BUILT_IN_GROUPS or is_system_group(group)
