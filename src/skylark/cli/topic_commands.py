"""``skylark topic``: creates, lists, describes, changes and deletes topics of a running cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import (
    call_admin,
    confirm,
    format_time,
    key_value,
    namesrv_option,
    topic_argument,
    warn_about_failures,
    yes_option,
)
from skylark.cli.output import Columns, records

if TYPE_CHECKING:
    from skylark.admin.admin_client import Admin
    from skylark.admin.topic_operations import TopicDescription

QUEUE_COUNT = click.IntRange(1, 65_536)
PERM = click.Choice(["r", "w", "rw"])
QUEUE_COLUMNS: Columns = {
    "broker": "queue.broker_name",
    "queue": "queue.queue_id",
    "min_offset": "min_offset",
    "max_offset": "max_offset",
    "messages": "count",
    "last_stored": lambda entry: format_time(entry.last_time_ms),
}
PART_COLUMNS: Columns = {
    "broker": "broker",
    "cluster": "cluster",
    "read_queues": "read_queue_count",
    "write_queues": "write_queue_count",
    "perm": "perm",
    "order": "order",
    "attributes": lambda part: [f"{key}={part.attributes[key]}" for key in sorted(part.attributes)],
}
UPDATE_COLUMNS: Columns = {
    "topic": "topic",
    "broker": "broker",
    "address": "address",
    "read_queues": "read_queue_count",
    "write_queues": "queue_count",
    "perm": "perm",
}

cluster_option = click.option("--cluster", help="Only on the brokers of this cluster.")
broker_option = click.option("--broker", help="Only on this broker, by name or address.")


@click.group("topic")
def command() -> None:
    """Create, list, describe, change and delete topics."""


@command.command("create", epilog="Example: skylark topic create orders --queues 4")
@click.argument("topic")
@namesrv_option
@click.option("--queues", "queue_count", type=QUEUE_COUNT, default=8, help="Queues per broker.")
@click.option("--perm", type=PERM, default="rw", help="Permission: read, write or both.")
@click.option("--cluster", help="Only on the brokers of this cluster.  [default: on all]")
@broker_option
@click.option(
    "--order",
    is_flag=True,
    help="Mark the topic as ordered: messages with equal keys stay in order.",
)
@click.option(
    "--attribute",
    "attributes",
    metavar="KEY=VALUE",
    multiple=True,
    help="Attribute, for example message.type=FIFO; repeatable.",
)
@click.pass_obj
def create(context: CliContext, /, topic: str, attributes: tuple[str, ...], **given: Any) -> None:
    """Create a topic; an existing topic is not changed."""
    pairs = dict(map(_attribute, attributes))
    results = call_admin(lambda admin: admin.topics.create(topic, attributes=pairs, **given))
    columns = ("topic", "broker", "address", "created", "queue_count")
    context.output.rows(columns, results)


@command.command("list", epilog="Example: skylark --output json topic list --all")
@namesrv_option
@click.option("--all", "with_internal", is_flag=True, help="Also system, retry and DLQ topics.")
@click.option("--cluster", help="Only topics of this cluster.")
@click.pass_obj
def list_topics(context: CliContext, with_internal: bool, cluster: str | None) -> None:
    """List the topics of the cluster."""
    topics = call_admin(
        lambda admin: admin.topics.all(with_internal=with_internal, cluster=cluster)
    )
    columns = ("topic", "brokers", "queue_count", "perm")
    context.output.rows(columns, topics)


@command.command("describe", epilog="Example: skylark topic describe orders")
@topic_argument
@namesrv_option
@click.pass_obj
def describe(context: CliContext, topic: str) -> None:
    """Show a topic on each broker, its queues, and the groups that read it."""
    import msgspec

    async def both(admin: Admin) -> tuple[TopicDescription, list[str]]:
        return await admin.topics.describe(topic), await admin.topics.groups(topic)

    found, groups = call_admin(both)
    if context.output.is_json:
        queues = records(QUEUE_COLUMNS, found.queues)
        context.output.record({**msgspec.structs.asdict(found), "queues": queues, "groups": groups})
        return
    context.output.rows(PART_COLUMNS, found.parts)
    context.output.gap()
    context.output.rows(QUEUE_COLUMNS, found.queues)
    context.output.gap()
    context.output.record({"messages": found.message_count, "groups": groups})
    warn_about_failures(context, found.failures)


@command.command("route", epilog="Example: skylark topic route orders")
@topic_argument
@namesrv_option
@click.pass_obj
def route(context: CliContext, topic: str) -> None:
    """Show the route of a topic that name servers give to clients."""
    from skylark.admin.topic_operations import format_perm

    found = call_admin(lambda admin: admin.topics.route(topic))
    brokers = {data.broker_name: data for data in found.broker_datas}
    columns = ("broker", "cluster", "addresses", "read_queues", "write_queues", "perm")
    rows = []
    for queues in sorted(found.queue_datas, key=lambda data: data.broker_name):
        data = brokers.get(queues.broker_name)
        addresses = sorted(data.broker_addrs.items()) if data else []
        rows.append(
            {
                "broker": queues.broker_name,
                "cluster": data.cluster if data else None,
                "addresses": [f"{number}={address}" for number, address in addresses],
                "read_queues": queues.read_queue_nums,
                "write_queues": queues.write_queue_nums,
                "perm": format_perm(queues.perm),
            }
        )
    context.output.rows(columns, rows)


@command.command("set", epilog="Example: skylark topic set orders --perm r --queues 8")
@topic_argument
@namesrv_option
@click.option(
    "--queues", "queue_count", type=QUEUE_COUNT, help="Number of read and write queues per broker."
)
@click.option("--read-queues", type=QUEUE_COUNT, help="Number of read queues per broker.")
@click.option("--write-queues", type=QUEUE_COUNT, help="Number of write queues per broker.")
@click.option("--perm", type=PERM, help="Permission: read, write or both.")
@click.option(
    "--order/--no-order", default=None, help="Whether messages with equal keys stay in order."
)
@click.option("--attribute", "attributes", metavar="KEY=VALUE", multiple=True, help="Set one.")
@click.option("--remove-attribute", "removed", metavar="KEY", multiple=True, help="Remove one.")
@cluster_option
@broker_option
@click.pass_obj
def set_topic(
    context: CliContext,
    topic: str,
    queue_count: int | None,
    read_queues: int | None,
    write_queues: int | None,
    perm: str | None,
    order: bool | None,
    attributes: tuple[str, ...],
    removed: tuple[str, ...],
    cluster: str | None,
    broker: str | None,
) -> None:
    """Change a topic; settings that are not given stay as they are.

    To remove queues without losing messages, first lower --write-queues, and lower --read-queues
    when consumers have read the removed queues to the end.
    """
    changes: dict[str, str | None] = {**dict(map(_attribute, attributes)), **dict.fromkeys(removed)}
    given = (queue_count, read_queues, write_queues, perm, order)
    if all(value is None for value in given) and not changes:
        raise click.UsageError("nothing to change: give --queues, --perm, --attribute, ...")
    if queue_count is not None and (read_queues, write_queues) != (None, None):
        raise click.UsageError("--queues sets both: leave out --read-queues and --write-queues")
    results = call_admin(
        lambda admin: admin.topics.update(
            topic,
            read_queue_count=read_queues or queue_count,
            write_queue_count=write_queues or queue_count,
            perm=perm,
            order=order,
            attributes=changes,
            cluster=cluster,
            broker=broker,
        ),
    )
    context.output.rows(UPDATE_COLUMNS, results)


@command.command("delete", epilog="Example: skylark topic delete orders --yes")
@topic_argument
@namesrv_option
@click.option("--cluster", help="Only from the brokers of this cluster.")
@yes_option
@click.pass_obj
def delete(context: CliContext, topic: str, cluster: str | None, yes: bool) -> None:
    """Delete a topic with all its messages."""
    if not yes:
        found = call_admin(lambda admin: admin.topics.describe(topic))
        confirm(f"Delete {topic} with {found.message_count} messages permanently?", yes=False)
    brokers = call_admin(lambda admin: admin.topics.delete(topic, cluster=cluster))
    context.output.rows(
        ("topic", "broker", "deleted"),
        ({"topic": topic, "broker": broker, "deleted": True} for broker in brokers),
    )


def _attribute(text: str) -> tuple[str, str]:
    if "," in text:
        raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint="--attribute")
    return key_value(text, "--attribute")
