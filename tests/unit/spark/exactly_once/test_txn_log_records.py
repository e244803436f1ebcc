"""Records of the transaction log, and the status of batches by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.client.core.client_message import TxState
from skylark.core.errors import RemoteProtocolError
from skylark.spark.exactly_once.half_message_completion import half_locations
from skylark.spark.exactly_once.sink_memory import add_to_memory
from skylark.spark.exactly_once.txn_log_records import (
    Abandon,
    BatchRecord,
    BatchStatus,
    Decision,
    Done,
    Identity,
    LogRecord,
    Manifest,
    SinkMemory,
    Winner,
    decode_record,
    differences,
    encode_record,
    identity_prefix,
    is_sink_id,
    outcome_of,
    read_identity,
    status_of,
    sums,
    unique_id,
    unique_prefix,
    walk_back,
    walk_back_all,
)

WON, LOST = "00000000000000aa", "00000000000000bb"


def decision(batch: int, attempt: str = WON, seen: int = 0, void: tuple[int, ...] = ()) -> Decision:
    winner = Winner(partition=0, attempt=attempt, count=3, manifests=(1,), void=void)
    return Decision(sink="s", batch=batch, winners=(winner,), seen=seen)


def done(batch: int) -> Done:
    return Done(sink="s", batch=batch)


def abandon(batch: int) -> Abandon:
    return Abandon(sink="s", batch=batch)


def half(attempt: str = WON, batch: int = 1, seq: int = 0) -> Identity:
    return Identity("s", batch, 0, attempt, seq)


@pytest.mark.spec("spark.9.33")
@pytest.mark.parametrize(
    ("batch_records", "identity", "outcome"),
    [
        ([decision(1)], half(), TxState.COMMIT),
        ([decision(1)], half(LOST), TxState.ROLLBACK),
        ([decision(1, void=(4,))], half(seq=4), TxState.ROLLBACK),
        ([decision(1, void=(4,))], half(seq=5), TxState.COMMIT),
        ([decision(1), decision(1, LOST)], half(LOST), TxState.ROLLBACK),  # the first one counts
        ([], half(), TxState.UNKNOWN),
        ([decision(0), done(0)], half(), TxState.UNKNOWN),
        ([decision(2)], half(), TxState.ROLLBACK),  # a later batch: this one was never decided
        ([abandon(1)], half(), TxState.ROLLBACK),
        ([abandon(0)], half(), TxState.ROLLBACK),
        ([abandon(2)], half(), TxState.UNKNOWN),
        ([abandon(1), decision(1)], half(), TxState.ROLLBACK),
        ([decision(1), abandon(1)], half(), TxState.COMMIT),
    ],
)
def test_outcome_of_a_half_message(
    batch_records: list[BatchRecord], identity: Identity, outcome: TxState
) -> None:
    assert outcome_of(identity, status_of(batch_records, 1)) is outcome


def test_done_belongs_to_its_batch() -> None:
    batch_records: list[BatchRecord] = [decision(0), done(0), decision(1)]
    assert status_of(batch_records, 0).done
    assert not status_of(batch_records, 1).done


def walk(log: list[BatchRecord | None], batch: int, window: int) -> tuple[BatchStatus, int]:
    """Walk over a log in which None is a record of somebody else; also how much was read."""
    walking = walk_back(batch, 0, len(log), window)
    read = 0
    try:
        low, high = next(walking)
        while True:
            read += high - low
            part = [batch_record for batch_record in log[low:high] if batch_record is not None]
            low, high = walking.send(part)
    except StopIteration as stop:
        found: list[BatchRecord] = stop.value
    return status_of(found, batch), read


def test_a_walk_ends_where_the_batch_cannot_have_been_decided() -> None:
    log: list[BatchRecord | None] = [None] * 1_000
    log += [decision(6, seen=1_000), done(6), None, None]
    status, read = walk(log, 7, window=2)
    assert status == BatchStatus(before=6)
    assert read < 20
    status, read = walk(log, 6, window=2)
    assert status.decision is not None
    assert read == len(log)  # nothing says that the batch before was decided


def test_a_late_decision_of_an_earlier_batch_hides_nothing() -> None:
    """A driver that was believed dead appends behind those who went on without it."""
    first = decision(1, WON, seen=0)
    log: list[BatchRecord | None] = [first, done(1), decision(2, seen=2), decision(1, LOST, seen=0)]
    status, _ = walk(log, 2, window=1)
    assert status.decision == decision(2, seen=2)
    status, _ = walk(log, 1, window=1)
    assert status.decision == first


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(0, 2), max_size=12))
def test_a_walk_finds_what_reading_everything_finds(window: int, gaps: list[int]) -> None:
    log: list[BatchRecord | None] = []
    for batch, gap in enumerate(gaps):
        seen = len(log)
        log += [None] * gap
        log += [decision(batch, seen=seen), done(batch)]
    batch_records = [batch_record for batch_record in log if batch_record is not None]
    for batch in range(len(gaps) + 1):
        status, _ = walk(log, batch, window)
        assert status == status_of(batch_records, batch)
        assert status.before == batch - 1


def test_identities() -> None:
    prefix = identity_prefix("5f3c-q", 12, 3, WON)
    assert prefix == f"5f3c-q:12:3:{WON}:"
    assert read_identity(f"{prefix}77") == Identity("5f3c-q", 12, 3, WON, 77)
    for text in (None, "", prefix, f"{prefix}x", f"a b:1:2:{WON}:3", f"s:1:2:{WON}:3:4"):
        assert read_identity(text) is None
    ids = {unique_id(unique_prefix("s", b, p, WON), 5) for b in range(9) for p in range(9)}
    assert len(ids) == 81
    assert {len(each) for each in ids} == {32}
    assert is_sink_id("daily-2026.11_15")
    assert not is_sink_id("a:b")


def test_records_survive_the_log() -> None:
    manifest = Manifest(
        sink="s", batch=1, partition=0, attempt=WON, chunk=0, ordered=True,
        queues=(("T", "broker-a", 1), ("T", "broker-b", 0)), targets=(0, 1, 0),
        log_offsets=differences([700, 300, 900]), queue_offsets=differences([5, 1, 6]),
        seqs=differences([0, 1, 4]),
    )  # fmt: skip
    records: list[LogRecord] = [manifest, decision(3, void=(1, 2)), done(3), abandon(4)]
    assert [decode_record(encode_record(record)) for record in records] == records
    places = half_locations(manifest)
    assert [(p.queue.broker_name, p.log_offset, p.queue_offset) for p in places] == [
        ("broker-a", 700, 5), ("broker-b", 300, 1), ("broker-a", 900, 6),
    ]  # fmt: skip
    assert places[2].unique_id == unique_id(unique_prefix("s", 1, 0, WON), 4)


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff", b'{"kind":"D","sink":"s"}', b"[1]"])
def test_an_unreadable_record_is_a_protocol_error(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="SPARK_TXN_LOG cannot be read"):
        decode_record(body)


@given(st.lists(st.integers(0, 1 << 60), max_size=30))
def test_sums_undo_differences(numbers: list[int]) -> None:
    assert sums(differences(numbers)) == numbers


SINKS = ("a", "b", "c")


def last_batches(records: Iterable[BatchRecord]) -> SinkMemory:
    memory = SinkMemory()
    for record in records:
        if not isinstance(record, Abandon):
            memory = add_to_memory(memory, record)
    return memory


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5), st.lists(st.sampled_from(SINKS), max_size=20))
def test_a_walk_for_several_sinks_reads_no_offset_twice(window: int, order: list[str]) -> None:
    log: list[BatchRecord] = []
    for sink in order:
        batch = sum(isinstance(r, Done) and r.sink == sink for r in log)
        decided = msgspec.structs.replace(decision(batch, seen=len(log)), sink=sink)
        log += [decided, Done(sink=sink, batch=batch)]
    walking = walk_back_all(SINKS, 0, len(log), window)
    read: list[int] = []
    try:
        low, high, wanted = next(walking)
        while True:
            read += range(low, high)
            low, high, wanted = walking.send([r for r in log[low:high] if r.sink in wanted])
    except StopIteration as stop:
        found: Mapping[str, Sequence[BatchRecord]] = stop.value
    assert len(read) == len(set(read))
    for sink in SINKS:
        assert last_batches(found[sink]) == last_batches(r for r in log if r.sink == sink)


def test_a_walk_for_several_sinks_ends_at_their_last_batches() -> None:
    log: list[BatchRecord] = [decision(0), *[done(0)] * 999]
    log += [decision(9, seen=1000), done(9)]
    walking = walk_back_all(["s"], 0, len(log), 4)
    low, high, _ = next(walking)
    assert (low, high) == (998, 1002)
    with pytest.raises(StopIteration):
        walking.send(log[low:high])
