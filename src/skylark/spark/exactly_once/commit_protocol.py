"""Commit protocol of an exactly-once sink, as steps without I/O.

::

    task    ReadStatus         decided already?  then send nothing: the batch is or will be done
            halves, manifests  everything is acknowledged before the task ends
    driver  ReadStatus
            Remember(deciding) outside the log, where retention does not reach
            Append(D), Confirm the first D of the batch is valid, of any writer
            CommitHalves ...   for each manifest of each winner
            Append(X)
            Remember(done)
            RollBack ...       own attempts that did not win

:func:`commit` and :func:`abort` are generators that yield steps. The caller executes each step and
sends its result back (:mod:`skylark.spark.exactly_once.commit_coordinator` on a cluster, a model in
the tests). The error of a failed step ends the generator: nothing here catches it, because the
protocol can always start again from the log.

**After a crash.** Before D the batch is not committed: Spark runs it again with new attempts, and
the old half messages are rolled back as losers. After D tasks send nothing, and the driver repeats
the commits: END_TRANSACTION is idempotent. After X there is nothing to do.

**After retention.** The log forgets; the memory of the sink does not. :func:`admit` lets a batch be
written only if the log or the memory proves that it was not decided before:

=====================================  ===========================================================
the log has a decision about it        written before: finish it
the memory says that it is done        written before: nothing to do
it was being decided, and the log      nobody knows: refused (:class:`OutcomeUnknownError`)
has lost records since then
neither has its predecessor            nobody knows: refused (:class:`PredecessorMissingError`)
everything else                        new
=====================================  ===========================================================

A crash after Remember(deciding) and before D leaves a memory that says "being decided" beside a log
that has everything since then, and no decision: the batch is new. Only if that log expires, before
any driver has come back, the batch is refused; so a memory that is too low refuses, and never lets
a batch be written twice.

**Abort.** Spark calls it when a task failed, and also after a failed commit, then with the messages
of all tasks. A commit that failed may have appended its D without an answer, or D may even be
stored later. So if all messages are there, nothing is rolled back. Half messages that stay
undecided are rolled back later, as those of losers.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from skylark.core.errors import SkylarkError
from skylark.spark.exactly_once.txn_log_records import (
    BatchRecord,
    BatchStatus,
    Decision,
    Done,
    Manifest,
    SinkMemory,
    Winner,
)

#: Fingerprints are sums modulo this, so that they fit into an offset.
DATA_MODULUS: Final = (1 << 61) - 1


class AbandonedError(SkylarkError):
    """An operator has abandoned the batch."""

    def __init__(self, sink: str, batch: int) -> None:
        super().__init__(
            f"batch {batch} of sink {sink} was abandoned by an operator",
            hint="start the query with a new checkpoint (or another txnId)",
        )


class DecisionLostError(SkylarkError):
    """The log has lost the decision about a batch, or a manifest of it."""


class PredecessorMissingError(DecisionLostError):
    """Neither the log nor the memory of the sink has the batch before this one."""

    def __init__(self, sink: str, batch: int) -> None:
        super().__init__(
            f"sink {sink} cannot go on at batch {batch}: nothing says whether batch {batch - 1} is"
            " the last one in the topic. Its records have expired, or the query was not"
            " exactly-once before",
            hint=settle_hint(sink, batch),
        )


class OutcomeUnknownError(DecisionLostError):
    """A driver has begun to decide the batch, and the log has expired since then."""

    def __init__(self, sink: str, batch: int) -> None:
        super().__init__(
            f"nothing says whether batch {batch} of sink {sink} was written: its driver ended while"
            " it committed the rows, and the log has expired since then",
            hint=settle_hint(sink, batch),
        )


class OtherDataError(SkylarkError):
    """A ``txnId`` that was used before, with other rows."""

    def __init__(self, sink: str) -> None:
        super().__init__(
            f"txnId {sink} was used before to write other rows: those are in the topic, the rows"
            " of this write are not",
            hint="use another txnId for other data; with the same rows a repetition does nothing",
        )


def settle_hint(sink: str, batch: int) -> str:
    """What an operator can do about a batch of which nobody knows whether it was written."""
    command = f"`skylark txn settle {sink} --written-through"
    return (
        f"look for its rows in the topic. If they are there: {command} {batch}`; if not:"
        f" {command} {batch - 1}`; or start with a new checkpoint or another txnId"
    )


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
    data: int | None = None  #: fingerprint of its rows, of batch writes with a ``txnId``

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
    first: int = 0  #: the first offset that the log still has
    memory: SinkMemory = SinkMemory()  #: read only if the log alone does not answer


class Remember(msgspec.Struct, frozen=True):
    """Step: raise the memory of a sink."""

    sink: str
    memory: SinkMemory


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


Step: TypeAlias = ReadStatus | Remember | Append | Confirm | CommitHalves | RollBack
Steps: TypeAlias = Generator[Step, Any, None]


def needs_memory(view: StatusView, batch: int) -> bool:
    """Whether the log alone does not say if a batch is new, or if it is done."""
    status = view.status
    if status.decision is not None or status.abandoned:
        return not status.done and not status.abandoned
    return batch == 0 or status.before < batch - 1


def admit(sink: str, batch: int, view: StatusView) -> bool:
    """Whether a batch is new; False if it was written before. See the module.

    Raises AbandonedError, OutcomeUnknownError, PredecessorMissingError.
    """
    status, memory = view.status, view.memory
    if status.abandoned:
        raise AbandonedError(sink, batch)
    if status.decision is not None:
        return False
    if not needs_memory(view, batch):
        return True  # the log has the decision before this one, hence everything since then
    if memory.done >= batch:
        return False
    if memory.deciding >= batch and view.first > memory.seen:
        raise OutcomeUnknownError(sink, batch)
    if max(memory.done, status.before) < batch - 1:
        raise PredecessorMissingError(sink, batch)
    return True


def commit(sink: str, batch: int, messages: Sequence[Prepared], *, returns: bool = True) -> Steps:
    """Decide a batch whose tasks have all succeeded, and commit the decision.

    ``returns``: the sink may come back with the same id, so that its batches are remembered.
    """
    view: StatusView = yield ReadStatus(sink, batch)
    status, data = view.status, fingerprint(messages)
    if admit(sink, batch, view):
        if any(message.already for message in messages):
            raise DecisionLostError(
                f"batch {batch} of sink {sink} was decided, and the log no longer has the decision",
                hint="the log lost records: has its broker lost power without SYNC_FLUSH?",
            )
        if returns:
            yield Remember(sink, SinkMemory(deciding=batch, seen=view.end))
        winners = tuple(message.as_winner() for message in messages)
        decision = Decision(sink=sink, batch=batch, winners=winners, seen=view.end, data=data)
        position: int = yield Append(decision)
        status = yield Confirm(sink, batch, view.end, position)
        if status.decision is None:
            raise AbandonedError(sink, batch)
    if status.decision is None:
        _check_data(sink, data, view.memory.data)
        return
    decision = status.decision
    if not status.done and view.memory.done < batch:
        for winner in decision.winners:
            for position in winner.manifests:
                yield CommitHalves(decision, winner, position)
        yield Append(Done(sink=sink, batch=batch))
    if returns:
        yield Remember(sink, SinkMemory(done=batch, data=decision.data))
    yield from _roll_back(messages, decision)
    _check_data(sink, data, decision.data)


def fingerprint(messages: Sequence[Prepared]) -> int | None:
    """The fingerprint of the rows of all tasks, in any order; None unless all have one."""
    found = [message.data for message in messages if message.data is not None]
    return sum(found) % DATA_MODULUS if found and len(found) == len(messages) else None


def _check_data(sink: str, now: int | None, before: int | None) -> None:
    if now is not None and before is not None and now != before:
        raise OtherDataError(sink)


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
            f"a manifest of batch {batch} of sink {sink}, partition {winner.partition}, has expired"
            " or was lost before its rows were committed",
            hint=settle_hint(sink, batch),
        )
    return manifest
