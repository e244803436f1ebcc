"""The slave's side of replication, as a pure state machine: events in, instructions out.

::

    WAITING --retry time--> CONNECTING --Connected--> CHECKING --same--> FOLLOWING
       ^                        |                        |                  |
       +------- failed, lost, unreachable, wrong offset, silent for too long+
                                                         |
                                                  different: DIVERGED, or cut and check again

Before a slave follows its master, it compares the last bytes of its log with the master's, by the
private request LOG_CHECK. If the master has other bytes there, or none because it lost them in a
crash, the slave may hold the only copy of acknowledged messages: it stops, keeps its files, and
logs an error. Only with ``haTruncateAhead`` does it search (by bisection) for the last offset up to
which the two logs agree, truncate its log there, and follow. A Java master does not know the
request; the slave then follows without a check, as Java does.

The check is made after the connection and before the first report, so that the same process of the
master serves both: if that process had ended in between, the connection would be lost.

The slave reports its *durable* end: with SYNC_FLUSH, what is on disk. The first report tells the
master where to continue, so it must be the end of the log: it waits for the disk.

Frames must be contiguous. Only an empty log accepts any first offset.

Counterpart of Java's ``DefaultHAClient``.
"""

from __future__ import annotations

import enum
import logging
from typing import Final, TypeAlias

import msgspec

from skylark.core.backoff import Backoff
from skylark.replication.config import ReplicationConfig
from skylark.replication.master import Notice, SettingsChanged

#: Pauses between attempts to connect; after a protocol error, the longest one.
RETRY: Final = Backoff(first_s=0.1, most_s=5.0)
#: Bytes compared at each step of the search for the last common offset.
SEARCH_SIZE: Final = 4096
#: Range at which the search stops. A record that both logs have may be truncated and copied again.
SEARCH_END: Final = 64


class SlavePhase(enum.Enum):
    """What a slave is doing."""

    STOPPED = "knows no master"
    WAITING = "will connect"
    CONNECTING = "connects"
    CHECKING = "compares its end with the master's log"
    FOLLOWING = "follows"
    DIVERGED = "has other bytes than its master, and stopped"


class TailAnswer(enum.Enum):
    """The master's answer about bytes of the slave's log."""

    SAME = "the master has the same bytes"
    DIFFERENT = "the master has other bytes there"
    AHEAD = "the master's log ends before"
    GONE = "the master no longer has these bytes"
    UNSUPPORTED = "the master does not know the request"
    UNREACHABLE = "there was no response"


# ---- events --------------------------------------------------------------------------------------


class LogPosition(msgspec.Struct, gc=False):
    """Offsets of the slave's log."""

    min_offset: int
    log_end: int
    durable_end: int
    tail_offset: int = 0  # end of the last record
    tail_size: int = 0  # bytes to compare before it; 0: there is no record


class MasterFound(msgspec.Struct, gc=False):
    """The address of the master's HA port; None: there is none."""

    address: str | None


class Connected(msgspec.Struct, gc=False):
    """The connection is made, or the log was truncated after Cut."""

    position: LogPosition


class Lost(msgspec.Struct, gc=False):
    """The connection failed or ended; ``is_fault``: because of an error in what was sent."""

    reason: str
    is_fault: bool = False


class TailCompared(msgspec.Struct, gc=False):
    """The answer to CompareTail."""

    answer: TailAnswer


class FrameArrived(msgspec.Struct, gc=False):
    """A whole frame."""

    log_offset: int
    body: bytes


class LogMoved(msgspec.Struct, gc=False):
    """The end or the durable end of the log has changed."""

    log_end: int
    durable_end: int


class Tick(msgspec.Struct, gc=False):
    """The deadline has come."""


SlaveEvent: TypeAlias = (
    MasterFound | Connected | Lost | TailCompared | FrameArrived | LogMoved | SettingsChanged | Tick
)


# ---- instructions --------------------------------------------------------------------------------


class Connect(msgspec.Struct, gc=False):
    """Connect to the master; Connected or Lost follows."""

    address: str


class Disconnect(msgspec.Struct, gc=False):
    """Close the connection, or cancel the attempt; no event follows."""


class CompareTail(msgspec.Struct, gc=False):
    """Ask the master for the checksum of ``size`` bytes before an offset; TailCompared follows."""

    log_offset: int
    size: int


class Cut(msgspec.Struct, gc=False):
    """Truncate the log at the last record that ends after this offset; Connected follows."""

    log_offset: int


class Append(msgspec.Struct, gc=False):
    """Append a piece of the log; LogMoved or Lost follows."""

    log_offset: int
    body: bytes


class Report(msgspec.Struct, gc=False):
    """Send the master the durable end of the log."""

    log_end: int


SlaveInstruction: TypeAlias = Connect | Disconnect | CompareTail | Cut | Append | Report | Notice


class _Search(msgspec.Struct, gc=False):
    """Bisection for the last common offset: the logs agree at ``low`` and differ at ``high``."""

    low: int
    high: int
    middle: int


class Slave:
    """The slave's state; it follows one master at a time."""

    def __init__(self, config: ReplicationConfig) -> None:
        self._config = config
        self.phase = SlavePhase.STOPPED
        self.master_address: str | None = None
        #: Why it has diverged; None while it has not.
        self.divergence: str | None = None
        self.log_end = 0
        self.last_read_ms = 0
        self.last_report_ms = 0
        self._min_offset = 0
        self._durable_end = 0
        self._received_end = 0
        self._reported_end = -1  # -1: not on this connection
        self._failures = 0  # in a row
        self._retry_at_ms = 0
        self._search: _Search | None = None
        self._trusts = False  # logged that the master cannot compare

    @property
    def deadline(self) -> int | None:
        """When the next Tick is due, unless an event comes first."""
        match self.phase:
            case SlavePhase.STOPPED | SlavePhase.DIVERGED:
                return None
            case SlavePhase.WAITING:
                return self._retry_at_ms
        due = self.last_read_ms + self._config.ha_housekeeping_interval
        if self.phase is SlavePhase.FOLLOWING and self._reported_end >= 0:
            due = min(due, self.last_report_ms + self._config.ha_send_heartbeat_interval)
        return due

    def handle(self, event: SlaveEvent, now_ms: int) -> list[SlaveInstruction]:
        """Handle an event; returns the instructions to carry out, in order."""
        match event:
            case FrameArrived():
                return self._frame_arrived(event, now_ms)
            case LogMoved():
                self.log_end, self._durable_end = event.log_end, event.durable_end
                return self._report_if_due(now_ms)
            case Tick():
                return self._ticked(now_ms)
            case MasterFound():
                return self._master_found(event.address, now_ms)
            case Connected():
                return self._connected(event.position, now_ms)
            case TailCompared():
                return self._compared(event.answer, now_ms)
            case Lost():
                return self._lost(event, now_ms)
            case SettingsChanged():
                self._config = event.config
                return []

    # ---- connecting ------------------------------------------------------------------------------

    def _master_found(self, address: str | None, now_ms: int) -> list[SlaveInstruction]:
        if address == self.master_address:
            return []
        self.master_address = address
        instructions: list[SlaveInstruction] = []
        if self.phase in _WITH_CONNECTION:
            instructions.append(Disconnect())
        self.divergence = None
        self._failures = 0
        if address is None:
            self.phase = SlavePhase.STOPPED
            return instructions
        return instructions + self._connect(address, now_ms)

    def _connect(self, address: str, now_ms: int) -> list[SlaveInstruction]:
        self.phase = SlavePhase.CONNECTING
        self.last_read_ms = now_ms
        return [Connect(address)]

    def _wait(self, now_ms: int, pause_ms: int) -> None:
        self.phase = SlavePhase.WAITING
        self._search = None
        self._retry_at_ms = now_ms + pause_ms

    def _lost(self, lost: Lost, now_ms: int) -> list[SlaveInstruction]:
        if self.phase not in _WITH_CONNECTION:
            return []
        level = logging.ERROR if lost.is_fault else logging.INFO
        return [*self._give_up(lost.reason, now_ms, level=level, is_fault=lost.is_fault)]

    def _give_up(
        self, reason: str, now_ms: int, *, level: int, is_fault: bool
    ) -> list[SlaveInstruction]:
        """Close the connection, and try again after a pause."""
        self._failures += 1
        pause_s = RETRY.most_s if is_fault else RETRY.pause_s(self._failures)
        self._wait(now_ms, round(pause_s * 1000))
        text = f"closing the connection to master {self.master_address}: {reason}"
        return [Disconnect(), Notice(level, text)]

    def _ticked(self, now_ms: int) -> list[SlaveInstruction]:
        if self.phase is SlavePhase.WAITING:
            if now_ms >= self._retry_at_ms and self.master_address is not None:
                return self._connect(self.master_address, now_ms)
            return []
        if self.phase not in _WITH_CONNECTION:
            return []
        silence = now_ms - self.last_read_ms
        if silence >= self._config.ha_housekeeping_interval:
            reason = f"nothing came for {silence} ms"
            return self._give_up(reason, now_ms, level=logging.WARNING, is_fault=False)
        return self._report_if_due(now_ms)

    # ---- checking --------------------------------------------------------------------------------

    def _connected(self, position: LogPosition, now_ms: int) -> list[SlaveInstruction]:
        if self.phase not in (SlavePhase.CONNECTING, SlavePhase.CHECKING):
            return []
        self.phase = SlavePhase.CHECKING
        self.last_read_ms = now_ms
        self._min_offset = position.min_offset
        self.log_end, self._durable_end = position.log_end, position.durable_end
        self._received_end = position.log_end
        self._reported_end = -1
        self._search = None
        if not position.tail_size:
            return self._follow(now_ms)
        self._search = _Search(position.min_offset, position.tail_offset, position.tail_offset)
        return [CompareTail(position.tail_offset, position.tail_size)]

    def _compared(self, answer: TailAnswer, now_ms: int) -> list[SlaveInstruction]:
        search = self._search
        if self.phase is not SlavePhase.CHECKING or search is None:
            return []
        self.last_read_ms = now_ms
        is_first = search.middle == search.high
        if answer is TailAnswer.UNREACHABLE:
            reason = "the master did not respond to the log check"
            return self._give_up(reason, now_ms, level=logging.WARNING, is_fault=False)
        if not is_first:
            return self._search_on(search, answer)
        if answer in (TailAnswer.DIFFERENT, TailAnswer.AHEAD):
            return self._differs(search, answer)
        notices: list[SlaveInstruction] = []
        if answer is TailAnswer.GONE:
            text = (
                f"this log ends at {self.log_end}, but master {self.master_address} has already"
                " deleted the log there: nothing can be copied. Start with an empty store"
            )
            notices.append(Notice(logging.ERROR, text))
        elif answer is TailAnswer.UNSUPPORTED and not self._trusts:
            self._trusts = True
            text = (
                f"master {self.master_address} does not support the log check:"
                " following it without one"
            )
            notices.append(Notice(logging.INFO, text))
        return notices + self._follow(now_ms)

    def _differs(self, search: _Search, answer: TailAnswer) -> list[SlaveInstruction]:
        if self._config.ha_truncate_ahead:
            return self._search_on(search, answer)
        self.phase = SlavePhase.DIVERGED
        self.divergence = (
            f"this log ends at {self.log_end}, and {answer.value} (master {self.master_address})"
        )
        text = (
            f"diverged: {self.divergence}. This may be the only copy of acknowledged messages, so"
            " the slave keeps it and stops following. Choose: make this broker the master; or start"
            " with an empty store; or set haTruncateAhead=true to delete what the master lacks"
        )
        return [Disconnect(), Notice(logging.ERROR, text)]

    def _search_on(self, search: _Search, answer: TailAnswer) -> list[SlaveInstruction]:
        if answer in (TailAnswer.DIFFERENT, TailAnswer.AHEAD):
            search.high = search.middle
        else:
            search.low = search.middle
        if search.high - search.low <= SEARCH_END:
            return [Cut(search.low)]
        search.middle = (search.low + search.high) // 2
        return [CompareTail(search.middle, min(SEARCH_SIZE, search.middle - self._min_offset))]

    # ---- following -------------------------------------------------------------------------------

    def _follow(self, now_ms: int) -> list[SlaveInstruction]:
        self.phase = SlavePhase.FOLLOWING
        self._search = None
        return self._report_if_due(now_ms)

    def _report_if_due(self, now_ms: int) -> list[SlaveInstruction]:
        if self.phase is not SlavePhase.FOLLOWING:
            return []
        durable_end = self._durable_end
        if self._reported_end < 0:
            if durable_end < self.log_end:
                return []  # the master continues at the first report: it must be the end
        elif durable_end <= self._reported_end:
            idle = now_ms - self.last_report_ms
            if idle < self._config.ha_send_heartbeat_interval:
                return []
        self._reported_end = durable_end
        self.last_report_ms = now_ms
        return [Report(durable_end)]

    def _frame_arrived(self, frame: FrameArrived, now_ms: int) -> list[SlaveInstruction]:
        if self.phase is not SlavePhase.FOLLOWING:
            return []
        self.last_read_ms = now_ms
        self._failures = 0
        instructions: list[SlaveInstruction] = []
        if self._received_end != frame.log_offset:
            if self._received_end:
                reason = f"it sent offset {frame.log_offset} instead of {self._received_end}"
                return self._give_up(reason, now_ms, level=logging.ERROR, is_fault=True)
            if frame.body:
                self._received_end = frame.log_offset
                text = (
                    f"this log begins at {frame.log_offset}: earlier messages of master"
                    f" {self.master_address} are not copied. To copy all, set haSyncFromStart=true"
                    " there and start with an empty store"
                )
                instructions.append(Notice(logging.WARNING, text))
        if frame.body:
            self._received_end += len(frame.body)
            instructions.append(Append(frame.log_offset, frame.body))
        return instructions


_WITH_CONNECTION: Final = (SlavePhase.CONNECTING, SlavePhase.CHECKING, SlavePhase.FOLLOWING)
