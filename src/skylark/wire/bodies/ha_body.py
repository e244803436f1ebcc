"""The state of replication on a broker (907). Counterpart of Java's ``HARuntimeInfo``."""

from __future__ import annotations

import msgspec

from skylark.wire.bodies.common_body import Body
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
