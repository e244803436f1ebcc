"""When a slave connects, follows, stops, and what it reports."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from skylark.replication.config import ReplicationConfig
from skylark.replication.master import Notice
from skylark.replication.slave import (
    Append,
    CompareTail,
    Connect,
    Connected,
    Cut,
    Disconnect,
    FrameArrived,
    LogMoved,
    LogPosition,
    Lost,
    MasterFound,
    Report,
    Slave,
    SlaveEvent,
    SlaveInstruction,
    SlavePhase,
    TailAnswer,
    TailCompared,
    Tick,
)

MASTER = "127.0.0.1:10912"


class Bench:
    """A slave and its clock."""

    def __init__(self, **settings: Any) -> None:
        self.slave = Slave(ReplicationConfig(**settings))
        self.now_ms = 1_000
        self.notices: list[Notice] = []

    def handle(self, event: SlaveEvent) -> list[SlaveInstruction]:
        instructions = self.slave.handle(event, self.now_ms)
        self.notices += [it for it in instructions if isinstance(it, Notice)]
        return [it for it in instructions if not isinstance(it, Notice)]

    def wait(self, ms: int) -> list[SlaveInstruction]:
        target, done = self.now_ms + ms, []
        while (deadline := self.slave.deadline) is not None and deadline <= target:
            assert deadline >= self.now_ms
            self.now_ms = deadline
            done += self.handle(Tick())
        self.now_ms = target
        return done

    def connect(self, log_end: int, durable_end: int | None = None) -> list[SlaveInstruction]:
        """Connect, with a log that ends with a record."""
        if self.slave.phase is SlavePhase.STOPPED:
            assert self.handle(MasterFound(MASTER)) == [Connect(MASTER)]
        durable_end = log_end if durable_end is None else durable_end
        size = min(log_end, 4_096)
        return self.handle(Connected(LogPosition(0, log_end, durable_end, log_end, size)))

    def follow(self, log_end: int) -> None:
        if log_end:
            assert self.connect(log_end) == [CompareTail(log_end, min(log_end, 4_096))]
            assert self.handle(TailCompared(TailAnswer.SAME)) == [Report(log_end)]
        else:
            assert self.connect(0) == [Report(0)]


def test_an_empty_slave_reports_at_once_and_takes_what_comes() -> None:
    bench = Bench()
    bench.follow(0)
    assert bench.handle(FrameArrived(2_048, b"abc")) == [Append(2_048, b"abc")]
    assert bench.notices[-1].level == logging.WARNING
    assert "begins at 2048" in bench.notices[-1].text
    assert bench.handle(LogMoved(2_051, 2_051)) == [Report(2_051)]
    assert bench.handle(FrameArrived(2_051, b"d")) == [Append(2_051, b"d")]


def test_a_slave_follows_once_its_end_is_the_masters() -> None:
    bench = Bench()
    bench.follow(500)
    assert bench.slave.phase is SlavePhase.FOLLOWING
    assert bench.handle(FrameArrived(500, b"x" * 10)) == [Append(500, b"x" * 10)]
    assert bench.handle(LogMoved(510, 510)) == [Report(510)]
    assert bench.handle(LogMoved(510, 510)) == []


def test_a_java_master_is_followed_without_a_log_check() -> None:
    bench = Bench()
    bench.connect(500)
    assert bench.handle(TailCompared(TailAnswer.UNSUPPORTED)) == [Report(500)]
    assert "does not support the log check" in bench.notices[-1].text


@pytest.mark.spec("store.12.42")
def test_a_wrong_offset_ends_the_link_for_five_seconds() -> None:
    for body in (b"abc", b""):
        bench = Bench()
        bench.follow(500)
        assert bench.handle(FrameArrived(499, body)) == [Disconnect()]
        assert "it sent offset 499 instead of 500" in bench.notices[-1].text
        assert bench.wait(4_999) == []
        assert bench.wait(1) == [Connect(MASTER)]


def test_it_reports_every_five_seconds_and_closes_after_twenty_of_silence() -> None:
    bench = Bench()
    bench.follow(500)
    assert bench.wait(5_000) == [Report(500)]
    bench.handle(FrameArrived(500, b""))
    assert bench.wait(19_999) == [Report(500)] * 3
    assert bench.wait(1) == [Disconnect()]
    assert "nothing came for 20000 ms" in bench.notices[-1].text
    assert bench.wait(100) == [Connect(MASTER)]


def test_attempts_become_rarer_and_a_frame_makes_them_quick_again() -> None:
    bench = Bench()
    bench.handle(MasterFound(MASTER))
    pauses = []
    for _ in range(8):
        assert bench.handle(Lost("refused")) == [Disconnect()]
        assert bench.slave.deadline is not None
        pauses.append(bench.slave.deadline - bench.now_ms)
        assert bench.wait(pauses[-1]) == [Connect(MASTER)]
    assert pauses == [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]
    bench.connect(0)
    bench.handle(FrameArrived(0, b"x"))
    bench.handle(Lost("cut"))
    assert bench.slave.deadline == bench.now_ms + 100


def test_with_sync_flush_the_first_report_waits_for_the_disk() -> None:
    bench = Bench()
    bench.connect(500, durable_end=400)
    assert bench.handle(TailCompared(TailAnswer.SAME)) == []
    assert bench.handle(LogMoved(500, 450)) == []
    assert bench.handle(LogMoved(500, 500)) == [Report(500)]
    bench.handle(FrameArrived(500, b"x" * 100))
    assert bench.handle(LogMoved(600, 500)) == []
    assert bench.handle(LogMoved(600, 560)) == [Report(560)]


@pytest.mark.parametrize("answer", [TailAnswer.DIFFERENT, TailAnswer.AHEAD])
def test_a_slave_with_other_bytes_stops_and_names_the_choices(answer: TailAnswer) -> None:
    bench = Bench()
    bench.connect(500)
    assert bench.handle(TailCompared(answer)) == [Disconnect()]
    assert bench.slave.phase is SlavePhase.DIVERGED
    assert bench.slave.divergence == f"this log ends at 500, and {answer.value} (master {MASTER})"
    text = bench.notices[-1].text
    for choice in ("make this broker the master", "empty store", "haTruncateAhead=true"):
        assert choice in text
    assert bench.slave.deadline is None
    assert bench.handle(Lost("closed")) == []
    assert bench.handle(MasterFound("127.0.0.1:1")) == [Connect("127.0.0.1:1")]
    assert bench.slave.divergence is None


@pytest.mark.parametrize("common", [0, 1, 99_000, 123_456, 499_990])
def test_with_ha_truncate_ahead_it_finds_the_last_common_offset(common: int) -> None:
    bench = Bench(ha_truncate_ahead=True)
    (question,) = bench.connect(500_000)
    for _ in range(40):
        if isinstance(question, Cut):
            break
        assert isinstance(question, CompareTail)
        assert 0 < question.size <= 4_096
        same = question.log_offset <= common
        answer = TailAnswer.SAME if same else TailAnswer.DIFFERENT
        (question,) = bench.handle(TailCompared(answer))
    assert isinstance(question, Cut)
    assert common - 64 <= question.log_offset <= common
    after = LogPosition(0, question.log_offset, question.log_offset, 0, 0)
    assert bench.handle(Connected(after)) == [Report(question.log_offset)]


def test_what_the_master_deleted_cannot_be_copied() -> None:
    bench = Bench()
    bench.connect(500)
    assert bench.handle(TailCompared(TailAnswer.GONE)) == [Report(500)]
    assert bench.notices[-1].level == logging.ERROR
    assert "Start with an empty store" in bench.notices[-1].text


def test_without_an_answer_nothing_is_followed() -> None:
    bench = Bench()
    bench.connect(500)
    assert bench.handle(TailCompared(TailAnswer.UNREACHABLE)) == [Disconnect()]
    assert bench.wait(100) == [Connect(MASTER)]
    assert bench.handle(TailCompared(TailAnswer.SAME)) == []  # late


def test_a_failed_append_is_tried_again_after_five_seconds() -> None:
    bench = Bench()
    bench.follow(500)
    bench.handle(FrameArrived(500, b"x"))
    assert bench.handle(Lost("no space", is_fault=True)) == [Disconnect()]
    assert bench.handle(FrameArrived(501, b"x")) == []
    assert bench.wait(4_999) == []
    assert bench.wait(1) == [Connect(MASTER)]


def test_another_master_is_followed_at_once_and_none_means_to_wait() -> None:
    bench = Bench()
    bench.follow(500)
    assert bench.handle(MasterFound(MASTER)) == []
    assert bench.handle(MasterFound("127.0.0.1:1")) == [Disconnect(), Connect("127.0.0.1:1")]
    assert bench.handle(MasterFound(None)) == [Disconnect()]
    assert bench.slave.phase is SlavePhase.STOPPED
    assert bench.wait(60_000) == []
