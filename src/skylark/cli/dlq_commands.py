"""``skylark dlq``: lists, shows and redrives the dead letters of consumer groups.

``redrive`` can be repeated, also after a crash: it sends no dead letter twice and continues where
the last run ended (:mod:`skylark.admin.redrive`). A run with a filter reads all dead letters again.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import (
    call_admin,
    confirm,
    format_time,
    group_argument,
    namesrv_option,
    parse_time,
    warn_about_failures,
    yes_option,
)
from skylark.cli.exit_codes import ExitCode
from skylark.cli.message_commands import short_body
from skylark.cli.output import Columns

if TYPE_CHECKING:
    from skylark.admin.admin_client import Admin
    from skylark.admin.redrive import RedriveReport
    from skylark.client.core.client_message import MessageExt

LIST_COLUMNS: Columns = {
    "group": "group",
    "letters": "count",
    "pending": "pending",
    "last_died": lambda letters: format_time(letters.last_time_ms),
}
SHOW_COLUMNS: Columns = {
    "msg_id": "msg_id",
    "dead_letter_id": "offset_msg_id",
    "topic": lambda letter: (
        letter.properties.get("DLQ_ORIGIN_TOPIC") or letter.properties.get("RETRY_TOPIC")
    ),
    "tag": "tag",
    "keys": "keys",
    "retries": "reconsume_times",
    "born": lambda letter: format_time(letter.record.born_timestamp),
    "died": lambda letter: format_time(letter.record.store_timestamp),
    "body": short_body,
}
LETTER_COLUMNS = ("msg_id", "dead_letter_id", "topic", "outcome", "new_id", "problem")


@click.group("dlq")
def command() -> None:
    """List, show and redrive dead letters."""


@command.command("list", epilog="Example: skylark dlq list")
@namesrv_option
@click.pass_obj
def list_groups(context: CliContext) -> None:
    """List the groups that have dead letters."""
    found = call_admin(lambda admin: admin.dlq.all())
    context.output.rows(LIST_COLUMNS, found)
    for letters in found:
        warn_about_failures(context, letters.failures)


@command.command("show", epilog="Example: skylark dlq show billing --limit 10")
@group_argument
@namesrv_option
@click.option("--limit", type=click.IntRange(min=1), default=64, help="Maximum number.")
@click.pass_obj
def show(context: CliContext, group: str, limit: int) -> None:
    """Show the dead letters of a group, oldest first."""

    async def letters(admin: Admin) -> list[MessageExt]:
        return [letter async for letter in admin.dlq.messages(group, limit=limit)]

    context.output.rows(SHOW_COLUMNS, call_admin(letters))


@command.command("redrive", epilog="Example: skylark dlq redrive billing --tag paid --dry-run")
@group_argument
@namesrv_option
@click.option(
    "--id",
    "ids",
    multiple=True,
    help="Only the messages with the given ids, of either kind; repeatable.",
)
@click.option(
    "--tag", "tags", multiple=True, help="Only messages with one of the given tags; repeatable."
)
@click.option(
    "--key", "keys", multiple=True, help="Only messages with one of the given keys; repeatable."
)
@click.option("--since", metavar="TIME", help="Only dead letters stored at this time or later.")
@click.option("--until", metavar="TIME", help="Only dead letters stored before this time.")
@click.option(
    "--to",
    type=click.Choice(["topic", "group"]),
    default="topic",
    help="topic: to the original topic, for all its groups; group: to this group only, as retries.",
)
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="Maximum messages per second."
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help="Stop after sending this many messages; skipped and failed ones do not count.",
)
@click.option(
    "--restart",
    is_flag=True,
    help="Check all dead letters again, not only new ones, and send those that were not sent.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be sent.")
@yes_option
@click.pass_context
def redrive(
    ctx: click.Context,
    /,
    group: str,
    ids: tuple[str, ...],
    tags: tuple[str, ...],
    keys: tuple[str, ...],
    since: str | None,
    until: str | None,
    restart: bool,
    dry_run: bool,
    yes: bool,
    **given: Any,
) -> None:
    """Send the dead letters of a group again, except those already sent by earlier runs."""
    context: CliContext = ctx.obj
    where = _filter(
        ids,
        tags,
        keys,
        None if since is None else parse_time(since, "--since"),
        None if until is None else parse_time(until, "--until"),
    )
    letters = call_admin(lambda admin: admin.dlq.of(group))
    count = letters.count if where or restart else letters.pending
    if count and not dry_run:
        what = "those that match" if where else "them"
        confirm(f"Read {count} dead letters of {group} and send {what} again?", yes=yes)
    with context.output.progress(f"dead letters of {group}", letters.count) as step:
        report = call_admin(
            lambda admin: admin.dlq.redrive(
                group,
                where=where,
                dry_run=dry_run,
                # A filter skips dead letters, so the saved position does not say which were sent.
                restart=restart or where is not None,
                on_progress=lambda _: step(1),
                **given,
            ),
        )
    passed = 0 if restart or where is not None else letters.count - letters.pending
    _show_report(context, report, passed)
    if not report.is_complete:
        ctx.exit(ExitCode.FAILED)


def _filter(
    ids: tuple[str, ...],
    tags: tuple[str, ...],
    keys: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
) -> Callable[[MessageExt], bool] | None:
    """A filter made of the options; None if there are none."""
    if not ids and not tags and not keys and since is None and until is None:
        return None
    wanted = {each.upper() for each in ids}

    def matches(letter: MessageExt) -> bool:
        return (
            (not wanted or letter.msg_id.upper() in wanted or letter.offset_msg_id in wanted)
            and (not tags or letter.tag in tags)
            and (not keys or not set(keys).isdisjoint(letter.keys))
            and (since is None or letter.store_time >= since)
            and (until is None or letter.store_time < until)
        )

    return matches


def _show_report(context: CliContext, report: RedriveReport, passed: int) -> None:
    """``passed``: dead letters that this run did not read, because earlier ones processed them.

    JSON output does not count them; ``dlq list`` has the difference of ``letters`` and ``pending``.
    """
    import msgspec

    if context.output.is_json:
        document = {**msgspec.structs.asdict(report), "is_complete": report.is_complete}
        context.output.record(document)
        return
    counts = report.counts
    before = counts.already + passed
    if report.letters:
        context.output.rows(LETTER_COLUMNS, report.letters)
        context.output.gap()
    elif passed and not counts.total:
        what = f"all {passed} were sent" if passed > 1 else "the only one was sent"
        context.output.info(f"nothing to send: {what} before (--restart checks them again)")
    context.output.record(
        {
            "would be sent" if report.dry_run else "sent": counts.sent,
            "sent before": before,
            "left out": counts.filtered,
            "failed": counts.failed,
        }
    )
    if report.stopped is not None:
        context.output.info(f"Stopped: {report.stopped}. Run the command again to continue")
