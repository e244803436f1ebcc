"""A name server and a broker of ours as processes, and all the trouble that clients have with them.

Clients reach both through a proxy, and never otherwise: the broker listens on 127.0.0.1, and tells
the name server that it is at 127.0.0.2, where the proxy listens on the same port. Trouble::

    cut, close, halve   the next bytes on a connection to the broker meet a reset, an end, or only
                        the first half of them passes before the end
    stall               bytes are held back for a while, then go on or are lost; on all connections
                        to the broker or on one
    slow                they come late, or trickle
    kill                the broker is killed (SIGKILL) and started again on its store
    vanish              nobody listens at the name server's address for a while
    forget              the name server is killed and comes back knowing nothing

A *hit* is trouble that met traffic: a connection that broke with bytes in flight, a broker killed
while sends were under way, a name server that was asked while it was away.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

from skylark.core.clock import LoopClock
from skylark.testing.fault_plan import FaultAction
from skylark.testing.tcp_proxy import Direction, FaultProxy
from tests.interop.ours import SkylarkBroker, SkylarkNamesrv, SkylarkServer
from tests.interop.process import draw_port

SERVED_AT: Final = "127.0.0.1"
SEEN_AT: Final = "127.0.0.2"
START_WITHIN_S: Final = 30.0
STRIKE_WITHIN_S: Final = 2.0

BREAKS: Final = {
    "cut": FaultAction.CUT,
    "close": FaultAction.CLOSE,
    "halve": FaultAction.HALVE,
}


async def until(check: Callable[[], object], within_s: float, step_s: float = 0.005) -> bool:
    """Whether ``check()`` was true within a time."""
    clock = LoopClock()
    deadline = clock.monotonic() + within_s
    while not check():
        if clock.monotonic() >= deadline:
            return False
        await clock.sleep(step_s)
    return True


async def start(server: SkylarkServer) -> None:
    """Start a server without blocking the loop."""
    server.launch()
    lines: list[str] = []

    def is_ready() -> bool:
        lines.extend(server.waiting_lines())
        return not server.running or any(line.startswith("ready ") for line in lines)

    if not await until(is_ready, START_WITHIN_S) or not server.running:
        raise server.failure("does not get ready")


class Site:
    """The servers, the proxy, and what has gone wrong so far."""

    def __init__(self, folder: Path, rng: random.Random, *, sync_flush: bool) -> None:
        self.clock = LoopClock()
        self.proxy = FaultProxy(self.clock)
        self.hits: Counter[str] = Counter()
        self.is_busy: Callable[[], bool] = lambda: False  #: whether sends are under way
        self._rng = rng
        self._namesrv = SkylarkNamesrv(folder=folder / "namesrv")
        self._namesrv_port = int(str(self._namesrv.settings["listenPort"]))
        self._port = draw_port((0, -2, 1))
        self._broker = SkylarkBroker(
            f"{SERVED_AT}:{self._namesrv_port}",
            {
                "brokerIP1": SEEN_AT,
                "bindAddress": SERVED_AT,
                "flushDiskType": "SYNC_FLUSH" if sync_flush else "ASYNC_FLUSH",
                "flushConsumerOffsetInterval": 300,
                "registerNameServerPeriod": 10_000,
                "messageDelayLevel": " ".join(["1s"] * 18),
            },
            folder=folder / "broker",
            port=self._port,
        )
        self.broker_at = (SEEN_AT, self._port)
        self.namesrv_at = (SEEN_AT, self._namesrv_port)

    @property
    def namesrv(self) -> str:
        """Where clients find the name server."""
        return f"{SEEN_AT}:{self._namesrv_port}"

    @property
    def broker(self) -> str:
        """Where clients find the broker."""
        return f"{SEEN_AT}:{self._port}"

    async def start(self) -> None:
        await start(self._namesrv)
        await start(self._broker)
        await self._listen(self._namesrv_port)
        await self._listen(self._port)

    async def stop(self) -> None:
        """End everything; what the servers held is lost."""
        await self.proxy.close()
        self._broker.kill()
        self._namesrv.kill()

    async def _listen(self, port: int) -> None:
        await self.proxy.add_target(SERVED_AT, port, listen_host=SEEN_AT, listen_port=port)

    # ---- trouble ---------------------------------------------------------------------------------

    async def strike(self, kind: str) -> None:
        """Make trouble of one kind; returns when its cause is gone."""
        if kind in BREAKS:
            await self._break(kind)
        else:
            await {
                "stall": self._stall,
                "slow": self._slow,
                "kill": self._kill,
                "vanish": self._vanish,
                "forget": self._forget,
            }[kind]()

    async def _break(self, kind: str) -> None:
        before = self._broken()
        direction = self._rng.choice(tuple(Direction))
        self.proxy.arm(BREAKS[kind], direction, target=self.broker_at)
        if await until(lambda: self._broken() > before, STRIKE_WITHIN_S):
            self.hits[kind] += 1

    def _broken(self) -> int:
        return self.proxy.stats.faults_in_flight.total()

    async def _stall(self) -> None:
        directions = self._rng.choice(((Direction.TO_SERVER,), (Direction.TO_CLIENT,), ()))
        if (
            directions and self._rng.random() < 0.5
        ):  # only the connection that carries the next bytes
            before = self._broken()
            self.proxy.arm(FaultAction.STALL, *directions, target=self.broker_at)
            self.hits["stall"] += await until(lambda: self._broken() > before, STRIKE_WITHIN_S)
        else:
            self.proxy.stall(*directions, target=self.broker_at)
            self.hits["stall"] += self.is_busy()
        await self.clock.sleep(self._rng.uniform(0.05, 0.7))
        if self._rng.random() < 0.4:
            self.proxy.cut(target=self.broker_at)
        self.proxy.resume(target=self.broker_at)

    async def _slow(self) -> None:
        self.hits["slow"] += self.is_busy()
        if self._rng.random() < 0.5:
            self.proxy.delay(self._rng.uniform(5, 60), target=self.broker_at)
        else:
            self.proxy.throttle(self._rng.uniform(20_000, 200_000), target=self.broker_at)
        await self.clock.sleep(self._rng.uniform(0.1, 0.4))
        self.proxy.delay(0, target=self.broker_at)
        self.proxy.throttle(0, target=self.broker_at)

    async def _kill(self) -> None:
        vanishes = self._rng.random() < 0.5
        self.hits["kill"] += self.is_busy()
        self._broker.kill()
        if vanishes:
            await self.proxy.remove_target(self.broker_at)
        await self.clock.sleep(self._rng.uniform(0, 0.3))
        await start(self._broker)
        if vanishes:
            await self._listen(self._port)

    async def _vanish(self) -> None:
        self.hits["vanish"] += self.is_busy()
        await self.proxy.remove_target(self.namesrv_at)
        await self.clock.sleep(self._rng.uniform(0.2, 0.6))
        await self._listen(self._namesrv_port)

    async def _forget(self) -> None:
        refused = self.proxy.stats.connections_refused
        self._namesrv.kill()
        await self.clock.sleep(self._rng.uniform(0.2, 0.6))
        self.hits["forget"] += self.proxy.stats.connections_refused > refused
        await start(self._namesrv)
