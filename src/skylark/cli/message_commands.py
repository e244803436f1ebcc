"""``skylark message``: find stored messages, and find out what became of one of them.

Ids of both kinds are taken: the one that a producer got, which is looked up in its topic (without
``--topic`` in all topics), and the one that names the place in a broker's log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import (
    ask,
    complete_groups,
    complete_topics,
    moment,
    note_failures,
    plain,
    topic_argument,
)
from skylark.cli.message_rows import QUERY_COLUMNS, query_row, show_message
from skylark.cli.name_server_option import namesrv_option

if TYPE_CHECKING:
    from skylark.admin.admin_client import Admin
    from skylark.admin.explain import Explanation
    from skylark.admin.trace_query import MessageTrace
    from skylark.client.core.client_message import MessageExt

topic_option = click.option(
    "--topic", shell_complete=complete_topics, help="Its topic.  [default: look through all]"
)
from_option = click.option(
    "--from", "begin", metavar="TIME", help="Stored then or later: 2026-11-01T08:00, or 30m ago."
)
to_option = click.option("--to", "end", metavar="TIME", help="Stored before.  [default: now]")


@click.group("message")
def command() -> None:
    """Find messages, and why they were or were not consumed."""


@command.command("get", epilog="Example: skylark message get --key order-1 --topic orders")
@click.argument("message_id", metavar="[ID]", required=False)
@namesrv_option
@topic_option
@click.option("--key", help="A key of the message, instead of its id; needs --topic.")
@click.option("--trace", is_flag=True, help="Also what producer and consumers told about it.")
@click.pass_obj
def get(
    context: CliContext,
    message_id: str | None,
    namesrv: str | None,
    topic: str | None,
    key: str | None,
    trace: bool,
) -> None:
    """Show a message by its id, or those with a key."""
    if (message_id is None) == (key is None):
        raise click.UsageError("give the ID of a message, or --key")
    if key is not None and topic is None:
        raise click.UsageError("--key needs --topic: keys are looked up in one topic")

    async def found(admin: Admin) -> list[tuple[MessageExt, MessageTrace | None]]:
        from skylark.admin.errors import NotFoundError
        from skylark.admin.message_id_search import find_message

        if message_id is not None:
            messages = [await find_message(admin.session.asking_once(), message_id, topic)]
        else:
            messages = await admin.messages.by_key(topic or "", key or "")
            if not messages:
                raise NotFoundError(f"no message with key {key} in topic {topic}")
        if not trace:
            return [(message, None) for message in messages]
        return [(message, await trace_of(admin, message)) for message in messages]

    async def trace_of(admin: Admin, message: MessageExt) -> MessageTrace | None:
        from skylark.admin.errors import NotFoundError

        try:
            return await admin.messages.trace(message.msg_id)
        except NotFoundError as error:  # the message itself is there
            context.output.note(str(error))
            return None

    show_message(context.output, ask(namesrv, found))


@command.command("query", epilog="Example: skylark message query orders --from 30m --limit 20")
@topic_argument
@namesrv_option
@from_option
@to_option
@click.option("--key", help="Only messages with this key.")
@click.option("--tags", metavar="A||B", help="Only messages with one of these tags.")
@click.option("--broker", help="Only from this broker.")
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="Only from this queue.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="At most so many: the oldest, or with --key the newest.",
)
@click.pass_obj
def query(
    context: CliContext,
    topic: str,
    namesrv: str | None,
    begin: str | None,
    end: str | None,
    key: str | None,
    tags: str | None,
    broker: str | None,
    queue_id: int | None,
    limit: int,
) -> None:
    """List the messages of a time, oldest first."""
    if key is not None and (tags, broker, queue_id) != (None, None, None):
        raise click.UsageError("--key is looked up in the index: leave out --tags and queues")
    since = 0 if begin is None else moment(begin, "--from")
    until = None if end is None else moment(end, "--to")

    async def found(admin: Admin) -> list[MessageExt]:
        if key is not None:
            last = {} if until is None else {"end": until}
            return await admin.messages.by_key(topic, key, begin=since, limit=limit, **last)
        messages = admin.messages.between(
            topic, since, until, tags=tags or "*", limit=limit, broker=broker, queue_id=queue_id
        )
        return [message async for message in messages]

    messages = ask(namesrv, found)
    context.output.rows(QUERY_COLUMNS, map(query_row, messages))
    if len(messages) == limit:
        context.output.note(f"there may be more than {limit}: see --limit")


@command.command(
    "explain", epilog="Example: skylark message explain 7F00000100002A9F0000000000000000 --group g"
)
@click.argument("message_id", metavar="[ID]", required=False)
@namesrv_option
@topic_option
@click.option(
    "--group",
    shell_complete=complete_groups,
    help="For this group.  [default: for each that reads the topic]; without ID, the group itself.",
)
@click.pass_obj
def explain(
    context: CliContext,
    message_id: str | None,
    namesrv: str | None,
    topic: str | None,
    group: str | None,
) -> None:
    """Say why a message was or was not consumed.

    One account, in the order in which a message goes its way: each check is ok, not, or unknown.
    What is in the way comes with what to do about it. Without ID: why a group does not get on.
    """
    if message_id is None and group is None:
        raise click.UsageError("give the ID of a message, or --group, or both")

    async def accounts(admin: Admin) -> list[Explanation]:
        if message_id is None:
            return [await admin.messages.explain_group(group or "", topic=topic)]
        return await admin.messages.explain(message_id, topic=topic, group=group)

    found = ask(namesrv, accounts)
    if context.output.is_json:
        columns = ("message_id", "topic", "group", "consumed", "verdict", "checks", "failures")
        context.output.rows(columns, map(plain, found))
        return
    for number, account in enumerate(found):
        if number:
            context.output.gap()
        _show_account(context, account)
    silent = {failure.server: failure for account in found for failure in account.failures}
    note_failures(context, silent.values())


def _show_account(context: CliContext, account: Explanation) -> None:
    rows: list[dict[str, object]] = []
    for check in account.checks:
        rows.append({"status": check.status, "check": check.check, "finding": check.finding})
        if check.fix is not None:
            rows.append({"status": "", "check": "", "finding": f"-> {check.fix}"})
    consumed = {True: "yes", False: "no", None: "?"}[account.consumed]
    about = " by ".join(filter(None, (account.message_id, account.group)))
    rows.append({"status": "", "check": "", "finding": ""})
    rows.append(
        {
            "status": consumed,
            "check": "consumed",
            "finding": f"{about}: {account.verdict}",
        }
    )
    context.output.rows(("status", "check", "finding"), rows)
