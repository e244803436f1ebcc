"""Offsets in the checkpoint, limits, partitions: what is decided without a cluster."""

from __future__ import annotations

import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.core.errors import ConfigError
from skylark.spark.lag_listener import queue_lags
from skylark.spark.source.input_partitions import QueueRange, cut_ranges
from skylark.spark.source.read_limit import split_bytes, split_limit
from skylark.spark.source.stream_offset import StreamOffset, decode_offset, encode_offset
from skylark.wire.bodies.common_body import MessageQueue


def queue(queue_id: int, topic: str = "T", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)


def test_the_text_of_an_offset_is_stable() -> None:
    one = {queue(10): 1, queue(2): 7, queue(0, broker="b"): 3, queue(0, topic="A"): 4}
    other = dict(reversed(one.items()))
    text = json.dumps(encode_offset(StreamOffset(one)))
    assert text == json.dumps(encode_offset(StreamOffset(other)))
    assert text == (
        '{"v": 1, "q": {"A": {"broker-a": {"0": 4}},'
        ' "T": {"b": {"0": 3}, "broker-a": {"2": 7, "10": 1}}}}'
    )


def test_marks_of_the_first_batch() -> None:
    start = {queue(0): 5}
    offset = StreamOffset({queue(0): 9}, first_start=start)
    assert decode_offset(json.loads(json.dumps(encode_offset(offset)))) == offset
    fresh = StreamOffset(start, fresh=True)
    assert encode_offset(fresh) == {"v": 1, "q": {"T": {"broker-a": {"0": 5}}}, "fresh": True}
    assert decode_offset(encode_offset(fresh)) == fresh


def test_a_newer_version_is_refused() -> None:
    with pytest.raises(ConfigError, match="offsets of version 2, this source knows 1"):
        decode_offset({"v": 2, "q": {}})


@pytest.mark.parametrize(
    "wrong",
    [{}, {"v": 1}, {"v": 1, "q": 3}, {"v": 1, "q": {"T": {"b": {"x": 1}}}}, [], {"index": 3},
     {"v": 1, "q": {"T": {"b": {"0": -1}}}}],
)  # fmt: skip
def test_offsets_of_others_are_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="none of this source"):
        decode_offset(wrong)


# ---- limits --------------------------------------------------------------------------------------


@pytest.mark.spec("spark.9.10")
def test_a_limit_is_shared_in_proportion() -> None:
    assert split_limit({0: 101, 1: 11, 2: 1}, 10) == {0: 9, 1: 1, 2: 0}
    assert split_limit({0: 100, 1: 100, 2: 100}, 10) == {0: 4, 1: 3, 2: 3}
    assert split_limit({0: 100, 1: 100, 2: 100}, 10, turn=1) == {0: 3, 1: 4, 2: 3}
    assert split_limit({0: 3, 1: 4}, 10) == {0: 3, 1: 4}
    assert split_limit({}, 10) == {}


@given(
    st.dictionaries(st.integers(0, 50), st.integers(0, 10**6), max_size=20),
    st.integers(1, 10**6),
    st.integers(0, 100),
)
@settings(max_examples=200, deadline=None)
def test_shares_add_up_and_stay_below_the_backlog(
    backlogs: dict[int, int], limit: int, turn: int
) -> None:
    shares = split_limit(backlogs, limit, turn)
    assert sum(shares.values()) == min(limit, sum(backlogs.values()))
    assert all(0 <= shares[key] <= backlogs[key] for key in backlogs)


@pytest.mark.parametrize("count", [3, 5, 12])
def test_every_queue_moves_soon(count: int) -> None:
    backlogs = dict.fromkeys(range(count), 100)
    moved: set[int] = set()
    for turn in range(2):
        shares = split_limit(backlogs, 10, turn)
        assert sum(shares.values()) == 10
        moved.update(key for key, share in shares.items() if share)
        backlogs = {key: backlogs[key] - share for key, share in shares.items()}
    assert moved == set(range(count))


def test_bytes_are_a_limit_too() -> None:
    assert split_bytes({0: 100, 1: 100}, {0: 10, 1: 30}, 800) == {0: 20, 1: 20}
    assert split_bytes({0: 5, 1: 5}, {0: 1000, 1: 2000}, 10) == {0: 0, 1: 1}  # never stuck
    assert split_bytes({0: 5}, {0: 10}, 1000) == {0: 5}
    assert split_bytes({}, {}, 1000) == {}


# ---- partitions ----------------------------------------------------------------------------------


def whole(queue_id: int, start: int, end: int) -> QueueRange:
    return QueueRange(queue=queue(queue_id), start=start, end=end, addresses={0: "h:1"})


def offsets_of(parts: list[QueueRange]) -> list[tuple[int, int]]:
    return [
        (part.queue.queue_id, offset) for part in parts for offset in range(part.start, part.end)
    ]


@pytest.mark.spec("spark.9.19")
def test_ranges_are_cut() -> None:
    ranges = [whole(0, 0, 1000), whole(1, 500, 1500), whole(2, 7, 7)]
    eight = cut_ranges(ranges, count_min=8, records_max=None)
    assert [part.count for part in eight] == [250] * 8
    assert offsets_of(eight) == offsets_of(ranges)
    small = cut_ranges(ranges, count_min=None, records_max=300)
    assert [part.count for part in small] == [250] * 8
    assert cut_ranges(ranges, count_min=None, records_max=None) == ranges[:2]
    assert cut_ranges([], count_min=4, records_max=10) == []
    assert pickle.loads(pickle.dumps(eight)) == eight


@given(
    st.lists(st.integers(0, 500), max_size=8), st.integers(1, 40), st.none() | st.integers(1, 100)
)
@settings(max_examples=200, deadline=None)
def test_cut_ranges_hold_the_same_messages(
    sizes: list[int], count_min: int, records_max: int | None
) -> None:
    ranges = [whole(index, 10, 10 + size) for index, size in enumerate(sizes)]
    parts = cut_ranges(ranges, count_min=count_min, records_max=records_max)
    assert offsets_of(parts) == offsets_of(ranges)
    assert all(part.count > 0 for part in parts)
    assert len(parts) >= min(count_min, sum(sizes))
    assert records_max is None or all(part.count <= records_max for part in parts)


def test_large_ranges_are_cut_more() -> None:
    parts = cut_ranges([whole(0, 0, 900), whole(1, 0, 100)], count_min=10, records_max=None)
    counts = [sum(part.queue.queue_id == number for part in parts) for number in (0, 1)]
    assert counts == [8, 2]


# ---- lag -----------------------------------------------------------------------------------------


def test_lag_of_queues() -> None:
    end = StreamOffset({queue(0): 5, queue(1): 9})
    latest = StreamOffset({queue(0): 8, queue(1): 7, queue(2): 3})
    assert queue_lags(end, latest) == {queue(0): 3, queue(1): 0, queue(2): 0}
