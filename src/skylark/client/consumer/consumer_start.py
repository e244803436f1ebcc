"""The start of a consumer: waits for a name server, and checks that its client id is free.

Containers start in any order, so a consumer may be there before its name server. Then it tries
again after 0.1 s to 2 s, up to ``start_timeout``, or without limit (``run()``), and logs that it
waits once.

Two processes of a group with the same ``instance_name`` on one machine have the same client id, and
each would compute the same share and consume the same queues. So a consumer with an instance name
asks a broker for the members of its group before it joins. If its id is among them, it waits as
long as a broker keeps a member without heartbeats, because it may be the id of an earlier process
of the same program, and then refuses to start. Brokers that do not show the members are not asked
twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from skylark.client.core.client_instance import ClientInstance
from skylark.client.core.client_options import DEFAULT_INSTANCE
from skylark.core.backoff import Backoff, Outage
from skylark.core.errors import (
    ClientStateError,
    NoNameServerError,
    NoRouteError,
    SkylarkError,
)

logger = logging.getLogger(__name__)

RETRY: Final = Backoff(first_s=0.1, most_s=2.0)
#: How long a broker keeps a member that sends no heartbeats, and the pause between two checks.
HEARTBEAT_EXPIRY_S: Final = 120.0
ID_CHECK_S: Final = 1.0


class ConsumerStart(msgspec.Struct, frozen=True, kw_only=True):
    """What the steps of a start have in common."""

    instance: ClientInstance
    group: str  #: as brokers know it
    timeout_s: float  #: to wait for a name server
    ended: asyncio.Event = msgspec.field(default_factory=asyncio.Event)  #: ends any wait

    async def fetch_routes(self, topics: Iterable[str]) -> None:
        """Fetch the routes of these topics, as brokers know them; waits for a name server.

        Raises NoNameServerError when the time is over, and ClientStateError if ``ended`` is set.
        """
        outage = Outage(RETRY, self.instance.runtime.clock, self.timeout_s)
        for topic in topics:
            while True:
                try:
                    await self.instance.refresh_route(topic)
                    break
                except NoNameServerError as error:
                    pause_s = outage.next_pause_s()
                    if pause_s is None:
                        raise
                    if outage.failures == 1:
                        logger.warning("consumer %s waits for a name server: %s", self.group, error)
                await self._pause(pause_s)

    async def require_free_id(self, topics: Collection[str]) -> None:
        """Raise ClientStateError if another process has our client id in this group."""
        if self.instance.options.instance_name == DEFAULT_INSTANCE:
            return  # then the id has a random number
        if self.group in self.instance.members.consumers:
            return  # a consumer of this process has it: the registration raises
        client_id, clock = self.instance.client_id, self.instance.runtime.clock
        deadline, waits = clock.monotonic() + HEARTBEAT_EXPIRY_S, False
        run_on_control = self.instance.runtime.control.run
        while (other := await run_on_control(self._find_other(topics))) is not None:
            if clock.monotonic() >= deadline:
                raise ClientStateError(
                    f"the client id {client_id} is in use by {other}, so both would consume the"
                    f" same queues of group {self.group}",
                    hint="give each process another instance_name, or leave it out",
                )
            if not waits:
                waits = True
                logger.warning(
                    "the client id %s is in use by %s: consumer %s waits until it ends, up to %d s",
                    client_id, other, self.group, HEARTBEAT_EXPIRY_S,
                )  # fmt: skip
            await self._pause(ID_CHECK_S)

    async def _find_other(self, topics: Collection[str]) -> str | None:
        """The address of a member with our client id; None if there is none, or no answer.

        On the control loop, to which the connections belong that it uses.
        """
        link = self.instance.control_link
        for topic in topics:
            try:
                address = await link.lookup.broker_of_topic(topic)
                found = await link.calls.consumer_connection(address, self.group)
            except NoRouteError:
                continue
            except SkylarkError as error:  # such as a group without members
                logger.debug("cannot get the members of %s: %s", self.group, error)
                return None
            for member in found.connection_set:
                if member.client_id == self.instance.client_id:
                    return member.client_addr
            return None
        return None

    async def _pause(self, pause_s: float) -> None:
        try:
            await self.instance.runtime.clock.wait_for(self.ended.wait(), pause_s)
        except TimeoutError:
            return
        raise ClientStateError(f"consumer {self.group} ended before it had started")
