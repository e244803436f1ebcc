"""Members of configuration files that follow from others."""

from __future__ import annotations

from skylark.store.config_tables import (
    ConsumerFilterData,
    ConsumerFilterTable,
    ConsumerOffsetTable,
    ConsumerOrderInfoTable,
    OrderInfo,
    TopicFilterTable,
    TopicTable,
)
from skylark.store.file_system import READ_FILE_SIZE_MAX


def test_the_topics_of_each_group_follow_from_the_offsets() -> None:
    table = ConsumerOffsetTable(
        offset_table={"T1@g": {0: 1}, "T2@g": {}, "T1@h": {0: 2}, "odd": {}, "a@b@c": {}}
    )
    table.derive()
    assert table.group_topic_map == {"g": ["T1", "T2"], "h": ["T1"]}
    del table.offset_table["T1@g"]
    table.derive()
    assert table.group_topic_map == {"g": ["T2"], "h": ["T1"]}


def test_the_order_of_a_map_that_is_still_right_is_kept() -> None:
    loaded = {"h": ["T1"], "g": ["T2", "T1"]}
    table = ConsumerOffsetTable(
        offset_table={"T1@g": {}, "T2@g": {}, "T1@h": {}}, group_topic_map=dict(loaded)
    )
    table.derive()
    assert list(table.group_topic_map.items()) == list(loaded.items())


def test_pulled_offsets_make_no_member() -> None:
    table = ConsumerOffsetTable(pull_offset_table={"T@g": {0: 1}}, group_topic_map={"g": ["T"]})
    table.derive()
    assert table.group_topic_map == {}


def test_a_filter_is_dead_from_its_time_of_death_on() -> None:
    alive = ConsumerFilterData(born_time=10, dead_time=0, dead=True)
    dead = ConsumerFilterData(born_time=10, dead_time=10)
    table = ConsumerFilterTable(
        filter_data_by_topic={"T": TopicFilterTable(group_filter_data={"a": alive, "d": dead})}
    )
    table.derive()
    assert (alive.dead, dead.dead) == (False, True)


def test_order_entries_are_counted_by_topic_and_group() -> None:
    table = ConsumerOrderInfoTable(table={"T@g": {0: OrderInfo(), 1: OrderInfo()}})
    table.derive()
    assert table.order_info_count == 1


def test_a_file_may_be_larger_than_a_body() -> None:
    assert TopicTable.dialect_size_max == READ_FILE_SIZE_MAX
