"""Name server and brokers on this machine, started, watched and stopped together.

::

    cluster = Cluster(LaunchOptions(data=folder))
    await cluster.start()
    print(cluster.namesrv, cluster.brokers)      # 127.0.0.1:9876 {'broker-a': 127.0.0.1:10911}
    await cluster.watch()                        # until a broker dies, which raises
    await cluster.stop()

One broker shares the process and the event loop with the name server. Several get a process each,
for a broker uses one core; the name server stays with the supervisor. When ``start`` returns, the
name server knows all brokers, so clients find them.

**A broker that dies** takes the rest along: the others are stopped in order, and the message says
who died, and of what. Only a kill of the supervisor itself (SIGKILL) leaves children behind; they
keep their folders locked, so a second cluster on the same data says so instead of harming it.
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.core.clock import Clock, LoopClock
from skylark.core.config import load
from skylark.core.errors import SkylarkError
from skylark.core.lifecycle import Component
from skylark.core.names import Address
from skylark.launch.broker_process import BrokerProcess
from skylark.launch.plan import FRIENDLY, LaunchOptions, within_reach
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig

log = logging.getLogger(__name__)

#: How long brokers that are ready may take until the name server knows them.
REGISTERED_TIMEOUT_S: Final = 30.0
_LOOK_INTERVAL_S: Final = 0.01


class Cluster:
    """What ``skylark up`` runs; starts and stops once."""

    def __init__(
        self,
        options: LaunchOptions,
        *,
        clock: Clock | None = None,
        child_arguments: Sequence[str] = (),
    ) -> None:
        """``child_arguments``: options of ``skylark`` for brokers in processes of their own."""
        self._options = options
        self._clock = clock or LoopClock()
        self._child_arguments = child_arguments
        self._name_server = NameServer(
            load(NamesrvConfig, options.namesrv_settings()), own_brokers=options.broker_names
        )
        self._broker: Broker | None = None
        self._children: list[BrokerProcess] = []
        self._started: list[Component] = []
        self._settings_folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def namesrv(self) -> Address:
        """Where the name server listens, as this machine can reach it."""
        return within_reach(self._name_server.address)

    @property
    def brokers(self) -> dict[str, Address]:
        """Name -> address of the brokers that run."""
        if self._broker is not None:
            return {self._options.broker_names[0]: within_reach(self._broker.address)}
        return {
            child.name: within_reach(child.address)
            for child in self._children
            if child.address is not None
        }

    async def start(self) -> None:
        """Start all; raises ConfigError, StoreError, TransportError, BrokerDiedError."""
        changed = (f"{k}={v}" for k, v in FRIENDLY.items() if k not in self._options.settings)
        log.info("settings other than Java's: %s", ", ".join(changed) or "none")
        try:
            await self._start_one(self._name_server)
            if self._options.broker_count == 1:
                await self._start_within()
            else:
                await self._start_children()
            await self._registered()
        except BaseException:
            await self.stop()
            raise

    async def _start_one(self, component: Component) -> None:
        # Noted before: a start that is cut off half way has something to stop, too.
        self._started.append(component)
        await component.start()

    async def _start_within(self) -> None:
        texts = self._options.broker_settings(0, self.namesrv)
        self._broker = Broker(load_broker_config(texts), clock=self._clock, given=texts)
        await self._start_one(self._broker)

    async def _start_children(self) -> None:
        self._settings_folder = tempfile.TemporaryDirectory(prefix="skylark-")
        for index, name in enumerate(self._options.broker_names):
            texts = self._options.broker_settings(index, self.namesrv)
            load_broker_config(texts)  # what is wrong with them is said here, and once
            self._children.append(
                BrokerProcess(
                    name,
                    texts,
                    Path(self._settings_folder.name),
                    self._clock,
                    arguments=self._child_arguments,
                )
            )
        try:
            async with asyncio.TaskGroup() as group:
                for child in self._children:
                    group.create_task(self._start_one(child))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the others are consequences, or alike

    async def _registered(self) -> None:
        wanted = set(self._options.broker_names)
        try:
            async with self._clock.timeout(REGISTERED_TIMEOUT_S):
                while wanted - self._name_server.tables.cluster_info().broker_addr_table.keys():
                    await self._clock.sleep(_LOOK_INTERVAL_S)
        except TimeoutError as error:
            raise SkylarkError(
                f"not all brokers have registered with the name server at {self.namesrv}"
                f" within {REGISTERED_TIMEOUT_S:.0f} s"
            ) from error

    async def watch(self) -> None:
        """Wait for the end of a broker that should not have ended; raises BrokerDiedError."""
        if not self._children:
            await asyncio.get_running_loop().create_future()  # it ends with this process
        ends = [asyncio.ensure_future(child.died()) for child in self._children]
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
        raise done.pop().result()

    async def stop(self) -> None:
        """Stop the brokers, then the name server, each in order; raises the first error."""
        started, self._started = self._started, []
        ends = await asyncio.gather(
            *(broker.stop() for broker in started[1:]), return_exceptions=True
        )
        for server in started[:1]:
            await server.stop()
        if self._settings_folder is not None:
            self._settings_folder.cleanup()
            self._settings_folder = None
        for end in ends:
            if end is not None:
                raise end
