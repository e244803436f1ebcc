"""The memory of a sink: its group, what raises it, and which batches it admits."""

from __future__ import annotations

from typing import Any

import pytest

from skylark.core.names import group_problem
from skylark.spark.exactly_once.commit_protocol import (
    AbandonedError,
    OtherDataError,
    OutcomeUnknownError,
    PredecessorMissingError,
    Prepared,
    Remember,
    StatusView,
    admit,
    commit,
    fingerprint,
)
from skylark.spark.exactly_once.sink_memory import (
    UPGRADE_MARK,
    add_to_memory,
    cells_to_write,
    memory_group,
    memory_of,
    sink_of_group,
)
from skylark.spark.exactly_once.txn_log_records import (
    BatchStatus,
    Decision,
    Done,
    SinkMemory,
    decode_record,
    encode_record,
)

DECISION = Decision(sink="s", batch=3, winners=(), seen=7)


@pytest.mark.parametrize("sink", ["5f3c-11", "daily-2026.11_15", "..", "a" * 64])
def test_a_sink_has_a_group_of_its_own(sink: str) -> None:
    group = memory_group(sink)
    assert group_problem(group) is None
    assert sink_of_group(group) == sink


def test_other_groups_are_no_sinks() -> None:
    for group in ("orders", memory_group(UPGRADE_MARK), "CID_RMQ_SYS_SPARK_TXN-"):
        assert sink_of_group(group) is None


def view(first: int = 0, memory: SinkMemory | None = None, **status: Any) -> StatusView:
    return StatusView(BatchStatus(**status), 100, first, memory or SinkMemory())


@pytest.mark.parametrize(
    ("found", "is_new"),
    [
        (view(decision=DECISION), False),
        (view(before=2), True),
        (view(first=50, memory=SinkMemory(done=3)), False),
        (view(first=50, memory=SinkMemory(done=9)), False),
        (view(first=50, memory=SinkMemory(done=2)), True),
        # Being decided, and the log has everything since then: there was no decision.
        (view(first=50, memory=SinkMemory(done=2, deciding=3, seen=50)), True),
        (view(first=50, before=2, memory=SinkMemory(deciding=3, seen=60)), True),
    ],
)
def test_batches_that_are_new(found: StatusView, is_new: bool) -> None:
    assert admit("s", 3, found) is is_new


@pytest.mark.parametrize(
    ("found", "error"),
    [
        (view(abandoned=True), AbandonedError),
        (view(), PredecessorMissingError),
        (view(before=1), PredecessorMissingError),
        (view(first=50, memory=SinkMemory(done=1, deciding=1, seen=40)), PredecessorMissingError),
        (view(first=51, memory=SinkMemory(done=2, deciding=3, seen=50)), OutcomeUnknownError),
    ],
)
def test_batches_that_are_refused(found: StatusView, error: type[Exception]) -> None:
    with pytest.raises(error):
        admit("s", 3, found)


def test_the_first_batch_has_no_predecessor() -> None:
    assert admit("s", 0, view(first=50))


def test_a_refusal_names_the_choices() -> None:
    with pytest.raises(PredecessorMissingError) as caught:
        admit("5f3c", 42, view())
    assert caught.value.hint is not None
    for choice in (
        "`skylark txn settle 5f3c --written-through 42`",
        "`skylark txn settle 5f3c --written-through 41`",
        "new checkpoint",
    ):
        assert choice in caught.value.hint


def test_a_memory_is_only_raised() -> None:
    stored = SinkMemory(done=4, deciding=5, seen=70)
    assert cells_to_write(stored, SinkMemory(deciding=5, seen=75)) == [(2, 75), (1, 6)]
    assert cells_to_write(stored, SinkMemory(deciding=6, seen=80)) == [(2, 80), (1, 7)]
    assert cells_to_write(stored, SinkMemory(done=5, data=9)) == [(3, 9), (0, 6)]
    for older in (SinkMemory(), SinkMemory(done=4), SinkMemory(deciding=4, seen=60)):
        assert cells_to_write(stored, older) == []


def test_cells_make_the_memory_again() -> None:
    memory = SinkMemory(done=4, deciding=5, seen=70, data=11)
    assert memory_of(dict(cells_to_write(SinkMemory(), memory))) == memory
    assert memory_of({0: None, 1: None}) == SinkMemory()


def test_what_the_log_knows() -> None:
    memory = SinkMemory()
    for record in (DECISION, Done(sink="s", batch=3)):
        memory = add_to_memory(memory, record)
    assert memory == SinkMemory(done=3, deciding=3, seen=7)
    late = Decision(sink="s", batch=2, winners=(), seen=1)  # of a driver believed dead
    assert add_to_memory(memory, late) == memory


def test_decisions_of_earlier_versions_can_be_read() -> None:
    old = b'{"kind":"D","sink":"s","batch":3,"winners":[],"seen":7}'
    assert decode_record(old) == DECISION
    assert decode_record(encode_record(DECISION)) == DECISION


def prepared(partition: int, data: int | None) -> Prepared:
    return Prepared(
        sink="s", batch=0, partition=partition, attempt="00000000000000aa", count=0, data=data,
        already=True,
    )  # fmt: skip


def test_the_fingerprint_of_all_tasks() -> None:
    assert fingerprint([prepared(0, 5), prepared(1, 6)]) == 11
    assert fingerprint([prepared(0, 6), prepared(1, 5)]) == 11
    assert fingerprint([prepared(0, 5), prepared(1, None)]) is None
    assert fingerprint([]) is None


def test_other_rows_under_the_same_id_are_refused_after_the_first_write_is_finished() -> None:
    decided = Decision(sink="s", batch=0, winners=(), seen=0, data=5)
    steps = commit("s", 0, [prepared(0, 6)])
    next(steps)
    append = steps.send(view(decision=decided, done=False))
    assert type(append).__name__ == "Append"
    remember = steps.send(1)
    assert remember == Remember("s", SinkMemory(done=0, data=5))
    with pytest.raises(OtherDataError, match="txnId s was used before"):
        steps.send(None)


def test_other_rows_are_noticed_after_the_log_has_expired() -> None:
    memory = SinkMemory(done=0, data=5)
    for data, is_same in ((5, True), (6, False), (None, True)):
        steps = commit("s", 0, [prepared(0, data)])
        next(steps)
        with pytest.raises(StopIteration if is_same else OtherDataError):
            steps.send(view(first=9, memory=memory))


def test_a_sink_that_never_returns_is_not_remembered() -> None:
    steps = commit("s", 0, [], returns=False)
    names = [type(next(steps)).__name__]
    answers: list[Any] = [view(), 0, BatchStatus(decision=DECISION), 1]
    for answer in answers:
        try:
            names.append(type(steps.send(answer)).__name__)
        except StopIteration:
            break
    assert names == ["ReadStatus", "Append", "Confirm", "Append"]
