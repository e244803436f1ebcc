"""Pop responses as Apache's broker sent them, receipts, and the clock of a broker."""

from __future__ import annotations

import pytest

from skylark.client.consumer.pop.pop_options import retry_delay_ms
from skylark.client.consumer.pop.pop_receipts import batch_acks
from skylark.client.consumer.pop.popped_message import (
    BrokerTime,
    PopDecoder,
    PoppedRecord,
    PopReceipt,
)
from skylark.client.core.pop_calls import Popped
from skylark.core.errors import RemoteProtocolError
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.fields import decode_ext
from skylark.wire.headers.pop import PopMessageResponseHeader
from skylark.wire.message import MessageRecord, encode_record, pack_host
from skylark.wire.properties import encode_properties
from tests.unit.broker.tables import recorded


def make(
    record: MessageRecord, broker_name: str, topic: str | None, receipt: PopReceipt
) -> PoppedRecord:
    return PoppedRecord(record, broker_name, topic, receipt, None)


def decoder(topic: str = "T", group: str = "g") -> PopDecoder[PoppedRecord]:
    return PopDecoder(topic, group, "broker-a", shown_topic=topic, make=make, time=BrokerTime())


def record(
    offset: int, *, topic: str = "T", queue_id: int = 0, times: int = 0, **properties: str
) -> bytes:
    return encode_record(
        topic=topic,
        body=b"%d" % offset,
        properties=encode_properties(properties).encode(),
        queue_id=queue_id,
        queue_offset=offset,
        log_offset=offset,
        store_host=pack_host("127.0.0.1", 1),
        reconsume_times=times,
    )


def popped(body: bytes, start_info: str | None, **numbers: int) -> Popped:
    return Popped(
        PopMessageResponseHeader(
            pop_time=numbers.get("pop_time", 5_000),
            invisible_time=60_000,
            revive_qid=3,
            start_offset_info=start_info,
        ),
        body,
    )


def test_receipts_of_the_recording_are_those_that_the_java_client_sent() -> None:
    sent = {
        (command.ext or {})["extraInfo"]
        for code in (RequestCode.ACK_MESSAGE, RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
        for is_request, command in recorded("pop-consumer", code)
        if is_request
    }
    made: set[str] = set()
    for is_request, command in recorded("pop-consumer", RequestCode.POP_MESSAGE):
        if is_request or command.code != ResponseCode.SUCCESS:
            continue
        header = decode_ext(PopMessageResponseHeader, command.ext)
        answer = Popped(header, bytes(command.body or b""))
        found = decoder("FramePop", "golden_pop_cg").decode(answer, 0, 1)
        made |= {each.receipt_handle for each in found}
    assert sent
    assert sent <= made


def test_the_text_of_a_retry_is_its_own() -> None:
    body = record(7) + record(2, times=1, POP_CK="2 4000 30000 5 1 broker-a 0 2", ORIGIN_GROUP="g")
    first, retry = decoder().decode(popped(body, "0 0 5;1 0 2"), 4_000, 5_000)
    assert first.receipt_handle == "5 5000 60000 3 0 broker-a 0 7"
    assert first.receipt.real_topic == "T"
    assert retry.receipt_handle == "2 4000 30000 5 1 broker-a 0 2"
    assert retry.receipt.real_topic == "%RETRY%g_T"
    assert retry.attempt == 2
    assert retry.topic == "T"


def test_a_retry_under_the_name_of_its_real_topic() -> None:
    body = record(2, topic="%RETRY%g+T", times=1)
    (retry,) = decoder().decode(popped(body, "2 0 1"), 4_000, 5_000)
    assert retry.receipt_handle == "1 5000 60000 3 2 broker-a 0 2"
    assert retry.receipt.real_topic == "%RETRY%g+T"
    assert retry.topic == "T"


def test_a_response_without_offsets_and_one_with_wrong_ones() -> None:
    first, second = decoder().decode(popped(record(7) + record(8), None), 0, 5_000)
    assert first.receipt is second.receipt
    assert first.receipt.start_offset == 7
    with pytest.raises(RemoteProtocolError, match="in no check-point"):
        decoder().decode(popped(record(7), "0 3 5"), 0, 5_000)
    with pytest.raises(RemoteProtocolError):
        decoder().decode(popped(record(7), "nonsense"), 0, 5_000)


def test_acks_by_receipt() -> None:
    body = record(5) + record(14) + record(3, queue_id=1) + record(900_000)
    found = decoder().decode(popped(body, "0 0 5;0 1 3"), 0, 5_000)
    acks, alone = batch_acks("g", found)
    assert [(ack.queue_id, ack.start_offset, ack.bit_set) for ack in acks] == [
        (0, 5, "AQI="),
        (1, 3, "AQ=="),
    ]
    assert alone == [found[3]]


def test_the_clock_of_a_broker() -> None:
    time = BrokerTime()
    # The broker is an hour ahead; the quickest response took 5 ms.
    hour = 3_600_000
    assert time.local_ms(hour + 1_000, 900, 1_005) == 1_005
    assert time.local_ms(hour + 2_000, 1_900, 9_000) == 2_005  # it waited here for 7 s
    # Never before the request, nor after the response.
    assert time.local_ms(hour + 1_000, 8_000, 9_000) == 8_000
    assert time.local_ms(hour + 50_000, 9_000, 9_500) == 9_500
    # The broker's clock was set back: wrong for two windows at most, and then right again.
    for now in range(20_000, 200_000, 10_000):
        time.local_ms(now, now - 10, now + 5)
    assert time.local_ms(250_000, 200_000, 250_005) == 250_005


def test_the_first_response_of_a_broker_whose_clock_agrees() -> None:
    assert BrokerTime().local_ms(1_000, 900, 6_000) == 1_000  # it waited here for 5 s
    assert BrokerTime().local_ms(800, 900, 6_000) == 6_000  # before the request: they differ


def test_retry_delays() -> None:
    assert [retry_delay_ms(times) for times in (0, 1, 15, 99)] == [
        10_000,
        30_000,
        7_200_000,
        7_200_000,
    ]
    assert retry_delay_ms(9, level=2) == 60_000
