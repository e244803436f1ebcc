"""Dead letters: messages that a group gave up after the last retry.

They are stored in the topic ``%DLQ%<group>`` until they expire. These functions list, read and
redrive them (:mod:`skylark.admin.redrive`)::

    async for letter in admin.dlq.messages("billing"):
        print(letter.msg_id, letter.properties["RETRY_TOPIC"], letter.body)
    report = await admin.dlq.redrive("billing", where=lambda m: m.tag == "A", dry_run=True)
    report = await admin.dlq.redrive("billing", rate=100)

A redrive can be repeated, also after a crash: it sends no dead letter twice.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Final

import msgspec

from skylark.admin.admin_session import Operations, masters_of
from skylark.admin.errors import NotFoundError, ServerFailure
from skylark.admin.fan_out import few_at_a_time
from skylark.admin.queue_merge import QueueRange, merged, queue_messages
from skylark.admin.redrive import (
    RedriveProgress,
    RedriveReport,
    RedriveTerms,
    Run,
    resume_at,
    session_group,
)
from skylark.admin.redrive_sender import Destination
from skylark.admin.topic_operations import Topics
from skylark.admin.topic_queues import committed_offset, topic_stats
from skylark.client.core.argument_checks import checks_arguments
from skylark.client.core.client_message import MessageExt
from skylark.client.core.route_cache import make_route
from skylark.core.errors import ClientError, InvalidParameterError
from skylark.core.names import DLQ_PREFIX, dlq_topic, is_dlq_topic
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.fields import INT64_MAX

LIMIT: Final = 1_000
TOPICS_AT_ONCE: Final = 8


class DeadLetters(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters of one group."""

    group: str
    topic: str
    count: int
    pending: int  #: not yet processed by a redrive of the whole group
    last_time_ms: int | None  #: store time of the newest
    failures: tuple[ServerFailure, ...] = ()


@checks_arguments
class DeadLetterQueues(Operations):
    """Functions about dead letters."""

    async def all(self) -> list[DeadLetters]:
        """The groups that have a dead-letter topic, by name, with counts."""
        session = self._session.asking_once()
        topics = await Topics(session).names(with_internal=True)
        names = [name for name in topics if is_dlq_topic(name)]
        found = await few_at_a_time(names, DeadLetterQueues(session)._letters, TOPICS_AT_ONCE)
        return sorted((entry for entry in found if entry), key=lambda entry: entry.group)

    async def of(self, group: str) -> DeadLetters:
        """The counts of one group; raises NotFoundError if it never had dead letters."""
        found = await self._letters(dlq_topic(self._session.wrap(group)))
        if found is None:
            raise no_letters(group)
        return found

    async def _letters(self, topic: str) -> DeadLetters | None:
        """The counts of a dead-letter topic (name with namespace); None if it was deleted."""
        session = self._session
        route = await session.find_route(topic)
        masters = {} if route is None else masters_of(route)
        if not masters:
            return None
        group = topic.removeprefix(DLQ_PREFIX)
        mark = session_group(session, group)
        stats = await topic_stats(session, topic, masters)

        async def pending(number: int) -> int:
            ends = stats.queues[number]
            queue = session.namespace.wrap_queue(ends.queue)
            done = await committed_offset(session, masters[queue.broker_name], mark, queue)
            return ends.max_offset - resume_at(done, ends.min_offset, ends.max_offset)

        times = [ends.last_time_ms for ends in stats.queues if ends.last_time_ms is not None]
        return DeadLetters(
            group=session.unwrap(group),
            topic=session.unwrap(topic),
            count=sum(ends.count for ends in stats.queues),
            pending=sum(await few_at_a_time(range(len(stats.queues)), pending)),
            last_time_ms=max(times, default=None),
            failures=stats.failures,
        )

    async def messages(self, group: str, *, limit: int = LIMIT) -> AsyncGenerator[MessageExt, None]:
        """The dead letters of a group, oldest first, at most ``limit``.

        Raises NotFoundError if the group never had any.
        """
        if limit < 1:
            raise InvalidParameterError(f"limit must be at least 1, not {limit}")
        session = self._session
        parts = await self._ranges(group)
        sources = [queue_messages(session, part, 0, INT64_MAX) for part in parts]
        async with aclosing(merged(sources, limit)) as found:
            async for message in found:
                yield message

    async def redrive(
        self,
        group: str,
        *,
        messages: Sequence[MessageExt] | None = None,
        where: Callable[[MessageExt], bool] | None = None,
        to: Destination = "topic",
        dry_run: bool = False,
        rate: float | None = None,
        limit: int | None = None,
        restart: bool = False,
        on_progress: Callable[[RedriveProgress], object] | None = None,
    ) -> RedriveReport:
        """Send the dead letters of a group again: all that no run has processed yet, or these.

        ``where`` filters them; ``to="group"`` sends to the retry topic of the group, so that no
        other group gets them; ``dry_run`` only reports what would be sent; ``rate`` is in messages
        per second; ``limit`` ends the run after a number of messages; ``restart`` processes all
        dead letters again and sends those that were not sent. Calls ``on_progress`` for each.

        Raises NotFoundError if the group never had dead letters. The report lists failures.
        """
        if rate is not None and not rate > 0:
            raise InvalidParameterError(f"rate must be more than 0, not {rate}")
        if limit is not None and limit < 1:
            raise InvalidParameterError(f"limit must be at least 1, not {limit}")
        if to not in ("topic", "group"):
            raise InvalidParameterError(f"to must be topic or group, not {to!r}")
        terms = RedriveTerms(
            to=to,
            where=where,
            dry_run=dry_run,
            rate=rate,
            limit=limit,
            on_progress=on_progress,
        )
        run = Run(self._session, self._session.wrap(group), terms)
        if messages is None:
            return await run.over_queues(await self._ranges(group), restart=restart)
        topic = dlq_topic(self._session.wrap(group))
        for message in messages:
            if message.record.topic != topic:
                raise InvalidParameterError(
                    f"message {message.msg_id} is not a dead letter of {group}"
                )
        return await run.over_messages(messages)

    async def _ranges(self, group: str) -> list[QueueRange]:
        """The current range of each queue of dead letters of a group."""
        session, topic = self._session, dlq_topic(self._session.wrap(group))
        route = await session.find_route(topic)
        if route is None:
            raise no_letters(group)
        masters = masters_of(route)
        queues = [q for q in make_route(topic, route).subscribe if q.broker_name in masters]
        if not queues:
            raise ClientError(
                f"the dead-letter topic of {group} is not readable",
                hint=f"older brokers create it write-only: run skylark topic set {topic} --perm rw",
            )

        async def ends(queue: MessageQueue) -> QueueRange:
            address = masters[queue.broker_name]
            return QueueRange(
                queue=queue,
                address=address,
                start=await session.calls.min_offset(address, queue),
                end=await session.calls.max_offset(address, queue),
            )

        return await few_at_a_time(sorted(queues), ends)


def no_letters(group: str) -> NotFoundError:
    """The error for a group without dead letters."""
    return NotFoundError(f"group {group} has no dead letters")
