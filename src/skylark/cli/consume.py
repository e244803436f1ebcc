"""``skylark consume``: prints the stored and the new messages of a topic.

There are four modes, which differ in what they commit:

================  ==============================================================================
without a group   registers and commits nothing; every run sees all messages
``--group G``     joins the group and shares the queues with its members; commits what it has
                  printed, and the next run continues after it
``--broadcast``   joins the group and reads all queues, independent of other members; its offsets
                  are in a file on this machine (``~/.rocketmq_offsets``)
``--pop``         joins the group and takes messages from any queue, as other pop consumers of it
                  do; acknowledges what it has printed. The rest is delivered to others, after
                  a minute at the latest
================  ==============================================================================

Without a group, stored messages are printed in the order of their store time over all queues (as
far as the clocks of the brokers agree), new messages as they arrive, in order within their queue.
With ``--follow`` the command survives restarts of brokers and reads queues that are added later.

It prints a line per message to stdout, in a format of :mod:`skylark.cli.consume_print`. Ctrl-C and
SIGTERM end it with exit code 0.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import (
    GROUP,
    client_options,
    given_namesrv,
    namesrv_option,
    parse_position,
    topic_argument,
)
from skylark.cli.consume_pop import consume_pop
from skylark.cli.consume_print import FORMS, Form, Printer
from skylark.cli.exit_codes import translated_errors
from skylark.cli.output import Output

if TYPE_CHECKING:
    import asyncio

    from skylark.client.consumer.lite_pull.lite_pull_settings import LitePullKeywords
    from skylark.client.consumer.subscription import Subscription
    from skylark.client.core.broker_connections import BrokerConnections
    from skylark.client.core.client_instance import ClientInstance
    from skylark.client.core.client_message import MessageExt
    from skylark.client.core.client_options import ClientOptions
    from skylark.client.core.route_cache import Route

logger = logging.getLogger(__name__)

PULL_COUNT = 32
SUSPEND_S = 15.0
PULL_TIMEOUT_S = 30.0
RETRY_S = 1.0
TRIES_MAX = 10
#: How often --follow checks for new queues of the topic.
ROUTE_INTERVAL_S = 10.0
#: Pulled lists of messages that wait to be printed, at most.
WAITING_MAX = 16
#: A group member with --no-follow ends when it has got nothing for so long: other members may
#: still hold queues, so there is no definite end.
GROUP_IDLE_S = 2.0
GROUP_SETTLE_S = 10.0


@dataclass(frozen=True)
class Wanted:
    """The options of the command."""

    topic: str
    start: str | int | datetime  # earliest, latest, an offset or a time
    follow: bool
    tags: str | None
    queue: str | None
    broadcast: bool = False
    sql: str | None = None
    last: int | None = None
    pop: bool = False


@click.command(
    "consume",
    epilog="Example: skylark consume orders --from 2026-11-01T08:00 --tags 'new || paid'",
)
@topic_argument
@namesrv_option
@click.option(
    "--from",
    "start",
    metavar="WHERE",
    help="Start position: earliest, latest, a time (2026-11-01T08:00, local unless it has an"
    " offset), a duration ago (30m) or an offset. With --group, only for queues without a"
    " committed offset.  [default: earliest]",
)
@click.option("--count", type=click.IntRange(min=1), help="End after this number of messages.")
@click.option(
    "--follow/--no-follow",
    default=True,
    help="Wait for new messages, or end after the last stored one.",
)
@click.option(
    "--group",
    type=GROUP,
    help="Consumer group to join; commits the offsets of printed messages.",
)
@click.option(
    "--broadcast", is_flag=True, help="With --group: read all queues, as a broadcast consumer."
)
@click.option(
    "--pop",
    is_flag=True,
    help="With --group: take messages from any queue and acknowledge each, as a pop consumer.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMS),
    help="Columns, JSON, or only the body, one line per message.  [default: from --output]",
)
@click.option("--last", type=click.IntRange(min=1), help="Start with the N newest messages.")
@click.option("--tags", metavar="A||B", help="Only messages with one of these tags.")
@click.option(
    "--sql", metavar="CONDITION", help='Only messages whose properties match: "price > 10".'
)
@click.option(
    "--queue",
    metavar="[BROKER:]ID",
    help="Only this queue, on all brokers or on one; not with --group.",
)
@click.pass_obj
def command(
    context: CliContext,
    topic: str,
    start: str | None,
    count: int | None,
    follow: bool,
    group: str | None,
    broadcast: bool,
    pop: bool,
    form: Form | None,
    last: int | None,
    tags: str | None,
    sql: str | None,
    queue: str | None,
) -> None:
    """Print the messages of a topic.

    Prints stored messages and then new ones, until Ctrl-C. Without --group it commits no offsets
    and does not affect other consumers.
    """
    import asyncio

    if group is not None and queue is not None:
        raise click.UsageError(
            "a group assigns queues to its members: leave out --queue or --group"
        )
    if broadcast and group is None:
        raise click.UsageError("--broadcast needs --group: offsets are stored per group")
    if pop and (group is None or broadcast):
        raise click.UsageError("--pop needs --group, and excludes --broadcast")
    if last is not None and (start, group) != (None, None):
        raise click.UsageError("--last is a start position: leave out --from and --group")
    position = parse_position(start or "earliest", "--from")
    wanted = Wanted(topic, position, follow, tags, queue, broadcast, sql, last, pop)
    if group is not None and isinstance(wanted.start, int):
        raise click.UsageError("with --group, --from is earliest, latest or a time, not an offset")
    if pop and isinstance(wanted.start, datetime):
        raise click.UsageError("with --pop, --from is earliest or latest")
    _check_filter(wanted)
    context.configure_logging(
        "error"
    )  # the client's warnings that matter are errors of this command
    printer = Printer(context.output, topic, count, form)
    with translated_errors(topic):
        options = client_options(given_namesrv())
        if group is None:
            work = _consume_plain(printer, wanted, options)
        elif pop:
            work = consume_pop(printer, wanted, options, group, GROUP_IDLE_S)
        else:
            work = _consume_group(printer, wanted, options, group)
        asyncio.run(_until_signal(work))


def _check_filter(wanted: Wanted) -> None:
    """Refuse tags and conditions that no broker would accept."""
    from skylark.client.consumer.subscription import make_subscription
    from skylark.core.errors import ClientError

    try:
        make_subscription(wanted.topic, wanted.tags, sql=wanted.sql, now_ms=0)
    except ClientError as error:
        raise click.UsageError(str(error)) from error


async def _until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` until it ends; SIGTERM and Ctrl-C cancel it, which is not an error.

    If stdout is a pipe whose reader has gone, as in ``skylark consume T | head``, it raises
    BrokenPipeError at once, not only with the next message.
    """
    import asyncio
    from contextlib import suppress

    from skylark.client.core.shutdown_signals import call_on_signal

    task = asyncio.create_task(work)
    with (
        _reader_gone(task.cancel) as is_gone,
        call_on_signal(task.cancel),
        suppress(asyncio.CancelledError),
    ):
        await task
    if is_gone():
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


@contextmanager
def _reader_gone(callback: Callable[[], object]) -> Iterator[Callable[[], bool]]:
    """Call ``callback`` when the reader of stdout has gone; yields whether it has."""
    import asyncio

    gone: list[bool] = []
    loop = asyncio.get_running_loop()

    def noticed() -> None:
        loop.remove_reader(descriptor)
        gone.append(True)
        callback()

    try:
        descriptor = sys.stdout.fileno()
        is_pipe = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:  # closed, or not a file
        is_pipe = False
    if is_pipe:  # the writing end becomes readable when the reading end is closed
        loop.add_reader(descriptor, noticed)
    try:
        yield lambda: bool(gone)
    finally:
        if is_pipe:
            loop.remove_reader(descriptor)


# ---- as a member of a group ----------------------------------------------------------------------


async def _consume_group(
    printer: Printer, wanted: Wanted, options: ClientOptions, group: str
) -> None:
    import asyncio

    from skylark.client.consumer.lite_pull.lite_pull_consumer import LitePullConsumer
    from skylark.client.consumer.lite_pull.lite_pull_settings import LitePullSettings
    from skylark.core.clock import LoopClock
    from skylark.core.errors import ClientError

    settings = _group_start(wanted.start)
    if wanted.broadcast:
        settings["message_model"] = type(LitePullSettings().message_model).BROADCASTING
    consumer = LitePullConsumer(group, options, **settings)
    settled = asyncio.Event()
    consumer.subscribe(
        wanted.topic, wanted.tags, sql=wanted.sql, listener=lambda *shared: settled.set()
    )
    async with consumer:
        await consumer.fetch_queues(wanted.topic)  # raises at once if the topic does not exist
        if not wanted.follow:
            try:
                await LoopClock().wait_for(settled.wait(), GROUP_SETTLE_S)
            except TimeoutError:
                printer.output.info(f"group {group} has not assigned a queue to this consumer yet")
        while not printer.is_done:
            messages = await consumer.poll(GROUP_IDLE_S)
            if messages:
                shown = printer.show(messages)
                printer.flush()
                try:
                    await consumer.commit(shown)
                except ClientError as error:  # another member has the queue, and shows them again
                    printer.output.info(f"not committed: {error}")
            elif not wanted.follow:
                break


def _group_start(start: str | int | datetime) -> LitePullKeywords:
    """Settings for the start position of a group without committed offsets."""
    from skylark.client.consumer.lite_pull.lite_pull_settings import (
        LitePullKeywords,
        LitePullSettings,
    )
    from skylark.client.consumer.start_position import format_consume_timestamp

    where = type(LitePullSettings().consume_from_where)
    found = LitePullKeywords(auto_commit=False)
    if isinstance(start, datetime):
        found["consume_from_where"] = where.CONSUME_FROM_TIMESTAMP
        found["consume_timestamp"] = format_consume_timestamp(int(start.timestamp() * 1000))
    elif start == "earliest":
        found["consume_from_where"] = where.CONSUME_FROM_FIRST_OFFSET
    else:
        found["consume_from_where"] = where.CONSUME_FROM_LAST_OFFSET
    return found


# ---- without a group -----------------------------------------------------------------------------


async def _consume_plain(printer: Printer, wanted: Wanted, options: ClientOptions) -> None:
    import asyncio
    from contextlib import aclosing

    from skylark.admin.queue_merge import merged
    from skylark.client.core.instance_registry import open_instance

    async with open_instance(options) as (instance, link):
        topic = instance.namespace.wrap(wanted.topic)
        began = datetime.fromtimestamp(link.clock.now_ms() / 1000, tz=UTC)
        route = await link.lookup.subscribe_route(topic)
        readers = _readers(instance, link, wanted, route, printer.output)
        if not readers:
            raise click.BadParameter(f"{wanted.topic} has no such queue", param_hint="--queue")
        await asyncio.gather(*(reader.place(wanted.start) for reader in readers))
        if wanted.last is not None:
            newest = await asyncio.gather(*(reader.newest(wanted.last) for reader in readers))
            printer.show(_newest(newest, wanted.last))
        else:
            async with aclosing(merged([reader.stored() for reader in readers])) as stored:
                async for message in stored:
                    printer.show([message])
                    if printer.is_done:
                        return
        printer.flush()
        follows = wanted.follow and not printer.is_done
        if follows:
            async with aclosing(
                _following(instance, link, wanted, began, readers, printer.output)
            ) as coming:
                async for messages in coming:
                    printer.show(messages)
                    printer.flush()
                    if printer.is_done:
                        return


def _newest(of_queues: Iterable[list[MessageExt]], count: int) -> list[MessageExt]:
    """The newest messages of all queues, in the order of their store time.

    A broker stores many messages in a millisecond, which are in order in its log.
    """
    records = ((each.record, each) for each in chain.from_iterable(of_queues))
    found = sorted(records, key=lambda it: (it[0].store_timestamp, it[0].log_offset))
    return [message for _, message in found[-count:]]


def _readers(
    instance: ClientInstance, link: BrokerConnections, wanted: Wanted, route: Route, output: Output
) -> list[_QueueReader]:
    """A reader for each selected queue."""
    from skylark.client.consumer.subscription import make_subscription

    subscription = make_subscription(
        route.topic, wanted.tags, sql=wanted.sql, now_ms=link.clock.now_ms()
    )
    return [
        _QueueReader(instance, link, route, place, subscription, output)
        for place, queue in enumerate(route.subscribe)
        if wanted.queue in (None, str(queue.queue_id), f"{queue.broker_name}:{queue.queue_id}")
    ]


class _QueueReader:
    """Reads one queue: first the stored messages, then new ones."""

    def __init__(
        self,
        instance: ClientInstance,
        link: BrokerConnections,
        route: Route,
        place: int,
        subscription: Subscription,
        output: Output,
    ) -> None:
        """``place``: index of the queue in the route."""
        from skylark.client.consumer.pull_api import QueueAccess
        from skylark.core.names import TOOLS_GROUP

        self.queue = route.subscribe[place]
        self._output = output
        self._link = link
        self._subscription = subscription
        self._access = QueueAccess(instance, link, TOOLS_GROUP)
        self._start = 0
        self._end = 0  # stored messages end here, new ones begin

    async def place(self, start: str | int | datetime) -> None:
        """Determine the start offset and the end of the stored messages."""
        low = await self._access.min_offset(self.queue)
        self._end = await self._access.max_offset(self.queue)
        offset = low if start == "earliest" else self._end
        if isinstance(start, datetime):
            time_ms = max(0, int(start.timestamp() * 1000))
            offset = await self._access.search_offset(self.queue, time_ms)
        elif isinstance(start, int):
            offset = start
        self._start = max(low, min(offset, self._end))

    async def join(self, start: str | int | datetime, began: datetime) -> None:
        """Determine the start offset of a queue that was found later; all of it counts as new.

        The queue may be new, or its broker may have been unreachable. So ``latest`` means the
        messages stored since this command started, as far as the clocks of both machines agree.
        """
        await self.place(began if start == "latest" else start)
        self._end = self._start

    def stored(self) -> AsyncGenerator[MessageExt, None]:
        """The stored messages."""
        return self._between(self._start, self._end)

    async def _between(self, offset: int, end: int) -> AsyncGenerator[MessageExt, None]:
        while offset < end:
            messages, next_offset = await self._pull(offset, wait=False)
            for message in messages:
                if message.queue_offset < end:
                    yield message
            if next_offset <= offset:  # no messages any more: topic deleted or created again
                self._output.info(f"{self.queue} ends at {offset}, before {end}")
                return
            offset = next_offset

    async def newest(self, count: int) -> list[MessageExt]:
        """The newest ``count`` stored messages that match, or all of them.

        Reads further back as long as the filter leaves too few.
        """
        found: list[MessageExt] = []
        end, span = self._end, count
        while len(found) < count and end > self._start:
            first = max(self._start, end - span)
            found[:0] = [message async for message in self._between(first, end)]
            end, span = first, 8 * span
        return found[-count:]

    async def follow(self, arrived: asyncio.Queue[list[MessageExt] | Exception]) -> None:
        """Put new messages into ``arrived``, or an error that is not transient."""
        offset = self._end
        while True:
            try:
                messages, offset = await self._pull(offset, wait=True)
            except Exception as error:  # noqa: BLE001 - _following raises it
                await arrived.put(error)
                return
            if messages:
                await arrived.put(messages)

    async def _pull(self, offset: int, *, wait: bool) -> tuple[list[MessageExt], int]:
        """Pull messages; returns them and the next offset.

        Retries after transient errors, without limit if ``wait``.
        """
        from skylark.client.consumer.pull_api import PullTerms
        from skylark.client.errors import UndecodableError
        from skylark.client.public_names import FilterSyntaxError
        from skylark.core.errors import (
            NoPermissionError,
            SkylarkError,
            SubscriptionGroupNotExistError,
            TopicNotExistError,
        )

        suspend_s = SUSPEND_S if wait else 0.0
        terms = PullTerms(
            count_max=PULL_COUNT,
            suspend_s=suspend_s,
            timeout_s=PULL_TIMEOUT_S,
            needs_version=False,  # without a group there are no heartbeats
        )
        tries_left = None if wait else TRIES_MAX
        is_reported = False
        while True:
            try:
                result, _ = await self._access.pull(self.queue, self._subscription, offset, terms)
            except UndecodableError as error:
                self._output.info(f"{error}: skipped")
                return [], error.next_offset
            except (
                FilterSyntaxError,
                TopicNotExistError,
                NoPermissionError,
                SubscriptionGroupNotExistError,
            ):
                raise
            except SkylarkError as error:
                if tries_left is not None:
                    tries_left -= 1
                    if not tries_left:
                        raise
                if not is_reported:
                    is_reported = True
                    self._output.info(f"cannot read {self.queue}, retrying: {error}")
                await self._link.clock.sleep(RETRY_S)
            else:
                return result.messages, result.next_offset


async def _following(
    instance: ClientInstance,
    link: BrokerConnections,
    wanted: Wanted,
    began: datetime,
    readers: list[_QueueReader],
    output: Output,
) -> AsyncGenerator[list[MessageExt], None]:
    """New messages, also of queues that are added; raises errors that are not transient."""
    import asyncio

    from skylark.client.consumer.range_reader import end_tasks
    from skylark.core.errors import SkylarkError

    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[list[MessageExt] | Exception] = asyncio.Queue(WAITING_MAX)
    topic = readers[0].queue.topic
    known = {reader.queue for reader in readers}
    tasks = [loop.create_task(reader.follow(arrived)) for reader in readers]

    async def find_new_queues() -> None:
        while True:
            await link.clock.sleep(ROUTE_INTERVAL_S)
            try:
                route = await instance.refresh_route(topic)
            except SkylarkError as error:
                logger.debug("cannot refresh the route of %s, retrying: %s", topic, error)
                continue
            for reader in _readers(instance, link, wanted, route, output) if route else ():
                if reader.queue in known:
                    continue
                try:
                    await reader.join(wanted.start, began)
                except SkylarkError as error:
                    logger.debug("cannot start reading %s, retrying: %s", reader.queue, error)
                    continue
                known.add(reader.queue)
                tasks.append(loop.create_task(reader.follow(arrived)))

    tasks.append(loop.create_task(find_new_queues()))
    try:
        while True:
            found = await arrived.get()
            if isinstance(found, Exception):
                raise found
            yield found
    finally:
        await end_tasks(tasks)
