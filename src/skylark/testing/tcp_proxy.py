"""A TCP proxy on loopback that cuts, stalls, delays, halves and throttles what passes through it.

Clients connect to the address that :meth:`FaultProxy.add_target` returns, and the proxy connects on
to the real server, which may come, go and move meanwhile::

    proxy = FaultProxy(clock, plan)
    address = await proxy.add_target("127.0.0.1", broker_port)
    proxy.stall(Direction.TO_CLIENT)             # answers pile up
    proxy.cut()                                  # and are lost
    assert proxy.stats.faults_in_flight["cut"] == 1
    await proxy.close()                          # no socket and no task is left

Faults strike in two ways: at once, by a call; or on the next bytes that pass, by :meth:`arm` or by
the plan at the points ``proxy.to_server`` and ``proxy.to_client`` (once per chunk read: DELAY,
STALL, HALVE, CLOSE, CUT) and ``proxy.connect`` (ERROR, DELAY). Only a fault that strikes while the
proxy holds bytes counts as a hit, here and in the plan: a cut in silence proves little.

    CUT     both ends see a reset (RST); bytes held are lost
    CLOSE   both ends see an orderly end (FIN); bytes held are lost
    HALVE   the first half of the bytes held is delivered, then CLOSE

How bytes move, for each direction of each connection::

    read -> [held: at most HELD_SIZE_MAX, each chunk with the time at which it is due] -> write

While a direction is stalled, throttled or its reader slow, the sender is no longer read from, so
that back-pressure reaches it as it would through a real network.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import socket
import struct
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import cast

from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import ConnectError
from skylark.net.transport import Listener, Network, TcpNetwork
from skylark.testing.fault_plan import NO_FAULT, Fault, FaultAction, FaultPlan

logger = logging.getLogger(__name__)

Address = tuple[str, int]

HELD_SIZE_MAX = 256 * 1024
CONNECT_TIMEOUT_S = 5.0
THROTTLE_STEP_S = 0.05
CHUNK_ACTIONS = frozenset(
    {
        FaultAction.DELAY,
        FaultAction.STALL,
        FaultAction.HALVE,
        FaultAction.CLOSE,
        FaultAction.CUT,
    }
)
CONNECT_ACTIONS = frozenset({FaultAction.ERROR, FaultAction.DELAY})
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER on, for 0 seconds


class Direction(enum.Enum):
    """Which way bytes travel."""

    TO_SERVER = "to_server"
    TO_CLIENT = "to_client"


BOTH = tuple(Direction)


@dataclass
class ProxyStats:
    """What passed and what was broken; keys of the counters are the actions' names."""

    connections: int = 0
    connections_refused: int = 0
    bytes_passed: Counter[Direction] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    faults_in_flight: Counter[str] = field(default_factory=Counter)


@dataclass
class _Lane:
    """Settings of one direction of one target, shared by its connections."""

    direction: Direction
    stalled: bool = False
    delay_s: float = 0.0
    bytes_per_s: float = 0.0
    armed: FaultAction | None = None


class _Target:
    """A listening address, where it leads, and the connections through it."""

    def __init__(self, host: str, port: int) -> None:
        self.server: Address = (host, port)
        self.lanes = {direction: _Lane(direction) for direction in BOTH}
        self.links: set[_Link] = set()
        self.listener: Listener | None = None


class _End(asyncio.Protocol):
    """One of the two sockets of a connection; hands everything to its link."""

    def __init__(self, link: _Link, outgoing: Direction, incoming: Direction) -> None:
        self.link = link
        self.outgoing = outgoing  # direction of the bytes read here
        self.incoming = incoming  # direction of the bytes written here
        self.transport: asyncio.Transport | None = None
        self.reading = True
        self.writable = False
        self.lost = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.writable = True
        self.link.end_opened(self)

    def data_received(self, data: bytes) -> None:
        self.link.flows[self.outgoing].feed(data)

    def eof_received(self) -> bool:
        self.link.flows[self.outgoing].feed_eof()
        return True  # the other direction may go on

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.link.flows[self.incoming].pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.writable = False
        self.link.end_lost(exc)

    def finish(self, *, reset: bool) -> None:
        """Close; a reset loses what the kernel has not sent."""
        if self.transport is None or self.lost:
            return
        if not reset:
            self.transport.close()
            return
        if not self.transport.is_closing():  # otherwise uvloop may have closed the descriptor
            connection = self.transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.transport.abort()


class _Flow:
    """One direction of one connection."""

    def __init__(self, proxy: FaultProxy, link: _Link, lane: _Lane) -> None:
        self._proxy = proxy
        self._link = link
        self._lane = lane
        self._held: deque[tuple[float, bytes]] = deque()  # due time, bytes; times never decrease
        self._last_due = 0.0
        self._timer: TimerHandle | None = None
        self._ends = False
        self.ended = False
        self.stalled = False
        self.held_size = 0

    def feed(self, data: bytes) -> None:
        fault = self._proxy.chunk_fault(self._lane, len(data))
        self._hold(data, fault.delay_ms / 1000)
        if fault.action is FaultAction.STALL:
            self._proxy.count(fault.action, self.held_size)
            self.stalled = True
        elif fault.action is FaultAction.DELAY:
            self._proxy.count(fault.action, self.held_size)
        elif fault.action is FaultAction.HALVE:
            self.halve()
        elif fault.action in (FaultAction.CLOSE, FaultAction.CUT):
            self._link.cut(fault.action)
        self.pump()

    def feed_eof(self) -> None:
        self._ends = True
        self.pump()

    def pump(self) -> None:
        """Write everything that is due and may pass."""
        if self._timer is None:
            self._pass_due(self._proxy.clock.monotonic())

    def halve(self) -> None:
        """Deliver the first half of the held bytes, even if stalled, and end the connection."""
        content = b"".join(data for _, data in self._held)
        if content:
            self._write(content[: len(content) // 2])
        self._link.cut(FaultAction.HALVE)

    def drop(self) -> None:
        self._held.clear()
        self.held_size = 0
        self.ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _hold(self, data: bytes, delay_s: float) -> None:
        lane, now = self._lane, self._proxy.clock.monotonic()
        rate = lane.bytes_per_s
        step = max(1, int(rate * THROTTLE_STEP_S)) if rate else len(data)
        for start in range(0, len(data), step):
            piece = data[start : start + step]
            due = max(now + lane.delay_s + delay_s, self._last_due)
            if rate:
                due = max(due, now) + len(piece) / rate
            self._held.append((due, piece))
            self._last_due = due
        self.held_size += len(data)

    def _pass_due(self, now: float) -> None:
        sink = self._link.sink(self._lane.direction)
        if self.stalled or self._lane.stalled or not sink.writable:
            self._limit_held()
            return
        while self._held and sink.writable:
            due, data = self._held[0]
            if due > now:
                self._timer = self._proxy.clock.call_at(due, self._timer_due, due)
                break
            self._held.popleft()
            self.held_size -= len(data)
            self._write(data)
        self._limit_held()
        if self._ends and not self._held and not self.ended:
            self.ended = True
            self._link.flow_ended(self._lane.direction)

    def _limit_held(self) -> None:
        self._link.set_reading(self._lane.direction, self.held_size < HELD_SIZE_MAX)

    def _timer_due(self, due: float) -> None:
        self._timer = None
        # timers may come a moment early: what this one was set for is due, by definition
        self._pass_due(max(due, self._proxy.clock.monotonic()))

    def _write(self, data: bytes) -> None:
        transport = self._link.sink(self._lane.direction).transport
        if transport is not None:
            transport.write(data)
            self._proxy.stats.bytes_passed[self._lane.direction] += len(data)


class _Link:
    """A client's connection and the proxy's own one to the server."""

    def __init__(self, proxy: FaultProxy, target: _Target) -> None:
        self._proxy = proxy
        self._target = target
        self.client = _End(self, Direction.TO_SERVER, Direction.TO_CLIENT)
        self.server = _End(self, Direction.TO_CLIENT, Direction.TO_SERVER)
        self.flows = {
            direction: _Flow(proxy, self, lane) for direction, lane in target.lanes.items()
        }
        self._connecting: asyncio.Task[None] | None = None
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def sink(self, direction: Direction) -> _End:
        return self.server if direction is Direction.TO_SERVER else self.client

    def end_opened(self, end: _End) -> None:
        if end is self.client:
            self._target.links.add(self)
            self._proxy.stats.connections += 1
            self._connecting = asyncio.get_running_loop().create_task(self._connect())
        else:
            self.flows[Direction.TO_SERVER].pump()

    async def _connect(self) -> None:
        clock = self._proxy.clock
        fault = self._proxy.connect_fault()
        await clock.sleep(fault.delay_ms / 1000)
        if fault.action is FaultAction.ERROR:
            self._refuse()
            return
        try:
            await self._proxy.network.connect(
                lambda: self.server, *self._target.server, timeout_s=CONNECT_TIMEOUT_S, clock=clock
            )
        except ConnectError as error:
            logger.debug("%s", error)
            self._refuse()

    def _refuse(self) -> None:
        self._proxy.stats.connections_refused += 1
        self.end(reset=True)

    def set_reading(self, direction: Direction, wanted: bool) -> None:
        """Read on, or leave the sender's bytes in the kernel."""
        source = self.client if direction is Direction.TO_SERVER else self.server
        if source.transport is None or source.transport.is_closing() or source.reading == wanted:
            return
        source.reading = wanted
        if wanted:
            source.transport.resume_reading()
        else:
            source.transport.pause_reading()

    def flow_ended(self, direction: Direction) -> None:
        """Forward the end of file of a direction, after all of its bytes.

        When both directions have ended, close both sockets.
        """
        transport = self.sink(direction).transport
        if all(flow.ended for flow in self.flows.values()):
            self.end(reset=False)
        elif transport is not None and not transport.is_closing():
            with contextlib.suppress(OSError):  # reset meanwhile: connection_lost is on its way
                transport.write_eof()

    def cut(self, action: FaultAction) -> None:
        """End both connections by a fault: CUT resets, CLOSE and HALVE end in order."""
        if not self.client.lost:
            self._proxy.count(action, sum(flow.held_size for flow in self.flows.values()))
            self.end(reset=action is FaultAction.CUT)

    def end_lost(self, error: Exception | None) -> None:
        self.end(reset=error is not None)
        ends = (self.client, self.server)
        if all(end.lost or end.transport is None for end in ends):
            if self._connecting is not None:
                self._connecting.cancel()
            self._target.links.discard(self)
            if not self.closed.done():
                self.closed.set_result(None)

    async def wait_closed(self) -> None:
        await self.closed
        if self._connecting is not None:
            await asyncio.gather(self._connecting, return_exceptions=True)

    def end(self, *, reset: bool) -> None:
        """Drop what is held and close both sockets."""
        for flow in self.flows.values():
            flow.drop()
        for end in (self.client, self.server):
            end.finish(reset=reset)


class FaultProxy:
    """Any number of targets on one event loop; create it, and close it, inside the loop."""

    def __init__(
        self, clock: Clock, plan: FaultPlan | None = None, *, network: Network | None = None
    ) -> None:
        self.clock = clock
        self.plan = plan
        self.network: Network = network or TcpNetwork()
        self.stats = ProxyStats()
        self._targets: dict[Address, _Target] = {}

    async def add_target(
        self, host: str, port: int, *, listen_host: str = "127.0.0.1", listen_port: int = 0
    ) -> Address:
        """Listen, and lead to ``host:port``, which need not be up yet; returns the new address."""
        target = _Target(host, port)
        target.listener = await self.network.listen(
            lambda: _Link(self, target).client, listen_host, listen_port
        )
        address = target.listener.addresses[0]
        self._targets[address] = target
        return address

    def move_target(self, address: Address, host: str, port: int) -> None:
        """Lead new connections elsewhere: the server came back on another port."""
        self._targets[address].server = (host, port)

    async def remove_target(self, address: Address) -> None:
        """Stop listening there and cut what runs through it."""
        target = self._targets.pop(address)
        assert target.listener is not None
        target.listener.close()
        links = list(target.links)
        for link in links:
            link.end(reset=True)
        for link in links:
            await link.wait_closed()
        await target.listener.wait_closed()

    async def close(self) -> None:
        """Remove all targets; nothing of the proxy is left in the loop."""
        for address in list(self._targets):
            await self.remove_target(address)

    @property
    def link_count(self) -> int:
        """Connections that run through the proxy now."""
        return sum(len(target.links) for target in self._targets.values())

    def held_size(self, direction: Direction, target: Address | None = None) -> int:
        """Bytes that the proxy has read and not yet passed on."""
        links = (link for chosen in self._chosen(target) for link in chosen.links)
        return sum(link.flows[direction].held_size for link in links)

    def cut(self, target: Address | None = None, *, reset: bool = True) -> int:
        """Break the connections (of one target, or all) now; returns how many."""
        links = [link for chosen in self._chosen(target) for link in chosen.links]
        for link in links:
            link.cut(FaultAction.CUT if reset else FaultAction.CLOSE)
        return len(links)

    def halve(self, direction: Direction, target: Address | None = None) -> int:
        """Deliver half of what is held in this direction and end the connections that hold any."""
        flows = [link.flows[direction] for chosen in self._chosen(target) for link in chosen.links]
        holding = [flow for flow in flows if flow.held_size]
        for flow in holding:
            flow.halve()
        return len(holding)

    def arm(self, action: FaultAction, direction: Direction, target: Address | None = None) -> None:
        """Let ``action`` strike the next bytes that come along in this direction, once."""
        _check(Fault(action), "arm", CHUNK_ACTIONS - {FaultAction.DELAY})
        for chosen in self._chosen(target):
            chosen.lanes[direction].armed = action

    def stall(self, *directions: Direction, target: Address | None = None) -> None:
        """Hold all bytes back, also of new connections, until :meth:`resume`; default: both."""
        for lane in self._lanes(directions, target):
            lane.stalled = True

    def resume(self, *directions: Direction, target: Address | None = None) -> None:
        """End stalls, those of the plan included, and let the held bytes go."""
        lanes = self._lanes(directions, target)
        for lane in lanes:
            lane.stalled = False
        for chosen in self._chosen(target):
            for link in list(chosen.links):
                for direction in directions or BOTH:
                    link.flows[direction].stalled = False
                    link.flows[direction].pump()

    def delay(self, delay_ms: float, *directions: Direction, target: Address | None = None) -> None:
        """Pass every byte this much later; 0 ends it."""
        for lane in self._lanes(directions, target):
            lane.delay_s = delay_ms / 1000

    def throttle(
        self, bytes_per_s: float, *directions: Direction, target: Address | None = None
    ) -> None:
        """Let no more than this through, per connection and direction; 0 ends it."""
        for lane in self._lanes(directions, target):
            lane.bytes_per_s = bytes_per_s

    # What flows and links ask of their proxy

    def chunk_fault(self, lane: _Lane, size: int) -> Fault:
        """What is to happen to a chunk that has just been read."""
        armed, lane.armed = lane.armed, None
        if armed is not None:
            return Fault(armed)
        if self.plan is None:
            return NO_FAULT
        point = f"proxy.{lane.direction.value}"
        fault = _check(self.plan.draw(point, f"{size} bytes"), point, CHUNK_ACTIONS)
        if fault.action is not FaultAction.NONE:
            self.plan.hit(point, fault.action)
        return fault

    def connect_fault(self) -> Fault:
        if self.plan is None:
            return NO_FAULT
        fault = _check(self.plan.draw("proxy.connect"), "proxy.connect", CONNECT_ACTIONS)
        if fault.action is not FaultAction.NONE:
            self.plan.hit("proxy.connect", fault.action)
        return fault

    def count(self, action: FaultAction, held_size: int) -> None:
        self.stats.faults[action.value] += 1
        if held_size:
            self.stats.faults_in_flight[action.value] += 1

    def _chosen(self, address: Address | None) -> list[_Target]:
        return list(self._targets.values()) if address is None else [self._targets[address]]

    def _lanes(self, directions: Iterable[Direction], address: Address | None) -> list[_Lane]:
        wanted = tuple(directions) or BOTH
        return [chosen.lanes[way] for chosen in self._chosen(address) for way in wanted]


def _check(fault: Fault, point: str, known: frozenset[FaultAction]) -> Fault:
    if fault.action is not FaultAction.NONE and fault.action not in known:
        raise ValueError(f"{point} knows nothing of {fault}")
    return fault
