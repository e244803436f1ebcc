"""Offsets: committed, reset, cloned, forgotten; and the start of a group that has none."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.broker.groups import consumer_offsets as offsets_module
from skylark.broker.groups.consumer_offsets import (
    NOT_FOUND,
    NOT_FOUND_NO_ZERO,
    OffsetService,
    OffsetTable,
    reset_targets,
)
from skylark.core.errors import BrokerError, InvalidParameterError, QueryNotFoundError
from skylark.store.config_files import CONSUMER_OFFSETS
from skylark.store.consume_queue import Boundary, QueueEntry
from skylark.store.message_reader import Reader
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.slave_sync_body import ConsumerOffsetSerializeWrapper
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import decode_body, encode_body
from tests.unit.broker.tables import GOLDEN, NOW_MS, SteppingClock, live_settings, recorded

PEER: Any = None  # offsets do not depend on it


class Offsets(OffsetTable):
    """A table with its settings and its clock at hand."""

    def __init__(self, **texts: str) -> None:
        self.settings = live_settings(**texts)
        self.clock = SteppingClock()
        super().__init__(self.settings, self.clock)

    def ask(
        self, group: str, queue_id: int = 0, *, zero: bool | None = None, young: bool = False
    ) -> int:
        """QUERY_CONSUMER_OFFSET for topic T."""
        return self._service(young=young).committed(
            PEER, group, "T", queue_id, set_zero_if_not_found=zero
        )

    def commit_of_client(self, queue_id: int, offset: int) -> bool:
        """UPDATE_CONSUMER_OFFSET of group G for topic T."""
        return self._service().commit(PEER, "G", "T", queue_id, offset)

    def _service(self, *, young: bool = False) -> OffsetService:
        """The service over a store whose queues are empty, or have their first message."""
        first = SimpleNamespace(min_offset=0, read_entry=lambda _offset: QueueEntry(0, 0, 100, 0))
        store: Any = SimpleNamespace(
            queues=SimpleNamespace(get=lambda _topic, _queue_id: first if young else None),
            reader=SimpleNamespace(is_in_memory=lambda _log_offset: True),
        )
        known: Any = {"T", "G"}
        return OffsetService(store, known, known, self)


class FixedQueues(Reader):
    """Every queue of every topic has the same bounds."""

    def __init__(self, low: int, high: int) -> None:
        self.low = low
        self.high = high

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self.low

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self.high

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp: int, boundary: Boundary = Boundary.LOWER
    ) -> int:
        return min(self.high, self.low + timestamp)


# --- committing and asking ---


def test_what_is_committed_is_stored_as_it_is() -> None:
    table = Offsets()
    table.commit("G", "T", 0, 5)
    table.commit("G", "T", 1, 9)
    table.commit("H", "T", 0, 1)
    assert [table.get("G", "T", 0), table.get("G", "T", 1), table.get("H", "T", 0)] == [5, 9, 1]
    table.commit("G", "T", 0, 2)  # backwards, too
    assert table.get("G", "T", 0) == 2
    assert table.committed("G", "T") == {0: 2, 1: 9}
    assert table.get("G", "U", 0) == table.get("G", "T", 7) == table.get("X", "T", 0) == -1


@pytest.mark.spec("broker.13.14")
def test_a_new_group_on_a_young_topic_starts_at_the_beginning() -> None:
    table = Offsets()
    assert table.ask("new", young=True) == 0
    assert table.ask("new", zero=True, young=True) == 0
    with pytest.raises(QueryNotFoundError) as refused:
        table.ask("new", zero=False, young=True)
    assert refused.value.remark == NOT_FOUND_NO_ZERO
    with pytest.raises(QueryNotFoundError) as old:
        table.ask("new", young=False)
    assert old.value.remark == NOT_FOUND
    table.commit("new", "T", 0, 3)
    assert table.ask("new", zero=False) == 3
    assert table.committed("other", "T") == {}  # asking leaves nothing behind


def test_an_offset_below_0_counts_as_none() -> None:
    table = Offsets()
    table.commit("G", "T", 0, -1)
    assert table.ask("G", young=True) == 0


def test_a_real_broker_answers_the_same() -> None:
    """Of the group ``nobody``, on a topic whose first messages are in memory."""
    found = [c for _, c in recorded("errors", RequestCode.QUERY_CONSUMER_OFFSET)]
    assert [(c.code, c.remark, c.ext) for c in found[1::2]] == [
        (0, None, {"offset": "0"}),
        (22, NOT_FOUND_NO_ZERO, {}),
    ]
    live = recorded("admin-resetOffsetByTime-live", RequestCode.QUERY_CONSUMER_OFFSET)
    retry = [(c.code, c.remark) for is_request, c in live if not is_request]
    assert (22, NOT_FOUND) in retry  # of an empty retry topic


def test_every_500_commits_are_a_new_version() -> None:
    table = Offsets()
    for count in range(1, 1001):
        table.clock.ms += 1
        table.commit("G", "T", 0, 7)
        assert table.version.counter == count // 500
    assert table.version == DataVersion(counter=2, timestamp=NOW_MS + 1000)
    table.settings.update("consumerOffsetUpdateVersionStep=1\n", NOW_MS)
    table.commit("G", "T", 0, 7)
    assert table.version.counter == 3


def test_only_changes_count_as_changes() -> None:
    table = Offsets()
    table.commit("G", "T", 0, 7)
    table.commit_pulled("G", "T", 0, 9)
    assert table.change_count == 2
    table.commit("G", "T", 0, 7)
    table.commit_pulled("G", "T", 0, 9)
    assert table.change_count == 2


def test_pulled_offsets_are_apart() -> None:
    table = Offsets()
    assert table.get_pulled("G", "T", 0) == -1
    table.commit("G", "T", 0, 5)
    assert table.get_pulled("G", "T", 0) == 5
    table.commit_pulled("G", "T", 0, 8)
    assert (table.get_pulled("G", "T", 0), table.get("G", "T", 0)) == (8, 5)
    assert table.topics_of("G") == ["T"]


def test_queues_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets_module, "QUEUE_COUNT_MAX", 2)
    table = Offsets()
    for store in (table.commit, table.commit_pulled):
        store("G", "T", 0, 1)
        store("G", "T", 1_000_000, 1)
        with pytest.raises(InvalidParameterError, match="offsets of 2 queues of topic T already"):
            store("G", "T", 2, 1)
        store("G", "T", 0, 2)
    with pytest.raises(InvalidParameterError, match="offsets of 2 queues of topic T already"):
        table.reset("G", "T", {2: 1})
    table.reset("G", "T", {0: 1})
    assert not table.has_reset("G", "T", 2)


# --- resets ---


@pytest.mark.spec("broker.13.21")
def test_a_reset_waits_for_the_next_pull() -> None:
    table = Offsets()
    table.commit("G", "T", 0, 9)
    table.reset("G", "T", {0: 3, 1: 4})
    assert table.ask("G") == 3
    assert table.has_reset("G", "T", 0)
    assert not table.commit_of_client(0, 10)  # it still counts in the old place
    assert table.ask("G") == 3
    assert table.take_reset("G", "T", 0) == 3
    assert table.take_reset("G", "T", 0) is None
    assert table.take_reset("other", "T", 0) is None
    assert table.commit_of_client(0, 5)
    assert table.ask("G") == 5
    assert table.ask("G", 1) == 4  # the other queue still waits
    assert table.take_reset("G", "T", 1) == 4
    assert not table.has_reset("G", "T", 1)


def test_a_reset_without_a_consumer_is_committed() -> None:
    table = Offsets()
    table.reset("G", "T", {0: 3})
    assert table.snapshot().offset_table == {"T@G": {0: 3}}
    assert table.change_count == 1
    fresh = Offsets()
    fresh.load(table.snapshot())  # the pending reset is gone with the process
    assert (fresh.has_reset("G", "T", 0), fresh.get("G", "T", 0)) == (False, 3)


def test_resets_by_clients_leave_no_pending_ones() -> None:
    table = Offsets()
    table.reset("G", "T", {0: 3})
    table.settings.update("useServerSideResetOffset=false\n", NOW_MS)
    assert table.commit_of_client(0, 10)
    assert table.get("G", "T", 0) == 10
    assert table.take_reset("G", "T", 0) is None


def test_nonsense_is_not_reset() -> None:
    table = Offsets()
    table.reset("G", "T", {-1: 3, 0: -1})
    assert table.snapshot().offset_table == {}
    assert not table.has_reset("G", "T", -1)


def targets(
    queues: FixedQueues,
    *,
    queue_id: int = -1,
    offset: int | None = -1,
    timestamp_ms: int = 0,
    queue_count: int = 2,
) -> dict[int, int]:
    return reset_targets(
        "T",
        queue_id=queue_id,
        offset=offset,
        timestamp_ms=timestamp_ms,
        queue_count=queue_count,
        queues=queues,
    )


def test_where_a_reset_leads() -> None:
    queues = FixedQueues(5, 20)
    assert targets(queues, timestamp_ms=3) == {0: 8, 1: 8}
    assert targets(queues, timestamp_ms=-1) == {0: 20, 1: 20}
    assert targets(queues, queue_id=1, timestamp_ms=3) == {1: 8}
    assert targets(queues, queue_id=1, offset=None, timestamp_ms=-1) == {1: 20}
    assert targets(queues, offset=7) == {0: 5, 1: 5}  # for one queue only
    for offset in (5, 20, 21):
        assert targets(queues, queue_id=1, offset=offset) == {1: offset}


@pytest.mark.parametrize("offset", [4, 22, -2])
def test_a_reset_stays_in_the_queue(offset: int) -> None:
    with pytest.raises(BrokerError) as caught:
        targets(FixedQueues(5, 20), queue_id=0, offset=offset)
    assert caught.value.code == 1
    assert caught.value.remark == f"Target offset {offset} not in consume queue range [5-20]"


def test_a_topic_without_queues_cannot_be_reset() -> None:
    with pytest.raises(BrokerError, match=r"^No queues to reset\.$"):
        targets(FixedQueues(0, 0), queue_count=0)


# --- groups and topics ---


def test_who_reads_what() -> None:
    table = Offsets()
    for topic, group in (("T", "G"), ("T", "H"), ("TT", "G"), ("U", "GG")):
        table.commit(group, topic, 0, 1)
    assert table.topics_of("G") == ["T", "TT"]
    assert table.groups_of("T") == ["G", "H"]
    assert table.topics_of("none") == table.groups_of("none") == []


def test_a_group_gets_the_offsets_of_another() -> None:
    table = Offsets()
    table.commit("G", "T", 0, 1)
    table.commit("G", "U", 0, 2)
    table.commit("H", "T", 1, 3)
    table.clone("G", "H", ["T", "unknown"])
    assert table.committed("H", "T") == {0: 1}  # replaced, not merged
    table.commit("G", "T", 0, 7)
    assert table.committed("H", "T") == {0: 1}
    table.clone("G", "H", table.topics_of("G"))
    assert (table.committed("H", "T"), table.committed("H", "U")) == ({0: 7}, {0: 2})


def test_topics_and_groups_are_forgotten_whole() -> None:
    def filled() -> Offsets:
        table = Offsets()
        for topic, group in (("T", "G"), ("T", "H"), ("U", "G"), ("TG", "GT")):
            table.commit(group, topic, 0, 1)
            table.commit_pulled(group, topic, 0, 1)
            table.reset(group, topic, {0: 1})
        return table

    table = filled()
    table.remove_topic("T")
    assert table.snapshot().offset_table.keys() == {"U@G", "TG@GT"}
    assert table.snapshot().pull_offset_table.keys() == {"U@G", "TG@GT"}
    assert not table.has_reset("G", "T", 0)
    assert table.has_reset("G", "U", 0)
    table = filled()
    table.remove_group("G")
    assert table.snapshot().offset_table.keys() == {"T@H", "TG@GT"}
    assert table.snapshot().pull_offset_table.keys() == {"T@H", "TG@GT"}
    assert not table.has_reset("G", "U", 0)
    before = table.change_count
    table.remove_group("nobody")
    assert table.change_count == before


def test_the_slowest_of_all_groups() -> None:
    table = Offsets()
    table.commit("G", "T", 0, 7)
    table.commit("H", "T", 0, 5)
    table.commit("H", "T", 1, 2)  # what it points to is gone
    table.commit("I", "T", 0, 4)
    assert table.smallest("T", FixedQueues(3, 9)) == {0: 4}
    assert table.smallest("T", FixedQueues(3, 9), without=["I"]) == {0: 5}
    assert table.get("I", "T", 0) == 4  # left out, not deleted


# --- for slaves and the disk ---


def test_a_table_of_a_real_broker_comes_back_as_it_was() -> None:
    content = (GOLDEN / "store-basic/config/consumerOffset.json").read_bytes()
    stored = CONSUMER_OFFSETS.decode(content)
    table = Offsets()
    table.load(stored)
    ours = table.snapshot()
    ours.derive()
    assert ours.offset_table == stored.offset_table
    assert ours.pull_offset_table == stored.pull_offset_table
    assert ours.data_version == stored.data_version
    assert {group: set(topics) for group, topics in ours.group_topic_map.items()} == {
        group: set(topics) for group, topics in stored.group_topic_map.items()
    }
    assert table.get("golden_sql_cg", "GoldenA", 1) == 3
    assert table.get_pulled("golden_sql_cg", "GoldenA", 1) == 10
    assert table.change_count == 0


def test_a_file_of_4_9_has_offsets_only() -> None:
    stored = CONSUMER_OFFSETS.decode(
        (GOLDEN / "config/java-4.9.8/consumerOffset.json").read_bytes()
    )
    table = Offsets()
    table.load(stored)
    assert table.snapshot().offset_table == stored.offset_table != {}
    assert table.version == DataVersion(timestamp=NOW_MS)


def test_keys_that_name_nothing_are_passed_over() -> None:
    table = Offsets()
    table.load(CONSUMER_OFFSETS.table_type(offset_table={"T": {0: 1}, "@G": {0: 1}, "T@G": {0: 1}}))
    assert table.snapshot().offset_table == {"T@G": {0: 1}}


def test_a_slave_gets_what_a_real_one_got() -> None:
    _, (_, answer) = recorded("slave-sync", RequestCode.GET_ALL_CONSUMER_OFFSET)
    theirs = decode_body(ConsumerOffsetSerializeWrapper, answer.body or b"")
    table = Offsets()
    assert theirs.data_version is not None
    table.version = theirs.data_version
    assert encode_body(table.dump()) == answer.body


def test_a_slave_takes_over_what_the_master_has() -> None:
    master, slave = Offsets(), Offsets()
    master.commit("G", "T", 0, 5)
    master.commit_pulled("G", "T", 0, 6)
    master.version = DataVersion(counter=9, timestamp=1)
    slave.commit("G", "T", 0, 1)
    slave.commit("H", "T", 0, 2)
    sent = decode_body(ConsumerOffsetSerializeWrapper, encode_body(master.dump()))
    assert sent.group_topic_map == {"G": ["T"]}
    slave.merge(sent)
    assert (slave.get("G", "T", 0), slave.get("H", "T", 0)) == (5, 2)
    assert slave.get_pulled("G", "T", 0) == 6
    assert slave.version == master.version


def test_a_snapshot_does_not_follow_the_table() -> None:
    table = Offsets()
    table.commit("G", "T", 0, 1)
    before = table.snapshot()
    table.commit("G", "T", 0, 2)
    table.commit("H", "T", 0, 2)
    assert before.offset_table == {"T@G": {0: 1}}


NAMES = st.sampled_from(["T", "U", "%RETRY%G"])
COMMITS = st.lists(st.tuples(NAMES, NAMES, st.integers(0, 3), st.integers(0, 1 << 62)))


@settings(max_examples=50, deadline=None)
@given(COMMITS)
def test_the_last_commit_wins_also_after_a_restart(
    commits: list[tuple[str, str, int, int]],
) -> None:
    table = Offsets()
    model: dict[tuple[str, str, int], int] = {}
    for group, topic, queue_id, offset in commits:
        table.commit(group, topic, queue_id, offset)
        model[group, topic, queue_id] = offset
    again = Offsets()
    again.load(CONSUMER_OFFSETS.decode(CONSUMER_OFFSETS.encode(table.snapshot())))
    assert {key: again.get(*key) for key in model} == model
    assert {group for group, _, _ in model} == {
        group for topic in ("T", "U", "%RETRY%G") for group in again.groups_of(topic)
    }
