"""Waiting for a task that several share, or that must outlive whoever waits for it."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from skylark.core.errors import ClientStateError

T = TypeVar("T")


async def join(task: asyncio.Future[T]) -> T:
    """The result of ``task``, which goes on if the caller is cancelled.

    If the task itself is cancelled, because its client stops, the caller gets ClientStateError: it
    was not the one to be cancelled.
    """
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        caller = asyncio.current_task()
        if task.cancelled() and caller is not None and not caller.cancelling():
            raise ClientStateError("the client was stopped meanwhile") from None
        raise
