"""``skylark up``: runs a name server and brokers, in the foreground or in the background.

The command prints one line to stdout, ``ready namesrv=HOST:PORT broker-a=HOST:PORT ...``, as soon
as clients can connect. Notes and log lines go to stderr. SIGTERM and Ctrl-C stop all servers with
exit code 0. A broker in its own process is started again if it dies.

With ``--detach`` the command ends when the cluster is ready, or with the message and the exit code
of the error that prevented it; log lines go to ``up.log`` in the data folder. ``skylark down``
stops the cluster.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import TOPIC, key_value
from skylark.cli.foreground_server import run_server, run_until

if TYPE_CHECKING:
    import asyncio

    from skylark.launch.launch_plan import LaunchOptions
    from skylark.launch.local_cluster import Cluster

PORT = click.IntRange(0, 65_535)


@click.command(
    "up",
    epilog="Examples: skylark up --ephemeral --topic orders:4 --set maxMessageSize=1048576;"
    " skylark up --detach --brokers 2 --metrics-port 5557",
)
@click.option(
    "--data",
    "--store",
    "data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data folder.  [default: skylark in the user's data folder]",
)
@click.option("--ephemeral", is_flag=True, help="Use a temporary data folder, deleted at the end.")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option(
    "--namesrv-port", type=PORT, default=9876, help="Port of the name server; 0 chooses a free one."
)
@click.option(
    "--broker-port",
    "--port",
    "broker_port",
    type=PORT,
    default=10_911,
    help="Port of the first broker, plus 20 for each further one; 0 chooses free ones.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(1, 65_535),
    help="Serve Prometheus metrics: port of the first broker, plus 1 for each further one.",
)
@click.option(
    "--brokers",
    "broker_count",
    type=click.IntRange(1, 26),
    default=1,
    help="Number of brokers; more than one run in a process each.",
)
@click.option(
    "--replicas",
    "replica_count",
    type=click.IntRange(0, 4),
    default=0,
    help="Slaves per broker, in a process each, on ports 4, 8, ... above its own.",
)
@click.option(
    "--sync",
    is_flag=True,
    help="Acknowledge messages after all replicas have them; needs --replicas.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Broker settings, a file in Java's properties format.",
)
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    help="Broker setting by its Java name; overrides --config; repeatable.",
)
@click.option(
    "--topic",
    "topics",
    metavar="NAME[:QUEUES]",
    multiple=True,
    help="Topic to create if it does not exist; repeatable.",
)
@click.option(
    "--print-config",
    is_flag=True,
    help="Print all settings of all servers as key=value and exit.",
)
@click.option(
    "--detach",
    is_flag=True,
    help="Continue in the background when ready; stop it with skylark down.",
)
@click.pass_obj
def command(
    context: CliContext,
    /,
    data: Path | None,
    ephemeral: bool,
    config_file: Path | None,
    settings: tuple[str, ...],
    topics: tuple[str, ...],
    print_config: bool,
    detach: bool,
    **given: Any,
) -> None:
    """Run a name server and brokers on this machine."""
    import tempfile

    import msgspec

    from skylark.launch.launch_plan import LaunchOptions

    if ephemeral and data is not None:
        raise click.UsageError("--ephemeral uses a temporary folder: leave out --data")
    context.configure_logging("info")
    wanted = [_topic(text) for text in topics]
    if ephemeral:
        data = (
            Path(tempfile.gettempdir()) / "skylark-ephemeral"
        )  # replaced when the folder is created
    options = LaunchOptions(
        data=(data or user_data_folder()).absolute(),
        ephemeral=ephemeral,
        settings={
            **_file_settings(config_file),
            **dict(key_value(text, "--set") for text in settings),
        },
        **given,
    )
    if print_config:
        _print_config(context, options)
        return
    if ephemeral:
        folder = Path(tempfile.mkdtemp(prefix="skylark-"))
        options = msgspec.structs.replace(options, data=folder)
    work = partial(_run, options, wanted, _log_arguments(context), detached=detach)
    if detach:
        _detach(context, options, work)
    else:
        work(partial(_announce, context))


def _announce(context: CliContext, text: str) -> None:
    """Print a line of :func:`_serve`: the ready line to stdout, others as notes."""
    *remarks, ready = text.splitlines()
    for remark in remarks:
        context.output.info(remark)
    click.echo(ready)


def _run(
    options: LaunchOptions,
    topics: list[tuple[str, int]],
    child_arguments: list[str],
    announce: Callable[[str], None],
    *,
    detached: bool,
) -> None:
    """Lock the data folder and serve; remove an ephemeral folder at the end."""
    import os
    import shutil

    from skylark.launch.data_folder_lock import LOG_NAME, claimed

    try:
        with claimed(options.data, detached=detached):
            if detached:
                os.chdir(options.data)  # do not keep the user's folder or its file system in use
            log = options.data / LOG_NAME if detached else None
            run_server(partial(_serve, options, topics, child_arguments, announce, log))
    finally:
        if options.ephemeral:
            shutil.rmtree(options.data, ignore_errors=True)


def _detach(
    context: CliContext, options: LaunchOptions, work: Callable[[Callable[[str], None]], None]
) -> None:
    """Start the cluster in the background, wait until it is ready, and print how to stop it."""
    import shutil

    from skylark.launch.data_folder_lock import LOG_NAME, claimed
    from skylark.launch.detached_process import BackgroundError, in_background

    log_file = options.data / LOG_NAME
    try:
        with claimed(options.data):
            pass  # raises if another cluster runs, before its log is truncated
        ready = in_background(work, log_file, _failure)
    except BaseException as error:
        if options.ephemeral:  # it may have failed before it took over the folder
            shutil.rmtree(options.data, ignore_errors=True)
        if not isinstance(error, BackgroundError):
            raise
        click.echo(f"Error: {error}", err=True)
        raise click.exceptions.Exit(error.exit_code) from error
    _announce(context, ready)
    ends = "skylark down"
    if options.ephemeral or options.data != user_data_folder().absolute():
        ends = f"{ends} --data {options.data}"
    context.output.info(f"running in the background, log file {log_file}; stop it with: {ends}")


def _failure(error: BaseException) -> tuple[str, int]:
    """The message and the exit code of an error that ends the background process."""
    from skylark.cli.exit_codes import ExitCode, error_message, exit_code

    if isinstance(error, click.ClickException):
        return error.format_message(), error.exit_code
    if isinstance(error, Exception):
        return error_message(error), exit_code(error)
    return "it was interrupted", ExitCode.INTERRUPTED


def _print_config(context: CliContext, options: LaunchOptions) -> None:
    from skylark.broker.config import load_broker_config
    from skylark.core.config import load, to_mapping, to_properties
    from skylark.core.names import Address
    from skylark.namesrv.config import NamesrvConfig

    namesrv = Address(options.host, options.namesrv_port)
    configs = {
        "namesrv": load(NamesrvConfig, options.namesrv_settings()),
        **{
            place.name: load_broker_config(options.broker_settings(place, namesrv))
            for place in (*options.masters, *options.slaves)
        },
    }
    if context.output.is_json:
        context.output.record({name: to_mapping(config) for name, config in configs.items()})
        return
    click.echo(
        "\n".join(f"# {name}\n{to_properties(each)}" for name, each in configs.items()), nl=False
    )


async def _serve(
    options: LaunchOptions,
    topics: list[tuple[str, int]],
    child_arguments: list[str],
    announce: Callable[[str], None],
    log: Path | None,
    stop: asyncio.Event,
) -> None:
    """Run the cluster until ``stop`` is set; keeps the file ``log`` small."""
    from skylark.core.errors import TransportError
    from skylark.launch.local_cluster import Cluster

    cluster = Cluster(options, child_arguments=child_arguments)
    metrics = {f"{name}-metrics": place for name, place in options.metrics_addresses().items()}

    def is_ready(remarks: list[str]) -> None:
        servers = {"namesrv": cluster.namesrv, **cluster.brokers, **metrics}
        ready = f"ready {' '.join(f'{name}={address}' for name, address in servers.items())}"
        announce("\n".join([*remarks, ready]))

    try:
        await run_until(_work(cluster, topics, is_ready, log), stop)  # also stops during the start
    except TransportError as error:
        is_in_use = os.strerror(errno.EADDRINUSE) in str(error)
        if is_in_use and (others := _other_clusters(options.data)) is not None:
            raise type(error)(str(error), hint=others) from error
        raise
    finally:
        await cluster.stop()


def _other_clusters(data: Path) -> str | None:
    """How to stop another cluster of this user, which may have the port; None without one."""
    from contextlib import suppress

    from skylark.cli.down import find_all
    from skylark.core.errors import SkylarkError

    with suppress(OSError, SkylarkError):
        found = find_all(without=data)
        for each in found:
            each.close()
        if found:
            return f"a skylark up of yours runs on {found[0].data}: skylark down stops it"
    return None


def _resolver() -> Callable[[str], Coroutine[Any, Any, None]]:
    from skylark.spark.resolver import resolve_forever

    return resolve_forever


async def _make_topics(namesrv: str, topics: list[tuple[str, int]]) -> list[str]:
    """Create missing topics; print a note for existing ones with another number of queues."""
    from skylark.admin.admin_client import Admin
    from skylark.client.core.client_options import ClientOptions

    async with Admin(ClientOptions(namesrv=namesrv)) as admin:
        return [
            f"topic {name} exists on {part.broker} with {part.queue_count} queues,"
            " and is not changed"
            for name, queue_count in topics
            for part in await admin.topics.create(name, queue_count=queue_count)
            if part.queue_count != queue_count
        ]


async def _work(
    cluster: Cluster,
    topics: list[tuple[str, int]],
    is_ready: Callable[[list[str]], None],
    log: Path | None,
) -> None:
    import asyncio
    import logging

    from skylark.core.clock import LoopClock
    from skylark.launch.detached_process import limit_log

    await cluster.start()
    is_ready(await _make_topics(str(cluster.namesrv), topics) if topics else [])
    resolve_forever = await asyncio.to_thread(
        _resolver
    )  # importing takes long; the loop serves clients meanwhile
    # The supervisor logs brokers that die; warnings of the resolver's client add nothing.
    logging.getLogger("skylark.client").setLevel(logging.ERROR)
    async with asyncio.TaskGroup() as group:
        group.create_task(resolve_forever(str(cluster.namesrv)))
        group.create_task(cluster.watch())
        if log is not None:
            group.create_task(limit_log(log, LoopClock()))


def _file_settings(config_file: Path | None) -> dict[str, str]:
    import socket

    from skylark.core.config import expand, parse_properties
    from skylark.core.errors import ConfigError
    from skylark.launch.launch_plan import settings_of_file

    if config_file is None:
        return {}
    found = settings_of_file(parse_properties(config_file.read_bytes()), config_file)
    variables = {"user.home": str(Path.home()), "host.name": socket.gethostname()}
    try:
        return {key: expand(value, variables) for key, value in found.items()}
    except ValueError as error:
        raise ConfigError(f"{config_file}: {error}") from error


def _topic(text: str) -> tuple[str, int]:
    from skylark.admin.topic_operations import DEFAULT_QUEUE_COUNT

    name, colon, count = text.partition(":")
    TOPIC.convert(name, None, None)
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
