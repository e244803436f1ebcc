"""Copies of the master's progress: held back until the log has it, and used by the next master."""

from __future__ import annotations

from pathlib import Path

from skylark.broker.config import load_broker_config
from skylark.broker.slave.slave_deliveries import DeliveryCopies, HeldCopy
from skylark.broker.table_saver import CONFIG_DIRECTORY
from skylark.store.config_files import TIMER_METRICS, ConfigFiles
from skylark.store.config_tables import DelayOffsetTable, TimerMetricsTable
from skylark.store.files import OsFileSystem
from skylark.store.timer.timer_checkpoint import TimerCheckpointFile
from skylark.store.timer.timer_layout import LOG_DIRECTORY, UNIT_SIZE
from skylark.store.timer.timer_log import TimerLog
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.slave_sync_body import TimerCheckpoint, TimerMetric

FILE_SIZE = 52 * 100
CHECKPOINT = TimerCheckpoint(
    last_read_time_ms=1_794_711_600_000,
    last_timer_log_flush_pos=104,
    last_timer_queue_offset=2,
    master_timer_queue_offset=2,
    data_version=DataVersion(counter=3),
)


def copies(root: Path) -> DeliveryCopies:
    files = OsFileSystem()
    config = load_broker_config(
        {"storePathRootDir": str(root), "mappedFileSizeTimerLog": str(FILE_SIZE)}
    )
    made = DeliveryCopies(files, config, ConfigFiles(files, root / CONFIG_DIRECTORY), lambda: 0)
    made.load(DelayOffsetTable())
    return made


def saved_checkpoint(root: Path) -> TimerCheckpoint:
    return TimerCheckpointFile(OsFileSystem(), root / CONFIG_DIRECTORY).load()


def test_a_copy_waits_until_the_log_is_as_far() -> None:
    flushed = 0
    held: HeldCopy[str] = HeldCopy(lambda: flushed)
    held.put(100, "first")
    held.put(50, "dropped: one is held")
    flushed = 99
    assert held.take() is None
    flushed = 100
    assert held.take() == "first"
    assert held.take() is None
    held.put(0, "from a master that cannot say where its log ends")
    assert held.take() == "from a master that cannot say where its log ends"


def test_the_state_of_the_timer_is_on_disk(tmp_path: Path) -> None:
    made = copies(tmp_path)
    made.take_checkpoint(CHECKPOINT)
    assert saved_checkpoint(tmp_path) == CHECKPOINT
    assert copies(tmp_path).checkpoint == CHECKPOINT
    counts = TimerMetricsTable(
        timing_count={"T": TimerMetric(count=2)}, data_version=DataVersion(counter=1)
    )
    made.take_counts(counts)
    files = ConfigFiles(OsFileSystem(), tmp_path / CONFIG_DIRECTORY)
    assert files.load(TIMER_METRICS) == counts
    made.take_counts(TimerMetricsTable(data_version=DataVersion(counter=1)))
    assert files.load(TIMER_METRICS) == counts, "the same version is not written again"


def test_units_of_former_times_do_not_pass_for_the_masters(tmp_path: Path) -> None:
    log = TimerLog(tmp_path / LOG_DIRECTORY, FILE_SIZE, OsFileSystem())
    log.files.load()
    log.append(
        log_offset=0, size=1, previous_position=-1, magic=1, write_time_ms=0, delay_ms=0,
        topic_hash=0,
    )  # fmt: skip
    log.files.close()
    made = copies(tmp_path)
    made.take_checkpoint(CHECKPOINT)
    saved = saved_checkpoint(tmp_path)
    assert saved.last_timer_log_flush_pos == FILE_SIZE + UNIT_SIZE, "behind all there is"
    assert saved.last_read_time_ms == CHECKPOINT.last_read_time_ms
