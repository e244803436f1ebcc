"""The HA server: serves slaves on the master's HA port; the shell around ``replication.master``.

It turns activity of sockets, log and clock into events, and carries out the instructions::

    reports of a slave --> ReportBuffer --> SlaveReported      Transfer --> head + view of the file
    put, flush, commit --> on_growth --> LogChanged            Drop --> the connection is aborted
    transport is empty again --> SlaveDrained                  Confirmed --> AckWaiters

The transport gets bytes of the mapped file as views; a lease keeps the file open until they are
sent. A slave can pin one burst (:data:`~skylark.replication.master.BURST_SIZE`), and there are at
most :data:`SLAVES_MAX` slaves. A slave gets one burst per turn of the event loop, and its reports
are read in shares (:mod:`skylark.net.turn_share`), so producers and consumers are served in
between.

**What is sent.** With SYNC_FLUSH what is on disk, otherwise what is in the files. So a slave never
has bytes that a synchronous master could lose in a power failure: it would be ahead of its master.

Invalid bytes from a slave only close the connection of that slave.

Counterpart of Java's ``DefaultHAService.AcceptSocketService`` and ``DefaultHAConnection``.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import defaultdict
from typing import Final, cast

from skylark.core.clock import Clock
from skylark.core.errors import RemoteProtocolError
from skylark.net.transport import Listener, Network
from skylark.net.turn_share import ReadPacer
from skylark.net.write_queue import write_pieces
from skylark.replication.ack_wait import AckWaiters
from skylark.replication.config import ReplicationConfig
from skylark.replication.deadline_timer import DeadlineTimer
from skylark.replication.master import (
    Confirmed,
    Drop,
    LogChanged,
    Master,
    MasterEvent,
    Notice,
    SettingsChanged,
    SlaveDrained,
    SlaveJoined,
    SlaveLeft,
    SlaveReported,
    Tick,
    Transfer,
)
from skylark.store.config import BrokerRole, FlushDiskType
from skylark.store.mapped_file import Lease
from skylark.store.message_store import MessageStore
from skylark.wire.bodies.ha_body import HAConnectionRuntimeInfo, HARuntimeInfo
from skylark.wire.ha_frame import ReportBuffer, encode_frame_head

logger = logging.getLogger(__name__)

SLAVES_MAX: Final = 64
_RATE_MS: Final = 1_000  # shortest time for a transfer rate


class _SlaveLink(asyncio.Protocol):
    """The connection of one slave."""

    def __init__(self, server: HaServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._reports = ReportBuffer()
        self._pacer = ReadPacer()
        self._leases: list[Lease] = []
        self._is_paused = False
        self.number = -1  # of the connection; -1: not accepted
        self.address = "?"

    # Called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's have no common class
        self._transport.set_write_buffer_limits(high=0)  # resume_writing: all bytes are sent
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.address = f"{peer[0]}:{peer[1]}"
        self._server.joined(self)

    def data_received(self, data: bytes) -> None:
        if self.number < 0:
            return
        try:
            log_end = self._reports.feed(data)
        except RemoteProtocolError as error:
            self._server.left(self)
            self.abort(str(error))
            return
        if log_end is not None:
            self._server.reported(self, log_end)
        if self._transport is not None:
            self._pacer.delivered(self._transport, len(data))

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._drained()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._release()
        self._server.left(self)

    # Called by the server

    def send(self, pieces: list[bytes | memoryview], leases: list[Lease]) -> None:
        """Write frames; the leases end when they are sent."""
        assert self._transport is not None
        self._leases += leases
        write_pieces(self._transport, pieces)
        if not self._is_paused:
            asyncio.get_running_loop().call_soon(self._drained)

    def abort(self, reason: str) -> None:
        """Close at once."""
        logger.warning("closing the connection to slave %s: %s", self.address, reason)
        if self._transport is not None:
            self._transport.abort()

    def _drained(self) -> None:
        if not self._is_paused:
            self._release()
            self._server.drained(self)

    def _release(self) -> None:
        leases, self._leases = self._leases, []
        for lease in leases:
            lease.release()


class HaServer:
    """Serves the slaves of one store; ``start`` and ``stop`` once each.

    ``waiters`` is None unless puts may have to wait for slaves. While the server runs and
    ``inSyncReplicas`` demands it, :attr:`MessageStore.replicas` is set to it.
    """

    def __init__(
        self,
        store: MessageStore,
        config: ReplicationConfig,
        network: Network,
        clock: Clock,
        *,
        slaves_max: int = SLAVES_MAX,
    ) -> None:
        self._store = store
        self._files = store.log.files
        self._network = network
        self._clock = clock
        self._slaves_max = slaves_max
        self._sends_flushed = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self.master = Master(config, file_size=self._files.file_size)
        self._config = config
        self.waiters: AckWaiters | None = None
        if store.config.broker_role is BrokerRole.SYNC_MASTER:
            self.waiters = AckWaiters(
                config, clock, is_slave_near=lambda: self.master.is_slave_near
            )
        self._listener: Listener | None = None
        self._links: dict[int, _SlaveLink] = {}
        self._numbers = itertools.count()
        self._is_woken = False
        self._timer = DeadlineTimer(clock, self._tick)
        self._is_stopping = False
        self._rates: dict[int, tuple[int, int]] = {}  # bytes and time at the last call

    # ---- life ------------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Listen; returns the bound address. From now on puts may have to wait."""
        self._listener = await self._network.listen(lambda: _SlaveLink(self), host, port)
        self._store.on_growth = self.wake
        self._set_replicas()
        return self._listener.addresses[0]

    def follow(self, config: ReplicationConfig) -> None:
        """Apply changed settings; those that are read at start must not have changed."""
        if self._is_stopping:
            return
        needed, self._config = self._config.acks_needed, config
        self._handle(SettingsChanged(config))
        if self.waiters is not None:
            self.waiters.follow(config)
            if needed != config.acks_needed:
                self._set_replicas()

    def _set_replicas(self) -> None:
        """Make puts wait for slaves, or not."""
        is_needed = self._config.acks_needed > 0
        self._store.replicas = self.waiters if is_needed else None
        if self.waiters is not None and not is_needed:
            logger.warning(
                "brokerRole=SYNC_MASTER does not wait for slaves with inSyncReplicas=1: set it to 2"
            )

    def stop_listening(self) -> None:
        """Accept no more slaves; connected ones stay."""
        if self._listener is not None:
            self._listener.close()

    async def stop(self) -> None:
        """Release all waiting puts, and close all connections."""
        self._is_stopping = True
        self._store.on_growth = self._store.replicas = None
        if self.waiters is not None:
            self.waiters.stop()
        self._timer.cancel()
        for link in list(self._links.values()):
            link.abort("the master stops")
        if self._listener is not None:
            self._listener.close()
            await self._listener.wait_closed()

    # ---- events ----------------------------------------------------------------------------------

    def wake(self) -> None:
        """Check for new bytes of the log after this turn of the loop."""
        if self._links and not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._check_log)

    def _check_log(self) -> None:
        self._is_woken = False
        if not self._is_stopping:
            self._handle(self._log_changed())

    def joined(self, link: _SlaveLink) -> None:
        """A connection was accepted."""
        if self._is_stopping or len(self._links) >= self._slaves_max:
            link.abort(f"it is beyond the limit of {self._slaves_max} slaves")
            return
        link.number = next(self._numbers)
        self._links[link.number] = link
        logger.info("slave %s connected", link.address)
        self._handle(self._log_changed())
        self._handle(SlaveJoined(link.number, link.address))

    def reported(self, link: _SlaveLink, log_end: int) -> None:
        """A slave reported the end of its log."""
        if log_end > self.master.log_end:
            self._handle(self._log_changed())
        self._handle(SlaveReported(link.number, log_end))

    def drained(self, link: _SlaveLink) -> None:
        """The transport has sent all bytes."""
        if link.number in self._links and not self._is_stopping:
            self._handle(SlaveDrained(link.number))

    def left(self, link: _SlaveLink) -> None:
        """A connection has ended or will end."""
        if self._links.pop(link.number, None) is not None:
            self._rates.pop(link.number, None)
            self._handle(SlaveLeft(link.number))

    def _log_changed(self) -> LogChanged:
        files = self._files
        log_end = files.flushed_where if self._sends_flushed else files.max_offset
        return LogChanged(files.min_offset, log_end)

    # ---- instructions ----------------------------------------------------------------------------

    def _handle(self, event: MasterEvent, due_ms: int = 0) -> None:
        """Carry out the instructions for an event; ``due_ms`` is when it was due."""
        transfers: dict[int, list[Transfer]] = defaultdict(list)
        now_ms = max(due_ms, self._clock.steady_ms())  # a timer may fire a little early
        for instruction in self.master.handle(event, now_ms):
            match instruction:
                case Transfer():
                    transfers[instruction.slave].append(instruction)
                case Confirmed():
                    if self.waiters is not None:
                        self.waiters.confirm(instruction.log_offset)
                case Drop():
                    link = self._links.pop(instruction.slave)
                    self._rates.pop(instruction.slave, None)
                    link.abort(instruction.reason)
                case Notice():
                    logger.log(instruction.level, "%s", instruction.text)
        for number, frames in transfers.items():
            self._transfer(self._links[number], frames)
        if not self._is_stopping:
            self._timer.set(self.master.deadline)

    def _transfer(self, link: _SlaveLink, frames: list[Transfer]) -> None:
        pieces: list[bytes | memoryview] = []
        leases: list[Lease] = []
        for frame in frames:
            pieces.append(encode_frame_head(frame.log_offset, frame.size))
            if frame.size:
                lease = self._store.log.lease(frame.log_offset, frame.size)
                if lease is None:  # the file was deleted in this turn
                    for taken in leases:
                        taken.release()
                    self.left(link)
                    link.abort(f"the log at {frame.log_offset} was deleted")
                    return
                leases.append(lease)
                pieces.append(lease.view)
        link.send(pieces, leases)

    def _tick(self, due_ms: int) -> None:
        self._handle(Tick(), due_ms)
        self._handle(self._log_changed())  # retention may have changed its start

    # ---- queries ---------------------------------------------------------------------------------

    def runtime_info(self) -> HARuntimeInfo:
        """The response body of GET_BROKER_HA_STATUS at a master."""
        end = self._files.max_offset
        return HARuntimeInfo(
            master=True,
            master_commit_log_max_offset=end,
            in_sync_slave_nums=self.master.in_sync_count,
            ha_connection_info=[
                HAConnectionRuntimeInfo(
                    addr=slave.address,
                    slave_ack_offset=slave.ack_offset,
                    diff=end - slave.ack_offset,
                    in_sync=self.master.is_in_sync(slave),
                    transferred_byte_in_second=self._rate(slave.number, slave.transferred),
                    transfer_from_where=slave.next_offset,
                )
                for slave in self.master.slaves
            ],
        )

    def _rate(self, number: int, transferred: int) -> int:
        """Bytes per second since the last call."""
        now_ms = self._clock.steady_ms()
        before, before_ms = self._rates.get(number, (0, now_ms - _RATE_MS))
        self._rates[number] = (transferred, now_ms)
        return (transferred - before) * 1000 // max(_RATE_MS, now_ms - before_ms)
