"""The records of an exactly-once sink, and what they say about a batch. Pure.

Rows of an exactly-once sink are half messages, which nobody sees. Whether they appear is decided in
a log, the topic ``SPARK_TXN_LOG``, by the first record that decides; whoever is asked later (a
driver that starts again, the resolver) reads the same. All records of a *sink* (the id of a
streaming query, or of one batch write) are in one queue, so they have an order:

======  ========  ==============================================================================
kind    by        says
======  ========  ==============================================================================
M       task      manifest: where the halves of one *attempt* to write a partition are
D       driver    decision: the attempts of batch b whose halves are committed, no others
X       driver    done: all halves of batch b are committed
A       operator  abandon: batch b and later ones are given up, unless decided before
======  ========  ==============================================================================

**The first one counts.** Two drivers may work on one batch (one was believed dead); both may append
a D, and the earlier one in the log holds for both. An A counts for a batch if it comes before the
first D of that batch.

**How far back to look.** A log is long, so readers walk back from its end. A D of an earlier batch
stops the walk, but not at once: a driver that was believed dead can append one late, behind records
of later batches. So a D tells how far its writer had read the log (``seen``) without finding that
its batch was decided. Batches are decided in order, hence nothing about later batches is before
``seen``, and there the walk ends (:func:`walk_floor`).

**Void halves.** A send without an answer may have stored its half, and is repeated under another
number (``seq``). The number before is void: the resolver must not commit that one as well, though
its attempt is a winner.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Generator, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Final, TypeAlias

import msgspec

from skylark.core.errors import RemoteProtocolError
from skylark.core.names import SPARK_PRODUCER_GROUP

LOG_TOPIC: Final = "SPARK_TXN_LOG"
#: The group that is asked about halves: the resolver's.
RESOLVER_GROUP: Final = SPARK_PRODUCER_GROUP
#: The property of a half that says whose it is.
IDENTITY_PROPERTY: Final = "_SPARK_TX"
#: Halves that one manifest names: well below a megabyte of JSON.
MANIFEST_COUNT_MAX: Final = 50_000
#: Void halves of one attempt; a task with more has other trouble.
VOID_COUNT_MAX: Final = 20_000

#: Records that a reader looks at first, from the end of the log; twice as many in each next step.
WALK_WINDOW: Final = 800

_SINK: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_IDENTITY: Final = re.compile(
    r"([A-Za-z0-9._-]{1,64}):(\d{1,18}):(\d{1,9}):([0-9a-f]{16}):(\d{1,14})"
)


class Fate(enum.Enum):
    """What becomes of a half."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"


class Identity(msgspec.Struct, frozen=True):
    """Whose a half is: the text of its property is ``sink:batch:partition:attempt:seq``."""

    sink: str
    batch: int
    partition: int
    attempt: str
    seq: int


class Winner(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt whose halves are committed."""

    partition: int
    attempt: str
    count: int
    manifests: tuple[int, ...] = ()  #: offsets in the log
    void: tuple[int, ...] = ()  #: numbers of halves that do not count


class Manifest(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="M"):
    """Where halves are; one entry per half in the four lists, in the order of the rows.

    ``log_offsets``, ``queue_offsets`` and ``seqs`` hold differences to the entry before;
    ``targets`` is an index into ``queues``, of which each is topic, broker and queue id.
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
    """These attempts are the batch."""

    sink: str
    batch: int
    winners: tuple[Winner, ...]
    seen: int  #: offset in the log before which the writer knew all records

    def winner(self, partition: int, attempt: str) -> Winner | None:
        """The entry of an attempt, if it is a winner."""
        for winner in self.winners:
            if winner.partition == partition and winner.attempt == attempt:
                return winner
        return None


class Done(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="X"):
    """Nothing is left to be committed."""

    sink: str
    batch: int


class Abandon(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="A"):
    """This batch and later ones are given up."""

    sink: str
    batch: int


Ruling: TypeAlias = Decision | Done | Abandon
LogRecord: TypeAlias = Manifest | Ruling

_decoder: Final = msgspec.json.Decoder(LogRecord)
_encoder: Final = msgspec.json.Encoder()


def encode_record(record: LogRecord) -> bytes:
    """The body of a log message."""
    return _encoder.encode(record)


def decode_record(body: bytes) -> LogRecord:
    """Read a body; raises RemoteProtocolError."""
    try:
        record: LogRecord = _decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise RemoteProtocolError(f"a record of {LOG_TOPIC} cannot be read: {error}") from error
    return record


# ---- names ---------------------------------------------------------------------------------------


def is_sink_id(text: str) -> bool:
    """Whether this can name a sink: letters, digits, dot, dash and underscore, 64 at most."""
    return _SINK.fullmatch(text) is not None


def read_identity(text: str | None) -> Identity | None:
    """Whose a half is; None if its property says nothing that can be understood."""
    found = _IDENTITY.fullmatch(text) if text is not None else None
    if found is None:
        return None
    sink, batch, partition, attempt, seq = found.groups()
    return Identity(sink, int(batch), int(partition), attempt, int(seq))


def identity_prefix(sink: str, batch: int, partition: int, attempt: str) -> str:
    """What the identities of one attempt begin with; the number of the half follows."""
    return f"{sink}:{batch}:{partition}:{attempt}:"


def unique_prefix(sink: str, batch: int, partition: int, attempt: str) -> str:
    """What the unique ids of one attempt begin with; 12 hex digits of the number follow."""
    text = identity_prefix(sink, batch, partition, attempt)
    return hashlib.sha256(text.encode()).hexdigest()[:20].upper()


def unique_id(prefix: str, seq: int) -> str:
    """The unique id of one half."""
    return f"{prefix}{seq:012X}"


def differences(numbers: Sequence[int]) -> tuple[int, ...]:
    """The first number, then what each adds to the one before."""
    return (*numbers[:1], *(second - first for first, second in pairwise(numbers)))


def sums(numbers: Iterable[int]) -> list[int]:
    """What :func:`differences` was made of."""
    return list(accumulate(numbers))


# ---- what the log says ---------------------------------------------------------------------------


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How far one batch is, by the log."""

    decision: Decision | None = None
    abandoned: bool = False
    done: bool = False
    later: bool = False  #: whether a later batch is decided


def standing_of(rulings: Iterable[Ruling], batch: int) -> Standing:
    """What the rulings of one sink, in the order of the log, say about a batch."""
    decision: Decision | None = None
    abandoned = done = later = False
    for ruling in rulings:
        if isinstance(ruling, Decision):
            if ruling.batch == batch and decision is None and not abandoned:
                decision = ruling
            later = later or ruling.batch > batch
        elif isinstance(ruling, Abandon):
            abandoned = abandoned or (decision is None and ruling.batch <= batch)
        else:
            done = done or ruling.batch == batch
    return Standing(decision=decision, abandoned=abandoned, done=done, later=later)


def walk_floor(rulings: Iterable[Ruling], batch: int) -> int | None:
    """The offset before which the log says nothing about a batch; None if that is not known."""
    seen = [r.seen for r in rulings if isinstance(r, Decision) and r.batch < batch]
    return max(seen, default=None)


def walk_back(
    batch: int, first: int, end: int, window: int = WALK_WINDOW
) -> Generator[tuple[int, int], Sequence[Ruling], Standing]:
    """Find out about a batch from a log with the offsets ``first`` to ``end``.

    Yields ranges of offsets, from the end on; wants the rulings of the sink in each of them.
    """
    found: list[Ruling] = []
    low, floor = end, first
    while low > floor:
        high, low = low, max(floor, low - window)
        window *= 2
        part = yield low, high
        found[:0] = part
        floor = max(floor, walk_floor(part, batch) or 0)
    return standing_of(found, batch)


def fate_of(identity: Identity, standing: Standing) -> Fate:
    """What becomes of a half, given how far its batch is."""
    decision = standing.decision
    if decision is not None:
        winner = decision.winner(identity.partition, identity.attempt)
        if winner is not None and identity.seq not in winner.void:
            return Fate.COMMIT
        return Fate.ROLLBACK
    if standing.abandoned or standing.later:
        return Fate.ROLLBACK
    return Fate.UNKNOWN
