"""The protocol of an exactly-once sink, as steps without I/O.

::

    task    Look               decided already?  then send nothing, the batch is done or will be
            halves, manifests  everything acknowledged before the task ends
    driver  Look, Append(D), Confirm   the first D of the batch counts, whoever wrote it
            CommitHalves ...   for each manifest of each winner
            Append(X)
            RollBack ...       attempts of its own that did not win

:func:`commit` and :func:`abort` are generators: they yield a step, whoever runs them does it and
sends the result back in (:mod:`skylark.spark.exactly_once.commit_coordinator` on a cluster, a model
in the tests). A step that fails is thrown in and ends the generator: nothing here catches, because
everything can be begun again from the log.

**After a crash.** Before D the batch does not count: Spark runs it again with new attempts, and the
old halves turn out to be losers. After D tasks send nothing and the driver goes on with the
commits, which may be repeated: END_TRANSACTION counts once. After X there is nothing to do.

**Abort.** Spark calls it when a task failed, and also after a failed commit, then with the messages
of all tasks. A commit that failed may have appended its D without hearing of it, or D may even
arrive later: so when all messages are there nothing is rolled back. What is then left undecided is
rolled back later, as the halves of losers.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeAlias

import msgspec

from skylark.core.errors import SkylarkError
from skylark.spark.exactly_once.txn_log_records import (
    Decision,
    Done,
    Manifest,
    Ruling,
    Standing,
    Winner,
)


class AbandonedError(SkylarkError):
    """An operator has given the batch up."""

    def __init__(self, sink: str, batch: int) -> None:
        super().__init__(
            f"batch {batch} of sink {sink} was abandoned by an operator",
            hint="start the query with a new checkpoint (or another txnId)",
        )


class DecisionLostError(SkylarkError):
    """A batch that was decided is not decided any more."""


class Prepared(msgspec.Struct, frozen=True, kw_only=True):
    """What one task has written: the halves of one attempt, or nothing at all."""

    sink: str
    batch: int
    partition: int
    attempt: str
    count: int
    manifests: tuple[int, ...] = ()
    void: tuple[int, ...] = ()
    already: bool = False  #: the batch was decided before, so nothing was sent

    def as_winner(self) -> Winner:
        """The entry in a decision."""
        return Winner(
            partition=self.partition,
            attempt=self.attempt,
            count=self.count,
            manifests=self.manifests,
            void=self.void,
        )


class Look(msgspec.Struct, frozen=True):
    """Read the log about a batch; the result is a :class:`View`."""

    sink: str
    batch: int


class View(msgspec.Struct, frozen=True):
    """What the log says about a batch, up to ``end``."""

    standing: Standing
    end: int


class Append(msgspec.Struct, frozen=True):
    """Append a record to the log; the result is its offset."""

    record: Ruling


class Confirm(msgspec.Struct, frozen=True):
    """Read what was appended from ``start`` to ``end``, which is included; a Standing."""

    sink: str
    batch: int
    start: int
    end: int


class CommitHalves(msgspec.Struct, frozen=True):
    """Commit the halves that a manifest names; may have been done before, in part or all."""

    decision: Decision
    winner: Winner
    position: int  #: of the manifest in the log


class RollBack(msgspec.Struct, frozen=True):
    """Roll back the halves of an attempt that lost; need not succeed."""

    prepared: Prepared


Step: TypeAlias = Look | Append | Confirm | CommitHalves | RollBack
Steps: TypeAlias = Generator[Step, Any, None]


def commit(sink: str, batch: int, messages: Sequence[Prepared]) -> Steps:
    """The driver has heard of all tasks: decide, and commit what was decided."""
    view: View = yield Look(sink, batch)
    standing = view.standing
    if standing.decision is None and not standing.abandoned:
        if any(message.already for message in messages):
            raise DecisionLostError(
                f"batch {batch} of sink {sink} was decided, and the log does not say so any more",
                hint="the log lost records: has its broker lost power without SYNC_FLUSH?",
            )
        winners = tuple(message.as_winner() for message in messages)
        decision = Decision(sink=sink, batch=batch, winners=winners, seen=view.end)
        position: int = yield Append(decision)
        standing = yield Confirm(sink, batch, view.end, position)
    if standing.decision is None:
        raise AbandonedError(sink, batch)
    decision = standing.decision
    if not standing.done:
        for winner in decision.winners:
            for position in winner.manifests:
                yield CommitHalves(decision, winner, position)
        yield Append(Done(sink=sink, batch=batch))
    yield from _roll_back(messages, decision)


def abort(messages: Sequence[Prepared | None]) -> Steps:
    """A task has failed, or the commit has; see the module."""
    written = [message for message in messages if message is not None]
    if not written or len(written) == len(messages):
        return
    view: View = yield Look(written[0].sink, written[0].batch)
    yield from _roll_back(written, view.standing.decision)


def _roll_back(messages: Sequence[Prepared], decision: Decision | None) -> Steps:
    for message in messages:
        is_winner = decision is not None and decision.winner(message.partition, message.attempt)
        if message.manifests and not is_winner:
            yield RollBack(message)


def check_manifest(manifest: object, winner: Winner | Prepared, sink: str, batch: int) -> Manifest:
    """A manifest that was found where the winner says; raises DecisionLostError."""
    if (
        not isinstance(manifest, Manifest)
        or (manifest.sink, manifest.batch) != (sink, batch)
        or (manifest.partition, manifest.attempt) != (winner.partition, winner.attempt)
    ):
        raise DecisionLostError(
            f"a manifest of batch {batch} of sink {sink}, partition {winner.partition}, is gone",
            hint="the log lost records: were they older than fileReservedTime?",
        )
    return manifest
