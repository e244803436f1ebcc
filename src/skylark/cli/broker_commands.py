"""``skylark broker``: runs a broker in the foreground, with the flags of Java's ``mqbroker``.

The command prints one line to stdout, ``ready NAME=HOST:PORT``, as soon as the broker accepts
requests and has registered with the name servers that can be reached; a parent process can wait
for this line. Log lines go to stderr. SIGTERM and Ctrl-C stop the broker with exit code 0: it
unregisters, completes the requests in progress, and flushes everything to disk.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import given_namesrv
from skylark.cli.foreground_server import (
    config_file_option,
    print_config_option,
    read_settings,
    run_server,
    run_until,
    show_settings,
)

if TYPE_CHECKING:
    import asyncio

    from skylark.broker.config import BrokerConfig


@click.command("broker")
@config_file_option
@click.option(
    "-n",
    "--namesrvAddr",
    "namesrv_addr",
    help="Name servers, as host:port joined by ';'; overrides the file.",
)
@print_config_option
@click.pass_obj
def command(
    context: CliContext, config_file: Path | None, namesrv_addr: str | None, print_config: bool
) -> None:
    """Run a broker."""
    config, given = _load(config_file, namesrv_addr or given_namesrv())
    if print_config:
        show_settings(config)
        return
    context.configure_logging("info")
    run_server(partial(_serve, config, given))


def _load(
    config_file: Path | None, namesrv_addr: str | None
) -> tuple[BrokerConfig, dict[str, str]]:
    """The settings, and the properties from which they were read."""
    import os
    import socket

    from skylark.broker.config import load_broker_config

    given, variables = read_settings(config_file, "brokerConfigPath")
    if namesrv_addr is not None:
        given["namesrvAddr"] = namesrv_addr
    variables["host.name"] = socket.gethostname()
    if "NAMESRV_ADDR" in os.environ:
        variables["NAMESRV_ADDR"] = os.environ["NAMESRV_ADDR"]
    return load_broker_config(given, variables=variables), given


async def _serve(config: BrokerConfig, given: dict[str, str], stop: asyncio.Event) -> None:
    from skylark.broker.app import Broker

    broker = Broker(config, given=given)
    await broker.start()
    await run_until(broker.ready(), stop)
    if not stop.is_set():
        click.echo(f"ready {config.broker_name}={broker.address}")
        await stop.wait()
    await broker.stop()
