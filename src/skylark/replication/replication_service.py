"""Replication as the broker sees it: one object, whichever role the broker has.

::

    master   start(host, port)     listen for slaves
    slave    start(...), then set_master(ha address, address) whenever registration says who it is
    both     follow(settings), runtime_info, log_check, status; stop

Before the store of a slave is followed, its master is asked by an ordinary request whether the logs
agree; ``call`` sends it (see :mod:`skylark.replication.log_check`). A slave that knows its master
by ``haMasterAddress`` only, which is an HA port, waits for registration to name the ordinary one.
Without name servers nobody will: then it trusts its master, as it would trust one of Apache's.
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

#: Sends a request to an ordinary address and returns the answer, whatever its code.
CallAddress = Callable[[str, Command], Awaitable[Command]]


class ReplicationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How replication stands, for metrics and people; what does not apply to a role is 0."""

    is_master: bool
    slave_count: int = 0
    in_sync_count: int = 0  #: slaves that are in sync
    behind_bytes: int = 0  #: master: by which the farthest slave is behind
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
        """``has_name_servers``: whether there is anybody to tell a slave who its master is."""
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
        """Work by changed settings; those that are read at start must be what they were."""
        self._config = config
        if self.server is not None:
            self.server.follow(config)
        if self.client is not None:
            self.client.follow(config)

    def stop_listening(self) -> None:
        """Take no further slaves: the first step of a stop, which may take a while."""
        if self.server is not None:
            self.server.stop_listening()

    def release(self) -> None:
        """Let no put wait for slaves any longer, now or later."""
        if self.server is not None and self.server.waiters is not None:
            self.server.waiters.stop()

    async def stop(self) -> None:
        """End all links; puts that still wait for slaves are answered."""
        if self.server is not None:
            await self.server.stop()
        if self.client is not None:
            await self.client.stop()

    def set_master(self, ha_address: str | None, address: str | None) -> None:
        """Who the master is, as registration told; ``haMasterAddress`` wins over ``ha_address``."""
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

    # ---- what others ask -------------------------------------------------------------------------

    def log_check(self, request: Command) -> Command:
        """The answer to LOG_CHECK."""
        return answer_log_check(self._store.log.files, request)

    def runtime_info(self) -> HARuntimeInfo:
        """The answer to GET_BROKER_HA_STATUS."""
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
