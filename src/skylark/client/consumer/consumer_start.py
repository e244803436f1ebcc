"""The start of a consumer: waits for a name server.

Containers start in any order, so a consumer may be there before its name server. Then it tries
again after 0.1 s to 2 s, up to ``start_timeout``, or without limit (``run()``), and logs that it
waits once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from skylark.client.core.client_instance import ClientInstance
from skylark.core.backoff import Backoff, Outage
from skylark.core.errors import ClientStateError, NoNameServerError

logger = logging.getLogger(__name__)

RETRY: Final = Backoff(first_s=0.1, most_s=2.0)


async def fetch_routes(
    instance: ClientInstance,
    group: str,
    topics: Iterable[str],
    timeout_s: float,
    ended: asyncio.Event | None = None,
) -> None:
    """Fetch the routes of these topics, as brokers know them; waits for a name server.

    Raises NoNameServerError when the time is over, and ClientStateError if ``ended`` is set while
    it waits.
    """
    clock, ended = instance.runtime.clock, ended or asyncio.Event()
    outage = Outage(RETRY, clock, timeout_s)
    for topic in topics:
        while True:
            try:
                await instance.refresh_route(topic)
                break
            except NoNameServerError as error:
                pause_s = outage.next_pause_s()
                if pause_s is None:
                    raise
                if outage.failures == 1:
                    logger.warning("consumer %s waits for a name server: %s", group, error)
            try:
                await clock.wait_for(ended.wait(), pause_s)
            except TimeoutError:
                continue
            raise ClientStateError(f"consumer {group} ended before a name server was there")
