"""Clusters, brokers and rates, for monitoring.

A broker reports its state as a table of strings (28); :class:`BrokerState` has the part that
``mqadmin clusterList`` shows, with types, and the whole table. Statistics (315) are sums and rates
over the last minute, hour and day. A broker that does not respond is a failure in the result, not
an error, as long as another one responds.

:func:`replication_report` shows masters, their slaves, and slaves that have diverged, from the
runtime table and the replication state (907) of each broker. The lag of a slave is the difference
between the end of its master's log and its own. Only Skylark brokers report that a slave has
diverged.

Counterpart of mqadmin's clusterList, brokerStatus, haStatus, topicStatus, statsAll,
brokerConsumeStats.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from skylark.admin.admin_session import Operations
from skylark.admin.errors import NotFoundError, ServerFailure
from skylark.admin.fan_out import on_each
from skylark.admin.topic_queues import TopicStats, topic_stats
from skylark.client.core.argument_checks import checks_arguments
from skylark.client.core.route_cache import MASTER_ID
from skylark.core.errors import BrokerError
from skylark.wire.bodies.common_body import KVTable
from skylark.wire.bodies.ha_body import HARuntimeInfo
from skylark.wire.bodies.stats import BrokerStatsData, BrokerStatsItem, ConsumeStatsList
from skylark.wire.codes import RequestCode
from skylark.wire.headers.admin import (
    GetConsumeStatsInBrokerRequestHeader,
    ViewBrokerStatsDataRequestHeader,
)

TOPIC_PUT_NUMS: Final = "TOPIC_PUT_NUMS"
GROUP_GET_NUMS: Final = "GROUP_GET_NUMS"
#: Timeout for all groups of a large broker, which goes through all its queues.
ALL_GROUPS_TIMEOUT_S: Final = 30.0


class BrokerState(msgspec.Struct, frozen=True, kw_only=True):
    """One broker of a cluster, master or slave; None where it does not report a value."""

    cluster: str
    broker: str
    broker_id: int
    address: str
    version: str | None = None
    is_active: bool | None = None
    put_tps: float | None = None  #: messages stored per second, over the last 10 seconds
    get_tps: float | None = None  #: messages delivered per second, likewise
    put_count_today: int | None = None
    get_count_today: int | None = None
    disk_ratio: float | None = None  #: usage of the disk of the log, 0 to 1
    dispatch_behind_bytes: int | None = None  #: of the log, not in the consume queues yet
    earliest_time_ms: int | None = None  #: store time of the oldest message
    runtime: dict[str, str] = {}  #: the whole table


class ClusterReport(msgspec.Struct, frozen=True, kw_only=True):
    """All brokers of all clusters, by cluster, name and id."""

    brokers: tuple[BrokerState, ...]
    failures: tuple[ServerFailure, ...] = ()  #: these are in ``brokers`` too, without values


class HaReport(msgspec.Struct, frozen=True, kw_only=True):
    """State of replication as reported by one broker."""

    broker: str
    address: str
    status: HARuntimeInfo


class StatsSum(msgspec.Struct, frozen=True, kw_only=True):
    """A sum over a period and per second, over all queried brokers."""

    total: int
    tps: float


class StatsReport(msgspec.Struct, frozen=True, kw_only=True):
    """One statistic over three periods."""

    name: str
    key: str
    minute: StatsSum
    hour: StatsSum
    day: StatsSum
    failures: tuple[ServerFailure, ...] = ()


class BrokerGroups(msgspec.Struct, frozen=True, kw_only=True):
    """All groups of one broker: lag, and the consume stats as the broker reports them."""

    broker: str
    address: str
    lag: int
    in_flight: int
    stats: ConsumeStatsList


@checks_arguments
class Stats(Operations):
    """Functions about states and rates."""

    async def clusters(self, cluster: str | None = None) -> ClusterReport:
        """All brokers, slaves too, or those of one cluster; raises NotFoundError for it."""
        session = self._session
        info = await session.cluster_info()
        if cluster is not None and cluster not in info.cluster_addr_table:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            raise NotFoundError(f"cluster {cluster} does not exist", hint=f"known: {known}")
        known_brokers = {
            address: BrokerState(
                cluster=data.cluster, broker=name, broker_id=broker_id, address=address
            )
            for name, data in info.broker_addr_table.items()
            if cluster in (None, data.cluster)
            for broker_id, address in data.broker_addrs.items()
        }
        tables = await on_each(
            {address: address for address in known_brokers},
            lambda _, address: self._runtime(address),
        )
        states = [
            _state(broker, tables.results.get(address)) for address, broker in known_brokers.items()
        ]
        states.sort(key=lambda state: (state.cluster, state.broker, state.broker_id))
        named = tuple(
            msgspec.structs.replace(failure, server=known_brokers[failure.address].broker)
            for failure in tables.failures
        )
        return ClusterReport(brokers=tuple(states), failures=named)

    async def runtime(self, broker: str) -> dict[str, str]:
        """The runtime table of a broker (28), given by name or address; raises NotFoundError."""
        _, address = await self._session.broker(broker)
        return await self._runtime(address)

    async def _runtime(self, address: str) -> dict[str, str]:
        code = RequestCode.GET_BROKER_RUNTIME_INFO
        return (await self._session.ask(KVTable, address, code)).table

    async def topic(self, topic: str) -> TopicStats:
        """Offsets and times of every queue, and the send rate; raises NotFoundError."""
        name = self._session.wrap(topic)
        return await topic_stats(self._session, name, await self._session.topic_masters(name))

    async def ha(self, broker: str) -> HaReport:
        """State of replication (907): the slaves of a master, or the link of a slave."""
        name, address = await self._session.broker(broker)
        code = RequestCode.GET_BROKER_HA_STATUS
        status = await self._session.ask(HARuntimeInfo, address, code)
        return HaReport(broker=name, address=address, status=status)

    async def groups(self, broker: str, *, only_order: bool = False) -> BrokerGroups:
        """The lag of all groups of a broker (317); ``only_order``: only ordered topics."""
        name, address = await self._session.broker(broker)
        header = GetConsumeStatsInBrokerRequestHeader(is_order=only_order)
        code = RequestCode.GET_BROKER_CONSUME_STATS
        stats = await self._session.ask(
            ConsumeStatsList, address, code, header, timeout_s=ALL_GROUPS_TIMEOUT_S
        )
        return BrokerGroups(
            broker=name,
            address=address,
            lag=lag_of(stats),
            in_flight=max(
                0, stats.total_inflight_diff
            ),  # Java reports a negative number if no pull offset is known
            stats=stats,
        )

    async def view(self, name: str, key: str, *, broker: str | None = None) -> StatsReport:
        """One statistic (315), over all masters or of one broker.

        Names are those of RocketMQ: ``TOPIC_PUT_NUMS`` with a topic as key, ``GROUP_GET_NUMS`` with
        ``topic@group``. Raises NotFoundError if no broker has it: it starts with the first event.
        """
        return await self._view(name, key, await self._session.masters(broker=broker))

    async def put_rate(self, topic: str) -> StatsReport:
        """The rate of messages sent to a topic; raises NotFoundError."""
        name = self._session.wrap(topic)
        return await self._view(TOPIC_PUT_NUMS, name, await self._session.topic_masters(name))

    async def get_rate(self, group: str, topic: str) -> StatsReport:
        """The rate of messages of a topic delivered to a group; raises NotFoundError."""
        name = self._session.wrap(topic)
        key = f"{name}@{self._session.wrap(group)}"
        return await self._view(GROUP_GET_NUMS, key, await self._session.topic_masters(name))

    async def _view(self, name: str, key: str, masters: Mapping[str, str]) -> StatsReport:
        header = ViewBrokerStatsDataRequestHeader(stats_name=name, stats_key=key)
        code = RequestCode.VIEW_BROKER_STATS_DATA
        answers = await self._session.ask_each(BrokerStatsData, masters, code, header)
        others = answers.without(BrokerError)  # code 1: it has no such statistic
        if not answers.results:
            if not others.errors:
                raise NotFoundError(f"no broker has a statistic {name} of {key}")
            others.all()
        found = answers.results.values()
        return StatsReport(
            name=name,
            key=key,
            minute=_sum([data.stats_minute for data in found]),
            hour=_sum([data.stats_hour for data in found]),
            day=_sum([data.stats_day for data in found]),
            failures=others.failures,
        )


def lag_of(stats: ConsumeStatsList) -> int:
    """The lag of all groups of a broker; its own sum counts offsets beyond the end as negative."""
    return sum(
        max(0, offsets.broker_offset - offsets.consumer_offset)
        for groups in stats.consume_stats_list
        for found in groups.values()
        for each in found
        for offsets in each.offset_table.values()
    )


def _sum(items: list[BrokerStatsItem | None]) -> StatsSum:
    known = [item for item in items if item is not None]
    return StatsSum(total=sum(item.sum for item in known), tps=sum(item.tps for item in known))


def _state(broker: BrokerState, table: Mapping[str, str] | None) -> BrokerState:
    if table is None:
        return broker
    put, get = _integer(table, "msgPutTotalTodayNow"), _integer(table, "msgGetTotalTodayNow")
    put_before = _integer(table, "msgPutTotalTodayMorning")
    get_before = _integer(table, "msgGetTotalTodayMorning")
    return msgspec.structs.replace(
        broker,
        version=table.get("brokerVersionDesc"),
        is_active=table["brokerActive"] == "true" if "brokerActive" in table else None,
        put_tps=_number(table, "putTps"),
        get_tps=_number(table, "getTransferredTps"),
        put_count_today=None if put is None else put - (put_before or 0),
        get_count_today=None if get is None else get - (get_before or 0),
        disk_ratio=_number(table, "commitLogDiskRatio"),
        dispatch_behind_bytes=_integer(table, "dispatchBehindBytes"),
        earliest_time_ms=_integer(table, "earliestMessageTimeStamp"),
        runtime=dict(table),
    )


def _number(table: Mapping[str, str], key: str) -> float | None:
    """The first number of an entry; None if it is not a number."""
    try:
        return float(table.get(key, "").split()[0])
    except (IndexError, ValueError):
        return None


def _integer(table: Mapping[str, str], key: str) -> int | None:
    try:
        return int(table.get(key, ""))
    except ValueError:
        return None


class SlaveLink(msgspec.Struct, frozen=True, kw_only=True):
    """A slave as reported by its master."""

    address: str  #: remote address of the connection
    lag_bytes: int
    in_sync: bool
    bytes_per_second: int


class ReplicaState(msgspec.Struct, frozen=True, kw_only=True):
    """One broker, master or slave; None where a value is not reported or does not apply."""

    cluster: str
    broker: str
    id: int
    role: str  #: MASTER or SLAVE
    address: str
    version: str | None = None
    in_tps: float | None = None
    out_tps: float | None = None
    log_end: int | None = None
    lag_bytes: int | None = None  #: slave: its lag; master: the largest lag of a slave
    slaves: int | None = None  #: master: connected slaves
    in_sync: int | None = None  #: master: of these, in sync
    phase: str | None = None  #: slave: its state
    diverged: str | None = None  #: slave: why it has stopped replicating
    links: tuple[SlaveLink, ...] = ()  #: master: its slaves


class ReplicationReport(msgspec.Struct, frozen=True, kw_only=True):
    """All brokers, by cluster, name and id."""

    brokers: tuple[ReplicaState, ...]
    failures: tuple[ServerFailure, ...] = ()  #: these are in ``brokers`` too, without values


async def replication_report(stats: Stats, cluster: str | None = None) -> ReplicationReport:
    """All brokers, or those of one cluster; raises NotFoundError for it."""
    known = await stats.clusters(cluster)
    addresses = {state.address: state.address for state in known.brokers if state.runtime}
    reports = (await on_each(addresses, lambda _, address: stats.ha(address))).results
    ends = {
        (state.cluster, state.broker): reports[state.address].status.master_commit_log_max_offset
        for state in known.brokers
        if state.broker_id == MASTER_ID and state.address in reports
    }
    return ReplicationReport(
        brokers=tuple(
            _replica(state, reports.get(state.address), ends.get((state.cluster, state.broker)))
            for state in known.brokers
        ),
        failures=known.failures,
    )


def _replica(state: BrokerState, ha: HaReport | None, master_end: int | None) -> ReplicaState:
    replica = ReplicaState(
        cluster=state.cluster,
        broker=state.broker,
        id=state.broker_id,
        role="MASTER" if state.broker_id == MASTER_ID else "SLAVE",
        address=state.address,
        version=state.version,
        in_tps=state.put_tps,
        out_tps=state.get_tps,
    )
    if ha is None:
        return replica
    if not ha.status.master:
        return _slave(replica, state, ha, master_end)
    links = tuple(
        SlaveLink(
            address=link.addr,
            lag_bytes=link.diff,
            in_sync=link.in_sync,
            bytes_per_second=link.transferred_byte_in_second,
        )
        for link in ha.status.ha_connection_info
    )
    return msgspec.structs.replace(
        replica,
        log_end=ha.status.master_commit_log_max_offset,
        lag_bytes=max((link.lag_bytes for link in links), default=None),
        slaves=len(links),
        in_sync=ha.status.in_sync_slave_nums,
        links=links,
    )


def _slave(
    replica: ReplicaState, state: BrokerState, ha: HaReport, master_end: int | None
) -> ReplicaState:
    link = ha.status.ha_client_runtime_info
    end = None if link is None else link.max_offset
    return msgspec.structs.replace(
        replica,
        log_end=end,
        lag_bytes=None if end is None or master_end is None else max(0, master_end - end),
        phase=state.runtime.get("haPhase"),
        diverged=state.runtime.get("haDivergence") or None,
    )
