"""Which event loop a thread of ours runs: uvloop's where it is installed, else asyncio's own."""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new loop of the quicker kind."""
    try:
        import uvloop
    except ImportError:  # it does not exist for every platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
