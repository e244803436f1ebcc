"""Run a server in the foreground until SIGTERM or the interrupt key asks it to stop."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import asyncio


def run_server(serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run ``serve``, which ends soon after its event is set, on the fastest loop there is."""
    import asyncio

    from skylark.core.errors import TransportError
    from skylark.store.scheduling import share_interpreter

    share_interpreter()
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):  # uvloop does not exist for every platform
        import uvloop

        new_loop = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_until_signal(serve))
    except TransportError as error:
        # The address cannot be listened on: that is a failure here, not an unreachable server.
        raise click.ClickException(str(error)) from error


async def _until_signal(serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    import asyncio
    import signal

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await serve(stop)
