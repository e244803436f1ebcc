"""Records of the transaction log, and the status of a batch that follows from them.

The rows of an exactly-once sink are stored as half messages, which consumers do not see. The first
record in the log (topic ``SPARK_TXN_LOG``) that decides a batch decides whether they are committed;
every later reader (a restarted driver, the resolver) comes to the same result. All records of a
*sink* (the id of a streaming query, or of one batch write) are in one queue, so they have an order:

======  ==========  ============================================================================
kind    written by  content
======  ==========  ============================================================================
M       task        manifest: positions of the half messages of one *attempt* at a partition
D       driver      decision: the attempts of batch b that are committed, and no others
X       driver      done: all half messages of batch b are committed
A       operator    abandon: batch b and later ones are abandoned, unless decided before
======  ==========  ============================================================================

**The first one is valid.** Two drivers may work on one batch (one was believed dead) and both may
append a D: the earlier one in the log is valid for both. An A is valid for a batch if it comes
before the first D of that batch.

**How far back to read.** The log is long, so readers walk back from its end. A D of an earlier
batch stops the walk, but not at once: a driver that was believed dead may append one late, after
records of later batches. So a D has the offset up to which its writer had read the log (``seen``)
without finding a decision for its batch. Batches are decided in order, hence no record about later
batches is before ``seen``, and there the walk ends (:func:`walk_floor`).

**Retention.** Records expire like all messages. What must outlive them, the last batch of each
sink, is kept elsewhere too (:mod:`skylark.spark.exactly_once.sink_memory`).

**Void half messages.** A send without a reply may have stored its half message, and is repeated
under another sequence number (``seq``). The first number is void: the resolver must not commit it
as well, although its attempt is a winner.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

import msgspec

from skylark.client.core.client_message import TxState
from skylark.core.errors import RemoteProtocolError
from skylark.core.names import SPARK_PRODUCER_GROUP

LOG_TOPIC: Final = "SPARK_TXN_LOG"
#: The producer group to which brokers send check-backs: that of the resolver.
RESOLVER_GROUP: Final = SPARK_PRODUCER_GROUP
#: The property of a half message with its identity.
IDENTITY_PROPERTY: Final = "_SPARK_TX"
#: Half messages in one manifest: well below a megabyte of JSON.
MANIFEST_COUNT_MAX: Final = 50_000
#: Void half messages of one attempt; a task with more fails.
VOID_COUNT_MAX: Final = 20_000

#: Records in the first step of a walk back; each further step doubles it.
WALK_WINDOW: Final = 800
#: A batch after all that there can be.
AFTER_ALL: Final = 1 << 62

_SINK: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_IDENTITY: Final = re.compile(
    r"([A-Za-z0-9._-]{1,64}):(\d{1,18}):(\d{1,9}):([0-9a-f]{16}):(\d{1,14})"
)


class Identity(msgspec.Struct, frozen=True):
    """Identity of a half message, in its property as ``sink:batch:partition:attempt:seq``."""

    sink: str
    batch: int
    partition: int
    attempt: str
    seq: int


class Winner(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt whose half messages are committed."""

    partition: int
    attempt: str
    count: int
    manifests: tuple[int, ...] = ()  #: offsets in the log
    void: tuple[int, ...] = ()  #: sequence numbers that are not committed


class Manifest(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="M"):
    """Positions of half messages; one entry each in the four lists, in the order of the rows.

    ``log_offsets``, ``queue_offsets`` and ``seqs`` are differences to the previous entry;
    ``targets`` are indexes into ``queues``, whose entries are topic, broker and queue id.
    """

    sink: str
    batch: int
    partition: int
    attempt: str
    chunk: int
    ordered: bool
    queues: tuple[tuple[str, str, int], ...]
    targets: tuple[int, ...]
    log_offsets: tuple[int, ...]
    queue_offsets: tuple[int, ...]
    seqs: tuple[int, ...]


class Decision(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="D"):
    """The attempts that make up a batch."""

    sink: str
    batch: int
    winners: tuple[Winner, ...]
    seen: int  #: log offset up to which the writer had read all records
    data: int | None = None  #: fingerprint of the rows, of batch writes with a ``txnId``

    def winner(self, partition: int, attempt: str) -> Winner | None:
        """The entry of an attempt; None if it is not a winner."""
        for winner in self.winners:
            if winner.partition == partition and winner.attempt == attempt:
                return winner
        return None


class Done(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="X"):
    """All half messages of a batch are committed."""

    sink: str
    batch: int


class Abandon(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="A"):
    """This batch and later ones are abandoned."""

    sink: str
    batch: int


BatchRecord: TypeAlias = Decision | Done | Abandon
LogRecord: TypeAlias = Manifest | BatchRecord

_decoder: Final = msgspec.json.Decoder(LogRecord)
_encoder: Final = msgspec.json.Encoder()


def encode_record(record: LogRecord) -> bytes:
    """The body of a log message."""
    return _encoder.encode(record)


def decode_record(body: bytes) -> LogRecord:
    """Decode the body of a log message; raises RemoteProtocolError."""
    try:
        record: LogRecord = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"a record of {LOG_TOPIC} cannot be read: {error}") from error
    return record


# ---- names ---------------------------------------------------------------------------------------


def is_sink_id(text: str) -> bool:
    """Whether a text is a valid sink id: letters, digits, ``.-_``, 64 characters at most."""
    return _SINK.fullmatch(text) is not None


def read_identity(text: str | None) -> Identity | None:
    """Parse the identity property of a half message; None if it is not valid."""
    found = _IDENTITY.fullmatch(text) if text is not None else None
    if found is None:
        return None
    sink, batch, partition, attempt, seq = found.groups()
    return Identity(sink, int(batch), int(partition), attempt, int(seq))


def identity_prefix(sink: str, batch: int, partition: int, attempt: str) -> str:
    """The prefix of the identities of one attempt; the sequence number follows."""
    return f"{sink}:{batch}:{partition}:{attempt}:"


def unique_prefix(sink: str, batch: int, partition: int, attempt: str) -> str:
    """The prefix of the unique ids of one attempt; 12 hex digits of the number follow."""
    text = identity_prefix(sink, batch, partition, attempt)
    return hashlib.sha256(text.encode()).hexdigest()[:20].upper()


def unique_id(prefix: str, seq: int) -> str:
    """The unique id of one half message."""
    return f"{prefix}{seq:012X}"


def differences(numbers: Sequence[int]) -> tuple[int, ...]:
    """The first number, then the difference of each to the previous one."""
    return (*numbers[:1], *(second - first for first, second in pairwise(numbers)))


def sums(numbers: Iterable[int]) -> list[int]:
    """The inverse of :func:`differences`."""
    return list(accumulate(numbers))


# ---- status of a batch ---------------------------------------------------------------------------


class BatchStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status of one batch by the log."""

    decision: Decision | None = None
    abandoned: bool = False
    done: bool = False
    later: bool = False  #: a later batch is decided
    before: int = -1  #: the last earlier batch with a decision that the walk has found


class SinkMemory(msgspec.Struct, frozen=True, kw_only=True):
    """The last batches of a sink, kept outside the log; -1 stands for none."""

    done: int = -1  #: this one and all before are committed
    deciding: int = -1  #: a driver has begun to decide it
    seen: int = -1  #: log offset up to which that driver had found no decision
    data: int | None = None  #: fingerprint of the rows of a batch write


def status_of(batch_records: Iterable[BatchRecord], batch: int) -> BatchStatus:
    """The status of a batch by the records of its sink, in the order of the log."""
    decision: Decision | None = None
    abandoned = done = later = False
    before = -1
    for batch_record in batch_records:
        if isinstance(batch_record, Decision):
            if batch_record.batch == batch and decision is None and not abandoned:
                decision = batch_record
            later = later or batch_record.batch > batch
            if before < batch_record.batch < batch:
                before = batch_record.batch
        elif isinstance(batch_record, Abandon):
            abandoned = abandoned or (decision is None and batch_record.batch <= batch)
        else:
            done = done or batch_record.batch == batch
    return BatchStatus(
        decision=decision, abandoned=abandoned, done=done, later=later, before=before
    )


def walk_floor(batch_records: Iterable[BatchRecord], batch: int) -> int | None:
    """The offset before which the log has nothing about a batch; None if unknown."""
    seen = [r.seen for r in batch_records if isinstance(r, Decision) and r.batch < batch]
    return max(seen, default=None)


def walk_back(
    batch: int, first: int, end: int, window: int = WALK_WINDOW
) -> Generator[tuple[int, int], Sequence[BatchRecord], list[BatchRecord]]:
    """Read what a log with the offsets ``first`` to ``end`` has about a batch.

    Yields ranges of offsets, backwards; the caller sends the records of the sink in each. Returns
    all records that :func:`status_of` needs.
    """
    found: list[BatchRecord] = []
    low, floor = end, first
    while low > floor:
        high, low = low, max(floor, low - window)
        window *= 2
        part = yield low, high
        found[:0] = part
        floor = max(floor, walk_floor(part, batch) or 0)
    return found


def walk_back_all(
    sinks: Collection[str], first: int, end: int, window: int = WALK_WINDOW
) -> Generator[
    tuple[int, int, Collection[str]], Sequence[BatchRecord], Mapping[str, Sequence[BatchRecord]]
]:
    """As :func:`walk_back`, for the last batch of each of several sinks in one pass.

    Yields ranges of offsets that do not overlap, and the sinks whose records are wanted there.
    """
    found: dict[str, list[BatchRecord]] = {sink: [] for sink in sinks}
    floors = dict.fromkeys(sinks, first)
    low = end
    while wanted := [sink for sink in sinks if floors[sink] < low]:
        high, low = low, max(low - window, min(floors[sink] for sink in wanted))
        window *= 2
        part = yield low, high, wanted
        for sink in wanted:
            mine = [record for record in part if record.sink == sink]
            found[sink][:0] = mine
            floors[sink] = max(floors[sink], walk_floor(mine, AFTER_ALL) or 0)
    return found


def outcome_of(identity: Identity, status: BatchStatus) -> TxState:
    """The outcome of a half message by the status of its batch."""
    decision = status.decision
    if decision is not None:
        winner = decision.winner(identity.partition, identity.attempt)
        if winner is not None and identity.seq not in winner.void:
            return TxState.COMMIT
        return TxState.ROLLBACK
    if status.abandoned or status.later:
        return TxState.ROLLBACK
    return TxState.UNKNOWN
