"""Commit protocol of an exactly-once sink, as steps without I/O.

::

    task    ReadStatus         decided already?  then send nothing: the batch is or will be done
            halves, manifests  everything is acknowledged before the task ends
    driver  ReadStatus, Append(D), Confirm   the first D of the batch is valid, of any writer
            CommitHalves ...   for each manifest of each winner
            Append(X)
            RollBack ...       own attempts that did not win

:func:`commit` and :func:`abort` are generators that yield steps. The caller executes each step and
sends its result back (:mod:`skylark.spark.exactly_once.commit_coordinator` on a cluster, a model in
the tests). The error of a failed step ends the generator: nothing here catches it, because the
protocol can always start again from the log.

**After a crash.** Before D the batch is not committed: Spark runs it again with new attempts, and
the old half messages are rolled back as losers. After D tasks send nothing, and the driver repeats
the commits: END_TRANSACTION is idempotent. After X there is nothing to do.

**Abort.** Spark calls it when a task failed, and also after a failed commit, then with the messages
of all tasks. A commit that failed may have appended its D without an answer, or D may even be
stored later. So if all messages are there, nothing is rolled back. Half messages that stay
undecided are rolled back later, as those of losers.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeAlias

import msgspec

from skylark.core.errors import SkylarkError
from skylark.spark.exactly_once.txn_log_records import (
    BatchRecord,
    BatchStatus,
    Decision,
    Done,
    Manifest,
    Winner,
)


class AbandonedError(SkylarkError):
    """An operator has abandoned the batch."""

    def __init__(self, sink: str, batch: int) -> None:
        super().__init__(
            f"batch {batch} of sink {sink} was abandoned by an operator",
            hint="start the query with a new checkpoint (or another txnId)",
        )


class DecisionLostError(SkylarkError):
    """The log has lost the decision about a batch, or a manifest of it."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one task: the half messages of one attempt, if any; pickled to the driver."""

    sink: str
    batch: int
    partition: int
    attempt: str
    count: int
    manifests: tuple[int, ...] = ()
    void: tuple[int, ...] = ()
    already: bool = False  #: the batch was decided before, so nothing was sent

    def as_winner(self) -> Winner:
        """The entry of this attempt in a decision."""
        return msgspec.convert(self, Winner, from_attributes=True)


class ReadStatus(msgspec.Struct, frozen=True):
    """Step: read the log about a batch; the result is a :class:`StatusView`."""

    sink: str
    batch: int


class StatusView(msgspec.Struct, frozen=True):
    """The status of a batch, read from the transaction log before offset ``end``."""

    status: BatchStatus
    end: int


class Append(msgspec.Struct, frozen=True):
    """Step: append a record to the log; the result is its offset."""

    record: BatchRecord


class Confirm(msgspec.Struct, frozen=True):
    """Step: read the records from ``start`` to ``end`` inclusive; the result is a BatchStatus."""

    sink: str
    batch: int
    start: int
    end: int


class CommitHalves(msgspec.Struct, frozen=True):
    """Step: commit the half messages of a manifest; may be a repetition."""

    decision: Decision
    winner: Winner
    position: int  #: offset of the manifest in the log


class RollBack(msgspec.Struct, frozen=True):
    """Step: roll back the half messages of a losing attempt; may fail."""

    prepared: Prepared


Step: TypeAlias = ReadStatus | Append | Confirm | CommitHalves | RollBack
Steps: TypeAlias = Generator[Step, Any, None]


def commit(sink: str, batch: int, messages: Sequence[Prepared]) -> Steps:
    """Decide a batch whose tasks have all succeeded, and commit the decision."""
    view: StatusView = yield ReadStatus(sink, batch)
    status = view.status
    if status.decision is None and not status.abandoned:
        if any(message.already for message in messages):
            raise DecisionLostError(
                f"batch {batch} of sink {sink} was decided, and the log no longer has the decision",
                hint="the log lost records: has its broker lost power without SYNC_FLUSH?",
            )
        winners = tuple(message.as_winner() for message in messages)
        decision = Decision(sink=sink, batch=batch, winners=winners, seen=view.end)
        position: int = yield Append(decision)
        status = yield Confirm(sink, batch, view.end, position)
    if status.decision is None:
        raise AbandonedError(sink, batch)
    decision = status.decision
    if not status.done:
        for winner in decision.winners:
            for position in winner.manifests:
                yield CommitHalves(decision, winner, position)
        yield Append(Done(sink=sink, batch=batch))
    yield from _roll_back(messages, decision)


def abort(messages: Sequence[Prepared | None]) -> Steps:
    """Roll back after a failed task or a failed commit; see the module."""
    written = [message for message in messages if message is not None]
    if not written or len(written) == len(messages):
        return
    view: StatusView = yield ReadStatus(written[0].sink, written[0].batch)
    yield from _roll_back(written, view.status.decision)


def _roll_back(messages: Sequence[Prepared], decision: Decision | None) -> Steps:
    for message in messages:
        is_winner = decision is not None and decision.winner(message.partition, message.attempt)
        if message.manifests and not is_winner:
            yield RollBack(message)


def check_manifest(manifest: object, winner: Winner | Prepared, sink: str, batch: int) -> Manifest:
    """Check that a record is the manifest of the winner; raises DecisionLostError."""
    if (
        not isinstance(manifest, Manifest)
        or (manifest.sink, manifest.batch) != (sink, batch)
        or (manifest.partition, manifest.attempt) != (winner.partition, winner.attempt)
    ):
        raise DecisionLostError(
            f"a manifest of batch {batch} of sink {sink}, partition {winner.partition}, is missing",
            hint="the log lost records: were they older than fileReservedTime?",
        )
    return manifest
