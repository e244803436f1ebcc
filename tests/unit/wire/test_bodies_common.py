"""Shared body types: ordering of versions and queues, routes with old names, small codecs."""

from __future__ import annotations

import pytest

from skylark.core.errors import LocalProtocolError, RemoteProtocolError
from skylark.wire.bodies.common_body import DataVersion, MessageQueue, TopicList
from skylark.wire.bodies.pop_body import (
    BITS_MAX,
    BatchAck,
    BatchAckMessageRequestBody,
    QueryAssignmentResponseBody,
    decode_bit_set,
    encode_bit_set,
)
from skylark.wire.bodies.route_body import QueueData, TopicRouteData
from skylark.wire.bodies.slave_sync_body import TimerCheckpoint
from skylark.wire.bodies.stats import ConsumeStats, TopicStatsTable
from skylark.wire.catalogue import CATALOGUE
from skylark.wire.fastjson import DIALECT_SIZE_MAX, decode_body, encode_body


def test_newer_means_state_version_then_counter_then_timestamp() -> None:
    versions = [
        DataVersion(state_version=0, counter=1, timestamp=9),
        DataVersion(state_version=0, counter=2, timestamp=1),
        DataVersion(state_version=0, counter=2, timestamp=2),
        DataVersion(state_version=1, counter=0, timestamp=0),
    ]
    assert versions[0] < versions[1] < versions[2] < versions[3]
    assert DataVersion(counter=1) != DataVersion(counter=1, timestamp=1)


def test_the_next_version() -> None:
    version = DataVersion(state_version=3, counter=7, timestamp=100)
    assert version.next(200) == DataVersion(state_version=3, counter=8, timestamp=200)
    assert version.next(200, state_version=4).state_version == 4


def test_a_version_of_4x_has_no_state() -> None:
    version = decode_body(DataVersion, b'{"counter":2,"timestamp":5}')
    assert version == DataVersion(state_version=0, counter=2, timestamp=5)
    assert encode_body(version) == b'{"counter":2,"stateVersion":0,"timestamp":5}'


def test_queues_compare_by_topic_broker_and_number() -> None:
    queues = [
        MessageQueue(topic="A", broker_name="z", queue_id=9),
        MessageQueue(topic="B", broker_name="a", queue_id=10),
        MessageQueue(topic="B", broker_name="b", queue_id=2),
        MessageQueue(topic="B", broker_name="b", queue_id=10),
    ]
    assert queues[0] < queues[1] < queues[2] < queues[3]
    assert {queues[0]: 1}[MessageQueue(topic="A", broker_name="z", queue_id=9)] == 1


def test_optional_members_are_not_written() -> None:
    assert encode_body(TopicList(topic_list=["T"])) == b'{"topicList":["T"]}'
    assert encode_body(TopicRouteData()) == (
        b'{"brokerDatas":[],"filterServerTable":{},"queueDatas":[]}'
    )


def test_the_old_name_of_the_topic_flag() -> None:
    queues = decode_body(QueueData, b'{"brokerName":"b","perm":6,"topicSynFlag":1}')
    assert queues.topic_sys_flag == 1
    assert b'"topicSysFlag":1' in encode_body(queues)
    assert b"topicSynFlag" not in encode_body(queues)


def test_absent_assignments_differ_from_none_at_all() -> None:
    assert decode_body(QueryAssignmentResponseBody, b"{}").message_queue_assignments is None
    assert encode_body(QueryAssignmentResponseBody()) == b"{}"
    empty = QueryAssignmentResponseBody(message_queue_assignments=[])
    assert encode_body(empty) == b'{"messageQueueAssignments":[]}'


def test_bit_sets() -> None:
    assert encode_bit_set([0, 9]) == "AQI="
    assert decode_bit_set("AQI=") == [0, 9]
    assert (encode_bit_set([]), decode_bit_set("")) == ("", [])
    assert decode_bit_set(encode_bit_set([BITS_MAX - 1])) == [BITS_MAX - 1]


def test_a_batch_ack_names_its_offsets() -> None:
    text = b'{"acks":[{"b":"AQI=","c":"g","q":1,"so":100,"t":"T"}],"brokerName":"b"}'
    (ack,) = decode_body(BatchAckMessageRequestBody, text).acks
    assert (ack.consumer_group, ack.topic, ack.queue_id) == ("g", "T", 1)
    assert ack.mask(0, 1_000) == 1 | 1 << 9
    assert ack.offsets() == ack.offsets_of(ack.mask(0, 1_000)) == [100, 109]
    assert BatchAck(start_offset=5).offsets() == []


@pytest.mark.parametrize(
    ("start", "first", "end", "offsets"),
    [
        (100, 0, 109, [100]),
        (100, 101, 110, [109]),
        (100, 100, 101, [100]),
        (100, 110, 200, []),
        (100, 0, 100, []),
        (-5, 0, 10, [4]),
        (0, 10**17, 1 << 62, []),
        (1 << 62, 0, 10, []),
    ],
)
def test_offsets_outside_a_queue_are_cut_off(
    start: int, first: int, end: int, offsets: list[int]
) -> None:
    ack = BatchAck(start_offset=start, bit_set=encode_bit_set([0, 9]))
    assert ack.offsets_of(ack.mask(first, end)) == offsets


@pytest.mark.parametrize("text", ["A", "@@@@", "AQI", "\u4e2d", "AAAA" * (BITS_MAX // 24 + 1)])
def test_invalid_bit_sets(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_bit_set(text)


@pytest.mark.parametrize("bit", [-1, BITS_MAX])
def test_bits_out_of_range(bit: int) -> None:
    with pytest.raises(LocalProtocolError):
        encode_bit_set([bit])


def test_timer_checkpoint() -> None:
    checkpoint = TimerCheckpoint(
        last_read_time_ms=1,
        last_timer_log_flush_pos=2,
        last_timer_queue_offset=3,
        master_timer_queue_offset=4,
        data_version=DataVersion(state_version=5, timestamp=6, counter=7),
    )
    data = checkpoint.encode()
    assert data == b"".join(number.to_bytes(8, "big") for number in range(1, 8))
    assert TimerCheckpoint.decode(data) == checkpoint
    assert TimerCheckpoint.decode(data + bytes(4096 - 56)) == checkpoint
    with pytest.raises(RemoteProtocolError):
        TimerCheckpoint.decode(data[:-1])


@pytest.mark.parametrize("table", [TopicStatsTable, ConsumeStats])
def test_tables_of_queues_may_be_long(table: type[TopicStatsTable] | type[ConsumeStats]) -> None:
    """Some bodies have an entry for each queue, and a topic may have 65,536."""
    row = b'{"brokerName":"b","queueId":%d,"topic":"T"}:{"maxOffset":7,"brokerOffset":7}'
    body = b'{"offsetTable":{' + b",".join(row % number for number in range(20_000)) + b"}}"
    assert len(body) > DIALECT_SIZE_MAX
    found = set(decode_body(table, body).offset_table)
    assert len(found) == 20_000
    assert MessageQueue(topic="T", broker_name="b", queue_id=19_999) in found


def test_every_body_of_the_catalogue_reads_an_empty_one() -> None:
    rows = CATALOGUE.values()
    found = [kind for row in rows for kind in (row.request_body_type, row.response_body_type)]
    body_types = [kind for kind in found if kind is not None]
    assert len(body_types) > 70
    for body_type in body_types:
        if isinstance(body_type, type):
            assert decode_body(body_type, b"{}") == body_type()
        else:
            assert decode_body(body_type, b"[]") == []
