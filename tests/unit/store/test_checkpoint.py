"""Checkpoint and abort file: tolerant reading, and no crash that leaves nonsense."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from skylark.store.checkpoint import AbortFile, Checkpoint
from skylark.store.errors import StoreFileError
from skylark.store.file_system import FileSystem
from skylark.store.files import OsFileSystem
from skylark.testing.fault_plan import FaultAction, FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.layout import CHECKPOINT

ROOT = Path("/store")

# The first bytes of the checkpoint of a RocketMQ 5.5.0 store that was shut down in order.
JAVA = bytes.fromhex(
    "000001a1dd0f6214000001a1dd0f6214000001a1dd0efa42"
    "00000000000000000000000000000000000000000001e142"
)
JAVA_VALUES = (1794710135316, 1794710135316, 1794710108738, 0, 0, 123202)


@pytest.fixture(params=["os", "faulty"])
def files(request: pytest.FixtureRequest) -> FileSystem:
    return OsFileSystem() if request.param == "os" else FaultyFileSystem()


@pytest.fixture
def root(files: FileSystem, tmp_path: Path) -> Path:
    files.make_directories(tmp_path)
    return tmp_path


def loaded(files: FileSystem, root: Path) -> Checkpoint:
    checkpoint = Checkpoint(files, root)
    checkpoint.load()
    return checkpoint


def values(checkpoint: Checkpoint) -> tuple[int, ...]:
    return (
        checkpoint.physic_msg_timestamp,
        checkpoint.logics_msg_timestamp,
        checkpoint.index_msg_timestamp,
        checkpoint.master_flushed_offset,
        checkpoint.confirm_offset,
        checkpoint.logics_physical_offset,
    )


def test_javas_checkpoint_loads_and_is_written_back_byte_equal(
    files: FileSystem, root: Path
) -> None:
    content = JAVA.ljust(4096, b"\0")
    files.write_file(root / "checkpoint", content)
    checkpoint = loaded(files, root)
    assert values(checkpoint) == JAVA_VALUES
    checkpoint.save()
    assert files.read_file(root / "checkpoint") == content


def test_values_survive(files: FileSystem, root: Path) -> None:
    checkpoint = loaded(files, root)
    assert values(checkpoint) == (0, 0, 0, 0, 0, 0)
    checkpoint.physic_msg_timestamp = 1_700_000_000_001
    checkpoint.logics_msg_timestamp = 1_700_000_000_002
    checkpoint.index_msg_timestamp = 1_700_000_000_003
    checkpoint.master_flushed_offset = 4
    checkpoint.confirm_offset = 5
    checkpoint.logics_physical_offset = 1 << 50
    checkpoint.save()
    assert len(files.read_file(root / "checkpoint")) == 4096
    assert values(loaded(files, root)) == values(checkpoint)
    checkpoint.confirm_offset = 6
    checkpoint.write(checkpoint.pack())
    assert loaded(files, root).confirm_offset == 6


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "does not exist"),
        (b"", "too short"),
        (JAVA[:47], "too short"),
        ((-1).to_bytes(8, "big", signed=True) + JAVA[8:], "implausible values"),
        (JAVA[:40] + b"\xff" * 8, "implausible values"),
        (b"\x7f" * 4096, "implausible values"),
    ],
    ids=["missing", "empty", "short", "negative time", "negative offset", "garbage"],
)
def test_what_cannot_be_read_counts_as_zeros_with_a_reason(
    files: FileSystem,
    root: Path,
    content: bytes | None,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if content is not None:
        files.write_file(root / "checkpoint", content)
    with caplog.at_level(logging.INFO, "skylark.store.checkpoint"):
        checkpoint = loaded(files, root)
    assert values(checkpoint) == (0, 0, 0, 0, 0, 0)
    assert reason in caplog.text
    assert str(root / "checkpoint") in caplog.text
    checkpoint.physic_msg_timestamp = 9
    checkpoint.save()  # and is mended by the next save
    assert len(files.read_file(root / "checkpoint")) == 4096
    assert values(loaded(files, root)) == (9, 0, 0, 0, 0, 0)


def test_unreadable_checkpoint_does_not_stop_the_store(caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyFileSystem(FaultPlan(0).at("files.read", error=5))
    disk.install(ROOT / "checkpoint", JAVA.ljust(4096, b"\0"))
    assert values(loaded(disk, ROOT)) == (0, 0, 0, 0, 0, 0)
    assert "EIO" in caplog.text


def test_java_reads_of_the_last_closed_index_file_and_we_read_how_far_the_queues_are(
    files: FileSystem, root: Path
) -> None:
    checkpoint = loaded(files, root)
    checkpoint.physic_msg_timestamp = 9_000
    checkpoint.logics_msg_timestamp, checkpoint.logics_physical_offset = 8_000, 800
    checkpoint.index_msg_timestamp, checkpoint.index_offset = 5_000, 500
    checkpoint.save()
    content = files.read_file(root / "checkpoint")
    assert CHECKPOINT.unpack_from(content) == (9_000, 5_000, 5_000, 0, 0, 500)
    ours = loaded(files, root)
    assert values(ours) == (9_000, 8_000, 5_000, 0, 0, 800)
    assert (ours.index_offset, ours.pack()) == (500, checkpoint.pack())

    # Java has written its values since: ours are out of date.
    java = CHECKPOINT.pack(9_500, 9_400, 5_000, 0, 0, 940)
    files.write_file(root / "checkpoint", java + content[len(java) :])
    after = loaded(files, root)
    assert values(after) == (9_500, 9_400, 5_000, 0, 0, 940)
    assert after.index_offset is None


def test_an_index_that_is_ahead_of_the_queues_holds_nothing_back(root: Path) -> None:
    checkpoint = Checkpoint(FaultyFileSystem(), root)
    checkpoint.logics_msg_timestamp, checkpoint.logics_physical_offset = 8_000, 800
    checkpoint.index_msg_timestamp, checkpoint.index_offset = 8_500, 850
    assert CHECKPOINT.unpack_from(checkpoint.pack()) == (0, 8_000, 8_500, 0, 0, 800)


def test_recovery_starts_a_little_before_the_older_time() -> None:
    checkpoint = Checkpoint(FaultyFileSystem(), ROOT)
    assert (checkpoint.recovery_timestamp, checkpoint.index_recovery_timestamp) == (0, 0)
    checkpoint.physic_msg_timestamp = 2_999
    checkpoint.logics_msg_timestamp = 9_000
    assert checkpoint.recovery_timestamp == 0
    checkpoint.physic_msg_timestamp = 10_000
    assert checkpoint.recovery_timestamp == 6_000
    checkpoint.index_msg_timestamp = 5_000
    assert checkpoint.index_recovery_timestamp == 5_000
    checkpoint.index_msg_timestamp = 7_000
    assert checkpoint.index_recovery_timestamp == 6_000


def test_adopted_values_are_all_of_them() -> None:
    disk = FaultyFileSystem()
    disk.install(ROOT / "checkpoint", JAVA.ljust(4096, b"\0"))
    checkpoint = Checkpoint(disk, ROOT)
    checkpoint.adopt(loaded(disk, ROOT))
    assert values(checkpoint) == JAVA_VALUES


def test_power_loss_during_a_save_leaves_the_old_or_the_new_values() -> None:
    seen: set[tuple[int, ...]] = set()
    for seed in range(60):
        disk = FaultyFileSystem(FaultPlan(seed))
        disk.install(ROOT / "checkpoint", JAVA.ljust(4096, b"\0"))
        checkpoint = loaded(disk, ROOT)
        checkpoint.physic_msg_timestamp = 1_900_000_000_000
        checkpoint.logics_physical_offset = 999_999
        if seed % 2:
            checkpoint.save()
            disk = disk.power_loss()
            assert values(loaded(disk, ROOT)) == values(checkpoint)
        else:
            disk.plan.at("files.sync", action=FaultAction.CUT)
            with pytest.raises(StoreFileError):
                checkpoint.save()
            disk.plan.clear()
            seen.add(values(loaded(disk.power_loss(), ROOT)))
    assert seen == {JAVA_VALUES, (1_900_000_000_000, *JAVA_VALUES[1:5], 999_999)}


def test_power_loss_at_every_line_of_the_first_save_leaves_the_values_or_zeros() -> None:
    found: dict[bool, set[int]] = {True: set(), False: set()}  # by whether the save returned
    for nth in range(1, 9):  # more lines than a save has
        for seed in range(10):
            disk = FaultyFileSystem(FaultPlan(seed))
            disk.make_directories(ROOT, durable=True)
            checkpoint = Checkpoint(disk, ROOT)
            checkpoint.physic_msg_timestamp = 7
            disk.plan.at("files.*", nth=nth, action=FaultAction.CUT)
            try:
                checkpoint.save()
            except StoreFileError:
                saved = False
            else:
                saved = True
            disk.plan.clear()
            found[saved].add(loaded(disk.power_loss(), ROOT).physic_msg_timestamp)
    assert found == {True: {7}, False: {0, 7}}


def test_abort_file_holds_the_process_id(files: FileSystem, root: Path) -> None:
    abort = AbortFile(files, root)
    files.write_file(root / "abort.bak", b"")  # as Java leaves it; it means nothing
    assert not abort.exists()
    abort.create(27005)
    assert abort.exists()
    assert files.read_file(root / "abort") == b"27005"
    abort.create(5)
    assert files.read_file(root / "abort") == b"5"
    abort.remove()
    assert not abort.exists()
    assert files.exists(root / "abort.bak")
    abort.remove()  # an Apache broker that found the store locked may have been quicker


def test_abort_file_is_durable_once_made_and_gone_once_removed() -> None:
    for seed in range(40):
        disk = FaultyFileSystem(FaultPlan(seed))
        disk.make_directories(ROOT, durable=True)
        AbortFile(disk, ROOT).create(1)
        disk = disk.power_loss()
        assert AbortFile(disk, ROOT).exists(), disk.plan
        AbortFile(disk, ROOT).remove()
        disk = disk.power_loss()
        assert not AbortFile(disk, ROOT).exists(), disk.plan
