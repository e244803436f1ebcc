"""Check-points and acks as records: Java's bytes, and what is not one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from skylark.core.errors import RemoteProtocolError
from skylark.wire.pop_records import Ack, CheckPoint, decode_ack, decode_check_point

GOLDEN_LOG = Path(__file__).parents[2] / "golden" / "data" / "timer" / "commitlog.bin"

CHECK_POINT = CheckPoint(
    topic="T",
    group="g",
    queue_id=1,
    start_offset=7,
    pop_time_ms=1_700_000_000_000,
    invisible_ms=10_000,
    broker_name="broker-a",
    offset_diffs=[0, 2, 3],
)


def golden_bodies() -> list[bytes]:
    log = GOLDEN_LOG.read_bytes()
    return re.findall(rb'\{"(?:ao|bm)".*?\}', log)


def test_records_of_java() -> None:
    bodies = golden_bodies()
    assert len(bodies) == 26
    log = GOLDEN_LOG.read_bytes()
    for body in bodies:
        is_check_point = body.startswith(b'{"bm"')
        record = decode_check_point(body) if is_check_point else decode_ack(body)
        assert record.encode() == body
        assert f"UNIQ_KEY\x01{record.unique_key}\x02".encode() in log


def test_times_of_a_check_point() -> None:
    assert CHECK_POINT.revive_time_ms == 1_700_000_010_000
    assert CHECK_POINT.deliver_ms == 1_700_000_009_000
    assert CHECK_POINT.next_offset == 11
    assert CHECK_POINT.unique_key == "T@1@7@g@1700000000000@broker-a@ck"


def test_bits() -> None:
    point = decode_check_point(CHECK_POINT.encode())
    assert point.mark(9)
    assert not point.mark(8)
    assert not point.mark(6)
    assert point.waiting_offsets() == [7, 10]
    assert json.loads(point.encode())["bm"] == 2
    assert decode_check_point(point.encode()).waiting_offsets() == [7, 10]


def test_all_32_bits_are_a_negative_number_in_java() -> None:
    point = CheckPoint(
        topic="T",
        group="g",
        queue_id=0,
        start_offset=0,
        pop_time_ms=1,
        invisible_ms=1,
        broker_name="b",
        offset_diffs=range(32),
        bits=(1 << 32) - 1,
    )
    assert json.loads(point.encode())["bm"] == -1
    assert decode_check_point(point.encode()).waiting_offsets() == []


def test_a_check_point_without_diffs_has_messages_that_follow_each_other() -> None:
    point = decode_check_point(b'{"so":5,"pt":1,"it":2,"t":"T","c":"g","n":3,"q":0,"bn":"b"}')
    assert point.waiting_offsets() == [5, 6, 7]


def test_a_check_point_that_was_put_off() -> None:
    body = CHECK_POINT.encode()[:-1].replace(b'"so"', b'"rp":"3","so"') + b"}"
    point = decode_check_point(body)
    assert (point.re_put_times, point.re_put_count) == ("3", 3)
    assert point.encode() == body
    point.re_put_times = "often"
    assert point.re_put_count == 127


def test_a_batch_ack() -> None:
    ack = Ack(
        topic="T",
        group="g",
        queue_id=1,
        start_offset=7,
        pop_time_ms=5,
        broker_name="b",
        queue_offsets=[7, 9],
        is_batch=True,
    )
    body = b'{"ao":-1,"aol":[7,9],"bn":"b","c":"g","pt":5,"q":1,"so":7,"t":"T"}'
    assert ack.encode() == body
    assert ack.unique_key == "T@1@-1@g@5@b@ack"  # as Java overwrites it
    assert decode_ack(body, is_batch=True) == Ack(
        topic="T",
        group="g",
        queue_id=1,
        start_offset=7,
        pop_time_ms=5,
        broker_name="b",
        queue_offsets=[7, 9],
        is_batch=True,
    )


def test_a_batch_ack_of_javas_buffer_has_no_broker() -> None:
    body = b'{"ao":0,"aol":[7],"c":"g","pt":5,"q":1,"so":7,"t":"T"}'
    ack = decode_ack(body, is_batch=True)
    assert ack.key("me").broker_name == "me"
    assert decode_ack(body.replace(b'"c"', b'"bn":"you","c"'), is_batch=True).key("me")[5] == "you"


def test_long_names_of_acks() -> None:
    body = (
        b'{"ackOffset":8,"startOffset":7,"consumerGroup":"g","topic":"T","queueId":1,'
        b'"popTime":5,"brokerName":"b"}'
    )
    ack = decode_ack(body)
    assert (ack.key("me"), list(ack.queue_offsets)) == (("T", "g", 1, 7, 5, "b"), [8])


BAD_CHECK_POINTS = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"\xff\xfe",
    b"{}",
    b'"x"',
    b"0-15",  # what Java's cancelled code once wrote
    b'{"so":-1,"pt":1,"it":2,"t":"T","c":"g","n":1}',
    b'{"so":1,"pt":1,"it":2,"t":"","c":"g","n":1}',
    b'{"so":1,"pt":1,"it":2,"t":"T","c":"g","n":128}',
    b'{"so":1,"pt":1,"it":2,"t":"T","c":"g","n":-1}',
    b'{"so":1,"pt":1,"it":2,"t":"T","c":"g","n":3,"d":[0,1]}',
    b'{"so":1,"pt":1,"it":2,"t":"T","c":"g","n":1,"d":[-1]}',
    b'{"so":1,"pt":1,"it":2,"t":"T","c":"g","n":1,"d":[99999999999]}',
    b'{"so":9999999999999999999999,"pt":1,"it":2,"t":"T","c":"g","n":1}',
    b'{"so":1,"pt":"x","it":2,"t":"T","c":"g","n":1}',
    b"[" * 100_000,
]


@pytest.mark.parametrize("body", BAD_CHECK_POINTS)
def test_bad_check_points(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_check_point(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"{}",
        b"7",
        b"\xff",
        b'{"so":1,"pt":2,"t":"T"}',
        b'{"so":-1,"pt":2,"t":"T","c":"g"}',
    ],
)
def test_bad_acks(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_ack(body)


def test_every_torn_record_is_refused() -> None:
    for body, decode in (
        (CHECK_POINT.encode(), decode_check_point),
        (golden_bodies()[2], decode_ack),
    ):
        for end in range(len(body)):
            with pytest.raises(RemoteProtocolError):
                decode(body[:end])
