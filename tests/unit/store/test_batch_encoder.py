"""The records of a batch are those of its messages put one by one, of any sizes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.store.allocator import Allocator
from skylark.store.commit_log import CommitLog, Draft, TopicField, topic_field
from skylark.store.file_sequence import MappedFiles
from skylark.store.files import OsFileSystem
from skylark.wire.batch import Batch, BatchMessage
from skylark.wire.message import pack_host
from tests.unit.store.manual_owner import ManualOwner

V4, V6 = pack_host("127.0.0.1", 10911), pack_host("::1", 10911)
INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)

sizes = st.sampled_from([1, 2, 7])


@st.composite
def batches(draw: st.DrawFn) -> list[BatchMessage]:
    """Often of messages that are alike in size, flag or both."""
    body_sizes = st.just(draw(sizes)) if draw(st.booleans()) else sizes
    flags = st.just(draw(INT32)) if draw(st.booleans()) else INT32
    prepared = st.just(draw(INT64)) if draw(st.booleans()) else INT64
    # Before a checksum, an item that does not end is ended: then it is longer than its like.
    properties = draw(
        st.sampled_from(
            [[b"a\x01b\x02"], [b"a\x01b\x02", b"c\x01de"], [b"", b"a\x01b\x02", b"c\x01d\x02"]]
        )
    )
    return [
        BatchMessage(
            draw(body_sizes.flatmap(lambda size: st.binary(min_size=size, max_size=size))),
            draw(st.sampled_from(properties)),
            draw(flags),
            draw(prepared),
        )
        for _ in range(draw(st.integers(1, 6)))
    ]


@dataclass
class Logs:
    """Two empty logs that are filled at the same moment."""

    one_by_one: CommitLog
    at_once: CommitLog


def make_log(root: Path, store_host: bytes, *, property_crc: bool) -> CommitLog:
    system = OsFileSystem()
    files = MappedFiles(root, 1 << 20, files=system, allocator=Allocator(system))
    files.load()
    return CommitLog(files, ManualOwner(), store_host, property_crc=property_crc)


@pytest.fixture(scope="module", params=[(V4, False), (V4, True), (V6, False)])
def logs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Logs:
    store_host, property_crc = request.param
    root = tmp_path_factory.mktemp("logs")
    made = [make_log(root / name, store_host, property_crc=property_crc) for name in ("one", "all")]
    return Logs(*made)


@settings(max_examples=150, deadline=None)
@given(
    messages=batches(),
    born_host=st.sampled_from([V4, V6]),
    topic=st.sampled_from([topic_field("TopicTest"), topic_field("%RETRY%" + "g" * 130)]),
    queue_offset=st.integers(0, 1 << 40),
)
def test_at_once_is_one_by_one(
    logs: Logs,
    messages: list[BatchMessage],
    born_host: bytes,
    topic: TopicField,
    queue_offset: int,
) -> None:
    draft = Draft(
        "", 3, b"", sys_flag=0x31, born_timestamp=17, born_host=born_host, reconsume_times=2
    )
    for log in (logs.one_by_one, logs.at_once):
        log.files.last.wrote = 0
    now_ms = logs.at_once.now_ms()
    results = [
        logs.one_by_one.append(
            msgspec.structs.replace(
                draft,
                body=message.body,
                properties=message.properties,
                flag=message.flag,
                prepared_transaction_offset=message.prepared_transaction_offset,
            ),
            topic,
            queue_offset + number,
            now_ms,
        )
        for number, message in enumerate(messages)
    ]
    log_offsets, sizes = logs.at_once.append_batch(
        draft, topic, queue_offset, Batch.of(messages), now_ms
    )
    assert list(sizes) == [result.size for result in results]
    assert list(log_offsets) == [result.log_offset for result in results]
    one, other = logs.one_by_one.files.last, logs.at_once.files.last
    assert one.wrote == other.wrote == sum(sizes)
    assert bytes(other.buffer[: other.wrote]) == bytes(one.buffer[: one.wrote])
