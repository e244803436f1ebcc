"""The HA client: copies the master's log to a slave; the shell around ``replication.slave``.

It turns activity of socket, log and clock into events, and carries out the instructions::

    master's frames --> HaFrameBuffer --> FrameArrived     Append --> ReplicaLog
    flush --> on_growth --> LogMoved                       Report --> 8 bytes to the master
                                                           CompareTail --> LOG_CHECK by remoting

One report acknowledges all frames of a chunk, after they are appended; queues and index follow in
later turns (:mod:`skylark.store.replica_log`). Memory is bounded by one frame and one incomplete
record. A full disk closes the connection; the next one continues at the end of the log. Bytes are
read in shares (:mod:`skylark.net.turn_share`), so that a fast master does not delay the clients of
the slave.

Counterpart of Java's ``DefaultHAClient``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, NamedTuple, cast

from skylark.core.clock import Clock
from skylark.core.errors import ConfigError, RemoteProtocolError, StoreError, TransportError
from skylark.core.lifecycle import Tasks
from skylark.core.names import parse_address
from skylark.net.transport import Network
from skylark.net.turn_share import ReadPacer
from skylark.replication.config import ReplicationConfig
from skylark.replication.deadline_timer import DeadlineTimer
from skylark.replication.master import Notice, SettingsChanged
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
    TailAnswer,
    TailCompared,
    Tick,
)
from skylark.store.message_store import MessageStore
from skylark.wire.bodies.ha_body import HAClientRuntimeInfo, HARuntimeInfo
from skylark.wire.ha_frame import HaFrameBuffer, encode_report

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 3.0
_UNREAD_REPORTS_MAX: Final = 64 << 10  # bytes; above this, no more reports are written
_RATE_MS: Final = 1_000

#: Compares bytes with the master's: log offset, size, checksum. See ``log_check``.
TailChecker = Callable[[int, int, int], Awaitable[TailAnswer]]


class _Rate(NamedTuple):
    received: int
    at_ms: int


class _MasterLink(asyncio.Protocol):
    """One connection to the master."""

    def __init__(self, client: HaClient) -> None:
        self._client = client
        self._frames = HaFrameBuffer()
        self._pacer = ReadPacer()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's have no common class

    def data_received(self, data: bytes) -> None:
        self._client.received(self, data, self._frames)
        if self._transport is not None:
            self._pacer.delivered(self._transport, len(data))

    def connection_lost(self, exc: Exception | None) -> None:
        self._client.lost(self, "the master closed it" if exc is None else str(exc))

    def report(self, log_end: int) -> None:
        """Send the master the end of our log."""
        transport = self._transport
        if transport is not None and transport.get_write_buffer_size() < _UNREAD_REPORTS_MAX:
            transport.write(encode_report(log_end))

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


class HaClient:
    """Copies the log of a master to the store of a slave."""

    def __init__(
        self,
        store: MessageStore,
        config: ReplicationConfig,
        network: Network,
        clock: Clock,
        *,
        check_tail: TailChecker | None = None,
    ) -> None:
        """Without ``check_tail`` there is no log check. The store must be open, as a slave."""
        assert store.replica is not None, "the store of a slave, opened"
        self._store = store
        self._log = store.replica
        self._network = network
        self._clock = clock
        self._check_tail = check_tail
        self.slave = Slave(config)
        self._tasks = Tasks("ha-client", limit=64)
        self._link: _MasterLink | None = None
        self._attempt: asyncio.Task[None] | None = None  # connection attempt or log check
        self._events: deque[SlaveEvent] = deque()
        self._is_handling = False
        self._timer = DeadlineTimer(clock, self._tick)
        self._is_stopped = False
        self._received_size = 0
        self._rate = _Rate(0, clock.steady_ms())

    # ---- life ------------------------------------------------------------------------------------

    def start(self, master_address: str | None) -> None:
        """Follow a master; None: wait for :meth:`set_master`."""
        self._store.on_growth = self._log_moved
        self._log.on_damage = self._damaged
        self.set_master(master_address)

    def set_master(self, address: str | None) -> None:
        """Follow the master with this HA address; the current address changes nothing."""
        self._handle(MasterFound(address))

    def follow(self, config: ReplicationConfig) -> None:
        """Apply changed settings; those that are read at start must not have changed."""
        self._handle(SettingsChanged(config))

    async def stop(self) -> None:
        """Close the connection; the store stays open."""
        self._is_stopped = True
        self._store.on_growth = self._log.on_damage = None
        self._timer.cancel()
        self._disconnect()
        await self._tasks.cancel_and_wait()

    # ---- events ----------------------------------------------------------------------------------

    def received(self, link: _MasterLink, data: bytes, frames: HaFrameBuffer) -> None:
        """Bytes came from the master."""
        if link is not self._link:
            return
        self._received_size += len(data)
        try:
            for frame in frames.feed(data):
                self._handle(FrameArrived(frame.log_offset, frame.body))
                if link is not self._link:
                    return
        except RemoteProtocolError as error:
            self._handle(Lost(str(error), is_fault=True))
            return
        self._log_moved()

    def lost(self, link: _MasterLink, reason: str) -> None:
        """A connection has ended."""
        if link is self._link:
            self._link = None
            self._handle(Lost(reason))

    def _log_moved(self) -> None:
        self._handle(LogMoved(self._log.log_end, self._log.durable_end))

    def _damaged(self, problem: str) -> None:
        self._handle(Lost(problem, is_fault=True))

    # ---- instructions ----------------------------------------------------------------------------

    def _handle(self, event: SlaveEvent, due_ms: int = 0) -> None:
        """Handle an event, and the events that its instructions cause."""
        if self._is_stopped:
            return
        self._events.append(event)
        if self._is_handling:
            return
        self._is_handling = True
        now_ms = max(due_ms, self._clock.steady_ms())  # a timer may fire a little early
        try:
            while self._events:
                for instruction in self.slave.handle(self._events.popleft(), now_ms):
                    self._carry_out(instruction)
        finally:
            self._is_handling = False
        self._timer.set(self.slave.deadline)

    def _tick(self, due_ms: int) -> None:
        self._handle(Tick(), due_ms)

    def _carry_out(self, instruction: SlaveInstruction) -> None:
        match instruction:
            case Append():
                self._append(instruction)
            case Report():
                if self._link is not None:
                    self._link.report(instruction.log_end)
            case Notice():
                logger.log(instruction.level, "%s", instruction.text)
            case Connect():
                self._attempt_to(partial(self._connect, instruction.address), "connect")
            case Disconnect():
                self._disconnect()
            case CompareTail():
                self._attempt_to(partial(self._compare, instruction), "compare")
            case Cut():
                self._cut(instruction.log_offset)

    def _append(self, append: Append) -> None:
        try:
            self._log.append(append.log_offset, append.body)
        except (RemoteProtocolError, StoreError) as error:
            self._events.append(Lost(str(error), is_fault=True))

    def _cut(self, log_offset: int) -> None:
        try:
            self._log.truncate(log_offset)
        except StoreError as error:
            self._events.append(Lost(str(error), is_fault=True))
        else:
            self._events.append(Connected(self._position()))

    def _disconnect(self) -> None:
        link, self._link = self._link, None
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.cancel()
        if link is not None:
            link.abort()

    # ---- connection attempts and log checks ------------------------------------------------------

    def _attempt_to(self, work: Callable[[], Awaitable[SlaveEvent]], name: str) -> None:
        """Start asynchronous work; its event is dropped if another attempt starts meanwhile."""

        async def run() -> None:
            event = await work()
            if self._attempt is task:
                self._attempt = None
                self._handle(event)

        task = self._attempt = self._tasks.spawn(run(), name=name)

    async def _connect(self, address: str) -> SlaveEvent:
        link = _MasterLink(self)
        try:
            host, port = parse_address(address)
            await self._network.connect(
                lambda: link, host, port, timeout_s=CONNECT_TIMEOUT_S, clock=self._clock
            )
        except (TransportError, ConfigError) as error:
            return Lost(str(error))
        except asyncio.CancelledError:
            link.abort()  # the connection may just have been made
            raise
        self._link = link
        try:
            self._log.restart()
        except StoreError as error:
            return Lost(str(error))
        return Connected(self._position())

    async def _compare(self, question: CompareTail) -> SlaveEvent:
        if self._check_tail is None:
            return TailCompared(TailAnswer.UNSUPPORTED)
        crc = self._log.checksum(question.log_offset, question.size)
        if crc is None:  # retention has deleted it meanwhile
            return Lost(f"this log at {question.log_offset} was deleted")
        return TailCompared(await self._check_tail(question.log_offset, question.size, crc))

    def _position(self) -> LogPosition:
        log, tail = self._log, self._log.tail()
        return LogPosition(
            min_offset=self._store.log.min_offset,
            log_end=log.log_end,
            durable_end=log.durable_end,
            tail_offset=0 if tail is None else tail.log_offset,
            tail_size=0 if tail is None else tail.size,
        )

    # ---- queries ---------------------------------------------------------------------------------

    def runtime_info(self) -> HARuntimeInfo:
        """The response body of GET_BROKER_HA_STATUS at a slave."""
        slave, now_ms = self.slave, self._clock.steady_ms()
        before, self._rate = self._rate, _Rate(self._received_size, now_ms)
        rate = (self._received_size - before.received) * 1000
        wall_ms = self._clock.now_ms() - now_ms
        return HARuntimeInfo(
            master=False,
            ha_client_runtime_info=HAClientRuntimeInfo(
                master_addr=slave.master_address,
                transferred_byte_in_second=rate // max(_RATE_MS, now_ms - before.at_ms),
                max_offset=self._log.log_end,
                last_read_timestamp=wall_ms + slave.last_read_ms,
                last_write_timestamp=wall_ms + slave.last_report_ms,
            ),
        )
