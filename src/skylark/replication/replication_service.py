"""The replication service of a broker: one interface for masters and slaves.

::

    master   start(host, port)     listen for slaves
    slave    start(...), then set_master(ha address, address) when registration has found it
    both     follow(settings), runtime_info, log_check, status; stop

Before a slave follows its master, it compares the logs by a request to the master's ordinary port;
``call`` sends it (see :mod:`skylark.replication.log_check`). A slave that knows only
``haMasterAddress``, which is an HA port, waits until registration returns the ordinary address.
Without name servers there is no registration: then it follows without a log check, as it follows an
Apache master.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from skylark.core.clock import Clock
from skylark.net.transport import Network
from skylark.replication.config import ReplicationConfig
from skylark.replication.ha_client import HaClient
from skylark.replication.ha_server import HaServer
from skylark.replication.log_check import answer_log_check, ask_log_check
from skylark.replication.slave import SlavePhase, TailAnswer
from skylark.store.config import BrokerRole
from skylark.store.message_store import MessageStore
from skylark.wire.bodies.ha_body import HARuntimeInfo
from skylark.wire.command import Command

#: Sends a request to an ordinary address and returns the response, with any code.
CallAddress = Callable[[str, Command], Awaitable[Command]]


class ReplicationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """State of replication, for metrics and logs; what does not apply to a role is 0."""

    is_master: bool
    slave_count: int = 0
    in_sync_count: int = 0  #: slaves that are in sync
    behind_bytes: int = 0  #: master: lag of the slave that is furthest behind
    waiting_count: int = 0  #: puts that wait for slaves
    timeout_count: int = 0  #: puts that no slave acknowledged in time
    phase: str | None = None  #: slave: what it does
    divergence: str | None = None  #: slave: why it has stopped following

    @property
    def is_following(self) -> bool:
        """Whether a slave gets the log of its master."""
        return self.phase == SlavePhase.FOLLOWING.name

    @property
    def is_cut_off(self) -> bool:
        """Whether a slave that knows its master has no connection to it."""
        return self.phase in (SlavePhase.WAITING.name, SlavePhase.CONNECTING.name)


class Replication:
    """The master's or the slave's part; the store is opened before :meth:`start`."""

    def __init__(
        self,
        store: MessageStore,
        config: ReplicationConfig,
        network: Network,
        clock: Clock,
        *,
        call: CallAddress,
        has_name_servers: Callable[[], bool],
    ) -> None:
        """``has_name_servers``: whether registration can find the master of a slave."""
        self._store = store
        self._config = config
        self._network = network
        self._clock = clock
        self._call = call
        self._has_name_servers = has_name_servers
        self._master_address: str | None = None
        self.server: HaServer | None = None
        self.client: HaClient | None = None

    async def start(self, host: str, port: int) -> None:
        """Listen as a master; as a slave, follow ``haMasterAddress`` or wait for a master."""
        if self._store.config.broker_role is BrokerRole.SLAVE:
            self.client = HaClient(
                self._store, self._config, self._network, self._clock, check_tail=self._check_tail
            )
            self.client.start(self._config.ha_master_address)
        else:
            self.server = HaServer(self._store, self._config, self._network, self._clock)
            await self.server.start(host, port)

    def follow(self, config: ReplicationConfig) -> None:
        """Apply changed settings; those that are read at start must not have changed."""
        self._config = config
        if self.server is not None:
            self.server.follow(config)
        if self.client is not None:
            self.client.follow(config)

    def stop_listening(self) -> None:
        """Accept no more slaves: the first step of a stop, which may take a while."""
        if self.server is not None:
            self.server.stop_listening()

    def release(self) -> None:
        """Release all puts that wait for slaves, and let no further one wait."""
        if self.server is not None and self.server.waiters is not None:
            self.server.waiters.stop()

    async def stop(self) -> None:
        """Close all connections, and release the puts that wait for slaves."""
        if self.server is not None:
            await self.server.stop()
        if self.client is not None:
            await self.client.stop()

    def set_master(self, ha_address: str | None, address: str | None) -> None:
        """Set the registered master; ``haMasterAddress`` takes precedence over ``ha_address``."""
        self._master_address = address
        if self.client is not None:
            self.client.set_master(self._config.ha_master_address or ha_address)

    async def _check_tail(self, log_offset: int, size: int, crc: int) -> TailAnswer:
        address = self._master_address
        if address is None:
            return TailAnswer.UNREACHABLE if self._has_name_servers() else TailAnswer.UNSUPPORTED

        async def call(request: Command) -> Command:
            return await self._call(address, request)

        return await ask_log_check(call, log_offset, size, crc)

    # ---- queries ---------------------------------------------------------------------------------

    def log_check(self, request: Command) -> Command:
        """The response to LOG_CHECK."""
        return answer_log_check(self._store.log.files, request)

    def runtime_info(self) -> HARuntimeInfo:
        """The response body of GET_BROKER_HA_STATUS."""
        if self.server is not None:
            return self.server.runtime_info()
        if self.client is not None:
            return self.client.runtime_info()
        return HARuntimeInfo(master=self._store.config.broker_role is not BrokerRole.SLAVE)

    @property
    def status(self) -> ReplicationStatus:
        if self.client is not None:
            slave = self.client.slave
            return ReplicationStatus(
                is_master=False, phase=slave.phase.name, divergence=slave.divergence
            )
        if self.server is None:
            return ReplicationStatus(is_master=True)
        master, waiters = self.server.master, self.server.waiters
        end = self._store.log.max_offset
        return ReplicationStatus(
            is_master=True,
            slave_count=len(master.slaves),
            in_sync_count=master.in_sync_count,
            behind_bytes=max((end - max(0, it.ack_offset) for it in master.slaves), default=0),
            waiting_count=0 if waiters is None else waiters.waiting_count,
            timeout_count=0 if waiters is None else waiters.timeout_count,
        )
