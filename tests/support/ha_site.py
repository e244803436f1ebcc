"""A master and a slave of ours as processes, and all the trouble that a pair can have.

The name server runs in this process. Clients reach both brokers directly; between the slave and the
master's HA port is a proxy: the master listens on 127.0.0.1, and tells the name server that slaves
find it at 127.0.0.2, where the proxy listens on the same port. Trouble::

    kill master, kill slave, kill both       SIGKILL, and a new start on the same store
    restart master, restart slave            the same in order (SIGTERM)
    cut, close, halve                        the next bytes on the link meet a reset, an end, or
                                             only the first half of them passes before the end
    stall                                    bytes are held back, in one direction or both, for
                                             less or more time than either end has patience
    delay                                    both directions are late, each by a time of its own
    trickle                                  a direction lets little through
    full                                     the slave can make no file any more

A *hit* is trouble that met traffic: bytes in flight on the link, sends under way.

A disk that is full is played by the limit of file sizes (RLIMIT_FSIZE), set from outside while the
slave runs: all its files that hold messages are longer than that.
"""

from __future__ import annotations

import os
import random
import resource
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from skylark.core.clock import LoopClock
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from skylark.testing.tcp_proxy import Direction, FaultProxy
from tests.interop.ours import SkylarkBroker
from tests.interop.process import draw_port
from tests.support.client_site import BREAKS, SEEN_AT, SERVED_AT, STRIKE_WITHIN_S, start, until

FILE_SIZE: Final = 128 << 10
FULL_SIZE: Final = 64 << 10  # longer files cannot be made
HOUSEKEEPING_MS: Final = 1_500
FULL_WITHIN_S: Final = 10.0
STOPPED_WITHIN_S: Final = 15.0

#: What both have; small files, so that a few hundred messages roll the log.
SETTINGS: Final = {
    "bindAddress": SERVED_AT,
    "brokerIP1": SERVED_AT,
    "brokerIP2": SEEN_AT,
    "mappedFileSizeCommitLog": FILE_SIZE,
    "mappedFileSizeConsumeQueue": 4_000 * 20,
    "maxMessageSize": 16 << 10,
    "maxHashSlotNum": 4_000,
    "maxIndexNum": 16_000,
    "haHousekeepingInterval": HOUSEKEEPING_MS,
    "haSendHeartbeatInterval": 300,
    "slaveTimeout": 1_000,
    "slaveReadEnable": "true",
    "slaveSyncInterval": 300,
    "inSyncReplicas": 2,
    "haSyncFromStart": "true",
    "flushConsumerOffsetInterval": 300,
    "registerNameServerPeriod": 10_000,
}


async def end_in_order(broker: SkylarkBroker) -> None:
    """Let a broker stop by itself, without blocking the loop."""
    os.kill(broker.pid, signal.SIGTERM)
    if not await until(lambda: not broker.running, STOPPED_WITHIN_S):
        raise broker.failure("does not end")
    if status := broker.stop():
        raise broker.failure(f"ended with {status}")


class Pair:
    """The brokers, the link between them, and what has gone wrong so far."""

    def __init__(self, folder: Path, rng: random.Random, *, sync_flush: bool) -> None:
        self.clock = LoopClock()
        self.proxy = FaultProxy(self.clock)
        self.hits: Counter[str] = Counter()
        self.is_busy: Callable[[], bool] = lambda: False  #: whether sends are under way
        self.failed_count: Callable[[], int] = lambda: 0  #: of sends that were not SEND_OK
        #: Waits while the master is away.
        self.while_alone: Callable[[], Awaitable[None]] | None = None
        self._rng = rng
        self._namesrv = NameServer(NamesrvConfig(listen_port=0, bind_address=SERVED_AT))
        self._flush = "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH"
        self._folder = folder
        self._strikes: dict[str, Callable[[], Awaitable[None]]] = {
            "stall": self._stall,
            "delay": self._delay,
            "trickle": self._trickle,
            "full": self._full,
        }

    async def start(self) -> None:
        """Start all; the slave follows."""
        await self._namesrv.start()
        self.master = self._broker("master", "SYNC_MASTER", 0)
        self.slave = self._broker("slave", "SLAVE", 1)
        port = int(str(self.master.settings["listenPort"])) + 1
        self.link = (SEEN_AT, port)
        await self.proxy.add_target(SERVED_AT, port, listen_host=SEEN_AT, listen_port=port)
        await start(self.master)
        await start(self.slave)

    def _broker(self, name: str, role: str, broker_id: int) -> SkylarkBroker:
        settings = {
            **SETTINGS,
            "brokerRole": role,
            "brokerId": broker_id,
            "flushDiskType": self._flush,
        }
        port = draw_port((0, -2, 1))
        broker = SkylarkBroker(self.namesrv, settings, folder=self._folder / name, port=port)
        broker.address = f"{SERVED_AT}:{port}"
        return broker

    @property
    def namesrv(self) -> str:
        return str(self._namesrv.address)

    async def stop(self) -> None:
        """End everything at once."""
        await self.proxy.close()
        self.master.kill()
        self.slave.kill()
        await self._namesrv.stop()

    # ---- trouble ---------------------------------------------------------------------------------

    async def strike(self, kind: str) -> None:
        """Make trouble of one kind; returns when its cause is gone."""
        how, _, whom = kind.partition(" ")
        if whom:
            await self._end(whom, orderly=how == "restart")
        elif how in BREAKS:
            await self._break(how)
        else:
            await self._strikes[how]()

    async def _end(self, whom: str, *, orderly: bool) -> None:
        brokers = {"master": [self.master], "slave": [self.slave]}.get(whom)
        if brokers is None:
            brokers = [self.master, self.slave]
            self._rng.shuffle(brokers)
        await self.clock.sleep(self._rng.uniform(0, 0.05))
        was_busy = await until(self.is_busy, STRIKE_WITHIN_S, 0.0005)
        self.hits[f"{'restart' if orderly else 'kill'} {whom}"] += was_busy
        for broker in brokers:
            if orderly:
                await end_in_order(broker)
            else:
                broker.kill()
        if self.while_alone is not None and brokers == [self.master]:
            await self.while_alone()
        await self.clock.sleep(self._rng.uniform(0, 0.3))
        for broker in self._rng.sample(brokers, len(brokers)):
            await start(broker)

    async def _break(self, kind: str) -> None:
        before = self._broken()
        self.proxy.arm(BREAKS[kind], self._rng.choice(tuple(Direction)), target=self.link)
        self.hits[kind] += await until(lambda: self._broken() > before, STRIKE_WITHIN_S)

    def _broken(self) -> int:
        return self.proxy.stats.faults_in_flight.total()

    async def _stall(self) -> None:
        directions = self._rng.choice(((Direction.TO_SERVER,), (Direction.TO_CLIENT,), ()))
        self.proxy.stall(*directions, target=self.link)
        longest_s = HOUSEKEEPING_MS / 1000
        stalled_s = self._rng.choice((self._rng.uniform(0.05, 0.6), longest_s * 1.3))
        await self.clock.sleep(stalled_s)
        self.hits["stall"] += self._held_size() > 0
        if self._rng.random() < 0.4:
            self.proxy.cut(target=self.link)
        self.proxy.resume(target=self.link)

    def _held_size(self) -> int:
        return sum(self.proxy.held_size(direction, self.link) for direction in Direction)

    async def _delay(self) -> None:
        for direction in Direction:
            self.proxy.delay(self._rng.uniform(0, 250), direction, target=self.link)
        await self._wait_held("delay")
        self.proxy.delay(0, target=self.link)

    async def _trickle(self) -> None:
        direction = self._rng.choice(tuple(Direction))
        rate = {Direction.TO_SERVER: 200, Direction.TO_CLIENT: 60_000}[direction]
        self.proxy.throttle(rate, direction, target=self.link)
        await self._wait_held("trickle")
        self.proxy.throttle(0, target=self.link)

    async def _wait_held(self, kind: str) -> None:
        deadline = self.clock.monotonic() + self._rng.uniform(0.2, 0.8)
        met = False
        while self.clock.monotonic() < deadline:
            met = met or self._held_size() > 0
            await self.clock.sleep(0.01)
        self.hits[kind] += met

    async def _full(self) -> None:
        before, pid = self.failed_count(), self.slave.pid
        soft, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FULL_SIZE, hard))
        self.hits["full"] += await until(lambda: self.failed_count() > before, FULL_WITHIN_S)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


#: What a run draws its trouble from.
TROUBLES: Final = (
    *("kill master", "kill master", "kill slave", "kill slave", "kill both"),
    *("restart master", "restart slave"),
    *("cut", "cut", "close", "halve", "halve", "stall", "stall", "delay", "delay", "trickle"),
    "full",
)
