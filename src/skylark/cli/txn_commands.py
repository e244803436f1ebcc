"""``skylark txn``: lists, abandons, settles and repairs batches of exactly-once Spark sinks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import client_options, confirm, given_namesrv, namesrv_option
from skylark.cli.foreground_server import run_server, run_until

if TYPE_CHECKING:
    import asyncio

    from skylark.client.core.client_options import ClientOptions
    from skylark.spark.sink.sink_client import SinkClient

T = TypeVar("T")


@click.group("txn")
def command() -> None:
    """List, abandon, settle and repair batches of exactly-once Spark sinks."""


@command.command("list", epilog="Example: skylark txn list --all")
@namesrv_option
@click.option("--all", "with_done", is_flag=True, help="Also completed and abandoned batches.")
@click.pass_obj
def list_batches(context: CliContext, with_done: bool) -> None:
    """List the batches that are neither completed nor abandoned."""
    from datetime import UTC, datetime

    from skylark.spark.exactly_once import txn_admin

    states = _run(lambda client: txn_admin.list_batches(client, with_done=with_done))
    context.output.rows(
        {
            **{name: name for name in ("sink", "batch", "state", "attempts", "rows")},
            "since": lambda state: datetime.fromtimestamp(state.since_ms / 1000, tz=UTC),
        },
        states,
    )


@command.command("resolver", epilog="Example: skylark txn resolver -n 127.0.0.1:9876")
@namesrv_option
@click.pass_obj
def resolver(context: CliContext) -> None:
    """Run a resolver, which answers check-backs of brokers about undecided rows, until stopped.

    `skylark up` includes a resolver; Apache brokers need it as a separate process.
    """

    context.configure_logging("info")
    run_server(partial(_resolve, client_options(given_namesrv())))


async def _resolve(options: ClientOptions, stop: asyncio.Event) -> None:
    from skylark.spark.exactly_once.txn_log_records import RESOLVER_GROUP
    from skylark.spark.resolver import resolve_forever

    def ready() -> None:
        click.echo(f"ready resolver={RESOLVER_GROUP}")

    await run_until(resolve_forever(options, ready), stop)


@command.command("abandon", epilog="Example: skylark txn abandon 5f3c... --yes")
@click.argument("sink")
@namesrv_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def abandon(context: CliContext, sink: str, yes: bool) -> None:
    """Roll back the undecided rows of a sink whose driver will not run again.

    SINK is the id of a streaming query, or the txnId of a batch write. Its query can run again
    only with a new checkpoint.
    """
    from skylark.spark.exactly_once import txn_admin

    confirm(f"Roll back all undecided rows of {sink} permanently?", yes=yes)
    record = _run(lambda client: txn_admin.abandon(client, sink))
    context.output.record({"sink": record.sink, "batch": record.batch, "state": "abandoned"})


@command.command("settle", epilog="Example: skylark txn settle 5f3c... --written-through 41")
@click.argument("sink")
@click.option(
    "--written-through",
    type=click.IntRange(-1, (1 << 53) - 1),
    required=True,
    help="The last batch whose rows are in the topic; -1 if there is none.",
)
@namesrv_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def settle(context: CliContext, sink: str, written_through: int, yes: bool) -> None:
    """Say which batch of a sink is the last one in the topic, where the cluster has forgotten it.

    SINK is the id of a streaming query, or the txnId of a batch write. The query goes on with the
    batch after it. A wrong number writes rows twice, or leaves rows out.
    """
    from skylark.spark.exactly_once import txn_admin

    confirm(f"Is batch {written_through} of {sink} the last one in the topic?", yes=yes)
    _run(lambda client: txn_admin.settle(client, sink, written_through))
    context.output.record({"sink": sink, "batch": written_through, "state": "done"})


@command.command("forget", epilog="Example: skylark txn forget daily-2026-11-15 --yes")
@click.argument("sink")
@namesrv_option
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.pass_obj
def forget(context: CliContext, sink: str, yes: bool) -> None:
    """Forget a sink that will never come back: a query without checkpoint, an old txnId.

    If it comes back nevertheless, after its log has expired, it may write its rows again.
    """
    from skylark.spark.exactly_once import txn_admin

    confirm(f"Forget the last batch of {sink}?", yes=yes)
    _run(lambda client: txn_admin.forget(client, sink))
    context.output.record({"sink": sink, "state": "forgotten"})


@command.command("repair", epilog="Example: skylark txn repair --dry-run")
@namesrv_option
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.pass_obj
def repair(context: CliContext, dry_run: bool) -> None:
    """Make brokers check decided rows again after they gave up their check-backs.

    The rows become visible when a resolver has answered.
    """
    import msgspec

    from skylark.spark.exactly_once import txn_admin

    report = _run(lambda client: txn_admin.repair(client, dry_run=dry_run))
    context.output.record(msgspec.structs.asdict(report))


def _run(ask: Callable[[SinkClient], Awaitable[T]]) -> T:
    import asyncio

    from skylark.spark.sink.sink_client import open_client

    async def run() -> T:
        client = await open_client(client_options(given_namesrv()), "skylark-txn")
        try:
            return await ask(client)
        finally:
            await client.close()

    return asyncio.run(run())
