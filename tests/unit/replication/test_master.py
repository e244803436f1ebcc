"""What a master sends to whom, and what it lets count as acknowledged."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from skylark.replication.config import ReplicationConfig
from skylark.replication.master import (
    BURST_SIZE,
    Confirmed,
    Drop,
    LogChanged,
    Master,
    MasterEvent,
    MasterInstruction,
    Notice,
    SettingsChanged,
    SlaveDrained,
    SlaveJoined,
    SlaveLeft,
    SlaveReported,
    SlaveState,
    Tick,
    Transfer,
)

GIB = 1 << 30


class Bench:
    """A master, its log, and a clock."""

    def __init__(
        self, log_end: int, *, min_offset: int = 0, file_size: int = GIB, **settings: Any
    ) -> None:
        config = ReplicationConfig(in_sync_replicas=settings.pop("in_sync_replicas", 2), **settings)
        self.master = Master(config, file_size=file_size)
        self.now_ms = 1_000
        self.notices: list[Notice] = []
        self.handle(LogChanged(min_offset, log_end))

    def handle(self, event: MasterEvent) -> list[MasterInstruction]:
        instructions = self.master.handle(event, self.now_ms)
        self.notices += [it for it in instructions if isinstance(it, Notice)]
        return [it for it in instructions if not isinstance(it, Notice)]

    def join(self, log_end: int, slave: int = 1) -> list[MasterInstruction]:
        assert self.handle(SlaveJoined(slave, f"slave-{slave}:1")) == []
        return self.handle(SlaveReported(slave, log_end))

    def wait(self, ms: int) -> list[MasterInstruction]:
        """Let time pass, with a tick whenever one is due."""
        target, done = self.now_ms + ms, []
        while (deadline := self.master.deadline) is not None and deadline <= target:
            assert deadline >= self.now_ms
            self.now_ms = deadline
            done += self.handle(Tick())
            for slave in self.master.slaves:
                if slave.is_draining:
                    done += self.handle(SlaveDrained(slave.number))
        self.now_ms = target
        return done


def test_a_connection_counts_only_for_what_it_was_sent() -> None:
    """Any program can connect to the HA port: what it says first proves nothing."""
    bench = Bench(1_000)
    assert bench.join(1_000) == []  # it says that it has all, and was sent nothing
    assert bench.handle(SlaveReported(1, 1_000)) == []
    assert bench.master.confirmed_offset == -1
    bench.handle(LogChanged(0, 1_500))
    assert bench.handle(SlaveReported(1, 1_000)) == []
    assert bench.handle(SlaveReported(1, 1_500)) == [Confirmed(1_500)]


@pytest.mark.spec("store.12.41")
def test_an_empty_slave_gets_the_last_file_and_another_goes_on_where_it_was() -> None:
    bench = Bench(5 * GIB // 2)
    assert bench.join(0)[0] == Transfer(1, 0x8000_0000, 32_768)
    assert bench.notices[-1].level == logging.WARNING
    assert "but not from its start at 0; set haSyncFromStart=true" in bench.notices[-1].text
    bench = Bench(1_000)
    assert bench.join(115) == [Transfer(1, 115, 885)]
    assert bench.handle(SlaveReported(1, 500)) == [Confirmed(500)]


def test_an_empty_slave_may_get_everything_there_is() -> None:
    bench = Bench(5 * GIB // 2, min_offset=GIB, ha_sync_from_start=True)
    assert bench.join(0)[0] == Transfer(1, GIB, 32_768)
    assert [it.level for it in bench.notices] == [logging.INFO]


def test_frames_end_with_their_file_and_a_burst_with_its_size() -> None:
    bench = Bench(3 * BURST_SIZE, file_size=100_000)
    frames = [it for it in bench.join(90_000) if isinstance(it, Transfer)]
    assert frames[:5] == [
        Transfer(1, 90_000, 10_000),
        Transfer(1, 100_000, 32_768),
        Transfer(1, 132_768, 32_768),
        Transfer(1, 165_536, 32_768),
        Transfer(1, 198_304, 1_696),
    ]
    sent = sum(it.size for it in frames)
    assert BURST_SIZE <= sent < BURST_SIZE + 32_768
    assert bench.handle(LogChanged(0, 4 * BURST_SIZE)) == []  # nothing has left yet
    after = bench.handle(SlaveDrained(1))
    assert isinstance(after[0], Transfer)
    assert after[0].log_offset == 90_000 + sent


def test_new_bytes_go_to_all_slaves_at_once() -> None:
    bench = Bench(500)
    bench.join(500, slave=1)
    bench.join(500, slave=2)
    assert bench.handle(LogChanged(0, 600)) == [Transfer(1, 500, 100), Transfer(2, 500, 100)]


@pytest.mark.spec("store.12.42")
def test_an_idle_slave_hears_every_five_seconds_that_its_master_lives() -> None:
    bench = Bench(500)
    bench.join(500)
    assert bench.master.deadline == 6_000
    assert bench.wait(5_000) == [Transfer(1, 500, 0)]
    assert bench.wait(4_999) == []
    bench.handle(SlaveReported(1, 500))
    assert bench.wait(1) == [Transfer(1, 500, 0)]


@pytest.mark.spec("store.12.42")
def test_a_slave_that_stops_reporting_is_dropped_after_twenty_seconds() -> None:
    bench = Bench(500)
    bench.join(500)
    assert Drop not in map(type, bench.wait(19_999))
    assert bench.wait(1) == [Drop(1, "it has not reported for 20000 ms")]
    assert bench.master.slaves == []
    assert bench.master.deadline is None


def test_a_slave_that_never_reports_gets_nothing_and_is_dropped() -> None:
    bench = Bench(500)
    bench.handle(SlaveJoined(1, "slave:1"))
    assert bench.handle(LogChanged(0, 600)) == []
    assert bench.wait(20_000) == [Drop(1, "it has not reported for 20000 ms")]


@pytest.mark.spec("store.12.42")
def test_a_slave_below_the_log_gets_only_heartbeats_and_an_error_is_logged() -> None:
    bench = Bench(5_000, min_offset=1_000, file_size=1_000)
    assert bench.join(999) == []
    assert bench.notices[-1].level == logging.ERROR
    assert "needs the log from 999 on, but it begins at 1000" in bench.notices[-1].text
    assert bench.wait(10_000) == [Transfer(1, 999, 0), Transfer(1, 999, 0)]
    assert bench.handle(LogChanged(1_000, 6_000)) == []
    assert bench.master.in_sync_count == 0


def test_a_slave_that_retention_overtakes_gets_nothing_more() -> None:
    bench = Bench(5_000, file_size=1_000, ha_transfer_batch_size=100)
    bench.join(10)
    bench.handle(LogChanged(0, 5_000))
    slave = bench.master.slaves[0]
    slave.next_offset = 500  # it reads slowly
    bench.handle(LogChanged(1_000, 5_000))
    assert bench.handle(SlaveDrained(1)) == []
    assert slave.state is SlaveState.BELOW
    assert slave.ack_offset == -1


def test_a_slave_that_is_ahead_acknowledges_nothing_even_when_the_log_passes_it() -> None:
    bench = Bench(500)
    assert bench.join(700) == []
    assert bench.notices[-1].level == logging.ERROR
    assert "has the log up to 700, but this master ends at 500" in bench.notices[-1].text
    assert bench.handle(LogChanged(0, 900)) == []
    assert bench.handle(SlaveReported(1, 700)) == []
    assert bench.wait(5_000) == [Transfer(1, 700, 0)]
    assert bench.master.confirmed_offset == -1
    assert not bench.master.in_sync_count


def test_nobody_acknowledges_more_than_it_was_sent() -> None:
    bench = Bench(500)
    bench.join(500)
    assert bench.handle(SlaveReported(1, 501)) == [
        Drop(1, "it acknowledged 501, but was sent only up to 500")
    ]
    assert bench.handle(SlaveReported(1, 501)) == []  # late bytes of a dropped slave


def test_confirmed_is_what_enough_slaves_have() -> None:
    bench = Bench(1_000, in_sync_replicas=3)
    for slave in (1, 2, 3):
        assert Confirmed not in map(type, bench.join(500, slave=slave))
    assert bench.handle(SlaveReported(1, 700)) == []
    assert bench.handle(SlaveReported(2, 600)) == [Confirmed(600)]
    assert bench.handle(SlaveReported(3, 900)) == [Confirmed(700)]
    bench.handle(SlaveLeft(3))
    assert bench.handle(SlaveReported(2, 650)) == []  # one slave left, and 700 was told
    assert bench.handle(SlaveReported(1, 1_000)) == []
    assert bench.handle(SlaveReported(2, 800)) == [Confirmed(800)]


def test_nothing_is_confirmed_where_nobody_waits() -> None:
    bench = Bench(1_000, in_sync_replicas=1)
    assert bench.join(1_000) == []


def test_a_slave_is_in_sync_while_its_gap_is_small() -> None:
    bench = Bench(1_000, ha_max_gap_not_in_sync=400)
    bench.join(601, slave=1)
    bench.join(600, slave=2)
    assert [bench.master.is_in_sync(it) for it in bench.master.slaves] == [True, False]


def test_the_rule_of_4x_asks_for_somebody_near() -> None:
    bench = Bench(1_000, in_sync_replicas=1, ha_compatible4x=True, ha_slave_fallbehind_max=400)
    master = bench.master
    near = [master.is_slave_near]
    bench.join(600)
    assert bench.handle(SlaveReported(1, 700)) == [Confirmed(700)]
    near.append(master.is_slave_near)
    for event in (LogChanged(0, 1_100), SlaveReported(1, 1_000), SlaveLeft(1)):
        bench.handle(event)
        near.append(master.is_slave_near)
    assert near == [False, True, False, True, False]


def test_a_limit_per_second_is_kept_and_used() -> None:
    bench = Bench(10_000_000, ha_flow_control_enable=True, max_ha_transfer_byte_in_second=1_000_000)
    sent = sum(it.size for it in bench.join(1) if isinstance(it, Transfer))
    bench.handle(SlaveDrained(1))
    for _ in range(50):
        sent += sum(it.size for it in bench.wait(100) if isinstance(it, Transfer))
        bench.handle(SlaveReported(1, 1))
    assert 4_900_000 <= sent <= 5_100_000


def test_who_was_idle_does_not_flood_afterwards() -> None:
    bench = Bench(1, ha_flow_control_enable=True, max_ha_transfer_byte_in_second=1_000_000)
    bench.join(1)
    for _ in range(6):
        bench.wait(10_000)
        bench.handle(SlaveReported(1, 1))
    sent = bench.handle(LogChanged(0, 50_000_000))
    assert sum(it.size for it in sent if isinstance(it, Transfer)) == 100_000


def test_other_settings_hold_for_what_is_under_way() -> None:
    bench = Bench(3_000, in_sync_replicas=3, ha_transfer_batch_size=1_000)
    for slave, log_end in ((1, 3_000), (2, 2_000)):
        bench.join(1_500, slave=slave)
        bench.handle(SlaveDrained(slave))
        bench.handle(SlaveReported(slave, log_end))
    assert bench.master.confirmed_offset == 2_000
    fewer = ReplicationConfig(in_sync_replicas=2, ha_transfer_batch_size=400)
    assert bench.handle(SettingsChanged(fewer)) == [Confirmed(3_000)]
    frames = bench.handle(LogChanged(0, 3_500))
    assert frames[:2] == [Transfer(1, 3_000, 400), Transfer(1, 3_400, 100)]


def test_a_limit_that_is_lifted_lets_a_slave_go_on_at_once() -> None:
    slow = {"ha_flow_control_enable": True, "max_ha_transfer_byte_in_second": 10_000}
    bench = Bench(5_000, **slow)
    assert bench.join(1) == [], "nothing earned yet"
    instructions = bench.handle(SettingsChanged(ReplicationConfig(in_sync_replicas=2)))
    assert instructions == [Transfer(1, 1, 4_999)]
