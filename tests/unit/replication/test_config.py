"""Settings of replication."""

from __future__ import annotations

import pytest

from skylark.core.config import InvalidConfigError, own_settings
from skylark.replication.config import ReplicationConfig


def test_keys_and_defaults_are_javas() -> None:
    found = {info.java: info.default for info in own_settings(ReplicationConfig)}
    assert found == {
        "haSendHeartbeatInterval": 5_000,
        "haHousekeepingInterval": 20_000,
        "haTransferBatchSize": 32_768,
        "haFlowControlEnable": False,
        "maxHaTransferByteInSecond": 104_857_600,
        "haMaxGapNotInSync": 268_435_456,
        "inSyncReplicas": 1,
        "slaveTimeout": 3_000,
        "haMasterAddress": None,
        "haCompatible4x": False,
        "haSlaveFallbehindMax": 268_435_456,
        "haSyncFromStart": False,
        "haTruncateAhead": False,
    }


@pytest.mark.parametrize(
    ("settings", "acks"),
    [
        ({}, 0),
        ({"in_sync_replicas": 2}, 1),
        ({"in_sync_replicas": 3}, 2),
        ({"ha_compatible4x": True}, 1),
        ({"ha_compatible4x": True, "in_sync_replicas": 3}, 1),
    ],
)
def test_how_many_slaves_are_waited_for(settings: dict[str, int], acks: int) -> None:
    assert ReplicationConfig(**settings).acks_needed == acks  # type: ignore[arg-type]


def test_frames_fit_into_what_an_apache_slave_reads() -> None:
    ReplicationConfig(ha_transfer_batch_size=4_194_292)
    with pytest.raises(InvalidConfigError, match="haTransferBatchSize"):
        ReplicationConfig(ha_transfer_batch_size=4_194_293)
