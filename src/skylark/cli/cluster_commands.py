"""``skylark cluster``: brokers of a running cluster, the state of their replicas, their settings.

Settings have their Java names and are shown and changed while servers run. Some settings of a
broker take effect at its next start: the broker saves them, and the command prints a note.
"""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import (
    call_admin,
    confirm,
    key_value,
    namesrv_option,
    warn_about_failures,
    yes_option,
)
from skylark.cli.output import Columns

if TYPE_CHECKING:
    from skylark.admin.admin_client import Admin
    from skylark.admin.cluster_stats import ReplicationReport
    from skylark.admin.server_settings import SettingsReport

LIST_COLUMNS = ("cluster", "broker", "id", "role", "address", "version", "in_tps", "out_tps")
STATUS_COLUMNS = (
    "cluster", "broker", "id", "role", "address", "version", "in_tps", "out_tps",
    "log_end", "lag_bytes", "slaves", "in_sync", "phase", "diverged",
)  # fmt: skip
CHOICES = (
    "It may have the only copy of acknowledged messages. Choose one: start it as the master; or"
    " empty its store; or set haTruncateAhead=true to delete the messages that its master lacks"
)

cluster_option = click.option("--cluster", help="Only this cluster.  [default: all]")


@click.group("cluster")
def command() -> None:
    """Show brokers, their replicas and settings."""


@command.command("list", epilog="Example: skylark cluster list")
@namesrv_option
@cluster_option
@click.pass_obj
def list_brokers(context: CliContext, cluster: str | None) -> None:
    """List all brokers, with the rates of the last 10 seconds."""
    _show(context, LIST_COLUMNS, _ask(cluster))


@command.command("status", epilog="Example: skylark --output json cluster status")
@namesrv_option
@cluster_option
@click.pass_obj
def status(context: CliContext, cluster: str | None) -> None:
    """Show the replication lag of slaves, and which have diverged from their master."""
    report = _ask(cluster)
    columns = (*STATUS_COLUMNS, "links") if context.output.is_json else STATUS_COLUMNS
    _show(context, columns, report)
    for broker in report.brokers:
        if broker.diverged is not None:
            context.output.info(f"{broker.broker} {broker.id} has diverged. {CHOICES}")


def _show(context: CliContext, columns: tuple[str, ...], report: ReplicationReport) -> None:
    context.output.rows(columns, report.brokers)
    warn_about_failures(context, report.failures)


def _ask(cluster: str | None) -> ReplicationReport:
    async def report(admin: Admin) -> ReplicationReport:
        from skylark.admin.cluster_stats import replication_report

        return await replication_report(admin.stats, cluster)

    return call_admin(report)


# ---- draining a broker ---------------------------------------------------------------------------

PERM_COLUMNS: Columns = {"name_server": itemgetter(0), "topics": itemgetter(1)}


@command.command("wipe-write-perm", epilog="Example: skylark cluster wipe-write-perm broker-b")
@click.argument("broker")
@namesrv_option
@click.pass_obj
def wipe_write_perm(context: CliContext, broker: str) -> None:
    """Stop producers from writing to BROKER; consumers go on reading.

    Use it to drain a broker before you remove it. The name servers keep the change until the
    broker starts again.
    """

    changed = call_admin(lambda admin: admin.settings.wipe_write_perm(broker))
    context.output.rows(PERM_COLUMNS, changed.items())
    context.output.info(
        f"producers stop using {broker} within 30 seconds, when they refresh their routes"
    )


@command.command("add-write-perm", epilog="Example: skylark cluster add-write-perm broker-b")
@click.argument("broker")
@namesrv_option
@click.pass_obj
def add_write_perm(context: CliContext, broker: str) -> None:
    """Let producers write to BROKER again."""
    changed = call_admin(lambda admin: admin.settings.add_write_perm(broker))
    context.output.rows(PERM_COLUMNS, changed.items())


# ---- settings ------------------------------------------------------------------------------------

broker_option = click.option("--broker", help="Only this broker, by name or address.")
name_servers_option = click.option(
    "--name-servers", is_flag=True, help="Settings of the name servers, not of the brokers."
)


@command.group("config")
def config() -> None:
    """Show and change settings of running servers."""


@config.command("get", epilog="Example: skylark cluster config get fileReservedTime")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@namesrv_option
@cluster_option
@broker_option
@name_servers_option
@click.pass_obj
def get(
    context: CliContext,
    keys: tuple[str, ...],
    cluster: str | None,
    broker: str | None,
    name_servers: bool,
) -> None:
    """Show all settings, or those named."""
    report = _read(cluster, broker, name_servers=name_servers)
    _require_known(report, keys)
    context.output.rows(
        ("server", "key", "value"),
        (
            {"server": server.server, "key": key, "value": server.settings[key]}
            for server in report.servers
            for key in (keys or sorted(server.settings))
            if key in server.settings
        ),
    )
    warn_about_failures(context, report.failures)


@config.command("set", epilog="Example: skylark cluster config set fileReservedTime=48 --yes")
@click.argument("changes", metavar="KEY=VALUE...", nargs=-1, required=True)
@namesrv_option
@cluster_option
@broker_option
@name_servers_option
@yes_option
@click.pass_obj
def set_config(
    context: CliContext,
    changes: tuple[str, ...],
    cluster: str | None,
    broker: str | None,
    name_servers: bool,
    yes: bool,
) -> None:
    """Change settings of running servers, slaves too; shows the current values first.

    A slave is shown as NAME#ID. A settings file gets the changed lines only.
    """
    from skylark.admin.server_settings import OWN_SETTINGS

    wanted = dict(key_value(text, "KEY=VALUE") for text in changes)
    slaves = not wanted.keys() & OWN_SETTINGS
    before = _read(cluster, broker, name_servers=name_servers, slaves=slaves)
    _require_known(before, tuple(wanted))
    rows = [
        {"server": each.server, "key": key, "old": each.settings.get(key), "new": value}
        for each in before.servers
        for key, value in wanted.items()
    ]
    if not yes:
        context.output.rows(("server", "key", "old", "new"), rows)
        confirm("Change this?", yes=False)

    async def change(admin: Admin) -> list[str]:
        if name_servers:
            return await admin.settings.set_name_servers(wanted)
        return await admin.settings.set_brokers(wanted, cluster=cluster, broker=broker)

    done = call_admin(change)
    if yes:
        context.output.rows(("server", "key", "old", "new"), rows)
    context.output.info(f"changed on {', '.join(done)}")
    if not name_servers:
        if not slaves:
            context.output.info(f"slaves keep their {', '.join(sorted(OWN_SETTINGS))}")
        from skylark.broker.live_settings import READ_AT_START

        if waiting := sorted(READ_AT_START & wanted.keys()):
            context.output.info(
                f"{', '.join(waiting)}: takes effect at the next start, on brokers with a settings"
                " file; for brokers of skylark up, use its option --set"
            )


def _read(
    cluster: str | None, broker: str | None, *, name_servers: bool, slaves: bool = True
) -> SettingsReport:
    """The settings of the servers that the options name."""
    if name_servers and (cluster, broker) != (None, None):
        raise click.UsageError(
            "name servers belong to no cluster: leave out --cluster and --broker"
        )

    async def settings(admin: Admin) -> SettingsReport:
        if name_servers:
            return await admin.settings.name_servers()
        return await admin.settings.brokers(cluster=cluster, broker=broker, slaves=slaves)

    return call_admin(settings)


def _require_known(report: SettingsReport, keys: tuple[str, ...]) -> None:
    """Raise for a setting that no server has."""
    from difflib import get_close_matches

    from skylark.admin.errors import NotFoundError

    known = sorted({key for server in report.servers for key in server.settings})
    for key in keys:
        if key not in known:
            close = get_close_matches(key, known, n=1)
            hint = f"did you mean {close[0]}?" if close else "skylark cluster config get lists all"
            raise NotFoundError(f"there is no setting {key}", hint=hint)
