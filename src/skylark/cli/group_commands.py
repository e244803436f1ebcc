"""``skylark group``: consumer groups of a running cluster: members, lag, offset resets.

``reset-offset`` and ``skip`` first show, per queue, the current and the new offset; ``--dry-run``
ends there, ``--yes`` continues without confirmation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import (
    TOPIC,
    call_admin,
    confirm,
    format_time,
    group_argument,
    namesrv_option,
    parse_position,
    warn_about_failures,
    yes_option,
)
from skylark.cli.output import Columns, records

if TYPE_CHECKING:
    from skylark.admin.admin_client import Admin
    from skylark.admin.group_operations import GroupListing, GroupSummary
    from skylark.admin.offset_reset_plan import GroupReset, ResetPlan

LIST_COLUMNS = ("group", "brokers", "members", "model", "lag")
QUEUE_COLUMNS: Columns = {
    "topic": "queue.topic",
    "broker": "queue.broker_name",
    "queue": "queue.queue_id",
    "broker_offset": "broker_offset",
    "consumer_offset": "consumer_offset",
    "lag": "lag",
    "in_flight": "in_flight",
    "invisible": "popped_in_flight",  # of these, popped and not acknowledged
    "consumed_up_to": lambda entry: format_time(entry.last_time_ms),  # store time
    "client_id": "client_id",
}
PLAN_COLUMNS: Columns = {
    "topic": "queue.topic",
    "broker": "queue.broker_name",
    "queue": "queue.queue_id",
    "committed": "committed",
    "new_offset": "new_offset",
    "min": "min_offset",
    "max": "max_offset",
    "step": "step",
}
DONE_COLUMNS: Columns = {
    "topic": "queue.topic",
    "broker": "queue.broker_name",
    "queue": "queue.queue_id",
    "old_offset": "old_offset",
    "offset": "offset",
}
#: Groups that are queried concurrently for members and lag.
GROUPS_AT_ONCE = 8

dry_run_option = click.option("--dry-run", is_flag=True, help="Only show the new offsets.")


@click.group("group")
def command() -> None:
    """List, describe, change, reset and delete consumer groups."""


# ---- queries -------------------------------------------------------------------------------------


@command.command("list", epilog="Example: skylark group list")
@namesrv_option
@click.option("--all", "with_internal", is_flag=True, help="Also the internal groups of RocketMQ.")
@click.pass_obj
def list_groups(context: CliContext, with_internal: bool) -> None:
    """List the groups, with their connected members and lag."""
    from skylark.admin.errors import NotFoundError
    from skylark.admin.fan_out import few_at_a_time
    from skylark.admin.group_operations import Groups

    async def listed(admin: Admin) -> tuple[GroupListing, list[dict[str, object]]]:
        groups = Groups(admin.session.asking_once())

        async def row(group: GroupSummary) -> dict[str, object]:
            members = await groups.members(group.group)
            lag = None
            with contextlib.suppress(NotFoundError):  # no committed offsets
                progress = await groups.progress(group.group)
                if not progress.failures:  # a lag without all brokers would be wrong
                    lag = progress.lag
            return {
                "group": group.group,
                "brokers": group.brokers,
                "members": len(members.members),
                "model": members.message_model,
                "lag": lag,
            }

        listing = await groups.all(with_internal=with_internal)
        return listing, await few_at_a_time(listing.groups, row, GROUPS_AT_ONCE)

    listing, rows = call_admin(listed)
    context.output.rows(LIST_COLUMNS, rows)
    warn_about_failures(context, listing.failures)


@command.command("describe", epilog="Example: skylark group describe billing --owners")
@group_argument
@namesrv_option
@click.option("--owners", is_flag=True, help="Ask each member which queues it reads.")
@click.pass_obj
def describe(context: CliContext, group: str, owners: bool) -> None:
    """Show lag per queue, members, subscriptions and settings of a group."""
    import msgspec

    found = call_admin(lambda admin: admin.groups.describe(group, with_owners=owners))
    queues = records(QUEUE_COLUMNS, found.progress.queues)
    if (
        not found.is_online
    ):  # what members had pulled is delivered again; popped messages are hidden
        queues = [{**queue, "in_flight": queue["invisible"]} for queue in queues]
    if context.output.is_json:
        progress = {**msgspec.structs.asdict(found.progress), "queues": queues}
        document = {**msgspec.structs.asdict(found), "progress": progress}
        context.output.record({**document, "lag": found.progress.lag})
        return
    columns = [column for column in QUEUE_COLUMNS if owners or column != "client_id"]
    context.output.rows(columns, queues)
    members = found.members
    if members.members:
        context.output.gap()
        context.output.rows(
            ("client_id", "address", "language", "version", "brokers"), members.members
        )
        context.output.gap()
        context.output.rows(("topic", "expression", "expression_type"), members.subscriptions)
    context.output.gap()
    context.output.record(
        {
            "lag": found.progress.lag,
            "members": len(members.members),
            "model": members.message_model,
            "consume_from": members.consume_from_where,
            "retry_max_times": sorted({c.config.retry_max_times for c in found.configs}),
            "may_consume": all(c.config.consume_enable for c in found.configs),
        }
    )
    for conflict in members.conflicts:
        sides = " but ".join(side.expression or "nothing" for side in conflict.sides)
        context.output.info(
            f"Members have different subscriptions to {conflict.topic}: {sides}. Messages are"
            " skipped; use a separate group for each application"
        )
    warn_about_failures(context, found.failures)


# ---- offset resets -------------------------------------------------------------------------------


@command.command(
    "reset-offset",
    epilog="Example: skylark group reset-offset billing orders --to 2026-11-01T08:00 --dry-run",
)
@group_argument
@click.argument("topic", type=TOPIC)
@namesrv_option
@click.option(
    "--to",
    "where",
    required=True,
    metavar="WHERE",
    help="earliest, latest, an offset, a time (2026-11-01T08:00), or a duration ago (30m).",
)
@click.option("--broker", help="Only queues of this broker.")
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="Only this queue.")
@dry_run_option
@yes_option
@click.pass_obj
def reset_offset(
    context: CliContext,
    group: str,
    topic: str,
    where: str,
    broker: str | None,
    queue_id: int | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Reset the offsets of a group in a topic; shows the new offsets first."""
    to = parse_position(where, "--to")
    plan = call_admin(
        lambda admin: admin.offsets.plan_reset(group, topic, to, broker=broker, queue_id=queue_id),
    )
    _apply_plans(context, [plan], dry_run=dry_run, yes=yes)


@command.command("skip", epilog="Example: skylark group skip billing orders --yes")
@group_argument
@click.argument("topic", required=False, type=TOPIC)
@namesrv_option
@dry_run_option
@yes_option
@click.pass_obj
def skip(
    context: CliContext,
    group: str,
    topic: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Skip the backlog of one topic, or of all topics and retries."""
    plans = call_admin(lambda admin: admin.offsets.plan_skip(group, topic))
    _apply_plans(context, plans, dry_run=dry_run, yes=yes)


def _apply_plans(context: CliContext, plans: list[ResetPlan], *, dry_run: bool, yes: bool) -> None:
    """Show the plans; unless it is a dry run, ask for confirmation and apply them."""
    preview = [queue for plan in plans for queue in plan.queues]
    if dry_run:
        context.output.rows(PLAN_COLUMNS, preview)
        return
    if not context.output.is_json:  # JSON output is one document: the result
        context.output.rows(PLAN_COLUMNS, preview)
        context.output.gap()
    again = sum(max(0, -queue.step) for queue in preview)
    left_out = sum(max(0, queue.step) for queue in preview)
    group = plans[0].group
    confirm(
        f"{group}: {again} messages will be consumed again, {left_out} skipped. Continue?", yes=yes
    )

    async def apply(admin: Admin) -> list[GroupReset]:
        return [await admin.offsets.apply(plan) for plan in plans]

    done = call_admin(apply)
    context.output.rows(DONE_COLUMNS, [queue for reset in done for queue in reset.queues])
    if any(reset.by_members for reset in done):
        context.output.info(
            "the brokers have notified the members; offsets change when the members have applied it"
        )


# ---- mode ----------------------------------------------------------------------------------------


@command.command("mode", epilog="Example: skylark group mode orders billing pop")
@click.argument("topic", type=TOPIC)
@group_argument
@click.argument("mode", type=click.Choice(("pop", "pull")), required=False)
@namesrv_option
@click.option(
    "--share-queues",
    type=click.IntRange(min=0),
    help="With pop: each member takes messages of its own queues and of those of so many other"
    " members; 0: of all queues.  [default: 0]",
)
@click.pass_obj
def mode(
    context: CliContext,
    topic: str,
    group: str,
    mode: Literal["pull", "pop"] | None,
    share_queues: int | None,
) -> None:
    """Set how a group gets the messages of a topic, or show it.

    With pull each queue belongs to one member; with pop members take messages from any queue and
    acknowledge each. It takes effect for members whose queues brokers assign: Python's
    PushConsumer with mode="pop" or "auto", Java's with setClientRebalance(false).

    Without MODE it shows the mode on each broker, which is the broker's default if none was set.
    """
    modes: Mapping[str, str | None]
    if mode is None:
        if share_queues is not None:
            raise click.UsageError("--share-queues needs a mode: skylark group mode T G pop")
        modes = call_admin(lambda admin: admin.groups.modes(topic, group))
    else:
        count = share_queues or 0
        brokers = call_admin(
            lambda admin: admin.groups.set_mode(topic, group, mode, share_queues=count)
        )
        modes = dict.fromkeys(brokers, mode)
    context.output.rows(
        ("topic", "group", "broker", "mode"),
        (
            {"topic": topic, "group": group, "broker": broker, "mode": each}
            for broker, each in sorted(modes.items())
        ),
    )


# ---- delete --------------------------------------------------------------------------------------


@command.command("delete", epilog="Example: skylark group delete billing --yes")
@group_argument
@namesrv_option
@click.option("--keep-data", is_flag=True, help="Keep its offsets, retries and dead letters.")
@yes_option
@click.pass_obj
def delete(context: CliContext, group: str, keep_data: bool, yes: bool) -> None:
    """Delete a group with its offsets, retries and dead letters."""
    members = call_admin(lambda admin: admin.groups.members(group)).members
    if members:
        context.output.info(
            f"{len(members)} connected members would create the group again: stop them first"
        )
    what = "" if keep_data else " with its offsets, retries and dead letters"
    confirm(f"Delete {group}{what} permanently?", yes=yes)
    brokers = call_admin(lambda admin: admin.groups.delete(group, with_data=not keep_data))
    context.output.rows(
        ("group", "broker", "deleted"),
        ({"group": group, "broker": broker, "deleted": True} for broker in brokers),
    )
