"""Liveness of brokers: removes silent ones, those that unregister, and those that disconnect.

:class:`~skylark.namesrv.routes.RouteTables` decides; this module runs it: a timer scans for silent
brokers (first after 5 s, then every ``scanNotActiveBrokerInterval``), queued removals are done
together at the end of the loop turn, and one-way notices (905) of a changed smallest broker id are
sent to the brokers' ports, with a timeout of 300 ms each, in the background.

Silence is measured on the monotonic clock: a step of the wall clock must not expire all brokers.

Counterpart of Java's ``BrokerHousekeepingService`` and the scheduled scan of ``NamesrvController``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from skylark.core.clock import Clock, TimerHandle
from skylark.core.errors import SkylarkError
from skylark.core.lifecycle import LifecycleError, Tasks
from skylark.namesrv.broker_registration import MinBrokerChanged
from skylark.namesrv.config import NamesrvConfig
from skylark.namesrv.routes import RouteTables
from skylark.net.client import RemotingClient
from skylark.net.connection import Connection
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fields import encode_ext
from skylark.wire.headers.route import NotifyMinBrokerIdChangeRequestHeader

logger = logging.getLogger(__name__)

FIRST_SCAN_S: Final = 5.0
NOTICE_TIMEOUT_S: Final = 0.3
NOTICE_COUNT_MAX: Final = 1_000


class Liveness:
    """Expires brokers and sends notices; starts and stops with the name server."""

    def __init__(
        self,
        tables: RouteTables,
        config: NamesrvConfig,
        clock: Clock,
        client: RemotingClient,
    ) -> None:
        self._tables = tables
        self._interval_s = config.scan_not_active_broker_interval / 1000
        self._clock = clock
        self._client = client
        self._timer: TimerHandle | None = None
        self._drain: asyncio.Handle | None = None
        self._notices = Tasks("notices of the name server", limit=NOTICE_COUNT_MAX)

    async def start(self) -> None:
        self._timer = self._clock.call_later(FIRST_SCAN_S, self._scan)

    async def stop(self) -> None:
        for handle in (self._timer, self._drain):
            if handle is not None:
                handle.cancel()
        self._timer = self._drain = None
        await self._notices.cancel_and_wait()

    def connection_closed(self, connection: Connection, _error: Exception | None) -> None:
        """Remove the brokers of a connection that has ended."""
        self._tables.connection_closed(connection)
        self.drain_soon()

    def drain_soon(self) -> None:
        """Do the queued removals at the end of this turn of the loop."""
        if self._tables.removal_count and self._drain is None and self._timer is not None:
            self._drain = asyncio.get_running_loop().call_soon(self._drain_now)

    def notify(self, notices: Iterable[MinBrokerChanged]) -> None:
        """Send notices; failures are only logged, because brokers find out later anyway."""
        for notice in notices:
            logger.info(
                "the smallest broker id is now %d at %s; notifying %s",
                notice.min_broker_id,
                notice.min_broker_addr,
                ", ".join(notice.recipients),
            )
            for address in notice.recipients:
                try:
                    self._notices.spawn(self._send(address, notice), name=address)
                except LifecycleError as error:
                    logger.warning("cannot notify %s: %s", address, error)

    def _scan(self) -> None:
        for connection in self._tables.expire(self._clock.steady_ms()):
            assert isinstance(connection, Connection)
            connection.close()
        self.drain_soon()
        self._timer = self._clock.call_later(self._interval_s, self._scan)

    def _drain_now(self) -> None:
        self._drain = None
        self.notify(self._tables.drain_removals())

    async def _send(self, address: str, notice: MinBrokerChanged) -> None:
        header = NotifyMinBrokerIdChangeRequestHeader(
            min_broker_id=notice.min_broker_id,
            min_broker_addr=notice.min_broker_addr,
            offline_broker_addr=notice.offline_broker_addr,
            ha_broker_addr=notice.ha_broker_addr,
        )
        request = Command(code=RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, ext=encode_ext(header))
        try:
            await self._client.oneway(address, request, NOTICE_TIMEOUT_S)
        except SkylarkError as error:
            logger.warning("cannot notify %s of the new smallest broker id: %s", address, error)
