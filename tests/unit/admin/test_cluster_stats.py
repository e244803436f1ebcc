"""The states of replicas, put together from what each broker says."""

from __future__ import annotations

from typing import cast

from skylark.admin.cluster_stats import (
    BrokerState,
    ClusterReport,
    HaReport,
    Stats,
    replication_report,
)
from skylark.admin.errors import ServerFailure
from skylark.wire.bodies.ha_body import HAClientRuntimeInfo, HAConnectionRuntimeInfo, HARuntimeInfo

MASTER, SLAVE, SILENT = "10.0.0.1:10911", "10.0.0.2:10911", "10.0.0.3:10911"


def state(broker: str, broker_id: int, address: str, runtime: dict[str, str]) -> BrokerState:
    return BrokerState(
        cluster="c",
        broker=broker,
        broker_id=broker_id,
        address=address,
        put_tps=3.0 if runtime else None,
        runtime=runtime,
    )


class Cluster:
    """A master with a slave that is behind, and a broker that does not answer."""

    async def clusters(self, cluster: str | None = None) -> ClusterReport:
        assert cluster == "c"
        rows = {"haPhase": "FOLLOWING", "haDivergence": ""}
        return ClusterReport(
            brokers=(
                state("broker-a", 0, MASTER, {"x": "y"}),
                state("broker-a", 1, SLAVE, rows),
                state("broker-b", 0, SILENT, {}),
            ),
            failures=(ServerFailure(server="broker-b", address=SILENT, problem="is away"),),
        )

    async def ha(self, broker: str) -> HaReport:
        if broker == MASTER:
            link = HAConnectionRuntimeInfo(addr="10.0.0.2:4", diff=40, in_sync=True)
            status = HARuntimeInfo(
                master=True,
                master_commit_log_max_offset=1_000,
                in_sync_slave_nums=1,
                ha_connection_info=[link],
            )
        else:
            assert broker == SLAVE
            status = HARuntimeInfo(ha_client_runtime_info=HAClientRuntimeInfo(max_offset=970))
        return HaReport(broker="broker-a", address=broker, status=status)


async def test_both_ends_make_one_picture() -> None:
    report = await replication_report(cast("Stats", Cluster()), "c")
    master, slave, silent = report.brokers
    assert (master.role, master.slaves, master.in_sync, master.lag_bytes) == ("MASTER", 1, 1, 40)
    assert (master.in_tps, master.log_end, master.links[0].address) == (3.0, 1_000, "10.0.0.2:4")
    assert (slave.role, slave.log_end, slave.lag_bytes) == ("SLAVE", 970, 30)
    assert (slave.phase, slave.diverged, slave.slaves) == ("FOLLOWING", None, None)
    assert (silent.address, silent.version, silent.lag_bytes) == (SILENT, None, None)
    assert [failure.server for failure in report.failures] == ["broker-b"]
