"""The master's side of replication, as a pure state machine: events in, instructions out.

::

    slave                     Master                         shell (ha_server.py)
      | SlaveJoined, SlaveReported, SlaveDrained, SlaveLeft --------------------------> handle()
      |                         | LogChanged, SettingsChanged, Tick ------------------> handle()
      |                         |
      |                         +--> Transfer(slave, log offset, size)     size 0 = heartbeat
      |                         +--> Drop(slave, reason)
      |                         +--> Confirmed(log offset)     enough slaves have all before it
      |                         +--> Notice(level, text)      for the log

The machine uses no socket, file or clock: times are milliseconds that never step back, and
:attr:`Master.deadline` is when the next Tick is due.

A slave's first report is the offset at which it wants to continue::

    0                       start of the last file, as in Java; all with haSyncFromStart
    below the log's start   BELOW: it gets heartbeats only and needs a new, empty store
    beyond the log's end    AHEAD: the same. The master has lost what this slave has
    anything else           FOLLOWING, from there

Every further report is an acknowledgement. No put counts as acknowledged by a connection that has
not acknowledged bytes sent on it: any program can connect to the HA port and report an offset (in
Java its first report counts). So a put that waits while its only slave connects again waits for the
next bytes that the slave gets. A slave that is ahead has other bytes there than the next puts will
write, and must not acknowledge them (in Java it does). A slave stays AHEAD as long as it is
connected, even after the log has passed its offset.

A frame has at most ``haTransferBatchSize`` bytes and never crosses the end of a file. After
:data:`BURST_SIZE` bytes the machine waits until the shell has sent them (SlaveDrained); that bounds
the memory for a slave that does not read.

Counterpart of Java's ``DefaultHAService`` and ``DefaultHAConnection``.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator
from typing import Final, TypeAlias

import msgspec

from skylark.replication.config import ReplicationConfig

BURST_SIZE: Final = 1 << 20
_THROTTLE_MS: Final = 100  # interval at which a throttled slave gets its share


class SlaveState(enum.Enum):
    """State of a slave at its master."""

    JOINED = "has not reported yet"
    FOLLOWING = "gets the log"
    BELOW = "wants what the log no longer has"
    AHEAD = "has more than the log"


# ---- events --------------------------------------------------------------------------------------


class LogChanged(msgspec.Struct, gc=False):
    """The range of the log that may be sent has changed."""

    min_offset: int
    log_end: int


class SlaveJoined(msgspec.Struct, gc=False):
    """A connection was made; ``slave`` is its number."""

    slave: int
    address: str


class SlaveReported(msgspec.Struct, gc=False):
    """A slave has reported the end of its log; only the last report of a read counts."""

    slave: int
    log_end: int


class SlaveDrained(msgspec.Struct, gc=False):
    """All transferred bytes have been sent."""

    slave: int


class SlaveLeft(msgspec.Struct, gc=False):
    """The connection has ended."""

    slave: int


class SettingsChanged(msgspec.Struct, gc=False):
    """Settings have changed, also for connected slaves."""

    config: ReplicationConfig


class Tick(msgspec.Struct, gc=False):
    """The deadline has come."""


MasterEvent: TypeAlias = (
    LogChanged | SlaveJoined | SlaveReported | SlaveDrained | SlaveLeft | SettingsChanged | Tick
)


# ---- instructions --------------------------------------------------------------------------------


class Transfer(msgspec.Struct, gc=False):
    """Send these bytes of the log in a frame."""

    slave: int
    log_offset: int
    size: int


class Drop(msgspec.Struct, gc=False):
    """Close the connection; the slave is already removed."""

    slave: int
    reason: str


class Confirmed(msgspec.Struct, gc=False):
    """As many slaves as are needed have everything before this offset."""

    log_offset: int


class Notice(msgspec.Struct, gc=False):
    """A log message, with a level of :mod:`logging`."""

    level: int
    text: str


MasterInstruction: TypeAlias = Transfer | Drop | Confirmed | Notice


# ---- the machine ---------------------------------------------------------------------------------


class SlaveView(msgspec.Struct, gc=False):
    """One slave as its master sees it."""

    number: int
    address: str
    last_report_ms: int
    last_write_ms: int
    budget_ms: int  # when the budget was filled last
    state: SlaveState = SlaveState.JOINED
    next_offset: int = -1  # of the next byte to send; -1 before the first report
    first_offset: int = -1  # of the first byte to send
    ack_offset: int = -1  # all before it is at the slave; -1 if it vouches for nothing
    has_received: bool = False  # it has acknowledged bytes that were sent to it
    transferred: int = 0  # bytes since it joined
    budget: float = 0.0  # bytes that may be sent now, where there is a limit
    is_draining: bool = False
    is_throttled: bool = False


class Master:
    """The master's state of its slaves."""

    def __init__(self, config: ReplicationConfig, *, file_size: int) -> None:
        self._use(config)
        self._file_size = file_size
        self._slaves: dict[int, SlaveView] = {}
        self.min_offset = 0
        self.log_end = 0
        #: Offset of the last Confirmed.
        self.confirmed_offset = -1
        #: The highest offset that any slave has acknowledged (Java: push2SlaveMaxOffset).
        self.ack_offset_max = 0

    def _use(self, config: ReplicationConfig) -> None:
        self._config = config
        self._rate = config.bytes_per_second
        self._burst_size = max(BURST_SIZE, config.ha_transfer_batch_size)

    # ---- queries ---------------------------------------------------------------------------------

    @property
    def slaves(self) -> list[SlaveView]:
        """All connected slaves."""
        return list(self._slaves.values())

    def is_in_sync(self, slave: SlaveView) -> bool:
        """Whether a slave is close enough to count as a replica."""
        gap = self.log_end - slave.ack_offset
        return slave.ack_offset >= 0 and gap < self._config.ha_max_gap_not_in_sync

    @property
    def in_sync_count(self) -> int:
        """Slaves that are in sync."""
        return sum(map(self.is_in_sync, self._slaves.values()))

    @property
    def is_slave_near(self) -> bool:
        """The rule of 4.x: a slave is connected, and the highest acknowledgement is close."""
        gap = self.log_end - self.ack_offset_max
        return bool(self._slaves) and gap < self._config.ha_slave_fallbehind_max

    @property
    def deadline(self) -> int | None:
        """When the next Tick is due, unless an event comes first; in the time of ``handle``."""
        return min((self._due(slave) for slave in self._slaves.values()), default=None)

    def _due(self, slave: SlaveView) -> int:
        config = self._config
        due = slave.last_report_ms + config.ha_housekeeping_interval
        if slave.state is not SlaveState.JOINED and not slave.is_draining:
            due = min(due, slave.last_write_ms + config.ha_send_heartbeat_interval)
            if slave.is_throttled:
                due = min(due, slave.budget_ms + _THROTTLE_MS)
        return due

    # ---- events ----------------------------------------------------------------------------------

    def handle(self, event: MasterEvent, now_ms: int) -> list[MasterInstruction]:
        """Handle an event; returns the instructions to carry out, in order."""
        match event:
            case LogChanged():
                self.min_offset, self.log_end = event.min_offset, event.log_end
                return self._send_all(now_ms)
            case SlaveReported():
                slave = self._slaves.get(event.slave)
                return [] if slave is None else list(self._reported(slave, event.log_end, now_ms))
            case SlaveDrained():
                slave = self._slaves.get(event.slave)
                if slave is None:
                    return []
                slave.is_draining = False
                slave.last_write_ms = now_ms
                return list(self._send(slave, now_ms))
            case SlaveJoined():
                slave = SlaveView(event.slave, event.address, now_ms, now_ms, now_ms)
                self._slaves[event.slave] = slave
                return []
            case SlaveLeft():
                self._slaves.pop(event.slave, None)
                return []
            case SettingsChanged():
                self._use(event.config)
                return [*self._confirm(), *self._send_all(now_ms)]
            case Tick():
                return list(self._ticked(now_ms))

    def _ticked(self, now_ms: int) -> Iterator[MasterInstruction]:
        config = self._config
        for slave in self.slaves:
            silence = now_ms - slave.last_report_ms
            if silence >= config.ha_housekeeping_interval:
                yield self._drop(slave, f"it has not reported for {silence} ms")
                continue
            yield from self._send(slave, now_ms)
            idle = now_ms - slave.last_write_ms
            if (
                slave.state is not SlaveState.JOINED
                and not slave.is_draining
                and idle >= config.ha_send_heartbeat_interval
            ):
                slave.last_write_ms = now_ms
                slave.is_draining = True
                yield Transfer(slave.number, slave.next_offset, 0)

    # ---- reports ---------------------------------------------------------------------------------

    def _reported(self, slave: SlaveView, log_end: int, now_ms: int) -> Iterator[MasterInstruction]:
        slave.last_report_ms = now_ms
        if slave.state is SlaveState.JOINED:
            yield from self._begin(slave, log_end)
        elif slave.state is not SlaveState.FOLLOWING:
            return
        elif log_end > slave.next_offset:
            yield self._drop(
                slave, f"it acknowledged {log_end}, but was sent only up to {slave.next_offset}"
            )
            return
        else:
            slave.ack_offset = log_end
            slave.has_received = slave.has_received or log_end > slave.first_offset
        if slave.state is SlaveState.FOLLOWING:
            self.ack_offset_max = max(self.ack_offset_max, slave.ack_offset)
            yield from self._confirm()
            yield from self._send(slave, now_ms)

    def _begin(self, slave: SlaveView, log_end: int) -> Iterator[MasterInstruction]:
        slave.next_offset = slave.first_offset = log_end
        slave.state = SlaveState.FOLLOWING
        if log_end == 0:
            slave.next_offset = slave.first_offset = self._first_offset()
            slave.ack_offset = 0
            text = f"slave {slave.address} is empty and gets the log from {slave.next_offset} on"
            if slave.next_offset > self.min_offset:
                text += (
                    f", but not from its start at {self.min_offset}; set haSyncFromStart=true to"
                    " send an empty slave the whole log"
                )
                yield Notice(logging.WARNING, text)
            else:
                yield Notice(logging.INFO, text)
        elif log_end > self.log_end:
            slave.state = SlaveState.AHEAD
            yield Notice(
                logging.ERROR,
                f"slave {slave.address} has the log up to {log_end}, but this master ends at"
                f" {self.log_end}: it gets nothing. It may have the only copy of what this master"
                " lost; save its store, or start the slave with an empty one",
            )
        elif not self._still_has(slave):
            yield self._below(slave)
        else:
            slave.ack_offset = log_end
            yield Notice(logging.INFO, f"slave {slave.address} continues at {log_end}")

    def _first_offset(self) -> int:
        if self._config.ha_sync_from_start:
            return self.min_offset
        return max(self.min_offset, self.log_end - self.log_end % self._file_size)

    def _still_has(self, slave: SlaveView) -> bool:
        return slave.next_offset >= self.min_offset

    def _below(self, slave: SlaveView) -> Notice:
        slave.state = SlaveState.BELOW
        return Notice(
            logging.ERROR,
            f"slave {slave.address} needs the log from {slave.next_offset} on, but it begins at"
            f" {self.min_offset}: it gets nothing. Start the slave with an empty store",
        )

    def _confirm(self) -> Iterator[MasterInstruction]:
        needed = self._config.acks_needed
        acks = [slave.ack_offset for slave in self._slaves.values() if slave.has_received]
        if needed < 1 or len(acks) < needed:
            return
        offset = max(acks) if needed == 1 else sorted(acks, reverse=True)[needed - 1]
        if offset > self.confirmed_offset:
            self.confirmed_offset = offset
            yield Confirmed(offset)

    # ---- sending ---------------------------------------------------------------------------------

    def _send_all(self, now_ms: int) -> list[MasterInstruction]:
        return [
            instruction
            for slave in self._slaves.values()
            for instruction in self._send(slave, now_ms)
        ]

    def _send(self, slave: SlaveView, now_ms: int) -> Iterator[MasterInstruction]:
        """Send the rest of the log, up to a burst."""
        if slave.state is not SlaveState.FOLLOWING or slave.is_draining:
            return
        if not self._still_has(slave):
            slave.ack_offset = -1
            yield self._below(slave)
            return
        slave.is_throttled = False
        if self._rate is not None:
            self._fill_budget(slave, now_ms)
        limit = slave.next_offset + self._burst_size
        while slave.next_offset < min(self.log_end, limit):
            size = self._frame_size(slave)
            if not size:
                slave.is_throttled = True
                break
            yield Transfer(slave.number, slave.next_offset, size)
            slave.next_offset += size
            slave.transferred += size
            slave.last_write_ms = now_ms
            slave.is_draining = True

    def _frame_size(self, slave: SlaveView) -> int:
        offset = slave.next_offset
        size = min(
            self._config.ha_transfer_batch_size,
            self.log_end - offset,
            self._file_size - offset % self._file_size,
        )
        if self._rate is not None:
            size = min(size, int(slave.budget))
            slave.budget -= size
        return size

    def _fill_budget(self, slave: SlaveView, now_ms: int) -> None:
        """Add what was earned since, up to the share of one interval: no bursts after idle time."""
        assert self._rate is not None
        share = self._rate * _THROTTLE_MS / 1000
        earned = self._rate * (now_ms - slave.budget_ms) / 1000
        slave.budget = min(share, slave.budget + earned)
        slave.budget_ms = now_ms

    def _drop(self, slave: SlaveView, reason: str) -> Drop:
        del self._slaves[slave.number]
        return Drop(slave.number, reason)
