"""Ends the pops that wait at brokers when their consumer stops.

A broker holds a pop until there is a message. A consumer that stops must end such requests before
it gives messages back: they would take these messages again, or new ones, and hide them from the
other consumers for the whole invisible time. RocketMQ has no request for that. A broker drops a
pop that waits when its connection ends, so the connections are closed.

If other clients use the connections too, that would disturb them. The requests then run on, owned
by the connections, which outlive the consumer: what they bring, within the 15 s for which a broker
holds a pop, is given back at once.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any, Final

from skylark.client.consumer.pop.pop_source import PopContext

#: How long a stop waits for requests that are just being answered,
ANSWERED_S: Final = 0.1
#: and for acks and changes of invisible times, before it closes their connections.
FLUSHED_S: Final = 1.0


async def end_waiting_pops(context: PopContext, pops: Mapping[asyncio.Task[Any], str]) -> None:
    """End tasks that pop; ``pops`` are by the name of their broker.

    The tasks take care of what they receive after this call began.
    """
    link, clock = context.link, context.link.clock
    waiting = await _still_running(context, pops)
    if not waiting:
        return
    if link.is_shared:
        for task in waiting:
            link.adopt(task)
        return
    broker_names = {pops[task] for task in waiting}  # before tasks leave the mapping at their end
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    with contextlib.suppress(TimeoutError):
        async with clock.timeout(FLUSHED_S):
            await context.receipts.flush()
    for name in broker_names:
        address = link.lookup.routes.master(name)
        if address is not None:
            link.disconnect(address)


async def _still_running(
    context: PopContext, pops: Mapping[asyncio.Task[Any], str]
) -> set[asyncio.Task[Any]]:
    """The tasks that have not ended, after a moment for those that are about to."""
    running = {task for task in pops if not task.done()}
    if running:
        with contextlib.suppress(TimeoutError):
            async with context.link.clock.timeout(ANSWERED_S):
                await asyncio.wait(running)
    return {task for task in running if not task.done()}
