"""Bodies about replication: its state on a broker (907), and the controller (1001-1008).

The controller elects masters; no server of ours sends its requests yet. Counterpart of
Java's ``HARuntimeInfo``, ``SyncStateSet``, ``ElectMasterResponseBody``, ``BrokerReplicasInfo`` and
``EpochEntryCache``.
"""

from __future__ import annotations

import msgspec

from skylark.wire.bodies.common_body import Body
from skylark.wire.bodies.route_body import BrokerMemberGroup
from skylark.wire.fields import Int32, Int64


class HAConnectionRuntimeInfo(Body, kw_only=True):
    """One slave as its master sees it."""

    addr: str = ""
    slave_ack_offset: Int64 = 0
    diff: Int64 = 0
    in_sync: bool = False
    transferred_byte_in_second: Int64 = 0
    transfer_from_where: Int64 = 0


class HAClientRuntimeInfo(Body, kw_only=True):
    """The connection of a slave to its master."""

    master_addr: str | None = None
    transferred_byte_in_second: Int64 = 0
    max_offset: Int64 = 0
    last_read_timestamp: Int64 = 0
    last_write_timestamp: Int64 = 0
    master_flush_offset: Int64 = 0


class HARuntimeInfo(Body, kw_only=True):
    """Answer of 907, from a master or a slave."""

    master: bool = False
    master_commit_log_max_offset: Int64 = 0
    in_sync_slave_nums: Int32 = 0
    ha_connection_info: list[HAConnectionRuntimeInfo] = msgspec.field(default_factory=list)
    ha_client_runtime_info: HAClientRuntimeInfo | None = msgspec.field(
        default_factory=HAClientRuntimeInfo
    )


# ---- controller --------------------------------------------------------------------------------


class SyncStateSet(Body, kw_only=True):
    """Ids of the brokers in sync with the master; in requests 1001, 1003, 1004 and 1008."""

    sync_state_set: list[Int64] = msgspec.field(default_factory=list)
    sync_state_set_epoch: Int32 = 0


class ElectMasterResponseBody(Body, kw_only=True):
    """Answer of 1002."""

    broker_member_group: BrokerMemberGroup | None = None
    sync_state_set: list[Int64] | None = None


class ReplicaIdentity(Body, kw_only=True):
    """One member of a broker group."""

    broker_name: str = ""
    broker_id: Int64 | None = None
    broker_address: str | None = None
    alive: bool | None = None


class ReplicasInfo(Body, kw_only=True):
    """A broker group as the controller sees it."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 = 0
    sync_state_set_epoch: Int32 = 0
    in_sync_replicas: list[ReplicaIdentity] = msgspec.field(default_factory=list)
    not_in_sync_replicas: list[ReplicaIdentity] = msgspec.field(default_factory=list)


class BrokerReplicasInfo(Body, kw_only=True):
    """Broker groups by name (1006)."""

    replicas_info_table: dict[str, ReplicasInfo] = msgspec.field(default_factory=dict)


class EpochEntry(Body, kw_only=True):
    """The part of the log written under one master."""

    epoch: Int32 = 0
    start_offset: Int64 = 0
    end_offset: Int64 = 2**63 - 1  # open


class EpochEntryCache(Body, kw_only=True):
    """All epochs in the log of a broker (1007)."""

    cluster_name: str = ""
    broker_name: str = ""
    broker_id: Int64 = 0
    epoch_list: list[EpochEntry] = msgspec.field(default_factory=list)
    max_offset: Int64 = 0
