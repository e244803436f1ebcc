"""The cache of recent half messages: lookups and its bound."""

from __future__ import annotations

from typing import Any

from skylark.broker.transaction.half_message import final_properties, turn_into_half
from skylark.broker.transaction.recent_halves import RecentHalves
from skylark.store.commit_log import Draft
from skylark.store.store_results import PutResult, PutStatus
from skylark.wire.headers.txn import EndTransactionRequestHeader

JAVA = b"TRAN_MSG\x01true\x02UNIQ_KEY\x01U1\x02PGROUP\x01pg\x02"


def decision(offset: int = 5, log_offset: int = 700, **changes: Any) -> Any:
    fields: dict[str, Any] = {
        "producer_group": "pg", "tran_state_table_offset": offset, "commit_log_offset": log_offset,
        "commit_or_rollback": 8, "msg_id": "U1", "transaction_id": "U1", **changes,
    }  # fmt: skip
    return EndTransactionRequestHeader(**fields)


def added(recent: RecentHalves, offset: int, size: int = 100) -> None:
    draft = Draft("T", 3, b"body", JAVA)
    final_size = turn_into_half(draft, "U1")
    result = PutResult(PutStatus.PUT_OK, offset + 695, size, offset, 1, 1)
    recent.add(draft, "U1", "T", 3, final_size, result)


def test_only_a_decision_that_fits_finds_it() -> None:
    recent = RecentHalves()
    added(recent, 5)
    for name in ("tran_state_table_offset", "commit_log_offset"):
        other: dict[str, Any] = {name: 6}
        assert recent.find(decision(**other)) is None
    for name in ("producer_group", "transaction_id"):
        changed: dict[str, Any] = {name: "other"}
        assert recent.find(decision(**changed)) is None
    assert recent.find(decision(transaction_id=None)) is None
    half = recent.find(decision())
    assert half is not None
    assert (half.offset, half.real_topic, half.real_queue_id) == (5, "T", 3)
    kept = half.draft.properties[: half.final_size]
    assert kept == final_properties(half.draft.properties) == JAVA + b"__transactionId__\x01U1\x02"
    recent.drop(5)
    recent.drop(5)
    assert recent.find(decision()) is None


def test_the_cache_is_bounded() -> None:
    recent = RecentHalves(size_max=10 * (1_024 + 100))
    for offset in range(30):
        added(recent, offset)
    assert len(recent) == 10
    assert recent.find(decision(offset=19, log_offset=714)) is None
    assert recent.find(decision(offset=20, log_offset=715)) is not None
    added(recent, 30, size=1 << 20)  # more than all
    assert len(recent) == 0
    added(recent, 31)
    assert len(recent) == 1
