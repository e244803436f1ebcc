"""``skylark up``: name server and brokers in the foreground, from one command.

On stdout there is one line, ``ready namesrv=HOST:PORT broker-a=HOST:PORT ...``, once clients can
work. Log lines go to stderr. SIGTERM and the interrupt key stop everything in order, with exit code
0; a broker in a process of its own that dies is started again.
"""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skylark.cli.context import CliContext
from skylark.cli.serving import run_server

if TYPE_CHECKING:
    import asyncio

    from skylark.launch.cluster import Cluster
    from skylark.launch.plan import LaunchOptions

PORT = click.IntRange(0, 65_535)


@click.command(
    "up",
    epilog="Example: skylark up --ephemeral --topic orders:4 --set maxMessageSize=1048576",
)
@click.option(
    "--data",
    "--store",
    "data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for all data.  [default: skylark in the user's data folder]",
)
@click.option(
    "--ephemeral", is_flag=True, help="Keep the data in a temporary folder, and only until the end."
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--namesrv-port",
    type=PORT,
    default=9876,
    show_default=True,
    help="Port of the name server; 0 draws a free one.",
)
@click.option(
    "--broker-port",
    "--port",
    "broker_port",
    type=PORT,
    default=10_911,
    show_default=True,
    help="Port of the first broker, 20 more for each further one; 0 draws free ones.",
)
@click.option(
    "--brokers",
    "broker_count",
    type=click.IntRange(1, 26),
    default=1,
    show_default=True,
    help="Number of brokers; several get a process each.",
)
@click.option(
    "--replicas",
    "replica_count",
    type=click.IntRange(0, 4),
    default=0,
    show_default=True,
    help="Slaves of each broker, in processes of their own, on ports 4, 8, ... above it.",
)
@click.option(
    "--sync",
    is_flag=True,
    help="Acknowledge a message when all replicas have it; with --replicas.",
)
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="A setting of the brokers, by its Java name; may be repeated.",
)
@click.option(
    "--topic",
    "topics",
    metavar="NAME[:QUEUES]",
    multiple=True,
    help="A topic to create, if it does not exist; may be repeated.",
)
@click.pass_obj
def command(
    context: CliContext,
    data: Path | None,
    ephemeral: bool,
    host: str,
    namesrv_port: int,
    broker_port: int,
    broker_count: int,
    replica_count: int,
    sync: bool,
    settings: tuple[str, ...],
    topics: tuple[str, ...],
) -> None:
    """Run a name server and brokers."""
    import tempfile

    from skylark.launch.plan import LaunchOptions

    if ephemeral and data is not None:
        raise click.UsageError("--ephemeral has no folder to keep: leave out --data")
    wanted = [_topic(text) for text in topics]
    with contextlib.ExitStack() as stack:
        if ephemeral:
            data = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skylark-")))
        options = LaunchOptions(
            data=(data or user_data_folder()).absolute(),
            ephemeral=ephemeral,
            host=host,
            namesrv_port=namesrv_port,
            broker_port=broker_port,
            broker_count=broker_count,
            replica_count=replica_count,
            sync=sync,
            settings=dict(map(_setting, settings)),
        )
        context.configure_logging("info")
        run_server(partial(_serve, options, wanted, _log_arguments(context)))


async def _serve(
    options: LaunchOptions,
    topics: list[tuple[str, int]],
    child_arguments: list[str],
    stop: asyncio.Event,
) -> None:
    import asyncio

    from skylark.launch.cluster import Cluster

    cluster = Cluster(options, child_arguments=child_arguments)
    work = asyncio.create_task(_work(cluster, topics))
    stopping = asyncio.create_task(stop.wait())
    try:
        await asyncio.wait({work, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        else:
            work.cancel()  # also while it still starts
            await asyncio.wait({work})
    finally:
        stopping.cancel()
        await cluster.stop()


async def _work(cluster: Cluster, topics: list[tuple[str, int]]) -> None:
    import asyncio
    import logging

    from skylark.admin.admin import Admin
    from skylark.client.options import ClientOptions
    from skylark.spark.resolver import resolve_forever

    await cluster.start()
    if topics:
        async with Admin(ClientOptions(namesrv=str(cluster.namesrv))) as admin:
            for name, queue_count in topics:
                await admin.topics.create(name, queue_count=queue_count)
    servers = {"namesrv": cluster.namesrv, **cluster.brokers}
    click.echo(f"ready {' '.join(f'{name}={address}' for name, address in servers.items())}")
    # The supervisor says by itself who died: that a client of ours misses it is no news.
    logging.getLogger("skylark.client").setLevel(logging.ERROR)
    async with asyncio.TaskGroup() as group:
        group.create_task(resolve_forever(str(cluster.namesrv)))
        group.create_task(cluster.watch())


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--set")
    return key.strip(), value


def _topic(text: str) -> tuple[str, int]:
    from skylark.admin.topics import DEFAULT_QUEUE_COUNT

    name, colon, count = text.partition(":")
    if not colon:
        return name, DEFAULT_QUEUE_COUNT
    if not count.isascii() or not count.isdigit() or int(count) < 1:
        raise click.BadParameter(f"{text!r} is not NAME[:QUEUES]", param_hint="--topic")
    return name, int(count)


def user_data_folder() -> Path:
    import os

    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "skylark"


def _log_arguments(context: CliContext) -> list[str]:
    level = [] if context.log_level is None else ["--log-level", context.log_level]
    return [*level, "--log-format", context.log_format]
