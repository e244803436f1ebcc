"""``skylark topic``: create and list the topics of a running cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import click

from skylark.cli.context import CliContext
from skylark.cli.name_servers import namesrv_option

if TYPE_CHECKING:
    from skylark.admin.admin import Admin

T = TypeVar("T")


@click.group("topic")
def command() -> None:
    """Create and list topics."""


@command.command("create", epilog="Example: skylark topic create orders --queues 4")
@click.argument("topic")
@namesrv_option
@click.option(
    "--queues",
    "queue_count",
    type=click.IntRange(1, 65_536),
    default=8,
    show_default=True,
    help="Queues on each broker.",
)
@click.option("--cluster", help="Only on the brokers of this cluster.  [default: on all]")
@click.option("--order", is_flag=True, help="Messages with the same key keep their order.")
@click.option(
    "--attribute",
    "attributes",
    metavar="KEY=VALUE",
    multiple=True,
    help="For example message.type=FIFO; may be repeated.",
)
@click.pass_obj
def create(
    context: CliContext,
    topic: str,
    namesrv: str | None,
    queue_count: int,
    cluster: str | None,
    order: bool,
    attributes: tuple[str, ...],
) -> None:
    """Create a topic; one that exists stays as it is."""
    import msgspec

    results = _run(
        namesrv,
        lambda admin: admin.topics.create(
            topic,
            queue_count=queue_count,
            cluster=cluster,
            order=order,
            attributes=dict(map(_attribute, attributes)),
        ),
    )
    columns = ("topic", "broker", "address", "created", "queue_count")
    context.output.rows(columns, map(msgspec.structs.asdict, results))


@command.command("list")
@namesrv_option
@click.option("--all", "with_internal", is_flag=True, help="Also system, retry and DLQ topics.")
@click.pass_obj
def list_topics(context: CliContext, namesrv: str | None, with_internal: bool) -> None:
    """List the topics of the cluster."""
    import msgspec

    topics = _run(namesrv, lambda admin: admin.topics.all(with_internal=with_internal))
    columns = ("topic", "brokers", "queue_count", "perm")
    context.output.rows(columns, map(msgspec.structs.asdict, topics))


def _run(namesrv: str | None, ask: Callable[[Admin], Awaitable[T]]) -> T:
    import asyncio

    from skylark.admin.admin import Admin
    from skylark.cli.name_servers import client_options

    async def run() -> T:
        async with Admin(client_options(namesrv)) as admin:
            return await ask(admin)

    return asyncio.run(run())


def _attribute(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key or "," in text:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--attribute")
    return key, value
