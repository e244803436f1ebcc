"""Commits of neighbouring half messages, stored in one append.

The half messages of one SEND_HALVES are neighbours in the log, and END_HALVES names them in that
order. Such a *run* of commits reads its half messages as columns
(:mod:`skylark.wire.record_scan`), and stores their final messages as a batch: a commit costs a
quarter of one by :class:`~skylark.broker.transaction.end_transaction.EndTransactionStep`, which
finds, checks and stores each message by itself.

The result is the same, because only plain commits become runs: all half messages are undecided,
have no copies, one destination, one group and one born time, are in time, and are neither delayed
nor timed. :class:`CommitRuns` checks all that before anything is stored; any other commit is made
one by one.

**Crash.** The final messages of a run are one batch of the log (:mod:`skylark.store.commit_log`).

* before its append has ended, kill -9: none of them; all half messages are undecided, and the
  client repeats its request, or the broker checks back;
* after the append and before the op message: all of them; recovery finds them by their half
  messages;
* after the op message: all decisions are complete;
* power loss: any number of them, from the first on, and each counts.

The client has its response only after the append, and with SYNC_FLUSH after the sync.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import msgspec

from skylark.broker.api import EndTransactionRequest, EndTransactionResult, Peer, Pending
from skylark.broker.send.put_outcome import Durability
from skylark.broker.transaction.decisions import HalfOutcome
from skylark.broker.transaction.end_transaction import DECIDED, check_decision, put_refusal
from skylark.broker.transaction.half_message import FinalDraft, has_half_names, read_half
from skylark.broker.transaction.transaction_service import TransactionService, may_be_delayed
from skylark.core.errors import BrokerError
from skylark.core.names import HALF_TOPIC, is_retry_topic
from skylark.store.store_results import PutResult
from skylark.wire import properties as names
from skylark.wire.batch import Batch
from skylark.wire.end_halves_body import UNIQUE_ID_SIZE, HalfPlace
from skylark.wire.headers.txn import (
    TRANSACTION_COMMIT,
    EndHalvesRequestHeader,
    EndTransactionRequestHeader,
)
from skylark.wire.layout import FLAG_BORN_HOST_V6, HOST_V4_SIZE, HOST_V6_SIZE
from skylark.wire.message import decode_record
from skylark.wire.property_scan import scan_properties
from skylark.wire.record_scan import Int64s, RecordColumns, gather, scan_records

if TYPE_CHECKING:
    import numpy.typing as npt

#: Fewer commits are made one by one: their columns would cost more than they save.
RUN_COUNT_MIN: Final = 8
#: Bytes of half messages in one run, which one append copies.
RUN_SIZE_MAX: Final = 1 << 20

_HALF_TOPIC: Final = HALF_TOPIC.encode()
_REAL_TOPIC_ITEM: Final = f"{names.PROPERTY_REAL_TOPIC}\x01"
#: Properties that must be the same in all half messages of a run, besides the destination.
_SHARED: Final = (
    names.PROPERTY_PGROUP,
    names.PROPERTY_CHECK_IMMUNITY_TIME_IN_SECONDS,
    names.PROPERTY_TRAN_PREPARED_QUEUE_OFFSET,
)


class CommitRunRequest(msgspec.Struct, gc=False):
    """Commits of neighbouring half messages, with the batch of their final messages."""

    header: EndHalvesRequestHeader
    draft: FinalDraft
    count: int


def decision_of(header: EndHalvesRequestHeader, place: HalfPlace) -> EndTransactionRequestHeader:
    """One decision of END_HALVES as END_TRANSACTION would state it."""
    return EndTransactionRequestHeader(
        topic=header.topic,
        producer_group=header.producer_group,
        tran_state_table_offset=place.queue_offset,
        commit_log_offset=place.log_offset,
        commit_or_rollback=header.commit_or_rollback,
        msg_id=place.unique_id,
        transaction_id=place.unique_id,
    )


class CommitRuns:
    """Finds the runs among the decisions of END_HALVES."""

    def __init__(self, transactions: TransactionService) -> None:
        self._transactions = transactions
        self._store = transactions.store

    def requests(
        self, header: EndHalvesRequestHeader, places: Sequence[HalfPlace]
    ) -> list[CommitRunRequest | EndTransactionRequest]:
        """The decisions in their order: runs, and single ones."""
        # A half message that is named twice is none that is undecided when its turn comes.
        if header.commit_or_rollback != TRANSACTION_COMMIT or (
            len({place.queue_offset for place in places}) < len(places)
        ):
            return _one_by_one(header, places)
        found: list[CommitRunRequest | EndTransactionRequest] = []
        at = 0
        while at < len(places):
            stop = _neighbours_end(places, at)
            halves = self._read(places[at:stop]) if stop - at >= RUN_COUNT_MIN else None
            if halves is None:
                found += _one_by_one(header, places[at:stop])
                at = stop
                continue
            for start, end in halves.groups():
                draft = self._draft(header, halves, start, end)
                if draft is not None:
                    found.append(CommitRunRequest(header, draft, end - start))
                else:
                    found += _one_by_one(header, halves.places[start:end])
            at += len(halves.places)
        return found

    def _read(self, places: Sequence[HalfPlace]) -> _Halves | None:
        """The half messages at the first places; None if other records may be there."""
        data = self._store.reader.neighbours([place.log_offset for place in places])
        columns = scan_records(data, strict=False)
        if not len(columns):
            return None
        halves = _Halves(places[: len(columns)], columns)
        return halves if halves.are_named() else None

    def _draft(
        self, header: EndHalvesRequestHeader, halves: _Halves, start: int, end: int
    ) -> FinalDraft | None:
        """The final messages of a group as one draft; None if they must be made one by one."""
        transactions, first = self._transactions, halves.places[start]
        if (
            end - start < RUN_COUNT_MIN
            or not transactions.are_sole_undecided(first.queue_offset, end - start)
            or not halves.are_alike(start, end)
        ):
            return None
        columns = halves.columns
        half = read_half(decode_record(columns.buffer, int(columns.position[start])))
        if half is None or half.first_offset != half.offset or is_retry_topic(half.real_topic):
            return None
        try:
            check_decision(transactions, half, HalfOutcome.OPEN, decision_of(header, first))
        except BrokerError:
            return None
        draft = half.final_message()
        batch = halves.finals(start, end)
        joined = b"".join(batch.properties)
        if (
            batch.properties[0] != draft.properties
            or has_half_names(joined)
            or may_be_delayed(joined)
            or not self._store.properties_fit(max(batch.properties, key=len))
        ):
            return None
        draft.batch = batch
        draft.body = draft.properties = b""
        return draft


def _one_by_one(
    header: EndHalvesRequestHeader, places: Sequence[HalfPlace]
) -> list[CommitRunRequest | EndTransactionRequest]:
    return [EndTransactionRequest(decision_of(header, place)) for place in places]


class _Halves:
    """Half messages that are neighbours in the log, as columns."""

    def __init__(self, places: Sequence[HalfPlace], columns: RecordColumns) -> None:
        import numpy as np

        assert isinstance(columns.buffer, bytes)
        self.places = places
        self.columns = columns
        self._buffer = columns.buffer
        self._items = scan_properties(columns)
        self._ends = columns.properties_start + columns.properties_size
        values, sizes = self._items.column(names.PROPERTY_REAL_TOPIC)
        # Where the destination begins, with which the property string of a half message ends.
        self._kept_ends = np.where(sizes > 0, values - len(_REAL_TOPIC_ITEM), self._ends)

    def are_named(self) -> bool:
        """Whether these are the half messages that the places name, in the half topic."""
        import numpy as np

        columns, places, count = self.columns, self.places, len(self.places)
        log_offsets = np.array([place.log_offset for place in places], np.int64)
        queue_offsets = places[0].queue_offset + np.arange(count)
        ids, id_sizes = self._items.column(names.PROPERTY_UNIQ_KEY)
        unique_ids = "".join([place.unique_id for place in places]).encode()
        return bool(
            (columns.log_offset == log_offsets).all()
            and (columns.queue_offset == queue_offsets).all()
            and (columns.topic_size == len(_HALF_TOPIC)).all()
            and gather(self._buffer, columns.topic_start, len(_HALF_TOPIC)).tobytes()
            == _HALF_TOPIC * count
            and (id_sizes == UNIQUE_ID_SIZE).all()
            and gather(self._buffer, ids, UNIQUE_ID_SIZE).tobytes() == unique_ids
        )

    def groups(self) -> Iterator[tuple[int, int]]:
        """Start and end of the half messages with one destination and born time, in order."""
        keys = zip(
            _slices(self._buffer, self._kept_ends, self._ends),
            self.columns.born_timestamp.tolist(),
            strict=True,
        )
        start = 0
        for _, group in groupby(keys):
            end = start + sum(1 for _ in group)
            yield start, end
            start = end

    def are_alike(self, start: int, end: int) -> bool:
        """Whether a group agrees in all else that a batch shares, and in :data:`_SHARED`."""
        columns, part = self.columns, slice(start, end)
        is_v6 = int(columns.sys_flag[start]) & FLAG_BORN_HOST_V6
        hosts = columns.born_host_start[part]
        return (
            _is_constant(columns.sys_flag[part])
            and _is_constant(columns.reconsume_times[part])
            and self._are_equal(hosts, HOST_V6_SIZE if is_v6 else HOST_V4_SIZE)
            and all(self._is_shared(name, part) for name in _SHARED)
        )

    def _is_shared(self, name: str, part: slice) -> bool:
        """Whether these records have one value of a property, or none has it."""
        starts, sizes = (column[part] for column in self._items.column(name))
        return _is_constant(sizes) and self._are_equal(starts, int(sizes[0]))

    def _are_equal(self, starts: Int64s, size: int) -> bool:
        return not size or _is_constant(gather(self._buffer, starts, size))

    def finals(self, start: int, end: int) -> Batch:
        """The final messages of a group."""
        columns, part = self.columns, slice(start, end)
        bodies, kept = columns.body_start[part], columns.properties_start[part]
        return Batch.of_columns(
            _slices(self._buffer, bodies, bodies + columns.body_size[part]),
            _slices(self._buffer, kept, self._kept_ends[part]),
            columns.flag[part].tolist(),
            columns.log_offset[part].tolist(),
        )


def _is_constant(column: npt.NDArray[Any]) -> bool:
    return bool((column == column[0]).all())


def _slices(buffer: bytes, starts: Int64s, ends: Int64s) -> list[bytes]:
    spans = zip(starts.tolist(), ends.tolist(), strict=True)
    return [buffer[start:end] for start, end in spans]


def _neighbours_end(places: Sequence[HalfPlace], at: int) -> int:
    """Where the places end that follow one another in the half queue from ``at`` on."""
    log_offset, _, _ = places[at]
    end = at + 1
    next_offset = places[at].queue_offset + 1
    while (
        end < len(places)
        and places[end].queue_offset == next_offset
        and places[end - 1].log_offset < places[end].log_offset <= log_offset + RUN_SIZE_MAX
    ):
        next_offset += 1
        end += 1
    return end


class CommitRunStep:
    """The step of the put pipeline that stores runs of commits."""

    def __init__(self, transactions: TransactionService, durability: Durability) -> None:
        self._transactions = transactions
        self._durability = durability
        self._has_stored = False

    def draft(self, _peer: Peer, request: CommitRunRequest) -> FinalDraft:
        """The final messages; raises BrokerError."""
        self._transactions.make_room_for_ops()
        return request.draft

    def finish(
        self, request: CommitRunRequest, draft: FinalDraft, result: PutResult, *, is_durable: bool
    ) -> EndTransactionResult | Pending[EndTransactionResult] | Exception:
        del request
        if not result.size:
            return put_refusal(self._transactions.config, result.status)
        self._transactions.committed_run(draft, result)
        self._has_stored = True
        if is_durable:
            return DECIDED
        return self._durability.when_durable(result, lambda _: DECIDED)

    def after_put(self) -> None:
        """Write the op message of the commits of one put now or soon."""
        if self._has_stored:
            self._has_stored = False
            self._transactions.write_ops_soon()
