"""Topics of a cluster: create, list, describe, change and delete them.

Each broker has its own configuration of a topic; the name server combines them to a route.
Permissions are letters in our API and bits on the wire; attributes are sent as changes,
``+key=value`` or ``-key``.

``create`` creates it on every master and does not change it where it exists: creating it again must
not change a number of queues that others rely on. ``update`` changes the given fields only; ``put``
replaces the whole configuration.

Counterpart of mqadmin's updateTopic, updateTopicPerm, deleteTopic, topicList, topicRoute,
topicStatus, updateOrderConf.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

import msgspec

from skylark.admin.admin_session import Operations, Session, masters_of, no_topic
from skylark.admin.errors import NotFoundError, ServerFailure
from skylark.admin.fan_out import FannedOut, few_at_a_time, on_each
from skylark.admin.server_settings import kv_delete, kv_get, kv_put
from skylark.admin.topic_queues import QueueStats, topic_stats
from skylark.client.core.argument_checks import checks_arguments
from skylark.client.core.broker_calls import make_request
from skylark.core.errors import (
    InvalidParameterError,
    RequestNotSupportedError,
    TopicNotExistError,
)
from skylark.core.names import (
    AUTO_CREATE_TOPIC,
    broker_system_topics,
    is_dlq_topic,
    is_retry_topic,
    is_system_topic,
    topic_problem,
)
from skylark.wire.bodies.common_body import GroupList, TopicList
from skylark.wire.bodies.config import TopicConfig, TopicFilterType
from skylark.wire.bodies.route_body import TopicRouteData
from skylark.wire.bodies.slave_sync_body import TopicConfigSerializeWrapper
from skylark.wire.codes import Perm, RequestCode
from skylark.wire.fastjson import decode_body
from skylark.wire.headers.admin import CreateTopicRequestHeader, TopicRequestHeader
from skylark.wire.headers.route import (
    DeleteTopicFromNamesrvRequestHeader,
    GetTopicsByClusterRequestHeader,
)

DEFAULT_QUEUE_COUNT: Final = 8
#: Routes that are requested concurrently.
ROUTES_AT_ONCE: Final = 64
ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


class TopicOnBroker(msgspec.Struct, frozen=True, kw_only=True):
    """A topic on one broker, after a change."""

    topic: str
    broker: str
    address: str
    created: bool  # False: it existed before
    queue_count: int  # write queues
    read_queue_count: int
    perm: str


class TopicSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A topic of the cluster as its route shows it."""

    topic: str
    brokers: tuple[str, ...]
    queue_count: int  # write queues on all brokers
    perm: str  # for example ``rw``; the brokers' permissions together


class TopicPart(msgspec.Struct, frozen=True, kw_only=True):
    """A topic on one broker."""

    broker: str
    cluster: str
    address: str
    read_queue_count: int
    write_queue_count: int
    perm: str
    order: bool
    sys_flag: int
    filter_type: str
    attributes: dict[str, str]


class TopicDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A topic on all brokers; brokers that did not respond are in ``failures``."""

    topic: str
    parts: tuple[TopicPart, ...]
    queues: tuple[QueueStats, ...]
    message_count: int
    put_tps: float
    order_config: str | None
    failures: tuple[ServerFailure, ...] = ()


@checks_arguments
class Topics(Operations):
    """Functions about topics, on all masters or those of ``cluster`` or ``broker``."""

    # ---- changes ---------------------------------------------------------------------------------

    async def create(
        self,
        topic: str,
        *,
        queue_count: int = DEFAULT_QUEUE_COUNT,
        perm: str = "rw",
        order: bool = False,
        attributes: Mapping[str, str] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[TopicOnBroker]:
        """Create a topic; an existing one is not changed. Returns one result per broker.

        ``attributes`` such as ``{"message.type": "FIFO"}``. Raises BrokerError if a broker refuses
        it, PartialFailureError, TransportError.
        """
        config = TopicConfig(
            topic_name=topic,
            read_queue_nums=queue_count,
            write_queue_nums=queue_count,
            perm=parse_perm(perm),
            order=order,
            attributes=dict(attributes or {}),
        )
        return await self._set(config, cluster=cluster, broker=broker, only_missing=True)

    async def put(
        self, config: TopicConfig, *, cluster: str | None = None, broker: str | None = None
    ) -> list[TopicOnBroker]:
        """Create a topic or replace its whole configuration, including its attributes."""
        return await self._set(config, cluster=cluster, broker=broker, only_missing=False)

    async def update(
        self,
        topic: str,
        *,
        read_queue_count: int | None = None,
        write_queue_count: int | None = None,
        perm: str | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> list[TopicOnBroker]:
        """Change the given fields on every broker that has the topic; None removes an attribute.

        Raises NotFoundError, BrokerError, PartialFailureError.
        """
        session, name = self._session, self._checked(topic)
        having = await session.topic_masters(name)
        wanted = await session.masters(cluster, broker)
        targets = {b: address for b, address in having.items() if b in wanted}
        if not targets:
            raise NotFoundError(f"none of these brokers has topic {topic}: {', '.join(wanted)}")

        async def change(broker: str, address: str) -> TopicOnBroker:
            config = await topic_config(session, address, name)
            if read_queue_count is not None:
                config.read_queue_nums = checked_count(read_queue_count)
            if write_queue_count is not None:
                config.write_queue_nums = checked_count(write_queue_count)
            if perm is not None:
                config.perm = parse_perm(perm) | config.perm & ~int(Perm.READ | Perm.WRITE)
            if order is not None:
                config.order = order
            changes = changed_only(attributes or {}, config.attributes)
            await send_config(session, address, config, changes)
            return self._result(config, broker, address, created=False)

        return list((await on_each(targets, change)).all().values())

    async def delete(self, topic: str, *, cluster: str | None = None) -> list[str]:
        """Delete a topic from brokers, then from all name servers; returns the broker names.

        Its messages stay in the log until they expire. If a broker fails, the name servers keep the
        topic, and the same call may be repeated. Raises NotFoundError, PartialFailureError.
        """
        session, name = self._session, self._checked(topic)
        having = await session.topic_masters(name)
        if cluster is not None:
            wanted = await session.masters(cluster)
            having = {b: address for b, address in having.items() if b in wanted}
            if not having:
                raise NotFoundError(f"no broker of cluster {cluster} has topic {topic}")
        request = TopicRequestHeader(topic=name)
        code = RequestCode.DELETE_TOPIC_IN_BROKER
        deleted = await on_each(
            having, lambda _, address: session.call(address, make_request(code, request))
        )
        brokers = list(deleted.all())
        header = DeleteTopicFromNamesrvRequestHeader(topic=name, cluster_name=cluster)
        deletion = make_request(RequestCode.DELETE_TOPIC_IN_NAMESRV, header)
        await session.call_all_name_servers(deletion)
        if cluster is None and await kv_get(session, ORDER_NAMESPACE, name) is not None:
            await kv_delete(session, ORDER_NAMESPACE, name)
        return brokers

    async def set_order_config(self, topic: str, queues: Mapping[str, int] | None) -> None:
        """Fix the queues of an ordered topic: ``{"broker-a": 4}``; None removes the setting.

        A key then keeps its queue while a broker is down; name servers return the setting only with
        ``orderMessageEnable=true``. Raises PartialFailureError.
        """
        name = self._checked(topic)
        if queues is None:
            await kv_delete(self._session, ORDER_NAMESPACE, name)
            return
        if not queues:
            raise InvalidParameterError("an order configuration needs a broker: {'broker-a': 4}")
        for broker, count in queues.items():
            if not broker or ":" in broker or ";" in broker or count < 1:
                raise InvalidParameterError(
                    f"{broker}:{count} is not valid in an order configuration"
                )
        text = ";".join(f"{broker}:{count}" for broker, count in queues.items())
        await kv_put(self._session, ORDER_NAMESPACE, name, text)

    async def _set(
        self, config: TopicConfig, *, cluster: str | None, broker: str | None, only_missing: bool
    ) -> list[TopicOnBroker]:
        session = self._session
        name = self._checked(config.topic_name)
        for count in (config.read_queue_nums, config.write_queue_nums):
            checked_count(count)
        config = msgspec.structs.replace(config, topic_name=name)
        targets = await session.masters(cluster, broker)
        route = await session.find_route(name)
        known = {} if route is None else {q.broker_name: q for q in route.queue_datas}

        async def put(broker: str, address: str) -> TopicOnBroker:
            if only_missing and broker in known:
                there = TopicConfig(
                    topic_name=name, write_queue_nums=known[broker].write_queue_nums
                )
                return self._result(there, broker, address, created=False)
            present: dict[str, str] = {}
            if broker in known:
                present = (await topic_config(session, address, name)).attributes
            wanted: dict[str, str | None] = dict(config.attributes)
            wanted |= dict.fromkeys(present.keys() - wanted.keys())
            await send_config(session, address, config, changed_only(wanted, present))
            return self._result(config, broker, address, created=broker not in known)

        return list((await on_each(targets, put)).all().values())

    def _result(
        self, config: TopicConfig, broker: str, address: str, *, created: bool
    ) -> TopicOnBroker:
        return TopicOnBroker(
            topic=self._session.unwrap(config.topic_name),
            broker=broker,
            address=address,
            created=created,
            queue_count=config.write_queue_nums,
            read_queue_count=config.read_queue_nums,
            perm=format_perm(config.perm),
        )

    def _checked(self, topic: str) -> str:
        if (problem := topic_problem(topic)) is not None:
            raise InvalidParameterError(problem)
        return self._session.wrap(topic)

    # ---- queries ---------------------------------------------------------------------------------

    async def names(self, *, with_internal: bool = False, cluster: str | None = None) -> list[str]:
        """The sorted names with namespace; internal ones as in :meth:`all`."""
        session = self._session
        request = make_request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        if cluster is not None:
            header = GetTopicsByClusterRequestHeader(cluster=cluster)
            request = make_request(RequestCode.GET_TOPICS_BY_CLUSTER, header)
        answer = await session.ask_name_servers(request)
        found = decode_body(TopicList, answer.body or b"{}").topic_list
        names = sorted(name for name in set(found) if session.is_ours(name))
        if with_internal:
            return names
        info = await session.cluster_info()
        system: set[str] = set()
        for broker in info.broker_addr_table.values():
            system |= broker_system_topics(broker.cluster, broker.broker_name)
        return [name for name in names if not _is_internal(name, system)]

    async def all(
        self, *, with_internal: bool = False, cluster: str | None = None
    ) -> list[TopicSummary]:
        """All topics by name, or those of one cluster.

        ``with_internal``: also system topics, retry topics and dead-letter topics.
        """
        session = self._session
        names = await self.names(with_internal=with_internal, cluster=cluster)
        routes = await few_at_a_time(names, session.find_route, ROUTES_AT_ONCE)
        return [
            _summary(session.unwrap(name), route)
            for name, route in zip(names, routes, strict=True)
            if route is not None  # deleted meanwhile
        ]

    async def route(self, topic: str) -> TopicRouteData:
        """The route of a topic (105); raises NotFoundError."""
        return await self._session.route(self._session.wrap(topic))

    async def describe(self, topic: str) -> TopicDescription:
        """Its configuration on each broker and the offsets of its queues; raises NotFoundError."""
        session, name = self._session, self._session.wrap(topic)
        route = await session.route(name)
        clusters = {data.broker_name: data.cluster for data in route.broker_datas}

        async def part(broker: str, address: str) -> TopicPart:
            config = await topic_config(session, address, name)
            return _part(config, broker, clusters[broker], address)

        masters = masters_of(route)
        if not masters:
            raise no_topic(topic)
        parts = await on_each(masters, part)
        stats = await topic_stats(session, name, masters)
        failures = {f.server: f for f in (*parts.failures, *stats.failures)}
        return TopicDescription(
            topic=topic,
            parts=tuple(parts.some().values()),
            queues=stats.queues,
            message_count=sum(queue.count for queue in stats.queues),
            put_tps=stats.put_tps,
            order_config=await kv_get(session, ORDER_NAMESPACE, name),
            failures=tuple(failures.values()),
        )

    async def groups(self, topic: str) -> list[str]:
        """Consumer groups that subscribe to it now, or have offsets in it (300).

        Raises NotFoundError, PartialFailureError.
        """
        answers = await groups_reading(self._session, self._session.wrap(topic))
        return sorted({group for groups in answers.all().values() for group in groups})


async def groups_reading(session: Session, topic: str) -> FannedOut[list[str]]:
    """The groups of a topic (with namespace), as each broker reports them."""
    header = TopicRequestHeader(topic=topic)
    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO

    async def ask(_: str, address: str) -> list[str]:
        found = await session.ask(GroupList, address, code, header)
        return [session.unwrap(group) for group in found.group_list if session.is_ours(group)]

    return await on_each(await session.topic_masters(topic), ask)


def _is_internal(name: str, system: Collection[str]) -> bool:
    return is_system_topic(name, system) or is_retry_topic(name) or is_dlq_topic(name)


def _summary(topic: str, route: TopicRouteData) -> TopicSummary:
    perm = 0
    for queues in route.queue_datas:
        perm |= queues.perm
    return TopicSummary(
        topic=topic,
        brokers=tuple(sorted(queues.broker_name for queues in route.queue_datas)),
        queue_count=sum(queues.write_queue_nums for queues in route.queue_datas),
        perm=format_perm(perm),
    )


def _part(config: TopicConfig, broker: str, cluster: str, address: str) -> TopicPart:
    return TopicPart(
        broker=broker,
        cluster=cluster,
        address=address,
        read_queue_count=config.read_queue_nums,
        write_queue_count=config.write_queue_nums,
        perm=format_perm(config.perm),
        order=config.order,
        sys_flag=config.topic_sys_flag,
        filter_type=(config.topic_filter_type or TopicFilterType.SINGLE_TAG).name,
        attributes={key.lstrip("+"): value for key, value in config.attributes.items()},
    )


QUEUE_COUNT_MAX: Final = 65_536
_PERM_LETTERS: Final = ((Perm.READ, "r"), (Perm.WRITE, "w"), (Perm.INHERIT, "x"))


async def topic_config(session: Session, address: str, topic: str) -> TopicConfig:
    """The configuration of a topic on one broker (351); raises TopicNotExistError.

    Brokers before 5.0 do not support this request; then it requests all their topics (21).
    """
    try:
        header = TopicRequestHeader(topic=topic)
        return await session.ask(TopicConfig, address, RequestCode.GET_TOPIC_CONFIG, header)
    except RequestNotSupportedError:
        code = RequestCode.GET_ALL_TOPIC_CONFIG
        table = await session.ask(TopicConfigSerializeWrapper, address, code)
    if topic not in table.topic_config_table:
        raise TopicNotExistError(f"No topic in this broker. topic: {topic}")
    return table.topic_config_table[topic]


async def send_config(
    session: Session, address: str, config: TopicConfig, attributes: Mapping[str, str | None]
) -> None:
    """UPDATE_AND_CREATE_TOPIC (17): replaces all fields; attributes are changes."""
    header = CreateTopicRequestHeader(
        topic=config.topic_name,
        default_topic=AUTO_CREATE_TOPIC,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=(config.topic_filter_type or TopicFilterType.SINGLE_TAG).name,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=attribute_changes(attributes),
    )
    await session.call(address, make_request(RequestCode.UPDATE_AND_CREATE_TOPIC, header))


def parse_perm(perm: str) -> int:
    """``r``, ``w``, ``rw`` (or ``4``, ``2``, ``6``) as bits; raises InvalidParameterError."""
    letters = {letter: int(bit) for bit, letter in _PERM_LETTERS}
    if perm.isascii() and perm.isdigit() and 0 < int(perm) <= 15:
        return int(perm)
    if not perm or set(perm.lower()) - letters.keys():
        raise InvalidParameterError(f"{perm!r} is not a permission: r, w or rw")
    return sum({letters[letter] for letter in perm.lower()})


def format_perm(perm: int) -> str:
    """Bits of a permission as letters, for example ``rw``."""
    return "".join(letter for bit, letter in _PERM_LETTERS if perm & bit)


def changed_only(
    wanted: Mapping[str, str | None], present: Mapping[str, str]
) -> dict[str, str | None]:
    """The attributes that differ; some cannot be set again, not even to the same value."""
    return {key: value for key, value in wanted.items() if present.get(key) != value}


def attribute_changes(attributes: Mapping[str, str | None]) -> str:
    """Changes as they are sent; None removes. Raises InvalidParameterError."""
    for key, value in attributes.items():
        if not key or any(sign in f"{key}{value or ''}" for sign in ",=") or key[0] in "+-":
            raise InvalidParameterError(f"{key}={value} is not a valid attribute")
    return ",".join(f"-{k}" if v is None else f"+{k}={v}" for k, v in attributes.items())


def checked_count(queue_count: int) -> int:
    """A number of queues that a topic may have; raises InvalidParameterError."""
    if not 1 <= queue_count <= QUEUE_COUNT_MAX:
        raise InvalidParameterError(f"a topic has 1 to {QUEUE_COUNT_MAX} queues, not {queue_count}")
    return queue_count
