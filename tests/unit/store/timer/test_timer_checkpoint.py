"""The checkpoint file: in place, and zeros where it is broken."""

from __future__ import annotations

import pytest

from skylark.store.timer.timer_checkpoint import TimerCheckpointFile
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.slave_sync_body import TimerCheckpoint
from tests.unit.store.timer.topics import DISK, new_disk

CHECKPOINT = TimerCheckpoint(
    last_read_time_ms=1,
    last_timer_log_flush_pos=2,
    last_timer_queue_offset=3,
    master_timer_queue_offset=4,
    data_version=DataVersion(state_version=5, timestamp=6, counter=7),
)


def test_the_checkpoint_file() -> None:
    files = new_disk()
    file = TimerCheckpointFile(files, DISK / "config")
    assert file.load() == TimerCheckpoint()
    file.write(CHECKPOINT)
    file.write(CHECKPOINT)  # over itself, in place
    content = files.read_file(DISK / "config" / "timercheck")
    assert content == b"".join(n.to_bytes(8, "big") for n in range(1, 8)).ljust(4_096, b"\0")
    assert TimerCheckpointFile(files, DISK / "config").load() == CHECKPOINT


@pytest.mark.parametrize("content", [b"", b"\0" * 55, b"\xff" * 56, b"\x7f" * 4_096])
def test_a_broken_checkpoint_is_zeros(content: bytes) -> None:
    files = new_disk()
    files.make_directories(DISK / "config")
    files.write_file(DISK / "config" / "timercheck", content)
    file = TimerCheckpointFile(files, DISK / "config")
    assert file.load() == TimerCheckpoint()
    file.write(CHECKPOINT)
    assert file.load() == CHECKPOINT
