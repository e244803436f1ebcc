"""A protocol that notes what asyncio tells it, and polling with a deadline: for transport tests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, cast

from skylark.core.clock import LoopClock

CLOCK: Final = LoopClock()
DEADLINE_S: Final = 10.0


class Recorder(asyncio.Protocol):
    """Notes everything that asyncio tells a protocol, in order."""

    def __init__(self, *, keep_open: bool = False) -> None:
        self.events: list[str] = []
        self.received = bytearray()
        self.error: Exception | None = None
        self.keep_open = keep_open
        self.wire: asyncio.Transport = cast("asyncio.Transport", None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire = cast("asyncio.Transport", transport)
        self._note("made")

    def data_received(self, data: bytes) -> None:
        self.received += data
        self._note("data")

    def eof_received(self) -> bool:
        self._note("eof")
        return self.keep_open

    def pause_writing(self) -> None:
        self._note("pause")

    def resume_writing(self) -> None:
        self._note("resume")

    def connection_lost(self, exc: Exception | None) -> None:
        self.error = exc
        self._note("lost")

    def is_lost(self) -> bool:
        return "lost" in self.events

    def _note(self, event: str) -> None:
        if event != "data" or self.events[-1:] != ["data"]:
            self.events.append(event)


async def until(condition: Callable[[], object]) -> None:
    """Poll until ``condition()`` holds; raises TimeoutError when it never does."""
    async with CLOCK.timeout(DEADLINE_S):
        while not condition():
            await CLOCK.sleep(0.001)
