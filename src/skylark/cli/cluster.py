"""``skylark cluster``: the brokers of a running cluster, and how their replicas stand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from skylark.cli.context import CliContext
from skylark.cli.name_servers import namesrv_option

if TYPE_CHECKING:
    from skylark.admin.replication import ReplicationReport

LIST_COLUMNS = ("cluster", "broker", "id", "role", "address", "version", "in_tps", "out_tps")
STATUS_COLUMNS = (
    "cluster", "broker", "id", "role", "address", "version", "in_tps", "out_tps",
    "log_end", "lag_bytes", "slaves", "in_sync", "phase", "diverged",
)  # fmt: skip
CHOICES = (
    "It may have the only copy of acknowledged messages. Choose: start it as the master; or begin"
    " with an empty store there; or set haTruncateAhead=true to give up what its master lacks"
)

cluster_option = click.option("--cluster", help="Only this cluster.  [default: all]")


@click.group("cluster")
def command() -> None:
    """Show brokers and their replicas."""


@command.command("list", epilog="Example: skylark cluster list")
@namesrv_option
@cluster_option
@click.pass_obj
def list_brokers(context: CliContext, namesrv: str | None, cluster: str | None) -> None:
    """List all brokers, with the rates of the last 10 seconds."""
    _show(context, LIST_COLUMNS, _ask(namesrv, cluster))


@command.command("status", epilog="Example: skylark --output json cluster status")
@namesrv_option
@cluster_option
@click.pass_obj
def status(context: CliContext, namesrv: str | None, cluster: str | None) -> None:
    """Show how far slaves are behind, and whether any has diverged from its master."""
    report = _ask(namesrv, cluster)
    columns = (*STATUS_COLUMNS, "links") if context.output.is_json else STATUS_COLUMNS
    _show(context, columns, report)
    for broker in report.brokers:
        if broker.diverged is not None:
            context.output.note(f"{broker.broker} {broker.id} has diverged. {CHOICES}")


def _show(context: CliContext, columns: tuple[str, ...], report: ReplicationReport) -> None:
    import msgspec

    rows = (msgspec.to_builtins(broker) for broker in report.brokers)
    context.output.rows(columns, rows)
    for failure in report.failures:
        context.output.note(f"{failure.server} at {failure.address}: {failure.problem}")


def _ask(namesrv: str | None, cluster: str | None) -> ReplicationReport:
    import asyncio

    from skylark.admin.admin import Admin
    from skylark.admin.replication import replication_report
    from skylark.cli.name_servers import client_options

    async def run() -> ReplicationReport:
        async with Admin(client_options(namesrv)) as admin:
            return await replication_report(admin.stats, cluster)

    return asyncio.run(run())
