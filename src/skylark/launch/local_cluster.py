"""The supervisor of ``skylark up``: starts, watches and stops a name server and brokers.

::

    cluster = Cluster(LaunchOptions(data=folder))
    await cluster.start()
    print(cluster.namesrv, cluster.brokers)      # 127.0.0.1:9876 {'broker-a': 127.0.0.1:10911}
    await cluster.watch()                        # until cancelled
    await cluster.stop()

A single broker shares the process and the event loop with the name server. Several brokers get a
process each, because a broker uses one core; so do a broker and its replicas, which must survive
each other. The name server stays in the supervisor. Masters start before their slaves. When
``start`` returns, the name server knows all brokers, so clients find them.

**If a broker dies**, :meth:`Cluster.watch` starts it again and logs its death, the reason and the
restart; until then clients use the others. The first attempt is after a second. If the broker dies
again within a minute, the delay doubles, up to a minute. During the start of the cluster there are
no retries: a failure then is caused by the settings.

If the supervisor itself is killed (SIGKILL), its children notice it and stop.
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
from skylark.core.backoff import Backoff
from skylark.core.clock import Clock, LoopClock
from skylark.core.config import load
from skylark.core.errors import SkylarkError, TransportError
from skylark.core.lifecycle import Component
from skylark.core.names import Address
from skylark.launch.broker_process import BrokerDiedError, BrokerProcess
from skylark.launch.launch_plan import FRIENDLY, BrokerPlace, LaunchOptions, within_reach
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig

logger = logging.getLogger(__name__)

#: How long the registration of brokers that are ready may take.
REGISTERED_TIMEOUT_S: Final = 30.0
_LOOK_INTERVAL_S: Final = 0.01
#: Delay before a broker that has died is started again.
RESTART: Final = Backoff(first_s=1.0, most_s=60.0)
#: A broker that runs for this long has recovered; its failures count from zero again.
STEADY_S: Final = 60.0


class Cluster:
    """The servers of ``skylark up``; starts and stops once."""

    def __init__(
        self,
        options: LaunchOptions,
        *,
        clock: Clock | None = None,
        child_arguments: Sequence[str] = (),
    ) -> None:
        """``child_arguments``: global options of ``skylark`` for brokers in child processes."""
        self._options = options
        self._clock = clock or LoopClock()
        self._child_arguments = child_arguments
        # With an explicit brokerIP1 the name server returns the announced addresses unchanged.
        own = () if "brokerIP1" in options.settings else options.broker_names
        self._name_server = NameServer(
            load(NamesrvConfig, options.namesrv_settings()), own_brokers=own
        )
        self._broker: Broker | None = None
        self._children: list[BrokerProcess] = []
        self._started: list[Component] = []
        self._settings_folder: tempfile.TemporaryDirectory[str] | None = None

    @property
    def namesrv(self) -> Address:
        """The address of the name server, for connections from this machine."""
        return within_reach(self._name_server.address)

    @property
    def brokers(self) -> dict[str, Address]:
        """Name -> address of the brokers that became ready; a dead one stays until its restart."""
        if self._broker is not None:
            return {self._options.broker_names[0]: within_reach(self._broker.address)}
        return {
            child.name: within_reach(child.address)
            for child in self._children
            if child.address is not None
        }

    async def start(self) -> None:
        """Start all servers; raises ConfigError, StoreError, TransportError, BrokerDiedError."""
        changed = (f"{k}={v}" for k, v in FRIENDLY.items() if k not in self._options.settings)
        logger.info("settings other than Java's: %s", ", ".join(changed) or "none")
        try:
            await self._start_one(self._name_server, "--namesrv-port")
            if self._options.broker_count == 1 and not self._options.replica_count:
                await self._start_within()
            else:
                await self._start_children()
            await self._registered()
        except BaseException:
            await self.stop()
            raise

    async def _start_one(self, component: Component, port_option: str) -> None:
        # Added before the start, so that a cancelled start is stopped too.
        self._started.append(component)
        try:
            await component.start()
        except (TransportError, BrokerDiedError) as error:
            raise type(error)(_by_options(str(error), port_option)) from error

    @property
    def _broker_ports(self) -> str:
        metrics = "" if self._options.metrics_port is None else " or --metrics-port"
        return f"--broker-port{metrics}"

    async def _start_within(self) -> None:
        (place,) = self._options.masters
        texts = self._options.broker_settings(place, self.namesrv)
        self._broker = Broker(load_broker_config(texts), clock=self._clock, given=texts)
        await self._start_one(self._broker, self._broker_ports)

    async def _start_children(self) -> None:
        self._settings_folder = tempfile.TemporaryDirectory(prefix="skylark-")
        folder = Path(self._settings_folder.name)
        masters = [self._child(place, folder) for place in self._options.masters]
        slaves = [self._child(place, folder) for place in self._options.slaves]
        self._children = [*masters, *slaves]
        try:
            for children in (masters, slaves):
                async with asyncio.TaskGroup() as group:
                    for child in children:
                        group.create_task(self._start_one(child, self._broker_ports))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None  # the others are consequences or the same

    def _child(self, place: BrokerPlace, folder: Path) -> BrokerProcess:
        texts = self._options.broker_settings(place, self.namesrv)
        load_broker_config(texts)  # raises for invalid settings once, not in every child
        return BrokerProcess(
            place.name, texts, folder, self._clock, arguments=self._child_arguments
        )

    async def _registered(self) -> None:
        options = self._options
        wanted = {(it.broker_name, it.replica) for it in (*options.masters, *options.slaves)}
        try:
            async with self._clock.timeout(REGISTERED_TIMEOUT_S):
                while wanted - self._known_brokers():
                    await self._clock.sleep(_LOOK_INTERVAL_S)
        except TimeoutError as error:
            raise SkylarkError(
                f"not all brokers have registered with the name server at {self.namesrv}"
                f" within {REGISTERED_TIMEOUT_S:.0f} s"
            ) from error

    def _known_brokers(self) -> set[tuple[str, int]]:
        table = self._name_server.tables.cluster_info().broker_addr_table
        return {(name, number) for name, data in table.items() for number in data.broker_addrs}

    async def watch(self) -> None:
        """Restart brokers that die, until cancelled; cancel it before ``stop``."""
        if not self._children:
            await (
                asyncio.get_running_loop().create_future()
            )  # a broker in this process ends with it
        async with asyncio.TaskGroup() as group:
            for child in self._children:
                group.create_task(self._keep_running(child))

    async def _keep_running(self, child: BrokerProcess) -> None:
        failures = 0
        while True:
            began_at = self._clock.monotonic()
            death = await child.died()
            if self._clock.monotonic() - began_at > STEADY_S:
                failures = 0
            failures += 1
            delay_s = RESTART.pause_s(failures)
            logger.error("%s; starting it again in %.0f s", death.message, delay_s)
            await self._clock.sleep(delay_s)
            try:
                await child.start()
            except BrokerDiedError:
                continue  # died() reports it
            except OSError as error:  # no memory or file handles: retry later
                logger.error("cannot start %s: %s", child.name, error)  # noqa: TRY400
                continue
            logger.warning("started %s again, on %s", child.name, child.address)

    async def stop(self) -> None:
        """Stop the brokers, then the name server; raises the first error."""
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


def _by_options(text: str, port_option: str) -> str:
    """An error of a server about a setting, reworded for the option that determines it."""
    return (
        text.replace("set another listenPort", f"choose another {port_option}")
        .replace("listenPort", port_option)
        .replace("bindAddress", "--host")
    )
