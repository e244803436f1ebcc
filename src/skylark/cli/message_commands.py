"""``skylark message``: finds stored messages and explains their consumption.

Commands accept both kinds of ids: the unique id that a producer gets, which is looked up in its
topic (without ``--topic`` in all topics), and the offset message id, which names a log offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import TYPE_CHECKING

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import (
    GROUP,
    TOPIC,
    call_admin,
    format_time,
    namesrv_option,
    parse_time,
    topic_argument,
    warn_about_failures,
)
from skylark.cli.output import Columns, Output

if TYPE_CHECKING:
    from skylark.admin.admin_client import Admin
    from skylark.admin.explain import Explanation
    from skylark.admin.trace_query import MessageTrace
    from skylark.client.core.client_message import MessageExt


topic_option = click.option(
    "--topic", type=TOPIC, help="Topic of the message.  [default: search all]"
)
from_option = click.option(
    "--from",
    "begin",
    metavar="TIME",
    help="Only stored at this time or later: 2026-11-01T08:00, or 30m (ago).",
)
to_option = click.option(
    "--to", "end", metavar="TIME", help="Only stored before this time.  [default: now]"
)


@click.group("message")
def command() -> None:
    """Find messages, and explain why they were or were not consumed."""


@command.command("get", epilog="Example: skylark message get --key order-1 --topic orders")
@click.argument("message_id", metavar="[ID]", required=False)
@namesrv_option
@topic_option
@click.option("--key", help="Key of the message, instead of its ID; needs --topic.")
@click.option("--trace", is_flag=True, help="Also show the message trace.")
@click.pass_obj
def get(
    context: CliContext,
    message_id: str | None,
    topic: str | None,
    key: str | None,
    trace: bool,
) -> None:
    """Show the message with an ID, or the messages with a key."""
    if (message_id is None) == (key is None):
        raise click.UsageError("give the ID of a message, or --key")
    if key is not None and topic is None:
        raise click.UsageError("--key needs --topic: the index is per topic")

    async def found(admin: Admin) -> list[tuple[MessageExt, MessageTrace | None]]:
        from skylark.admin.errors import NotFoundError
        from skylark.admin.message_lookup import find_message

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
        except NotFoundError as error:  # the message exists, its trace does not
            context.output.info(str(error))
            return None

    show_message(context.output, call_admin(found))


@command.command("query", epilog="Example: skylark message query orders --from 30m --limit 20")
@topic_argument
@namesrv_option
@from_option
@to_option
@click.option(
    "--key",
    help="Only messages with this key, from the index; not with --tags, --broker or --queue.",
)
@click.option("--tags", metavar="A||B", help="Only messages with one of these tags.")
@click.option("--broker", help="Only from this broker.")
@click.option("--queue", "queue_id", type=click.IntRange(min=0), help="Only from this queue.")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=64,
    help="Show at most this many messages: the oldest ones, or with --key the newest ones.",
)
@click.pass_obj
def query(
    context: CliContext,
    topic: str,
    begin: str | None,
    end: str | None,
    key: str | None,
    tags: str | None,
    broker: str | None,
    queue_id: int | None,
    limit: int,
) -> None:
    """List the messages of a topic by store time, oldest first."""
    if key is not None and (tags, broker, queue_id) != (None, None, None):
        raise click.UsageError("--key uses the index: leave out --tags, --broker and --queue")
    since = 0 if begin is None else parse_time(begin, "--from")
    until = None if end is None else parse_time(end, "--to")

    async def found(admin: Admin) -> list[MessageExt]:
        if key is not None:
            last = {} if until is None else {"end": until}
            return await admin.messages.by_key(topic, key, begin=since, limit=limit, **last)
        messages = admin.messages.between(
            topic, since, until, tags=tags or "*", limit=limit, broker=broker, queue_id=queue_id
        )
        return [message async for message in messages]

    messages = call_admin(found)
    context.output.rows(QUERY_COLUMNS, messages)
    if len(messages) == limit:
        context.output.info(f"there may be more than {limit}: raise --limit")


@command.command(
    "explain", epilog="Example: skylark message explain 7F00000100002A9F0000000000000000 --group g"
)
@click.argument("message_id", metavar="[ID]", required=False)
@namesrv_option
@topic_option
@click.option(
    "--group",
    type=GROUP,
    help="Only this group.  [default: all groups of the topic]",
)
@click.pass_obj
def explain(
    context: CliContext,
    message_id: str | None,
    topic: str | None,
    group: str | None,
) -> None:
    """Explain why a message was or was not consumed.

    Checks each step from sending to consumption: ok, not, or unknown, and prints what to do about
    a problem. Without ID: explains why a group makes no progress.
    """
    if message_id is None and group is None:
        raise click.UsageError("give the ID of a message, or --group, or both")

    async def accounts(admin: Admin) -> list[Explanation]:
        if message_id is None:
            return [await admin.messages.explain_group(group or "", topic=topic)]
        return await admin.messages.explain(message_id, topic=topic, group=group)

    found = call_admin(accounts)
    if context.output.is_json:
        columns = ("message_id", "topic", "group", "consumed", "verdict", "checks", "failures")
        context.output.rows(columns, found)
        return
    for number, account in enumerate(found):
        if number:
            context.output.gap()
        _show_account(context, account)
    silent = {failure.server: failure for account in found for failure in account.failures}
    warn_about_failures(context, silent.values())


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


#: Maximum characters of a body in a list.
BODY_SHOWN_MAX = 60


def short_body(message: MessageExt) -> str:
    """The beginning of a body that is text, otherwise its size."""
    from skylark.admin.message_operations import view

    found = view(message, BODY_SHOWN_MAX * 4)
    if found.is_base64:
        return f"({found.body_size} bytes)"
    is_cut = found.is_cut or len(found.body) > BODY_SHOWN_MAX
    return found.body[:BODY_SHOWN_MAX] + ("..." if is_cut else "")


QUERY_COLUMNS: Columns = {
    "msg_id": "msg_id",
    "broker": "broker_name",
    "queue": "queue_id",
    "offset": "queue_offset",
    "stored": lambda message: format_time(message.record.store_timestamp),
    "tag": "tag",
    "keys": "keys",
    "body": short_body,
}


def show_message(
    output: Output, messages: Sequence[tuple[MessageExt, MessageTrace | None]]
) -> None:
    """Print messages with all fields, each with its trace if one is given."""
    import msgspec

    from skylark.admin.message_operations import view

    documents = []
    for message, trace in messages:
        document: dict[str, object] = msgspec.structs.asdict(view(message))
        for name in ("born_time", "store_time"):
            time_ms = document.pop(f"{name}_ms")
            assert isinstance(time_ms, int)
            document[name] = format_time(time_ms)
        if trace is not None:
            document["trace"] = trace
        documents.append(document)
    if output.is_json:
        columns = dict.fromkeys(name for document in documents for name in document)
        output.rows(tuple(columns), documents)  # some may have no trace
        return
    for number, document in enumerate(documents):
        if number:
            output.gap()
        message, trace = messages[number]
        shown = {
            key: value for key, value in document.items() if key not in ("properties", "trace")
        }
        for flag in ("flag", "is_base64", "is_cut"):
            if not shown[flag]:
                del shown[flag]
        properties = {f"property {key}": value for key, value in message.properties.items()}
        output.record({**shown, **properties})
        if trace is not None:
            output.gap()
            _show_trace(output, trace)


def _show_trace(output: Output, trace: MessageTrace) -> None:
    rows: list[tuple[object, ...]] = [
        ("sent", sent.time_ms, sent.group, sent.cost_ms, sent.success) for sent in trace.sends
    ]
    rows += [
        (f"transaction {end.state}", end.time_ms, end.group, None, True)
        for end in trace.transactions
    ]
    for each in trace.deliveries:
        after = (None, None) if each.after is None else (each.after.cost_ms, each.after.success)
        rows.append(("delivered", each.time_ms, each.group, *after))
    columns: Columns = {
        "event": itemgetter(0),
        "time": lambda row: format_time(row[1]),
        "group": itemgetter(2),
        "took_ms": itemgetter(3),
        "success": itemgetter(4),
    }
    output.rows(columns, rows)
