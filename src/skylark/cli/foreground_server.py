"""Runs a server in the foreground until SIGTERM, Ctrl-C or SIGHUP stops it.

``skylark broker`` and ``skylark namesrv`` share the options here, which have Java's names.

SIGHUP (the terminal was closed) is ignored if the process was started with it ignored: by
``nohup`` or ``skylark up --detach``.

A server with a supervisor (:mod:`skylark.launch.broker_process`) prints the reason of a failure to
stdout for the supervisor, and stops when its stdin ends, because then the supervisor has ended.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    import asyncio

    from skylark.core.config import Config


config_file_option = click.option(
    "-c",
    "--configFile",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings in Java's properties format; the server saves changes there.",
)
print_config_option = click.option(
    "-p",
    "--printConfigItem",
    "print_config",
    is_flag=True,
    help="Print all settings as key=value and exit.",
)


def show_settings(config: Config) -> None:
    """Print all settings in Java's properties format."""
    from skylark.core.config import to_properties

    click.echo(to_properties(config), nl=False)


def read_settings(config_file: Path | None, path_key: str) -> tuple[dict[str, str], dict[str, str]]:
    """The settings of ``-c`` and the environment, and the variables that they may contain.

    ``path_key``: the setting that holds the path of the file.
    """
    import os

    from skylark.core.config import parse_properties

    given: dict[str, str] = {}
    if "ROCKETMQ_SERIALIZE_TYPE" in os.environ:
        given["rocketmq.serialize.type"] = os.environ["ROCKETMQ_SERIALIZE_TYPE"]
    if config_file is not None:
        given.update(parse_properties(config_file.read_bytes()))
        given[path_key] = str(config_file)
    variables = {"user.home": str(Path.home())}
    if "ROCKETMQ_HOME" in os.environ:
        variables["ROCKETMQ_HOME"] = os.environ["ROCKETMQ_HOME"]
    return given, variables


logger = logging.getLogger(__name__)


def run_server(serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    """Run ``serve`` on uvloop, or asyncio's loop; it must return soon after its event is set."""
    import asyncio
    import os

    from skylark.cli.exit_codes import error_message, exit_code
    from skylark.core.errors import TransportError
    from skylark.launch.broker_process import FAILED, SUPERVISED
    from skylark.store.owner_thread import share_interpreter

    share_interpreter()
    new_loop: Callable[[], asyncio.AbstractEventLoop] | None = None
    with contextlib.suppress(ImportError):  # uvloop does not exist for every platform
        import uvloop

        new_loop = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(_until_signal(serve))
        if not os.environ.get(SUPERVISED):
            logger.info("stopped")
    except Exception as error:
        if os.environ.get(SUPERVISED):
            click.echo(f"{FAILED}{error_message(error)}")
            raise click.exceptions.Exit(exit_code(error)) from error
        if isinstance(error, TransportError):
            # The address cannot be bound: a local failure, not an unreachable server.
            raise click.ClickException(str(error)) from error
        raise


async def run_until(work: Coroutine[Any, Any, object], stop: asyncio.Event) -> None:
    """Run ``work`` until it ends or ``stop`` is set, which cancels it; raises its error."""
    import asyncio

    task = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
    finally:
        stopping.cancel()
        task.cancel()
        await asyncio.wait({task})


async def _until_signal(serve: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> None:
    import asyncio
    import os
    import signal
    import sys

    from skylark.launch.broker_process import SUPERVISED

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, stop.set)
    if os.environ.get(SUPERVISED):

        def supervisor_ended() -> None:
            loop.remove_reader(sys.stdin.fileno())
            stop.set()

        loop.add_reader(sys.stdin.fileno(), supervisor_ended)  # the supervisor never writes to it
    await serve(stop)
