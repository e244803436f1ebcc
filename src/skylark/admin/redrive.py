"""A redrive run: sends the dead letters of a group again, each once, and counts the results.

:mod:`skylark.admin.redrive_sender` sends a single one. A run over all dead letters of a group
commits its progress, for a separate consumer group (:func:`progress_group`), every
:data:`COMMIT_EVERY` messages and at its end, also after an error; the next run continues there. It
never commits past a message that failed or did not match the filter: messages after it that were
already sent are recognised by their property. A run ends at the queue ends of its start, so new
dead letters are left to the next run.

A message that cannot be sent (its topic was deleted, a broker refuses it) counts as failed, and the
run continues. After :data:`FAILURES_IN_A_ROW` transient failures in a row the run stops, because
then the cause is the cluster and not the messages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from skylark.admin.admin_session import Session
from skylark.admin.queue_merge import QueueRange, queue_messages
from skylark.admin.redrive_sender import DeadLetterSender, Destination, Letter, restore
from skylark.admin.topic_queues import commit_offset, committed_offset
from skylark.client.core.broker_calls import make_request
from skylark.client.core.client_message import MessageExt
from skylark.core.errors import SkylarkError
from skylark.core.names import GROUP_LENGTH_MAX
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.config import SubscriptionGroupConfig
from skylark.wire.codes import RequestCode
from skylark.wire.fields import INT64_MAX

COMMIT_EVERY: Final = 32
FAILURES_IN_A_ROW: Final = 5
GAVE_UP: Final = f"{FAILURES_IN_A_ROW} sends failed in a row"
#: Maximum number of messages that a report lists; counts include all.
LISTED_MAX: Final = 1_000

Outcome: TypeAlias = Literal["sent", "planned", "already", "filtered", "failed"]


class Redriven(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one dead letter."""

    msg_id: str
    dead_letter_id: str  #: its offset message id
    queue: MessageQueue
    queue_offset: int
    topic: str | None  #: where it was sent
    outcome: Outcome
    new_id: str | None = None  #: offset message id of the copy
    problem: str | None = None


class RedriveProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of a run so far, or in total."""

    total: int  #: dead letters to process
    seen: int = 0
    sent: int = 0  #: with ``dry_run``: that would be sent
    already: int = 0  #: sent by an earlier run
    filtered: int = 0
    failed: int = 0


class RedriveReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a run."""

    group: str
    dry_run: bool
    counts: RedriveProgress
    letters: tuple[Redriven, ...]  #: the first results, without filtered ones
    stopped: str | None = None  #: why it stopped before the end

    @property
    def is_complete(self) -> bool:
        """Whether nothing failed and the end was reached."""
        return self.stopped is None and not self.counts.failed


class RedriveTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run; see :meth:`skylark.admin.dlq.DeadLetterQueues.redrive`."""

    to: Destination = "topic"
    where: Callable[[MessageExt], bool] | None = None
    dry_run: bool = False
    rate: float | None = None
    limit: int | None = None
    on_progress: Callable[[RedriveProgress], object] | None = None


def progress_group(group: str) -> str:
    """The consumer group that holds the progress of redrives of a group."""
    name = f"REDRIVE-{group}"
    if len(name) <= GROUP_LENGTH_MAX:
        return name
    digest = hashlib.sha256(group.encode()).hexdigest()[:16]
    return f"{name[: GROUP_LENGTH_MAX - 17]}-{digest}"


class Run:
    """One run; ``group`` with namespace."""

    def __init__(self, session: Session, group: str, terms: RedriveTerms) -> None:
        self._session = session
        self._group = group
        self._terms = terms
        self._sender = DeadLetterSender(session)
        self._counts = RedriveProgress(total=0)
        self._listed: list[Redriven] = []
        self._failures = 0
        self._due: float | None = None

    def _report(self, stopped: str | None = None) -> RedriveReport:
        return RedriveReport(
            group=self._session.unwrap(self._group),
            dry_run=self._terms.dry_run,
            counts=self._counts,
            letters=tuple(self._listed),
            stopped=stopped,
        )

    # ---- all of a group --------------------------------------------------------------------------

    async def over_queues(self, queues: Sequence[QueueRange], *, restart: bool) -> RedriveReport:
        """Process the queues from the end of the last run, or from their start with ``restart``."""
        session, mark = self._session, session_group(self._session, self._group)
        parts = []
        for part in queues:
            done = await committed_offset(session, part.address, mark, part.queue)
            start = part.start if restart else resume_at(done, part.start, part.end)
            parts.append(msgspec.structs.replace(part, start=start))
        self._counts = RedriveProgress(total=sum(part.end - part.start for part in parts))
        # A filter skips messages, and one offset per queue cannot express gaps.
        commits = not self._terms.dry_run and self._terms.where is None
        if commits:
            for address in dict.fromkeys(part.address for part in parts):
                config = SubscriptionGroupConfig(group_name=mark)
                code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
                await session.call(address, make_request(code, body=config))
        for part in parts:
            stopped = await self._over_queue(part, mark if commits else None)
            if stopped is not None:
                return self._report(stopped)
        return self._report()

    async def _over_queue(self, part: QueueRange, mark: str | None) -> str | None:
        """Process one queue; returns why the run must stop, or None."""
        committed = done = part.start
        is_whole = True
        messages = queue_messages(self._session, part, 0, INT64_MAX)
        try:
            async for message in messages:
                if self._is_enough():
                    return f"the limit of {self._terms.limit} messages is reached"
                outcome = await self._one(message)
                is_whole = is_whole and outcome != "failed"
                if is_whole:
                    done = message.queue_offset + 1
                if mark is not None and done - committed >= COMMIT_EVERY:
                    await commit_offset(self._session, part.address, mark, part.queue, done)
                    committed = done
                if self._failures >= FAILURES_IN_A_ROW:
                    return GAVE_UP
            if is_whole:
                done = part.end
        finally:
            await messages.aclose()
            if mark is not None and done > committed:
                await commit_offset(self._session, part.address, mark, part.queue, done)
        return None

    # ---- selected messages-----------------------------------------------------------------------

    async def over_messages(self, messages: Sequence[MessageExt]) -> RedriveReport:
        """Send these dead letters; commits nothing."""
        self._counts = RedriveProgress(total=len(messages))
        for message in messages:
            if self._is_enough():
                return self._report(f"the limit of {self._terms.limit} messages is reached")
            await self._one(message)
            if self._failures >= FAILURES_IN_A_ROW:
                return self._report(GAVE_UP)
        return self._report()

    # ---- one message -----------------------------------------------------------------------------

    def _is_enough(self) -> bool:
        return self._terms.limit is not None and self._counts.sent >= self._terms.limit

    async def _one(self, message: MessageExt) -> Outcome:
        where = self._terms.where
        if where is not None and not where(message):
            self._count("filtered")
            return "filtered"
        letter: Letter | None = None
        outcome: Outcome = "failed"
        new_id = problem = None
        try:
            letter = restore(message.record, self._group, self._terms.to)
            await self._sender.check(letter.destination)
            new_id = await self._sender.already_sent(letter)
            if new_id is not None:
                outcome = "already"
            elif self._terms.dry_run:
                outcome = "planned"
            else:
                await self._wait_turn()
                new_id = await self._sender.send(letter, message)
                outcome = "sent"
        except SkylarkError as error:
            problem = str(error)
            self._failures += error.retriable
        if outcome != "failed":
            self._failures = 0
        if len(self._listed) < LISTED_MAX:
            self._listed.append(self._redriven(message, letter, outcome, new_id, problem))
        self._count(outcome)
        return outcome

    def _redriven(
        self,
        message: MessageExt,
        letter: Letter | None,
        outcome: Outcome,
        new_id: str | None,
        problem: str | None,
    ) -> Redriven:
        return Redriven(
            msg_id=message.msg_id,
            dead_letter_id=message.offset_msg_id,
            queue=self._session.unwrap_queue(message.queue),
            queue_offset=message.queue_offset,
            topic=None if letter is None else self._session.unwrap(letter.destination),
            outcome=outcome,
            new_id=new_id,
            problem=problem,
        )

    def _count(self, outcome: Outcome) -> None:
        field = "sent" if outcome == "planned" else outcome
        now = {"seen": self._counts.seen + 1, field: getattr(self._counts, field) + 1}
        self._counts = msgspec.structs.replace(self._counts, **now)
        if self._terms.on_progress is not None:
            self._terms.on_progress(self._counts)

    async def _wait_turn(self) -> None:
        """Wait so that the rate is kept; time lost is not caught up."""
        rate, clock = self._terms.rate, self._session.clock
        if rate is None:
            return
        now = clock.monotonic()
        if self._due is not None and self._due > now:
            await clock.sleep(self._due - now)
        self._due = max(now, self._due or now) + 1 / rate


def resume_at(done: int | None, start: int, end: int) -> int:
    """The offset at which to continue in a queue with offsets [start, end).

    A committed offset beyond the end means that the topic was deleted and created again.
    """
    return start if done is None or done > end else max(start, done)


def session_group(session: Session, group: str) -> str:
    """:func:`progress_group` of a group, both with namespace."""
    return session.wrap(progress_group(session.unwrap(group)))
