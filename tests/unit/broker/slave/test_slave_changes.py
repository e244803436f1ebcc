"""Offsets that grew at a slave, without clock and master."""

from __future__ import annotations

from skylark.broker.config import load_broker_config
from skylark.broker.groups.consumer_offsets import OffsetTable
from skylark.broker.live_settings import LiveSettings
from skylark.broker.slave.slave_changes import Commit, SlaveCommits
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.slave_sync_body import ConsumerOffsetSerializeWrapper

KEY = "T@g"


def make() -> tuple[OffsetTable, SlaveCommits]:
    live = LiveSettings(load_broker_config({"storePathRootDir": "/nowhere"}), now_ms=0)
    offsets = OffsetTable(live, VirtualClock())
    return offsets, SlaveCommits(offsets)


def master(**queues: int) -> ConsumerOffsetSerializeWrapper:
    """What the master has: ``q0=5``."""
    table = {int(name[1:]): offset for name, offset in queues.items()}
    return ConsumerOffsetSerializeWrapper(offset_table={KEY: table} if table else {})


def test_what_was_copied_has_not_grown() -> None:
    offsets, commits = make()
    commits.take(master(q0=5, q1=7), [])
    assert offsets.committed("g", "T") == {0: 5, 1: 7}
    assert commits.grown() == []
    commits.take(master(q0=2), [])
    assert offsets.committed("g", "T") == {0: 2}, "the master may go back"
    assert commits.grown() == []


def test_grown_offsets_are_sent_unless_the_master_is_ahead() -> None:
    offsets, commits = make()
    commits.take(master(q0=5, q1=5), [])
    offsets.commit("g", "T", 0, 8)
    offsets.commit("g", "T", 1, 8)
    offsets.commit("g", "T", 2, 1)
    offsets.commit("g", "T", 1, 4)  # goes back: not our word against the master's
    table = master(q0=6, q1=5)
    told = commits.missing_at(table)
    assert told == [Commit(KEY, 0, 8), Commit(KEY, 2, 1)]
    assert (told[0].topic, told[0].group) == ("T", "g")
    commits.take(table, told)
    assert offsets.committed("g", "T") == {0: 8, 1: 5, 2: 1}
    assert commits.grown() == []
    offsets.commit("g", "T", 0, 9)
    assert commits.missing_at(master(q0=12)) == []


def test_commits_during_the_sync_are_sent_the_next_time() -> None:
    offsets, commits = make()
    commits.take(master(q0=5), [])
    offsets.commit("g", "T", 0, 8)
    table = master(q0=5)
    told = commits.missing_at(table)
    offsets.commit("g", "T", 0, 9)
    offsets.commit("other", "T", 0, 3)
    commits.take(table, told)
    assert offsets.get("g", "T", 0) == 9
    assert commits.grown() == [Commit(KEY, 0, 9), Commit("T@other", 0, 3)]


def test_what_grew_is_known_after_a_restart() -> None:
    offsets, commits = make()
    commits.take(master(q0=5, q1=5), [])
    offsets.commit("g", "T", 0, 8)
    saved, saved_commits = offsets.snapshot(), commits.snapshot()
    assert saved_commits == {KEY: {0: 8}}
    offsets, commits = make()
    offsets.load(saved)
    commits.load(saved_commits)
    assert commits.grown() == [Commit(KEY, 0, 8)]
    # The two files are not written in one moment.
    offsets, commits = make()
    commits.load(saved_commits)
    assert offsets.get("g", "T", 0) == 8
    assert commits.grown() == [Commit(KEY, 0, 8)]


def test_a_slave_that_never_copied_sends_nothing() -> None:
    offsets, commits = make()
    offsets.commit("g", "T", 0, 8)
    commits.load({})
    assert commits.grown() == []
