"""View flush: what reaches the disk in which order, and what the checkpoint may say when."""

from __future__ import annotations

from pathlib import Path

import pytest

from skylark.store.checkpoint import Checkpoint
from skylark.store.consume_queue_flush import DerivedFileFlush
from skylark.store.errors import StoreFileError
from skylark.store.running_flags import StoreFlag
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.layout import CHECKPOINT
from tests.unit.store.small_store import SmallStore

ROOT = Path("/store")


class Flushing:
    """A small store on a disk that may fail, and its view flush turned by hand."""

    def __init__(self, plan: FaultPlan | None = None) -> None:
        self.system = FaultyFileSystem(plan)
        self.system.make_directories(ROOT)
        self.store = SmallStore(self.system, ROOT)
        self.owner = self.store.owner
        self.checkpoint = self.store.checkpoint
        self.flush = DerivedFileFlush(
            self.store.parts,
            self.store.dispatch,
            self.store.dirty_ranges,
            self.store.flags,
            executor=self.owner,
            post=self.owner.post,
        )
        self.flush.start()

    def on_disk(self) -> Checkpoint:
        """The checkpoint as the next start would read it after a power loss."""
        checkpoint = Checkpoint(self.system.power_loss(), ROOT)
        checkpoint.load()
        return checkpoint


def test_the_checkpoint_moves_only_when_the_entries_are_on_disk() -> None:
    flushing = Flushing()
    result = flushing.store.put(b"x")
    flushing.store.log.files.sync()
    flushing.owner.advance(1000, worker=False)
    assert flushing.checkpoint.logics_physical_offset == 0  # the worker has not synced yet
    flushing.owner.settle()
    assert flushing.checkpoint.logics_physical_offset == result.log_offset + result.size
    assert flushing.checkpoint.logics_msg_timestamp == result.store_timestamp
    assert flushing.checkpoint.physic_msg_timestamp == result.store_timestamp
    saved = flushing.on_disk()
    assert saved.pack() == flushing.checkpoint.pack()


def test_a_failed_sync_leaves_the_checkpoint_and_is_repeated() -> None:
    plan = FaultPlan(seed=1)
    flushing = Flushing(plan)
    flushing.store.put(b"x")
    flushing.store.log.files.sync()
    plan.at("files.sync", error=5)
    flushing.owner.advance(1000)
    flushing.owner.settle()
    assert flushing.checkpoint.logics_physical_offset == 0
    flushing.owner.advance(6000)
    flushing.owner.settle()
    assert flushing.checkpoint.logics_physical_offset == flushing.store.log.max_offset


def test_the_checkpoint_does_not_cover_an_unflushed_log() -> None:
    flushing = Flushing()
    flushing.store.put(b"x")
    flushing.owner.advance(1000)
    flushing.owner.settle()
    assert flushing.checkpoint.physic_msg_timestamp == 0
    assert flushing.checkpoint.logics_physical_offset == 0


def test_while_the_index_is_behind_the_checkpoint_stands() -> None:
    flushing = Flushing()
    first = flushing.store.put(b"x")
    flushing.store.log.files.sync()
    flushing.owner.advance(1000)
    flushing.owner.settle()
    assert flushing.store.index is not None
    flushing.store.index.mark_behind(first.log_offset + first.size)
    flushing.store.put(b"x")
    flushing.store.log.files.sync()
    flushing.owner.advance(6000)
    flushing.owner.settle()
    assert flushing.checkpoint.logics_physical_offset == first.log_offset + first.size


def test_what_java_reads_does_not_pass_the_last_closed_index_file() -> None:
    flushing = Flushing()
    store, index = flushing.store, flushing.store.index
    assert index is not None
    java = (0, 0)
    for number in range(120):
        store.put(b"x", UNIQ_KEY=f"id{number}", KEYS="a b", TAGS="t")
        store.log.files.sync()
        flushing.owner.advance(6_000)
        flushing.owner.settle()
        content = flushing.system.read_file(ROOT / "checkpoint")
        _, logics, closed, _, _, offset = CHECKPOINT.unpack_from(content)
        assert (logics, offset) == index.last_closed()
        assert closed == logics
        ours = Checkpoint(flushing.system, ROOT)
        ours.load()
        assert ours.logics_physical_offset == store.log.max_offset
        java = (logics, offset)
    assert 0 < java[1] < store.log.max_offset


def test_entries_that_cannot_be_written_stop_the_store_until_they_can() -> None:
    plan = FaultPlan(seed=1)
    flushing = Flushing(plan)
    flushing.store.put(b"x")
    plan.at("files.*", nth=range(1, 50), error=28)
    flushing.owner.advance(1000)
    assert flushing.store.flags.has(StoreFlag.LOGICS_ERROR)
    plan.clear()
    flushing.owner.advance(1000)
    assert not flushing.store.flags.has(StoreFlag.LOGICS_ERROR)


def test_stop_syncs_everything_or_raises() -> None:
    flushing = Flushing()
    flushing.store.put(b"x")
    flushing.store.log.files.sync()
    flushing.flush.stop()
    assert flushing.on_disk().logics_physical_offset == flushing.store.log.max_offset

    plan = FaultPlan(seed=1)
    failing = Flushing(plan)
    failing.store.put(b"x")
    plan.chance("files.sync", 1.0, error=5)
    with pytest.raises(StoreFileError):
        failing.flush.stop()


def test_flush_soon_does_not_wait_for_the_interval() -> None:
    flushing = Flushing()
    flushing.store.put(b"x")
    flushing.store.log.files.sync()
    flushing.flush.flush_soon()
    flushing.owner.settle()
    assert flushing.checkpoint.logics_physical_offset == flushing.store.log.max_offset
