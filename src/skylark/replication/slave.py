"""The slave's end of replication as a pure state machine: events in, instructions out.

::

    WAITING --retry time--> CONNECTING --Connected--> CHECKING --same--> FOLLOWING
       ^                        |                        |                  |
       +------- failed, lost, unreachable, wrong offset, silent for too long+
                                                         |
                                                  different: DIVERGED, or cut and check again

Before a slave follows, it asks the master, by the private request LOG_CHECK, whether the last bytes
of its log are the master's, too. A master that lost its tail in a crash answers no, or that it has
no such bytes. The slave may then hold the only copy of acknowledged messages: it stops, keeps its
files, and says so. Only with ``haTruncateAhead`` it looks for the last offset up to which the two
logs agree (by bisection: what agrees there agrees before it), gives up the rest, and follows. A
Java master does not know the request, and is followed on trust, as Java does.

The check comes after the connection and before the first report, so that the same process of the
master answers both: had it ended in between, the connection would be gone.

What is reported is *durable*: with SYNC_FLUSH the end of what the disk has. The first report, from
which the master goes on, must be the end of the log, so it waits until the disk has everything.

Frames must continue each other. Only an empty log takes whatever offset comes first.

Answers to Java's ``DefaultHAClient``.
"""

from __future__ import annotations

import enum
import logging
from typing import Final, TypeAlias

import msgspec

from skylark.replication.config import ReplicationConfig
from skylark.replication.master import Notice, SettingsChanged

#: Pause after a protocol error, and the longest one between attempts.
RETRY_MS: Final = 5_000
#: Pause after the first failure; each further one in a row doubles it.
RETRY_FIRST_MS: Final = 100
#: Bytes compared at each step of the search for the last common offset.
SEARCH_SIZE: Final = 4096
#: Where the search stops. A record that both have may be given up, and comes again.
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
    """What the master says about bytes of ours."""

    SAME = "the master has the same bytes"
    DIFFERENT = "the master has other bytes there"
    AHEAD = "the master's log ends before"
    GONE = "the master no longer has these bytes"
    UNSUPPORTED = "the master does not know the question"
    UNREACHABLE = "there was no answer"


# ---- events --------------------------------------------------------------------------------------


class LogPosition(msgspec.Struct, gc=False):
    """Where the slave's own log stands."""

    min_offset: int
    log_end: int
    durable_end: int
    tail_offset: int = 0  # end of the last record
    tail_size: int = 0  # bytes to compare before it; 0: there is no record


class MasterFound(msgspec.Struct, gc=False):
    """The address of the master's HA port; None: there is none."""

    address: str | None


class Connected(msgspec.Struct, gc=False):
    """The connection is made. Also when the log was cut as told."""

    position: LogPosition


class Lost(msgspec.Struct, gc=False):
    """There is no connection, or no longer; ``is_fault``: because of what was sent on it."""

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
    """Something was appended, or more is durable."""

    log_end: int
    durable_end: int


class Tick(msgspec.Struct, gc=False):
    """The deadline has come."""


SlaveEvent: TypeAlias = (
    MasterFound | Connected | Lost | TailCompared | FrameArrived | LogMoved | SettingsChanged | Tick
)


# ---- instructions --------------------------------------------------------------------------------


class Connect(msgspec.Struct, gc=False):
    """Connect; Connected or Lost follows."""

    address: str


class Disconnect(msgspec.Struct, gc=False):
    """Close the connection, or give up the attempt; nothing follows."""


class CompareTail(msgspec.Struct, gc=False):
    """Ask the master for the checksum of ``size`` bytes before an offset; TailCompared follows."""

    log_offset: int
    size: int


class Cut(msgspec.Struct, gc=False):
    """Give up the log from the last record on that ends behind this offset; Connected follows."""

    log_offset: int


class Append(msgspec.Struct, gc=False):
    """Append a piece of the log; LogMoved or Lost follows."""

    log_offset: int
    body: bytes


class Report(msgspec.Struct, gc=False):
    """Tell the master."""

    log_end: int


SlaveInstruction: TypeAlias = Connect | Disconnect | CompareTail | Cut | Append | Report | Notice


class _Search(msgspec.Struct, gc=False):
    """For the last common offset: ``low`` is common, as far as known, and ``high`` is not."""

    low: int
    high: int
    middle: int


class Slave:
    """Follows one master at a time."""

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
        self._retry_ms = RETRY_FIRST_MS
        self._retry_at_ms = 0
        self._search: _Search | None = None
        self._trusts = False  # said once that the master cannot compare

    @property
    def deadline(self) -> int | None:
        """When something is due unless an event comes first."""
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
        """Take an event; return what is to be done, in order."""
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
        self._retry_ms = RETRY_FIRST_MS
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
        """Close whatever there is, and try again after a while."""
        pause_ms = RETRY_MS if is_fault else self._retry_ms
        self._retry_ms = min(RETRY_MS, 2 * self._retry_ms)
        self._wait(now_ms, pause_ms)
        text = f"the link to master {self.master_address} ends: {reason}"
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
            reason = "the master does not answer whether the logs agree"
            return self._give_up(reason, now_ms, level=logging.WARNING, is_fault=False)
        if not is_first:
            return self._search_on(search, answer)
        if answer in (TailAnswer.DIFFERENT, TailAnswer.AHEAD):
            return self._differs(search, answer)
        notices: list[SlaveInstruction] = []
        if answer is TailAnswer.GONE:
            text = (
                f"this log ends at {self.log_end}, which master {self.master_address} has deleted"
                " already: nothing can be copied. Begin with an empty store"
            )
            notices.append(Notice(logging.ERROR, text))
        elif answer is TailAnswer.UNSUPPORTED and not self._trusts:
            self._trusts = True
            text = f"master {self.master_address} cannot say whether the logs agree: it is trusted"
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
            f"diverged: {self.divergence}. It may be the only copy of acknowledged messages, so it"
            " stays as it is and follows no more. Choose: make this broker the master; or begin"
            " with an empty store; or set haTruncateAhead=true to give up what the master lacks"
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
                return []  # the master goes on behind the first report: it must be the end
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
        self._retry_ms = RETRY_FIRST_MS
        instructions: list[SlaveInstruction] = []
        if self._received_end != frame.log_offset:
            if self._received_end:
                reason = f"it sends {frame.log_offset}, and {self._received_end} comes next"
                return self._give_up(reason, now_ms, level=logging.ERROR, is_fault=True)
            if frame.body:
                self._received_end = frame.log_offset
                text = (
                    f"this log begins at {frame.log_offset}: what master {self.master_address} has"
                    " before it is not copied. To have everything, set haSyncFromStart=true there"
                    " and begin with an empty store"
                )
                instructions.append(Notice(logging.WARNING, text))
        if frame.body:
            self._received_end += len(frame.body)
            instructions.append(Append(frame.log_offset, frame.body))
        return instructions


_WITH_CONNECTION: Final = (SlavePhase.CONNECTING, SlavePhase.CHECKING, SlavePhase.FOLLOWING)
