"""Counts of half messages and decisions, and their file."""

from __future__ import annotations

from pathlib import Path

from skylark.broker.transaction.transaction_counts import TransactionCounts
from skylark.store.config_files import TRANSACTION_METRICS
from skylark.testing.virtual_clock import START_MS, VirtualClock
from tests.unit.broker.transaction.halves import shop

FILE = Path(__file__).parents[3] / "golden/data/store-basic/config/transactionMetrics"


def test_a_file_of_java_is_loaded_and_saved() -> None:
    table = TRANSACTION_METRICS.decode(FILE.read_bytes())
    counts = TransactionCounts(VirtualClock())
    counts.load(table)
    assert counts.waiting == {"GoldenTx": 1}
    assert counts.snapshot() == table
    counts.add("GoldenTx", 2)
    changed = counts.snapshot()
    assert changed.transaction_count["GoldenTx"].count == 3
    assert changed.transaction_count["GoldenTx"].time_stamp == START_MS
    assert changed.data_version.counter == table.data_version.counter + 1


def test_commits_are_timed_in_whole_seconds() -> None:
    counts = TransactionCounts(VirtualClock())
    counts.commit("T", START_MS)  # nobody listens
    seen: list[tuple[str, int]] = []
    counts.on_committed = lambda topic, seconds: seen.append((topic, seconds))
    counts.commit("T", START_MS - 2_999)
    assert seen == [("T", 2)]
    assert counts.committed == {"T": 2}


def test_a_deleted_topic_is_removed() -> None:
    counts = TransactionCounts(VirtualClock())
    counts.add("T", 1)
    counts.commit("T", START_MS)
    before = counts.change_count
    counts.topic_deleted("T")
    assert counts.waiting == counts.committed == {}
    assert counts.snapshot().transaction_count == {}
    assert counts.change_count > before


async def test_counts_survive_a_restart(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        await world.producer.send("U1")
        await world.producer.send("U2")
    async with shop(tmp_path, start_ms=world.clock.now_ms() + 1_000) as world:
        assert world.transactions.counts.waiting == {"T": 2}
