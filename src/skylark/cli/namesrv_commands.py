"""``skylark namesrv``: runs a name server in the foreground, with the flags of ``mqnamesrv``.

The command prints one line to stdout, ``ready namesrv=HOST:PORT``, as soon as the server accepts
requests; a parent process can wait for this line. Log lines go to stderr. SIGTERM and Ctrl-C stop
the server with exit code 0.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.foreground_server import (
    config_file_option,
    print_config_option,
    read_settings,
    run_server,
    show_settings,
)

if TYPE_CHECKING:
    import asyncio

    from skylark.namesrv.config import NamesrvConfig


@click.command("namesrv")
@config_file_option
@print_config_option
@click.option(
    "-n", "--namesrvAddr", hidden=True, help="Accepted and ignored, as by Java's mqnamesrv."
)
@click.pass_obj
def command(
    context: CliContext, config_file: Path | None, print_config: bool, namesrvaddr: str | None
) -> None:
    """Run a name server."""
    config = _load(config_file)
    if print_config:
        show_settings(config)
        return
    context.configure_logging("info")
    run_server(partial(_serve, config))


def _load(config_file: Path | None) -> NamesrvConfig:
    from skylark.core.config import load
    from skylark.namesrv.config import NamesrvConfig

    properties, variables = read_settings(config_file, "configStorePath")
    return load(NamesrvConfig, properties, variables=variables)


async def _serve(config: NamesrvConfig, stop: asyncio.Event) -> None:
    from skylark.namesrv.app import NameServer

    server = NameServer(config)
    await server.start()
    click.echo(f"ready namesrv={server.address}")
    await stop.wait()
    await server.stop()
