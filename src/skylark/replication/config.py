"""Settings of replication: Java's keys and defaults, and three that only Skylark has.

``brokerRole`` is a setting of the store, ``haListenPort`` of the broker. As in 5.x a SYNC_MASTER
waits for slaves only if ``inSyncReplicas`` is 2 or more; ``haCompatible4x`` selects the rules of
4.x.

Counterpart of the ``ha`` settings of Java's ``MessageStoreConfig``, and some others.
"""

from __future__ import annotations

from typing import Annotated, Final

from skylark.core.config import Config, Setting
from skylark.store.config import byte_count, milliseconds
from skylark.wire.ha_frame import HA_BODY_SIZE, HA_BODY_SIZE_MAX
from skylark.wire.layout import HA_FRAME_HEAD_SIZE

GAP_MAX: Final = 256 << 20
REPLICAS_MAX: Final = 1_000


class ReplicationConfig(Config, frozen=True, kw_only=True):
    """Settings of replication, for masters and slaves."""

    ha_send_heartbeat_interval: Annotated[
        int, milliseconds("Silence after which either end says that it lives.")
    ] = 5_000
    ha_housekeeping_interval: Annotated[
        int, milliseconds("Silence of the other end after which a link is closed.")
    ] = 20_000
    ha_transfer_batch_size: Annotated[
        int,
        byte_count(
            "Log bytes in one frame to a slave.",
            minimum=1,
            maximum=HA_BODY_SIZE_MAX - HA_FRAME_HEAD_SIZE,  # what an Apache slave has room for
        ),
    ] = HA_BODY_SIZE
    ha_flow_control_enable: Annotated[
        bool, Setting("Send no more than maxHaTransferByteInSecond to each slave.")
    ] = False
    max_ha_transfer_byte_in_second: Annotated[
        int, byte_count("Bytes per second for each slave.", minimum=1_000)
    ] = 100 << 20
    ha_max_gap_not_in_sync: Annotated[int, byte_count("A slave further behind is not in sync.")] = (
        GAP_MAX
    )
    in_sync_replicas: Annotated[
        int,
        Setting(
            "SYNC_MASTER: copies of a message, the master's included, before it is acknowledged.",
            minimum=1,
            maximum=REPLICAS_MAX,
        ),
    ] = 1
    slave_timeout: Annotated[int, milliseconds("How long a put waits for slaves.")] = 3_000
    ha_master_address: Annotated[
        str | None, Setting("Address of the master's HA port; else the name server tells.")
    ] = None
    ha_compatible4x: Annotated[
        bool,
        Setting(
            "SYNC_MASTER as in 4.x: wait for one slave, and answer SLAVE_NOT_AVAILABLE at once if"
            " there is none near.",
            java="haCompatible4x",
        ),
    ] = False
    ha_slave_fallbehind_max: Annotated[
        int, byte_count("haCompatible4x: a slave further behind is not near.")
    ] = GAP_MAX
    ha_sync_from_start: Annotated[
        bool, Setting("Send an empty slave the whole log, not only its last file as Java does.")
    ] = False
    ha_truncate_ahead: Annotated[
        bool,
        Setting(
            "At a slave: give up what the master does not have. It may be the only copy of"
            " acknowledged messages."
        ),
    ] = False

    @property
    def acks_needed(self) -> int:
        """Slaves that must have a message before a SYNC_MASTER acknowledges it."""
        return 1 if self.ha_compatible4x else self.in_sync_replicas - 1

    @property
    def bytes_per_second(self) -> int | None:
        """The limit for each slave; None without one."""
        return self.max_ha_transfer_byte_in_second if self.ha_flow_control_enable else None
