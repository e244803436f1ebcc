"""State of replication: masters, their slaves, and slaves that have diverged.

Each broker reports its runtime table (28) and its replication (907). The lag of a slave is the
difference between the end of its master's log and its own. Apache brokers support both requests;
only Skylark brokers report that a slave has diverged.

Counterpart of mqadmin's haStatus, for a whole cluster.
"""

from __future__ import annotations

import msgspec

from skylark.admin.cluster_stats import BrokerState, HaReport, Stats
from skylark.admin.errors import ServerFailure
from skylark.admin.fan_out import on_each

MASTER_ID = 0


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
