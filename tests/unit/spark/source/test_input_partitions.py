"""Input partitions: ranges of queues, cut by the options, and the store folders of brokers."""

from __future__ import annotations

import pickle
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.admin.admin_session import Session
from skylark.core.errors import ConnectError
from skylark.spark.source.input_partitions import QueueRange, StoreFinder, cut_ranges
from skylark.spark.source.source_options import source_options
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.codes import RequestCode


def queue(queue_id: int, topic: str = "T", broker: str = "broker-a") -> MessageQueue:
    return MessageQueue(topic=topic, broker_name=broker, queue_id=queue_id)


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


ADDRESSES = {0: "192.0.2.1:10911"}


class FakeSession:
    """A broker with topics of these attributes; one that it does not know is an error."""

    def __init__(self, **attributes: dict[str, str]) -> None:
        self._attributes = attributes
        self.asked: list[str] = []

    async def ask(self, kind: type[Any], address: str, code: int, header: Any) -> Any:
        assert (kind, address, code) == (TopicConfig, ADDRESSES[0], RequestCode.GET_TOPIC_CONFIG)
        self.asked.append(header.topic)
        if header.topic not in self._attributes:
            raise ConnectError("refused")
        return TopicConfig(topic_name=header.topic, attributes=self._attributes[header.topic])


def finder(session: FakeSession, **more: str) -> StoreFinder:
    given = {"nameserver": "h:1", "topicspattern": ".*", **more}
    options = source_options(given, streaming=True, environ={})
    return StoreFinder(cast(Session, session), options)


@pytest.mark.parametrize("name", ["cleanup.policy", "+cleanup.policy"])
async def test_compacted_topics_are_pulled(name: str) -> None:
    session = FakeSession(Plain={}, Kept={name: "DELETE"}, Compacted={name: "COMPACTION"})
    stores = finder(session, storepath="/store")
    for _ in range(2):
        assert await stores.find("Plain", ADDRESSES) == "/store"
        assert await stores.find("Kept", ADDRESSES) == "/store"
        assert await stores.find("Compacted", ADDRESSES) is None
        assert await stores.find("Silent", ADDRESSES) is None
    assert session.asked == ["Plain", "Kept", "Compacted", "Silent", "Silent"]


async def test_remote_brokers_are_not_asked_for_their_store_folder() -> None:
    session = FakeSession()
    assert await finder(session).find("T", ADDRESSES) is None
    assert await finder(session, storepath="/store", readmode="pull").find("T", ADDRESSES) is None
    assert await finder(session, storepath="/store").find("T", {}) == "/store"
    assert session.asked == []
