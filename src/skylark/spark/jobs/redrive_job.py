"""Redrive job: sends the dead letters of a group back to it. Needs no Spark.

:mod:`skylark.admin.redrive` does the work: it sends no letter twice, a run continues where the last
one ended, and a run with a filter reads all letters each time. Unlike that function this job sends
to the retry topic of the group by default, so that no other group gets the letters again.

While a group consumes in order (it holds queue locks), brokers move messages of its retry topic
straight back to the dead letters. So such a group is refused; its letters can only go to their
original topic.

Some brokers create the dead-letter topic as write-only. A run makes it readable first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from skylark.admin.admin_session import masters_of
from skylark.admin.redrive import GAVE_UP
from skylark.client.core.route_cache import make_route
from skylark.core.errors import BrokerError, ClientError, ConfigError, SkylarkError
from skylark.core.names import dlq_topic, group_problem, retry_topic

if TYPE_CHECKING:
    from skylark.admin.admin_client import Admin
    from skylark.admin.redrive import RedriveProgress
    from skylark.client.core.client_message import MessageExt

_ORDERLY: Final = "PROP_CONSUMEORDERLY"


class RedriveOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a redrive job; raises ConfigError."""

    group: str
    to_original: bool = False  #: to the original topic, where every group gets them
    tags: frozenset[str] = frozenset()  #: letters with one of these; empty: any
    keys: frozenset[str] = frozenset()
    older_than_ms: int | None = None  #: minimum time since they became dead letters
    younger_than_ms: int | None = None
    rate: float | None = None  #: letters per second
    limit: int | None = None
    restart: bool = False  #: start again with the first letter
    dry_run: bool = False

    def __post_init__(self) -> None:
        if problem := group_problem(self.group):
            raise ConfigError(problem)
        older, younger = self.older_than_ms, self.younger_than_ms
        if older is not None and younger is not None and older >= younger:
            raise ConfigError("no letter is older than the first age and younger than the second")

    def wants(self, letter: MessageExt, now_ms: int) -> bool:
        """Whether the filters select a letter."""
        age_ms = now_ms - letter.record.store_timestamp
        return (
            (not self.tags or letter.tag in self.tags)
            and (not self.keys or not self.keys.isdisjoint(letter.keys))
            and (self.older_than_ms is None or age_ms >= self.older_than_ms)
            and (self.younger_than_ms is None or age_ms < self.younger_than_ms)
        )

    @property
    def has_filter(self) -> bool:
        """Whether there is a filter, which may skip letters."""
        ages = self.older_than_ms, self.younger_than_ms
        return bool(self.tags or self.keys) or ages != (None, None)


class RedriveSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a run."""

    group: str
    to: str
    dry_run: bool
    letters: int  #: letters read
    sent: int  #: in a dry run: letters that would be sent
    already_sent: int  #: letters that an earlier run has sent
    filtered: int
    failed: int
    stopped: str | None  #: the reason if it ended before the last letter
    first_problem: str | None

    @property
    def is_well(self) -> bool:
        """Whether all selected letters were sent."""
        return not self.failed and self.stopped != GAVE_UP


async def run(
    admin: Admin,
    options: RedriveOptions,
    on_progress: Callable[[RedriveProgress], object] | None = None,
) -> RedriveSummary:
    """Send the letters; raises SkylarkError for errors that concern all of them."""
    if not options.to_original:
        await _require_concurrent(admin, options.group)
    if not options.dry_run:
        await _make_readable(admin, options.group)
    now_ms = admin.session.clock.now_ms()
    report = await admin.dlq.redrive(
        options.group,
        where=(lambda letter: options.wants(letter, now_ms)) if options.has_filter else None,
        to="topic" if options.to_original else "group",
        dry_run=options.dry_run,
        rate=options.rate,
        limit=options.limit,
        restart=options.restart,
        on_progress=on_progress,
    )
    counts = report.counts
    return RedriveSummary(
        group=options.group,
        to="original topics" if options.to_original else retry_topic(options.group),
        dry_run=options.dry_run,
        letters=counts.seen,
        sent=counts.sent,
        already_sent=counts.already,
        filtered=counts.filtered,
        failed=counts.failed,
        stopped=report.stopped,
        first_problem=next(filter(None, (letter.problem for letter in report.letters)), None),
    )


async def _require_concurrent(admin: Admin, group: str) -> None:
    """Raise ClientError if the group consumes in order now."""
    members = await admin.groups.members(group)
    is_orderly = bool(members.locks)
    for member in members.members[:1]:
        try:
            info = await admin.groups.running_info(group, member.client_id)
        except (SkylarkError, TimeoutError):
            continue  # the client has left, or does not answer
        is_orderly = is_orderly or info.properties.get(_ORDERLY) == "true"
    if is_orderly:
        raise ClientError(
            f"group {group} consumes in order: brokers would move the letters straight back",
            hint="send them to their topic (--to-original), or stop its consumers for a minute",
        )


async def _make_readable(admin: Admin, group: str) -> None:
    session, topic = admin.session, dlq_topic(group)
    name = session.wrap(topic)
    route = await session.find_route(name)
    if route is None or not masters_of(route) or make_route(name, route).subscribe:
        return
    try:
        await admin.topics.update(topic, perm="rw")
    except BrokerError as error:
        raise ClientError(
            f"the dead letters of {group} cannot be read: {error}", hint=f"set {topic} to rw"
        ) from error
