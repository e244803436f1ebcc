"""Creates event loops: uvloop's where it is installed, else asyncio's."""

from __future__ import annotations

import asyncio


def new_event_loop() -> asyncio.AbstractEventLoop:
    """A new event loop of the faster kind."""
    try:
        import uvloop
    except ImportError:  # uvloop does not support every platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()
