"""Send frames: the header in letters, properties, compression, batches, and what answers say."""

from __future__ import annotations

import os
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.client.core.client_message import Message, SendStatus
from skylark.client.core.client_options import ClientOptions
from skylark.client.producer.send_request import (
    Parcel,
    SendTemplate,
    batch_part,
    batch_property_text,
    compress,
    property_text,
    read_result,
    split_result,
    unique_id_generator,
)
from skylark.core.clock import SystemClock
from skylark.core.errors import (
    BrokerError,
    InvalidMessageError,
    MessageIllegalError,
    RemoteProtocolError,
    ServiceNotAvailableError,
)
from skylark.core.hashing import UniqueIdGenerator, decode_unique_id
from skylark.filter.tag import is_selectable
from skylark.wire.batch import split_batch
from skylark.wire.bodies.common_body import MessageQueue
from skylark.wire.codes import RequestCode
from skylark.wire.command import SERIALIZE_BINARY, SERIALIZE_JSON, Command
from skylark.wire.compress import COMPRESSION_LZ4, COMPRESSION_ZLIB, COMPRESSION_ZSTD
from skylark.wire.fields import decode_ext, encode_ext
from skylark.wire.frame import decode_frame, encode_frame
from skylark.wire.headers.send import SendMessageRequestHeaderV2
from skylark.wire.properties import parse_properties

QUEUE = MessageQueue(topic="T", broker_name="broker-a", queue_id=3)
TEMPLATE = SendTemplate("pg", "T", model="TBW102", queue_count=4, unit_mode=False)
MESSAGE = Message("T", b"x")
PARCEL = Parcel(messages=(MESSAGE,), properties="UNIQ_KEY\x01U\x02", body=b"x", msg_id="U")


@pytest.mark.parametrize("serialize_type", [SERIALIZE_JSON, SERIALIZE_BINARY])
def test_the_request_is_that_of_the_typed_header(serialize_type: int) -> None:
    request = TEMPLATE.request(PARCEL, QUEUE, 1_794_710_000_000)
    request.serialize_type = serialize_type
    seen = decode_frame(encode_frame(request))
    assert (seen.code, seen.body, seen.serialize_type) == (310, b"x", serialize_type)
    assert decode_ext(SendMessageRequestHeaderV2, seen.ext) == SendMessageRequestHeaderV2(
        producer_group="pg",
        topic="T",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=3,
        sys_flag=0,
        born_timestamp=1_794_710_000_000,
        flag=0,
        properties="UNIQ_KEY\x01U\x02",
        reconsume_times=0,
        unit_mode=False,
        batch=False,
        broker_name="broker-a",
    )
    assert list(request.ext or ()) == sorted(request.ext or ())  # the order of Java's map


def test_what_differs_from_message_to_message() -> None:
    parcel = Parcel(
        messages=(MESSAGE,),
        properties="p",
        body=b"b",
        sys_flag=0x301,
        flag=-7,
        code=RequestCode.SEND_BATCH_MESSAGE,
        fields={"j": "2", "l": "16"},
    )
    far = MessageQueue(topic="T", broker_name="b", queue_id=1000)
    template = SendTemplate("pg", "T", model="M", queue_count=9, unit_mode=True)
    header = decode_ext(SendMessageRequestHeaderV2, template.request(parcel, far, 5).ext)
    assert (header.sys_flag, header.flag, header.queue_id, header.batch) == (0x301, -7, 1000, True)
    assert (header.reconsume_times, header.max_reconsume_times) == (2, 16)
    assert (header.default_topic, header.default_topic_queue_nums) == ("M", 9)
    assert header.unit_mode is True
    again = decode_ext(SendMessageRequestHeaderV2, template.request(PARCEL, QUEUE, 6).ext)
    assert (again.sys_flag, again.flag, again.batch, again.max_reconsume_times) == (
        0,
        0,
        False,
        None,
    )


@pytest.mark.spec("client.8.9")
def test_compression_says_how() -> None:
    body = bytes(4096)
    small, flags = compress(body, COMPRESSION_ZLIB)
    assert (zlib.decompress(small), flags) == (body, 0x301)
    assert compress(body, COMPRESSION_LZ4)[1] == 0x101
    assert compress(body, COMPRESSION_ZSTD)[1] == 0x201
    grown, flags = compress(b"z", COMPRESSION_ZLIB)
    assert len(grown) > 1
    assert flags == 0x301  # even if it grew


# ---- properties ----------------------------------------------------------------------------------


@pytest.mark.parametrize("user", [{}, {"color": "red"}])
def test_properties_are_those_of_the_message_and_its_id(user: dict[str, str]) -> None:
    message = Message("T", b"x", tag="A", keys=["k1", "k2"], properties=user, wait_store_ok=False)
    assert parse_properties(property_text(message, "U")) == {
        "UNIQ_KEY": "U", "WAIT": "false", "TAGS": "A", "KEYS": "k1 k2", **user,
    }  # fmt: skip
    extra = {"DELAY": "3", "UNIQ_KEY": "V"}
    assert parse_properties(property_text(message, "U", extra)) == {
        "UNIQ_KEY": "V", "WAIT": "false", "TAGS": "A", "KEYS": "k1 k2", "DELAY": "3", **user,
    }  # fmt: skip
    assert user in ({}, {"color": "red"})  # the message keeps its own


@settings(max_examples=200, deadline=None)
@given(
    st.none() | st.text(),
    st.lists(st.text(), max_size=3),
    st.dictionaries(st.text(min_size=1), st.text(), max_size=2),
)
def test_property_texts_read_back_or_are_refused(
    tag: str | None, keys: list[str], user: dict[str, str]
) -> None:
    user = {f"n{name}".replace("\x01", ""): value for name, value in user.items()}
    message = Message("T", b"x", tag=tag, keys=keys, properties=user)
    try:
        text = property_text(message, "U")
    except InvalidMessageError:
        everything = "".join([tag or "", *keys, *user, *user.values()])
        bad_tag = tag is not None and not is_selectable(tag)
        bad_key = any(not key or " " in key for key in keys)
        assert "\x02" in everything or bad_tag or bad_key
        return
    expected = {name: value for name, value in message.encoded_properties().items() if value}
    assert parse_properties(text) == {**expected, "UNIQ_KEY": "U"}


def test_properties_that_no_record_holds_are_refused() -> None:
    with pytest.raises(InvalidMessageError, match=r"take 33\d{3} bytes"):
        property_text(Message("T", b"x", properties={"a": "v" * 33_000}), "U")
    with pytest.raises(InvalidMessageError, match="bytes"):
        property_text(Message("T", b"x", tag="\u4e2d" * 11_000), "U")
    assert len(property_text(Message("T", b"x", tag="v" * 32_000), "U")) < 32_767
    with pytest.raises(InvalidMessageError, match="no text"):
        property_text(Message("T", b"x", tag="\ud800"), "U")
    with pytest.raises(InvalidMessageError, match="separator"):
        property_text(Message("T", b"x", tag="a\x02b"), "U")


# ---- batches -------------------------------------------------------------------------------------


@pytest.mark.spec("client.8.16")
def test_a_part_of_a_batch_has_the_printed_form() -> None:
    expected = "00000017 00000000 00000000 00000000 00000001 78 0000"
    assert batch_part(MESSAGE, "") == bytes.fromhex(expected)
    parts = [batch_part(Message("T", b"ab", flag=-2), "p\x01\u00e4\x02"), batch_part(MESSAGE, "")]
    first, second = split_batch(b"".join(parts))
    assert (first.body, first.flag, first.properties) == (b"ab", -2, "p\x01\u00e4\x02".encode())
    assert (second.body, second.flag, second.properties) == (b"x", 0, b"")
    assert batch_part(Message("T", bytearray(b"x")), "") == batch_part(MESSAGE, "")  # type: ignore[arg-type]
    with pytest.raises(InvalidMessageError, match="32 bits"):
        batch_part(Message("T", b"x", flag=2**31), "")


def test_a_batch_carries_all_keys_and_the_common_tag() -> None:
    one = Message("T", b"x", tag="A", keys=["k1", "k2"])
    two = Message("T", b"x", tag="A", keys="k3")
    assert parse_properties(batch_property_text([one, two], "U")) == {
        "UNIQ_KEY": "U", "WAIT": "true", "TAGS": "A", "KEYS": "k1 k2 k3",
    }  # fmt: skip
    other = Message("T", b"x", tag="B")
    assert "TAGS" not in parse_properties(batch_property_text([one, other], "U"))
    many = [Message("T", b"x", keys=["k" * 100])] * 1000
    assert "KEYS" not in parse_properties(batch_property_text(many, "U"))


# ---- results -------------------------------------------------------------------------------------

PLACE = {"msgId": "ID", "queueId": "3", "queueOffset": "7"}


def result_of(code: int = 0, **ext: str) -> Command:
    return Command(code=code, ext={**PLACE, **ext}, remark="why")


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, "SEND_OK"),
        (10, "FLUSH_DISK_TIMEOUT"),
        (11, "SLAVE_NOT_AVAILABLE"),
        (12, "FLUSH_SLAVE_TIMEOUT"),
    ],
)
def test_four_answers_mean_stored(code: int, status: str) -> None:
    result = read_result(result_of(code), "h:1", PARCEL, QUEUE)
    assert result.status is SendStatus(status)
    assert (result.msg_id, result.offset_msg_id, result.queue_offset) == ("U", "ID", 7)
    assert result.queue is QUEUE
    assert (result.region_id, result.trace_on, result.transaction_id) == (
        "DefaultRegion",
        True,
        None,
    )


def test_everything_an_answer_can_say() -> None:
    ext = {"MSG_REGION": "r", "TRACE_ON": "false", "transactionId": "t", "recallHandle": "h"}
    result = read_result(result_of(0, queueId="1", **ext), "h:1", PARCEL, QUEUE)
    assert result.queue == MessageQueue(topic="T", broker_name="broker-a", queue_id=1)
    assert (result.region_id, result.trace_on) == ("r", False)
    assert (result.transaction_id, result.recall_handle) == ("t", "h")


def test_other_answers_are_errors() -> None:
    with pytest.raises(ServiceNotAvailableError) as raised:
        read_result(result_of(14), "h:1", PARCEL, QUEUE)
    assert str(raised.value) == "CODE: 14  DESC: why BROKER: h:1"
    with pytest.raises(BrokerError, match="code 99"):
        read_result(Command(code=99), "h:1", PARCEL, QUEUE)
    for ext in ({}, {**PLACE, "queueOffset": "x"}, {**PLACE, "queueId": ""}):
        with pytest.raises(RemoteProtocolError, match="has no queue offset"):
            read_result(Command(code=0, ext=ext), "h:1", PARCEL, QUEUE)


TOO_LATE = (
    "timer message illegal, the delay time should not be bigger than the max delay {}ms; or if set"
    " del msg, the delay time should be bigger than the current time"
)


@pytest.mark.parametrize(
    ("limit_s", "words"),
    [
        (3 * 86_400, "at most 3 days"),
        (86_400, "at most 1 day,"),
        (36 * 3_600, "at most 36 hours"),
        (90, "at most 90 seconds"),
    ],
)
def test_a_time_beyond_the_limit_is_answered_with_the_limit_in_words(
    limit_s: int, words: str
) -> None:
    remark = TOO_LATE.format(limit_s * 1000)
    with pytest.raises(MessageIllegalError) as raised:
        read_result(Command(code=13, remark=remark), "h:1", PARCEL, QUEUE)
    assert raised.value.remark == remark  # what the broker said stays as it is
    assert str(raised.value).startswith(f"CODE: 13  DESC: {remark} BROKER: h:1: ")
    assert words in (raised.value.hint or "")
    assert "timerMaxDelaySec" in (raised.value.hint or "")


@pytest.mark.parametrize("remark", ["the message is illegal", "timer message illegal", "x 5ms"])
def test_other_illegal_messages_have_no_such_hint(remark: str) -> None:
    with pytest.raises(MessageIllegalError) as raised:
        read_result(Command(code=13, remark=remark), "h:1", PARCEL, QUEUE)
    assert raised.value.hint is None


def test_a_reply_that_is_not_stored_has_no_place() -> None:
    parcel = Parcel(messages=(MESSAGE,), properties="", body=b"", code=325, msg_id="U")
    result = read_result(Command(code=0, ext=None), "h:1", parcel, QUEUE)
    assert (result.queue, result.queue_offset, result.offset_msg_id) == (QUEUE, 0, None)


@pytest.mark.spec("client.8.17")
def test_the_result_of_a_batch_is_split() -> None:
    whole = read_result(result_of(10, msgId="A,B,C", TRACE_ON="false"), "h:1", PARCEL, QUEUE)
    parts = list(split_result(whole, ["1", "2", "3"]))
    assert [part.msg_id for part in parts] == ["1", "2", "3"]
    assert [part.offset_msg_id for part in parts] == ["A", "B", "C"]
    assert [part.queue_offset for part in parts] == [7, 8, 9]
    assert {part.status for part in parts} == {SendStatus.FLUSH_DISK_TIMEOUT}
    assert not any(part.trace_on for part in parts)
    # a topic that keeps batches whole: one place for all
    shared = list(split_result(read_result(result_of(), "h:1", PARCEL, QUEUE), ["1", "2"]))
    assert [(p.msg_id, p.offset_msg_id, p.queue_offset) for p in shared] == [
        ("1", "ID", 7),
        ("2", "ID", 7),
    ]


def test_the_template_agrees_with_the_fields_of_the_header() -> None:
    header = decode_ext(SendMessageRequestHeaderV2, TEMPLATE.request(PARCEL, QUEUE, 1).ext)
    assert encode_ext(header) == TEMPLATE.request(PARCEL, QUEUE, 1).ext


@pytest.mark.spec("client.8.8")
def test_a_unique_id_is_drawn_once_and_every_attempt_has_it() -> None:
    generator = UniqueIdGenerator(
        ip=bytes([10, 0, 0, 1]),
        pid=12345,
        salt=0x12345678,
        now_ms=lambda: 1_000_000_000_000 + 123_456_789,
        month_start_ms=lambda _: 1_000_000_000_000,
    )
    for _ in range(7):
        generator.next_id()
    unique_id = generator.next_id()
    assert unique_id == "0A000001303912345678075BCD150007"
    message = Message("T", b"x", properties={"a": "b"})
    text = property_text(message, unique_id)
    parcel = Parcel(messages=(message,), properties=text, body=b"x", msg_id=unique_id)
    for queue_id in (0, 1):
        queue = MessageQueue(topic="T", broker_name="broker-a", queue_id=queue_id)
        sent = parse_properties((TEMPLATE.request(parcel, queue, 1).ext or {})["i"])
        assert sent == {"a": "b", "WAIT": "true", "UNIQ_KEY": unique_id}


def test_every_client_draws_others() -> None:
    options = ClientOptions(client_ip="10.0.0.1")
    ids = [unique_id_generator(options, SystemClock()).next_id() for _ in range(20)]
    assert len(set(ids)) == 20
    parts = decode_unique_id(ids[0])
    assert (parts.ip, parts.pid) == (bytes([10, 0, 0, 1]), os.getpid() & 0xFFFF)


@pytest.mark.parametrize(("address", "size"), [("[2001:db8::1]", 56), ("a-name", 32)])
def test_any_address_will_do(address: str, size: int) -> None:
    generator = unique_id_generator(ClientOptions(client_ip=address), SystemClock())
    assert len(generator.next_id()) == size
